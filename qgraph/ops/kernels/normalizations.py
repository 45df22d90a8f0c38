"""NumPy kernels of normalizations for which onnx's reference is wrong.

There, BatchNormalization below opset 14 always runs in training mode, LRN takes the number of
samples for that of channels, LpNormalization adds numbers in place of their magnitudes, and
LogSoftmax is the logarithm of a Softmax, which may be 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Array
from qgraph.numerics.correct_rounding import FUNCTIONS, is_rounded_once
from qgraph.ops.kernels.kernel import Kernel, sum_type


def batch_normalization(node: ir.Node, version: int) -> Kernel | None:
    """``y = x * f + (bias - mean * f)`` with ``f = scale / sqrt(var + epsilon)``."""
    if version >= 14:
        training = node.attributes.get_int("training_mode", 0) != 0
    elif version >= 7:
        training = sum(bool(output.name) for output in node.outputs) > 1
    else:
        training = node.attributes.get_int("is_test", 0) == 0
    if training or node.attributes.get_int("spatial", 1) == 0:
        return None
    epsilon = node.attributes.get_float("epsilon", 1e-5)

    def run(x: Array, scale: Array, bias: Array, mean: Array, var: Array) -> Sequence[Array]:
        wide = sum_type(x.dtype)
        scale, bias, mean, var = (p.astype(wide, copy=False) for p in (scale, bias, mean, var))
        factor = scale / np.sqrt(var + wide.type(epsilon))
        offset = bias - mean * factor
        shape = (-1,) + (1,) * (x.ndim - 2)
        y = x * factor.reshape(shape)
        y += offset.reshape(shape)
        return (y.astype(x.dtype, copy=False),)

    return run


def lrn(node: ir.Node, version: int) -> Kernel:
    """``y = x / (bias + alpha / size * sum(x ** 2)) ** beta``, summed over ``size`` channels."""
    size = node.attributes["size"].as_int()
    defaults = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0}
    alpha, beta, bias = (node.attributes.get_float(name, n) for name, n in defaults.items())

    def run(x: Array) -> Sequence[Array]:
        wide = sum_type(x.dtype)
        before = (size - 1) // 2
        margins = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)]
        squares = np.pad(np.square(x.astype(wide, copy=False)), margins)
        total = sum(squares[:, k : k + x.shape[1]] for k in range(size))
        y = x / (wide.type(bias) + wide.type(alpha / size) * total) ** wide.type(beta)
        return (y.astype(x.dtype, copy=False),)

    return run


OF_ONE_AXIS = 13
"""First opset in which LogSoftmax runs along one axis; before, along all axes from one on."""


def log_softmax(node: ir.Node, version: int) -> Kernel:
    """``y = d - log(sum(exp(d)))`` with ``d = x - max(x)``, each operation rounded once."""
    is_new = version >= OF_ONE_AXIS
    axis = node.attributes.get_int("axis", -1 if is_new else 1)

    def run(x: Array) -> Sequence[Array]:
        if not x.size:
            return (x,)
        wide = sum_type(x.dtype)
        exp, log = (FUNCTIONS[name][not is_rounded_once(wide)] for name in ("Exp", "Log"))
        first = axis if axis >= 0 else axis + x.ndim
        rows = x if is_new else x.reshape(math.prod(x.shape[:first]), -1)
        along = axis if is_new else 1
        with np.errstate(all="ignore"):
            d = rows.astype(wide) - rows.max(axis=along, keepdims=True).astype(wide)
            d -= log(exp(d).sum(axis=along, keepdims=True))
        return (d.reshape(x.shape).astype(x.dtype, copy=False),)

    return run


def lp_normalization(node: ir.Node, version: int) -> Kernel:
    """``y = x / sum(abs(x))``, or ``x / sqrt(sum(x ** 2))``; 0 where the divisor is 0."""
    axis, p = (node.attributes.get_int(name, n) for name, n in (("axis", -1), ("p", 2)))

    def run(x: Array) -> Sequence[Array]:
        wide = x.astype(sum_type(x.dtype), copy=False)
        with np.errstate(all="ignore"):
            sizes = np.abs(wide) if p == 1 else np.square(wide)
            norm = sizes.sum(axis=axis, keepdims=True)
            norm = norm if p == 1 else np.sqrt(norm)
            y = np.where(norm == 0, wide.dtype.type(0), wide / norm)
        return (y.astype(x.dtype, copy=False),)

    return run
