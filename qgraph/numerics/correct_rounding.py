"""Elementary functions, rounded once to the nearest floating-point number.

NumPy and the C library compute ``exp`` and its like by code that depends on the processor, so their
last bits do too. Here a float64 result with a bound on its error is rounded to both sides. Where
both sides round to one number, that is the result::

    exp(1)  = 2.7182818284590451 +- 2**-46 -> 2.7182817 for both ends

The few elements that lie too close to a rounding boundary are computed with more digits. Results
are of the type of the argument, which is float16 or float32.
"""

from __future__ import annotations

import decimal
import fractions
import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from qgraph.numerics import Array, Float64

Exact = Callable[["decimal.Decimal"], "decimal.Decimal"]

TYPES = (np.dtype(np.float16), np.dtype(np.float32))
"""Types of arguments and results."""

_ERROR = 2.0**-46
"""Relative error of float64 functions: far more than any implementation has."""

_DIGITS = 60
_GUARD_BITS = 300
"""Bits that argument reduction of sine and cosine keeps, more than the largest float32 needs."""


def exp(x: Array, dtype: npt.DTypeLike | None = None) -> Array:
    """Return ``e ** x``, for float64 ``x`` too if ``dtype`` names the type of the result."""
    return _rounded(x, np.exp(np.asarray(x, np.float64)), lambda v: _context().exp(v), dtype)


def log(x: Array) -> Array:
    """Return the natural logarithm."""
    return _rounded(x, np.log(np.asarray(x, np.float64)), lambda v: _context().ln(v))


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

    def exact(index: int) -> fractions.Fraction:
        return _exact_power(
            fractions.Fraction(float(pairs[0][index])), fractions.Fraction(float(pairs[1][index]))
        )

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


@functools.cache
def _context() -> decimal.Context:
    return decimal.Context(
        prec=_DIGITS,
        Emin=decimal.MIN_EMIN,
        Emax=decimal.MAX_EMAX,
        traps=[decimal.InvalidOperation, decimal.DivisionByZero],
    )


def _rounded(x: Array, close: Array, function: Exact, dtype: npt.DTypeLike | None = None) -> Array:
    flat = np.asarray(x).reshape(-1)

    def exact(index: int) -> fractions.Fraction:
        return fractions.Fraction(function(decimal.Decimal(float(flat[index]))))

    return _round_once(close, exact, np.dtype(np.asarray(x).dtype if dtype is None else dtype))


def _round_once(
    close: Float64, exact: Callable[[int], fractions.Fraction], dtype: np.dtype[Any]
) -> Array:
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


def _nearest(exact: fractions.Fraction, near: Any, dtype: np.dtype[Any]) -> Any:
    """Return the number of ``dtype`` nearest to ``exact``; ``near`` is it or a neighbour of it."""
    limit = dtype.type(np.inf)
    ends = [np.nextafter(near, -limit), near, np.nextafter(near, limit)]
    beyond = fractions.Fraction(2) ** int(np.finfo(dtype).maxexp)

    def distance(number: Any) -> tuple[fractions.Fraction, int]:
        is_finite = bool(np.isfinite(number))
        value = (
            fractions.Fraction(float(number)) if is_finite else beyond * (1 if number > 0 else -1)
        )
        # of two that are equally near, the one with an even last bit
        odd = 0 if not is_finite else int(number.view(f"u{dtype.itemsize}")) & 1
        return abs(value - exact), odd

    return min(ends, key=distance)


def _exact_sigmoid(x: decimal.Decimal) -> decimal.Decimal:
    context = _context()
    return context.divide(1, context.add(1, context.exp(-x)))


def _exact_tanh(x: decimal.Decimal) -> decimal.Decimal:
    # Near zero e**2x - 1 cancels: one digit for each decimal place of x.
    with decimal.localcontext(_context()) as context:
        context.prec = _DIGITS + max(0, -x.adjusted())
        grown = (2 * x).exp()
        return (grown - 1) / (grown + 1)


def _exact_power(base: fractions.Fraction, exponent: fractions.Fraction) -> fractions.Fraction:
    """Return the power of finite numbers that is neither zero nor infinite."""
    if exponent.denominator == 1 and abs(exponent) <= 1 << 12:
        return base ** int(exponent)
    sign = -1 if base < 0 and int(exponent) % 2 else 1
    with decimal.localcontext(_context()):
        size = decimal.Decimal(abs(base).numerator) / abs(base).denominator
        times = decimal.Decimal(exponent.numerator) / exponent.denominator
        return sign * fractions.Fraction(size**times)


def _exact_sine(x: decimal.Decimal, quarters: int) -> decimal.Decimal:
    """Return the sine of ``x + quarters * pi / 2``, by its series near zero."""
    scale = 1 << _GUARD_BITS
    half_pi = _scaled_pi() // 2
    whole = int(fractions.Fraction(x) * scale)
    turns, rest = divmod(whole + half_pi // 2, half_pi)
    rest -= half_pi // 2
    turns += quarters
    term, first = (rest, 1) if turns % 2 == 0 else (scale, 0)
    total = 0
    while term:
        total += term
        term = -(term * rest // scale * rest // scale) // ((first + 1) * (first + 2))
        first += 2
    value = fractions.Fraction(total if turns % 4 < 2 else -total, scale)
    return _context().divide(value.numerator, value.denominator)


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
