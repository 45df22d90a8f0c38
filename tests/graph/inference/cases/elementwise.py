"""Elementwise operators and normalisations: random nodes."""

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
    opset,
)
from tests.graph.inference.makers import (
    I8,
    I32,
    I64,
    B,
    D,
    F,
    makes,
    scalar,
)


@makes("Abs", "Identity", "Neg")
def unary(name: str, rng: Rng) -> Case:
    kind = anything(rng, F, D, I32, I64, I8)
    return Case(
        name, [data(rng, dims(rng), kind, constant=rng.random() < 0.3)], opset=opset(rng, 13, 21)
    )


@makes(
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Ceil",
    "Celu",
    "Cos",
    "Cosh",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Log",
    "Mish",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "Gelu",
    "IsInf",
    "IsNaN",
    "Clip",
    "Dropout",
)
def float_unary(name: str, rng: Rng) -> Case:
    x = data(rng, dims(rng), F, constant=rng.random() < 0.3)
    return Case(name, [x], outputs=2 if name == "Dropout" else 1, opset=opset(rng, 20, 22))


@makes("Swish")
def swish(name: str, rng: Rng) -> Case:
    return Case(name, [data(rng, dims(rng))], opset=24)


@makes("Softmax", "LogSoftmax", "Hardmax", "LpNormalization")
def normal(name: str, rng: Rng) -> Case:
    return Case(name, [data(rng, dims(rng, int(rng.integers(1, 5))))], opset=opset(rng, 11, 13, 21))


@makes("Not")
def negation(name: str, rng: Rng) -> Case:
    return Case(name, [Operand(rng.integers(0, 2, dims(rng)).astype(B), rng.random() < 0.5)])


@makes("BitwiseNot")
def bits(name: str, rng: Rng) -> Case:
    return Case(name, [data(rng, dims(rng), I32)])


@makes("CumSum")
def cum_sum(name: str, rng: Rng) -> Case:
    return Case(name, [data(rng, dims(rng, 3)), scalar(1, I64)])


@makes("Trilu")
def trilu(name: str, rng: Rng) -> Case:
    return Case(name, [data(rng, dims(rng, 3))])


@makes("InstanceNormalization")
def instance(name: str, rng: Rng) -> Case:
    shape = dims(rng, 4, low=1)
    return Case(name, [data(rng, shape), data(rng, shape[1:2]), data(rng, shape[1:2])])


@makes("GroupNormalization")
def group_normal(name: str, rng: Rng) -> Case:
    shape = dims(rng, 4, low=1)
    operands = [data(rng, shape), data(rng, shape[1:2]), data(rng, shape[1:2])]
    return Case(name, operands, {"num_groups": 1})


@makes("LRN")
def lrn(name: str, rng: Rng) -> Case:
    return Case(name, [data(rng, dims(rng, 4, low=1))], {"size": 3})


@makes("MeanVarianceNormalization")
def mean_variance(name: str, rng: Rng) -> Case:
    return Case(name, [data(rng, dims(rng, 4, low=1))])


@makes("LayerNormalization")
def layer_normal(name: str, rng: Rng) -> Case:
    shape = dims(rng, 3, low=1)
    return Case(name, [data(rng, shape), data(rng, shape[-1:])], {"axis": -1})


@makes("RMSNormalization")
def rms_normal(name: str, rng: Rng) -> Case:
    shape = dims(rng, 3, low=1)
    return Case(name, [data(rng, shape), data(rng, shape[-1:])], {"axis": -1}, opset=23)


@makes("SimplifiedLayerNormalization")
def simplified(name: str, rng: Rng) -> Case:
    shape = dims(rng, 3, low=1)
    return Case(name, [data(rng, shape), data(rng, shape[-1:])], {"axis": -1})


@makes("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_normal(name: str, rng: Rng) -> Case:
    shape = dims(rng, 3, low=1)
    operands = [data(rng, shape), data(rng, shape), data(rng, shape[-1:])]
    return Case(name, operands, domain=MICROSOFT)


@makes("BatchNormalization")
def batch_normal(name: str, rng: Rng) -> Case:
    shape = dims(rng, 4, low=1)
    rest = [data(rng, shape[1:2], constant=True) for _ in range(3)]
    return Case(
        name, [data(rng, shape), *rest, Operand(np.ones(shape[1], F))], opset=opset(rng, 9, 15)
    )


@makes("PRelu")
def p_relu(name: str, rng: Rng) -> Case:
    shape = dims(rng)
    slope = [1 if rng.random() < 0.5 else n for n in shape][int(rng.integers(0, len(shape) + 1)) :]
    return Case(name, [data(rng, shape), data(rng, slope)])


@makes("Scatter", "ScatterElements")
def scatter(name: str, rng: Rng) -> Case:
    shape = dims(rng, 2, low=1)
    operands = [data(rng, shape), Operand(np.zeros((1, 1), I64)), data(rng, (1, 1))]
    return Case(name, operands, opset=9 if name == "Scatter" else 18)


@makes("ScatterND")
def scatter_nd(name: str, rng: Rng) -> Case:
    shape = dims(rng, 3, low=1)
    return Case(
        name, [data(rng, shape), Operand(np.zeros((2, 1), I64)), data(rng, [2, *shape[1:]])]
    )


@makes("ReverseSequence")
def reverse(name: str, rng: Rng) -> Case:
    shape = dims(rng, 3, low=1)
    return Case(name, [data(rng, shape), Operand(np.ones(shape[1], I64))])


@makes(
    "Add",
    "Div",
    "Mod",
    "Mul",
    "Sub",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "Max",
    "Min",
    "Pow",
)
def arithmetic(name: str, rng: Rng) -> Case:
    kind = anything(rng, F, I32, I64)
    one, other = broadcasting(rng, 2)
    second = data(rng, other, kind, constant=rng.random() < 0.5)
    if name in ("Div", "Mod", "Pow"):
        second.array = np.abs(second.array) + np.asarray(1, kind)
    fmod = {"fmod": 1} if name == "Mod" and (kind is F or rng.random() < 0.3) else {}
    return Case(
        name,
        [data(rng, one, kind, constant=rng.random() < 0.5), second],
        fmod,
        opset=opset(rng, 16, 21),
    )


@makes("Mean", "Sum")
def variadic(name: str, rng: Rng) -> Case:
    return Case(name, [data(rng, shape) for shape in broadcasting(rng, int(rng.integers(1, 4)))])


@makes("And", "Or", "Xor")
def logic(name: str, rng: Rng) -> Case:
    operands = [
        Operand(rng.integers(0, 2, shape).astype(B), rng.random() < 0.5)
        for shape in broadcasting(rng, 2)
    ]
    return Case(name, operands)


@makes("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor")
def bitwise(name: str, rng: Rng) -> Case:
    attributes = {"direction": "LEFT"} if name == "BitShift" else {}
    return Case(name, [data(rng, shape, np.uint32) for shape in broadcasting(rng, 2)], attributes)


@makes("Where")
def where(name: str, rng: Rng) -> Case:
    shapes, kind = broadcasting(rng, 3), anything(rng, F, I64)
    condition = Operand(rng.integers(0, 2, shapes[0]).astype(B), rng.random() < 0.5)
    return Case(
        name,
        [condition, *(data(rng, shape, kind, constant=rng.random() < 0.5) for shape in shapes[1:])],
    )


@makes("BiasGelu", "FastGelu", "Gelu", "QuickGelu", domain=MICROSOFT)
def gelu(name: str, rng: Rng) -> Case:
    shape = dims(rng, 3, low=1)
    bias = [data(rng, shape[-1:])] if name == "BiasGelu" else []
    return Case(name, [data(rng, shape), *bias], domain=MICROSOFT)
