"""How to draw a random node of each operator that has a rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from tests.graph.inference.generator import (
    MICROSOFT,
    Case,
    Operand,
    Rng,
    anything,
    broadcasting,
    data,
    dims,
    ints,
    opset,
)

Maker = Callable[[str, Rng], Case]
MAKERS: dict[tuple[str, str], Maker] = {}

F, D, I8, U8, I32, I64, B = np.float32, np.float64, np.int8, np.uint8, np.int32, np.int64, np.bool_


def makes(*names: str, domain: str = "") -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        for name in names:
            MAKERS[domain, name] = maker
        return maker

    return register


def scalar(number: float, dtype: Any = F) -> Operand:
    return Operand(np.asarray(number, dtype), constant=True)


def codes(rng: Rng, shape: Any, dtype: Any = U8, **options: Any) -> list[Operand]:
    """Codes with their scale and zero point."""
    return [data(rng, shape, dtype, **options), scalar(0.5), scalar(3, dtype)]


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


@makes("Transpose")
def transpose(name: str, rng: Rng) -> Case:
    shape = dims(rng)
    perm = {"perm": rng.permutation(len(shape)).tolist()} if shape and rng.random() < 0.7 else {}
    return Case(name, [data(rng, shape, constant=rng.random() < 0.2)], perm)


@makes("Flatten")
def flatten(name: str, rng: Rng) -> Case:
    shape = dims(rng, int(rng.integers(1, 5)))
    axis = int(rng.integers(-len(shape), len(shape) + 1))
    return Case(name, [data(rng, shape)], {"axis": axis})


@makes("Squeeze", "Unsqueeze")
def squeeze(name: str, rng: Rng) -> Case:
    shape = [1 if rng.random() < 0.5 else n for n in dims(rng, int(rng.integers(1, 5)))]
    if name == "Unsqueeze":
        rank = len(shape) + 2
        axes = sorted(rng.permutation(rank)[:2].tolist())
    else:
        rank, axes = len(shape), [k for k, n in enumerate(shape) if n == 1]
    axes = [k - rank for k in axes] if rng.random() < 0.3 else axes
    version = opset(rng, 11, 13, 21)
    if name == "Squeeze" and rng.random() < 0.3:
        return Case(name, [data(rng, shape)], opset=version)
    if version < 13:
        return Case(name, [data(rng, shape)], {"axes": axes}, opset=version)
    return Case(name, [data(rng, shape), ints(rng, axes)], opset=version)


@makes("Expand")
def expand(name: str, rng: Rng) -> Case:
    one, other = broadcasting(rng, 2)
    return Case(name, [data(rng, one, constant=rng.random() < 0.3), ints(rng, other)])


@makes("Tile")
def tile(name: str, rng: Rng) -> Case:
    shape = dims(rng)
    return Case(
        name,
        [
            data(rng, shape, constant=rng.random() < 0.3),
            ints(rng, rng.integers(0, 4, len(shape)).tolist()),
        ],
    )


@makes("Concat")
def concat(name: str, rng: Rng) -> Case:
    shape = dims(rng, int(rng.integers(1, 4)))
    axis, kind = int(rng.integers(-len(shape), len(shape))), anything(rng, F, I64)
    operands = []
    for _ in range(int(rng.integers(1, 4))):
        sizes = list(shape)
        sizes[axis] = int(rng.integers(0, 4))
        operands.append(data(rng, sizes, kind, constant=rng.random() < 0.5))
    return Case(name, operands, {"axis": axis})


@makes("QLinearConcat", domain=MICROSOFT)
def q_linear_concat(name: str, rng: Rng) -> Case:
    shape = dims(rng, 3, low=1)
    operands = [scalar(0.5), scalar(3, U8), *codes(rng, shape), *codes(rng, shape)]
    return Case(name, operands, {"axis": int(rng.integers(0, 3))}, domain=MICROSOFT)


@makes("Split")
def split(name: str, rng: Rng) -> Case:
    shape, version = dims(rng, 2, low=1, high=9), opset(rng, 11, 13, 18, 21)
    axis, outputs = int(rng.integers(-2, 2)), int(rng.integers(1, 4))
    x = data(rng, shape, constant=rng.random() < 0.3)
    if rng.random() < 0.5:
        cuts = sorted(rng.integers(0, shape[axis] + 1, outputs - 1).tolist())
        parts = np.diff([0, *cuts, shape[axis]]).tolist()
        if version < 13:
            return Case(name, [x], {"axis": axis, "split": parts}, outputs, opset=version)
        return Case(name, [x, ints(rng, parts)], {"axis": axis}, outputs, opset=version)
    attributes = {"axis": axis} | ({"num_outputs": outputs} if version >= 18 else {})
    return Case(name, [x], attributes, outputs, opset=version)


@makes("Slice")
def slices(name: str, rng: Rng) -> Case:
    shape = dims(rng, int(rng.integers(1, 4)))
    axes = rng.permutation(len(shape))[: int(rng.integers(1, len(shape) + 1))].tolist()
    ends = [-(1 << 63), -9, -2, -1, 0, 1, 2, 3, 9, 1 << 31, (1 << 63) - 1]
    starts, stops = ([int(anything(rng, *ends)) for _ in axes] for _ in range(2))
    axes = [k - len(shape) if rng.random() < 0.3 else k for k in axes]
    x = data(rng, shape, I64, constant=rng.random() < 0.5)
    if rng.random() < 0.2:
        return Case(name, [x], {"starts": starts, "ends": stops, "axes": axes}, opset=9)
    steps = [int(anything(rng, -2, -1, 1, 1, 2, 5)) for _ in axes]
    return Case(
        name,
        [x, ints(rng, starts), ints(rng, stops), ints(rng, axes), ints(rng, steps)],
        opset=opset(rng, 11, 13),
    )


@makes("Gather")
def gather(name: str, rng: Rng) -> Case:
    shape = dims(rng, int(rng.integers(1, 4)), low=1)
    axis = int(rng.integers(-len(shape), len(shape)))
    places = rng.integers(-shape[axis], shape[axis], dims(rng, int(rng.integers(0, 3)))).astype(I64)
    return Case(
        name,
        [data(rng, shape, I64, constant=rng.random() < 0.5), Operand(places, rng.random() < 0.7)],
        {"axis": axis},
    )


@makes("GatherElements")
def gather_elements(name: str, rng: Rng) -> Case:
    shape = dims(rng, 2, low=1)
    return Case(name, [data(rng, shape), Operand(np.zeros(shape, I64))], {"axis": 1})


@makes("GatherND")
def gather_nd(name: str, rng: Rng) -> Case:
    shape, last = dims(rng, 3, low=1), int(rng.integers(1, 4))
    places = np.zeros([*dims(rng, int(rng.integers(0, 3))), last], I64)
    return Case(name, [data(rng, shape), Operand(places)])


@makes("OneHot")
def one_hot(name: str, rng: Rng) -> Case:
    shape = dims(rng, int(rng.integers(1, 3)))
    axis = int(rng.integers(-len(shape) - 1, len(shape) + 1))
    depth = ints(rng, anything(rng, 3, 4))
    return Case(
        name, [Operand(np.zeros(shape, I64)), depth, Operand(np.asarray([0, 1], F))], {"axis": axis}
    )


@makes("Pad")
def pad(name: str, rng: Rng) -> Case:
    shape = dims(rng, int(rng.integers(1, 4)), low=1)
    version, pads = opset(rng, 9, 11, 18), rng.integers(-1, 3, 2 * len(shape)).tolist()
    if version < 11:
        return Case(name, [data(rng, shape)], {"pads": pads}, opset=version)
    operands = [data(rng, shape), ints(rng, pads)]
    if version == 18 and rng.random() < 0.5:
        pads = rng.integers(0, 3, 2).tolist()
        operands = [
            data(rng, shape),
            ints(rng, pads),
            scalar(1),
            ints(rng, [int(rng.integers(-len(shape), len(shape)))]),
        ]
    return Case(name, operands, opset=version)


@makes("DepthToSpace", "SpaceToDepth")
def blocks(name: str, rng: Rng) -> Case:
    n, c, h, w = dims(rng, 4, low=1)
    shape = [n, 4 * c, h, w] if name == "DepthToSpace" else [n, c, 2 * h, 2 * w]
    return Case(name, [data(rng, shape)], {"blocksize": 2})


@makes("Reshape")
def reshape(name: str, rng: Rng) -> Case:
    shape = dims(rng, int(rng.integers(0, 5)))
    total, target = int(np.prod(shape, dtype=int)), []
    for _ in range(int(rng.integers(0, 4))):
        factors = [k for k in range(1, total + 1) if total % k == 0] or [0]
        target.append(int(anything(rng, *factors)))
        total //= target[-1] or 1
    target.append(total)
    for place, size in enumerate(shape):
        if place < len(target) and target[place] == size and rng.random() < 0.5:
            target[place] = 0
    if rng.random() < 0.5:
        target[int(rng.integers(len(target)))] = -1
    if rng.random() < 0.1:
        target = [int(rng.integers(-1, 4)) for _ in target]
    allow = {"allowzero": 1} if rng.random() < 0.2 else {}
    return Case(
        name,
        [data(rng, shape, I64, constant=rng.random() < 0.2), ints(rng, target)],
        allow,
        opset=opset(rng, 14, 21),
    )


@makes("Constant")
def constants(name: str, rng: Rng) -> Case:
    held = anything(
        rng,
        {"value": ir.tensor(np.arange(3, dtype=I64))},
        {"value_float": 1.5},
        {"value_ints": [1, 2]},
        {"value_int": 7},
        {"value_floats": [0.5, 1.0]},
    )
    return Case(name, [], dict(held))


@makes("Shape", "Size")
def sizes(name: str, rng: Rng) -> Case:
    ends = {
        key: int(rng.integers(-6, 7))
        for key in ("start", "end")
        if name == "Shape" and rng.random() < 0.5
    }
    return Case(name, [data(rng, dims(rng))], ends, opset=opset(rng, 15, 21))


@makes("Cast")
def cast(name: str, rng: Rng) -> Case:
    kinds = [F, D, I8, U8, np.int16, np.uint16, I32, np.uint32, I64, np.uint64, B]
    numbers = [0, 1, -1, 127, 128, 255, 256, 300, -129, 1 << 24, (1 << 24) + 1, 1 << 31, 1 << 40]
    source, to = anything(rng, *kinds), anything(rng, *kinds)
    array = np.asarray([anything(rng, *numbers) for _ in range(3)])
    with np.errstate(all="ignore"):
        array = (
            (array * anything(rng, 1, 1, 0.5))
            .astype(I64 if rng.random() < 0.7 else D)
            .astype(source)
        )
    x = Operand(array, rng.random() < 0.8)
    return Case(
        name, [x], {"to": int(ir.DataType.from_numpy(np.dtype(to)))}, opset=opset(rng, 13, 21)
    )


@makes("CastLike")
def cast_like(name: str, rng: Rng) -> Case:
    return Case(
        name,
        [
            data(rng, dims(rng), anything(rng, F, I64), constant=rng.random() < 0.5),
            data(rng, [], anything(rng, I32, F)),
        ],
    )


@makes("ConstantOfShape")
def constant_of_shape(name: str, rng: Rng) -> Case:
    value = anything(
        rng,
        {},
        {"value": ir.tensor(np.asarray([7], I64))},
        {"value": ir.tensor(np.asarray([True]))},
    )
    return Case(name, [ints(rng, dims(rng))], dict(value))


@makes("Range")
def ranges(name: str, rng: Rng) -> Case:
    kind = anything(rng, I64, I32, F)
    ends = [int(n) for n in rng.integers(-9, 9, 2)]
    return Case(name, [ints(rng, n, kind) for n in (*ends, int(anything(rng, -3, -1, 1, 2)))])


@makes("NonZero")
def non_zero(name: str, rng: Rng) -> Case:
    return Case(name, [data(rng, dims(rng, int(rng.integers(1, 4))))])


@makes("EyeLike")
def eye(name: str, rng: Rng) -> Case:
    return Case(
        name, [data(rng, dims(rng, 2), anything(rng, F, I64))], anything(rng, {}, {"dtype": 7})
    )


@makes("Bernoulli", "RandomNormalLike", "RandomUniformLike")
def random_like(name: str, rng: Rng) -> Case:
    return Case(name, [Operand(np.full(dims(rng), 0.5, F))], anything(rng, {}, {"dtype": 11}))


@makes("RandomNormal", "RandomUniform")
def random(name: str, rng: Rng) -> Case:
    return Case(name, [], {"shape": dims(rng)} | anything(rng, {}, {"dtype": 11}))


def windows(rng: Rng, rank: int) -> dict[str, Any]:
    """Random attributes of an operator with windows, but its kernel."""
    attributes: dict[str, Any] = {}
    if rng.random() < 0.6:
        attributes["strides"] = rng.integers(1, 4, rank).tolist()
    if rng.random() < 0.3:
        attributes["dilations"] = rng.integers(1, 3, rank).tolist()
    auto = anything(rng, "NOTSET", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    if auto != "NOTSET":
        attributes["auto_pad"] = auto
    elif rng.random() < 0.6:
        attributes["pads"] = rng.integers(0, 3, 2 * rank).tolist()
    return attributes


@makes("Conv", "ConvInteger", "QLinearConv", "ConvTranspose")
def conv(name: str, rng: Rng) -> Case:
    rank, group = int(anything(rng, 1, 2, 2)), int(anything(rng, 1, 1, 2))
    kernel = rng.integers(1, 4, rank).tolist()
    shape = [*dims(rng, 1), 2 * group, *rng.integers(1, 9, rank).tolist()]
    weight = [2 * group, 3, *kernel] if name == "ConvTranspose" else [2 * group, 2, *kernel]
    attributes = windows(rng, rank) | {"group": group}
    if rng.random() < 0.5:
        attributes["kernel_shape"] = kernel
    if name == "ConvTranspose" and rng.random() < 0.3:
        attributes["output_padding"] = [
            min(1, n - 1) for n in attributes.get("strides", [1] * rank)
        ]
    fixed = bool(rng.random() < 0.7)
    if name == "ConvInteger":
        return Case(name, [data(rng, shape, U8), data(rng, weight, U8, constant=fixed)], attributes)
    if name == "QLinearConv":
        operands = [
            *codes(rng, shape),
            *codes(rng, weight, constant=fixed),
            scalar(0.5),
            scalar(3, U8),
        ]
        return Case(name, operands, attributes)
    return Case(
        name,
        [data(rng, shape), data(rng, weight, constant=fixed)],
        attributes,
        opset=opset(rng, 11, 21),
    )


@makes("AveragePool", "LpPool", "MaxPool")
def pool(name: str, rng: Rng) -> Case:
    rank = int(anything(rng, 1, 2, 2))
    shape = [*dims(rng, 2), *rng.integers(1, 10, rank).tolist()]
    attributes = windows(rng, rank) | {"kernel_shape": rng.integers(1, 4, rank).tolist()}
    if rng.random() < 0.6:
        attributes["ceil_mode"] = 1
    if name == "AveragePool" and rng.random() < 0.5:
        attributes["count_include_pad"] = 1
    outputs = 2 if name == "MaxPool" and rng.random() < 0.3 else 1
    return Case(name, [data(rng, shape)], attributes, outputs, opset=opset(rng, 12, 19, 22))


@makes("QLinearAveragePool", domain=MICROSOFT)
def q_linear_pool(name: str, rng: Rng) -> Case:
    attributes = windows(rng, 2) | {"kernel_shape": rng.integers(1, 4, 2).tolist()}
    attributes.pop("dilations", None)
    if rng.random() < 0.5:
        attributes["ceil_mode"] = 1
    shape = [*dims(rng, 2, low=1), *rng.integers(1, 9, 2).tolist()]
    return Case(
        name,
        [*codes(rng, shape), scalar(0.25), scalar(1, U8)],
        attributes,
        domain=MICROSOFT,
        opset=16,
    )


@makes("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool")
def global_pool(name: str, rng: Rng) -> Case:
    return Case(name, [data(rng, dims(rng, int(rng.integers(3, 5)), low=1))])


@makes("QLinearGlobalAveragePool", domain=MICROSOFT)
def q_linear_global(name: str, rng: Rng) -> Case:
    return Case(
        name, [*codes(rng, dims(rng, 4, low=1)), scalar(0.25), scalar(1, U8)], domain=MICROSOFT
    )


@makes("Resize")
def resize(name: str, rng: Rng) -> Case:
    shape = [*dims(rng, 2, low=1), *rng.integers(1, 40, 2).tolist()]
    version, empty = opset(rng, 10, 11, 13, 18), Operand(np.zeros(0, F), constant=True)
    scales = [float(anything(rng, 1, 2, 0.5, 1.5, 0.1, 0.3, 1.1, 2 / 3, 0.7)) for _ in range(2)]
    x = data(rng, shape)
    if version == 10:
        return Case(
            name, [x, Operand(np.asarray([1, 1, *scales], F), rng.random() < 0.8)], opset=10
        )
    if rng.random() < 0.4:
        wanted = ints(rng, [*shape[:2], *rng.integers(1, 20, 2).tolist()])
        return Case(
            name,
            [x, empty if version < 13 else None, empty if version < 13 else None, wanted],
            opset=version,
        )
    if version == 18 and rng.random() < 0.5:
        return Case(
            name,
            [x, None, Operand(np.asarray(scales, F), constant=True)],
            {"axes": [2, -1]},
            opset=18,
        )
    roi = empty if version < 13 else None
    return Case(
        name, [x, roi, Operand(np.asarray([1, 1, *scales], F), rng.random() < 0.8)], opset=version
    )


@makes("Upsample")
def upsample(name: str, rng: Rng) -> Case:
    scales = [1, 1, *(float(anything(rng, 1, 1.5, 2, 2.3)) for _ in range(2))]
    return Case(
        name,
        [data(rng, dims(rng, 4, low=1)), Operand(np.asarray(scales, F), rng.random() < 0.8)],
        opset=9,
    )


def matrices(rng: Rng) -> tuple[list[int], list[int]]:
    stacks = broadcasting(rng, 2)
    rows, depth, columns = dims(rng, 3)
    one, other = [*stacks[0], rows, depth], [*stacks[1], depth, columns]
    if rng.random() < 0.15:
        one = [depth]
    if rng.random() < 0.15:
        other = [depth]
    return one, other


@makes("MatMul")
def mat_mul(name: str, rng: Rng) -> Case:
    kind = anything(rng, F, I32)
    return Case(name, [data(rng, shape, kind) for shape in matrices(rng)])


@makes("MatMulInteger")
def mat_mul_integer(name: str, rng: Rng) -> Case:
    return Case(name, [data(rng, shape, U8) for shape in matrices(rng)])


@makes("QLinearMatMul")
def q_linear_mat_mul(name: str, rng: Rng) -> Case:
    one, other = matrices(rng)
    return Case(
        name, [*codes(rng, one), *codes(rng, other), scalar(0.5), scalar(3, anything(rng, U8, I8))]
    )


@makes("MatMulIntegerToFloat", domain=MICROSOFT)
def to_float(name: str, rng: Rng) -> Case:
    one, other = matrices(rng)
    a, b = codes(rng, one), codes(rng, other)
    return Case(name, [a[0], b[0], a[1], b[1], a[2], b[2]], domain=MICROSOFT)


@makes("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_mat_mul(name: str, rng: Rng) -> Case:
    rows, depth, columns = dims(rng, 3, low=1)
    b = codes(rng, [depth, columns])
    return Case(name, [data(rng, [*dims(rng, 1, low=1), rows, depth]), *b], domain=MICROSOFT)


@makes("QGemm", domain=MICROSOFT)
def q_gemm(name: str, rng: Rng) -> Case:
    rows, depth, columns = dims(rng, 3, low=1)
    flip = bool(rng.random() < 0.5)
    operands: list[Operand | None] = [
        *codes(rng, [rows, depth]),
        *codes(rng, [columns, depth] if flip else [depth, columns]),
    ]
    if rng.random() < 0.5:
        operands += [None, scalar(0.5), scalar(3, U8)]
    return Case(name, operands, {"transB": int(flip)}, domain=MICROSOFT)


@makes("Gemm")
def gemm(name: str, rng: Rng) -> Case:
    rows, depth, columns = dims(rng, 3, low=1)
    flips = [bool(rng.random() < 0.5) for _ in range(2)]
    one = [depth, rows] if flips[0] else [rows, depth]
    other = [columns, depth] if flips[1] else [depth, columns]
    rest = (
        [data(rng, anything(rng, [], [columns], [rows, 1], [rows, columns]))]
        if rng.random() < 0.6
        else []
    )
    return Case(
        name,
        [data(rng, one), data(rng, other), *rest],
        {"transA": int(flips[0]), "transB": int(flips[1])},
    )


@makes("MatMulNBits", domain=MICROSOFT)
def n_bits(name: str, rng: Rng) -> Case:
    shape, columns = [*dims(rng, 2, low=1), 32], int(rng.integers(1, 5))
    operands = [
        data(rng, shape),
        data(rng, [columns, 2, 8], U8, constant=True),
        Operand(np.ones(2 * columns, F), constant=True),
    ]
    return Case(
        name, operands, {"K": 32, "N": columns, "bits": 4, "block_size": 16}, domain=MICROSOFT
    )


@makes("MatMulBnb4", domain=MICROSOFT)
def bnb4(name: str, rng: Rng) -> Case:
    shape, columns = [*dims(rng, 2, low=1), 32], int(rng.integers(1, 5))
    operands = [
        data(rng, shape),
        data(rng, [16 * columns], U8, constant=True),
        Operand(np.ones(2 * columns, F), constant=True),
    ]
    return Case(
        name, operands, {"K": 32, "N": columns, "quant_type": 1, "block_size": 16}, domain=MICROSOFT
    )


@makes(
    *(
        f"Reduce{kind}"
        for kind in (
            "L1",
            "L2",
            "LogSum",
            "LogSumExp",
            "Max",
            "Mean",
            "Min",
            "Prod",
            "Sum",
            "SumSquare",
        )
    )
)
def reduction(name: str, rng: Rng) -> Case:
    shape, kind = (
        dims(rng, int(rng.integers(1, 4)), low=1),
        anything(rng, F, I64)
        if name in ("ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum")
        else F,
    )
    x, version = data(rng, shape, kind, constant=rng.random() < 0.4), opset(rng, 11, 13, 18, 21)
    axes = rng.permutation(len(shape))[: int(rng.integers(1, len(shape) + 1))].tolist()
    axes = [k - len(shape) if rng.random() < 0.3 else k for k in axes]
    attributes = {"keepdims": 0} if rng.random() < 0.5 else {}
    listed = version >= (13 if name == "ReduceSum" else 18)
    if listed and rng.random() < 0.3:
        attributes["noop_with_empty_axes"] = 1
    if rng.random() < 0.3:
        return Case(name, [x], attributes, opset=version)
    if listed:
        return Case(name, [x, ints(rng, axes)], attributes, opset=version)
    return Case(name, [x], attributes | {"axes": axes}, opset=version)


@makes("ArgMax", "ArgMin")
def arg_max(name: str, rng: Rng) -> Case:
    shape = dims(rng, int(rng.integers(1, 4)), low=1)
    axis = {"axis": int(rng.integers(-len(shape), len(shape)))} if rng.random() < 0.7 else {}
    return Case(name, [data(rng, shape)], axis | ({"keepdims": 0} if rng.random() < 0.5 else {}))


@makes("TopK")
def top_k(name: str, rng: Rng) -> Case:
    shape = dims(rng, int(rng.integers(1, 4)), low=1)
    axis = int(rng.integers(-len(shape), len(shape)))
    return Case(
        name,
        [data(rng, shape), ints(rng, [int(rng.integers(0, shape[axis] + 1))])],
        {"axis": axis},
        2,
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


@makes("BiasGelu", "FastGelu", "Gelu", "QuickGelu", domain=MICROSOFT)
def gelu(name: str, rng: Rng) -> Case:
    shape = dims(rng, 3, low=1)
    bias = [data(rng, shape[-1:])] if name == "BiasGelu" else []
    return Case(name, [data(rng, shape), *bias], domain=MICROSOFT)


@makes("GRU", "LSTM", "RNN")
def recurrent(name: str, rng: Rng) -> Case:
    steps, batch, width = dims(rng, 3, low=1)
    both, hidden = bool(rng.random() < 0.5), 3
    gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[name] * hidden
    operands = [
        data(rng, [steps, batch, width]),
        data(rng, [1 + both, gates, width]),
        data(rng, [1 + both, gates, hidden]),
    ]
    direction = {"direction": "bidirectional"} if both else {}
    return Case(name, operands, {"hidden_size": hidden} | direction, 3 if name == "LSTM" else 2)


@makes("DynamicQuantizeLSTM", domain=MICROSOFT)
def quantized_lstm(name: str, rng: Rng) -> Case:
    steps, batch, width = dims(rng, 3, low=1)
    weights = [data(rng, [1, n, 12], U8, constant=True) for n in (width, 3)]
    scales = [Operand(np.ones(1, F), constant=True), Operand(np.zeros(1, U8), constant=True)]
    operands = [
        data(rng, [steps, batch, width]),
        *weights,
        None,
        None,
        None,
        None,
        None,
        *scales,
        *scales,
    ]
    return Case(name, operands, {"hidden_size": 3}, 3, domain=MICROSOFT)


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
