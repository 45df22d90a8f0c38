"""Measures of the difference of two arrays.

Large arrays are processed in pieces, to limit memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from types import EllipsisType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.numerics import Array, Float64, Mask
from qgraph.records import dataclass, replace
from qgraph.text import fields_json

AT_ONCE = 1 << 17
"""Number of elements of a piece; comparisons need several float64 arrays of this size."""

Index = tuple[slice | EllipsisType, ...]


def pieces(shape: Sequence[int], at_once: int = AT_ONCE) -> Iterator[Index]:
    """Yield indices that cut an array into pieces of up to ``at_once`` elements, in order.

    An empty array has no pieces, one without axes a single one.
    """
    size = math.prod(shape)
    if size <= at_once:
        if size:
            yield (...,)
        return
    # indices of the axes before the first cut axis are visited one by one
    axis = next(n for n in range(len(shape)) if math.prod(shape[n + 1 :]) <= at_once)
    step = max(1, at_once // math.prod(shape[axis + 1 :]))
    for outer in itertools.product(*map(range, shape[:axis])):
        start = tuple(slice(at, at + 1) for at in outer)
        for first in range(0, shape[axis], step):
            yield (*start, slice(first, first + step))


QUANTILES = (0.5, 0.9, 0.99, 0.999)
"""Quantiles of the absolute difference to report."""

_WORST_SQNR = -999.0
"""Replaces minus infinity in decibels, which JSON cannot express."""

_DROPPED_BITS = 13
"""Number of low bits of float32 that are ignored when differences are counted, for 2**18 bins."""

_BITS: dict[np.dtype[Any], type[np.signedinteger[Any]]] = {
    np.dtype(np.float16): np.int16,
    np.dtype(ml_dtypes.bfloat16): np.int16,
    np.dtype(np.float32): np.int32,
    np.dtype(np.float64): np.int64,
}


@dataclass(frozen=True)
class OutputComparison:
    """Difference of one output of two models, by value: -0 equals +0, NaN equals NaN.

    Attributes:
        name: name of the output in the reference.
        elements: number of compared values, over all batches.
        mismatches: number of them that differ.
        max_abs: largest absolute difference; infinite if only one side is NaN or infinite.
        max_ulp: largest difference counted in floats of the output's type, or in integers.
        max_steps: largest difference in steps of the quantizer that produces the output; None if it
            is not known and the outputs differ.
        sqnr_db: ``10 log10(sum(reference ** 2) / sum((reference - candidate) ** 2))``, at least
            -999; None if all values are equal.
        cosine: cosine of the angle between both sides, over finite values; 1 if all are equal.
        mean_abs: mean absolute difference.
        quantiles: the absolute differences below which the shares of :data:`QUANTILES` of all
            values lie, rounded down to 11 significant bits.
        top1: share of the rows whose largest value along the last axis has the same index; None if
            the output has no rows of scores.
        note: why the outputs could not be compared value by value.
        has_distance: whether the difference of values is a real number; not for strings and complex
            numbers.
    """

    name: str
    elements: int
    mismatches: int
    max_abs: float = 0.0
    max_ulp: int = 0
    max_steps: float | None = 0.0
    sqnr_db: float | None = None
    cosine: float = 1.0
    mean_abs: float = 0.0
    quantiles: tuple[float, ...] = (0.0,) * len(QUANTILES)
    top1: float | None = None
    note: str | None = None
    has_distance: bool = True

    @property
    def equal(self) -> bool:
        """Whether every value is the same."""
        return self.note is None and self.mismatches == 0

    @property
    def relative(self) -> float | None:
        """Norm of the difference divided by the norm of the reference; None if infinite."""
        if self.sqnr_db is None:
            return 0.0 if self.equal else None
        return None if self.sqnr_db <= _WORST_SQNR else float(10 ** (-self.sqnr_db / 20))

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the JSON report; numbers that are not finite become null."""
        named = (f"p{100 * share:g}" for share in QUANTILES)
        quantiles = dict(zip(named, map(finite, self.quantiles), strict=True))
        names = ("name", "elements", "mismatches", "max_abs", "max_ulp", "max_steps", "sqnr_db")
        fields = finite_fields(self, *names, "cosine", "mean_abs")
        return fields | {"quantiles_abs": quantiles, "top1": self.top1}


class Comparing:
    """Compares one output batch by batch, without keeping batches."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._note: str | None = None
        self._elements = self._mismatches = 0
        self._max_abs, self._sum_abs, self._max_ulp = 0.0, 0.0, 0
        self._steps: float | None = 0.0
        self._is_numeric = True
        # sums of squares of the reference and of the difference; then products for the cosine
        self._signal = self._noise = self._dot = self._ours = self._theirs = 0.0
        self._bins: npt.NDArray[np.int64] | None = None
        self._rows = self._agreeing = 0

    def add(self, x: Any, y: Any, step: npt.NDArray[np.float32] | None = None) -> bool:
        """Compare one batch, and return whether it is equal; a ``step`` broadcasts to it."""
        self._elements += int(np.size(x))
        note = _incomparable(x, y)
        if note is not None:
            self._note = self._note or note
            return False
        numeric = x.dtype.kind in "biufV"
        self._is_numeric &= numeric
        if numeric:
            self._count_rows(x, y)
        unit = None if step is None else np.broadcast_to(step, x.shape)
        equal = True
        for piece in pieces(x.shape):
            equal &= self._add_piece(x[piece], y[piece], None if unit is None else unit[piece])
        return equal

    def _add_piece(self, x: Array, y: Array, step: npt.NDArray[np.float32] | None) -> bool:
        equal = same(x, y)
        wrong = equal.size - int(np.count_nonzero(equal))
        self._mismatches += wrong
        if not self._is_numeric:
            return not wrong
        a = x.astype(np.float64)
        b = y.astype(np.float64) if wrong else a
        with np.errstate(all="ignore"):
            self._correlate(a, b)
            if wrong:
                self._measure(x, y, np.abs(np.subtract(a, b, out=b), out=b), equal, step)
        return not wrong

    def result(self) -> OutputComparison:
        """Return the difference over all batches."""
        name, elements, mismatches = self._name, self._elements, self._mismatches
        if self._note is not None:
            far, quantiles = math.inf, (math.inf,) * len(QUANTILES)
            worst = far, 0, None, _WORST_SQNR, 0.0, far, quantiles
            return OutputComparison(name, elements, elements, *worst, note=self._note)
        result = OutputComparison(
            name, elements, mismatches, top1=self._agreeing / self._rows if self._rows else None
        )
        if mismatches == 0 or not self._is_numeric:
            known = None if mismatches else 0.0
            return replace(result, max_steps=known, has_distance=self._is_numeric)
        return replace(
            result,
            max_abs=self._max_abs,
            max_ulp=self._max_ulp,
            max_steps=self._steps,
            sqnr_db=self._sqnr(),
            cosine=self._cosine(),
            mean_abs=self._sum_abs / elements,
            quantiles=self._quantiles(),
        )

    @property
    def power(self) -> tuple[float, float]:
        """Sums of squares of the reference, and of the difference; infinite if not finite."""
        is_apart = self._note is not None or not (self._is_numeric or self._mismatches == 0)
        return self._signal, math.inf if is_apart else self._noise

    def _count_rows(self, x: Array, y: Array) -> None:
        if x.ndim in (2, 3) and x.shape[-1] > 1 and x.size:
            is_same = np.argmax(x, axis=-1) == np.argmax(y, axis=-1)
            self._rows += is_same.size
            self._agreeing += int(np.count_nonzero(is_same))

    def _correlate(self, a: Float64, b: Float64) -> None:
        signal = _square_sum(a)
        self._signal += signal
        if a is b:
            self._dot, self._ours, self._theirs = (
                total + signal for total in (self._dot, self._ours, self._theirs)
            )
            return
        is_finite = np.isfinite(a) & np.isfinite(b)
        x, y = (a, b) if is_finite.all() else (a[is_finite], b[is_finite])
        self._dot += float(np.sum(x * y))
        self._ours += signal if x is a else float(np.sum(x * x))
        self._theirs += float(np.sum(y * y))

    def _measure(
        self,
        x: Array,
        y: Array,
        apart: Float64,
        equal: Mask,
        step: npt.NDArray[np.float32] | None,
    ) -> None:
        # Few masks: copying some elements takes longer than computing with all of them.
        undefined = np.isnan(apart)
        if undefined.any():
            apart[undefined] = np.where(equal[undefined], 0.0, np.inf)
        self._max_abs = max(self._max_abs, float(apart.max()))
        self._sum_abs += float(apart.sum())
        self._max_ulp = max(self._max_ulp, _ulps(x, y))
        self._noise += float(np.sum(np.square(apart)))
        if step is None or self._steps is None:
            self._steps = None
        else:
            unit = step[~equal].astype(np.float64)
            self._steps = max(self._steps, float(np.max(apart[~equal] / np.abs(unit))))
        buckets = apart.astype(np.float32).reshape(-1).view(np.int32) >> _DROPPED_BITS
        if self._bins is None:
            self._bins = np.zeros(1 << (31 - _DROPPED_BITS), np.int64)
        np.add.at(self._bins, buckets, 1)
        self._bins[0] -= np.count_nonzero(equal)

    def _quantiles(self) -> tuple[float, ...]:
        """Return the quantiles of the differences; values without one count as 0."""
        if self._bins is None:
            return (0.0,) * len(QUANTILES)
        counts = np.cumsum(self._bins) + (self._elements - self._mismatches)
        wanted = [math.ceil(share * self._elements) for share in QUANTILES]
        equal = self._elements - self._mismatches
        buckets = np.searchsorted(counts, wanted).astype(np.int32)
        edges = (buckets << _DROPPED_BITS).view(np.float32)
        return tuple(
            0.0 if number <= equal else float(edge)
            for number, edge in zip(wanted, edges, strict=True)
        )

    def _sqnr(self) -> float:
        if not math.isfinite(self._noise) or self._signal == 0 or self._noise == 0:
            return _WORST_SQNR
        with np.errstate(all="ignore"):
            return max(_WORST_SQNR, float(10 * np.log10(self._signal / self._noise)))

    def _cosine(self) -> float:
        length = math.sqrt(self._ours) * math.sqrt(self._theirs)
        return self._dot / length if length > 0 else 0.0


def compare(
    name: str,
    reference: Sequence[Any],
    candidate: Sequence[Any],
    steps: Sequence[npt.NDArray[np.float32]] | None = None,
) -> OutputComparison:
    """Compare one output over several batches; the steps of each broadcast to it, if known."""
    comparing = Comparing(name)
    output_steps = [None] * len(reference) if steps is None else steps
    for x, y, step in zip(reference, candidate, output_steps, strict=True):
        comparing.add(x, y, step)
    return comparing.result()


def same(x: Array, y: Array) -> Mask:
    """Return where both have the same value: -0 equals +0, NaN equals NaN."""
    equal: Mask = np.asarray(x == y)
    if _is_float(x.dtype):
        equal |= np.isnan(x) & np.isnan(y)
    return equal


def within(x: Any, y: Any, *, atol: float, rtol: float) -> bool:
    """Return whether ``|x - y| <= atol + rtol * |x|`` holds everywhere."""
    if _incomparable(x, y) is not None:
        return False
    if x.dtype.kind not in "biufV":
        return bool(np.all(same(x, y)))
    for piece in pieces(x.shape):
        a, b = x[piece].astype(np.float64), y[piece].astype(np.float64)
        with np.errstate(all="ignore"):
            close = np.isfinite(a) & (np.abs(a - b) <= atol + rtol * np.abs(a))
        if not np.all(close | same(x[piece], y[piece])):
            return False
    return True


def finite_fields(value: Any, *names: str) -> dict[str, Any]:
    """Return fields of a report, by default all; numbers that are not finite become null."""
    fields = fields_json(value, *names).items()
    return {name: finite(each) if isinstance(each, float) else each for name, each in fields}


def finite(number: float | None) -> float | None:
    """Return a number for JSON, which cannot represent infinities."""
    return number if number is not None and math.isfinite(number) else None


def _incomparable(x: Any, y: Any) -> str | None:
    if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray)):
        kinds = type(x).__name__, type(y).__name__
        return f"reference {kinds[0]}, candidate {kinds[1]}; only tensors are compared"
    if x.dtype != y.dtype:
        return f"type: reference {x.dtype}, candidate {y.dtype}"
    if x.shape != y.shape:
        return f"shape: reference {list(x.shape)}, candidate {list(y.shape)}"
    return None


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "fV" and ir.DataType.from_numpy(dtype).is_floating_point()


def _square_sum(numbers: Float64) -> float:
    is_finite = np.isfinite(numbers)
    return float(np.sum(np.square(numbers if is_finite.all() else numbers[is_finite])))


def _ulps(x: Array, y: Array) -> int:
    first, second = (
        _ordered(side) if _is_float(side.dtype) else side.astype(np.int64) for side in (x, y)
    )
    high, low = np.maximum(first, second), np.minimum(first, second)
    # Modulo 2**n the difference of two integers of n bits is right when taken as unsigned.
    unsigned = np.dtype(f"u{high.itemsize}")
    return int((high.view(unsigned) - low.view(unsigned)).max())


def _ordered(x: Array) -> Array:
    """Return integers that count floats from 0 upward and downward; NaN comes after infinity."""
    if x.dtype not in _BITS:
        x = x.astype(np.float32)
    bits = x.reshape(-1).view(_BITS[x.dtype])
    sign = bits >> (8 * bits.itemsize - 1)
    # With the other bits flipped, negative numbers are in order; -0 becomes -1, and then 0.
    keys = sign & np.iinfo(bits.dtype).max
    keys ^= bits
    keys -= sign
    top = np.asarray(np.inf).astype(x.dtype).view(bits.dtype)
    np.copyto(keys, top + 1, where=np.isnan(x.reshape(-1)))
    return keys
