"""NumPy kernels of the standard operators for which onnx's reference is slow or wrong.

Convolution, pooling and matrix products are too slow there. ConvTranspose fails there with groups
of several channels, and adds wrong biases to groups. MaxPool gives indices of other elements if
windows overlap, and Optional makes a list of its element. Elementary functions are rounded once, so
that results are equal on every processor; those of float64 are NumPy's.

Each kernel depends on the values of its operands only, never on their memory layout, so that two
models with equal values get equal sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from qgraph.numerics import Array, correct_rounding
from qgraph.numerics.correct_rounding import FUNCTIONS, is_rounded_once
from qgraph.ops.kernels import normalizations
from qgraph.ops.kernels.kernel import Kernel, sum_type
from qgraph.records import dataclass

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_COLUMN_BYTES = 1 << 22
"""Bytes of unfolded windows held at a time: what stays in the cache is fastest."""


def kernel_of(node: ir.Node, version: int) -> Kernel | None:
    """Return the kernel of a standard operator as of opset ``version``; None if there is none."""
    build = _BUILDERS.get(node.op_type) if node.domain == "" else None
    return None if build is None else build(node, version)


def matmul(a: Array, b: Array) -> Array:
    """Return ``a @ b``; 16-bit floats are multiplied and summed in float32 and rounded once."""
    # BLAS chooses its order of additions by memory layout as well.
    left = np.ascontiguousarray(a, sum_type(a.dtype))
    right = np.ascontiguousarray(b, sum_type(b.dtype))
    return np.asarray(np.matmul(left, right)).astype(a.dtype, copy=False)


def _gemm(node: ir.Node, version: int) -> Kernel | None:
    """``y = alpha * (a @ b) + beta * c``, each operation rounded once."""
    if version < 7:
        return None
    trans_a, trans_b = (node.attributes.get_int(name, 0) for name in ("transA", "transB"))
    alpha, beta = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))

    def run(a: Array, b: Array, c: Array | None = None) -> Sequence[Array]:
        wide = sum_type(a.dtype)
        left, right = (x.astype(wide, copy=False) for x in (a, b))
        y = matmul(left.T if trans_a else left, right.T if trans_b else right)
        if alpha != 1:
            y = y * np.asarray(alpha).astype(wide)
        if c is not None:
            c = c.astype(wide, copy=False)
            y = y + (c if beta == 1 else c * np.asarray(beta).astype(wide))
        return (y.astype(a.dtype, copy=False),)

    return run


@dataclass(frozen=True)
class Windows:
    """Where the windows of a convolution or a pooling lie, one entry for each spatial axis.

    Attributes:
        kernel, strides, dilations: as in ONNX.
        before, after: padding, in elements; ``after`` reaches to the end of the last window.
        counted: the part of ``after`` that was asked for, not added by ``ceil_mode``.
        out: number of windows.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    counted: tuple[int, ...]
    out: tuple[int, ...]

    @classmethod
    def of(cls, node: ir.Node, size: Sequence[int], kernel: Sequence[int]) -> Windows:
        """Read strides, dilations and padding of ``node`` for an input of spatial ``size``."""
        rank = len(size)
        get = node.attributes.get_ints
        strides, dilations = (get(name, [1] * rank) for name in ("strides", "dilations"))
        pads = get("pads", [0] * (2 * rank))
        auto = node.attributes.get_string("auto_pad", "NOTSET")
        rows = []
        for axis, (n, k, stride) in enumerate(zip(size, kernel, strides, strict=True)):
            reach = dilations[axis] * (k - 1) + 1
            before, end = (0, 0) if auto == "VALID" else (pads[axis], pads[rank + axis])
            room = n + before + end - reach
            if auto in ("SAME_UPPER", "SAME_LOWER"):
                out = -(-n // stride)
                total = max((out - 1) * stride + reach - n, 0)
                before = total // 2 if auto == "SAME_UPPER" else total - total // 2
                end = total - before
            elif node.attributes.get_int("ceil_mode", 0):
                out = -(-room // stride) + 1
                # The last window has to start inside the input or its leading padding.
                out -= (out - 1) * stride >= n + before
            else:
                out = room // stride + 1
            if out < 1:
                raise ValueError(f"a window of {reach} elements does not fit axis {axis + 2}")
            after = max((out - 1) * stride + reach - n - before, 0)
            rows.append((k, stride, dilations[axis], before, after, min(end, after), out))
        return cls(*zip(*rows, strict=True))

    def unfold(self, x: Array, fill: float = 0) -> Array:
        """Return a view ``[n, c, *kernel, *out]`` of ``x`` ``[n, c, *size]``, padded."""
        if any(self.before) or any(self.after):
            inner = zip(self.before, x.shape[2:], strict=True)
            size = zip(self.before, x.shape[2:], self.after, strict=True)
            padded = np.full((*x.shape[:2], *map(sum, size)), fill, x.dtype)
            spatial = tuple(slice(start, start + n) for start, n in inner)
            padded[(slice(None), slice(None), *spatial)] = x
            x = padded
        x = np.ascontiguousarray(x)
        steps = x.strides[2:]
        return np.lib.stride_tricks.as_strided(
            x,
            (*x.shape[:2], *self.kernel, *self.out),
            (
                *x.strides[:2],
                *(step * d for step, d in zip(steps, self.dilations, strict=True)),
                *(step * s for step, s in zip(steps, self.strides, strict=True)),
            ),
            writeable=False,
        )

    def positions(self, x: Array, fill: float = 0) -> Iterator[Array]:
        """Yield ``[n, c, *out]`` for each position in the window, the last axis fastest."""
        unfolded = self.unfold(x, fill)
        for position in np.ndindex(self.kernel):
            yield unfolded[(slice(None), slice(None), *position)]

    def sums(self, x: Array) -> Array:
        """Return the sum over each window in row order, ``[n, c, *out]``."""
        total = np.zeros((*x.shape[:2], *self.out), x.dtype)
        for part in self.positions(x):
            total += part
        return total


def _conv(node: ir.Node, version: int) -> Kernel:
    """Windows are unfolded to columns, a few samples at a time, and multiplied."""
    groups = node.attributes.get_int("group", 1)

    def run(x: Array, w: Array, bias: Array | None = None) -> Sequence[Array]:
        if x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
            raise ValueError(
                f"{x.shape[1]} channels do not fit weights {list(w.shape)} in {groups} groups"
            )
        wide = sum_type(x.dtype)
        windows = Windows.of(node, x.shape[2:], w.shape[2:])
        unfolded = windows.unfold(x.astype(wide, copy=False))
        depth, windows_of_map = math.prod(w.shape[1:]), math.prod(windows.out)
        rows = np.ascontiguousarray(w, wide).reshape(groups, -1, depth)
        y = np.empty((len(x), groups, rows.shape[1], windows_of_map), wide)
        at_once = max(1, _COLUMN_BYTES // max(1, groups * depth * windows_of_map * wide.itemsize))
        for start in range(0, len(x), at_once):
            chunk = slice(start, start + at_once)
            columns = unfolded[chunk].reshape(-1, groups, depth, windows_of_map)
            np.matmul(rows, columns, out=y[chunk])
        y = y.reshape(len(x), w.shape[0], *windows.out)
        if bias is not None:
            y += bias.astype(wide, copy=False).reshape(-1, *(1,) * len(windows.out))
        return (y.astype(x.dtype, copy=False),)

    return run


def _conv_transpose(node: ir.Node, version: int) -> Kernel:
    """Each element is spread over a window; margins are cut off as opset 11 defines it."""
    groups, auto = (node.attributes.get_int("group", 1), node.attributes.get_string("auto_pad", ""))

    def run(x: Array, w: Array, bias: Array | None = None) -> Sequence[Array]:
        rank, get = x.ndim - 2, node.attributes.get_ints
        strides, dilations = (np.array(get(name, [1] * rank)) for name in ("strides", "dilations"))
        size, extra = np.array(x.shape[2:]), np.array(get("output_padding", [0] * rank))
        full = strides * (size - 1) + dilations * (np.array(w.shape[2:]) - 1) + 1 + extra
        wanted = get("output_shape", (strides * size).tolist() if auto[:4] == "SAME" else [])
        pads = np.array([0] * 2 * rank if auto == "VALID" else get("pads", [0] * 2 * rank))
        out = np.array(wanted[-rank:]) if wanted else full - pads[:rank] - pads[rank:]
        if (out < 0).any():
            raise ValueError(
                f"its result would have the sizes {out.tolist()}; expected none below 0"
            )
        cut = np.maximum(full - out, 0)
        start = pads[:rank] if not wanted else cut // 2 if auto == "SAME_UPPER" else cut - cut // 2
        columns = x.reshape(len(x), groups, -1, size.prod()).astype(sum_type(x.dtype), copy=False)
        rows = w.astype(columns.dtype, copy=False).reshape(groups, columns.shape[2], -1)
        parts = matmul(rows.swapaxes(1, 2), columns)
        parts = parts.reshape(len(x), w.shape[1] * groups, *w.shape[2:], *size)
        y = np.zeros((*parts.shape[:2], *np.maximum(full, start + out)), parts.dtype)
        for tap in np.ndindex(w.shape[2:]):
            ends = zip(tap * dilations, strides * (size - 1) + 1, strides, strict=True)
            spot = (slice(first, first + reach, step) for first, reach, step in ends)
            y[:, :, *spot] += parts[:, :, *tap]
        y = y[:, :, *(slice(first, first + n) for first, n in zip(start, out, strict=True))]
        if bias is not None:
            y += bias.astype(y.dtype, copy=False).reshape(-1, *[1] * rank)
        return (y.astype(x.dtype, copy=False),)

    return run


def _average_pool(node: ir.Node, version: int) -> Kernel:
    """Sums run over the window in row order; one division follows."""
    include = node.attributes.get_int("count_include_pad", 0)

    def run(x: Array) -> Sequence[Array]:
        wide = sum_type(x.dtype)
        windows = Windows.of(node, x.shape[2:], node.attributes.get_ints("kernel_shape", []))
        total = windows.sums(x.astype(wide, copy=False))
        ones, edge = np.ones((1, 1, *x.shape[2:]), wide), windows
        if include:
            margins = zip(windows.before, windows.counted, strict=True)
            ones = np.pad(ones, ((0, 0), (0, 0), *margins), constant_values=1)
            extra = zip(windows.after, windows.counted, strict=True)
            rest = tuple(after - counted for after, counted in extra)
            edge = Windows(**{**vars(windows), "before": (0,) * len(rest), "after": rest})
        total /= edge.sums(ones)
        return (total.astype(x.dtype, copy=False),)

    return run


def _max_pool(node: ir.Node, version: int) -> Kernel:
    """Indices count the elements of the whole tensor, and are those of the first largest ones."""
    has_indices = sum(bool(output.name) for output in node.outputs) > 1
    order: Any = "F" if node.attributes.get_int("storage_order", 0) else "C"

    def run(x: Array) -> Sequence[Array]:
        size = x.shape[2:]
        windows = Windows.of(node, size, node.attributes.get_ints("kernel_shape", []))
        lowest = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
        parts = windows.positions(x, lowest)
        y = next(parts).copy()
        for part in parts:
            np.maximum(y, part, out=y)
        if not has_indices:
            return (y,)
        largest, index = np.full(y.shape, lowest, x.dtype), np.full(y.shape, -1, np.int64)
        places = np.arange(math.prod(size)).reshape(1, 1, *size, order=order)
        pairs = zip(windows.positions(x, lowest), windows.positions(places, -1), strict=True)
        for part, place in pairs:
            is_larger = (place >= 0) & ((index < 0) | (part > largest))
            largest, index = np.where(is_larger, part, largest), np.where(is_larger, place, index)
        maps = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *[1] * len(size))
        return y, index + maps * math.prod(size)

    return run


def _get_element(node: ir.Node, version: int) -> Kernel:
    def run(x: Any) -> Sequence[Any]:
        if x is None:
            raise ValueError("the optional is empty")
        return (x,)

    return run


def _gather_elements(node: ir.Node, version: int) -> Kernel:
    axis = node.attributes.get_int("axis", 0)

    def run(x: Array, indices: Array) -> tuple[Array]:
        return (np.take_along_axis(_corner(x, indices, axis), indices, axis),)

    return run


def _scatter(node: ir.Node, version: int) -> Kernel:
    """Return the kernel of Scatter, which ScatterElements took the place of in opset 11."""
    axis = node.attributes.get_int("axis", 0)

    def run(x: Array, indices: Array, updates: Array) -> tuple[Array]:
        y = np.array(x)
        np.put_along_axis(_corner(y, indices, axis), indices, updates, axis)
        return (y,)

    return run


def _corner(x: Array, indices: Array, axis: int) -> Array:
    """Return the part of ``x`` that indices along ``axis`` reach: their sizes on other axes."""
    sizes = [slice(size) for size in indices.shape]
    sizes[axis] = slice(None)
    return x[tuple(sizes)]


def _elementary(node: ir.Node, version: int) -> Callable[[Array], tuple[Array]]:
    """Return the kernel of a function of one operand."""
    rounded, native = FUNCTIONS[node.op_type]

    def run(x: Array) -> tuple[Array]:
        with np.errstate(all="ignore"):
            return (_narrow(x, rounded) if is_rounded_once(x.dtype) else native(x),)

    return run


def _power(node: ir.Node, version: int) -> Callable[[Array, Array], tuple[Array]] | None:
    """Return the kernel of Pow, whose result has the type of the base."""
    if version < 7:
        return None

    def run(x: Array, y: Array) -> tuple[Array]:
        with np.errstate(all="ignore"):
            if is_rounded_once(x.dtype) and _fits_float64(y.dtype):
                return (_narrow(x, lambda base: correct_rounding.power(base, y)),)
            return (np.asarray(np.power(x, y)).astype(x.dtype, copy=False),)

    return run


def _narrow(x: Array, function: Callable[[Array], Array]) -> Array:
    if x.dtype == _BFLOAT16:
        return function(x.astype(np.float32)).astype(x.dtype)
    return function(x)


def _fits_float64(dtype: np.dtype[Any]) -> bool:
    is_small_integer = dtype.kind in "iu" and dtype.itemsize <= 4
    return is_small_integer or dtype == np.float64 or is_rounded_once(dtype)


_BUILDERS: dict[str, Callable[[ir.Node, int], Kernel | None]] = {
    "AveragePool": _average_pool,
    "BatchNormalization": normalizations.batch_normalization,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "GatherElements": _gather_elements,
    "Gemm": _gemm,
    "LRN": normalizations.lrn,
    "LogSoftmax": normalizations.log_softmax,
    "LpNormalization": normalizations.lp_normalization,
    "MatMul": lambda *_: lambda a, b: (matmul(a, b),),
    "MaxPool": _max_pool,
    # An optional is its element, or None.
    "Optional": lambda *_: lambda x=None: (x,),
    "OptionalGetElement": _get_element,
    "OptionalHasElement": lambda *_: lambda x=None: (np.asarray(x is not None),),
    "Pow": _power,
    "Scatter": _scatter,
    **dict.fromkeys(FUNCTIONS, _elementary),
}
