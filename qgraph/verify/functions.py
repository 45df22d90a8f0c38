"""Evaluate the two sides of a region as functions of one number, and compare them everywhere."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from qgraph.errors import UnsupportedError
from qgraph.numerics import Array, Mask
from qgraph.numerics.float32 import HIGHEST, LOWEST, Keys, from_keys, to_keys
from qgraph.numerics.primitives import NUMPY
from qgraph.ops.operator import Operator, operator_of
from qgraph.verify import confirm, need
from qgraph.verify.primitives import HALVES, Ranges, Span
from qgraph.verify.reading import Reading, Shape

_REAL = HALVES | {ir.DataType.FLOAT}
_WIDE = ir.DataType.DOUBLE
_BATCH = 1 << 16
_MOST_OPEN = 1 << 21
_MOST_BOXES = 1 << 23


class Function:
    """The elementwise function that nodes compute from one value.

    Args:
        side: the model.
        nodes: the nodes in topological order.
        x: the variable.
        y: the result.
        shape: shape of ``x``; None if the rank is unknown.

    Attributes:
        constants: arrays of the constant operands, shaped to broadcast to the data.
    """

    def __init__(
        self, side: Reading, nodes: Sequence[ir.Node], x: ir.Value, y: ir.Value, shape: Shape | None
    ) -> None:
        self._side, self._shape = side, shape
        self._x, self._y = x, y
        self.constants: dict[tuple[ir.Node, int], Array] = {}
        self._steps: list[tuple[ir.Node, Operator | None, dict[str, Any]]] = []
        for node in nodes:
            operator = operator_of(node)
            self._steps.append((node, operator, self._arguments(node, operator)))
            for index, value in enumerate(node.inputs):
                if value is not None and side.has(value):
                    self._enter(node, index, value)

    def result_shape(self) -> Shape:
        """Return the shape of the result: the shape of data and constants after broadcasting."""
        own: Shape = np.broadcast_shapes(*(array.shape for array in self.constants.values()))
        if self._shape is None:
            return own
        before = len(self._shape) - len(own)
        sizes = list(zip((1,) * before + own, self._shape, strict=before >= 0))
        fits = all(c == 1 or d in (1, c) for c, d in sizes if isinstance(d, int))
        need(before >= 0 and fits, "its constants do not fit its data, or have more dimensions")
        return tuple(d if c == 1 else c for c, d in sizes)

    def run(self, ranges: Ranges, x: Span, take: Callable[[Array], Array]) -> Span:
        """Return bounds of the result; ``take`` selects elements of a constant."""
        spans: dict[ir.Value | None, Any] = {None: None, self._x: x}
        for node, operator, arguments in self._steps:
            operands = [
                spans[value]
                if (node, index) not in self.constants
                else ranges.constant(take(self.constants[node, index]))
                for index, value in enumerate(node.inputs)
            ]
            data, result = node.inputs[0], node.outputs[0]
            if operator is None:
                span = getattr(ranges, node.op_type)(*operands, **arguments)
            elif data is not None and data.dtype in HALVES and not operator.schema.standard:
                run = functools.partial(operator.run, node)
                span = ranges.kernel(run, data.dtype, operands)
            else:
                operands += [None] * (len(operator.schema.inputs) - len(operands))
                ranges.division = _division(node)
                span = operator.define(ranges, *operands, **arguments)
                ranges.division = None
            halves = result.dtype in HALVES
            spans[result] = ranges.apply("Cast", [span], {"to": result.dtype}) if halves else span
        return spans[self._y]  # type: ignore[no-any-return]

    def _arguments(self, node: ir.Node, operator: Operator | None) -> dict[str, Any]:
        """Return the keyword arguments of the definition of a node."""
        sources = self._side.sources(node)
        need(sources, f"{node.op_type} of constants cannot be computed by the checker")
        if operator is None:
            _check_types(node)
            return {name: attribute.value for name, attribute in node.attributes.items()}
        data, result = sources[0].dtype, node.outputs[0].dtype
        is_first = sources == [node.inputs[0]]
        need(is_first, f"the parameters of {node.op_type} are computed from data")
        if not operator.schema.standard:
            parameters = [None if v is None else self._side.array(v) for v in node.inputs[1:]]
            sizes = np.broadcast_shapes(*(a.shape for a in parameters if a is not None))
            operator.run(node, [np.zeros(sizes, np.float32), *parameters])  # refuses bad values
            return {} if data in HALVES else operator.arguments(node)
        arguments = operator.schema.attributes_of(node)
        fits = operator.schema.name == "Cast" or _WIDE not in (data, result)
        match operator.schema.name:
            case "QuantizeLinear":
                division = _division(node)
                fits = fits and data in _REAL and (division not in HALVES or data is division)
                fits = fits and division is not _WIDE and result is not None
                arguments |= {"to": result}
            case "DequantizeLinear":
                zero = self._side.array(node.inputs[2]) if len(node.inputs) > 2 else None
                fits = fits and (zero is None or zero.dtype != np.int32 or not zero.any())
                fits = fits and result in _REAL
            case "Clip":
                bounds = (*node.inputs[1:], None, None)[:2]
                fits = fits and (bool(node.attributes) or None not in bounds)
        need(fits, f"{node.op_type} of these types, or without its bounds")
        return arguments

    def _enter(self, node: ir.Node, index: int, value: ir.Value) -> None:
        """Store a constant operand, shaped to broadcast to the data."""
        array = self._side.array(value)
        if array is None or array.dtype.kind in "OSU":
            raise UnsupportedError(f"the constant {value.name!r} cannot be computed by the checker")
        is_kept = array.dtype == np.bool_ or (array.dtype == np.float64 and array.size == 1)
        wide = array if is_kept else array.astype(np.float32)
        is_same = np.array_equal(wide.astype("f8"), array.astype("f8"), equal_nan=True)
        need(is_same, f"a constant of type {array.dtype} is not exact in float32")
        if node.op_type in ("Clip", "DequantizeLinear", "QuantizeLinear") and wide.size == 1:
            wide = wide.reshape(())
        elif node.op_type in ("DequantizeLinear", "QuantizeLinear"):
            rank, axis = len(self._shape or ()), node.attributes.get_int("axis", 1)
            is_plain = wide.ndim == 1 and node.attributes.get_int("block_size", 0) == 0
            is_known = is_plain and -rank <= axis < rank
            need(is_known, f"the axis of {node.op_type} is not known, or blocked")
            wide = wide.reshape([wide.size if i == axis % rank else 1 for i in range(rank)])
        self.constants[node, index] = wide


def _division(node: ir.Node) -> ir.DataType | None:
    """Return the type in which a QuantizeLinear divides; None for other operators."""
    if node.op_type != "QuantizeLinear" or node.inputs[1] is None:
        return None
    precision = ir.DataType(node.attributes.get_int("precision", 0))
    return node.inputs[1].dtype if precision == ir.DataType.UNDEFINED else precision


def _check_types(node: ir.Node) -> None:
    """Raise if a node is not a primitive, or has a type that float32 does not represent."""
    name, types = node.op_type, [None if v is None else v.dtype for v in node.inputs]
    is_primitive = not node.domain and name in NUMPY and name not in ("Cast", "Gather", "Pow")
    need(is_primitive, f"{name} has no definition over single elements")
    truth = types[0] is ir.DataType.BOOL
    if name in ("And", "Not", "Or"):
        fits = truth and len(set(types)) == 1
    else:
        data = set(types[1:] if name == "Where" else types)
        fits = len(data) == 1 and (data <= _REAL or name == "Identity") and None not in data
        fits = fits or (data == {_WIDE} and name in ("Add", "Mul", "Sub"))
        fits = fits and truth is (name == "Where")
    names = ", ".join("unknown" if dtype is None else dtype.name for dtype in types)
    need(fits, f"{name} in type {names}")


class Boxes(NamedTuple):
    """Boxes ``[n]`` of inputs: channel, keys of the first and of the last input."""

    channel: Keys
    lo: Keys
    hi: Keys

    def at(self, chosen: Mask | slice) -> Boxes:
        """Return some of the boxes."""
        return Boxes(*(column[chosen] for column in self))

    def halves(self) -> Boxes:
        """Return both halves of each box."""
        middle = (self.lo + self.hi) >> 1
        lo, hi = np.concatenate([self.lo, middle + 1]), np.concatenate([middle, self.hi])
        return Boxes(np.tile(self.channel, 2), lo, hi)


class Compared(NamedTuple):
    """Results on boxes ``[n]``, and masks; -0 equals +0, and NaN equals NaN.

    Attributes:
        x: the first input.
        reference, candidate: a result of each side.
        differ: where these results differ.
        signs: where they are zeros whose signs differ, or may differ.
        tied: where ONNX does not define the sign of a zero.
        is_open: where there may be other results, or ONNX does not define them.
        settled: where both sides have these results on the whole box.
    """

    x: Array
    reference: Array
    candidate: Array
    differ: Mask
    signs: Mask
    tied: Mask
    is_open: Mask
    settled: Mask

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
    """Two functions of one variable, in all channels: the elements of the broadcast constants.

    Attributes:
        channels: number of channels.
        likes: number of channels with equal constants, at the first channel of each such set.
    """

    def __init__(self, reference: Function, candidate: Function) -> None:
        self._functions = reference, candidate
        arrays = [array for function in self._functions for array in function.constants.values()]
        # a ValueError leaves the region undecided: the constants do not broadcast
        self._shape = np.broadcast_shapes(*(array.shape for array in arrays))
        self.channels = int(np.prod(self._shape, dtype=np.int64))
        columns = [
            self._column(array).astype("f4").view("u4") for array in arrays if array.size > 1
        ]
        rows = np.stack([np.zeros(self.channels, "u4"), *columns], axis=1)
        _, first, counts = np.unique(rows, axis=0, return_index=True, return_counts=True)
        self.likes = np.zeros(self.channels, np.int64)
        self.likes[first] = counts

    def _column(self, array: Array) -> Array:
        return np.broadcast_to(array, self._shape).ravel()

    def points(self, numbers: Array) -> Boxes:
        """Return boxes of single inputs ``[n]``, in all distinct channels."""
        kinds, keys = np.flatnonzero(self.likes), to_keys(numbers)
        lo = np.repeat(keys, len(kinds))
        return Boxes(np.tile(kinds, len(keys)), lo, lo)

    def divided(self, starts: Mapping[int, Sequence[int]]) -> Boxes:
        """Return boxes that cover all finite inputs, in all distinct channels.

        Args:
            starts: for each channel, keys at which its results may change; they only save time.
        """
        parts = list[Boxes]()
        for channel in np.flatnonzero(self.likes).tolist():
            inner = [key for key in starts.get(channel, ()) if LOWEST < key <= HIGHEST]
            lo = np.unique(np.array([LOWEST, 0, *inner], np.int64))
            parts.append(Boxes(np.full_like(lo, channel), lo, np.append(lo[1:] - 1, HIGHEST)))
        return Boxes(*map(np.concatenate, zip(*parts, strict=True)))

    def _run(self, boxes: Boxes, ranges: Ranges) -> list[Span]:
        """Return bounds of both results on boxes."""

        def take(array: Array) -> Array:
            return self._column(array)[boxes.channel] if array.size > 1 else array.reshape(-1)

        lo, hi = from_keys(boxes.lo), from_keys(boxes.hi)
        x = Span(lo, lo if boxes.lo is boxes.hi else hi, np.zeros(lo.shape, np.bool_))
        with np.errstate(all="ignore"):
            spans = [function.run(ranges, x, take) for function in self._functions]
        return [Span(*np.broadcast_arrays(s.lo, s.hi, s.bad, lo)[:3]) for s in spans]

    def compare(self, boxes: Boxes) -> Compared:
        """Return the results on boxes; one possible result where ONNX allows several."""
        first = Ranges(-0.0)
        spans = self._run(boxes, first)
        spans += self._run(boxes, Ranges(0.0)) if first.has_ties else spans
        a, b, c, d = (s.lo.astype("f8" if s.lo.dtype == "f8" else "f4") for s in spans)
        is_open = np.logical_or.reduce([s.bad | ~_same(s.lo, s.hi) for s in spans])
        is_open |= ~_same(a, c) | ~_same(b, d)
        are_points = np.logical_and.reduce([s.is_point() for s in spans])
        differ, bits = ~_same(a, b), [np.signbit(result) for result in (a, b, c, d)]
        tied = np.asarray((bits[0] != bits[2]) | (bits[1] != bits[3]))
        signs = (tied | (bits[0] != bits[1])) & ~differ & (a == 0)
        settled = ~(is_open | differ) & (are_points | (a != 0))
        return Compared(from_keys(boxes.lo), a, d, differ, signs, tied, is_open, settled)

    def count_signs(self, boxes: Boxes) -> int:
        """Return the number of inputs in boxes, over all channels, with zeros of different signs.

        Both functions are checked to be equal on the boxes.
        """
        signs, budget = 0, 64 * len(boxes.lo) + _MOST_BOXES
        while len(boxes.lo):
            budget -= len(boxes.lo)
            need(budget >= 0 and len(boxes.lo) <= _MOST_OPEN, "its values change on too many boxes")
            rests = []
            for start in range(0, len(boxes.lo), _BATCH):
                batch = boxes.at(slice(start, start + _BATCH))
                found, is_single = self.compare(batch), batch.lo == batch.hi
                found.expect_equal(is_single)
                settled = found.settled | is_single
                sizes = (batch.hi - batch.lo + 1) * self.likes[batch.channel]
                signs += int(sizes[settled & found.signs].sum())
                rests.append(batch.at(~settled))
            boxes = Boxes(*map(np.concatenate, zip(*rests, strict=True))).halves()
        return signs


def _same(a: Array, b: Array) -> Mask:
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))
