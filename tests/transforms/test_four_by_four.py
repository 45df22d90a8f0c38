"""Every real model in every dialect, and there and back between any two."""

from __future__ import annotations

from functools import cache
from itertools import permutations
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.model import Model, load
from qgraph.reports import Report, SiteStatus
from qgraph.transforms.convert import ConvertDialect
from tests.conftest import FAST_MODELS, REAL_MODELS

DIALECTS = ("qonnx", "openvino", "qdq", "onnx")

REFUSED = {("brev_cnn_fp8e4m3", "openvino"), ("brev_mlp_fp4", "openvino")}
"""FakeQuantize has evenly spaced levels only; activations on a minifloat grid have none."""


def feeds(model: Model, models: Path, count: int = 16) -> dict[str, np.ndarray]:
    """Test images for the networks that classify them, noise for the others."""
    (value,) = model.inputs
    if list(value.shape)[1:] == [1, 8, 8]:
        images = np.load(models / "brev_cnn_w4a4.npz")["x"]
        return {value.name: images[: value.shape[0] if isinstance(value.shape[0], int) else count]}
    shape = [size if isinstance(size, int) else 4 for size in value.shape]
    noise = np.random.default_rng(0).normal(size=shape)
    return {value.name: noise.astype(np.float32)}


def run(model: Model, data: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(model.run(data, backend="numpy").values())


def convert(path: Path, *route: str) -> tuple[Model, Report]:
    """Load a model and convert it along ``route``; return it and the report of the last step."""
    model = load(path)
    report = Report()
    for to in route:
        report = model.apply(ConvertDialect(to=to))
    return model, report


@cache
def expected(path: Path, models: Path) -> list[np.ndarray]:
    original = load(path)
    return run(original, feeds(original, models))


def assert_equal(model: Model, path: Path, models: Path) -> None:
    found = run(model, feeds(model, models))
    for have, want in zip(found, expected(path, models), strict=True):
        np.testing.assert_array_equal(have, want)


def check_refusals(report: Report, model_name: str, to: str) -> None:
    """See that everything was converted, but for what the dialect cannot say."""
    refused = [entry for entry in report if entry.outcome is SiteStatus.REFUSED]
    assert bool(refused) == ((model_name, to) in REFUSED), report
    for entry in refused:
        assert "levels" in entry.reason


@pytest.mark.cases(fast=1, slow=7)
@pytest.mark.parametrize("to", DIALECTS)
def test_every_model_in_every_dialect(models, tmp_path, model_name, to):
    path = models / f"{model_name}.onnx"
    model, report = convert(path, to)
    check_refusals(report, model_name, to)
    assert report.exactness >= Exactness.VALUES
    assert all(e.verdict.differing_inputs == 0 for e in report if e.outcome is SiteStatus.CHANGED)
    out = tmp_path / "out.onnx"
    model.save(out)
    onnx.checker.check_model(str(out), full_check=True)
    assert_equal(load(out), path, models)


@pytest.mark.cases(fast=2, slow=7)
@pytest.mark.parametrize("to", DIALECTS)
def test_a_second_conversion_changes_nothing(models, model_name, to):
    model, _ = convert(models / f"{model_name}.onnx", to)
    before = ir.to_proto(model.ir)
    report = model.apply(ConvertDialect(to=to))
    assert report.count(SiteStatus.CHANGED) == 0, report
    assert ir.to_proto(model.ir) == before


@pytest.mark.cases(fast=1, slow=3)
@pytest.mark.parametrize(("there", "back"), list(permutations(DIALECTS, 2)))
def test_there_and_back(models, model_name, there, back):
    path = models / f"{model_name}.onnx"
    model, report = convert(path, back, there, back)
    if (model_name, back) not in REFUSED:
        assert report.count(SiteStatus.REFUSED) == 0, report
    assert_equal(model, path, models)


@pytest.mark.cases(fast=1, slow=7)
@pytest.mark.runtime
@pytest.mark.sums
@pytest.mark.parametrize("to", ["qdq", "onnx"])
def test_onnx_runtime_runs_the_results(models, tmp_path, assert_same_rows, model_name, to):
    runtime = pytest.importorskip("onnxruntime")
    path = models / f"{model_name}.onnx"
    model, _ = convert(path, to)
    out = tmp_path / "out.onnx"
    model.save(out)
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = runtime.InferenceSession(str(out), options, providers=["CPUExecutionProvider"])
    found = session.run(None, feeds(model, models))
    # MatMul and Conv of the two add in different orders: bounded by some ulps of the largest score
    for have, want in zip(found, expected(path, models), strict=True):
        assert_same_rows(have, want, atol=5e-6 * np.abs(want).max())


def test_all_models_are_here():
    assert len(REAL_MODELS) == 16
    assert {name for name, _ in REFUSED} | FAST_MODELS <= set(REAL_MODELS)
