"""The thresholds of a quantizer that lie next to given data, found by the quantizer itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.equivalence.grids import input_grid
from qgraph.errors import OperatorError
from qgraph.graph.folding import constant_expression
from qgraph.numerics.values import is_nan
from qgraph.ops.operator import Operator, operator_of
from qgraph.proof.keys import Float32, Keys, from_keys, to_keys

Array = npt.NDArray[Any]

_NOT_QUANTIZING = frozenset({"DequantizeLinear", "Cast", "Clip"})

_REACHES = (1.25, 16.0, 256.0, 65536.0)
"""In steps: there is a threshold within the first of them above any value between the limits of a
quantizer, and further away above one below them."""

_RELATIVE_REACHES = tuple(2.0**-power for power in range(10, -2, -1))
"""Steps of floating-point quantizers grow with the values."""


@dataclass(frozen=True)
class DataQuantizer:
    """A quantizer of data whose parameters are constant: a function of its first input.

    Attributes:
        node: the quantizer.
        operator: what it is.
        data: what it quantizes.
        parameters: its other inputs.
    """

    node: ir.Node
    operator: Operator
    data: ir.Value
    parameters: tuple[Array | None, ...]

    @property
    def label(self) -> str:
        """Name of the node, or of its output."""
        return self.node.name or str(self.node.outputs[0].name)

    def quantize(self, data: Float32) -> Array:
        """Return what the node makes of ``data``."""
        return self.operator.run(self.node, [data, *self.parameters])

    def step(self, data: Float32) -> Float32 | None:
        """Return the distance of its thresholds, as large as ``data``; None if not uniform."""
        grid = None if self.node.op_type == "FloatQuant" else input_grid(self.node, data.shape)
        if grid is None or not np.isfinite(grid.step).all() or not grid.step.all():
            return None
        return np.broadcast_to(np.abs(grid.step), data.shape)


def data_quantizers(graph: ir.Graph) -> Iterator[DataQuantizer | tuple[ir.Node, str]]:
    """Yield the quantizers in a main graph that quantize no constants.

    One with thresholds that are not fixed comes as a node, with the reason.
    """
    for node in graph:
        try:
            operator = operator_of(node)
        except OperatorError:
            continue
        data = node.inputs[0] if node.inputs else None
        if operator is None or data is None or operator.schema.name in _NOT_QUANTIZING:
            continue
        if constant_expression(data) is not None or data.is_initializer():
            continue
        arrays = [None if value is None else constant_expression(value) for value in node.inputs]
        unknown = [
            v for v, a in zip(node.inputs, arrays, strict=True) if v is not None and a is None
        ]
        if unknown != [data]:
            yield node, "its parameters are not constant"
        elif data.dtype not in (None, ir.DataType.FLOAT):
            yield node, f"its data is {data.dtype.name if data.dtype else 'unknown'}, no float32"
        else:
            yield DataQuantizer(node, operator, data, tuple(arrays[1:]))


def thresholds_above(quantizer: DataQuantizer, data: Float32) -> tuple[Keys, npt.NDArray[np.bool_]]:
    """Return for each element the key of the next number above it that gets another code.

    Returns: keys ``[*data]`` as of :func:`qgraph.proof.keys.to_keys`, the number before it still
    has the code of the element; and where there is one within reach.
    """
    low = to_keys(data)
    code = quantizer.quantize(data)
    high, found = _beyond(quantizer, data, code)
    while True:
        wide = found & (high - low > 1)
        if not wide.any():
            return high, found
        middle = np.where(wide, (low + high) // 2, low)
        other = _apart(quantizer.quantize(from_keys(middle)), code) & wide
        high = np.where(other, middle, high)
        low = np.where(wide & ~other, middle, low)


def _beyond(
    quantizer: DataQuantizer, data: Float32, code: Array
) -> tuple[Keys, npt.NDArray[np.bool_]]:
    """Return a number for each element that is larger and has another code, where there is one."""
    high = to_keys(data)
    found = np.zeros(data.shape, np.bool_)
    for further in _tries(quantizer, data):
        usable = np.isfinite(further) & (further > data) & np.isfinite(data)
        fresh = usable & ~found & _apart(quantizer.quantize(further), code)
        high = np.where(fresh, to_keys(further), high)
        found |= fresh
        if found.all():
            break
    return high, found


def _tries(quantizer: DataQuantizer, data: Float32) -> Iterator[Float32]:
    step = quantizer.step(data)
    with np.errstate(all="ignore"):
        if step is not None:
            for reach in _REACHES:
                yield (data + np.float32(reach) * step).astype(np.float32)
            return
        for reach in _RELATIVE_REACHES:
            yield (data + np.abs(data) * np.float32(reach)).astype(np.float32)


def _apart(x: Array, y: Array) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = np.asarray(x != y) & ~(is_nan(x) & is_nan(y))
    return found
