"""Evaluate the definitions of operators on ranges of numbers.

Ranges are of float32, which represents codes and float16 exactly. Single numbers may be float64.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Array, Mask
from qgraph.numerics.float32 import from_keys, to_keys
from qgraph.numerics.formats import numpy_dtype
from qgraph.numerics.primitives import NUMPY
from qgraph.records import dataclass
from qgraph.verify import need
from qgraph.verify.reading import code_range

Attributes = Mapping[str, Any]

HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_MONOTONE = frozenset(
    {"Add", "And", "Cast", "Ceil", "Div", "Floor", "Greater", "GreaterOrEqual", "Less"}
    | {"LessOrEqual", "Max", "Min", "Mul", "Neg", "Not", "Or", "Relu", "Round", "Sign", "Sqrt"}
    | {"Sub"}
)
"""Primitives that are monotone in each operand, so results at range limits are bounds."""


def _compute(name: str, operands: list[Array], attributes: Attributes) -> Array:
    dtype = _type(attributes) if name == "Cast" else None
    if dtype in HALVES and operands[0].dtype != np.float64:
        return operands[0].astype(numpy_dtype(dtype.name)).astype(np.float32)
    if dtype is ir.DataType.DOUBLE:
        return operands[0].astype(np.float64)
    is_known = dtype in (None, ir.DataType.FLOAT) or operands[0].dtype != np.float64
    need(is_known, "a Cast from float64, other than to float32")
    return np.asarray(NUMPY[name](*operands, **attributes))


def _type(attributes: Attributes) -> ir.DataType:
    to = attributes["to"]
    return ir.DataType[to] if isinstance(to, str) else ir.DataType(to)


def _is_open(attributes: Attributes, x: Array) -> Mask:
    """Return where ONNX does not define the result of a Cast."""
    to = _type(attributes)
    if x.dtype == np.bool_ or not to.is_integer():
        return np.asarray((to is ir.DataType.FLOAT8E8M0) & (x < 0))
    (low, high), whole = code_range(to), np.trunc(x)
    return np.asarray(~((whole >= np.float32(low)) & (whole < np.float32(high + 1))))


def _any(masks: Iterable[Mask]) -> Mask:
    return functools.reduce(np.logical_or, masks)


def _float32(operand: Any) -> Array:
    array = np.asarray(operand)
    return array if array.dtype == np.bool_ else array.astype(np.float32)


@dataclass
class Span:
    """Bounds of the results on boxes ``[n]`` of inputs.

    Attributes:
        lo, hi: the bounds. -0 is below +0. Both are NaN where all results are NaN.
        bad: where the bounds are not valid, because results may be NaN or undefined.
    """

    lo: Array
    hi: Array
    bad: Mask

    def is_point(self) -> Mask:
        """Return where there is only one result; -0 and +0 are two results."""
        if self.lo is self.hi or self.lo.dtype == np.bool_:
            return np.asarray((self.lo == self.hi) | (self.lo != self.lo))
        both = np.isnan(self.lo) & np.isnan(self.hi)
        return np.asarray((self.lo.view(np.int32) == self.hi.view(np.int32)) | both)


class Ranges:
    """Computes bounds of definitions: the results at the ends of ranges, as rounding is monotone.

    A definition calls ``ranges.Div(x, scale)``; operands are ranges, arrays and numbers.

    Args:
        tie: the zero that Min, Max and Relu return for -0 and +0, as ONNX allows both.

    Attributes:
        has_ties: whether they returned it.
        division: type in which the next definition divides; None for float32.
    """

    def __init__(self, tie: float) -> None:
        self._tie, self.has_ties = np.float32(tie), False
        self.division: ir.DataType | None = None

    def __getattr__(self, name: str) -> Callable[..., Span]:
        if name not in NUMPY:
            raise AttributeError(name)
        return functools.partial(self._call, name)

    def _call(self, name: str, *operands: Any, **attributes: Any) -> Span:
        numbers = (np.ndarray, np.generic, float, int)
        values = [self.constant(_float32(o)) if isinstance(o, numbers) else o for o in operands]
        if name == "Identity":
            return values[0]
        if name in ("Max", "Min"):
            return functools.reduce(lambda a, b: self.apply(name, [a, b], {}), values)
        is_plain = name == "Cast" or (name != "Gather" and not attributes)
        need(is_plain, f"{name} with attributes, or from a table")
        span = self.apply(name, values, attributes)
        halves = name == "Div" and self.division in HALVES
        return self.apply("Cast", [span], {"to": self.division}) if halves else span

    def constant(self, array: Array) -> Span:
        """Return a constant."""
        return Span(array, array, np.zeros(array.shape, np.bool_))

    def kernel(
        self, run: Callable[[list[Array]], Array], dtype: ir.DataType, operands: list[Span]
    ) -> Span:
        """Return the results of an operator's kernel on float16 or bfloat16 data, by input."""
        x, *rest = (operand.lo for operand in operands)
        results = run([x.astype(numpy_dtype(dtype.name)), *rest]).astype(np.float32)
        return Span(results, results, operands[0].bad | ~operands[0].is_point())

    def apply(self, name: str, operands: list[Span], attributes: Attributes) -> Span:
        """Return bounds of the results of a primitive."""
        if name == "Where":
            return self._where(*operands)
        a, b = operands[0], operands[-1]
        bad = _any(o.bad for o in operands)
        points = functools.reduce(np.logical_and, [o.is_point() for o in operands])
        if name not in _MONOTONE or (name == "Cast" and _type(attributes) is ir.DataType.BOOL):
            return self._other(name, operands, attributes, bad, points)
        ends = itertools.product(*((o.lo,) if o.lo is o.hi else (o.lo, o.hi) for o in operands))
        corners = [_compute(name, list(corner), attributes) for corner in ends]
        is_single = len(corners) == 1 or np.float64 not in (a.lo.dtype, corners[0].dtype)
        need(is_single, "float64 is computed for single inputs only, not for ranges")
        if corners[0].dtype == np.bool_:
            nan = _any(np.isnan(end) for operand in operands for end in (operand.lo, operand.hi))
            lo, hi = np.logical_and.reduce(corners), np.logical_or.reduce(corners)
            return Span(lo, hi, bad | (nan & ~points))
        nan = _any(map(np.isnan, corners))
        if name in ("Div", "Mul"):
            zero = [(o.lo <= 0) & (o.hi >= 0) for o in (a, b)]
            infinite = [np.isinf(o.lo) | np.isinf(o.hi) for o in (a, b)]
            if name == "Mul":
                nan = nan | (zero[0] & infinite[1]) | (zero[1] & infinite[0])
            else:
                nan = nan | (zero[0] & zero[1]) | (infinite[0] & infinite[1])
                nan = nan | (np.signbit(b.lo) != np.signbit(b.hi))
        if name == "Cast":
            bad = bad | _is_open(attributes, a.lo) | _is_open(attributes, a.hi)
            # all formats can represent 1, and no number beyond their largest one
            all_nan = functools.reduce(np.logical_and, map(np.isnan, corners))
            points = points | (all_nan & ((a.lo >= 1) | (a.hi <= -1)))
        lo = hi = corners[0]
        if len(corners) > 1:
            keys = [to_keys(corner) for corner in corners]
            lo, hi = (from_keys(functools.reduce(pick, keys)) for pick in (np.minimum, np.maximum))
        if name in ("Max", "Min", "Relu"):
            other = b if name != "Relu" else self.constant(np.zeros((), np.float32))
            lo, hi = self._tied(a, other, lo, hi)
        return Span(lo, hi, np.asarray(bad | (nan & ~points)))

    def _tied(self, a: Span, b: Span, lo: Array, hi: Array) -> tuple[Array, Array]:
        """Return bounds of Min, Max or Relu where the operands may be -0 and +0."""
        both = (a.lo <= 0) & (a.hi >= 0) & (b.lo <= 0) & (b.hi >= 0)
        if not both.any():
            return lo, hi
        signs = [np.signbit(end) for end in (a.lo, a.hi, b.lo, b.hi)]
        mixed = both & ((signs[0] != signs[3]) | (signs[1] != signs[2]))
        sure = mixed & a.is_point() & b.is_point()
        self.has_ties |= bool(sure.any())
        lo, hi = (np.where(sure, self._tie, end) for end in (lo, hi))
        mixed = mixed & ~sure
        return np.where(mixed & (lo == 0), -0.0, lo), np.where(mixed & (hi == 0), 0.0, hi)

    def _where(self, c: Span, a: Span, b: Span) -> Span:
        yes, no = c.lo & ~c.bad, ~c.hi & ~c.bad
        if a.lo.dtype == np.bool_:
            lo, hi, nan = np.minimum(a.lo, b.lo), np.maximum(a.hi, b.hi), np.zeros((), np.bool_)
        else:
            lo = from_keys(np.minimum(to_keys(a.lo), to_keys(b.lo)))
            hi = from_keys(np.maximum(to_keys(a.hi), to_keys(b.hi)))
            nan = np.isnan(a.lo) ^ np.isnan(b.lo)
        lo = np.where(yes, a.lo, np.where(no, b.lo, lo))
        hi = np.where(yes, a.hi, np.where(no, b.hi, hi))
        bad = c.bad | np.where(yes, a.bad, np.where(no, b.bad, a.bad | b.bad | nan))
        return Span(lo, hi, np.asarray(bad))

    def _other(
        self, name: str, operands: list[Span], attributes: Attributes, bad: Mask, points: Mask
    ) -> Span:
        """Return the results of a primitive without a rule for ranges, valid at points only."""
        a, b = operands[0], operands[-1]
        first = _compute(name, [o.lo for o in operands], attributes)
        if name == "Abs":
            last, across = np.abs(a.hi), np.signbit(a.lo) & ~np.signbit(a.hi)
            lo = np.where(across, np.float32(0), np.minimum(first, last))
            return Span(lo, np.maximum(first, last), bad)
        if name == "Equal":
            meet = (a.lo <= b.hi) & (b.lo <= a.hi)
            return Span(np.where(points, first, meet & (a.lo == a.hi) & (b.lo == b.hi)), meet, bad)
        return Span(first, first, bad if name == "IsNaN" else bad | ~points)
