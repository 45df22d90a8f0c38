"""The passes that write a model in a form that a target's kernels accept, by its profile."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from enum import StrEnum
from fnmatch import fnmatchcase

from qgraph.exactness import Exactness
from qgraph.targets.layer import ANY, KernelRule, Loads, OperandRule, ZeroPoint
from qgraph.targets.profile import Profile
from qgraph.transforms.base import Transform, escaped
from qgraph.transforms.canonical_operators import CanonicalForm, CanonicalOperators
from qgraph.transforms.convert import ConvertDialect, FoldWeights
from qgraph.transforms.fold_batch_norm import FoldBatchNorm
from qgraph.transforms.fold_constants import FoldConstants
from qgraph.transforms.lowered_operators import LowerIntegerOperators, SumForm
from qgraph.transforms.merge_activation import ActivationForm, MergeActivation
from qgraph.transforms.move_channel_scales import MoveChannelScales
from qgraph.transforms.move_quantizers import MoveQuantizers
from qgraph.transforms.plain_forms import LowerPointwise, PairDialect, PlainPairs, SplitGemm
from qgraph.transforms.quantize_bias import QuantizeBias
from qgraph.transforms.recoding import (
    CodeSign,
    CodeTarget,
    Repack,
    ShiftZeroPoints,
    SymmetricWeights,
    WidenCodes,
)
from qgraph.transforms.split_layers import SplitLeakyRelu, SplitZeroPoints
from qgraph.transforms.weights.scaled_weights import NegativeFactor
from qgraph.transforms.whole_zero_points import WholeZeroPoints
from qgraph.transforms.widen_floats import WidenFloats
from qgraph.transforms.write_convolutions import WriteConvolutions

HIGHEST_OPSET = 21
"""Highest opset that the forms in this module need."""


def steps_for(
    profile: Profile,
    *,
    nodes: str = "*",
    values: str = "*",
    coded: str = "*",
    packed: Collection[str] | None = None,
) -> list[Transform]:
    """Return the passes for a target, in the order in which they are applied.

    Constants are computed first, since the rules of the other passes only match stored codes.
    Weight codes are widened before biases become int32, whose scale is that of the products.

    Args:
        profile: of the target.
        nodes: patterns of names of the layers into which factors and biases may be merged.
        values: patterns of names of the results of quantizers to write in plain form.
        coded: patterns of names of the products whose weights get the type that kernels accept.
        packed: None to store weights in the types that kernels accept. Otherwise weights keep the
            type that FoldWeights chooses, and the named layers keep their biases.
    """
    opset = highest_opset(profile, HIGHEST_OPSET)
    if not takes(profile, "DequantizeLinear"):
        return list(_quants(profile, values))
    steps = [*_plain(profile, opset, values, nodes), *_shaped(profile, opset, nodes)]
    if packed is None:
        return [
            replace(step, nodes=coded) if isinstance(step, Repack | WidenCodes) else step
            for step in steps
        ]
    biased = "|".join((nodes, *(f"!{escaped(name)}" for name in packed)))
    return [
        replace(step, nodes=biased) if isinstance(step, QuantizeBias) else step
        for step in steps
        if not isinstance(step, Repack | WidenCodes)
    ]


def wide_codes(nodes: str = "*") -> Repack:
    """Return the pass that stores the weights of the named operators as codes of 16 bits."""
    to, opset = CodeTarget.INT16, HIGHEST_OPSET
    return Repack(to=to, activations=False, scales=False, nodes=nodes, opset=opset)


def as_pairs() -> LowerIntegerOperators:
    """Return the pass that writes operators on codes as layers between quantizers."""
    return LowerIntegerOperators(form=SumForm.QDQ, exact=Exactness.NEAR)


def conversion_for(profile: Profile) -> list[Transform]:
    """Return the passes that write quantizers in the dialect of a target, equal in value."""
    opset = highest_opset(profile, HIGHEST_OPSET)
    if not takes(profile, "DequantizeLinear"):
        return [as_pairs(), ConvertDialect(to="qonnx")]
    qdq = ConvertDialect(to="qdq", exact=Exactness.VALUES, opset=opset)
    return [as_pairs(), qdq, FoldWeights(opset=opset)]


def _plain(profile: Profile, opset: int, values: str, nodes: str) -> Iterator[Transform]:
    """Yield passes that write quantizers in plain form and weights as stored codes."""
    yield as_pairs()
    # Before conversion, since a bias would join the float operators around a quantizer.
    yield PlainPairs(values=values, opset=opset)
    if operators := rounding_zero_points(profile):
        yield WholeZeroPoints(nodes=nodes, operators="|".join(operators), opset=opset)
    yield from conversion_for(profile)[1:]
    if needs_float32(profile):
        yield WidenFloats()
    yield PlainPairs(values=values, opset=opset)
    yield FoldConstants(recurrent=needs_recurrent_numbers(profile))
    yield SymmetricWeights(opset=opset)


def _quants(profile: Profile, values: str) -> Iterator[Transform]:
    """Yield passes that write each quantizer as one Quant, and remove those without effect."""
    yield as_pairs()
    yield ConvertDialect(to="qonnx")
    yield MoveQuantizers()
    has_points = takes_zero_points(profile, weights=False)
    yield PlainPairs(dialect=PairDialect.QONNX, values=values, zero_points=has_points)
    if not any("Gemm" in kernel.operators for kernel in kernels(profile)):
        yield SplitGemm()


def _shaped(profile: Profile, opset: int, nodes: str) -> Iterator[Transform]:
    """Yield passes that leave only layers between quantizers, in types that kernels accept."""
    repack = Repack(
        to=CodeTarget.INT8, activations=False, operators="Conv*|Gemm|MatMul", opset=opset
    )
    if not kernels(profile):
        yield repack
        return
    yield CanonicalOperators()
    yield MoveQuantizers(units=True, operators="Pad|Resize")
    yield FoldBatchNorm(nodes=nodes, opset=opset, negative=negative_factors(profile))
    yield CanonicalOperators()
    yield MoveChannelScales()
    yield MergeActivation(opset=opset)
    if takes_float_products(profile):
        yield LowerPointwise(nodes=nodes)
    if scales_of_convolutions_only(profile):
        yield WriteConvolutions()
    if takes_units_only(profile):
        yield MoveQuantizers(units=True, dedicated=True)
    elif takes_moved_codes(profile) and not symmetric_factors(profile):
        yield MoveQuantizers()
        yield MergeActivation(opset=opset)
    yield CanonicalOperators()
    yield repack
    yield ShiftZeroPoints(
        activations=data_type(profile),
        weights=weight_type(profile),
        symmetric=not has_slow_signed(profile),
        products=symmetric_factors(profile),
        centre=not takes_zero_points(profile, weights=False),
    )
    if not takes_zero_points(profile, weights=True):
        yield SplitZeroPoints(nodes=nodes, opset=opset)
    if limits(profile) is not ActivationForm.CODES:
        yield MergeActivation(form=limits(profile), opset=opset)
    match biases(profile):
        case BiasForm.CODES:
            yield WidenCodes(opset=opset)
            yield QuantizeBias(nodes=nodes, opset=opset)
        case BiasForm.FLOATS:
            yield FoldConstants(biases=True)
    if splits_leaky_relu(profile):
        yield SplitLeakyRelu(nodes=nodes, opset=opset)
    yield CanonicalOperators(forms=CanonicalForm.POINTS)


_CLIPPED = "QuantizeLinear+Clip+DequantizeLinear"
BEFORE_NARROW_CODES = 20
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


def scales_of_convolutions_only(profile: Profile) -> bool:
    """Return whether weights may have a scale for each channel in Conv, and not in products."""
    rows = [kernel for kernel in kernels(profile) if kernel.w.constant != "no"]
    taken = {
        name
        for kernel in rows
        for name in kernel.operators
        if {ANY, "axis"} & set(kernel.w.granularity or (ANY,))
    }
    return "Conv" in taken and taken.isdisjoint({"Gemm", "MatMul"})


def takes_moved_codes(profile: Profile) -> bool:
    """Return whether data movement is accepted between the two nodes of a pair."""
    return takes(profile, "QuantizeLinear+MaxPool+DequantizeLinear")


def highest_opset(profile: Profile, default: int) -> int:
    """Return the highest opset that the forms need and that the target reads."""
    opsets, rows = profile.versions.opsets, kernels(profile)
    is_narrow = any("INT4" in name for k in rows for rule in k.types for name in rule.w)
    if rows and not (is_narrow or takes_zero_points(profile, weights=False)):
        default = BEFORE_NARROW_CODES
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
    """Return whether zero points other than 0, of weights or of data, are accepted or unknown."""
    rows = [k for k in kernels(profile) if not weights or k.w.constant != "no"]
    zeros = {zero for k in rows for zero in (k.w if weights else k.x).zero or ()}
    return not zeros or not zeros <= _NONE


def rounding_zero_points(profile: Profile) -> list[str]:
    """Return the operators whose kernels accept only data with whole zero points."""
    zeros = {op: set[str]() for kernel in kernels(profile) for op in kernel.operators}
    for kernel in kernels(profile):
        for op in kernel.operators:
            zeros[op] |= set(kernel.x.zero or (ANY,))
    return sorted(op for op, taken in zeros.items() if taken.isdisjoint({ANY, ZeroPoint.FRACTION}))


def needs_recurrent_numbers(profile: Profile) -> bool:
    """Return whether LSTM, GRU and RNN accept no decoded constants."""
    return any(rule.loads is Loads.NO and "LSTM" in (rule.readers or ()) for rule in profile.load)


def misreads_row_sums(profile: Profile) -> bool:
    """Return whether sums over rows of codes are wrong: :mod:`qgraph.inventory.openvino_traps`."""
    return any("ReduceMean" in row.operators and row.wrong for row in profile.codes)


def misreads_turned_weights(profile: Profile) -> bool:
    """Return whether square weights that are read turned, too, are misread: a trap of this id."""
    return any(trap.id == "square-weights-turned" for trap in profile.trap)


def copies_unsigned_pairs(profile: Profile) -> bool:
    """Return whether pairs without a zero point are copied with other codes: a trap of this id."""
    return any(trap.id == "pairs-without-zero-point" for trap in profile.trap)


def multiplies_results(profile: Profile) -> bool:
    """Return whether the scale of a quantizer costs an operation on each result: a trap."""
    return any(trap.id == "scaled-results" for trap in profile.trap)


def joins_limits(profile: Profile) -> bool:
    """Return whether a Clip before a quantizer limits each result after its rounding: a trap."""
    return any(trap.id == "limits-after-rounding" for trap in profile.trap)


def misreads_row_scales(profile: Profile) -> bool:
    """Return whether scales along the rows of short codes are misread: a trap of this id."""
    return any(trap.id == "row-scales" for trap in profile.trap)


def needs_float32(profile: Profile) -> bool:
    """Return whether the profile lists types of scales, or of biases, without those of 16 bits."""
    scales = {name for rule in _operands(profile) for name in rule.scale_types or ()}
    biases = {name for kernel in kernels(profile) for name in kernel.bias.types or ()}
    narrow = {"FLOAT16", "BFLOAT16", ANY}
    return any(types and types.isdisjoint(narrow) for types in (scales, biases))


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


def adds_channel(profile: Profile) -> bool:
    """Return whether data of three channels are faster with a fourth one."""
    return any(kernel.fourth_channel for kernel in kernels(profile))


def negative_factors(profile: Profile) -> NegativeFactor:
    """Return how negative factors of channels are stored."""
    needs = any("positive" in kernel.w.scale for kernel in kernels(profile))
    return NegativeFactor.CODES if needs else NegativeFactor.SCALES


def _operands(profile: Profile) -> Iterator[OperandRule]:
    for kernel in profile.kernel:
        yield from (kernel.x, kernel.y)
