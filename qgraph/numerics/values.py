"""Compare two arrays value by value; a scale without a value, for forms for any scale."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from qgraph.numerics import Array, Float32, Float64, Mask
from qgraph.records import dataclass

_PIECE = 1 << 20
"""Elements that are compared at a time."""

LAST_BITS = 2.0**-20
"""Share of the largest value; far below a step of any quantizer of up to 16 bits."""

_EXACT_FACTOR = 2.0**26
"""Products of two whole numbers below it are exact in float64."""


@dataclass(frozen=True)
class Comparison:
    """Result of comparing two arrays of one shape; -0 equals +0 and NaN equals NaN.

    Attributes:
        differing: number of elements that differ in value.
        zero_sign: number of zeros of different signs.
        index: flat index of the first element that differs in value; if none does, of the first
            zero of another sign; None if there is none either.
        only_last_bits: whether all differences are below a step of any quantizer of 16 bits.
    """

    differing: int
    zero_sign: int
    index: int | None
    only_last_bits: bool = True


def compare_values(reference: Array, candidate: Array) -> Comparison:
    """Return how two arrays of one shape and type compare; big ones are compared in pieces."""
    ours, theirs = reference.reshape(-1), candidate.reshape(-1)
    starts = range(0, ours.size, _PIECE)
    return compare_pieces(lambda: ((ours[s : s + _PIECE], theirs[s : s + _PIECE]) for s in starts))


def compare_pieces(pieces: Callable[[], Iterable[tuple[Array, Array]]]) -> Comparison:
    """Return how two arrays of one shape and type compare that are not in memory as a whole.

    ``pieces`` gives, each time anew, pairs of flat pieces of one size and type, in C order.
    """
    differing = zero_sign = start = 0
    wrong_at = sign_at = None
    worst = 0.0
    for x, y in pieces():
        offset, start = start, start + x.size
        if _same_bits(x, y):
            continue
        wrong, signs = _differences(x, y)
        if wrong_at is None and wrong.any():
            wrong_at = offset + int(np.argmax(wrong))
        if sign_at is None and signs.any():
            sign_at = offset + int(np.argmax(signs))
        differing += int(np.count_nonzero(wrong))
        zero_sign += int(np.count_nonzero(signs))
        with np.errstate(all="ignore"):
            gaps = np.abs(_wide(x[wrong]) - _wide(y[wrong]))
        # A NaN on one side counts as an infinite difference.
        worst = max(worst, float(np.max(np.where(np.isnan(gaps), np.inf, gaps), initial=0.0)))
    if differing:
        largest = max(_largest(x) for x, _ in pieces())
        return Comparison(differing, zero_sign, wrong_at, worst <= largest * LAST_BITS)
    return Comparison(0, zero_sign, sign_at)


def _same_bits(x: Array, y: Array) -> bool:
    if x.dtype != y.dtype or x.itemsize not in (1, 2, 4, 8):
        return x.tobytes() == y.tobytes()
    bits = f"u{x.itemsize}"
    return bool(np.array_equal(x.view(bits), y.view(bits)))


def _differences(x: Array, y: Array) -> tuple[Mask, Mask]:
    """Return where values differ, and where zeros differ in sign only."""
    if x.dtype.kind == "c":
        # A complex zero has two signs, so only equal bits count as equal.
        bits = x.view(f"V{x.itemsize}") != y.view(f"V{y.itemsize}")
        return np.asarray(bits), np.zeros(x.shape, np.bool_)
    with np.errstate(all="ignore"):
        wrong = np.asarray(x != y)
        if x.dtype.kind in "iub":
            return wrong, np.zeros(x.shape, np.bool_)
        if wrong.any():
            wrong &= ~(is_nan(x) & is_nan(y))
        signs = np.asarray(x == 0)
        signs &= np.signbit(x) != np.signbit(y)
        return wrong, signs & ~wrong


def _wide(x: Array) -> Array:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _largest(x: Array) -> float:
    """Return the largest finite magnitude."""
    with np.errstate(all="ignore"):
        size = np.abs(_wide(x))
    return float(np.max(np.where(np.isfinite(size), size, 0.0), initial=0.0))


def as_float32(array: Array) -> Float32:
    """Return an array as float32. Codes that are all equal, such as zero points, take no room."""
    numbers = array.astype(np.float32, copy=False)
    bits = numbers.view(np.uint32)
    if numbers is array or numbers.size < 2 or (bits != bits.flat[0]).any():
        return numbers
    return np.broadcast_to(numbers.reshape(-1)[:1].copy().reshape(()), numbers.shape)


def narrowed(array: Array, axes: Iterable[int] | None = None) -> Array:
    """Return an array with size 1 along axes, all by default, along which nothing differs."""
    for axis in range(array.ndim) if axes is None else axes:
        first = array[(slice(None),) * axis + (slice(1),)]
        array = first if (array == first).all() else array
    return array


_SHORT = 64
"""Number of bytes that are compared themselves: a hash of them takes longer."""


def fingerprint(array: Array) -> Hashable:
    """Return a key that is equal for two arrays only if type, shape and bits are equal."""
    if array.dtype.kind in "OSU":
        return array.dtype, array.shape, tuple(array.reshape(-1).tolist())
    if array.nbytes <= _SHORT:
        return array.dtype, array.shape, array.tobytes()
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return array.dtype, array.shape, hashlib.sha256(content.data).digest()


def is_nan(array: Array) -> Mask:
    """Return where an array of any number type holds NaN."""
    if array.dtype.kind in "iub":
        return np.zeros(array.shape, np.bool_)
    return np.asarray(array != array)


def ratios_of_rows(one: Float64, other: Float64) -> Float64 | None:
    """Return the exact ratios of the rows of whole numbers; None if one row is not proportional."""
    if one.shape != other.shape:
        return None
    a, b = (array.reshape(len(array), -1) for array in (one, other))
    if not all((np.abs(x) < _EXACT_FACTOR).all() and (x == np.rint(x)).all() for x in (a, b)):
        return None
    rows, largest = np.arange(len(a)), np.argmax(np.maximum(np.abs(a), np.abs(b)), axis=1)
    first, second = a[rows, largest][:, None], b[rows, largest][:, None]
    if not ((a * second == b * first).all() and np.array_equal(first == 0, second == 0)):
        return None
    with np.errstate(all="ignore"):
        return np.where(first == 0, 1.0, second / first)


class ScaleReadError(Exception):
    """The value of an open scale was needed."""


def _read(*_: Any, **__: Any) -> NoReturn:
    raise ScaleReadError


class OpenScale:
    """A float32 number whose value is not known: a scale other than 1, or a product with one.

    It takes the place of the array of a scale. Its type and shape are known, and that a scale is
    not 1. Products and extremes with float32 numbers are open, too: ``compute`` gives them from the
    scale. Whatever else depends on the value raises :class:`ScaleReadError`: other arithmetic,
    comparisons, and conversion to an array or a number.
    """

    dtype: npt.DTypeLike = np.dtype(np.float32)
    shape: tuple[int, ...] = ()
    ndim, size = 0, 1

    def __init__(self, compute: Callable[[Float32], Array] | None = None) -> None:
        self._compute = compute

    @property
    def is_scale(self) -> bool:
        """Whether it is the scale itself."""
        return self._compute is None

    def at(self, scale: Float32) -> Array:
        """Return the number for a scale."""
        return scale if self._compute is None else self._compute(scale)

    def reshape(self, *shape: Any) -> OpenScale:
        """Return itself, as the only shape is that of a scalar."""
        return self if shape == ((),) else _read()

    def astype(self, dtype: npt.DTypeLike, **_: Any) -> OpenScale:
        """Return itself, as the only type is float32."""
        return self if np.dtype(dtype) == self.dtype else _read()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **others: Any) -> Any:
        if method != "__call__" or others or ufunc not in _LEFT_OPEN:
            raise ScaleReadError
        for operand in inputs:
            is_number = isinstance(operand, np.ndarray | np.generic) and operand.shape == ()
            if not isinstance(operand, OpenScale) and not (is_number and operand.dtype == _FLOAT):
                raise ScaleReadError

        def compute(scale: Float32) -> Array:
            known = (each.at(scale) if isinstance(each, OpenScale) else each for each in inputs)
            with np.errstate(all="ignore"):
                return np.asarray(ufunc(*known))

        return OpenScale(compute)

    def __ne__(self, other: object) -> Any:
        if self.is_scale and isinstance(other, int) and other == 1:
            return np.True_
        raise ScaleReadError

    def __mul__(self, other: object) -> Any:
        return np.multiply(self, other)  # type: ignore[call-overload]

    def __rmul__(self, other: object) -> Any:
        return np.multiply(other, self)  # type: ignore[call-overload]

    __hash__ = object.__hash__
    __array__ = __array_function__ = _read
    __bool__ = __float__ = __int__ = __index__ = __len__ = __iter__ = __getitem__ = _read
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = _read
    __add__ = __radd__ = __sub__ = __rsub__ = _read
    __truediv__ = __rtruediv__ = __neg__ = __abs__ = __pow__ = _read

    def __getattr__(self, name: str) -> NoReturn:
        raise ScaleReadError


_FLOAT = np.dtype(np.float32)
_LEFT_OPEN = frozenset({np.multiply, np.minimum, np.maximum})
"""Operations whose result is open, and is computed when the scale is known."""
