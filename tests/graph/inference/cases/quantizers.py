"""Quantizers and operators on codes: random nodes."""

from __future__ import annotations

import numpy as np

from tests.graph.inference.generator import (
    MICROSOFT,
    Case,
    Operand,
    Rng,
    anything,
    broadcasting,
    data,
    dims,
)
from tests.graph.inference.makers import (
    I8,
    MAKERS,
    U8,
    B,
    F,
    Maker,
    codes,
    makes,
    scalar,
)


@makes("QuantizeLinear")
def quantize(name: str, rng: Rng) -> Case:
    x, kind = data(rng, dims(rng)), anything(rng, U8, I8, np.uint16)
    if rng.random() < 0.3:
        named = {"output_dtype": 5} if rng.random() < 0.5 else {}
        return Case(name, [x, scalar(0.5)], named)
    return Case(name, [x, scalar(0.5), Operand(np.asarray(1, kind), rng.random() < 0.7)])


@makes("DequantizeLinear")
def dequantize(name: str, rng: Rng) -> Case:
    x, kind = data(rng, dims(rng), U8), anything(rng, F, np.float16)
    return Case(name, [x, scalar(0.5, kind), scalar(1, U8)][: int(rng.integers(2, 4))])


@makes("DynamicQuantizeLinear")
def dynamic_quantize(name: str, rng: Rng) -> Case:
    return Case(name, [data(rng, dims(rng, 3, low=1))], outputs=3)


@makes("QuantizeLinear", domain=MICROSOFT)
def quantize_ms(name: str, rng: Rng) -> Case:
    return Case(
        name,
        [data(rng, dims(rng)), scalar(0.5), scalar(1, anything(rng, U8, I8))],
        domain=MICROSOFT,
    )


@makes("DequantizeLinear", domain=MICROSOFT)
def dequantize_ms(name: str, rng: Rng) -> Case:
    return Case(name, codes(rng, dims(rng)), domain=MICROSOFT)


@makes("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def q_linear_binary(name: str, rng: Rng) -> Case:
    one, other = broadcasting(rng, 2, low=1)
    return Case(
        name, [*codes(rng, one), *codes(rng, other), scalar(0.5), scalar(3, U8)], domain=MICROSOFT
    )


@makes("QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax", domain=MICROSOFT)
def q_linear_unary(name: str, rng: Rng) -> Case:
    more = {"opset": 13} if name == "QLinearSoftmax" else {}
    return Case(
        name,
        [*codes(rng, dims(rng, 3, low=1)), scalar(0.25), scalar(1, U8)],
        more,
        domain=MICROSOFT,
    )


@makes("QLinearWhere", domain=MICROSOFT)
def q_linear_where(name: str, rng: Rng) -> Case:
    shapes = broadcasting(rng, 3, low=1)
    condition = Operand(rng.integers(0, 2, shapes[0]).astype(B))
    return Case(
        name,
        [condition, *codes(rng, shapes[1]), *codes(rng, shapes[2]), scalar(0.5), scalar(3, U8)],
        domain=MICROSOFT,
    )


QONNX = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general", "finn")


def quantizer(domain: str) -> Maker:
    """How to draw a quantizer of a QONNX domain, whose parameters may enlarge the data."""

    def make(name: str, rng: Rng) -> Case:
        one, other = broadcasting(rng, 2, low=1)
        scale = Operand(np.full(other, 0.5, F), rng.random() < 0.7)
        numbers = {
            "BipolarQuant": (),
            "FloatQuant": (4, 3, 7, 240),
            "IntQuant": (0, 4),
            "Quant": (0, 4),
            "Trunc": (0, 8, 4),
        }[name]
        return Case(name, [data(rng, one), scale, *map(scalar, numbers)], domain=domain)

    return make


for _domain in QONNX:
    for _name in ("BipolarQuant", "FloatQuant", "IntQuant", "Quant", "Trunc"):
        MAKERS[_domain, _name] = quantizer(_domain)


def fake_quantize(domain: str) -> Maker:
    def make(name: str, rng: Rng) -> Case:
        shape = dims(rng, low=1)
        ends = [
            Operand(np.asarray(n, F).reshape([1] * len(shape)), constant=True) for n in (0, 2, 0, 2)
        ]
        return Case(name, [data(rng, shape), *ends], {"levels": 256}, domain=domain)

    return make


for _domain in ("", "org.openvinotoolkit"):
    MAKERS[_domain, "FakeQuantize"] = fake_quantize(_domain)
