"""What nodes make of arrays of cases, node by node, by their operators' definitions.

Each case is an element along the first axis; the other axes are those of the constants, which
count from the last one, as they broadcast. Numbers keep their own types: those of float16 are
rounded to float16 after each operation, integers wrap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import OperatorError, QGraphError, UnsupportedError
from qgraph.execution.executor import kernel_for
from qgraph.matching.elementwise import check_parameters
from qgraph.numerics.formats import numpy_dtype
from qgraph.numerics.values import is_nan
from qgraph.ops.operator import Operator, operator_of
from qgraph.primitives import NUMPY
from qgraph.primitives import cast as cast_values
from qgraph.verification.layout import ALONG_AXIS, Shape, laid_out
from qgraph.verification.sides import Side

Array = npt.NDArray[Any]

_RANK = 8
_EXACT = frozenset({"Add", "Sub", "Mul", "Div", "Sqrt", "Reciprocal", "Round", "Floor", "Ceil"})
"""Operators of floating numbers whose results are rounded as IEEE 754 says."""
_ANY = frozenset({"Min", "Max", "Relu", "Where", "Neg", "Abs", "Sign"})
_TRUTHS = frozenset(
    {"Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "Not", "And", "Or", "IsNaN"}
)


class Arrays:
    """Computes values of one model for many cases.

    Args:
        side: the model.
        given: ``[cases]`` what the nodes begin with.
        shape: of the data; None where not even the rank is known.

    Attributes:
        constants: what the constants that were met broadcast to.
        has_ties: whether Min, Max or Relu met zeros of both signs, of which ONNX takes any.
    """

    def __init__(self, side: Side, given: Mapping[ir.Value, Array], shape: Shape | None) -> None:
        self._side = side
        self._shape = shape
        self._known = {value: array.reshape(-1, *[1] * _RANK) for value, array in given.items()}
        # where an operand is no number, its Cast may be undefined
        with np.errstate(invalid="ignore"):
            self._numbers = ~np.logical_or.reduce([is_nan(array) for array in self._known.values()])
        self.constants: tuple[int, ...] = ()
        self.has_ties = False

    def compute(self, nodes: Sequence[ir.Node], end: ir.Value) -> Array:
        """Return ``[cases, ...]`` the values of ``end``.

        Raises:
            UnsupportedError: a node has no definition here.
        """
        with np.errstate(all="ignore"):
            for node in nodes:
                self._known[node.outputs[0]] = self._node(node)
        found = self._known[end]
        return np.broadcast_to(found, np.broadcast_shapes(found.shape, self._numbers.shape))

    def _node(self, node: ir.Node) -> Array:
        try:
            if node.op_type == "Gather" and node.domain == "":
                return self._look_up(node)
            operator = operator_of(node)
            operands = [self._operand(node, value) for value in node.inputs]
            if self._side.is_join(node):
                return self._join(node)
            if node.op_type == "Identity" and node.domain == "":
                return _present(operands[0])
            if node.op_type == "Cast" and node.domain == "":
                return self._cast(node, _present(operands[0]))
            if operator is not None:
                check_parameters(node, self._side.known.array)
                return self._operator(node, operator, operands)
        except (OperatorError, ValueError) as error:
            raise UnsupportedError(str(error)) from error
        if node.domain != "" or node.op_type not in _EXACT | _ANY | _TRUTHS:
            raise UnsupportedError(f"{node.op_type} has no definition over cases")
        if node.attributes:
            raise UnsupportedError(f"{node.op_type} with attributes")
        return self._primitive(node.op_type, [_present(array) for array in operands])

    def _look_up(self, node: ir.Node) -> Array:
        """Take elements of a constant list."""
        listed, at = node.inputs
        table = None if listed is None else self._side.known.array(listed)
        index = None if at is None else self._known.get(at)
        other = bool(node.attributes.get_int("axis", 0))
        if table is None or table.ndim != 1 or index is None or other:
            raise UnsupportedError("Gather from what is no constant list")
        if index.min() < -table.size or index.max() >= table.size:
            raise UnsupportedError("Gather beyond the ends of its list")
        return np.asarray(table[index])

    def _operand(self, node: ir.Node, value: ir.Value | None) -> Array | None:
        if value is None or value in self._known:
            return None if value is None else self._known[value]
        array = self._side.known.array(value)
        if array is None or array.ndim > _RANK:
            raise UnsupportedError(f"{value.name!r} is not constant")
        if node.op_type in ALONG_AXIS:
            array = laid_out(node, array, self._shape)
            data = self._known.get(node.inputs[0]) if node.inputs[0] is not None else None
            rank = len(self._shape or ())
            if array.size > 1 and data is not None and any(n > 1 for n in data.shape[1:-rank]):
                raise UnsupportedError(f"the data of {node.op_type} is of higher rank")
        if not self._side.is_join(node):
            self.constants = np.broadcast_shapes(self.constants, array.shape)
        return array

    def _join(self, node: ir.Node) -> Array:
        """Compute an operator that is defined by how a runtime computes it, by its kernel."""
        arrays = [None if v is None else self._known.get(v) for v in node.inputs]
        constants = [None if v is None else self._side.known.array(v) for v in node.inputs]
        given = [c if a is None else a for a, c in zip(arrays, constants, strict=True)]
        if any(c is not None and c.size > 1 for c in constants):
            raise UnsupportedError(f"{node.op_type} with parameters that vary by channel")
        try:
            kernel: Callable[..., Sequence[Array]] = kernel_for(node, self._side.plain.imports)
            return np.asarray(kernel(*given)[0])
        except QGraphError as error:
            raise UnsupportedError(str(error)) from error

    def _operator(
        self, node: ir.Node, operator: Operator, operands: Sequence[Array | None]
    ) -> Array:
        if any(value in self._known for value in node.inputs[1:]):
            raise UnsupportedError(f"the parameters of {node.op_type} are made of data")
        x, *rest = operands
        attributes = operator.schema.attributes_of(node)
        if operator.schema.name == "Clip":
            found: Array = operator.define(self._ops(), x, *rest, **attributes)
            return found.astype(_present(x).dtype)
        if not operator.schema.standard:
            _require(_present(x), np.dtype(np.float32))
            values: Array = operator.define(self._ops(), *operands, **operator.arguments(node))
            return np.asarray(values, np.float32)
        scale, zero_point = _present(rest[0]), rest[1] if len(rest) > 1 else None
        given = [None if a is None else a.astype(np.float32) for a in (x, scale, zero_point)]
        named = ir.DataType(attributes.get("output_dtype", 0))
        if operator.schema.name == "DequantizeLinear":
            if _present(x).dtype == np.int32 and zero_point is not None and zero_point.any():
                raise UnsupportedError("codes of INT32 with a zero point")
            found = operator.define(self._ops(), *given, **attributes)
            known = named if named != ir.DataType.UNDEFINED else _real(scale)
            return found.astype(numpy_dtype(known.name))
        if operator.schema.name != "QuantizeLinear" or _present(x).dtype.kind in "iub":
            raise UnsupportedError(f"{node.op_type} of {_present(x).dtype}")
        to: ir.DataType = ir.DataType.UINT8 if named == ir.DataType.UNDEFINED else named
        if zero_point is not None:
            to = ir.DataType.from_numpy(zero_point.dtype)
        precision = ir.DataType(attributes["precision"])
        division = precision if precision != ir.DataType.UNDEFINED else _real(scale)
        ops = self._ops(numpy_dtype(division.name))
        return np.asarray(operator.define(ops, *given, **attributes, to=to)).astype(
            numpy_dtype(to.name)
        )

    def _ops(self, division: np.dtype[np.generic] | None = None) -> _Ops:
        return _Ops(self, division)

    def _cast(self, node: ir.Node, x: Array) -> Array:
        to = ir.DataType(node.attributes.get_int("to", 0))
        target = numpy_dtype(to.name)
        if to is ir.DataType.BOOL:
            return np.asarray(x != 0)
        if to.is_integer() and (x.dtype.kind not in "iub" or to.bitwidth < 8):
            wide = np.trunc(x.astype(np.float64))
            low = -(2.0 ** (to.bitwidth - 1)) if to.is_signed() else 0.0
            fits = (wide >= low) & (wide < low + 2.0**to.bitwidth)
            if not (fits | ~self._numbers).all():
                raise UnsupportedError(f"ONNX leaves open what numbers beyond {to.name} become")
            return np.where(fits, wide, 0).astype(np.int64).astype(target)
        if to.is_integer() or to in _REAL:
            return x.astype(target)
        if x.dtype.itemsize > 4:
            raise UnsupportedError(f"Cast from {x.dtype} to {to.name}")
        given = {
            name: node.attributes[name].value
            for name in ("saturate", "round_mode")
            if name in node.attributes
        }
        return cast_values(x.astype(np.float32), to=to.name, **given).astype(target)

    def _primitive(self, name: str, operands: list[Array]) -> Array:
        data = operands[1:] if name == "Where" else operands
        kinds = {array.dtype for array in data}
        if len(kinds) > 1 or (name == "Where" and operands[0].dtype != np.bool_):
            raise UnsupportedError(f"{name} of {', '.join(sorted(map(str, kinds)))}")
        (kind,) = kinds
        if name in _TRUTHS:
            return np.asarray(NUMPY[name](*operands))
        whole = kind.kind in "iu"
        if (whole and name in _EXACT - {"Add", "Sub", "Mul"}) or (
            kind.kind == "b" and name != "Where"
        ):
            raise UnsupportedError(f"{name} of {kind}")
        if not whole and kind.kind != "b" and ir.DataType.from_numpy(kind) not in _REAL:
            raise UnsupportedError(f"{name} of {kind}")
        if name in ("Min", "Max", "Relu"):
            self.note_ties(data if name != "Relu" else [*data, np.zeros((), kind)])
            pick = NUMPY["Min" if name == "Min" else "Max"]
            return np.asarray(
                _folded(pick, data if name != "Relu" else [*data, np.zeros((), kind)])
            )
        return np.asarray(NUMPY[name](*operands)).astype(kind)

    def note_ties(self, operands: Sequence[Array]) -> None:
        """Note where zeros of both signs meet."""
        arrays = np.broadcast_arrays(*operands)
        signs = [np.signbit(array.astype(np.float32)) for array in arrays]
        zero = np.logical_and.reduce([array == 0 for array in arrays])
        mixed = np.logical_or.reduce(signs) & ~np.logical_and.reduce(signs)
        self.has_ties |= bool((zero & mixed).any())


_REAL = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
)


class _Ops:
    """Primitives on arrays, for definitions; a division may be one of another type."""

    def __init__(self, arrays: Arrays, division: np.dtype[np.generic] | None) -> None:
        self._arrays = arrays
        self._division = division

    def __getattr__(self, name: str) -> Callable[..., Array]:
        if name not in NUMPY:
            raise AttributeError(name)

        def call(*operands: Array | float, **attributes: int | str) -> Array:
            given = [
                o if isinstance(o, np.ndarray) else np.asarray(o, np.float32) for o in operands
            ]
            if name == "Div" and self._division is not None:
                a, b = (o.astype(self._division) for o in given)
                return np.asarray(a / b).astype(np.float32)
            if name in ("Min", "Max"):
                self._arrays.note_ties(given)
                return np.asarray(_folded(NUMPY[name], given))
            return np.asarray(NUMPY[name](*given, **attributes))

        return call


def _folded(pick: Callable[..., Array], operands: Sequence[Array]) -> Array:
    found = operands[0]
    for other in operands[1:]:
        found = pick(found, other)
    return found


def _real(scale: Array) -> ir.DataType:
    """Return the type in which a scale divides and multiplies."""
    kind = ir.DataType.from_numpy(scale.dtype)
    return kind if kind in _REAL else ir.DataType.FLOAT


def _require(x: Array, kind: np.dtype[np.float32]) -> None:
    if x.dtype != kind:
        raise UnsupportedError(f"data of type {x.dtype}, expected {kind}")


def _present(array: Array | None) -> Array:
    if array is None:
        raise UnsupportedError("an operand is missing")
    return array
