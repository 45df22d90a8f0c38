"""QuantizeLinear, DequantizeLinear and Clip as parts of drafts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.dialects.granularity import Layout
from qgraph.graph.edit import HALF_TYPES, Draft, Operand
from qgraph.numerics.formats import FORMATS, numpy_dtype
from qgraph.ops.steps import clamp
from qgraph.opsets.versions import QDQ_SINCE

Float32 = npt.NDArray[np.float32]

CODE_TYPES = ("UINT8", "INT8", "UINT16", "INT16")
"""Types for codes of activations, most widely supported first."""


CLIPPABLE = ("UINT8", "INT8")
"""Types whose codes a Clip can take in every runtime."""


_SINCE_HALF = 19
"""Opset since which scales, and with them the data, may have 16 bits."""


SCALAR = Layout(None, 0, ())


ONE, ZERO = np.ones((), np.float32), np.zeros((), np.float32)


def quantize(
    draft: Draft, x: Operand, scale: Float32, zero_point: Float32, kind: str, layout: Layout
) -> ir.Value:
    """Append a QuantizeLinear to codes of type ``kind``."""
    return _linear(draft, "QuantizeLinear", x, scale, zero_point, kind, layout, ir.DataType[kind])


def dequantize(
    draft: Draft, codes: Operand, scale: Float32, zero_point: Float32, kind: str, layout: Layout
) -> ir.Value:
    """Append a DequantizeLinear; without a zero point where that is 0 everywhere."""
    dtype = ir.DataType.FLOAT
    return _linear(draft, "DequantizeLinear", codes, scale, zero_point, kind, layout, dtype)


def _linear(
    draft: Draft,
    name: str,
    x: Operand,
    scale: Float32,
    zero_point: Float32,
    kind: str,
    layout: Layout,
    dtype: ir.DataType,
) -> ir.Value:
    operands: list[Operand | None] = [x, draft.constant(layout.lay(scale), "scale")]
    if name == "QuantizeLinear" or zero_point.any():
        codes = np.broadcast_to(layout.lay(zero_point), layout.shape).astype(numpy_dtype(kind))
        operands.append(draft.constant(codes, "zero_point"))
    since = _SINCE_HALF if draft.x.dtype in HALF_TYPES else 1
    draft.needs(max(layout.opset, QDQ_SINCE[kind], since))
    return draft.node(name, operands, layout.attributes, dtype=dtype)


def clip(draft: Draft, x: Operand, lo: Float32, hi: Float32) -> Operand:
    """Append a clamp in float: one Clip where the bounds are single numbers."""
    if lo.size == hi.size == 1:
        bounds = [draft.constant(bound.reshape(()), "bound") for bound in (lo, hi)]
        return draft.node("Clip", [x, *bounds], dtype=ir.DataType.FLOAT)
    bounded: Operand = clamp(draft.op, x, lo, hi)
    return bounded


def clip_codes(draft: Draft, codes: Operand, lo: float, hi: float, kind: str) -> ir.Value:
    """Append a Clip on codes."""
    draft.needs(12)
    bounds = [draft.constant(np.array(bound, numpy_dtype(kind)), "bound") for bound in (lo, hi)]
    return draft.node("Clip", [codes, *bounds], dtype=ir.DataType[kind])


def holding(lo: float, hi: float, kinds: tuple[str, ...]) -> str | None:
    """Return the first of ``kinds`` that has all codes from ``lo`` to ``hi``."""
    for kind in kinds:
        if FORMATS[kind].lo <= lo and hi <= FORMATS[kind].hi:
            return kind
    return None


def are_codes(kind: str, zero_point: Float32) -> bool:
    """Return whether a zero point consists of codes of ``kind``."""
    return bool((zero_point == np.rint(zero_point)).all()) and holds(kind, zero_point)


def holds(kind: str, values: Float32) -> bool:
    """Return whether all ``values`` lie in the range of ``kind``."""
    return bool((values >= FORMATS[kind].lo).all() and (values <= FORMATS[kind].hi).all())
