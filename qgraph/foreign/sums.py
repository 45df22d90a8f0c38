"""Sums of products of integer codes, exact, in int32 as the operators have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.kernels.standard import kernel_of, matmul

Array = npt.NDArray[Any]
Int32 = npt.NDArray[np.int32]
Sum = Callable[[Array, Array], Int32]
"""Data and weights, both less their zero points, to the sums of their products."""


def matmul_sum(a: Array, b: Array) -> Int32:
    """Return ``a @ b`` of whole numbers as int32, which wraps around as it does in runtimes."""
    # Whole numbers below 2**53 add up without rounding, and float64 has the fast product.
    return to_int32(matmul(a.astype(np.float64), b.astype(np.float64)))


def conv_sum(node: ir.Node) -> Sum:
    """Return a function that convolves whole numbers as ``node`` says, see :func:`matmul_sum`."""
    plain = ir.node("Conv", [ir.val("x"), ir.val("w")], conv_attributes(node))
    kernel = kernel_of(plain, _OPSET_OF_CONV)
    if kernel is None:
        raise AssertionError("there is a kernel of Conv")

    def run(x: Array, w: Array) -> Int32:
        return to_int32(kernel(x.astype(np.float64), w.astype(np.float64))[0])

    return run


def conv_attributes(node: ir.Node) -> dict[str, Any]:
    """Return those attributes of ``node`` that a Conv has too."""
    return {k: v.value for k, v in node.attributes.items() if k in _CONV and not v.is_ref()}


def to_int32(total: npt.NDArray[np.float64]) -> Int32:
    """Return whole numbers as int32, modulo 2**32."""
    return total.astype(np.int64).astype(np.int32)


_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_OPSET_OF_CONV = 11
