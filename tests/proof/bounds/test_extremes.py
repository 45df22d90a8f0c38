"""Maxima of data and of codes: errors against exact fractions, and codes of two layers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import onnx
import pytest

from qgraph.bound import Against, Bound, Bounding
from qgraph.certificate import Certificate
from qgraph.exactness import Exactness
from qgraph.model import Model, load
from qgraph.proof.bounds.combination import Atoms, Combination
from qgraph.proof.bounds.quantity import Quantity, extreme
from qgraph.proof.bounds.regions import with_bounds
from qgraph.proof.certify import certify


@pytest.mark.parametrize("name", ["Max", "Min"])
def test_what_is_executed_lies_within_the_error(name):
    random, pick = np.random.default_rng(3), max if name == "Max" else min
    ends = np.array(-3.0), np.array(3.0)
    atoms = Atoms()
    for _ in range(300):
        errors = random.choice([0.0, 0.01, 0.5, 2.0], 2), random.choice([0.0, 0.1, 0.9, 1.5], 2)
        sides = [
            Quantity(Combination.of(atoms.make("input", k, (), ends)), *ends, *map(np.array, each))
            for k, each in enumerate(zip(*errors, strict=True))
        ]
        result = extreme(atoms, name, *sides)
        meant = [Fraction(float(t)) for t in random.uniform(-3, 3, 2)]
        absolute, relative = Fraction(float(result.absolute)), Fraction(float(result.relative))
        exact = pick(meant)
        for signs in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
            executed = pick(
                t + sign * (Fraction(float(q.absolute)) + Fraction(float(q.relative)) * abs(t))
                for t, q, sign in zip(meant, sides, signs, strict=True)
            )
            assert abs(executed - exact) <= absolute + relative * abs(exact)


NETWORK = """<ir_version: 8, opset_import: ["": 17]>
    net (float[N,6] x) => (float[N,5] y)
    <float s = {0.05}, uint8 z = {128}, float t = {0.06}, uint8 u = {100}, uint8 u2 = {101}> {
        q = QuantizeLinear (x, s, z)    d = DequantizeLinear (q, s, z)
        w_ = DequantizeLinear <axis = 1> (w, sw)
        c = Gemm (d, w_, b)
        NODES
        y = DequantizeLinear (r, t, u)
    }"""
LEAKY = "l = LeakyRelu <alpha = 0.2> (c) r = QuantizeLinear (l, t, u)"
LARGER = """k_ = DequantizeLinear <axis = 1> (w, sk)
    e = Gemm (d, k_, a)    f = QuantizeLinear (c, t, u)    g = QuantizeLinear (e, t, u)
    r = Max (f, g)"""
SLOPE = np.float32(0.2)


def network(nodes: str, slope: float = SLOPE, beyond: float = 0.0) -> Model:
    proto = onnx.parser.parse_model(NETWORK.replace("NODES", nodes))
    random = np.random.default_rng(0)
    scales, biases = random.uniform(0.01, 0.03, 5), random.normal(0, 1, 5)
    arrays = {
        "w": random.integers(-127, 128, (6, 5)).astype(np.int8),
        "sw": scales.astype(np.float32),
        "b": biases.astype(np.float32),
        "sk": (scales.astype(np.float32) * np.float32(slope)),
        "a": (biases.astype(np.float32) * np.float32(slope) + np.float32(beyond)),
    }
    for name, array in arrays.items():
        if f" {name})" in nodes or f", {name}" in NETWORK.replace("NODES", nodes):
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return load(proto)


def certified(reference: Model, candidate: Model) -> Certificate:
    sides, request = (reference.ir, candidate.ir), Bounding("1step", Against.IDEAL)
    return with_bounds(certify(*sides), sides, request, Exactness.VALUES)


def bound_of(reference: Model, candidate: Model) -> Bound:
    regions = certified(reference, candidate).regions
    (bound,) = [r.bound for r in regions if r.reference_value == "r"]
    assert bound is not None
    return bound


def test_the_larger_code_of_two_layers_is_bounded_against_leaky_relu():
    sides = network(LEAKY), network(LARGER)
    bound = bound_of(*sides)
    assert bound.max_steps == 1
    assert 0 < bound.tie_distance_steps < 0.01
    x = np.random.default_rng(1).normal(0, 4, (2000, 6)).astype(np.float32)
    ours, theirs = (model.run({"x": x}, backend="numpy")["y"] for model in sides)
    codes = [np.rint(y / np.float32(0.06)) for y in (ours, theirs)]
    assert len(np.unique(codes[0])) > 100
    assert np.abs(codes[0] - codes[1]).max() <= bound.max_steps


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(("slope", "beyond", "steps"), [(0.21, 0.0, 5), (SLOPE, 0.6, 10)])
def test_another_slope_or_bias_moves_the_bound_as_far_as_codes_move(slope, beyond, steps):
    sides = network(LEAKY), network(LARGER, slope, beyond)
    bound = bound_of(*sides)
    x = np.random.default_rng(1).normal(0, 9, (2000, 6)).astype(np.float32)
    ours, theirs = (model.run({"x": x}, backend="numpy")["y"] for model in sides)
    seen = np.abs(np.rint(ours / np.float32(0.06)) - np.rint(theirs / np.float32(0.06))).max()
    assert steps <= seen <= bound.max_steps


def test_codes_with_other_zero_points_are_no_codes_of_one_number():
    other = LARGER.replace("g = QuantizeLinear (e, t, u)", "g = QuantizeLinear (e, t, u2)")
    assert certified(network(LEAKY), network(other)).verdict == "undecided"


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("operands", ["c, m", "m, c"])
def test_leaky_relu_in_two_operators_differs_by_its_slope_alone(operands):
    near = np.nextafter(SLOPE, np.float32(1))
    text = f"""k = Constant <value = float {{{near:.9}}}> () m = Mul (c, k) l = Max ({operands})
        r = QuantizeLinear (l, t, u)"""
    assert bound_of(network(LEAKY), network(text)).ideal_shift < 1e-3
