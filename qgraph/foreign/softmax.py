"""The kernel of QLinearSoftmax of com.microsoft, as ONNX Runtime computes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.foreign.parameters import float32, result, shifted, single
from qgraph.kernels.standard import Kernel
from qgraph.numerics.correct_rounding import exp, log

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

_OPSET_OF_AXES = 13
"""From here on Softmax runs along one axis; before, along all from an axis on."""

_RESERVED = 5.0
"""Powers of e that ONNX Runtime leaves free below the largest float32."""


def q_linear_softmax(node: ir.Node) -> Kernel:
    """``code = saturate(round_half_even(e[x] * floor(1 / s_y) / sum(e)) + z_y)``.

    ``e`` is a table of ``exp((x - max(x)) * s_x)``, scaled up by a power of e so that the sum of
    all is just below the largest float32. It is made in float64 and rounded to float32, in which
    the sum runs from the first element to the last. The zero point of the data plays no part.
    """
    opset = node.attributes["opset"].as_int()
    # the default of its schema is -1, whatever the version of Softmax
    axis = node.attributes.get_int("axis", -1)

    def run(
        x: Array, s_x: Array, z_x: Array | None, s_y: Array, z_y: Array | None = None
    ) -> Sequence[Array]:
        if x.size == 0:
            return [x.copy()]
        place = axis % x.ndim
        # rows of what is summed
        if opset < _OPSET_OF_AXES:
            rows = x.reshape(math.prod(x.shape[:place]), -1)
        else:
            rows = np.moveaxis(x, place, -1)
        top = rows.max(axis=-1, keepdims=True)
        below = shifted(rows, None, np.int32) - shifted(top, None, np.int32)
        e = _powers(float32(single(s_x)), rows.shape[-1])[below + 255]
        # cumsum adds one element after the other
        total = np.cumsum(e, axis=-1, dtype=np.float32)[..., -1:]
        z = np.zeros((), x.dtype) if z_y is None else single(result(z_y))
        limits = np.iinfo(z.dtype)
        with np.errstate(all="ignore"):
            whole = np.floor(np.float32(1) / float32(single(s_y)))
            steps = np.rint(e * whole / total)
        y = np.clip(steps + z.astype(np.float32), limits.min, limits.max).astype(z.dtype)
        return [y.reshape(x.shape) if opset < _OPSET_OF_AXES else np.moveaxis(y, -1, place)]

    return run


def _powers(scale: Float32, count: int) -> Float32:
    """Return the table of scaled powers, for codes from 255 below the largest up to it."""
    step = float(scale)
    largest = np.finfo(np.float32).max / np.float32(count)
    shift = max(0.0, float(log(largest)) - _RESERVED) / step
    with np.errstate(all="ignore"):
        exponents = (np.arange(256, dtype=np.float64) - 255 + shift) * step
        return exp(exponents, np.float32)
