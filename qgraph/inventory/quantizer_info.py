"""What a quantizer in a graph is, in words and numbers for people and programs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.dialects.dialect import Refusal, Site
from qgraph.dialects.granularity import layout_of
from qgraph.inventory.packing import packing_of, weight_size
from qgraph.numerics.formats import IntFormat
from qgraph.numerics.rounding import Rounding
from qgraph.quantizer import Affine, Bipolar, Floating, Quantizer, Ranged
from qgraph.report import operator_name

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class QuantizerInfo:
    """A quantizer in the graph, and its parameters as far as they are constant.

    Attributes:
        node, op: name and operator of the node that reports name.
        dialect: how it is spelled.
        format: number format of its codes, such as ``int4``, ``int4 narrow`` or ``e4m3``.
        bits: width of a code.
        granularity: over which elements one scale reaches.
        scale: smallest and largest scale, in real units per step.
        zero_point: smallest and largest zero point, in steps.
        rounding: how values between two codes are rounded.
        weight: whether its input is constant.
        weight_bytes, packed_bytes: of a constant input: bytes as stored, and as packed codes with
            their scales and zero points; the same where it is packed already or cannot be.
        packed_type: ONNX type of codes that are to be packed.
        reason: why its parameters cannot be read; the other fields are None then.
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


def quantizer_info(found: Site | Refusal, opset: int) -> QuantizerInfo:
    """Return what is known of a quantizer; packed codes may use the types of ``opset``."""
    root = found.root
    name, op = root.name or root.outputs[0].name or "", operator_name(root)
    if isinstance(found, Refusal):
        return QuantizerInfo(name, op, reason=found.reason)
    known: dict[str, Any] = {"dialect": found.dialect, "weight": found.weight is not None}
    kind, bits = format_of(found.quantizer)
    known |= {"format": kind, "bits": bits}
    match found.quantizer:
        case Affine(scale, zero_point, _, _, rounding):
            known |= _parameters(found, scale, zero_point, rounding)
        case Ranged(_, _, low, high, levels):
            with np.errstate(all="ignore"):
                scale = (high - low) / np.float32(levels - 1)
                zero_point = -low / scale
            known |= _parameters(found, scale, zero_point, Rounding.ROUND)
        case Floating(scale, _, rounding):
            known |= _parameters(found, scale, None, rounding)
        case Bipolar(scale):
            known |= _parameters(found, scale, None, None)
    if found.weight is not None:
        packed = packing_of(found, opset)
        known |= {"weight_bytes": weight_size(found), "packed_bytes": weight_size(found)}
        if packed is not None:
            known |= {"packed_bytes": packed.bytes, "packed_type": packed.type}
    return QuantizerInfo(name, op, **known)


def format_of(quantizer: Quantizer) -> tuple[str | None, int | None]:
    """Return name and width in bits of the codes; None where an operator alone knows them."""
    match quantizer:
        case Affine(_, _, lo, hi):
            return _integers(float(lo.min()), float(hi.max()))
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
    layout = layout_of(site.shape or None, *parameters)
    if layout is None:
        return _blocks(site, parameters)
    if layout.block_size:
        return f"per {layout.block_size} along axis {layout.axis}"
    if layout.axis is None:
        return "per tensor"
    return f"per channel ({layout.shape[0]}, axis {layout.axis})"


def _blocks(site: Site, parameters: list[Float32]) -> str:
    """Find the blocks in parameters that are spread over the elements of the data."""
    joint = np.broadcast_shapes(*(parameter.shape for parameter in parameters))
    spread = np.stack([np.broadcast_to(parameter, joint) for parameter in parameters])
    found = []
    for axis, size in enumerate(joint):
        changes = np.diff(np.moveaxis(spread, axis + 1, 0), axis=0).any(
            axis=tuple(range(1, spread.ndim))
        )
        block = math.gcd(size, *(np.flatnonzero(changes) + 1).tolist())
        if 1 < block < size:
            found.append((block, axis + max(len(site.shape) - len(joint), 0)))
    if len(found) == 1:
        return f"per {found[0][0]} along axis {found[0][1]}"
    return f"shape {list(joint)}"


def _ends(parameter: Float32) -> tuple[float, float]:
    # Adding zero removes the sign of a negative one.
    return float(parameter.min()) + 0.0, float(parameter.max()) + 0.0


def _integers(low: float, high: float) -> tuple[str, int | None]:
    for bits in range(1, 33):
        for narrow in (False, True):
            for kind in (IntFormat(bits, True, narrow), IntFormat(bits, False, narrow)):
                if (low, high) == (kind.lo, kind.hi):
                    return kind.name.lower(), bits
    width = int(np.ceil(np.log2(high - low + 1))) if 1 <= high - low < np.inf else None
    return f"{low:.0f} .. {high:.0f}", width
