"""Find the convolutions of codes that OpenVINO computes wrongly, or for which it has no kernel.

All of these were run with AVX512-VNNI, with and without AMX. ``c`` are channels of data per group::

    ConvTranspose, c no multiple of 4, an activation after            wrong with AMX
    Conv with groups, 16 < c < 32, kernel larger than 1               wrong with AMX
    Conv of [N, c, 1, H, W], kernel of 3 along axis 2, c no multiple of 4    wrong
    Conv with groups, of a Concat of data with several zero points    wrong
    Conv of [N, C, D, H, W], depthwise, data with a zero point        no kernel for codes
    Conv of INT4 data with a zero point                               no kernel for codes
    Conv with up to 7 groups of one channel and several filters, larger than 1    wrong without AMX

The last one is wrong if the batch is open, a Slice or other movement of data follows, and codes
are INT8; or if it runs as a matrix product, whose pairs of products of 8 bits saturate. Depthwise
convolutions with one filter for each channel are right otherwise. Where there is no
kernel, the compiler stops at its default precision, if that is bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import onnx_ir as ir

from qgraph.graph.inference.rules import UNKNOWN, Shape
from qgraph.graph.inference.walk import infer
from qgraph.graph.schema import code_type
from qgraph.inventory.layers import FoundLayer
from qgraph.targets.layer import ZeroPoint

_LINEAR = frozenset({"Add", "Div", "Identity", "Mul", "Sub"})
"""Operators that become factors and summands of a layer."""
_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)
_WITHOUT = (ZeroPoint.NONE, ZeroPoint.ZERO)
_BLOCK = 4
_NARROW, _WIDE = 16, 32
_FEW = 8
"""Groups of one channel; from 7 on, all were right."""
_VOLUME = 5
"""Axes of the data of a convolution over three axes."""

ShapeOf = Callable[[ir.Value], Shape | None]


def misread_convolutions(
    layers: Iterable[FoundLayer], shape_of: ShapeOf
) -> Iterator[tuple[FoundLayer, str]]:
    """Yield the convolutions among layers on codes that are wrong or refused, and why.

    ``shape_of`` returns the inferred shape of a value; None if its rank is not known.
    """
    for layer in layers:
        data, weights = layer.node.inputs[:2]
        if data is None or weights is None or not layer.node.op_type.startswith("Conv"):
            continue
        find = _of_transposed if layer.node.op_type == "ConvTranspose" else _of_conv
        reason = find(layer, shape_of(data) or (), shape_of(weights) or ())
        if reason is not None:
            yield layer, reason


def _of_transposed(layer: FoundLayer, data: Shape, weights: Shape) -> str | None:
    channels = weights[0] if weights else 0
    is_odd = isinstance(channels, int) and channels % _BLOCK > 0
    if is_odd and layer.description.group == "dense" and _has_activation(layer.node.outputs[0]):
        return "with AMX, what follows a ConvTranspose of channels in no multiple of 4 is left out"
    return None


def _of_conv(layer: FoundLayer, data: Shape, weights: Shape) -> str | None:
    form = layer.description
    channels, *kernel = weights[1:] or (0, 0)
    offset = form.x.zero not in _WITHOUT
    if form.x.codes == "INT4" and offset:
        return "there is no kernel for INT4 data with a zero point"
    if form.one_filter:
        is_volume = form.rank == _VOLUME and offset
        text = "there is no kernel for depthwise convolutions over three axes with a zero point"
        return text if is_volume else None
    if form.group != "dense" and form.x.zero is ZeroPoint.DIFFER:
        return "zero points of several data, joined before groups, are mistaken"
    if not isinstance(channels, int):
        return None
    is_wide = any(size != 1 for size in kernel)
    if form.group == "depthwise" and is_wide and _has_few_groups(layer):
        return "without AMX, several filters for each of a few channels are wrong"
    if form.group == "grouped" and _NARROW < channels < _WIDE and is_wide:
        return "with AMX, groups of 17 to 31 channels are wrong"
    if len(data) == _VOLUME and data[2] == 1 != kernel[0] and channels % _BLOCK:
        return "data of depth 1, with channels in no multiple of 4, are padded wrongly"
    return None


def _has_few_groups(layer: FoundLayer) -> bool:
    return (layer.node.attributes.get_int("group", 1) or 1) < _FEW


def _has_activation(value: ir.Value) -> bool:
    """Return whether more than factors and a quantizer of 8 bits is computed with a layer."""
    while True:
        uses = list(value.uses())
        if len(uses) != 1 or value.is_graph_output():
            return False
        node = uses[0].node
        if node.op_type == "QuantizeLinear":
            return code_type(node) not in _BYTES
        if node.op_type not in _LINEAR:
            return True
        value = node.outputs[0]


def misread_convolutions_of(
    model: ir.Model, layers: Iterable[FoundLayer]
) -> list[tuple[FoundLayer, str]]:
    """Return the convolutions of a model that are wrong or refused, and why."""
    found = [layer for layer in layers if layer.node.op_type.startswith("Conv")]
    facts = infer(model) if found else {}
    return list(misread_convolutions(found, lambda value: facts.get(value, UNKNOWN).shape))
