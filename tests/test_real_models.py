"""Every real model: converted, folded, and equal to what it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph.comparison.check import Inputs, check
from qgraph.exactness import Exactness
from qgraph.model import Model, load
from qgraph.reports import SiteStatus
from qgraph.transforms.convert import ConvertDialect, FoldWeights
from qgraph.transforms.make_portable import MakePortable, StripFunctions


def feeds(model: Model, models: Path) -> dict[str, np.ndarray]:
    """Test images for the networks that classify them, noise for the others."""
    (value,) = model.inputs
    if list(value.shape)[1:] == [1, 8, 8]:
        images = np.load(models / "brev_cnn_w4a4.npz")["x"]
        return {value.name: images[: value.shape[0] if isinstance(value.shape[0], int) else 64]}
    shape = [size if isinstance(size, int) else 4 for size in value.shape]
    noise = np.random.default_rng(0).normal(size=shape)
    return {value.name: noise.astype(np.float32)}


@pytest.mark.cases(fast=2, slow=4)
@pytest.mark.parametrize("to", ["qdq", "onnx"])
def test_conversion_keeps_every_value(models, tmp_path, model_name, to):
    path = models / f"{model_name}.onnx"
    original, model = load(path), load(path)
    report = model.apply(ConvertDialect(to=to))
    assert report.count(SiteStatus.REFUSED) == 0, report
    assert report.exactness >= Exactness.VALUES
    for site in report:
        if site.outcome is SiteStatus.CHANGED:
            assert site.verdict.differing_inputs == 0
    out = tmp_path / "out.onnx"
    model.save(out)
    onnx.checker.check_model(str(out), full_check=True)
    data = feeds(original, models)
    expected, found = original.run(data, backend="numpy"), load(out).run(data, backend="numpy")
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value)


@pytest.mark.cases(fast=2, slow=9)
def test_folding_keeps_every_value_and_drops_the_float_weights(models, tmp_path, model_name):
    path = models / f"{model_name}.onnx"
    original, model = load(path), load(path)
    report = model.apply(FoldWeights())
    assert report.count(SiteStatus.REFUSED) == 0, report
    if report.count(SiteStatus.CHANGED):
        assert report.weight_bytes_after < report.weight_bytes_before / 2
    out = tmp_path / "out.onnx"
    model.save(out)
    onnx.checker.check_model(str(out), full_check=True)
    data = feeds(original, models)
    expected, found = original.run(data, backend="numpy"), load(out).run(data, backend="numpy")
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value)


@pytest.mark.cases(fast=1, slow=8)
@pytest.mark.runtime
@pytest.mark.parametrize(
    "step",
    [ConvertDialect(to="qdq"), ConvertDialect(to="onnx"), FoldWeights()],
    ids=lambda s: s.name,
)
def test_check_in_onnx_runtime_finds_both_equal(models, model_name, step):
    pytest.importorskip("onnxruntime")
    path = models / f"{model_name}.onnx"
    model = load(path)
    model.apply(step)
    check(path, model, Inputs(random=8), backend="ort").raise_if_different()


@pytest.mark.cases(fast=5, slow=9)
@pytest.mark.runtime
@pytest.mark.sums
@pytest.mark.parametrize("to", ["qdq", "onnx"])
def test_onnx_runtime_computes_the_same(models, tmp_path, assert_same_rows, model_name, to):
    runtime = pytest.importorskip("onnxruntime")
    path = models / f"{model_name}.onnx"
    original, model = load(path), load(path)
    model.apply(ConvertDialect(to=to))
    out = tmp_path / "out.onnx"
    model.save(out)
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = runtime.InferenceSession(str(out), options)
    data = feeds(original, models)
    expected = list(original.run(data, backend="numpy").values())
    # MatMul and Conv of the two add in different orders: bounded by some ulps of the largest score
    for want, have in zip(expected, session.run(None, data), strict=True):
        assert_same_rows(have, want, atol=5e-6 * np.abs(want).max())


@pytest.mark.cases(fast=1, slow=5)
@pytest.mark.runtime
@pytest.mark.sums
def test_portable_model_runs_in_onnx_runtime(models, tmp_path, assert_same_rows, model_name):
    runtime = pytest.importorskip("onnxruntime")
    path = models / f"{model_name}.onnx"
    original, model = load(path), load(path)
    report = model.apply(MakePortable())
    assert report.count(SiteStatus.CHANGED) == len(report.sites)
    assert report.exactness is Exactness.BITS
    out = tmp_path / "out.onnx"
    model.save(out)
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    # It quantizes the biases of models in Q/DQ form, and has nothing to do with functions.
    session = runtime.InferenceSession(
        str(out), options, disabled_optimizers=["WeightBiasQuantization"]
    )
    data = feeds(original, models)
    expected = list(original.run(data, backend="numpy").values())
    for want, have in zip(expected, session.run(None, data), strict=True):
        assert_same_rows(have, want, atol=5e-6 * np.abs(want).max())
    functions = load(out).run(data, backend="numpy").values()
    for want, have in zip(expected, functions, strict=True):
        np.testing.assert_array_equal(have, want)


def text(model: Model) -> str:
    """The model in ONNX text, its weights in it."""
    proto = ir.to_proto(ir.external_data.load_to_model(model.ir.clone()))
    return onnx.printer.to_text(proto)


@pytest.mark.cases(fast=2, slow=8)
def test_stripped_portable_model_is_the_original(models, tmp_path, model_name):
    original, model = load(models / f"{model_name}.onnx"), load(models / f"{model_name}.onnx")
    original.apply()
    model.apply(MakePortable())
    model.save(tmp_path / "out.onnx")
    loaded = load(tmp_path / "out.onnx")
    again = loaded.clone()
    assert not again.apply(MakePortable()).modified
    assert text(again) == text(loaded)
    loaded.apply(StripFunctions())
    assert text(loaded) == text(original)


STRANGER = """
import sys, onnx
for path in sys.argv[1:]:
    onnx.checker.check_model(path, full_check=True)
    onnx.shape_inference.infer_shapes(onnx.load(path), strict_mode=True)
print("good", len(sys.argv) - 1)
"""


@pytest.mark.slow
def test_checker_that_knows_no_quantizer_accepts_portable_models(real_models, tmp_path):
    paths = []
    for name, path in real_models.items():
        model = load(path)
        model.apply(MakePortable())
        paths.append(str(tmp_path / f"{name}.onnx"))
        model.save(paths[-1])
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, *paths], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.returncode) == (f"good {len(real_models)}", 0), done.stderr
