"""How many bytes weights take as packed codes, told from the formats of their quantizers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.dialects.dialect import Refusal, Site
from qgraph.graph.tensors import slots, stored_bytes
from qgraph.numerics.formats import FORMATS, find_minifloat
from qgraph.opsets.versions import QDQ_SINCE
from qgraph.quantizer import Affine, Bipolar, Floating, Quantizer, Ranged

_SIGNED = ("INT2", "INT4", "INT8", "INT16", "INT32")
_UNSIGNED = ("UINT2", "UINT4", "UINT8", "UINT16", "INT32")
_SCALE_BYTES = 4


@dataclass(frozen=True)
class Packing:
    """How the values of a constant quantizer are packed.

    Attributes:
        type: ONNX type of the codes.
        bytes: codes, scales and zero points.
    """

    type: str
    bytes: int


def packing_of(site: Site, opset: int) -> Packing | None:
    """Return how a constant quantizer is packed, with the types of ``opset``.

    None where it is packed already, or no type holds its codes.
    """
    if site.weight is None or _is_packed(site):
        return None
    kind = code_type(site.quantizer, opset)
    if kind is None:
        return None
    bits, scales, zero_points = FORMATS[kind].bits, 1, 0
    match site.quantizer:
        case Affine(scale, zero_point):
            scales = max(scale.size, zero_point.size)
            zero_points = scales if zero_point.any() else 0
        case Ranged(_, _, low, high):
            # Bit for bit the same only with both limits at hand.
            scales = 2 * max(low.size, high.size)
        case Floating(scale) | Bipolar(scale):
            scales = scale.size
    size = _bytes(site.weight.size, bits) + _SCALE_BYTES * scales + _bytes(zero_points, bits)
    return Packing(kind, size)


def code_type(quantizer: Quantizer, opset: int) -> str | None:
    """Return the narrowest ONNX type of ``opset`` that holds every code of ``quantizer``."""
    match quantizer:
        case Affine(_, zero_point, lo, hi):
            return _integer(float(lo.min()), float(hi.max()), opset, zero_point)
        case Ranged(levels=levels):
            return _integer(0, levels - 1, opset)
        case Bipolar():
            return _integer(-1, 1, opset)
        case Floating(format=grid):
            found = find_minifloat(grid.exponent_bits, grid.mantissa_bits, grid.bias)
            if found is not None and QDQ_SINCE[found.name] <= opset:
                return found.name
            # Every value is a multiple of the smallest subnormal.
            top = grid.max_value / 2.0 ** (1 - grid.bias - grid.mantissa_bits)
            return _integer(-top, top, opset)
    return None


def packed_bytes(model: ir.Model, found: Iterable[Site | Refusal], opset: int) -> int:
    """Return the bytes of all weights when every constant quantizer is packed.

    The rest of the model keeps its own; what only the quantizers read goes.

    Args:
        model: it is not changed.
        found: its quantizers.
        opset: whose types codes may have.
    """
    packed = [
        (site, packing)
        for site in found
        if isinstance(site, Site) and (packing := packing_of(site, opset)) is not None
    ]
    gone = _unused({node for site, _ in packed for node in site.nodes})
    kept = 0
    for slot in slots(model):
        if slot.is_weight and not _is_gone(slot.owner, gone):
            kept += stored_bytes(slot.tensor)
    return kept + sum(packing.bytes for _, packing in packed)


def weight_size(site: Site) -> int:
    """Return the bytes of a constant quantizer's input as stored."""
    if site.weight is None:
        return 0
    dtype = site.x.dtype or ir.DataType.FLOAT
    return _bytes(site.weight.size, dtype.bitwidth)


def _is_packed(site: Site) -> bool:
    """Return whether the constant is codes already: a lone DequantizeLinear."""
    return site.dialect == "qdq" and site.nodes[0].op_type != "QuantizeLinear"


def _bytes(elements: int, bits: int) -> int:
    return (elements * bits + 7) // 8


def _integer(
    low: float, high: float, opset: int, zero_point: npt.NDArray[np.float32] | None = None
) -> str | None:
    ends = [low, high]
    if zero_point is not None and (zero_point == np.rint(zero_point)).all():
        ends += [float(zero_point.min()), float(zero_point.max())]
    for kind in _SIGNED if min(ends) < 0 else _UNSIGNED:
        form = FORMATS[kind]
        if QDQ_SINCE[kind] <= opset and form.lo <= min(ends) and max(ends) <= form.hi:
            return kind
    return None


def _unused(nodes: set[ir.Node]) -> set[ir.Node]:
    """Return ``nodes`` and all nodes before them whose outputs only they read."""
    gone, waiting = set(nodes), list(nodes)
    while waiting:
        for value in waiting.pop().inputs:
            producer = None if value is None else value.producer()
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
