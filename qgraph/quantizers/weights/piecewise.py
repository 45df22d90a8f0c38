"""Run elementwise nodes on one piece of their data at a time, in any process.

A program contains operators by name and parameters as arrays, but no graph, so it can be pickled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError
from qgraph.graph import constants
from qgraph.graph.constants import array_of
from qgraph.graph.deferred import DeferredTensor
from qgraph.graph.streaming import box_at, cut_box
from qgraph.numerics import Array, blocks
from qgraph.numerics.formats import numpy_dtype
from qgraph.numerics.primitives import NUMPY
from qgraph.numerics.values import as_float32
from qgraph.ops import steps
from qgraph.ops.dispatch import evaluate
from qgraph.ops.operator import OPERATORS, operator_of
from qgraph.ops.steps import Stages
from qgraph.records import dataclass, replace

Shape = tuple[int, ...]

_ALONG_AXIS = ("QuantizeLinear", "DequantizeLinear")

_NOTHING = np.zeros(0, np.float32)

_SHORT = 64
"""Minimum length of runs with one parameter; for shorter runs the parameter is expanded."""


@dataclass(frozen=True, eq=False)
class Parameter:
    """An operand that is equal for all data, or along parts of it.

    Attributes:
        held: its values, or a tensor that is computed when they are needed; without an axis they
            broadcast to the data.
        shape: of the data.
        axis: along which a one-dimensional ``held`` lies, or in which its blocks lie.
        block_size: elements of the data along ``axis`` for each entry; 0 when not blocked.
    """

    held: Array | DeferredTensor
    shape: Shape
    axis: int | None = None
    block_size: int = 0

    @property
    def array(self) -> Array:
        """The values, along their axes; those of quantizers along an axis are float32."""
        array = self.held
        if not isinstance(array, np.ndarray | np.generic):  # not LazyTensor, which takes long
            array = array.numpy() if self.axis is None else as_float32(array.numpy())
        if self.axis is None or self.block_size or array.size == 1:
            return array
        return array.reshape([-1 if axis == self.axis else 1 for axis in range(len(self.shape))])

    def at(self, corner: Sequence[int], sizes: Sequence[int]) -> Array:
        """Return the values for a box of the data, so that they broadcast to it."""
        array = self.array
        if array.size == 1:
            return array.reshape(())
        cut = (self._blocks if self.block_size else cut_box)(array, corner, sizes)
        if cut.size > 1 and sizes and sizes[-1] < _SHORT:
            return np.array(np.broadcast_to(cut, sizes))
        return cut

    def _blocks(self, array: Array, corner: Sequence[int], sizes: Sequence[int]) -> Array:
        axis, size = self.axis or 0, self.block_size
        start, length = corner[axis], sizes[axis]
        first, last = start // size, -(-(start + length) // size)
        entries = cut_box(
            array,
            [*corner[:axis], first, *corner[axis + 1 :]],
            [*sizes[:axis], last - first, *sizes[axis + 1 :]],
        )
        start -= first * size
        inside = (slice(None),) * axis + (slice(start, start + length),)
        return np.repeat(entries, size, axis=axis)[inside]


@dataclass(frozen=True)
class _Call:
    """One operator: a registered one, or else a primitive.

    ``operands`` are parameters, places of earlier results (0: the data), or None.
    """

    name: str
    registered: bool
    defined: bool
    operands: tuple[Parameter | int | None, ...]
    arguments: dict[str, Any]
    shape: Shape
    dtype: np.dtype[Any] | None = None

    def __call__(self, results: Sequence[Array], start: int) -> Array:
        corner, sizes = box_at(self.shape, start, results[0].size)
        shaped = [result.reshape(sizes) for result in results]
        return self.compute(shaped, lambda parameter: parameter.at(corner, sizes))

    def compute(self, results: Sequence[Array], value: Callable[[Parameter], Array]) -> Array:
        """Return the result for the data and earlier results, and the arrays of parameters.

        All broadcast together.
        """
        arrays = [
            value(operand)
            if isinstance(operand, Parameter)
            else None
            if operand is None
            else results[operand]
            for operand in self.operands
        ]
        compute: Callable[..., Any]
        if not self.registered:
            compute = NUMPY[self.name]
        elif self.defined:
            if (result := self._by_stages(arrays)) is not None:
                return result
            definition = OPERATORS.find(self.name).define
            result = np.asarray(definition(_NUMPY, *arrays, **self.arguments))
            return result if self.dtype is None else result.astype(self.dtype, copy=False)
        else:
            compute = OPERATORS.find(self.name).kernel
        return np.asarray(compute(*arrays, **self.arguments))

    def _by_stages(self, arrays: Sequence[Any]) -> Array | None:
        """Return the result computed in place by the operator's stages; None if it has none."""
        stages_of, (x, *parameters) = OPERATORS.find(self.name).stages, arrays
        if stages_of is None or x.dtype != np.float32:
            return None
        stages = stages_of(x.dtype, *parameters, **self.arguments)
        if stages is None:
            return None
        y = np.empty(np.broadcast_shapes(x.shape, *(a.shape for a in stages.arrays)), x.dtype)
        steps.run(stages, y, x, *stages.arrays)
        return y


@dataclass(frozen=True)
class ElementProgram:
    """The function of elementwise nodes.

    Attributes:
        shape: of the data.
        shapes: all shapes that the data has between the nodes.
    """

    shape: Shape
    shapes: tuple[Shape, ...]
    calls: tuple[_Call, ...]

    @classmethod
    def of(
        cls, nodes: Iterable[ir.Node], x: ir.Value, y: ir.Value, shape: Shape
    ) -> ElementProgram | None:
        """Return the function of nodes from ``x`` to ``y``; None if it is not elementwise."""
        index_of: dict[ir.Value, int] = {x: 0}
        shapes, calls = [shape], []
        arrays: dict[ir.Value, Array] = {}
        for node in nodes:
            if index_of.keys().isdisjoint(node.inputs):
                # It depends on constants alone: a scale that is stored as codes itself.
                arrays[node.outputs[0]] = evaluate([node], x, node.outputs[0], _NOTHING)
                continue
            if node.op_type == "Reshape" and node.domain == "" and node.inputs[0] in index_of:
                target = reshaped(node, shapes[-1])
                if target is None:
                    return None
                shapes.append(target)
                index_of[node.outputs[0]] = index_of[node.inputs[0]]
                continue
            call = _call(node, index_of, arrays, shapes[-1])
            if call is None:
                return None
            calls.append(call)
            index_of[node.outputs[0]] = len(calls)
        if not calls or index_of.get(y) != len(calls):
            return None
        return cls(shape, tuple(dict.fromkeys(shapes)), tuple(calls))

    def __call__(self, data: Array, start: int) -> Array:
        """Return the flat results for flat ``data``, which begins at place ``start``."""
        results = [data]
        with np.errstate(all="ignore"):
            for call in self.calls:
                results.append(call(results, start))
        return results[-1].reshape(-1)

    @property
    def parameters(self) -> list[Parameter]:
        """Parameters of all operators, in their order."""
        return [p for call in self.calls for p in call.operands if isinstance(p, Parameter)]

    def apply(self, data: Array, parameters: Iterable[Array]) -> Array:
        """Return the results for ``data`` with other values of :attr:`parameters`.

        All broadcast together.
        """
        results, values = [data], iter(parameters)
        with np.errstate(all="ignore"):
            for call in self.calls:
                results.append(call.compute(results, lambda _: next(values)))
        return results[-1]

    def stages(self) -> Callable[[Sequence[Array]], Stages | None] | None:
        """Return the function for the stages of the first operator, if it may have stages.

        The function is given the values of the operator's :attr:`parameters`.
        """
        call = self.calls[0]
        if not call.registered or call.operands[0] != 0:
            return None
        stages_of, arguments = OPERATORS.find(call.name).stages, call.arguments
        if stages_of is None or any(isinstance(p, int) for p in call.operands[1:]):
            return None

        def given(arrays: Sequence[Array]) -> Stages | None:
            values = iter(arrays)
            operands = [None if p is None else next(values) for p in call.operands[1:]]
            return stages_of(np.dtype(np.float32), *operands, **arguments)

        return given

    def loaded(self) -> ElementProgram:
        """Return the program with all parameters in memory."""
        loaded = (
            [replace(p, held=p.array) if isinstance(p, Parameter) else p for p in call.operands]
            for call in self.calls
        )
        pairs = zip(self.calls, loaded, strict=True)
        return replace(self, calls=tuple(replace(call, operands=tuple(p)) for call, p in pairs))

    def split(self) -> tuple[ElementProgram, ElementProgram] | None:
        """Return the first operator and the rest; None if the rest also uses the data."""
        first, *others = self.calls
        rest = []
        for call in others:
            operands = tuple(p - 1 if isinstance(p, int) else p for p in call.operands)
            if -1 in operands:
                return None
            rest.append(replace(call, operands=operands))
        one, more = (replace(self, calls=tuple(calls)) for calls in ([first], rest))
        return one, more


def pieces(shapes: Sequence[Shape], start: int, stop: int, most: int) -> Iterable[tuple[int, int]]:
    """Yield start and end of pieces of at most ``most`` elements, boxes in all ``shapes``."""
    while start < stop:
        count = min(most, stop - start)
        while True:
            # Each shape may shorten the piece, which then has to fit the others again.
            boxes = (box_at(shape, start, count)[1] for shape in shapes)
            shorter = min(map(math.prod, boxes), default=count)
            if shorter == count:
                break
            count = shorter
        yield start, start + count
        start += count


class _Numpy:
    """Interpreter ``op`` of definitions that computes with NumPy."""

    def __getattr__(self, name: str) -> Callable[..., Array]:
        compute = NUMPY[name]

        def call(*operands: Any, **attributes: Any) -> Array:
            arrays = (
                np.asarray(x, np.float32) if isinstance(x, float | int) else x for x in operands
            )
            return np.asarray(compute(*arrays, **attributes))

        return call


_NUMPY = _Numpy()


def _call(
    node: ir.Node, index_of: dict[ir.Value, int], arrays: dict[ir.Value, Array], shape: Shape
) -> _Call | None:
    def operand(value: ir.Value | None, *along: int) -> Any:
        if value is None or value in index_of:
            return None if value is None else index_of[value]
        array = arrays[value] if value in arrays else array_of(value)
        return _later(value, _parameter(array, shape, *along))

    try:
        operator = operator_of(node)
        if operator is None:
            if node.domain or node.op_type not in NUMPY:
                return None
            operands = [operand(value) for value in node.inputs]
            arguments = {name: attribute.value for name, attribute in node.attributes.items()}
            name, registered, defined, dtype = node.op_type, False, False, None
        else:
            arguments = operator.schema.attributes_of(node)
            name, is_standard = operator.schema.identity, operator.schema.standard
            registered, defined = True, is_standard and operator.schema.name in _ALONG_AXIS
            along = (arguments["axis"], arguments["block_size"]) if defined else ()
            dtype = _result_type(node, arguments) if defined else None
            operands = [operand(value, *along) for value in operator.schema.values(node)]
            if node.op_type == "QuantizeLinear":
                arguments = arguments | operator.resolve(node)
    except (OperatorError, ValueError):
        return None
    if any(operand is NotImplemented for operand in operands):
        return None
    return _Call(name, registered, defined, tuple(operands), arguments, shape, dtype)


def _result_type(node: ir.Node, attributes: dict[str, Any]) -> np.dtype[Any]:
    """Return the output type of DequantizeLinear; codes are their float32 values."""
    scale = node.inputs[1]
    dtype = attributes["output_dtype"]
    if node.op_type == "QuantizeLinear" or scale is None:
        return np.dtype(np.float32)
    if dtype == ir.DataType.UNDEFINED:
        dtype = scale.dtype or ir.DataType.FLOAT
    return numpy_dtype(dtype.name)


def _parameter(
    array: Array | None, shape: Shape, axis: int | None = None, block_size: int = 0
) -> Any:
    """Return a parameter, or NotImplemented if it is not constant or does not fit."""
    if array is None or array.ndim > len(shape):
        return NotImplemented
    if axis is not None:
        return Parameter(as_float32(array), shape, axis % max(len(shape), 1), block_size)
    return Parameter(array, shape) if blocks.fits(array.shape, shape) else NotImplemented


def _later(value: ir.Value, parameter: Any) -> Any:
    """Return a parameter that is computed when the model is saved without its array."""
    tensor = value.const_value
    if not isinstance(parameter, Parameter) or not isinstance(tensor, DeferredTensor):
        return parameter
    return replace(parameter, held=tensor)


def reshaped(node: ir.Node, shape: Shape) -> Shape | None:
    """Return the shape of data of ``shape`` after a Reshape; None if it is not known."""
    sizes = array_of(node.inputs[1])
    if sizes is None:
        return None
    target = constants.reshaped(node, shape, sizes)
    return tuple(target) if math.prod(target) == math.prod(shape) else None
