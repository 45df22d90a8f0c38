"""Steps behind which no search goes on are the last ones of no quantizer, whatever comes before."""

from __future__ import annotations

import random

import numpy as np
import pytest

from qgraph.numerics.rounding import Rounding
from qgraph.quantizers.quantizer import Affine
from qgraph.quantizers.recognition.readers import is_hopeless, quantizer_of
from qgraph.quantizers.recognition.steps import (
    ArithmeticStep,
    Limited,
    Notation,
    Rounded,
    Signed,
    Snapped,
    Step,
)

NUMBERS = (0.0, 1.0, -1.0, 0.25, 0.5, 2.0, 3.0, 4.0, 15.0, 1.875, -7.5)
NOTATIONS = (Notation("onnx"), Notation("qonnx"), Notation("qdq", is_pair=True), Notation("qdq"))


def array(number: float) -> np.ndarray:
    return np.asarray(number, np.float32)


def divide(scale: float) -> ArithmeticStep:
    return ArithmeticStep("Div", array(scale))


def multiply(scale: float) -> ArithmeticStep:
    return ArithmeticStep("Mul", array(scale))


ROUND = Rounded(Rounding.ROUND)


def random_step(draw: random.Random, *, is_simple: bool) -> Step:
    number = array(draw.choice(NUMBERS))
    kinds = ["Add", "Sub", "Mul", "Div", "Max", "Min", "Round", "Round"]
    match draw.choice(kinds if is_simple else [*kinds, "Signed", "Snapped"]):
        case "Round":
            return Rounded(draw.choice([Rounding.ROUND, Rounding.FLOOR]))
        case "Signed":
            return Signed(array(1), array(-1))
        case "Snapped":
            return Snapped(3, -6, Rounding.ROUND)
        case "Max" | "Min" as name:
            return Limited(name, number)
        case name:
            return ArithmeticStep(name, number)


@pytest.mark.parametrize(
    "steps",
    [
        [divide(0.5), ROUND, multiply(0.5), multiply(-1)],
        [divide(0.5), ROUND, multiply(0.5), divide(0.1), ROUND, multiply(0.1)],
    ],
    ids=["another factor", "another quantizer"],
)
def test_no_search_goes_on_before(steps: list[Step]) -> None:
    assert is_hopeless(steps)


@pytest.mark.parametrize(
    "steps",
    [
        [divide(0.5), ROUND, multiply(0.5)],
        [multiply(2.0), ROUND, multiply(0.5), multiply(-1)],
        [divide(0.5), ROUND, divide(4.0), ROUND, multiply(2.0)],
        [divide(0.5), multiply(3.0)],
    ],
    ids=["quantizer", "product", "truncation", "no rounding"],
)
def test_a_search_goes_on_before(steps: list[Step]) -> None:
    assert not is_hopeless(steps)


@pytest.mark.slow
def test_what_is_hopeless_ends_no_quantizer() -> None:
    draw = random.Random(0)
    hopeless = read = 0
    for _ in range(6000):
        count = draw.randint(2, 6)
        start = divide(draw.choice(NUMBERS[3:]))
        last: list[Step] = [start, *(random_step(draw, is_simple=True) for _ in range(count))]
        first: list[Step] = [random_step(draw, is_simple=False) for _ in range(draw.randint(0, 4))]
        found = [quantizer_of([*first, *last], notation) for notation in NOTATIONS]
        read += any(each is not None for each in found)
        if is_hopeless(last):
            hopeless += 1
            assert found == [None] * len(NOTATIONS), (first, last)
    assert hopeless > 500
    assert read > 50


def test_a_quantizer_is_read() -> None:
    steps = [divide(0.5), Limited("Max", array(-8)), Limited("Min", array(7)), ROUND, multiply(0.5)]
    assert isinstance(quantizer_of(steps, NOTATIONS[0]), Affine)
