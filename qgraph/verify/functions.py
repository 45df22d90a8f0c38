"""Evaluate the two sides of a region as functions of one number, and compare them everywhere.

Definitions are evaluated at the first and the last input of boxes. Primitives are monotone in each
operand, as rounding is. So all results of a box lie between these two, if at most one operand of
each primitive changes in it. Other boxes are open, and are divided.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from qgraph.errors import UnsupportedError
from qgraph.numerics import Array, Mask
from qgraph.numerics.float32 import HIGHEST, LOWEST, Keys, from_keys
from qgraph.numerics.formats import numpy_dtype
from qgraph.numerics.primitives import NUMPY
from qgraph.ops.operator import Operator, operator_of
from qgraph.verify.reading import Reading, Shape, code_range, confirm, names, need

_MONOTONE = names(
    "Abs Add And Cast Ceil Div Floor Greater GreaterOrEqual Identity IsNaN Less LessOrEqual Max "
    "Min Mul Neg Not Or Relu Round Sign Sqrt Sub Where"
)
"""Primitives that are monotone in each operand, Abs and Div on either side of 0."""

_HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_REAL = _HALVES | {ir.DataType.FLOAT}
_WIDE = ir.DataType.DOUBLE
_TYPES = {
    **dict.fromkeys(("Add", "Mul", "Sub"), _REAL | {_WIDE}),
    **dict.fromkeys(("And", "Not", "Or"), frozenset({ir.DataType.BOOL})),
    "Where": _REAL | {ir.DataType.BOOL},
}
_BATCH = 1 << 16
_MOST_OPEN = 1 << 21
_MOST_BOXES = 1 << 23


def _same(a: Array, b: Array) -> Mask:
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


def _moves(x: Array) -> Mask:
    """Return the boxes in which data changes, if only from -0 to +0; constants have one axis."""
    a, b = (x[0], x[-1]) if x.ndim > 1 else (x, x)
    return np.asarray(~_same(a, b) | ((a == 0) & (np.signbit(a) != np.signbit(b))))


def _any(mask: Mask) -> Mask:
    return np.asarray(mask.any(axis=0)) if mask.ndim > 1 else mask


def _meets_zero(x: Array) -> Mask:
    a, b = (x[0], x[-1]) if x.ndim > 1 else (x, x)
    return np.asarray(np.sign(a) * np.sign(b) <= 0)


class BoxEnds:
    """Computes primitives at the ends of boxes ``[n]``, in float32, which represents all codes.

    A definition calls ``ends.Div(x, scale)``. Data is ``[2, n]``, or ``[1, n]`` for single inputs.
    Constants have one axis or none.

    Attributes:
        has_ties: whether Min, Max or Relu returned ``tie`` for -0 and +0; ONNX allows both.
        is_open: boxes with results that do not lie between the ends, or that ONNX does not define.
        division: type in which the next definition divides; None for float32.
    """

    def __init__(self, tie: float) -> None:
        self._tie, self.has_ties = np.float32(tie), False
        self.is_open: Mask = np.zeros((), np.bool_)
        self.division: ir.DataType | None = None

    def __getattr__(self, name: str) -> Callable[..., Array]:
        if name not in NUMPY:
            raise AttributeError(name)
        return functools.partial(self._call, name)

    def kernel(self, node: ir.Node, operator: Operator, operands: list[Any]) -> Array:
        """Return the results of an operator's kernel on float16 or bfloat16 data."""
        x, half = operands[0], numpy_dtype(node.inputs[0].dtype.name)  # type: ignore[union-attr]
        self.is_open = self.is_open | _moves(x)
        return operator.run(node, [x.astype(half), *operands[1:]]).astype(np.float32)

    def _call(self, name: str, *operands: Any, **attributes: Any) -> Array:
        values = [o if isinstance(o, np.ndarray) else np.asarray(o, np.float32) for o in operands]
        if name in ("Max", "Min"):
            return functools.reduce(lambda a, b: self._apply(name, [a, b], {}), values)
        is_plain = name == "Cast" or (name != "Gather" and not attributes)
        need(is_plain, f"{name} with attributes, or from a table")
        result = self._apply(name, values, attributes)
        halves = name == "Div" and self.division in _HALVES
        return self._apply("Cast", [result], {"to": self.division}) if halves else result

    def _apply(self, name: str, values: list[Array], attributes: Mapping[str, Any]) -> Array:
        a, b = values[0], values[-1]
        moving = [_moves(value) for value in values]
        moves = functools.reduce(np.logical_or, moving)
        is_open = sum(moving) > 1
        if name == "Where":
            chosen = np.where(a[0] if a.ndim > 1 else a, *moving[1:])
            moves, is_open = moving[0] | chosen, moving[0] & (moving[1] | moving[2])
        if name == "Cast":
            result, undefined, is_nan = _cast(a, attributes)
            is_open = is_open | undefined
        else:
            result = np.asarray(NUMPY[name](*values, **attributes))
            is_nan = np.zeros((), np.bool_)
        if name in ("Abs", "Div"):
            is_open = is_open | (_meets_zero(b) & moves)
        elif name == "Mul":
            for one, other in ((0, b), (1, a)):
                is_open = is_open | (moving[one] & _any(np.isinf(other)))
        elif name in ("Max", "Min", "Relu"):
            b = b if name != "Relu" else np.zeros((), np.float32)
            is_tie = (a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))
            if is_tie.any():
                result, self.has_ties = np.where(is_tie, self._tie, result), True
            is_open = is_open | (moves & _meets_zero(a) & _meets_zero(b))
        elif name not in _MONOTONE:
            is_open = is_open | moves
        is_open = is_open | (moves & _any(np.isnan(result)) & ~is_nan)
        self.is_open = self.is_open | is_open
        return result


def _cast(x: Array, attributes: Mapping[str, Any]) -> tuple[Array, Mask, Mask]:
    """Return a Cast, where ONNX does not define it, and where it is NaN in a whole box."""
    to = attributes["to"]
    to = ir.DataType[to] if isinstance(to, str) else ir.DataType(to)
    is_known = x.dtype != np.float64 or to in (ir.DataType.FLOAT, _WIDE)
    need(is_known, "a Cast from float64, other than to float32")
    if to in _HALVES:
        result = x.astype(numpy_dtype(to.name)).astype(np.float32)
    else:
        result = x.astype(np.float64) if to is _WIDE else NUMPY["Cast"](x, **attributes)
    undefined = _any(np.asarray((to is ir.DataType.FLOAT8E8M0) & (x < 0)))
    if to is ir.DataType.BOOL:
        undefined = _moves(x)
    elif to.is_integer() and x.dtype != np.bool_:
        (low, high), whole = code_range(to), np.trunc(x)
        undefined = _any(~((whole >= np.float32(low)) & (whole < np.float32(high + 1))))
    # all formats can represent 1, and no number beyond their largest one
    is_nan = np.isnan(result).all(axis=0) & ((x >= 1).all(axis=0) | (x <= -1).all(axis=0))
    return result, undefined, np.asarray(is_nan)


class Function:
    """The elementwise function that nodes compute from ``x`` of a shape, operands first.

    Attributes:
        rank: the number of dimensions of the result; those of constants if ``shape`` is unknown.
    """

    def __init__(
        self, side: Reading, nodes: Sequence[ir.Node], x: ir.Value, y: ir.Value, shape: Shape | None
    ) -> None:
        self._side, self.rank = side, len(shape or ())
        self._x, self._y = x, y
        self._constants: dict[ir.Value | None, Array] = {}
        self._steps: list[tuple[ir.Node, Operator | None, dict[str, Any]]] = []
        for node in nodes:
            operator = operator_of(node)
            self._steps.append((node, operator, self._arguments(node, operator)))
            for value in node.inputs:
                if value is not None and side.has(value):
                    self._enter(value)

    def run(self, ends: BoxEnds, x: Array) -> Array:
        """Return the results at the ends of boxes."""
        values: dict[ir.Value | None, Any] = {None: None, self._x: x} | self._constants
        for node, operator, arguments in self._steps:
            operands = [values[value] for value in node.inputs]
            data, result = node.inputs[0], node.outputs[0]
            if operator is None:
                y = getattr(ends, node.op_type)(*operands, **arguments)
            elif data is not None and data.dtype in _HALVES and not operator.schema.standard:
                y = ends.kernel(node, operator, operands)
            else:
                operands += [None] * (len(operator.schema.inputs) - len(operands))
                ends.division = _division(node)
                y = operator.define(ends, *operands, **arguments)
                ends.division = None
            values[result] = ends.Cast(y, to=result.dtype) if result.dtype in _HALVES else y
        return values[self._y]  # type: ignore[no-any-return]

    def _arguments(self, node: ir.Node, operator: Operator | None) -> dict[str, Any]:
        """Return the keyword arguments of the definition of a node."""
        name, sources = node.op_type, self._side.sources(node)
        need(sources, f"{name} of constants cannot be computed by the checker")
        if operator is None:
            types = {None if v is None else v.dtype for v in node.inputs}
            is_primitive = not node.domain and name in NUMPY.keys() - {"Cast", "Gather", "Pow"}
            need(is_primitive, f"{name} has no definition over single elements")
            fits = types <= _TYPES.get(name, _REAL) and len(types) == 1 + (name == "Where")
            need(fits or (name == "Identity" and None not in types), f"{name} of these types")
            return {key: attribute.value for key, attribute in node.attributes.items()}
        data, result = sources[0].dtype, node.outputs[0].dtype
        is_first = sources == [node.inputs[0]]
        need(is_first, f"the parameters of {name} are computed from data")
        if not operator.schema.standard:
            parameters = [None if v is None else self._side.array(v) for v in node.inputs[1:]]
            sizes = np.broadcast_shapes(*(a.shape for a in parameters if a is not None))
            operator.run(node, [np.zeros(sizes, np.float32), *parameters])  # refuses bad values
            return {} if data in _HALVES else operator.arguments(node)
        arguments = operator.schema.attributes_of(node)
        fits = name == "Cast" or _WIDE not in (data, result)
        if name == "QuantizeLinear":
            fits = fits and data in _REAL and _division(node) in (ir.DataType.FLOAT, data)
            fits = fits and result is not None and not node.attributes.get_int("precision", 0)
            arguments |= {"to": result}
        elif name == "DequantizeLinear":
            fits = fits and result in _REAL and data is not ir.DataType.INT32
        elif name == "Clip":
            has_limits = len(node.inputs) > 2 and None not in node.inputs
            fits = fits and (has_limits or bool(node.attributes))
        need(fits, f"{name} of these types, or without its bounds")
        return arguments

    def _enter(self, value: ir.Value) -> None:
        """Store a constant operand: one number."""
        array = self._side.array(value)
        if array is None or array.dtype.kind in "OSU":
            raise UnsupportedError(f"the constant {value.name!r} cannot be computed by the checker")
        need(array.size == 1, "it has several channels")
        self.rank = max(self.rank, array.ndim)
        wide = array if array.dtype in (np.bool_, np.float64) else array.astype(np.float32)
        is_same = np.array_equal(wide.astype("f8"), array.astype("f8"), equal_nan=True)
        need(is_same, f"a constant of type {array.dtype} is not exact in float32")
        self._constants[value] = wide.reshape(1)


def _division(node: ir.Node) -> ir.DataType | None:
    """Return the type in which a QuantizeLinear divides; None for other operators."""
    scale = node.inputs[1] if node.op_type == "QuantizeLinear" else None
    return None if scale is None else scale.dtype


class Compared(NamedTuple):
    """Results for the first input ``x`` of boxes ``[n]``, and where they differ.

    Zeros with other signs are in ``signs``; those whose signs ONNX does not define are ``tied``.
    Boxes that may have other results, or results that ONNX does not define, are open.
    """

    x: Array
    reference: Array
    candidate: Array
    differ: Mask
    signs: Mask
    tied: Mask
    is_open: Mask

    @property
    def is_unequal(self) -> Mask:
        """Where results differ, if only in signs of zeros, or ONNX does not define them."""
        return np.asarray(self.differ | self.signs | self.is_open)

    def expect_equal(self, chosen: Mask) -> None:
        """Check that the results at some single inputs have equal values."""
        masks = self.is_open & chosen, self.differ & chosen
        first_open, first = (next(iter(self.x[mask].tolist()), None) for mask in masks)
        need(first_open is None, f"ONNX does not define the result for the input {first_open!r}")
        confirm(first is None, f"its values differ for the input {first!r}")


class Both:
    """Two functions of numbers. Boxes are keys of ends ``[2, n]``, or of inputs ``[1, n]``."""

    def __init__(self, reference: Function, candidate: Function) -> None:
        self._functions = reference, candidate
        has_shape = reference.rank == candidate.rank
        need(has_shape, "the constants of one side have more dimensions, or those of its data")

    def compare(self, boxes: Keys) -> Compared:
        """Return the results on boxes; one possible result where ONNX allows several."""
        x, first, second = from_keys(boxes), BoxEnds(-0.0), BoxEnds(0.0)
        with np.errstate(all="ignore"):
            results = [function.run(first, x) for function in self._functions]
            if first.has_ties:
                results += [function.run(second, x) for function in self._functions]
        a, b, *others = (np.broadcast_to(y, x.shape).astype("f8") for y in results)
        c, d = others or (a, b)
        is_open = first.is_open | second.is_open | ~_same(a[0], c[0]) | ~_same(b[0], d[0])
        is_open = np.logical_or.reduce([is_open, *map(_moves, (a, b, c, d))])
        a, b, c, d = a[0], b[0], c[0], d[0]
        differ, bits = ~_same(a, b), [np.signbit(result) for result in (a, b, c, d)]
        tied = np.asarray((bits[0] != bits[2]) | (bits[1] != bits[3]))
        signs = (tied | (bits[0] != bits[1])) & ~differ & (a == 0)
        return Compared(x[0], a, d, differ, signs, tied, is_open)

    def count_signs(self, starts: Sequence[int]) -> int:
        """Return the number of finite inputs with zeros of different signs.

        Both functions are checked to be equal for all finite inputs. ``starts`` are keys at which
        results may change; they only save time.
        """
        inner = [key for key in starts if LOWEST < key <= HIGHEST]
        lo = np.unique(np.array([LOWEST, 0, *inner], np.int64))
        boxes = np.stack([lo, np.append(lo[1:] - 1, HIGHEST)])
        signs, budget = 0, 64 * len(lo) + _MOST_BOXES
        while boxes.size:
            budget -= len(boxes[0])
            need(budget >= 0 and len(boxes[0]) <= _MOST_OPEN, "its values change on too many boxes")
            rests = []
            for start in range(0, len(boxes[0]), _BATCH):
                batch = boxes[:, start : start + _BATCH]
                found, sizes = self.compare(batch), batch[1] - batch[0] + 1
                found.expect_equal(sizes == 1)
                settled = ~(found.is_open | found.differ) | (sizes == 1)
                signs += int(sizes[settled & found.signs].sum())
                rests.append(batch[:, ~settled])
            lo, hi = np.concatenate(rests, axis=1)
            middle = (lo + hi) >> 1
            boxes = np.stack([np.append(lo, middle + 1), np.append(middle, hi)])
        return signs
