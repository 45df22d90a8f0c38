"""Compare two functions at all values of a type of up to 16 bits.

There are at most 65,536 values, so the kernels of the operators compute all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness, Method, Verdict, Witness
from qgraph.graph.constants import array_of
from qgraph.numerics import Array
from qgraph.numerics.formats import all_values
from qgraph.numerics.values import compare_pieces, compare_values, is_nan
from qgraph.proof.functions.decide import PairOutcome, check_shapes, remarks
from qgraph.proof.functions.lowering import Constants, Shape, laid_out
from qgraph.reasons import DO_NOT_FIT, EFFORT, NO_RULE, Undecidable

NARROW_BITS = 16
"""Maximum number of bits of types whose values are all tried."""
_AT_ONCE = 1 << 20
"""Maximum number of elements to compute at once."""
_MOST_CHANNELS = 1 << 12


class NodeSegment(NamedTuple):
    """Nodes in topological order that compute ``y`` from ``x`` and constants."""

    nodes: Sequence[ir.Node]
    x: ir.Value
    y: ir.Value
    constants: Constants = array_of


Run: TypeAlias = Callable[[Array], Array]


def free_axis(segments: Sequence[NodeSegment], shape: Shape | None) -> tuple[list[int], int]:
    """Return the shape of data with all channels, and an axis along which no parameter varies.

    The parameters of both sides determine the channels. Raises Undecidable if there is no such
    axis, there are too many channels, or the shapes of the results may differ.
    """
    spread = []
    for segment in segments:
        inner = {segment.x, *(value for node in segment.nodes for value in node.outputs)}
        shapes: list[tuple[int, ...]] = [()]
        for node in segment.nodes:
            if node.domain == "" and node.op_type == "Reshape":
                raise Undecidable(NO_RULE("its data is reshaped"))
            for value in node.inputs:
                if value is None or value in inner or segment.constants(value) is None:
                    continue
                array = laid_out(node, value, shape or (), segment.constants)
                is_table = (node.domain, node.op_type) == ("", "Gather") and value is node.inputs[0]
                if is_table and array.ndim == 1:
                    continue  # the data select its elements, equally in all channels
                # even a single number with more dimensions shifts the axes of later nodes
                if shape and array.ndim > len(shape):
                    raise Undecidable(DO_NOT_FIT("a parameter has more dimensions than the data"))
                shapes.append(array.shape)
        spread.append(_broadcast(shapes))
    check_shapes(spread[0], spread[1], shape, exactly=True)
    sizes = list(_broadcast([(1,) * max(len(shape or ()), 1), *spread]))
    free = [axis for axis, size in enumerate(sizes) if size == 1]
    if not free:
        raise Undecidable(EFFORT(f"its parameters of shape {sizes} vary along every axis"))
    if math.prod(sizes) > _MOST_CHANNELS:
        raise Undecidable(EFFORT("there are too many channels to try all values in each"))
    return sizes, free[0]


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise Undecidable(DO_NOT_FIT("its parameters do not broadcast")) from error


def enumerate_values(
    dtype: ir.DataType, runs: Sequence[Run], sizes: list[int], axis: int
) -> PairOutcome:
    """Compare two functions at all values of a type of up to 16 bits, in every channel.

    ``sizes`` is the shape of data with all channels; the values are laid out along ``axis``, of
    size 1. Raises Undecidable if the results are of different types or shapes.
    """

    def results(x: Array) -> tuple[Array, Array, Array]:
        along = [1] * len(sizes)
        along[axis] = sizes[axis] = len(x)
        data = buffer[: math.prod(sizes)].reshape(sizes)
        np.copyto(data, x.reshape(along))
        a, b = (run(data) for run in runs)
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            kinds = [f"{side.dtype}{list(side.shape)}" for side in (a, b)]
            raise Undecidable(DO_NOT_FIT(f"the results are {kinds[0]} and {kinds[1]}"))
        return np.broadcast_to(data, a.shape), a, b

    sizes = [*sizes]
    channels = math.prod(sizes)
    values = all_values(dtype.name)
    with np.errstate(invalid="ignore"):  # signalling NaN
        nan = is_nan(values)
        numbers, zeros = values[~nan], values[~nan & (values.astype(np.float64) == 0)]
    block = max(_AT_ONCE // channels, 1)
    buffer = np.empty(min(block, len(values)) * channels, values.dtype)
    starts = range(0, len(numbers), block)
    outcome = compare_pieces(lambda: (_flat(results(numbers[i : i + block])[1:]) for i in starts))
    nan_differs = False
    if nan.any():
        at_nan = compare_values(*results(values[nan])[1:])
        nan_differs = Exactness.of(at_nan) < Exactness.BITS
    witness, index = None, -1 if outcome.index is None else outcome.index
    for i in starts if index >= 0 else ():
        arrays = results(numbers[i : i + block])
        if index < arrays[0].size:
            witness = Witness(*(float(array.reshape(-1)[index]) for array in arrays))
            break
        index -= arrays[0].size
    at_zeros = [np.moveaxis(side, axis, 0) for side in results(zeros)[1:]] if len(zeros) > 1 else []
    verdict = Verdict(
        min(Exactness.of(outcome), Exactness.VALUES if nan_differs else Exactness.BITS),
        Method.EXHAUSTIVE,
        outcome.differing,
        outcome.zero_sign,
        witness,
        remarks(None, nan=nan_differs),
        nan_differs=nan_differs,
    )
    zeros_differ = any(compare_values(*side).differing > 0 for side in at_zeros)
    return PairOutcome(verdict, zeros_differ=zeros_differ)


def _flat(sides: Sequence[Array]) -> tuple[Array, Array]:
    a, b = (np.ascontiguousarray(side).reshape(-1) for side in sides)
    return a, b
