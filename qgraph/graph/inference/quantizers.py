"""Quantizers of all dialects: the shape of the data, and the type of codes or of numbers."""

from __future__ import annotations

import onnx_ir as ir

from qgraph.graph.inference.elementwise import broadcast_shape
from qgraph.graph.inference.facts import Fact
from qgraph.graph.inference.rules import Call, Unknown, rule

_MICROSOFT = "com.microsoft"

_QONNX = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general", "finn")


def _quantize_linear(call: Call) -> list[Fact]:
    """The data's shape, in the type of the zero point, else of ``output_dtype``, else uint8."""
    named = call.dtype("output_dtype")
    if call.has(2):
        return [Fact(call[2].dtype, call[0].shape)]
    return [Fact(named or ir.DataType.UINT8, call[0].shape)]


def _dequantize_linear(call: Call) -> list[Fact]:
    """The shape of the codes, in the type of ``output_dtype``, else of the scale."""
    return [Fact(call.dtype("output_dtype") or call[1].dtype, call[0].shape)]


for _domain in ("", _MICROSOFT):
    rule("QuantizeLinear", domain=_domain)(_quantize_linear)
    rule("DequantizeLinear", domain=_domain)(_dequantize_linear)


@rule("DynamicQuantizeLinear")
def dynamic_quantize_linear(call: Call) -> list[Fact]:
    """Codes of uint8 in the data's shape, and a single scale and zero point."""
    codes = ir.DataType.UINT8
    return [Fact(codes, call[0].shape), Fact(ir.DataType.FLOAT, ()), Fact(codes, ())]


def _broadcasting(call: Call) -> list[Fact]:
    """The shape to which the data and all parameters broadcast; float32 where the data is."""
    x = call[0]
    shape = x.shape
    for place in range(1, len(call.operands)):
        if call.has(place):
            shape = broadcast_shape(shape, call[place].shape)
    return [Fact(x.dtype if x.dtype is ir.DataType.FLOAT else None, shape)]


for _domain in _QONNX:
    rule("BipolarQuant", "FloatQuant", "IntQuant", "Quant", "Trunc", domain=_domain)(_broadcasting)


def _fake_quantize(call: Call) -> list[Fact]:
    """The shape of the data, to which the ends of the ranges broadcast."""
    if call.text("auto_broadcast", "numpy") != "numpy" or len(call.operands) < 5:
        raise Unknown
    return _broadcasting(call)


rule("FakeQuantize", domain="org.openvinotoolkit")(_fake_quantize)
rule("FakeQuantize")(_fake_quantize)
