"""Rounding: to whole numbers, and of elementary functions to the nearest floating-point number.

The rounding modes of the quantization operators are float32 operations in a fixed order.

NumPy and the C library compute ``exp`` and its like by code that depends on the processor, so their
last bits do too. Here a float64 result with a bound on its error is rounded to both sides. Where
both sides round to one number, that is the result::

    exp(1)  = 2.7182818284590451 +- 2**-46 -> 2.7182817 for both ends

The few elements that lie too close to a rounding boundary are computed with more digits. Results
of elementary functions are of the type of the argument, which is float16 or float32.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import numpy.typing as npt

from qgraph.errors import Choice
from qgraph.numerics import Array, Float64

Floating = TypeVar("Floating", bound=np.floating)
Exact = Callable[[Decimal], Decimal]

TYPES = (np.dtype(np.float16), np.dtype(np.float32))
"""Types of arguments and results."""

_ERROR = 2.0**-46
"""Relative error of float64 functions: far more than any implementation has."""

_DIGITS = 60
_CONTEXT = decimal.Context(
    prec=_DIGITS,
    Emin=decimal.MIN_EMIN,
    Emax=decimal.MAX_EMAX,
    traps=[decimal.InvalidOperation, decimal.DivisionByZero],
)
_GUARD_BITS = 300
"""Bits that argument reduction of sine and cosine keeps, more than the largest float32 needs."""


class Rounding(Choice):
    """How a real number becomes an integer; the names are those of QONNX."""

    ROUND = "ROUND"
    CEIL = "CEIL"
    FLOOR = "FLOOR"
    UP = "UP"
    DOWN = "DOWN"
    HALF_UP = "HALF_UP"
    HALF_DOWN = "HALF_DOWN"

    @classmethod
    def parse(cls, text: str) -> Rounding:
        """Return the mode that ``text`` names, in any case; files contain two synonyms.

        Raises: ValueError naming the known modes.
        """
        name = text.upper()
        name = _SYNONYMS.get(name, name)
        if name not in cls.__members__:
            known = ", ".join([*cls.__members__, *_SYNONYMS])
            msg = f"rounding mode {text!r} is not known; expected one of {known}, in any case"
            raise ValueError(msg)
        return cls[name]


_SYNONYMS = {"HALF_EVEN": "ROUND", "ROUND_TO_ZERO": "DOWN"}


def round_to_integer(
    y: npt.NDArray[Floating], mode: Rounding | str, out: npt.NDArray[Floating] | None = None
) -> npt.NDArray[Floating]:
    """Whole numbers near ``y``, in the dtype of ``y``.

    ROUND      nearest, ties to even
    CEIL       towards +inf
    FLOOR      towards -inf
    UP         sign(y) * ceil(|y|)
    DOWN       truncate
    HALF_UP    sign(y) * floor(|y| + 0.5)
    HALF_DOWN  sign(y) * ceil(|y| - 0.5)

    Every written operation rounds once, so the last two inherit the rounding of the addition:
    HALF_UP(0.49999997) is 1, and odd values between 2**23 and 2**24 move by one. NaN and infinities
    pass. UP and HALF_UP turn -0 into +0.

    Args:
        y: ``[*shape]`` values in steps of the grid.
        mode: the rounding mode.
        out: where to put the result; may be ``y`` itself.

    Returns: ``[*shape]``, ``out`` if given.
    Source: QONNX Quant page and its executor.
    """
    if not isinstance(mode, Rounding):
        mode = Rounding.parse(mode)
    if out is None:
        out = np.empty_like(y)
    match mode:
        case Rounding.ROUND:
            np.rint(y, out=out)
        case Rounding.CEIL:
            np.ceil(y, out=out)
        case Rounding.FLOOR:
            np.floor(y, out=out)
        case Rounding.DOWN:
            np.trunc(y, out=out)
        case Rounding.UP | Rounding.HALF_UP | Rounding.HALF_DOWN:
            _round_magnitude(y, mode, out)
    return out


def _round_magnitude(y: npt.NDArray[Floating], mode: Rounding, out: npt.NDArray[Floating]) -> None:
    sign = np.sign(y)  # before out, which may be y, is written
    np.abs(y, out=out)
    match mode:
        case Rounding.HALF_UP:
            out += 0.5
            np.floor(out, out=out)
        case Rounding.HALF_DOWN:
            out -= 0.5
            np.ceil(out, out=out)
        case _:
            np.ceil(out, out=out)
    out *= sign


def exp(x: Array, dtype: npt.DTypeLike | None = None) -> Array:
    """Return ``e ** x``, for float64 ``x`` too if ``dtype`` names the type of the result."""
    return _rounded(x, np.exp(np.asarray(x, np.float64)), _CONTEXT.exp, dtype)


def log(x: Array) -> Array:
    """Return the natural logarithm."""
    return _rounded(x, np.log(np.asarray(x, np.float64)), _CONTEXT.ln)


def sigmoid(x: Array) -> Array:
    """Return ``1 / (1 + exp(-x))``."""
    wide = np.asarray(x, np.float64)
    small = np.exp(-np.abs(wide))
    return _rounded(x, np.where(wide >= 0, 1.0, small) / (1.0 + small), _exact_sigmoid)


def tanh(x: Array) -> Array:
    """Return the hyperbolic tangent, which keeps the sign of zero."""
    return _rounded(x, np.tanh(np.asarray(x, np.float64)), _exact_tanh)


def sin(x: Array) -> Array:
    """Return the sine of radians, which keeps the sign of zero."""
    return _rounded(x, np.sin(np.asarray(x, np.float64)), lambda v: _exact_sine(v, 0))


def cos(x: Array) -> Array:
    """Return the cosine of radians."""
    return _rounded(x, np.cos(np.asarray(x, np.float64)), lambda v: _exact_sine(v, 1))


def power(x: Array, y: Array) -> Array:
    """Return ``x ** y`` as IEEE 754 defines ``pow``, in the type of ``x``."""
    base, exponent = np.broadcast_arrays(np.asarray(x), np.asarray(y))
    close = np.power(base.astype(np.float64), exponent.astype(np.float64))
    pairs = base.reshape(-1), exponent.reshape(-1)

    def exact(index: int) -> Fraction:
        return _exact_power(Fraction(float(pairs[0][index])), Fraction(float(pairs[1][index])))

    return _round_once(close, exact, base.dtype)


FUNCTIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "Cos": (cos, np.cos),
    "Exp": (exp, np.exp),
    "Log": (log, np.log),
    "Sigmoid": (sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "Sin": (sin, np.sin),
    "Tanh": (tanh, np.tanh),
}
"""For each operator the function for narrow types, and NumPy's for float64."""


def is_rounded_once(dtype: np.dtype[Any]) -> bool:
    """Return whether results are the same on every processor; bfloat16 goes through float32."""
    return dtype in TYPES or dtype == ml_dtypes.bfloat16


def _rounded(x: Array, close: Array, function: Exact, dtype: npt.DTypeLike | None = None) -> Array:
    flat = np.asarray(x).reshape(-1)

    def exact(index: int) -> Fraction:
        return Fraction(function(Decimal(float(flat[index]))))

    return _round_once(close, exact, np.dtype(np.asarray(x).dtype if dtype is None else dtype))


def _round_once(close: Float64, exact: Callable[[int], Fraction], dtype: np.dtype[Any]) -> Array:
    """Return the numbers that ``exact`` gives by flat index, rounded once to float16 or float32.

    ``close`` are float64 numbers, off by less than a relative 2**-46; zeros, infinities and NaN
    exact.
    """
    margin = np.abs(close) * _ERROR
    with np.errstate(all="ignore"):
        result = np.asarray(close.astype(dtype))
        low, high = (close - margin).astype(dtype), (close + margin).astype(dtype)
    open_ = np.asarray((low != high) & np.isfinite(close))
    flat = result.reshape(-1)
    for index in np.flatnonzero(open_):
        flat[index] = _nearest(exact(int(index)), flat[index], dtype)
    return flat.reshape(close.shape)


def _nearest(exact: Fraction, near: Any, dtype: np.dtype[Any]) -> Any:
    """Return the number of ``dtype`` nearest to ``exact``; ``near`` is it or a neighbour of it."""
    limit = dtype.type(np.inf)
    ends = [np.nextafter(near, -limit), near, np.nextafter(near, limit)]
    beyond = Fraction(2) ** int(np.finfo(dtype).maxexp)

    def distance(number: Any) -> tuple[Fraction, int]:
        is_finite = bool(np.isfinite(number))
        value = Fraction(float(number)) if is_finite else beyond * (1 if number > 0 else -1)
        # of two that are equally near, the one with an even last bit
        odd = 0 if not is_finite else int(number.view(f"u{dtype.itemsize}")) & 1
        return abs(value - exact), odd

    return min(ends, key=distance)


def _exact_sigmoid(x: Decimal) -> Decimal:
    return _CONTEXT.divide(Decimal(1), _CONTEXT.add(Decimal(1), _CONTEXT.exp(-x)))


def _exact_tanh(x: Decimal) -> Decimal:
    # Near zero e**2x - 1 cancels: one digit for each decimal place of x.
    with decimal.localcontext(_CONTEXT) as context:
        context.prec = _DIGITS + max(0, -x.adjusted())
        grown = (2 * x).exp()
        return (grown - 1) / (grown + 1)


def _exact_power(base: Fraction, exponent: Fraction) -> Fraction:
    """Return the power of finite numbers that is neither zero nor infinite."""
    if exponent.denominator == 1 and abs(exponent) <= 1 << 12:
        return base ** int(exponent)
    sign = -1 if base < 0 and int(exponent) % 2 else 1
    with decimal.localcontext(_CONTEXT):
        size = Decimal(abs(base).numerator) / Decimal(abs(base).denominator)
        times = Decimal(exponent.numerator) / Decimal(exponent.denominator)
        return sign * Fraction(size**times)


def _exact_sine(x: Decimal, quarters: int) -> Decimal:
    """Return the sine of ``x + quarters * pi / 2``, by its series near zero."""
    scale = 1 << _GUARD_BITS
    half_pi = _scaled_pi() // 2
    whole = int(Fraction(x) * scale)
    turns, rest = divmod(whole + half_pi // 2, half_pi)
    rest -= half_pi // 2
    turns += quarters
    term, first = (rest, 1) if turns % 2 == 0 else (scale, 0)
    total = 0
    while term:
        total += term
        term = -(term * rest // scale * rest // scale) // ((first + 1) * (first + 2))
        first += 2
    value = Fraction(total if turns % 4 < 2 else -total, scale)
    return _CONTEXT.divide(Decimal(value.numerator), Decimal(value.denominator))


def _scaled_pi() -> int:
    """Return pi * 2**_GUARD_BITS, by Machin's formula, and enough bits that multiples are right."""
    spare = 1 << 32

    def arctangent(inverse: int) -> int:
        term = total = (spare << _GUARD_BITS) // inverse
        sign, odd = -1, 3
        while term:
            term //= inverse * inverse
            total += sign * (term // odd)
            sign, odd = -sign, odd + 2
        return total

    return 4 * (4 * arctangent(5) - arctangent(239)) // spare
