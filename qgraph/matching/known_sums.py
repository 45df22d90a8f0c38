"""Sums of constants that no order of additions changes.

A sum of floating-point numbers depends on the order of its additions, which a processor chooses. It
does not where no addition rounds. All terms are multiples of a unit, and their magnitudes add up to
less than 2**p units, p being the bits of a significand:

    1.5 + 0.25 - 3      unit 0.25, magnitudes add up to 4.75 = 19 units, 19 < 2**24: exact
    1.5 + 2**-30        unit 2**-30, 1.5 is more than 2**24 units: depends
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

Array = npt.NDArray[Any]
Kernel = Callable[..., Sequence[Any]]

_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})
"""Operators that add products of two operands, and a third operand to them."""

SUMMING = _PRODUCTS | {"ReduceSum"}
"""Operators whose result may be known here."""

_TYPES = (np.dtype(np.float32), np.dtype(np.float64))


def is_any_order_exact(node: ir.Node, kernel: Kernel, operands: Sequence[Array | None]) -> bool:
    """Return whether a node of ``SUMMING`` computes one result in whatever order it adds."""
    if any(node.attributes.get_float(name, 1.0) != 1.0 for name in ("alpha", "beta")):
        return False
    terms = operands[: 3 if node.op_type in _PRODUCTS else 1]
    if any(a is not None and (a.dtype not in _TYPES or not np.isfinite(a).all()) for a in terms):
        return False
    units = [_unit_exponent(array) for array in terms if array is not None]
    unit = sum(units[:2]) if node.op_type in _PRODUCTS else units[0]
    unit = min([unit, *units[2:]])
    magnitudes = [None if array is None else np.abs(array) for array in terms]
    # Additions that round cannot bring a sum of magnitudes below the limit.
    with np.errstate(all="ignore"):
        total = np.asarray(kernel(*magnitudes, *operands[len(terms) :])[0])
    info = np.finfo(total.dtype)
    is_representable = unit >= int(info.minexp) - int(info.nmant)
    limit = float(np.ldexp(1.0, min(unit + int(info.nmant) + 1, 1023)))
    return is_representable and bool((total < limit).all())


def _unit_exponent(array: Array) -> int:
    """Return the exponent of a power of two that all elements are multiples of."""
    numbers = array[array != 0].astype(np.float64)
    if not numbers.size:
        return 0
    mantissa, exponent = np.frexp(numbers)
    whole = np.abs(np.ldexp(mantissa, 53)).astype(np.int64)
    trailing = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    return int((exponent - 53 + trailing).min())
