"""Properties of the quantizers of a graph, for ``qgraph info``.

The bytes of weights as packed codes are computed from the formats of their quantizers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.scopes import node_name, producer_of
from qgraph.graph.tensors import slots, stored_bytes
from qgraph.numerics import Float32, blocks
from qgraph.numerics.formats import FORMATS, IntFormat, find_minifloat, holding
from qgraph.numerics.rounding import Rounding
from qgraph.quantizers.dialects.dialect import Refusal, Site
from qgraph.quantizers.dialects.layout import layout_of
from qgraph.quantizers.dialects.qdq_codes import SIGNED, UNSIGNED
from qgraph.quantizers.on_codes import CodedTensor, coded_pair
from qgraph.quantizers.quantizer import Affine, Bipolar, Floating, Quantizer, Ranged
from qgraph.records import dataclass, replace
from qgraph.reports import operator_name

_SCALE_BYTES = 4


@dataclass(frozen=True)
class Packing:
    """ONNX type of the codes of a constant quantizer; bytes of codes, scales and zero points."""

    type: str
    bytes: int


def packing_of(site: Site, opset: int) -> Packing | None:
    """Return the packing of a constant quantizer with the types of ``opset``.

    None if it is packed already, or no type can represent its codes.
    """
    if site.weight is None or _is_packed(site):
        return None
    type_name = code_type(site.quantizer, opset)
    if type_name is None:
        return None
    bits, scales, zero_points = FORMATS[type_name].bits, 1, 0
    match site.quantizer:
        case Affine(scale, zero_point):
            scales = max(scale.size, zero_point.size)
            zero_points = scales if zero_point.any() else 0
        case Ranged(_, _, low, high):
            # Equal bit for bit only if both limits are known.
            scales = 2 * max(low.size, high.size)
        case Floating(scale) | Bipolar(scale):
            scales = scale.size
    size = _bytes(site.weight.size, bits) + _SCALE_BYTES * scales + _bytes(zero_points, bits)
    return Packing(type_name, size)


def code_type(quantizer: Quantizer, opset: int) -> str | None:
    """Return the narrowest ONNX type of ``opset`` for every code of ``quantizer``."""
    match quantizer:
        case Affine(_, zero_point, lo, hi):
            return _integer(float(lo.min()), float(hi.max()), opset, zero_point)
        case Ranged(levels=levels):
            return _integer(0, levels - 1, opset)
        case Bipolar():
            return _integer(-1, 1, opset)
        case Floating(format=grid):
            minifloat = find_minifloat(grid.exponent_bits, grid.mantissa_bits, grid.bias)
            if minifloat is not None and QDQ_SINCE[minifloat.name] <= opset:
                return minifloat.name
            # Every value is a multiple of the smallest subnormal.
            top = grid.max_value / 2.0 ** (1 - grid.bias - grid.mantissa_bits)
            return _integer(-top, top, opset)
    return None


def packed_bytes(model: ir.Model, sites: Iterable[Site | Refusal], opset: int) -> int:
    """Return the bytes of all weights if constant quantizers are packed with types of ``opset``.

    Other weights keep their size; constants that only the quantizers read are removed.
    """
    packed = [
        (site, packing)
        for site in sites
        if isinstance(site, Site) and (packing := packing_of(site, opset)) is not None
    ]
    gone = _unused({node for site, _ in packed for node in site.nodes})
    stays = (slot for slot in slots(model) if slot.is_weight and not _is_gone(slot.owner, gone))
    kept = sum(stored_bytes(slot.tensor) for slot in stays)
    return kept + sum(packing.bytes for _, packing in packed)


def weight_size(site: Site) -> int:
    """Return the bytes of a constant quantizer's input as stored."""
    if site.weight is None:
        return 0
    dtype = site.x.dtype or ir.DataType.FLOAT
    return _bytes(site.weight.size, dtype.bitwidth)


def _is_packed(site: Site) -> bool:
    """Return whether the constant is already stored as codes: a DequantizeLinear alone."""
    return site.dialect == "qdq" and site.nodes[0].op_type != "QuantizeLinear"


def _bytes(elements: int, bits: int) -> int:
    return (elements * bits + 7) // 8


def _integer(
    low: float, high: float, opset: int, zero_point: npt.NDArray[np.float32] | None = None
) -> str | None:
    ends = [low, high]
    if zero_point is not None and (zero_point == np.rint(zero_point)).all():
        ends += [float(zero_point.min()), float(zero_point.max())]
    kinds = SIGNED if min(ends) < 0 else UNSIGNED
    return holding(min(ends), max(ends), [kind for kind in kinds if QDQ_SINCE[kind] <= opset])


def _unused(nodes: set[ir.Node]) -> set[ir.Node]:
    """Return ``nodes`` and all previous nodes whose outputs only they read."""
    gone, waiting = set(nodes), list(nodes)
    while waiting:
        for value in waiting.pop().inputs:
            producer = producer_of(value)
            if producer is None or producer in gone:
                continue
            if all(_only_read_by(output, gone) for output in producer.outputs):
                gone.add(producer)
                waiting.append(producer)
    return gone


def _only_read_by(value: ir.Value, nodes: set[ir.Node]) -> bool:
    return not value.is_graph_output() and nodes.issuperset(value.consumers())


def _is_gone(owner: ir.Value | ir.Node | ir.Function, gone: set[ir.Node]) -> bool:
    if isinstance(owner, ir.Value):
        used = bool(owner.consumers()) or owner.is_graph_output()
        return used and _only_read_by(owner, gone)
    return owner in gone


@dataclass(frozen=True)
class QuantizerInfo:
    """A quantizer in the graph, and its parameters as far as they are constant.

    Attributes:
        node, op: name and operator of the node that reports name.
        dialect: name of the dialect; ``qoperator`` if it belongs to an operator on codes, and
            ``dynamic`` if its scale is computed from the data.
        format: number format of its codes, such as ``int4``, ``int4 narrow`` or ``e4m3``.
        bits: width of a code.
        granularity: granularity of the scale.
        scale: smallest and largest scale, in real units per step.
        zero_point: smallest and largest zero point, in steps.
        rounding: how values between two codes are rounded.
        weight: whether its input is constant.
        weight_bytes, packed_bytes: of a constant input: bytes as stored, and as packed codes with
            their scales and zero points; equal if it is packed already or cannot be packed.
        packed_type: ONNX type of the packed codes.
        reason: why it cannot be read as a quantizer; then other fields are None, except the
            parameters of a single QuantizeLinear or DequantizeLinear.
    """

    node: str
    op: str
    dialect: str | None = None
    format: str | None = None
    bits: int | None = None
    granularity: str | None = None
    scale: tuple[float, float] | None = None
    zero_point: tuple[float, float] | None = None
    rounding: str | None = None
    weight: bool = False
    weight_bytes: int | None = None
    packed_bytes: int | None = None
    packed_type: str | None = None
    reason: str | None = None


def quantizer_info(site: Site | Refusal, opset: int) -> QuantizerInfo:
    """Return the properties of a quantizer; packed codes may use the types of ``opset``."""
    root = site.root
    name, op = node_name(root), operator_name(root)
    if isinstance(site, Refusal):
        if root.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            return QuantizerInfo(name, op, reason=site.reason)
        info = coded_info(coded_pair(root))
        if site.is_dynamic:
            return replace(info, dialect="dynamic")
        return replace(info, dialect="qdq", reason=site.reason)
    facts: dict[str, Any] = {"dialect": site.dialect, "weight": site.weight is not None}
    quantizer = site.meaning
    format_name, bits = format_of(quantizer)
    facts |= {"format": format_name, "bits": bits}
    match quantizer:
        case Affine(scale, zero_point, _, _, rounding):
            facts |= _parameters(site, scale, zero_point, rounding)
        case Ranged(_, _, low, high, levels):
            with np.errstate(all="ignore"):
                scale = (high - low) / np.float32(levels - 1)
                zero_point = -low / scale
            facts |= _parameters(site, scale, zero_point, Rounding.ROUND)
        case Floating(scale, _, rounding):
            facts |= _parameters(site, scale, None, rounding)
        case Bipolar(scale):
            facts |= _parameters(site, scale, None, None)
    if site.weight is not None:
        packed = packing_of(site, opset)
        facts |= {"weight_bytes": weight_size(site), "packed_bytes": weight_size(site)}
        if packed is not None:
            facts |= {"packed_bytes": packed.bytes, "packed_type": packed.type}
    return QuantizerInfo(name, op, **facts)


def coded_info(tensor: CodedTensor) -> QuantizerInfo:
    """Return the properties of codes that are an input or output of an operator."""
    node = tensor.node
    scale, zero_point = tensor.scale, tensor.zero_point
    return QuantizerInfo(
        node_name(node),
        operator_name(node),
        dialect="dynamic" if tensor.is_dynamic else "qoperator",
        format=tensor.format,
        bits=tensor.bits,
        granularity=tensor.granularity,
        scale=None if scale is None or not scale.size else _ends(scale),
        zero_point=None if zero_point is None or not zero_point.size else _ends(zero_point),
        rounding=None if tensor.is_weight else str(Rounding.ROUND),
        weight=tensor.is_weight,
        weight_bytes=tensor.stored,
        packed_bytes=tensor.stored,
    )


def format_of(quantizer: Quantizer) -> tuple[str | None, int | None]:
    """Return name and width in bits of the codes; None if only the operator defines them."""
    match quantizer:
        case Affine(_, _, lo, hi):
            return _integers(_ends(lo)[0], _ends(hi)[1])
        case Ranged(levels=levels):
            return _integers(0, levels - 1)
        case Floating(format=grid):
            return f"e{grid.exponent_bits}m{grid.mantissa_bits}", grid.bits
        case Bipolar():
            return "bipolar", 1
    return None, None


def _parameters(
    site: Site, scale: Float32, zero_point: Float32 | None, rounding: Rounding | None
) -> dict[str, Any]:
    parameters = [scale] if zero_point is None else [scale, zero_point]
    return {
        "granularity": _granularity(site, parameters),
        "scale": _ends(scale),
        "zero_point": None if zero_point is None else _ends(zero_point),
        "rounding": None if rounding is None else str(rounding),
    }


def _granularity(site: Site, parameters: list[Float32]) -> str:
    if site.repeats is not None and any(parameter.size > 1 for parameter in parameters):
        # Only the shape of what is repeated counts here.
        layout = layout_of(site.shape, np.broadcast_to(np.float32(0), site.repeats.sizes))
    else:
        layout = layout_of(site.shape or None, *parameters)
    if layout is None:
        return _blocks(site, parameters)
    if layout.block_size:
        return f"per {layout.block_size} along axis {layout.axis}"
    if layout.axis is None:
        return "per tensor"
    return f"per channel ({layout.shape[0]}, axis {layout.axis})"


def _blocks(site: Site, parameters: list[Float32]) -> str:
    """Return the blocks in parameters that vary along several axes."""
    joint = np.broadcast_shapes(*(parameter.shape for parameter in parameters))
    spread = [np.broadcast_to(parameter, joint) for parameter in parameters]
    sizes = joint if site.repeats is None else site.repeats.sizes
    strides = [blocks.stretch(spread, axis, site.repeats) for axis in range(len(sizes))]
    blocked = [axis for axis, size in enumerate(sizes) if 1 < strides[axis] < size]
    if len(blocked) == 1:
        axis = blocked[0] + max(len(site.shape) - len(joint), 0)
        return f"per {strides[blocked[0]]} along axis {axis}"
    return f"shape {list(sizes)}"


def _ends(parameter: npt.NDArray[Any]) -> tuple[float, float]:
    # Adding zero removes the sign of a negative one.
    if parameter.size == 1:
        return (float(parameter.item()) + 0.0,) * 2
    return float(parameter.min()) + 0.0, float(parameter.max()) + 0.0


@functools.lru_cache
def _integers(low: float, high: float) -> tuple[str, int | None]:
    for bits, narrow, signed in product(range(1, 33), (False, True), (True, False)):
        form = IntFormat(bits, signed, narrow)
        # The ends of 25 bits and more are rounded to float32.
        if [low, high] == [float(np.float32(end)) for end in (form.lo, form.hi)]:
            return form.name.lower(), bits
    width = int(np.ceil(np.log2(high - low + 1))) if 1 <= high - low < np.inf else None
    return f"{low:.0f} .. {high:.0f}", width
