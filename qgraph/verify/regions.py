"""Decide a region of a certificate again, by the definitions of its operators."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.certificate import RegionVerdict
from qgraph.errors import EquivalenceError, OperatorError, UnsupportedError
from qgraph.exactness import Exactness, Method, PartFinding, ProofVerdict, Status
from qgraph.graph.interface import Pair
from qgraph.graph.scopes import node_name
from qgraph.numerics.formats import numpy_dtype
from qgraph.numerics.values import compare_values
from qgraph.reasons import REWRITTEN, VERDICT_NOT_CHECKED
from qgraph.verify.functions import Both, Compared, Function, check_equal
from qgraph.verify.reading import Reading
from qgraph.verify.shapes import code_range, merged, shape_of

Sides = tuple[Reading, Reading]
Parts = Sequence[Sequence[ir.Node]]
Fields = dict[str, Any]
_Recomputed = tuple[Fields, bool, bool]
"""Fields; whether -0 and +0 as entries have different results; whether results may lose signs."""


_STATED = frozenset(
    {"reference_nodes", "candidate_nodes", "reference_value", "candidate_value", "entries"}
    | {"verdict", "witness", "witness_channel", "reason", "conditions"}
    | {"boxes", "cases", "bound"}
)
"""Fields of a region that are not recomputed: names, witness, how the prover divided inputs."""

_MOST_BITS = 16
_INFINITE, _NAN, _ZEROS = np.array([[np.inf, -np.inf], [np.nan, -np.nan], [0, -0.0]], np.float32)


@dataclass(frozen=True)
class Equality:
    """Two values that are equal if the entries are.

    Attributes:
        values: the pair of values.
        entries: the pair of values that they are computed from; empty for constants.
        tells_zeros_apart: whether the entries -0 and +0 have different results.
        loses_signs: whether the values may be zeros of different signs.
    """

    values: Pair
    entries: tuple[Pair, ...]
    tells_zeros_apart: bool
    loses_signs: bool


class _OtherFormError(EquivalenceError):
    """The models, as they are written, lack values or nodes of a region."""


def check(
    region: RegionVerdict, sides: Sides, *, as_written: bool
) -> tuple[PartFinding, Equality | None]:
    """Return the finding about a region, and the equality that it proves.

    Args:
        region: the region as the certificate states it.
        sides: the models.
        as_written: whether the certificate names nodes of the models as written. If not, names
            that the models lack do not refute the region.
    """
    if region.verdict is not ProofVerdict.PROVED or region.method is Method.BOUND:
        return not_decided(region), None
    try:
        exit_, *entries = (
            (_named(sides[0], a), _named(sides[1], b))
            for a, b in ((region.reference_value, region.candidate_value), *region.entries)
        )
        parts = _parts(sides, exit_, entries)
        _check_nodes(region, parts, as_written=as_written)
        claim = _check(region, sides, exit_, tuple(entries), parts)
        return PartFinding(Status.CHECKED), claim
    except EquivalenceError as error:
        if as_written or not isinstance(error, _OtherFormError):
            return PartFinding(Status.REFUTED, str(error)), None
        reason = f"the prover may have rewritten the nodes: {error}"
        return PartFinding(Status.UNCHECKED, REWRITTEN(reason)), None
    except (UnsupportedError, OperatorError, ValueError, TypeError) as error:
        return PartFinding(Status.UNCHECKED, str(error)), None


def not_decided(region: RegionVerdict) -> PartFinding:
    """Return the finding about a region of a kind that the checker leaves to the prover."""
    why = region.reason or f"by {region.method}"
    reason = f"the checker does not decide it: {region.verdict}, {why}"
    return PartFinding(Status.UNCHECKED, VERDICT_NOT_CHECKED(reason))


def _named(side: Reading, name: str) -> ir.Value:
    values = side.named(name)
    if not values:
        raise _OtherFormError(f"there is no value {name!r}")
    if len(values) > 1:
        raise UnsupportedError(f"several values have the name {name!r}")
    return values[0]


def _check(
    region: RegionVerdict, sides: Sides, exit_: Pair, entries: tuple[Pair, ...], parts: Parts
) -> Equality:
    """Return the equality that a region states, after checking all its fields."""
    if entries:
        fields, tells_zeros_apart, lossy = _of_data(region, sides, exit_, entries[0], parts)
    else:
        fields, tells_zeros_apart, lossy = _of_constants(region, sides, exit_)
    exactness = Exactness.VALUES if lossy else Exactness.BITS
    blank = with_defaults(region, _STATED)
    expected = replace(blank, exactness=exactness, counted=True, **fields)
    for name, actual in vars(expected).items():
        if actual != (stated := getattr(region, name)):
            label = name.replace("_", " ")
            raise EquivalenceError(f"{label}: {actual!s:.60} was found, not {stated!s:.60}")
    return Equality(exit_, entries, tells_zeros_apart, lossy)


def with_defaults(region: RegionVerdict, names: Collection[str]) -> RegionVerdict:
    """Return a region with some fields of another; all others have their defaults."""
    fields: Fields = {name: getattr(region, name) for name in names}
    return RegionVerdict(**fields)


def _parts(sides: Sides, exit_: Pair, entries: Sequence[Pair]) -> Parts:
    """Return the nodes of both sides."""
    if len(entries) > 1:
        raise UnsupportedError("it has several inputs")
    if not entries:
        return [[node] if (node := end.producer()) else [] for end in exit_]
    parts = []
    for side, end, start in zip(sides, exit_, entries[0], strict=True):
        nodes = side.between(end, [start])
        if nodes is None:
            raise _OtherFormError("it is not computed from its entry alone")
        parts.append(nodes)
    return parts


def _check_nodes(region: RegionVerdict, parts: Parts, *, as_written: bool) -> None:
    """Check the names of the nodes. Rules of the prover may have split nodes, or left some out."""
    stated = region.reference_nodes, region.candidate_nodes
    for nodes, names in zip(parts, stated, strict=True):
        own = [node_name(node) for node in nodes]
        if sorted(own) != sorted(names) and (as_written or not set(names) <= set(own)):
            raise _OtherFormError("it does not consist of the named nodes")


def _of_constants(region: RegionVerdict, sides: Sides, exit_: Pair) -> _Recomputed:
    if not all(side.has(value) for side, value in zip(sides, exit_, strict=True)):
        raise UnsupportedError("the checker does not know its values to be constant")
    a, b = (side.array(value) for side, value in zip(sides, exit_, strict=True))
    if a is None or b is None or a.dtype.kind in "OSU":
        raise UnsupportedError("the checker cannot compute a constant")
    if a.shape != b.shape or a.dtype != b.dtype:
        raise EquivalenceError("the constants have different types or shapes")
    comparison = compare_values(a, b)
    if comparison.differing:
        raise EquivalenceError(f"the constants differ in {comparison.differing} elements")
    index, signs = comparison.index, comparison.zero_sign
    _check_witness(region, [] if index is None else [index, a.flat[index], b.flat[index]])
    return {"method": Method.CONSTANT, "zero_sign_inputs": signs}, False, signs > 0


def _of_data(
    region: RegionVerdict, sides: Sides, exit_: Pair, entry: Pair, parts: Parts
) -> _Recomputed:
    types = [{value.dtype for value in pair} for pair in (entry, exit_)]
    if any(len(pair - {None}) > 1 for pair in types):
        raise EquivalenceError("values that should be equal have different types")
    dtype = entry[0].dtype
    if dtype is None or None in types[0] | types[1]:
        raise UnsupportedError("the checker does not know a type")
    shape = merged(*map(shape_of, entry))
    one, other = (
        Function(side, part, x, y, shape)
        for side, part, x, y in zip(sides, parts, entry, exit_, strict=True)
    )
    results = one.result_shape(), other.result_shape()
    if merged(*results) != results[0] or results[0] != results[1]:
        raise UnsupportedError("the checker does not know the shape of its data")
    both = Both(one, other)
    is_float = dtype is ir.DataType.FLOAT
    fields, lossy = _of_floats(region, both) if is_float else _of_codes(region, both, dtype)
    if region.method is Method.CONGRUENCE:
        fields["method"] = Method.CONGRUENCE
    zeros = both.everywhere(_ZEROS)
    plus, minus = np.stack([zeros.reference, zeros.candidate]).reshape(2, 2, -1).swapaxes(0, 1)
    tells_zeros_apart = not np.array_equal(plus, minus, equal_nan=True)
    return fields, tells_zeros_apart, lossy or fields["nan_differs"]


def _of_floats(region: RegionVerdict, both: Both) -> tuple[Fields, bool]:
    """Return the recomputed fields after comparing all float32 inputs, and whether signs differ."""
    if region.method is Method.EXHAUSTIVE:
        raise UnsupportedError(
            "its proof tries all inputs one by one, or steps, which the checker does not do"
        )
    infinity, nan = both.everywhere(_INFINITE), both.everywhere(_NAN)
    check_equal(infinity, np.repeat(_INFINITE, len(both.kinds)))
    signs = both.count_signs({boxes.channel: boxes.starts for boxes in region.boxes})
    nan_differs = bool(nan.is_unequal.any())
    lossy = signs > 0 or bool(infinity.signs.any())
    _check_shown(region, both, is_needed=lossy or nan_differs)
    fields = {"method": Method.INTERVALS, "zero_sign_inputs": signs, "nan_differs": nan_differs}
    return fields | {"channels": both.channels}, lossy


def _of_codes(region: RegionVerdict, both: Both, data_type: ir.DataType) -> tuple[Fields, bool]:
    """Return the same after trying all values of a type of up to 16 bits."""
    if data_type in (ir.DataType.BOOL, ir.DataType.STRING) or data_type.bitwidth > _MOST_BITS:
        raise UnsupportedError(f"the checker does not decide data of type {data_type.name}")
    if data_type.is_integer():
        low, high = code_range(data_type)
        x = np.arange(low, high + 1)
    else:
        dtype = numpy_dtype(data_type.name)
        x = np.arange(1 << int(data_type.bitwidth), dtype=f"u{dtype.itemsize}").view(dtype)
    x = x.astype(np.float32)
    compared, x = both.everywhere(x), np.repeat(x, len(both.kinds))
    if compared.tied.any():
        raise UnsupportedError(
            "ONNX does not define the sign of a zero result for some of its inputs"
        )
    nan = np.isnan(x)
    check_equal(Compared(*(column[~nan] for column in compared)), x[~nan])
    signs = int(np.tile(both.counts, len(x) // len(both.counts))[compared.signs & ~nan].sum())
    _check_shown(region, both, is_needed=signs > 0)
    nan_differs = bool((compared.is_unequal & nan).any())
    fields = {"method": Method.EXHAUSTIVE, "zero_sign_inputs": signs, "nan_differs": nan_differs}
    return fields, signs > 0


def _check_shown(region: RegionVerdict, both: Both, *, is_needed: bool) -> None:
    """Check that there is a witness if one is needed, and that its results are as stated."""
    witness, channel = region.witness, region.witness_channel or 0
    shown: list[float] = []
    if witness is not None and is_needed:
        x = np.array([witness.input], np.float32)
        if not 0 <= channel < both.channels:
            raise EquivalenceError("its witness names no channel of the region")
        compared = both.at(np.array([channel]), x)
        if not compared.is_unequal.any():
            raise EquivalenceError("the sides do not differ on its witness")
        shown = [float(c[0]) for c in (x, compared.reference, compared.candidate)]
    elif is_needed:
        raise EquivalenceError("it has no witness")
    _check_witness(region, shown)


def _check_witness(region: RegionVerdict, shown: Sequence[float]) -> None:
    witness = region.witness
    stated = [] if witness is None else [witness.input, witness.reference, witness.candidate]
    texts = [", ".join(repr(float(number)) for number in numbers) for numbers in (stated, shown)]
    if texts[0] != texts[1]:  # as texts, NaN equals NaN, and -0 differs from +0
        raise EquivalenceError(f"its witness is [{texts[0]}], but [{texts[1]}] was found")
