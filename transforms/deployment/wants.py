"""Requirements of a target's kernels on a whole model, read from its profile."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from fnmatch import fnmatchcase

from qgraph.targets.kernels import ANY, KernelRule, OperandRule
from qgraph.targets.layer import ZeroPoint
from qgraph.targets.profile import Profile
from qgraph.targets.rules import Loads
from qgraph.transforms.merge_activation import ActivationForm
from qgraph.transforms.shift_zero_points import CodeSign
from qgraph.transforms.weights.scaled_weights import NegativeFactor

_CLIPPED = "QuantizeLinear+Clip+DequantizeLinear"
_BEFORE_NARROW_CODES = 20
"""The last opset without 4-bit codes, in which signed codes can be moved across all operators."""

_NONE = frozenset({ZeroPoint.NONE, ZeroPoint.ZERO})


class BiasForm(StrEnum):
    """Form of biases."""

    CODES = "codes"
    """INT32 codes in the unit of the products."""

    FLOATS = "floats"
    """Float constants."""

    KEPT = "kept"
    """Unchanged: the kernels compute them as written."""


def kernels(profile: Profile) -> list[KernelRule]:
    """Return the kernels that exist."""
    return [kernel for kernel in profile.kernel if kernel.exists is Loads.YES]


def takes(profile: Profile, written: str) -> bool:
    """Return whether a kernel accepts quantizers of a form; True if the profile lists no forms."""
    forms = [form for rule in _operands(profile) for form in rule.written or ()]
    return not forms or any(fnmatchcase(written, form) or written in form for form in forms)


def limits(profile: Profile) -> ActivationForm:
    """Return the operator by which data are limited to fewer codes than their type has."""
    is_slow = any(_CLIPPED in (form.y_written or ()) for form in profile.slower)
    if takes(profile, _CLIPPED) and not is_slow:
        return ActivationForm.CODES
    return ActivationForm.UNITS if takes_units_only(profile) else ActivationForm.FLOATS


def takes_units_only(profile: Profile) -> bool:
    """Return whether each operator needs its own quantizers on both sides."""
    rows = kernels(profile)
    return bool(rows) and all(
        kernel.behind.operators == () and kernel.output.quantizer == "required" for kernel in rows
    )


def takes_moved_codes(profile: Profile) -> bool:
    """Return whether data movement is accepted between the two nodes of a pair."""
    return takes(profile, "QuantizeLinear+MaxPool+DequantizeLinear")


def highest_opset(profile: Profile, default: int) -> int:
    """Return the highest opset that the forms need and that the target reads."""
    opsets, rows = profile.versions.opsets, kernels(profile)
    is_narrow = any("INT4" in name for k in rows for rule in k.types for name in rule.w)
    if rows and not (is_narrow or takes_zero_points(profile, weights=False)):
        default = _BEFORE_NARROW_CODES
    return default if opsets is None else min(default, opsets[1])


def data_type(profile: Profile) -> CodeSign:
    """Return the type of codes of data that kernels accept under the fewest conditions."""
    free = {name for kernel in profile.kernel for r in kernel.types if not r.direct for name in r.x}
    if "INT8" in free and not takes_zero_points(profile, weights=False):
        return CodeSign.INT8
    if "INT8" in free and ("UINT8" not in free or not has_slow_signed(profile)):
        return CodeSign.KEEP if "UINT8" in free else CodeSign.INT8
    return CodeSign.UINT8 if "UINT8" in free else CodeSign.KEEP


def has_slow_signed(profile: Profile) -> bool:
    """Return whether signed codes of data with a zero point were measured to be slower."""
    return any(
        set(form.x_types or ()) == {"INT8"} and ZeroPoint.EQUAL in (form.x_zero or ())
        for form in profile.slower
    )


def weight_type(profile: Profile) -> CodeSign:
    """Return the type of stored codes."""
    types = {name for kernel in profile.kernel for rule in kernel.types for name in rule.w}
    return CodeSign.INT8 if "INT8" in types else CodeSign.KEEP


def takes_zero_points(profile: Profile, *, weights: bool) -> bool:
    """Return whether zero points other than 0 are accepted, or it is unknown.

    Args:
        profile: of the target.
        weights: zero points of weights, not of data.
    """
    rows = [k for k in kernels(profile) if not weights or k.w.constant != "no"]
    zeros = {zero for k in rows for zero in (k.w if weights else k.x).zero or ()}
    return not zeros or not zeros <= _NONE


def needs_recurrent_numbers(profile: Profile) -> bool:
    """Return whether LSTM, GRU and RNN accept no decoded constants."""
    return any(rule.loads is Loads.NO and "LSTM" in (rule.readers or ()) for rule in profile.load)


def misreads_row_sums(profile: Profile) -> bool:
    """Return whether sums over rows of codes are wrong, see :mod:`qgraph.inventory.row_sums`."""
    return any("ReduceMean" in row.operators and row.wrong for row in profile.codes)


def misreads_turned_weights(profile: Profile) -> bool:
    """Return whether square weights that are read turned, too, are misread: a trap of this id."""
    return any(trap.id == "square-weights-turned" for trap in profile.trap)


def needs_float32(profile: Profile) -> bool:
    """Return whether the profile lists types of scales without those of 16 bits."""
    types = {name for rule in _operands(profile) for name in rule.scale_types or ()}
    return bool(types) and types.isdisjoint({"FLOAT16", "BFLOAT16"})


def symmetric_factors(profile: Profile) -> bool:
    """Return whether products of data accept their first factor only without a zero point."""
    rows = [kernel for kernel in kernels(profile) if kernel.w.constant == "no"]
    zeros = {zero for kernel in rows for zero in kernel.x.zero or ()}
    return bool(zeros) and zeros <= _NONE and any("INT8" in r.x for k in rows for r in k.types)


def takes_float_products(profile: Profile) -> bool:
    """Return whether results of MatMul may be floats, and those of Conv must be codes."""
    needs = {
        name: {k.output.quantizer == "required" for k in kernels(profile) if name in k.operators}
        for name in ("Conv", "MatMul")
    }
    return needs["Conv"] == {True} and False in needs["MatMul"]


def splits_leaky_relu(profile: Profile) -> bool:
    """Return whether LeakyRelu keeps layers from kernels, and Max of codes does not."""
    if not any("Max" in row.operators for row in profile.codes):
        return False
    rows = [kernel.behind for kernel in kernels(profile) if kernel.output.quantizer == "required"]
    taken = {name for row in rows for name in row.operators or ()}
    return bool(rows) and taken.isdisjoint({"LeakyRelu", ANY})


def biases(profile: Profile) -> BiasForm:
    """Return the form of biases."""
    rules = [kernel.bias for kernel in kernels(profile)]
    if any(rule.scale == "as written" for rule in rules):
        return BiasForm.KEPT
    types = {name for rule in rules for name in rule.types or ()}
    return BiasForm.CODES if not types or types & {"INT32", ANY} else BiasForm.FLOATS


def negative_factors(profile: Profile) -> NegativeFactor:
    """Return how negative factors of channels are stored."""
    needs = any("positive" in kernel.w.scale for kernel in kernels(profile))
    return NegativeFactor.CODES if needs else NegativeFactor.SCALES


def _operands(profile: Profile) -> Iterator[OperandRule]:
    for kernel in profile.kernel:
        yield from (kernel.x, kernel.y)
