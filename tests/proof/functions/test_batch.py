"""Pairs decided together are decided as each is alone."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from qgraph.proof.functions.decide import FunctionPair, decide, decide_all, decide_pairs, form
from qgraph.proof.functions.expression import Builder, Expr
from qgraph.proof.functions.finding import PairFinding, Runs


def quantizer(op: Builder, scale: float, zero_point: float, *, first: bool) -> Expr:
    """Eight unsigned bits, the zero point added before or after rounding."""
    s, z = np.float32(scale), np.float32(zero_point)
    y = op.Div(op.input, s)
    q = op.Round(op.Add(y, z)) if first else op.Add(op.Round(y), z)
    return op.Mul(op.Sub(op.Min(op.Max(q, 0.0), 255.0), z), s)


def pairs(parameters: list[tuple[float, float]]) -> list[FunctionPair]:
    op = Builder()
    return [
        FunctionPair(quantizer(op, s, z, first=True), quantizer(op, s, z, first=False))
        for s, z in parameters
    ]


def rounders(scales: list[float]) -> list[FunctionPair]:
    """Rounding of a quotient, and of a product with the reciprocal."""
    op = Builder()
    return [
        FunctionPair(
            op.Min(op.Max(op.Round(op.Div(op.input, np.float32(s))), -100.0), 90.0),
            op.Min(op.Max(op.Round(op.Mul(op.input, np.float32(1) / np.float32(s))), -100.0), 90.0),
        )
        for s in scales
    ]


def assert_same_as_alone(together: list[PairFinding], apart: list[FunctionPair]) -> None:
    for finding, pair in zip(together, apart, strict=True):
        alone = decide(*pair.functions)
        for field in fields(alone):
            a, b = getattr(finding, field.name), getattr(alone, field.name)
            if isinstance(a, Runs):
                for column in fields(a):
                    np.testing.assert_array_equal(getattr(a, column.name), getattr(b, column.name))
            elif field.name != "boxes":
                assert a == b, field.name


def test_each_finding_is_that_of_the_pair_alone():
    random = np.random.default_rng(3)
    scales, zero_points = random.uniform(0.01, 2, 12), random.integers(1, 254, 12)
    wanted = [(float(s), float(z)) for s, z in zip(scales, zero_points, strict=True)]
    wanted.append((-0.1, 128.0))
    together = list(decide_all(pairs(wanted)))
    assert_same_as_alone(together, pairs(wanted))
    assert all(finding.differing > 0 for finding in together)


def test_equal_and_different_pairs_side_by_side():
    # the reciprocal of a power of two is exact, that of 0.3 is not
    scales = [0.25, 0.3, 2.0, 0.1]
    together = list(decide_all(rounders(scales)))
    assert_same_as_alone(together, rounders(scales))
    assert [finding.differing > 0 for finding in together] == [False, True, False, True]


def test_pairs_of_several_forms_in_any_order_are_each_found_as_alone():
    first, second = rounders([0.3, 0.25])
    mixed = [first, *pairs([(0.1, 3)]), second]
    assert_same_as_alone(list(decide_all(mixed)), mixed)


def test_pairs_of_another_form_are_told_apart():
    op = Builder()
    x, two, three = op.input, np.float32(2), np.float32(3)
    shared = (op.Add(x, two), op.Mul(x, two))
    apart = (op.Add(x, two), op.Mul(x, three))
    swapped = (op.Mul(x, two), op.Add(x, two))
    channels = (op.Add(x, np.float32([1, 2])), op.Mul(x, two))
    assert form(shared) == form((op.Add(x, three), op.Mul(x, three)))
    assert form(shared) != form(apart)
    assert form(shared) != form(swapped)
    assert form(channels) is None


def test_a_pair_given_twice_is_found_twice():
    twice = pairs([(0.1, 128), (0.1, 128), (0.2, 5)])
    findings = list(decide_all(twice))
    # 912: confirmed on all 2**32 inputs
    assert [finding.differing for finding in findings[:2]] == [912, 912]


@pytest.mark.parametrize("order", [1, -1])
def test_one_that_is_no_step_function_does_not_spoil_the_others(order):
    op = Builder()
    steps = [
        FunctionPair(
            op.Mul(op.Round(op.Div(op.input, np.float32(s))), np.float32(a)),
            op.Mul(op.Floor(op.Div(op.input, np.float32(s))), np.float32(a)),
        )
        for s, a in ((1e-30, 3.0), (3e37, 0.5))
    ][::order]
    assert form(steps[0].functions) == form(steps[1].functions)
    findings = list(decide_all(steps))
    alone = [decide(*pair.functions) for pair in steps]
    assert [f.undecided is None for f in findings] == [f.undecided is None for f in alone]
    assert {f.undecided is None for f in findings} == {True, False}


def test_outcomes_without_runs_have_the_same_verdicts():
    mixed = [*rounders([0.3, 0.25]), *pairs([(0.1, 3)])]
    whole = decide_pairs(mixed, {})
    slim = decide_pairs(mixed, {}, keeps_runs=False)
    assert [each.verdict for each in slim] == [each.verdict for each in whole]
    findings = [each.finding for each in (*whole, *slim) if each.finding is not None]
    assert [len(finding.runs) > 0 for finding in findings] == [True, False, True] + [False] * 3
