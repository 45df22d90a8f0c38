"""Decide regions by cases: sets of inputs on which all quantizers have constant results.

A region may have two inputs, and there are too many pairs of floats to try. If a quantizer reads
each input first, there are few pairs of codes. All inputs with the same pair of codes form one
case. The kernels run each case once.

A region with one input is decided in the same way if quantizers of both sides read it first and the
following operators have no definition over float32, such as sums in float64 and tables of codes.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from qgraph.conditions import Cases
from qgraph.exactness import Exactness, Witness
from qgraph.graph.interface import Pair
from qgraph.graph.slices import between, dominators, nearest_cut
from qgraph.numerics import Array, Mask
from qgraph.numerics.float32 import HIGHEST, Keys, from_keys
from qgraph.numerics.formats import all_values
from qgraph.numerics.values import Comparison, compare_values, is_nan
from qgraph.ops.operator import is_defined, operator_of
from qgraph.proof.functions.decide import PairOutcome, tried
from qgraph.proof.functions.enumeration import NodeSegment, along_axis, free_axis
from qgraph.proof.functions.expression import Builder, Expr
from qgraph.proof.functions.lowering import lower
from qgraph.proof.matching.classes import MatchedModel
from qgraph.proof.matching.match import Matching
from qgraph.proof.matching.operators import is_reshape
from qgraph.proof.matching.zero_signs import distinguishes_signed_zeros, is_whole
from qgraph.proof.regions import Cut, Decided, element_type, run_nodes
from qgraph.reasons import DO_NOT_FIT, NOT_KNOWN, TWO_INPUTS, TYPE_NOT_PROVED, Undecidable

_CASES = 1 << 22
_NARROW_BITS = 8
_SIGNED = 3
"""Maximum number of quantized values whose zeros are tried with both signs."""

_SPECIAL = np.array([-np.inf, np.inf, np.nan], np.float32)


def decide_joint(
    matching: Matching, entries: Sequence[Pair], exit_: Pair, known: Decided
) -> PairOutcome:
    """Compare both sides for every case. The verdict counts cases.

    ``entries`` are two pairs of equal values, from which both sides are computed. Raises
    Undecidable if an entry has too many values, or parameters vary by channel.
    """
    sides = matching.reference, matching.candidate
    parts = []
    for side, end, *starts in zip(sides, exit_, *entries, strict=True):
        nodes = between(end, starts, side.joined)
        if nodes is None:
            raise Undecidable(TWO_INPUTS("it does not depend on two values only"))
        _check_parameters(side, nodes)
        parts.append(nodes)
    (first, one), (second, other) = (_cases(sides, parts, entry, known) for entry in entries)
    if first.size * second.size > _CASES:
        raise Undecidable(
            TWO_INPUTS(f"there are {first.size} x {second.size} cases, too many to try")
        )
    x, z = np.repeat(first, second.size), np.tile(second, first.size)
    results = [
        run_nodes(side.known, nodes, {a: x, b: z}, end)
        for side, nodes, end, a, b in zip(sides, parts, exit_, *entries, strict=True)
    ]
    _expect_alike(results[0], results[1], 1)
    special = is_nan(x) | is_nan(z)
    comparison, at_nan, witness, _ = _compared(x, special, *results)
    reason = f"{np.count_nonzero(~special)} pairs of values of two inputs were tried"
    # -0 and +0 are one case, so nothing is claimed about them; integers have one zero
    if results[0].dtype.kind not in "biu":
        comparison = replace(comparison, zero_sign=max(1, comparison.zero_sign))
    return PairOutcome(tried(comparison, at_nan, witness, reason), cases=(one, other))


def _expect_alike(a: Array, b: Array, rank: int) -> None:
    if a.dtype != b.dtype or a.shape != b.shape or a.ndim != rank:
        raise Undecidable(DO_NOT_FIT("the results are of different types or shapes"))


def _compared(
    x: Array, special: Mask, a: Array, b: Array
) -> tuple[Comparison, Comparison, Witness | None, int | None]:
    """Compare results ``[n, ...]`` of inputs ``[n]``, and those of special inputs apart from them.

    Also returns the witness, and its flat index behind the first axis.
    """
    numbers = a[~special], b[~special]
    comparison, at_nan = compare_values(*numbers), compare_values(a[special], b[special])
    if not comparison.differing or comparison.index is None:
        return comparison, at_nan, None, None
    row, channel = divmod(comparison.index, numbers[0][0].size)
    values = (float(side.reshape(-1)[comparison.index]) for side in numbers)
    return comparison, at_nan, Witness(float(x[~special][row]), *values), channel


def _check_parameters(side: MatchedModel, nodes: Sequence[ir.Node]) -> None:
    """Check that nodes have parameters for whole tensors, and do not distinguish zeros."""
    for node in nodes:
        if is_reshape(node):
            raise Undecidable(TWO_INPUTS("it has two inputs, and reshapes data"))
        data = []
        for value in node.inputs:
            array = None if value is None else side.known.array(value)
            if array is not None and array.size > 1:
                raise Undecidable(
                    TWO_INPUTS("it has two inputs, and parameters that vary by channel")
                )
            if array is None and value is not None:
                data.append(value)
        _check_zeros(node, data)


def _check_zeros(node: ir.Node, data: Sequence[ir.Value]) -> None:
    """Check that a node gives equal results for -0 and +0, which are one case."""
    real = [value for value in data if not is_whole(value)]
    if real and distinguishes_signed_zeros(node, real):
        raise Undecidable(
            TWO_INPUTS(f"it has two inputs, and {node.op_type} distinguishes -0 from +0")
        )


def _cases(
    sides: tuple[MatchedModel, MatchedModel],
    parts: Sequence[Sequence[ir.Node]],
    entry: Pair,
    known: Decided,
) -> tuple[Array, Cases]:
    """Return one value of an entry for each case, and the division of its inputs into cases."""
    dtype = entry[0].dtype or entry[1].dtype
    if dtype is None:
        raise Undecidable(NOT_KNOWN("the type of one of its two inputs is not known"))
    if dtype is not ir.DataType.FLOAT:
        if dtype.bitwidth > _NARROW_BITS or not dtype.is_integer():
            raise Undecidable(TYPE_NOT_PROVED(f"one of its two inputs is {dtype.name}"))
        return all_values(dtype.name), Cases(None, None)
    for name, side, value in zip(("reference", "candidate"), sides, entry, strict=True):
        levels = _levels(name, side, value, known)
        if levels is not None:
            return levels
    keys: list[Array] = []
    for side, nodes, value in zip(sides, parts, entry, strict=True):
        for end in _quantized(side, nodes, value):
            chain = between(end, [value], side.joined) or []
            keys.append(known.steps(_function(side, chain, value, end)).lo)
    starts = np.unique(np.concatenate(keys))
    return np.concatenate([from_keys(starts), _SPECIAL]), Cases(None, None, tuple(starts.tolist()))


def _levels(
    name: str, side: MatchedModel, value: ir.Value, known: Decided
) -> tuple[Array, Cases] | None:
    """Return the results of the quantizer of ``value``, if there is one, and the inputs of each."""
    for start in dominators(value, side.operands)[1:]:
        if start.dtype is not ir.DataType.FLOAT:
            # the steps are those of float32 functions only
            continue
        nodes = between(value, [start], side.joined) or []
        try:
            plateaus = known.steps(_function(side, nodes, start, value))
        except Undecidable:
            continue
        beyond = run_nodes(side.known, nodes, {start: _SPECIAL}, value)
        levels = np.unique(np.concatenate([plateaus.value, beyond, _SPECIAL[-1:]]))
        return levels, Cases(name, str(start.name), tuple(plateaus.lo.tolist()))
    return None


def _function(side: MatchedModel, nodes: Sequence[ir.Node], x: ir.Value, y: ir.Value) -> Expr:
    """Return ``y`` as a function of ``x``; raise Undecidable if it is none that has cases."""
    _check_parameters(side, nodes)
    return lower(nodes, x, y, (), Builder(), constants=side.known.array)


def _quantized(side: MatchedModel, nodes: Sequence[ir.Node], entry: ir.Value) -> list[ir.Value]:
    """Return the values that depend on ``entry`` alone and that nodes combine with other values."""
    alone = {entry}
    for node in nodes:
        if alone.issuperset(side.joined(node.outputs[0])):
            alone.add(node.outputs[0])
    others = [node for node in nodes if node.outputs[0] not in alone]
    return [value for value in alone if any(value in node.inputs for node in others)]


_SAMPLES = np.linspace(-HIGHEST - 1, HIGHEST, 1024).astype(np.int64)
"""Keys of finite inputs."""

_ROUNDING = frozenset({"Ceil", "Floor", "QuantizeLinear", "Round"})
"""Operators that are step functions."""


def decide_steps(matching: Matching, region: Cut, known: Decided) -> PairOutcome | None:
    """Compare both sides of a region for every step of the quantizers that read its input first.

    Each side is an elementwise function of the results of its quantizers. So it is constant where
    these are constant, in any type. Exact intervals of the definitions divide all finite inputs
    into parts on which all quantizers are constant. One input of each part is run, and the
    infinities and NaN. A quantizer may give -0 and +0 on one step. So signs of zeros are claimed
    only if both zeros lead to the same bits on each side. Raises Undecidable if a node cannot be
    computed, or distinguishes zeros.

    Returns: None if no quantizer reads the input first, or there are too many parts.
    """
    if element_type(region) is not ir.DataType.FLOAT or 0 in (region.shape or ()):
        return None
    sides = matching.reference, matching.candidate
    segments = region.segments(matching)
    sizes, axis = free_axis(segments, region.shape)
    pairs = list(zip(sides, segments, strict=True))
    if known.at_least is not None:
        # A difference need not be counted, and searching for the steps takes much longer.
        data = along_axis(from_keys(_SAMPLES), sizes, axis)
        a, b = (run_nodes(side.known, part.nodes, {part.x: data}, part.y) for side, part in pairs)
        if a.shape != b.shape or compare_values(a, b).differing:
            return None
    quantized = [_quantized_steps(side, segment, known) for side, segment in pairs]
    if not all(quantized):
        return None
    starts = np.unique(np.concatenate([keys for steps in quantized for keys in steps.values()]))
    x = np.concatenate([from_keys(starts), _SPECIAL])
    data = along_axis(x, sizes, axis)
    if data.size > _CASES:
        return None
    a, b = (run_nodes(side.known, part.nodes, {part.x: data}, part.y) for side, part in pairs)
    _expect_alike(a, b, len(sizes))
    has_signs = False
    for (side, segment), steps in zip(pairs, quantized, strict=True):
        if _distinguishes_zeros(side, segment, data, steps):
            has_signs = a.dtype.kind not in "biu"
            for node in segment.nodes:
                data_of = [v for v in node.inputs if v is not None and not side.known.has(v)]
                _check_zeros(node, data_of)
    a, b = (np.moveaxis(side, axis, 0).reshape(len(x), -1) for side in (a, b))
    comparison, at_nan, witness, channel = _compared(x, is_nan(x), a, b)
    widths = np.append(np.diff(starts, append=HIGHEST + 1), [1, 1])
    differ = (a[:-1] != b[:-1]) & ~(is_nan(a[:-1]) & is_nan(b[:-1]))
    count = 0 if witness is None else int(widths @ differ.sum(axis=1))
    if has_signs:
        comparison = replace(comparison, zero_sign=max(1, comparison.zero_sign))
    signs = comparison.zero_sign if has_signs else 0
    text = f"{len(starts)} steps of its quantizers were tried"
    fields = {"differing_inputs": count, "zero_sign_inputs": signs, "witness_channel": channel}
    return PairOutcome(tried(comparison, at_nan, witness, text, **fields))


def _makes_steps(node: ir.Node) -> bool:
    operator = operator_of(node) if is_defined(node) else None
    is_quantizer = operator is not None and not operator.schema.standard
    return is_quantizer or (node.domain == "" and node.op_type in _ROUNDING)


def _distinguishes_zeros(
    side: MatchedModel, segment: NodeSegment, data: Array, quantized: Collection[ir.Value]
) -> bool:
    """Return whether signs of zeros in quantized values may change the bits of a segment."""
    signed = [value for value in quantized if not is_whole(value)]
    if len(signed) > _SIGNED:
        return True
    after = between(segment.y, quantized, side.operands) or []
    parts = ((value, between(value, [segment.x], side.operands) or []) for value in quantized)
    steps = {y: run_nodes(side.known, nodes, {segment.x: data}, y) for y, nodes in parts}
    ties: list[str] = []
    results = []
    for zeros in itertools.product((0.0, -0.0), repeat=len(signed)):
        for value, zero in zip(signed, zeros, strict=True):
            steps[value] = np.where(steps[value] == 0, steps[value].dtype.type(zero), steps[value])
        results.append(run_nodes(side.known, after, steps, segment.y, ties))
    levels = (Exactness.of(compare_values(results[0], result)) for result in results)
    return bool(ties) or any(level < Exactness.BITS for level in levels)


def _quantized_steps(
    side: MatchedModel, segment: NodeSegment, known: Decided
) -> dict[ir.Value, Keys]:
    """Return quantized values from which a segment computes its result, and the steps of each.

    A step is given by its first input. The quantized values are the last ones before the result
    that are defined over float32. There are none if the result also depends on other values.
    """
    steps: dict[ir.Value, Keys | None] = {}

    def is_quantized(value: ir.Value) -> bool:
        if value not in steps:
            steps[value] = _steps_of(side, segment.x, value, known)
        return steps[value] is not None

    def step(value: ir.Value) -> Iterable[ir.Value]:
        return () if value is segment.x else side.operands(value)

    cut = nearest_cut(segment.y, is_quantized, step) or []
    return {value: keys for value in cut if (keys := steps[value]) is not None}


def _steps_of(side: MatchedModel, x: ir.Value, value: ir.Value, known: Decided) -> Keys | None:
    """Return the first input of each step of a value; None if it is not quantized float32."""
    nodes = between(value, [x], side.operands) or []
    if not any(map(_makes_steps, nodes)):
        return None
    try:
        function = _function(side, nodes, x, value)
    except Undecidable:
        return None
    return known.steps(function).lo
