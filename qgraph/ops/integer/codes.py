"""Arrays of codes: types, shapes, requantization; kernels that map or average codes, one by one.

    code = QuantizeLinear(f(DequantizeLinear(x, s_x, z_x)), s_y, z_y)

in float32, as the standard defines both. ``f`` is the logistic function or LeakyRelu; nothing for
tensors that are joined or chosen from. ONNX Runtime approximates the logistic function, on other
processors otherwise; here it is ``1 / (1 + exp(-x))``, rounded once. Codes differ by a step where
the two lie on both sides of a tie. Softmax and means are computed as ONNX Runtime computes them.

Source: ONNX Runtime documentation of its own operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import onnx_ir as ir

from qgraph.numerics import Array, Float32, Int32
from qgraph.numerics.correct_rounding import exp, log, sigmoid
from qgraph.ops.kernels.kernel import Kernel
from qgraph.ops.kernels.standard import Windows

_CODES = (np.dtype(np.int8), np.dtype(np.uint8))


def requantize(acc: Array, multiplier: Float32, zero_point: Array) -> Array:
    """Return the codes of sums: ``saturate(round_half_even(float32(acc) * m) + z)``.

    The multiplier, units of ``acc`` per step of the result, and the zero point, whose type is that
    of the codes, broadcast to ``acc``.
    """
    limits = np.iinfo(zero_point.dtype)
    z = zero_point.astype(np.float32)
    with np.errstate(all="ignore"):
        y = np.rint(acc.astype(np.float32) * multiplier)
        # fmax takes the bound where y is NaN
        y = np.minimum(np.fmax(y, limits.min - z), limits.max - z) + z
        codes: Array = y.astype(zero_point.dtype)
    return codes


def saturated(y: Float32, zero_point: Array) -> Array:
    """Return codes, in the type of their zero point, which ``y`` contains already."""
    limits = np.iinfo(zero_point.dtype)
    with np.errstate(all="ignore"):
        codes: Array = np.fmax(np.minimum(np.rint(y), limits.max), limits.min).astype(
            zero_point.dtype
        )
    return codes


def fused_in_double(codes: Array, factor: Array, added: Array) -> Float32:
    """Return ``codes * factor + added``, rounded to float64 and then to float32."""
    total = codes.astype(np.float64) * np.float64(factor) + added.astype(np.float64)
    return np.asarray(total, np.float32)


def ratio(s_a: Array, s_b: Array, s_y: Array) -> Float32:
    """Return ``s_a * s_b / s_y``, from left to right."""
    with np.errstate(all="ignore"):
        return float32(s_a) * float32(s_b) / float32(s_y)


def float32(scale: Array) -> Float32:
    """Return a scale; one of 16 bits becomes float32, exactly, in which all is computed."""
    if scale.dtype not in (np.float32, np.float16, ml_dtypes.bfloat16):
        raise ValueError(f"a scale or bias is {scale.dtype}, expected float32. Store it in float32")
    return scale.astype(np.float32, copy=False)


def int32(bias: Array) -> Int32:
    """Return what is added to sums."""
    if bias.dtype != np.int32:
        raise ValueError(f"its bias is {bias.dtype}, expected int32")
    return bias


def result(zero_point: Array) -> Array:
    """Return the zero point of the result, whose type is that of the codes."""
    if zero_point.dtype not in _CODES:
        raise ValueError(f"its output zero point is {zero_point.dtype}, expected int8 or uint8")
    return zero_point


def shifted(codes: Array, zero_point: Array | None, dtype: type = np.float64) -> Array:
    """Return codes minus their zero point, exactly."""
    if codes.dtype not in _CODES:
        raise ValueError(f"its codes are {codes.dtype}, expected int8 or uint8")
    if zero_point is not None and zero_point.dtype != codes.dtype:
        raise ValueError(
            f"its zero point is {zero_point.dtype} and its codes {codes.dtype}, expected one type"
        )
    values: Array = codes.astype(dtype)
    return values if zero_point is None else values - fitted(zero_point, codes).astype(dtype)


def decoded(codes: Array, scale: Array, zero_point: Array | None) -> Float32:
    """Return the real numbers that codes stand for: ``(code - zero_point) * scale``."""
    zero = None if zero_point is None else single(zero_point)
    return np.asarray(shifted(codes, zero, np.float32) * float32(single(scale)))


def zero_of(zero_point: Array | None, codes: Array) -> Array:
    """Return the zero point of a result, 0 in the type of ``codes`` if there is none."""
    return np.zeros((), codes.dtype) if zero_point is None else single(result(zero_point))


def fitted(parameter: Array, data: Array) -> Array:
    """Return a parameter; raise a ValueError unless it broadcasts to the shape of ``data``."""
    if np.broadcast_shapes(parameter.shape, data.shape) != data.shape:
        raise ValueError(
            f"a parameter has shape {list(parameter.shape)}, expected one that broadcasts to "
            f"{list(data.shape)}"
        )
    return parameter


def single(parameter: Array) -> Array:
    """Return a parameter of the whole tensor without axes."""
    if parameter.size != 1:
        raise ValueError(f"a parameter has shape {list(parameter.shape)}, expected one element")
    return parameter.reshape(())


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
    real = decoded(x, s_x, z_x)
    y = real if function is None else function(real)
    with np.errstate(all="ignore"):
        steps = y / float32(single(s_y))
    return requantize(steps, np.ones((), np.float32), zero_of(z_y, x))


def _mapped(function: Function) -> Kernel:
    def run(
        x: Array, s_x: Array, z_x: Array | None, s_y: Array, z_y: Array | None = None
    ) -> Sequence[Array]:
        return [recode(x, s_x, z_x, s_y, z_y, function)]

    return run


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
        along = axis % x.ndim
        # rows of what is summed
        if opset < _OPSET_OF_AXES:
            rows = x.reshape(math.prod(x.shape[:along]), -1)
        else:
            rows = np.moveaxis(x, along, -1)
        top = rows.max(axis=-1, keepdims=True)
        below = shifted(rows, None, np.int32) - shifted(top, None, np.int32)
        e = _powers(float32(single(s_x)), rows.shape[-1])[below + 255]
        # cumsum adds one element after the other
        total = np.cumsum(e, axis=-1, dtype=np.float32)[..., -1:]
        z = zero_of(z_y, x)
        limits = np.iinfo(z.dtype)
        with np.errstate(all="ignore"):
            whole = np.floor(np.float32(1) / float32(single(s_y)))
            steps = np.rint(e * whole / total)
        y = np.clip(steps + z.astype(np.float32), limits.min, limits.max).astype(z.dtype)
        return [y.reshape(x.shape) if opset < _OPSET_OF_AXES else np.moveaxis(y, -1, along)]

    return run


def _powers(scale: Float32, count: int) -> Float32:
    """Return the table of scaled powers, for codes from 255 below the largest up to it."""
    step = float(scale)
    largest = np.finfo(np.float32).max / np.float32(count)
    shift = max(0.0, float(log(np.asarray(largest))) - _RESERVED) / step
    with np.errstate(all="ignore"):
        exponents = (np.arange(256, dtype=np.float64) - 255 + shift) * step
        return exp(exponents, np.float32)


def q_linear_average_pool(node: ir.Node) -> Kernel:
    """``code = saturate(round_half_even(sum(r) / n / s_y + z_y))`` with ``r = s_x * (x - z_x)``.

    The real numbers of a window are added in float32, in row order; padding adds nothing. ``n`` is
    the number of elements in the window, with ``count_include_pad`` always that of the whole
    window. A window that is the whole image, as in QLinearGlobalAveragePool, is averaged and
    rounded otherwise: its codes are summed, and ``m = s_x / (s_y * n)``.
    """
    last, is_global = node.attributes.get_int("channels_last", 0), "Global" in node.op_type
    kernel = node.attributes.get_ints("kernel_shape", [])

    def run(
        x: Array, s_x: Array, z_x: Array | None, s_y: Array, z_y: Array | None = None
    ) -> Sequence[Array]:
        x = np.moveaxis(x, -1, 1) if last else x
        z, sizes = zero_of(z_y, x), x.shape[2:]
        windows = None if is_global else Windows.of(node, sizes, kernel)
        if windows is None or _is_whole(windows, sizes):
            zero = None if z_x is None else single(z_x)
            axes = tuple(range(2, x.ndim))
            acc = shifted(x, zero, np.int32).sum(axis=axes, keepdims=True, dtype=np.int32)
            count = np.float32(x.size // max(acc.size, 1))
            m = float32(single(s_x)) / (float32(single(s_y)) * count)
            y = requantize(acc, m, z)
        else:
            average = windows.sums(decoded(x, s_x, z_x)) / counts(node, windows, sizes)
            with np.errstate(all="ignore"):
                steps: Float32 = average.astype(np.float32) / float32(single(s_y))
                y = saturated(steps + z.astype(np.float32), z)
        return [np.moveaxis(y, 1, -1) if last else y]

    return run


def averages_all(node: ir.Node, sizes: Sequence[int]) -> bool:
    """Return whether the one window of a QLinearAveragePool is an image of these sizes."""
    kernel = node.attributes.get_ints("kernel_shape", [])
    return len(kernel) == len(sizes) and _is_whole(Windows.of(node, sizes, kernel), sizes)


def counts(node: ir.Node, windows: Windows, sizes: Sequence[int]) -> Float32:
    """Return by what the sum over each window of a QLinearAveragePool is divided."""
    if node.attributes.get_int("count_include_pad", 0):
        return np.asarray(math.prod(windows.kernel), np.float32)
    return windows.sums(np.ones((1, 1, *sizes), np.float32))


def _is_whole(windows: Windows, sizes: Sequence[int]) -> bool:
    return windows.kernel == tuple(sizes) and not any(windows.before) and not any(windows.after)
