"""The float operations in which the meaning of every operator is written.

A definition is a Python function over an object ``op`` whose methods are ONNX operators,
``op.Div(x, scale)``: onnxscript's builder turns it into nodes or a function body, the proof engine
into an expression that it evaluates on intervals, and ``NUMPY`` into numbers. This table is what a
proof trusts: one IEEE operation per call, in the dtype of its operands, rounded to nearest even.

Codes of a narrow type (INT8, FLOAT8E4M3FN, ...) are represented by their float32 values, which is
exact for every type of up to 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Array, minifloat
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.numerics.rounding import Rounding, round_to_integer

_ZERO = np.float32(0)


def cast(
    x: Array,
    *,
    to: int | str,
    saturate: int = 1,
    round_mode: Literal["up", "down", "nearest"] = "up",
    out: Array | None = None,
) -> Array:
    """Return the float32 values of ``Cast(x, to)``; ``to`` is an ONNX type, its number or name.

    A cast to an integer type truncates; that its operand lies in the range of the type is a
    condition that the proof engine checks and this function does not.

    Raises:
        ValueError: a float type other than FLOAT, whose values are not rounded here.
    """
    values = np.asarray(x)
    name = to if isinstance(to, str) else ir.DataType(to).name
    if name == "BOOL":
        return np.asarray(np.not_equal(values, 0, out=out))
    values = values.astype(np.float32, copy=False)
    if name == "FLOAT":
        return values
    if name == "FLOAT8E8M0":
        return minifloat.cast_e8m0(values, round_mode, bool(saturate))
    if name in FORMATS and not isinstance(FORMATS[name], IntFormat):
        return minifloat.cast(values, name, bool(saturate), out)
    if name in FORMATS or name in ("UINT32", "INT64", "UINT64"):
        return np.asarray(np.add(np.trunc(values, out=out), _ZERO, out=out))
    raise ValueError(f"a cast to {name} has no meaning on float32 values here")


def gather(table: Array, index: Array, out: Array | None = None) -> Array:
    """Return ``table[index]`` for a one-dimensional table; NaN indices select NaN."""
    whole = np.nan_to_num(index, nan=0.0, posinf=0.0, neginf=0.0).astype(np.int64)
    inside = (whole >= 0) & (whole < len(table)) & np.isfinite(index)
    return np.where(inside, np.take(table, np.where(inside, whole, 0)), np.float32(np.nan))


def _sign(x: Array, out: Array | None = None) -> Array:
    # ONNX gives no sign to zero; NumPy keeps -0 out of it as well.
    return np.asarray(np.add(np.sign(x, out=out), _ZERO, out=out))


def _where(condition: Array, yes: Array, no: Array, out: Array | None = None) -> Array:
    if out is None:
        return np.where(condition, yes, no)
    np.copyto(out, no)
    np.copyto(out, yes, where=condition)
    return out


def _one_by_one(pick: np.ufunc) -> Callable[..., Array]:
    """Return a function of any number of operands; the third one of a ufunc is its output."""

    def compute(first: Array, *others: Array, out: Array | None = None) -> Array:
        for other in others:
            first = pick(first, other, out=out)
        return first

    return compute


def power_of_two(exponent: Array) -> Array:
    """Return ``2 ** exponent`` of whole numbers, exactly; NumPy's exp2 is not at 127."""
    # beyond these limits, the power is 0 or infinite
    return np.ldexp(np.float32(1), np.clip(exponent, -999, 999).astype(np.int32))


def _power(x: Array, y: Array, out: Array | None = None) -> Array:
    kinds = {np.asarray(each).dtype for each in (x, y)}
    if kinds == {np.dtype(np.float32)} and np.all(x == np.float32(2)) and np.all(np.trunc(y) == y):
        return np.array(
            np.broadcast_to(power_of_two(y), np.broadcast_shapes(np.shape(x), np.shape(y)))
        )
    from qgraph.numerics.correct_rounding import power

    return power(x, y)


NUMPY: dict[str, Callable[..., Array]] = {
    "Identity": lambda x, out=None: x,
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Neg": np.negative,
    "Abs": np.abs,
    "Sign": _sign,
    "Sqrt": np.sqrt,
    "Reciprocal": lambda x, out=None: np.divide(np.float32(1), x, out=out),
    "Round": lambda x, out=None: round_to_integer(x, Rounding.ROUND, out),
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Min": _one_by_one(np.minimum),
    "Max": _one_by_one(np.maximum),
    "Relu": lambda x, out=None: np.maximum(x, _ZERO, out=out),
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Equal": np.equal,
    "Not": np.logical_not,
    "And": np.logical_and,
    "Or": np.logical_or,
    "IsNaN": np.isnan,
    "Where": _where,
    "Pow": _power,
    "Cast": cast,
    "Gather": gather,
}
"""Name of each primitive and what it computes on float32 arrays.

Each takes ``out`` too, an array of the type and shape of the result that is none of the operands,
and may put the result there.
"""
