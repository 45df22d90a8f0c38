"""Pairs decided together are decided as each is alone."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from qgraph.numerics.values import OpenScale
from qgraph.proof.functions.decide import decide, decide_all, decide_pairs
from qgraph.proof.functions.expression import Builder, Expr
from qgraph.proof.functions.finding import PairFinding, Runs
from qgraph.proof.functions.pair import FunctionPair, OpenPair, open_scale


def quantizer(op: Builder, scale: float | Expr, zero_point: float, *, first: bool) -> Expr:
    """Eight unsigned bits, the zero point added before or after rounding."""
    s, z = scale if isinstance(scale, Expr) else np.float32(scale), np.float32(zero_point)
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
    shared = FunctionPair(op.Add(x, two), op.Mul(x, two))
    apart = FunctionPair(op.Add(x, two), op.Mul(x, three))
    swapped = FunctionPair(op.Mul(x, two), op.Add(x, two))
    channels = FunctionPair(op.Add(x, np.float32([1, 2])), op.Mul(x, two))
    assert shared.form == FunctionPair(op.Add(x, three), op.Mul(x, three)).form
    assert shared.form != apart.form
    assert shared.form != swapped.form
    assert channels.form is None


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
    assert steps[0].form == steps[1].form
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


TINY = 2.0**-149
SCALES = (TINY, 0.25, 0.1, 255.0, 3.0, 1.0, 2.0**-126, 1e-40, 3e38, -0.25, -0.1, 0.0)


def test_a_pair_with_an_open_scale_is_decided_as_with_that_scale():
    op, symbol = Builder(), open_scale()
    functions = (quantizer(op, symbol, 3, first=first) for first in (True, False))
    opened = OpenPair((next(functions), next(functions)), [(symbol, OpenScale())], None, op)
    assert opened.stays_open
    together = list(decide_all([opened.at(np.float32(scale)) for scale in SCALES]))
    assert_same_as_alone(together, pairs([(scale, 3) for scale in SCALES]))
    # With the smallest scale, all quotients are whole; otherwise ties are rounded to even codes.
    assert [finding.differing > 0 for finding in together[:3]] == [False, True, True]


def test_a_scale_that_is_nan_or_infinite_is_decided_for_itself():
    op, symbol = Builder(), open_scale()
    functions = (quantizer(op, symbol, 3, first=first) for first in (True, False))
    opened = OpenPair((next(functions), next(functions)), [(symbol, OpenScale())], None, op)
    scales = [np.float32(scale) for scale in (0.25, np.nan, np.inf, -np.inf)]
    together = decide_pairs([opened.at(scale) for scale in scales], {})
    alone = [decide_pairs([FunctionPair(*opened.filled(scale))], {})[0].verdict for scale in scales]
    assert [repr(outcome.verdict) for outcome in together] == [repr(verdict) for verdict in alone]


def test_keys_of_pairs_with_an_open_scale_are_those_of_their_functions():
    op, symbol = Builder(), open_scale()
    functions = (quantizer(op, symbol, 3, first=first) for first in (True, False))
    opened = OpenPair((next(functions), next(functions)), [(symbol, OpenScale())], (4,), op)
    some, other = (opened.at(np.float32(scale)) for scale in (0.25, 0.1))
    assert some.key == FunctionPair(*some.functions, (4,)).key
    assert some.key != other.key
    assert some.form == other.form
    assert some.reference is quantizer(op, 0.25, 3, first=True)
    # 3 is a constant of both functions: it is not told apart from the scale there.
    assert opened.at(np.float32(3)).key != FunctionPair(*opened.filled(np.float32(3)), (4,)).key


def test_what_is_computed_with_the_scale_alone_is_not_left_open():
    op, symbol = Builder(), open_scale()
    functions = op.Mul(op.input, op.Mul(symbol, 3.0)), op.Mul(op.Mul(op.input, symbol), 3.0)
    assert not OpenPair(functions, [(symbol, OpenScale())], None, op).stays_open
