from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qgraph.comparison.metrics import compare
from qgraph.comparison.tolerance import Tolerance, Tolerances, tolerances_of
from qgraph.errors import OptionError

X = [np.asarray([1, 2, 4], np.float32)]
Y = [np.asarray([1, 2.5, 4], np.float32)]


def judge(*, step: float | None = None, **limits: Any) -> str | None:
    steps = None if step is None else [np.asarray(step, np.float32)]
    tolerance = Tolerance(**limits)
    return tolerance.judge(compare("y", X, Y, steps), allowed=tolerance.allows(X[0], Y[0]))


def test_without_a_tolerance_values_have_to_be_equal() -> None:
    assert judge() == "1 of 3 values differ, by up to 0.5, 2097152 ulp"
    assert Tolerance().judge(compare("y", X, X), allowed=True) is None


def test_each_tolerance_alone_decides() -> None:
    assert judge(atol=0.5) is None
    assert judge(atol=0.4) is not None
    assert judge(rtol=0.25) is None
    assert judge(rtol=0.2) is not None
    assert judge(max_steps=2, step=0.25) is None
    assert str(judge(max_steps=1, step=0.25)).endswith("2 steps")
    assert judge(min_sqnr=19) is None  # 21 / 0.25 are 19.2 dB
    assert judge(min_sqnr=20) == "SQNR 19.2 dB is below 20"
    assert judge(max_ulp=2097152) is None
    assert str(judge(max_ulp=2097151)).endswith("2097151 ulp are allowed")


def test_all_tolerances_that_are_given_have_to_be_met() -> None:
    assert judge(atol=0.5, min_sqnr=20) is not None
    assert judge(atol=0.1, min_sqnr=10) is not None


def test_steps_need_a_quantizer() -> None:
    with pytest.raises(OptionError, match="'y', which no quantizer with a known uniform step"):
        judge(max_steps=1)


def test_top1_agreement_may_be_all_that_counts() -> None:
    x, y = [X[0].reshape(1, 3)], [Y[0].reshape(1, 3)]
    assert Tolerance(min_top1=1).judge(compare("y", x, y), allowed=True) is None
    apart = compare("y", x, [y[0][:, ::-1].copy()])
    reason = "0.0000% of the rows have the same top-1, at least 50.0000% is required"
    assert Tolerance(min_top1=0.5).judge(apart, allowed=True) == reason
    with pytest.raises(OptionError, match="has no rows of scores"):
        judge(min_top1=0.5)


def test_limits_are_given_for_all_outputs_or_by_name() -> None:
    assert tolerances_of(["a", "b"], Tolerances(atol=0.5, max_steps={"b": 2}, rtol=None)) == {
        "a": Tolerance(atol=0.5),
        "b": Tolerance(atol=0.5, max_steps=2),
    }


@pytest.mark.parametrize("limit", [-1, float("nan")])
def test_a_negative_limit_is_refused(limit: float) -> None:
    with pytest.raises(OptionError, match="atol is"):
        tolerances_of(["a"], Tolerances(atol=limit))


@pytest.mark.parametrize("share", [1.5, 99])
def test_a_share_beyond_one_is_refused(share: float) -> None:
    with pytest.raises(OptionError, match=r"min_top1 is .*, expected a fraction of the rows"):
        tolerances_of(["a"], Tolerances(min_top1=share))
    assert tolerances_of(["a"], Tolerances(min_top1=1.0))["a"].min_top1 == 1


def test_a_limit_for_no_output_is_refused() -> None:
    with pytest.raises(OptionError, match=r"given for output 'c'; the outputs .* are a, b"):
        tolerances_of(["a", "b"], Tolerances(atol={"c": 1}))
