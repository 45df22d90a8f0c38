"""The grids of quantizers whose parameters are constant: where inputs tie, how far outputs step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import OperatorError
from qgraph.graph.folding import constant_expression
from qgraph.numerics import blocks
from qgraph.ops.operator import operator_of

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

_SHAPE_ONLY = frozenset(
    {"Identity", "Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze", "Relu", "MaxPool"}
)


_HUGE = 1e30
"""Beyond the range of any quantizer."""

_MOST_STEPS = 1 << 16


@dataclass(frozen=True, eq=False)
class Grid:
    """The points ``offset + k * step``, real units; both broadcast to the data."""

    step: Float32
    offset: Float32


def input_grid(node: ir.Node, shape: Sequence[int]) -> Grid | None:
    """Return the grid on which ``node`` puts its first input, of ``shape``.

    None if it is no quantizer, or its parameters are not constant or do not fit the shape.
    """
    found = _parameters(node)
    if found is None:
        return None
    arrays, attributes = found
    if node.op_type == "FakeQuantize":
        low, high = arrays.get("input_low"), arrays.get("input_high")
        return None if low is None or high is None else _ranged(low, high, attributes, shape)
    scale, zero_point = arrays.get("scale"), arrays.get("zero_point")
    if scale is None:
        return None
    step = _fit(scale, attributes, shape)
    zero = np.zeros((), np.float32) if zero_point is None else _fit(zero_point, attributes, shape)
    return None if step is None or zero is None else Grid(step, -zero * step)


def input_range(node: ir.Node, shape: Sequence[int]) -> tuple[Float32, Float32] | None:
    """Return the smallest and the largest number that ``node`` makes of its first input.

    They are asked of the node itself, in real units, and are as large as the input, of ``shape``.
    None if it is no quantizer, its parameters are not constant, or the range has too many steps to
    be that of data.
    """
    grid, operator = input_grid(node, shape), operator_of(node)
    if grid is None or operator is None:
        return None
    parameters = [constant_expression(value) for value in node.inputs[1:]]
    ends = []
    for end in (-_HUGE, _HUGE):
        try:
            found = operator.run(node, [np.full(shape, end, np.float32), *parameters])
        except OperatorError:
            return None
        if node.op_type == "QuantizeLinear":
            found = found.astype(np.float32) * grid.step + grid.offset
        ends.append(found.astype(np.float32))
    low, high = ends
    with np.errstate(all="ignore"):
        usable = np.isfinite(low) & np.isfinite(high) & (low < high)
        usable &= (high - low) <= _MOST_STEPS * np.abs(grid.step)
    return (low, high) if usable.all() else None


def output_step(value: ir.Value, shape: Sequence[int]) -> Float32 | None:
    """Return the distance of neighbouring numbers that ``value``, of ``shape``, can have.

    Operators that only move values are looked through where the step is a single number. None if
    no quantizer with constant parameters is found, or its grid is not uniform.
    """
    node, moved = value.producer(), False
    while node is not None and node.domain == "" and node.op_type in _SHAPE_ONLY:
        source = node.inputs[0]
        node, moved = None if source is None else source.producer(), True
    found = None if node is None else _parameters(node)
    if node is None or found is None or node.op_type in ("FloatQuant", "QuantizeLinear"):
        return None
    arrays, attributes = found
    if node.op_type == "FakeQuantize":
        low, high = arrays.get("output_low"), arrays.get("output_high")
        grid = None if low is None or high is None else _ranged(low, high, attributes, shape)
        step = None if grid is None else grid.step
    else:
        scale = arrays.get("out_scale", arrays.get("scale"))
        codes = node.inputs[0].dtype if node.inputs[0] is not None else None
        if scale is None or (codes is not None and codes.name.startswith(("FLOAT4", "FLOAT8"))):
            return None
        if moved and scale.size > 1:
            return None
        step = _fit(scale, attributes, shape)
    return None if step is None or (moved and step.size > 1) else step


def _parameters(node: ir.Node) -> tuple[dict[str, Array], dict[str, Any]] | None:
    operator = operator_of(node)
    if operator is None:
        return None
    named = zip(operator.schema.inputs[1:], node.inputs[1:], strict=False)
    arrays = {name: constant_expression(value) for name, value in named}
    known = {name: array for name, array in arrays.items() if array is not None}
    return known, operator.schema.attributes_of(node)


def _ranged(
    low: Array, high: Array, attributes: dict[str, Any], shape: Sequence[int]
) -> Grid | None:
    low, high = low.astype(np.float32), high.astype(np.float32)
    step = (high - low) / np.float32(attributes["levels"] - 1)
    aligned, offset = _fit(step, {}, shape), _fit(low, {}, shape)
    return None if aligned is None or offset is None else Grid(aligned, offset)


def _fit(parameter: Array, attributes: dict[str, Any], shape: Sequence[int]) -> Float32 | None:
    numbers = parameter.astype(np.float32)
    try:
        if "axis" in attributes:
            block_size = attributes["block_size"]
            return blocks.align(numbers, shape, attributes["axis"], block_size)
        np.broadcast_to(numbers, shape)
    except ValueError:
        return None
    return numbers
