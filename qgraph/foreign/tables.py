"""Kernels of com.microsoft that look codes up: what one code becomes does not depend on others.

    code = QuantizeLinear(f(DequantizeLinear(x, s_x, z_x)), s_y, z_y)

in float32, as the standard defines both. ``f`` is the logistic function or LeakyRelu; nothing for
tensors that are joined or chosen from. ONNX Runtime approximates the logistic function, on other
processors otherwise; here it is ``1 / (1 + exp(-x))``, rounded once. Codes differ by a step where
the two lie on both sides of a tie.

Source: ONNX Runtime's documentation of its own operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.foreign.parameters import float32, requantize, result, shifted, single
from qgraph.kernels.standard import Kernel
from qgraph.numerics.correct_rounding import sigmoid

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Function = Callable[[Float32], Float32]


def q_linear_sigmoid(node: ir.Node) -> Kernel:
    """``f(x) = 1 / (1 + exp(-x))``."""
    return _mapped(sigmoid)


def q_linear_leaky_relu(node: ir.Node) -> Kernel:
    """``f(x) = x if x >= 0 else alpha * x``."""
    alpha = np.float32(node.attributes.get_float("alpha", 0.01))
    return _mapped(lambda x: np.where(x >= 0, x, alpha * x))


def q_linear_concat(node: ir.Node) -> Kernel:
    """Inputs: ``s_y, z_y``, then ``x, s_x, z_x`` for each part."""
    axis = node.attributes["axis"].as_int()

    def run(s_y: Array, z_y: Array, *rest: Array) -> Sequence[Array]:
        if len(rest) % 3 or not rest:
            raise ValueError(
                f"it has {len(rest) + 2} inputs, expected 2 and 3 for each tensor that is joined"
            )
        triples = zip(rest[::3], rest[1::3], rest[2::3], strict=True)
        parts = [recode(x, s, z, s_y, z_y) for x, s, z in triples]
        return [np.concatenate(parts, axis=axis)]

    return run


def q_linear_where(node: ir.Node) -> Kernel:
    """Codes of the first tensor where the condition holds, of the second elsewhere."""

    def run(
        condition: Array,
        x: Array,
        s_x: Array,
        z_x: Array,
        y: Array,
        s_y: Array,
        z_y: Array,
        s: Array,
        z: Array,
    ) -> Sequence[Array]:
        return [np.where(condition, recode(x, s_x, z_x, s, z), recode(y, s_y, z_y, s, z))]

    return run


def recode(
    x: Array,
    s_x: Array,
    z_x: Array | None,
    s_y: Array,
    z_y: Array | None,
    function: Function | None = None,
) -> Array:
    """Return codes in other parameters, of what a function makes of the numbers they stand for."""
    # Not a product of scales: each operation is rounded, as in the two operators.
    real = shifted(x, None if z_x is None else single(z_x), np.float32) * float32(single(s_x))
    y = real if function is None else function(real)
    z = np.zeros((), x.dtype) if z_y is None else single(result(z_y))
    with np.errstate(all="ignore"):
        steps = y / float32(single(s_y))
    return requantize(steps, np.ones((), np.float32), z)


def _mapped(function: Function) -> Kernel:
    def run(
        x: Array, s_x: Array, z_x: Array | None, s_y: Array, z_y: Array | None = None
    ) -> Sequence[Array]:
        return [recode(x, s_x, z_x, s_y, z_y, function)]

    return run
