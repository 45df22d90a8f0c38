"""Convolution, pooling and resizing: random nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.graph.inference.generator import (
    MICROSOFT,
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
    U8,
    F,
    codes,
    makes,
    scalar,
)


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


@makes("FusedConv", domain=MICROSOFT)
def fused_conv(name: str, rng: Rng) -> Case:
    shape, weight = [*dims(rng, 1, low=1), 2, *rng.integers(5, 9, 2).tolist()], [3, 2, 3, 3]
    attributes = windows(rng, 2) | {"activation": "Relu"}
    return Case(name, [data(rng, shape), data(rng, weight)], attributes, domain=MICROSOFT)


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
