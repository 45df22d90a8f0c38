"""Compute the elements of small tensors by the definitions of operators; unknown if undefined.

Integers have the arithmetic of their type: sums and products wrap around, quotients are truncated.
A quotient that is not exact and has a negative operand is unknown, as runtimes round it in two
ways. Floating-point numbers are added, subtracted, multiplied, divided and rounded by NumPy, which
IEEE 754 determines; nothing is computed of them with open sizes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.graph.inference.dimensions import (
    Dim,
    Size,
    add,
    bounds,
    floor_divide,
    multiply,
    subtract,
)
from qgraph.graph.inference.rules import FLOATS, MOST_ITEMS, Items, as_items, range_of, wrapped

_FEW_FLOATS = 64
"""Maximum size of computed tensors of floating-point numbers; sizes need few of them."""

Number = int | Size
"""A known element of an integer tensor."""


def calculated(name: str, dtype: ir.DataType | None, *operands: Items | None) -> Items | None:
    """Return the elements of the result of an operator that computes in a type; None if unknown."""
    arrays = [items for items in operands if items is not None]
    if dtype is None or len(arrays) < len(operands):
        return None
    if name == "Identity":
        return arrays[0]
    if sum(items.size for items in arrays) > 2 * MOST_ITEMS:
        return None
    if name == "Where":
        return _each(_where, arrays)
    if dtype in FLOATS:
        return _of_floats(name, arrays, dtype)
    if dtype is ir.DataType.BOOL:
        truths = _TRUTHS.get(name)
        return None if truths is None else _each(_total(truths), arrays)
    if range_of(dtype) is None:
        return None
    if name in _COMPARISONS:
        return _each(_total(_COMPARISONS[name]), arrays)
    integers = _INTEGERS.get(name)
    if integers is None:
        return None
    compute = _total(integers)
    return _each(lambda *numbers: wrapped(compute(*numbers), dtype), arrays)


def converted(items: Items | None, source: ir.DataType | None, to: ir.DataType) -> Items | None:
    """Return elements after a Cast; None if they are not computed.

    Integers keep their low bits, as two's complement. A number is rounded to floating point once.
    A floating-point number that the integer type does not hold has no defined result.
    """
    if items is None or source is None or items.size > MOST_ITEMS:
        return None
    if source is to:
        return items
    if to in FLOATS and items.size > _FEW_FLOATS:
        return None
    return as_items([_cast(item, source, to) for item in items.flat], items.shape)


def _cast(item: Any, source: ir.DataType, to: ir.DataType) -> Any:
    limits = range_of(to)
    if item is None:
        return None
    if isinstance(item, Size):
        return True if to is ir.DataType.BOOL and bounds(item)[0] > 0 else None
    if to is ir.DataType.BOOL:
        return bool(item != 0)
    if to in FLOATS:
        with np.errstate(all="ignore"):
            number: float = source.numpy().type(item).astype(to.numpy()).item()
        return number
    if limits is None:
        return None
    if source in FLOATS:
        whole = int(item) if np.isfinite(item) else None
        return whole if whole is not None and limits[0] <= whole <= limits[1] else None
    return wrapped(int(item), to)


def _each(compute: Callable[..., Any], operands: Sequence[Items]) -> Items | None:
    try:
        arrays = np.broadcast_arrays(*operands)
    except ValueError:
        return None
    if arrays[0].size > MOST_ITEMS:
        return None
    rows = zip(*(array.flat for array in arrays), strict=True)
    return as_items([compute(*row) for row in rows], arrays[0].shape)


def _total(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose result is unknown if an argument is unknown."""
    return lambda *items: None if any(item is None for item in items) else compute(*items)


def _where(condition: Any, one: Any, other: Any) -> Any:
    if condition is None:
        return one if one is not None and repr(one) == repr(other) else None
    return one if condition else other


def _of_floats(name: str, operands: Sequence[Items], dtype: ir.DataType) -> Items | None:
    compute = _FLOATS.get(name)
    if compute is None or any(items.size > _FEW_FLOATS for items in operands):
        return None
    if any(item is None for items in operands for item in items.flat):
        return None
    arrays = [items.astype(dtype.numpy()) for items in operands]
    try:
        with np.errstate(all="ignore"):
            result = np.asarray(compute(*arrays))
    except ValueError:
        return None
    # NaN has no one bit pattern, and what follows may depend on it
    return None if np.isnan(result).any() else result.astype(object)


def _quotient(a: Number, b: Number) -> Dim:
    if isinstance(b, Size) or b in (0, -1):
        return None  # -1 makes the least number overflow
    if isinstance(a, int):
        exact, rest = divmod(a, b)
        return exact if rest == 0 or (a > 0 and b > 0) else None
    return floor_divide(a, b) if b > 0 and bounds(a)[0] >= 0 else None


def _remainder(a: Number, b: Number) -> int | None:
    return a % b if isinstance(a, int) and isinstance(b, int) and b != 0 else None


def _signed_remainder(a: Number, b: Number) -> int | None:
    if isinstance(a, Size) or isinstance(b, Size) or b == 0:
        return None
    rest = abs(a) % abs(b)
    return rest if a >= 0 else -rest


def _largest(a: Number, b: Number) -> Number | None:
    if a == b or bounds(a)[0] >= bounds(b)[1]:
        return a
    return b if bounds(b)[0] >= bounds(a)[1] else None


def _smallest(a: Number, b: Number) -> Number | None:
    if a == b or bounds(a)[1] <= bounds(b)[0]:
        return a
    return b if bounds(b)[1] <= bounds(a)[0] else None


def _absolute(a: Number) -> Number | None:
    if isinstance(a, int):
        return abs(a)
    return a if bounds(a)[0] >= 0 else None


def _compared(holds: Callable[[int], bool]) -> Callable[[Number, Number], bool | None]:
    """Return a comparison by the sign of the difference, unknown where several signs differ."""

    def compare(a: Number, b: Number) -> bool | None:
        difference = subtract(a, b)
        if difference is None:
            return None
        least, most = bounds(difference)
        signs = [
            s for s, is_open in ((1, most > 0), (0, least <= 0 <= most), (-1, least < 0)) if is_open
        ]
        answers = {holds(sign) for sign in signs}
        return answers.pop() if len(answers) == 1 else None

    return compare


_INTEGERS: dict[str, Callable[..., Any]] = {
    "Abs": _absolute,
    "Add": add,
    "Div": _quotient,
    "Fmod": _signed_remainder,
    "Max": _largest,
    "Min": _smallest,
    "Mod": _remainder,
    "Mul": multiply,
    "Neg": lambda a: multiply(-1, a),
    "Sub": subtract,
}

_COMPARISONS: dict[str, Callable[..., Any]] = {
    "Equal": _compared(lambda sign: sign == 0),
    "Greater": _compared(lambda sign: sign > 0),
    "GreaterOrEqual": _compared(lambda sign: sign >= 0),
    "Less": _compared(lambda sign: sign < 0),
    "LessOrEqual": _compared(lambda sign: sign <= 0),
}

_TRUTHS: dict[str, Callable[..., Any]] = {
    "And": lambda a, b: a and b,
    "Equal": operator.eq,
    "Not": operator.not_,
    "Or": lambda a, b: a or b,
    "Xor": operator.ne,
}

_FLOATS: dict[str, Callable[..., Any]] = {
    "Abs": np.abs,
    "Add": np.add,
    "Ceil": np.ceil,
    "Div": np.divide,
    "Equal": np.equal,
    "Floor": np.floor,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Round": np.rint,
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
}
