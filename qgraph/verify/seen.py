"""Run parts of two models: on codes on which they are said to lie apart, or on all codes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

import numpy as np
import onnx_ir as ir

from qgraph.bound import Seen
from qgraph.errors import EquivalenceError, ExecutionError, UnsupportedError
from qgraph.graph.interface import Pair
from qgraph.numerics import Array, Float64
from qgraph.ops.dispatch import NodeStep, kernel_for
from qgraph.text import amount
from qgraph.verify.ideals import Ideal, TracedRounding
from qgraph.verify.reading import Reading
from qgraph.verify.traces import Trace

Run = tuple[Reading, Trace]
"""A model and its functions."""

_MOST_CODES = 1 << 16


def check_seen(
    seen: Seen,
    ends: Pair,
    starts: Mapping[str, Pair],
    runs: tuple[Run, Run],
    roundings: tuple[TracedRounding, TracedRounding] | None,
) -> None:
    """Check that the results of a segment lie apart as far as a certificate states.

    Args:
        seen: what it states.
        ends: the results in both models: codes, or numbers of an output.
        starts: the pairs of values that the segment starts from, by name in the reference.
        runs: both models.
        roundings: what gives codes; None at an output.

    Raises:
        EquivalenceError: other values are listed, or the results lie nearer to each other in every
            order of additions.
        UnsupportedError: the segment cannot be run, or the order of additions decides.
    """
    if sorted(start.value for start in seen.starts) != sorted(starts):
        raise EquivalenceError("what was seen starts from other values")
    if seen.difference == 0:
        return
    results, slack = [], 0.0
    for place, (end, (side, trace)) in enumerate(zip(ends, runs, strict=True)):
        known: dict[ir.Value, Array] = {}
        for start in seen.starts:
            value = starts[start.value][place]
            sizes = trace.shape(value)
            codes = start.array(tuple(size if isinstance(size, int) else 1 for size in sizes))
            known[value] = _decoded(trace, value, codes)
        numbers, error = _run(side, end, known), 2 * trace.of(end).error
        if roundings is not None:
            numbers = _codes(trace.of(end).meant, roundings[place], numbers)
            error = 2 * roundings[place].before.error
            error = np.where(error > 0, np.floor(error) + 1, 0.0)
        results.append(numbers)
        slack += float(np.max(error))
    if results[0].shape != results[1].shape:
        raise UnsupportedError("what was seen is of codes that one model moves")
    if not all(0 <= at < n for at, n in zip_longest(seen.element, results[0].shape, fillvalue=-1)):
        raise EquivalenceError("what was seen is at an element that the result lacks")
    apart = float(np.abs(results[1] - results[0])[seen.element])
    problem = f"{amount(apart, 12)} was seen, not {amount(seen.difference, 12)}"
    if not apart + slack >= seen.difference:
        raise EquivalenceError(problem)
    if roundings is not None and not apart >= seen.difference:
        raise UnsupportedError(f"{problem}; another order of additions may show it")


def _codes(meant: Ideal, rounding: TracedRounding, numbers: Float64) -> Float64:
    """Return the codes, perhaps moved, of what a quantizer gives."""
    ((factor, _),) = meant.terms
    codes = np.rint((numbers - meant.offset) / factor)
    if rounding.movement is not None:
        codes = np.append(0.0, codes)[rounding.movement.places]
    return np.clip(codes, *rounding.clips)


def are_decoded_alike(codes: Ideal, ends: Pair, values: Pair, runs: tuple[Run, Run]) -> bool:
    """Return whether two values are equal for each code, as both models execute them.

    Args:
        codes: the codes of both models, as a function.
        ends: the quantizers that give them.
        values: what is computed from them.
        runs: both models.
    """
    ((_, basis),) = codes.terms
    low, high = float(np.min(basis.low)), float(np.max(basis.high))
    meanings = [run[1].of(value).meant for value, run in zip(values, runs, strict=True)]
    is_alike = all(m.offset.size == m.terms[0][0].size == 1 for m in meanings)
    if not (is_alike and high - low < _MOST_CODES):  # channels may be decoded otherwise
        return False
    all_codes, results = np.arange(low, high + 1), []
    for end, value, (side, trace) in zip(ends, values, runs, strict=True):
        start, node = _decoded(trace, end, all_codes), end.producer()
        if start.dtype.kind == "f" and node is not None and node.inputs[0] is not None:
            known = {node.inputs[0]: start}  # a quantizer that decodes gives these codes again
            meant, again = trace.of(end).meant, _run(side, end, known)
            if not np.array_equal(np.rint((again - meant.offset) / meant.terms[0][0]), all_codes):
                return False
        else:
            known = {end: start}
        results.append(_run(side, value, known))
    return values[0].dtype is values[1].dtype and np.array_equal(results[0], results[1])


def _decoded(trace: Trace, value: ir.Value, codes: Float64) -> Array:
    """Return what a value holds for codes."""
    meant, dtype = trace.of(value).meant, value.dtype
    if (
        dtype is None
        or len(meant.terms) != 1
        or meant.terms[0][1].kind[0] not in ("codes", "input")
    ):
        raise UnsupportedError("what was seen starts from values that are no codes")
    return np.asarray(meant.terms[0][0] * codes + meant.offset).astype(dtype.numpy())


def _run(side: Reading, end: ir.Value, known: Mapping[ir.Value, Array]) -> Float64:
    """Return a value as it is computed from known ones."""
    nodes, arrays = side.between(end, known), dict(known)
    if nodes is None:
        raise UnsupportedError("a segment begins with other values, too")
    for node in nodes:
        constants = {v: side.array(v) for v in node.inputs if v is not None and side.has(v)}
        arrays |= {value: array for value, array in constants.items() if array is not None}
        try:
            NodeStep(node, kernel_for(node, side.imports)).run(arrays)
        except (ExecutionError, KeyError) as error:
            raise UnsupportedError(f"a segment is not run: {error}") from error
    return arrays[end].astype(np.float64)
