"""Constants and operators on shapes: random nodes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tests.graph.inference.generator import (
    Case,
    Operand,
    Rng,
    anything,
    data,
    dims,
    ints,
    opset,
)
from tests.graph.inference.makers import (
    I8,
    I32,
    I64,
    U8,
    B,
    D,
    F,
    makes,
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
