"""Operators that move elements: random nodes."""

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
    ints,
    opset,
)
from tests.graph.inference.makers import (
    I64,
    U8,
    F,
    codes,
    makes,
    scalar,
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
