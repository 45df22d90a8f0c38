"""Find thresholds of a quantizer close to given data, by evaluating the quantizer.

Single samples of a model's inputs, run many at once where the model takes any number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.comparison.metrics import same
from qgraph.errors import ExecutionError, OperatorError
from qgraph.execution.executor import Executor
from qgraph.graph.constants import constant_expression
from qgraph.graph.scopes import node_name
from qgraph.graph.sizes import static
from qgraph.model import Model
from qgraph.numerics import Array, Float32
from qgraph.numerics.float32 import Keys, from_keys, to_keys
from qgraph.ops.operator import Operator, input_grid, operator_of
from qgraph.records import dataclass

_NOT_QUANTIZING = frozenset({"DequantizeLinear", "Cast", "Clip"})

_REACHES = (1.25, 16.0, 256.0, 65536.0)
"""Distances in steps: above a value within the limits of a quantizer there is a threshold within
the first one; above a value below the limits, within a later one."""

_RELATIVE_REACHES = tuple(2.0**-power for power in range(10, -2, -1))
"""Relative distances for floating-point quantizers, whose steps grow with the values."""


@dataclass(frozen=True)
class DataQuantizer:
    """A quantizer of data whose other operands are constant: a function of its first input."""

    node: ir.Node
    operator: Operator
    data: ir.Value
    parameters: tuple[Array | None, ...]

    @property
    def label(self) -> str:
        """Name of the node, or of its output if it has none."""
        return node_name(self.node)

    def quantize(self, data: Float32) -> Array:
        """Return the output of the node for ``data``."""
        return self.operator.run(self.node, [data, *self.parameters])

    def step(self, data: Float32) -> Float32 | None:
        """Return the distance of its thresholds in the shape of ``data``; None if not uniform."""
        grid = None if self.node.op_type == "FloatQuant" else input_grid(self.node, data.shape)
        if grid is None or not np.isfinite(grid.step).all() or not grid.step.all():
            return None
        return np.broadcast_to(np.abs(grid.step), data.shape)


def data_quantizers(graph: ir.Graph) -> Iterator[DataQuantizer | tuple[ir.Node, str]]:
    """Yield the quantizers of data in a main graph, or nodes without fixed thresholds, and why."""
    for node in graph:
        try:
            operator = operator_of(node)
        except OperatorError:
            continue
        data = node.inputs[0] if node.inputs else None
        if operator is None or data is None:
            continue
        if operator.schema.standard and operator.schema.name in _NOT_QUANTIZING:
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
            yield node, f"its data is {data.dtype.name if data.dtype else 'unknown'}, not float32"
        else:
            yield DataQuantizer(node, operator, data, tuple(arrays[1:]))


def thresholds_above(quantizer: DataQuantizer, data: Float32) -> tuple[Keys, npt.NDArray[np.bool_]]:
    """Return for each element the key of the next larger float with another code.

    Returns: keys ``[*data]`` as of :func:`qgraph.numerics.float32.to_keys`; the number before
    one still has the code of the element; and where there is one within reach.
    """
    code = quantizer.quantize(data)
    high, exists = _beyond(quantizer, data, code)

    def is_beyond(middle: Keys) -> npt.NDArray[np.bool_]:
        return ~same(quantizer.quantize(from_keys(middle)), code)

    return bisected(to_keys(data), high, exists, is_beyond)[1], exists


def bisected(
    low: Keys,
    high: Keys,
    chosen: npt.NDArray[np.bool_],
    is_beyond: Callable[[Keys], npt.NDArray[np.bool_]],
) -> tuple[Keys, Keys]:
    """Return neighbouring keys between which a condition becomes true.

    It is false for ``low`` and true for ``high``; ``is_beyond`` returns it for one key per element.
    Elements that are not ``chosen`` are returned unchanged.
    """
    while (wide := chosen & (np.abs(high - low) > 1)).any():
        middle = np.where(wide, (low + high) // 2, low)
        beyond = is_beyond(middle)
        high = np.where(wide & beyond, middle, high)
        low = np.where(wide & ~beyond, middle, low)
    return low, high


def _beyond(
    quantizer: DataQuantizer, data: Float32, code: Array
) -> tuple[Keys, npt.NDArray[np.bool_]]:
    """Return for each element a larger number with another code, if there is one."""
    high = to_keys(data)
    exists = np.zeros(data.shape, np.bool_)
    for further in _tries(quantizer, data):
        usable = np.isfinite(further) & (further > data) & np.isfinite(data)
        fresh = usable & ~exists & ~same(quantizer.quantize(further), code)
        high = np.where(fresh, to_keys(further), high)
        exists |= fresh
        if exists.all():
            break
    return high, exists


def _tries(quantizer: DataQuantizer, data: Float32) -> Iterator[Float32]:
    step = quantizer.step(data)
    with np.errstate(all="ignore"):
        if step is not None:
            for reach in _REACHES:
                yield (data + np.float32(reach) * step).astype(np.float32)
            return
        for reach in _RELATIVE_REACHES:
            yield (data + np.abs(data) * np.float32(reach)).astype(np.float32)


Row = dict[str, Array]
"""Inputs with one sample, or with the fixed batch size of the model."""

_AT_ONCE = 32

_MOVED = 3
"""Approximate number of elements to move in each input."""


class SampleRows:
    """Runs samples of the inputs of a model, whose number it may leave open."""

    def __init__(self, model: Model, executor: Executor) -> None:
        self._executor = executor
        self._halved = {str(v.name) for v in model.inputs if v.dtype == ir.DataType.FLOAT}
        self.is_open = bool(model.inputs) and all(
            value.shape is not None and len(value.shape) > 0 and static(value.shape.dims[0]) is None
            for value in model.inputs
        )

    def split(self, feeds: Mapping[str, Any]) -> list[Row]:
        """Return the samples of a batch."""
        arrays = {name: np.asarray(array) for name, array in feeds.items()}
        sizes = {len(array) if array.ndim else 0 for array in arrays.values()}
        if not self.is_open or len(sizes) != 1:
            return [arrays]
        return [
            {name: array[index : index + 1] for name, array in arrays.items()}
            for index in range(sizes.pop())
        ]

    def joined(self, rows: Sequence[Row]) -> list[Row]:
        """Return batches of samples, rounded to the types of the inputs."""
        step = _AT_ONCE if self.is_open else 1
        parts = [rows[start : start + step] for start in range(0, len(rows), step)]
        return [
            {name: np.concatenate([self.rounded(row)[name] for row in part]) for name in part[0]}
            if len(part) > 1
            else self.rounded(part[0])
            for part in parts
        ]

    def values(self, rows: Sequence[Row], names: Sequence[str]) -> list[dict[str, Array]]:
        """Return for each sample the values of some tensors."""
        values: list[dict[str, Array]] = []
        first = 0
        for batch in self.joined(rows):
            count = min(_AT_ONCE, len(rows) - first) if self.is_open else 1
            results = self._run(batch, names, count)
            if results is None:  # the first axis is not the batch axis
                self.is_open = False
                return values + self.values(rows[first:], names)
            values += results
            first += count
        return values

    def rounded(self, row: Row) -> Row:
        """Return a sample in the types of the inputs; half-way is computed in float64."""
        return {
            name: array.astype(np.float32) if name in self._halved else array
            for name, array in row.items()
        }

    def middle(self, one: Row, other: Row) -> Row:
        """Return the middle of two samples; inputs that are not float32 are not changed."""
        return {
            name: (array.astype(np.float64) + other[name].astype(np.float64)) / 2
            if name in self._halved
            else array
            for name, array in one.items()
        }

    def moved(self, row: Row, generator: np.random.Generator) -> Row:
        """Return a sample in which a few numbers are replaced by close floats."""
        rounded = self.rounded(row)
        for name, array in rounded.items():
            if name not in self._halved:
                continue
            by = generator.integers(-2, 3, array.shape)
            chosen = generator.random(array.shape) * array.size < _MOVED
            rounded[name] = from_keys(to_keys(array) + np.where(chosen, by, 0))
        return rounded

    def are_equal(self, one: Row, other: Row) -> bool:
        """Return whether no float lies between two samples, and other inputs are equal."""
        first, second = self.rounded(one), self.rounded(other)
        return all(
            bool(np.all(np.nextafter(array, second[name]) == second[name]))
            if name in self._halved
            else np.array_equal(array, second[name])
            for name, array in first.items()
        )

    def _run(self, batch: Row, names: Sequence[str], count: int) -> list[dict[str, Array]] | None:
        values: dict[str, Array] = {}

        def keep(name: str, value: Any) -> None:
            values[name] = np.array(value)

        try:
            self._executor.run(batch, taps=list(dict.fromkeys(names)), observe=keep)
        except ExecutionError:
            if count == 1:
                raise
            return None
        if count == 1:
            return [values]
        if any(array.ndim == 0 or len(array) % count for array in values.values()):
            return None
        parts = {name: np.split(array, count) for name, array in values.items()}
        return [{name: part[index] for name, part in parts.items()} for index in range(count)]
