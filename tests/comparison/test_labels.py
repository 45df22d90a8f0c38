"""Metrics by labels."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.comparison.check import Inputs, check
from qgraph.comparison.tolerance import Scoring, Tolerances, metric_of, top1
from qgraph.errors import EquivalenceError, ExecutionError, OptionError
from qgraph.model import Model


def model(shift: str) -> Model:
    """Scores ``x + shift``; the classes are 0, 1 and 2."""
    return Model(
        ir.from_onnx_text(
            '<ir_version: 10, opset_import: ["": 21]> g (float[N,3] x) => (float[N,3] y) '
            f"<float[3] k = {{{shift}}}> {{ y = Add (x, k) }}"
        )
    )


X = np.asarray([[3, 1, 2], [0, 5, 4], [1, 1.5, 4], [2, 0, 1]], np.float32)
LABELS = np.asarray([0, 1, 2, 2])


def test_scores_of_both_models_are_told() -> None:
    """The second model prefers class 2 by 1.5, which the second row alone does not withstand."""
    report = check(
        model("0, 0, 0"), model("0, 0, 1.5"), {"x": X}, scoring=Scoring(labels=LABELS, max_drop=0)
    )
    metric = report.metric
    assert metric is not None
    assert (metric.name, metric.samples, metric.reference, metric.candidate) == (
        "top1",
        4,
        0.75,
        0.5,
    )


def test_a_drop_alone_decides_and_values_may_differ() -> None:
    pair = model("0, 0, 0"), model("0, 0, 1.5")
    inputs = {"x": X}
    assert check(*pair, inputs, scoring=Scoring(labels=LABELS)).verdict == "different"
    good = check(*pair, inputs, scoring=Scoring(labels=LABELS, max_drop=0.25))
    assert (good.verdict, good.failed) == ("equal", {})
    bad = check(*pair, inputs, scoring=Scoring(labels=LABELS, max_drop=0.2))
    assert bad.verdict == "different"
    assert bad.metric is not None
    assert bad.metric.failed == "top1 is lower by 0.25, at most 0.2 is allowed"
    assert 'name="metric top1"' in bad.to_junit()
    assert 'failures="1"' in bad.to_junit()
    with pytest.raises(EquivalenceError, match=r"by a metric: top1 is lower by 0\.25"):
        bad.raise_if_different()


def test_other_tolerances_count_besides() -> None:
    pair = model("0, 0, 0"), model("0, 0, 1.5")
    report = check(
        *pair, {"x": X}, tolerances=Tolerances(atol=1), scoring=Scoring(labels=LABELS, max_drop=1)
    )
    assert list(report.failed) == ["y"]


def test_labels_go_through_batches() -> None:
    report = check(
        model("0, 0, 0"),
        model("0, 0, 0"),
        Inputs({"x": X}, batch=3),
        scoring=Scoring(labels=LABELS),
    )
    assert report.batches == 2
    assert report.metric is not None
    assert report.metric.reference == 0.75


def test_random_batches_besides_have_no_labels() -> None:
    report = check(
        model("0, 0, 0"),
        model("0, 0, 0"),
        Inputs({"x": X}, random=2),
        scoring=Scoring(labels=LABELS),
    )
    assert (report.batches, report.outputs[0].elements) == (3, 18)
    assert report.metric is not None
    assert report.metric.candidate == 0.75


def test_a_function_of_the_user_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_metric.py").write_text(
        "def error(outputs, labels):\n    return -abs(outputs['y'][:, 0] - labels).mean()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = metric_of("own_metric:error")
    assert found.of({"y": X}, LABELS) == pytest.approx(-(3 + 1 + 1 + 0) / 4)
    sys.modules.pop("own_metric")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("best", "There is no metric 'best', expected 'top1' or a function as module:function"),
        ("no_such_module:f", "cannot be imported"),
        ("math:no_such_function", "cannot be imported"),
    ],
)
def test_an_unknown_metric_is_refused(name: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        metric_of(name)
    with pytest.raises(OptionError, match=message):
        check("no such model", "nor this", scoring=Scoring(metric=name))


def test_a_function_that_fails_is_told_with_what_it_was_given() -> None:
    def broken(outputs: object, labels: object) -> float:
        raise ValueError("no")

    message = r"'broken' failed \(ValueError: no\) on the outputs 'y' float32\[4, 3\] and labels"
    with pytest.raises(ExecutionError, match=message):
        metric_of(broken).of({"y": X}, LABELS)


def test_labels_have_to_fit() -> None:
    with pytest.raises(OptionError, match="3 labels, but the outputs are 'y'"):
        top1({"y": X}, LABELS[:3])
    with pytest.raises(OptionError, match="Labels are given without inputs"):
        check(model("0, 0, 0"), model("0, 0, 0"), scoring=Scoring(labels=LABELS))
    with pytest.raises(OptionError, match="max_drop is -1"):
        check(
            model("0, 0, 0"),
            model("0, 0, 0"),
            {"x": X},
            scoring=Scoring(labels=LABELS, max_drop=-1),
        )
