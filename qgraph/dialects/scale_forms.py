"""Types in which the scales of stored codes may be stored: they decode to the same float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.choices import Choice
from qgraph.dialects.granularity import Layout
from qgraph.graph.edit import Draft, Operand
from qgraph.numerics.formats import FORMATS, numpy_dtype
from qgraph.opsets.versions import QDQ_SINCE

Float32 = npt.NDArray[np.float32]
Form = Callable[[Draft, ir.Value], Operand]

OUTPUT_TYPE_SINCE = 23
"""Opset since which DequantizeLinear says its output type apart from that of the scale."""

E8M0_SINCE = 24

_LEAST_BLOCKS = 16
"""Scales below so many save nothing as codes with a scale of their own."""


class Scales(Choice):
    """Which types scales may have.

    * ``float32``: that of the data, as every reader expects it.
    * ``smallest``: E8M0, FLOAT8E4M3FN with one float32 scale, float16 or bfloat16 where that has
      the same values; for readers of opset 23 or 24.
    """

    FLOAT = "float32"
    SMALLEST = "smallest"


def dequantized(
    layout: Layout,
    scale: Float32,
    zero_point: Float32,
    kind: str,
    dtype: ir.DataType,
    scales: Scales,
) -> Iterator[Form]:
    """Yield ways to append a DequantizeLinear with result ``dtype``, smallest scales first."""
    laid = np.asarray(layout.lay(scale), order="C")
    if scales is Scales.SMALLEST and dtype is ir.DataType.FLOAT and laid.size > 1:
        yield from _smaller(layout, laid, zero_point, kind)

    def plain(draft: Draft, codes: ir.Value) -> Operand:
        draft.needs(19 if dtype is not ir.DataType.FLOAT else 1)
        operand = draft.constant(laid.astype(numpy_dtype(dtype.name), copy=False), "scale")
        return _node(draft, codes, operand, layout, zero_point, kind, dtype)

    yield plain


def two_levels(scale: Float32) -> tuple[npt.NDArray[Any], np.float32] | None:
    """Return FLOAT8E4M3FN numbers and a factor whose float32 products are exactly ``scale``.

    None if there are none, or the scales are not all positive numbers.
    """
    values = np.unique(scale)
    positive = FORMATS["FLOAT8E4M3FN"]
    if not (np.isfinite(values).all() and values[0] > 0):
        return None
    top = values[-1]
    # Only the mantissa of the largest scale is open; its exponent is the highest there is.
    for mantissa in range(15, 7, -1):
        number = np.float32(mantissa * (32 if mantissa < 15 else 16))
        guess = np.float32(top / number)
        for factor in (
            guess,
            np.nextafter(guess, np.float32(0)),
            np.nextafter(guess, np.float32(np.inf)),
        ):
            with np.errstate(all="ignore"):
                numbers = positive.snap(values / factor)
                if np.array_equal(numbers * factor, values):
                    found = positive.snap(scale / factor)
                    return found.astype(numpy_dtype("FLOAT8E4M3FN")), np.float32(factor)
    return None


def _smaller(layout: Layout, laid: Float32, zero_point: Float32, kind: str) -> Iterator[Form]:
    powers = _exactly(laid, "FLOAT8E8M0")
    if powers is not None:
        yield _typed(layout, powers, zero_point, kind, E8M0_SINCE)
    found = two_levels(laid) if laid.size >= _LEAST_BLOCKS else None
    if found is not None:
        yield _chained(layout, *found, zero_point, kind)
    for name in ("FLOAT16", "BFLOAT16"):
        narrow = _exactly(laid, name)
        if narrow is not None:
            yield _typed(layout, narrow, zero_point, kind, OUTPUT_TYPE_SINCE)


def _exactly(laid: Float32, name: str) -> npt.NDArray[Any] | None:
    if name == "FLOAT8E8M0" and (laid <= 0).any():
        return None
    with np.errstate(all="ignore"):
        narrow = laid.astype(numpy_dtype(name))
        return narrow if np.array_equal(narrow.astype(np.float32), laid) else None


def _typed(
    layout: Layout, scale: npt.NDArray[Any], zero_point: Float32, kind: str, since: int
) -> Form:
    def form(draft: Draft, codes: ir.Value) -> Operand:
        draft.needs(since)
        operand = draft.constant(scale, "scale")
        to = {"output_dtype": int(ir.DataType.FLOAT)}
        return _node(draft, codes, operand, layout, zero_point, kind, ir.DataType.FLOAT, to)

    return form


def _chained(
    layout: Layout, numbers: npt.NDArray[Any], factor: np.float32, zero_point: Float32, kind: str
) -> Form:
    def form(draft: Draft, codes: ir.Value) -> Operand:
        draft.needs(QDQ_SINCE["FLOAT8E4M3FN"])
        operands = [draft.constant(numbers, "scale"), draft.constant(factor, "scale_scale")]
        scale = draft.node("DequantizeLinear", operands, dtype=ir.DataType.FLOAT)
        return _node(draft, codes, scale, layout, zero_point, kind, ir.DataType.FLOAT)

    return form


def _node(
    draft: Draft,
    codes: ir.Value,
    scale: ir.Value,
    layout: Layout,
    zero_point: Float32,
    kind: str,
    dtype: ir.DataType,
    attributes: dict[str, int] | None = None,
) -> Operand:
    operands = [codes, scale]
    if zero_point.any():
        numbers = np.broadcast_to(layout.lay(zero_point), layout.shape).astype(numpy_dtype(kind))
        operands.append(draft.constant(numbers, "zero_point"))
    draft.needs(max(layout.opset, QDQ_SINCE[kind]))
    return draft.node(
        "DequantizeLinear", operands, layout.attributes | (attributes or {}), dtype=dtype
    )
