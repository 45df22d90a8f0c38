"""NumPy kernels of elementary functions, whose results are equal on every processor.

Results of float16, bfloat16 and float32 are the exact ones rounded once, bfloat16 through float32.
The bits of float64 results are those that NumPy computes on this processor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from qgraph.numerics import Array, rounding

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

FUNCTIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "Cos": (rounding.cos, np.cos),
    "Exp": (rounding.exp, np.exp),
    "Log": (rounding.log, np.log),
    "Sigmoid": (rounding.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "Sin": (rounding.sin, np.sin),
    "Tanh": (rounding.tanh, np.tanh),
}
"""For each operator the function for narrow types, and the one for float64."""


def is_rounded_once(dtype: np.dtype[Any]) -> bool:
    """Return whether results of this type are the same on every processor."""
    return dtype in rounding.TYPES or dtype == _BFLOAT16


def elementary(node: ir.Node, version: int) -> Callable[[Array], tuple[Array]]:
    """Return the kernel of a function of one operand."""
    rounded, native = FUNCTIONS[node.op_type]

    def run(x: Array) -> tuple[Array]:
        with np.errstate(all="ignore"):
            return (_narrow(x, rounded) if is_rounded_once(x.dtype) else native(x),)

    return run


def power(node: ir.Node, version: int) -> Callable[[Array, Array], tuple[Array]] | None:
    """Return the kernel of Pow, whose result has the type of the base."""
    if version < 7:
        return None

    def run(x: Array, y: Array) -> tuple[Array]:
        with np.errstate(all="ignore"):
            if is_rounded_once(x.dtype) and _fits_float64(y.dtype):
                return (_narrow(x, lambda base: rounding.power(base, y)),)
            return (np.asarray(np.power(x, y)).astype(x.dtype, copy=False),)

    return run


def _narrow(x: Array, function: Callable[[Array], Array]) -> Array:
    if x.dtype == _BFLOAT16:
        return function(x.astype(np.float32)).astype(x.dtype)
    return function(x)


def _fits_float64(dtype: np.dtype[Any]) -> bool:
    is_small_integer = dtype.kind in "iu" and dtype.itemsize <= 4
    return is_small_integer or dtype == np.float64 or is_rounded_once(dtype)
