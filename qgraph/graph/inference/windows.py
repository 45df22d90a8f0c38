"""Operators with spatial axes: convolution, pooling, resizing images; and recurrent networks.

The number of windows along an axis of ``size`` elements, where one reaches over ``reach`` elements:

    floor((size + before + after - reach) / stride) + 1

With ``ceil_mode`` it is rounded up. Since opset 22, a last window that starts in the padding at the
end is omitted. The formula of earlier versions counts it, but most runtimes do not, so the number
is then unknown. Where the versions, ONNX Runtime and the reference implementation disagree
about pooling otherwise, the number is unknown as well: data smaller than a window, padding as wide
as a window, and automatic padding with dilation.

Resizing gives each size times its scale, rounded down, or the sizes in the node.
"""

from __future__ import annotations

import fractions
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.graph.inference.dimensions import Dim, add, floor_divide, multiply, subtract
from qgraph.graph.inference.elementwise import TypeSource, type_of
from qgraph.graph.inference.movement import shape_in
from qgraph.graph.inference.rules import (
    Call,
    Fact,
    Rule,
    Shape,
    Unknown,
    given,
    places_of,
    require,
    rule,
)
from qgraph.graph.schema import MICROSOFT
from qgraph.records import dataclass


@dataclass(frozen=True)
class Axis:
    """One spatial axis: the size of the data, the padding, and the windows."""

    size: Dim
    before: int
    after: int
    stride: int
    reach: int

    @property
    def padding(self) -> int:
        """Padding at both ends."""
        return self.before + self.after

    @property
    def _room(self) -> int | None:
        return self.size + self.padding - self.reach if isinstance(self.size, int) else None

    @property
    def may_overhang(self) -> bool:
        """Whether a window that is added by rounding up may reach beyond the padding."""
        if self.stride == 1:
            return False
        return self._room is None or self._room % self.stride != 0

    @property
    def may_start_in_padding(self) -> bool:
        """Whether the last window may start in the padding at the end if counts are rounded up."""
        if self.stride + self.after <= self.reach:
            return False
        if self._room is None or not isinstance(self.size, int):
            return self.stride > 1 or self.after >= self.reach
        last = -(-self._room // self.stride) * self.stride
        return last >= self.size + self.before

    def windows(self) -> Dim:
        """Return the number of windows.

        Raises: Unknown: no window fits.
        """
        room = subtract(add(self.size, self.padding), self.reach)
        require(not isinstance(room, int) or room >= 0)
        return add(floor_divide(room, self.stride), 1)

    def pooling_windows(self, *, rounds_up: bool) -> Dim:
        """Return the number of windows of a pool; None if versions or runtimes disagree."""
        if (self.stride, self.reach, self.before, self.after) == (1, 1, 0, 0):
            return self.size
        if self._room is None or self._room < 0 or max(self.before, self.after) >= self.reach:
            return None
        if not rounds_up:
            return self._room // self.stride + 1
        return None if self.may_start_in_padding else -(-self._room // self.stride) + 1


def _axes(call: Call, shape: Shape, kernel: Sequence[Dim]) -> Iterator[Axis]:
    """Yield the spatial axes of data with explicit padding, or none."""
    rank = len(shape) - 2
    strides, dilations, pads = _lists(call, rank)
    require(len(kernel) == rank)
    for index in range(rank):
        width = kernel[index]
        if not isinstance(width, int) or width < 1:
            raise Unknown
        reach = (width - 1) * dilations[index] + 1
        yield Axis(shape[2 + index], pads[index], pads[rank + index], strides[index], reach)


def _lists(call: Call, rank: int) -> tuple[list[int], list[int], list[int]]:
    strides = call.integers("strides") or [1] * rank
    dilations = call.integers("dilations") or [1] * rank
    pads = call.integers("pads") or [0] * 2 * rank
    require((len(strides), len(dilations), len(pads)) == (rank, rank, 2 * rank), rank > 0)
    require(min(*strides, *dilations, 1) > 0, min(pads) >= 0)
    return strides, dilations, pads


def _spatial(call: Call, shape: Shape, kernel: Sequence[Dim]) -> list[Dim]:
    """Return the spatial sizes of the result of a convolution."""
    rank = len(shape) - 2
    if _automatic(call, rank).startswith("SAME"):
        return _same(call, shape)
    if any(not isinstance(width, int) for width in kernel):
        return [None] * rank
    return [axis.windows() for axis in _axes(call, shape, kernel)]


def _automatic(call: Call, rank: int) -> str:
    auto = call.text("auto_pad", "NOTSET")
    require(auto in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
    require(auto == "NOTSET" or not any(_lists(call, rank)[2]))
    return auto


def _same(call: Call, shape: Shape) -> list[Dim]:
    """Return the spatial sizes divided by the strides, rounded up."""
    sizes = zip(shape[2:], _lists(call, len(shape) - 2)[0], strict=True)
    return [floor_divide(add(size, stride - 1), stride) for size, stride in sizes]


def _kernel(call: Call, weight: Shape | None, rank: int) -> list[Dim]:
    """Return the sizes of a kernel, which the weight has too."""
    sizes = call.integers("kernel_shape")
    if sizes is not None:
        return list(sizes)
    return [None] * rank if weight is None else list(weight[2:])


def _convolution(source: TypeSource, weight: int) -> Rule:
    """Return the rule of a convolution: a channel for each kernel, and the windows of each axis."""

    def convolution(call: Call) -> list[Fact]:
        x, w = call.shape(0), call[weight].shape
        require(w is None or len(w) == len(x))
        spatial = _spatial(call, x, _kernel(call, w, len(x) - 2))
        return [Fact(type_of(call, source), [x[0], None if w is None else w[0], *spatial])]

    return convolution


rule("Conv")(_convolution((0,), 1))
rule("FusedConv", domain=MICROSOFT)(_convolution((0,), 1))
rule("ConvInteger")(_convolution(ir.DataType.INT32, 1))
rule("QLinearConv")(_convolution((7,), 3))


@rule("ConvTranspose")
def conv_transpose(call: Call) -> list[Fact]:
    """The shape of data from which a convolution with this kernel gives the operand.

    stride * (size - 1) + output_padding + reach - padding, or ``output_shape``. With automatic
    padding nothing follows: versions and runtimes disagree.
    """
    x, w = call.shape(0), call[1].shape
    rank = len(x) - 2
    channels = multiply(None if w is None else w[1], call.integer("group", 1))
    wanted = call.integers("output_shape")
    extra = call.integers("output_padding") or [0] * rank
    require(call.text("auto_pad", "NOTSET") == "NOTSET", len(extra) == rank, rank > 0)
    if wanted is not None:
        # Some files list the sizes of batch and channels too.
        spatial = wanted if len(wanted) == rank else [None] * rank
        return [Fact(call[0].dtype, [x[0], channels, *spatial])]
    kernel = _kernel(call, w, rank)
    if any(width is None for width in kernel):
        return [Fact(call[0].dtype, [x[0], channels, *[None] * rank])]
    sizes = [
        add(multiply(axis.size, axis.stride), more + axis.reach - axis.stride - axis.padding)
        for axis, more in zip(_axes(call, x, kernel), extra, strict=True)
    ]
    return [Fact(call[0].dtype, [x[0], channels, *sizes])]


@rule("AveragePool", "LpPool", "MaxPool")
def pool(call: Call) -> list[Fact]:
    """The windows of each axis; the second result of MaxPool holds indices."""
    x, kernel = call.shape(0), given(call.integers("kernel_shape"))
    shape = [*x[:2], *_pooled(call, x, kernel)]
    return [Fact(call[0].dtype, shape), Fact(ir.DataType.INT64, shape)][: len(call.node.outputs)]


def rounded_up(get: Callable[[str, Any], Any], sizes: Sequence[Dim] | None) -> list[Axis] | None:
    """Return the spatial axes of a pool with ``ceil_mode``, where this may add windows.

    ``get`` returns an attribute of the pool by its name, or the default that is passed. ``sizes``
    of its data are None if their number is not known. None if the attributes do not fit together.
    """
    auto = str(get("auto_pad", "NOTSET"))
    if not get("ceil_mode", 0) or auto.startswith("SAME"):
        return []  # the number of windows is the number of strides in the data, for both roundings
    kernel = list(get("kernel_shape", ()))
    rank = len(kernel)
    strides, dilations = get("strides", [1] * rank), get("dilations", [1] * rank)
    pads = get("pads", [0] * 2 * rank) if auto == "NOTSET" else [0] * 2 * rank
    fits = (len(strides), len(dilations), len(pads)) == (rank, rank, 2 * rank)
    if not rank or not fits or min(strides) < 1:
        return None
    spatial = sizes[2:] if sizes is not None and len(sizes) == rank + 2 else [None] * rank
    reach = [(length - 1) * step + 1 for length, step in zip(kernel, dilations, strict=True)]
    return list(map(Axis, spatial, pads[:rank], pads[rank:], strides, reach))


def _is_read_in_two_ways(call: Call, auto: str, axes: Sequence[Axis]) -> bool:
    """Return whether the reference implementation of MaxPool disagrees with the definition."""
    if any(axis.before != axis.after for axis in axes) or auto == "SAME_LOWER":
        return True
    has_indices = len(call.node.outputs) > 1 and bool(call.node.outputs[1].name)
    return has_indices and (
        auto != "NOTSET" or bool(call.integer("ceil_mode", 0)) or any(axis.before for axis in axes)
    )


_CEIL_MODE_SINCE = {"LpPool": 18}
_DILATIONS_SINCE = {"AveragePool": 19, "LpPool": 18, "MaxPool": 10}


def _pooled(call: Call, shape: Shape, kernel: Sequence[int]) -> list[Dim]:
    """Return the spatial sizes of the result of pooling."""
    rank, name = len(shape) - 2, call.node.op_type
    auto, rounds_up = _automatic(call, rank), bool(call.integer("ceil_mode", 0))
    is_dilated = any(n != 1 for n in _lists(call, rank)[1])
    is_standard = call.node.domain != "com.microsoft"
    require(not (is_standard and rounds_up) or call.version >= _CEIL_MODE_SINCE.get(name, 10))
    require(not is_dilated or (is_standard and call.version >= _DILATIONS_SINCE[name]))
    if auto != "NOTSET" and (is_dilated or name == "LpPool"):
        return [None] * rank
    axes = list(_axes(call, shape, kernel))
    if name == "MaxPool" and _is_read_in_two_ways(call, auto, axes):
        return [None] * rank
    if auto.startswith("SAME"):
        fits = [isinstance(axis.size, int) and axis.size >= axis.reach for axis in axes]
        return [n if fit else None for n, fit in zip(_same(call, shape), fits, strict=True)]
    if auto == "VALID" and rounds_up and any(axis.may_overhang for axis in axes):
        return [None] * rank  # some runtimes round up there, and others do not
    return [axis.pooling_windows(rounds_up=rounds_up) for axis in axes]


@rule("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool")
def global_pool(call: Call) -> list[Fact]:
    """A single element along each spatial axis.

    The reference implementation takes the maximum along other axes unless the data is an image.
    """
    x = call.shape(0)
    require(call.node.op_type != "GlobalMaxPool" or len(x) == 4)
    return [Fact(call[0].dtype, [*x[:2], *[1] * (len(x) - 2)])]


@rule("QLinearAveragePool", "QLinearGlobalAveragePool", domain=MICROSOFT)
def q_linear_pool(call: Call) -> list[Fact]:
    """As of AveragePool and GlobalAveragePool."""
    require(not call.integer("channels_last", 0))
    return list((pool if call.node.op_type == "QLinearAveragePool" else global_pool)(call))[:1]


@rule("Resize", "Upsample")
def resize(call: Call) -> list[Fact]:
    """The wanted sizes, or each size times its scale, rounded down."""
    x = call.shape(0)
    if call.version < 11:
        return [Fact(call[0].dtype, _scaled(x, _scales(call, 1), range(len(x))))]
    axes = places_of(call.integers("axes") or range(len(x)), len(x))
    if call.has(3) and call[3].shape != (0,):
        sizes: list[Dim] = list(x)
        stretches = call.text("keep_aspect_ratio_policy", "stretch") == "stretch"
        for axis, size in zip(axes, shape_in(call, 3), strict=True):
            sizes[axis] = size if stretches else None
        return [Fact(call[0].dtype, sizes)]
    require(call.text("coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize")
    return [Fact(call[0].dtype, _scaled(x, _scales(call, 2), axes))]


def _scales(call: Call, index: int) -> list[float] | None:
    array = call[index].array
    return None if array is None or array.dtype != np.float32 else [float(n) for n in array.flat]


def _scaled(shape: Shape, scales: list[float] | None, axes: Sequence[int]) -> list[Dim]:
    if scales is None:
        return [None] * len(shape)
    sizes = list(shape)
    for axis, scale in zip(axes, scales, strict=True):
        sizes[axis] = _times(sizes[axis], scale)
    return sizes


def _times(size: Dim, scale: float) -> Dim:
    """Return ``floor(size * scale)`` where exact, float32 and float64 products agree on it."""
    if scale == 1:
        return size
    if not isinstance(size, int) or not 0 < scale < 1 << 20:
        return None
    sizes = {
        int(fractions.Fraction(scale) * size // 1),
        int(np.floor(np.float32(size) * np.float32(scale))),
        int(np.floor(size * scale)),
    }
    return sizes.pop() if len(sizes) == 1 else None


def _recurrent(call: Call, data: int = 0) -> list[Fact]:
    """All states ``[steps, directions, batch, hidden]``, the last one, and for LSTM the cell."""
    x, hidden = call.shape(data), call.integer("hidden_size", 0)
    require(len(x) == 3, hidden > 0, not call.integer("layout", 0))
    directions = 2 if call.text("direction", "forward") == "bidirectional" else 1
    last = Fact(call[data].dtype, [directions, x[1], hidden])
    return [Fact(call[data].dtype, [x[0], directions, x[1], hidden]), last, last]


rule("GRU", "LSTM", "RNN")(_recurrent)
rule("DynamicQuantizeLSTM", domain=MICROSOFT)(_recurrent)


def im2_col(call: Call) -> list[Fact]:
    """The windows along both axes of ``[N, H, W, C]``, and the elements of one window."""
    batch, *spatial, channels = call.shape(0)
    kernel, strides = given(call.integers("kernel_size")), given(call.integers("stride"))
    pads = call.integers("pad_amount") or [0] * 4
    dilations = call.integers("dilations") or [1, 1]
    require(len(spatial) == 2)
    reach = [step * (width - 1) + 1 for step, width in zip(dilations, kernel, strict=True)]
    axes = map(Axis, spatial, pads[:2], pads[2:], strides, reach)
    counts = [axis.windows() if axis.stride > 0 else None for axis in axes]
    row = channels * kernel[0] * kernel[1] if isinstance(channels, int) else None
    return [Fact(call[0].dtype, [batch, *counts, row])]


def quant_avg_pool(call: Call) -> list[Fact]:
    """The windows of a square kernel along the two spatial axes; numbers of float32."""
    sizes, side, stride = list(call.shape(0)), call.integer("kernel", 0), call.integer("stride", 0)
    require(len(sizes) == 4, side > 0, stride > 0)
    for axis in (1, 2) if call.text("data_layout", "NCHW") == "NHWC" else (2, 3):
        sizes[axis] = Axis(sizes[axis], 0, 0, stride, side).windows()
    return [Fact(ir.DataType.FLOAT, sizes)]


for _domain in ("qonnx.custom_op.general", "finn.custom_op.general", "finn"):
    rule("Im2Col", domain=_domain)(im2_col)
    rule("QuantAvgPool2d", domain=_domain)(quant_avg_pool)
