"""Exact rewrites are never called different, and real changes are never proved."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import qgraph

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
CONSTANTS = (
    "float16 s = {11878}, float16 s2 = {11879}, int8 z = {0}, float16 two = {16384},"
    "float16 half = {14336}, float16[1,1,1,1] w = {14643}"
)
"""Numbers of float16 are written by their bits."""

POINTWISE = {
    "relu": "{y} = Relu({x})",
    "sigmoid": "{y} = Sigmoid({x})",
    "neg": "{y} = Neg({x})",
    "double": "{y} = Mul({x}, two)",
    "halve": "{y} = Mul({x}, half)",
    "fake": "q{y} = QuantizeLinear({x}, s, z) {y} = DequantizeLinear(q{y}, s, z)",
    "fake2": "q{y} = QuantizeLinear({x}, s2, z) {y} = DequantizeLinear(q{y}, s2, z)",
}
MOVES = {
    "turn": "{y} = Transpose <perm = [0,1,3,2]> ({x})",
    "flip": "{y} = Transpose <perm = [1,0,2,3]> ({x})",
    "pool": "{y} = MaxPool <kernel_shape = [2,2], pads = [0,0,1,1]> ({x})",
}
OTHERS = {
    "conv": "{y} = Conv({x}, w)",
    "mean": "{y} = AveragePool <kernel_shape = [2,2]> ({x})",
    "softmax": "{y} = Softmax({x})",
}
STEPS = POINTWISE | MOVES | OTHERS
RISING = {"relu", "sigmoid", "fake", "fake2", "double", "halve"}
"""Steps that may be exchanged with a MaxPool."""

IDEMPOTENT = {"relu", "fake"}


def model(steps: list[str]) -> ir.Model:
    lines = [
        STEPS[step].format(x=f"v{place}", y=f"v{place + 1}") for place, step in enumerate(steps)
    ]
    signature = f"(float16[1,1,6,6] v0) => (float16[A,B,C,D] v{len(steps)})"
    return ir.from_onnx_text(f"{HEADER} g {signature} <{CONSTANTS}> {{ {' '.join(lines)} }}")


def drawn(random: np.random.Generator) -> list[str]:
    return [str(step) for step in random.choice(sorted(STEPS), random.integers(2, 7))]


def rewritten(random: np.random.Generator, steps: list[str]) -> list[str]:
    """Return other steps that compute the same, by the definitions of the operators."""
    found = list(steps)
    for _ in range(6):
        place = int(random.integers(len(found)))
        pair = found[place : place + 2]
        if len(pair) == 2:
            one, other = pair
            free = {one, other} & MOVES.keys() and {one, other} & POINTWISE.keys()
            if free and ("pool" not in pair or set(pair) & RISING):
                found[place : place + 2] = [other, one]
        if found[place] in IDEMPOTENT and random.random() < 0.4:
            found.insert(place, found[place])
        if random.random() < 0.2:
            found[place:place] = ["turn", "turn"]
    return found


def changed(random: np.random.Generator, steps: list[str]) -> list[str]:
    """Return steps one of which is another one, or left out."""
    place = int(random.integers(len(steps)))
    others = [] if random.random() < 0.3 else [str(random.choice(sorted(STEPS)))]
    return [*steps[:place], *others, *steps[place + 1 :]] or ["neg"]


def check(seeds: range) -> dict[str, int]:
    seen: dict[str, int] = {}
    for seed in seeds:
        random = np.random.default_rng(seed)
        steps = drawn(random)
        same, other = rewritten(random, steps), changed(random, steps)
        verdict = qgraph.prove(model(steps), model(same)).verdict
        assert verdict != "different", (seed, steps, same)
        seen[f"rewritten: {verdict}"] = seen.get(f"rewritten: {verdict}", 0) + 1
        verdict = qgraph.prove(model(steps), model(other)).verdict
        if verdict == "proved":
            x = random.normal(size=(1, 1, 6, 6)).astype(np.float16)
            ours, theirs = (
                qgraph.load(model(of)).run({"v0": x}, backend="numpy") for of in (steps, other)
            )
            y, z = (next(iter(found.values())) for found in (ours, theirs))
            assert y.shape == z.shape, (seed, steps, other)
            assert (y == z).all(), (seed, steps, other)
        seen[f"changed: {verdict}"] = seen.get(f"changed: {verdict}", 0) + 1
    return seen


@pytest.mark.slow
def test_a_few_rewrites():
    seen = check(range(4))
    assert sum(seen.values()) == 8


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(100, 130), marks=pytest.mark.slow, id="30"),
        pytest.param(range(130, 160), marks=pytest.mark.exhaustive, id="30 others"),
    ],
)
def test_more_rewrites(seeds):
    seen = check(seeds)
    assert seen["changed: different"] > 2
    assert seen["rewritten: proved"] > 2
