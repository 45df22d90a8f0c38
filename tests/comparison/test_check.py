from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from unittest.mock import ANY
from xml.etree import ElementTree as ET

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.comparison.check import Inputs, check
from qgraph.comparison.tolerance import Tolerances
from qgraph.errors import EquivalenceError, ExecutionError, ModelError, OptionError
from qgraph.model import Model

QUANT = "qonnx.custom_op.general::Quant"
IMPORTS = '"": 21, "qonnx.custom_op.general": 1'


def model(body: str) -> Model:
    return Model(ir.from_onnx_text(f"<ir_version: 10, opset_import: [{IMPORTS}]> {body}"))


CHAIN = """g (float[N,4] x) => (float[N,4] y) <float s = {0.1}, float t = {0.25}, float z = {0},
    float b = {8}> {
    a = Abs (x)
    q = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (a, s, z, b)
    r = Relu (q)
    y = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (r, t, z, b)
}"""
NEXT = math.nextafter(0.1, 1) + 2**-27
"""The decimal 0.1 rounds to 0x3DCCCCCD; this is the float32 after it."""


def test_a_model_equals_itself() -> None:
    report = check(model(CHAIN), model(CHAIN), Inputs(random=3), backend="numpy")
    assert report.verdict == "equal"
    assert report.first_divergence is None
    assert report.outputs[0].elements == 12
    report.raise_if_different()


@pytest.mark.parametrize("backend", ["numpy", pytest.param("ort", marks=pytest.mark.runtime)])
def test_a_scale_one_ulp_away_is_found_where_it_acts(backend: str) -> None:
    if backend == "ort":
        pytest.importorskip("onnxruntime")
    body = CHAIN.replace("y = qonnx", "u = qonnx").replace(
        "(r, t, z, b)", "(r, t, z, b) y = Add (u, q)"
    )
    other = model(body.replace("s = {0.1}", f"s = {{{NEXT:.10f}}}"))
    x = np.linspace(-3, 3, 400, dtype=np.float32).reshape(-1, 4)
    report = check(model(body), other, {"x": x}, backend=backend)
    assert report.verdict == "different"
    first = report.first_divergence
    assert first is not None
    assert (first.reference, first.candidate, first.op) == (
        "q",
        "q",
        "qonnx.custom_op.general::Quant",
    )
    assert first.max_abs is not None
    assert 0 < first.max_abs < 1e-6


@pytest.mark.runtime
def test_the_runtime_rounds_16_bit_floats_less_often() -> None:
    """The neighbours of 1024 in float16 are 1023.5 and 1025."""
    body = """g (float16[2] x) => (float16[2] y) <float[1] d = {1024}> {
        c = Cast <to = 10> (d)
        a = Add (x, c)
        y = Sub (a, c)
    }"""
    chain, other = model(body), model(body.replace("Sub (a", "Sub (x"))
    x = {"x": np.asarray([0.25, 2], np.float16)}
    assert chain.run(x, backend="numpy")["y"].tolist() == [0, 2]
    assert chain.run(x, backend="ort")["y"].tolist() == [0.25, 2]
    (note,) = check(chain, other, x).notes
    assert "--backend numpy" in note
    assert not check(chain, other, x, backend="numpy").notes
    assert not check(chain, chain, x).notes
    assert not check(model(CHAIN), model(CHAIN.replace("0.1", "0.3")), Inputs(random=3)).notes


def test_a_later_quantizer_may_hide_an_ulp() -> None:
    """Outputs count, not what happens inside: 0.25 steps absorb it."""
    other = model(CHAIN.replace("s = {0.1}", f"s = {{{NEXT:.10f}}}"))
    x = np.full((1, 4), 1.0, np.float32)
    assert check(model(CHAIN), other, {"x": x}, backend="numpy").tensors == []
    report = check(model(CHAIN), other, {"x": x}, backend="numpy", tensors=True)
    assert (report.verdict, report.first_divergence) == ("equal", None)
    apart = [tensor.reference for tensor in report.tensors if not tensor.compared.equal]
    assert apart == ["q", "r"]


def test_tensors_of_another_type_share_only_their_name() -> None:
    reference = model("g (float[2] x) => (y) { t = Abs (x) u = Neg (t) y = Abs (u) }")
    candidate = model(
        "g (float[2] x) => (y) { t = Cast <to = 7> (x) c = Cast <to = 1> (t) u = Sqrt (c) "
        "y = Abs (u) }"
    )
    report = check(reference, candidate, {"x": [4, 9]}, backend="numpy")
    assert report.first_divergence is not None
    assert report.first_divergence.reference == "u"


def test_the_first_batch_that_differs_is_the_one_examined() -> None:
    reference = model("g (float[1] x) => (y) { y = Abs (x) }")
    candidate = model("g (float[1] x) => (y) { y = Identity (x) }")
    report = check(reference, candidate, Inputs(random=20), backend="numpy")
    assert 0 < report.outputs[0].mismatches < 20
    assert report.first_divergence is not None
    assert report.first_divergence.node == "y"


def test_tolerances_apply_and_divergence_is_still_told() -> None:
    reference = model("g (float[2] x) => (y) { y = Abs (x) }")
    candidate = model("g (float[2] x) => (y) <float e = {0.001}> { t = Abs (x) y = Add (t, e) }")
    inputs = {"x": [1, 2]}
    assert check(reference, candidate, inputs, tolerances=Tolerances(atol=0.002)).verdict == "equal"
    assert (
        check(reference, candidate, inputs, tolerances=Tolerances(atol={"y": 0.0005})).verdict
        == "different"
    )
    assert (
        check(reference, candidate, inputs, tolerances=Tolerances(atol=0.002)).first_divergence
        is not None
    )


def test_steps_are_counted_at_the_output() -> None:
    other = model(CHAIN.replace("Relu (q)", "Add (q, t)"))
    inputs = {"x": np.ones((1, 4), np.float32)}
    report = check(model(CHAIN), other, inputs, tolerances=Tolerances(max_steps=1))
    assert report.verdict == "equal"
    assert report.outputs[0].max_steps == 1.0
    assert (
        check(model(CHAIN), other, inputs, tolerances=Tolerances(max_steps=0.5)).verdict
        == "different"
    )


def test_other_names_are_matched_by_position() -> None:
    reference = model("g (float[2] x) => (y) { y = Abs (x) }")
    candidate = model("g (float[2] in) => (out) { out = Neg (in) }")
    report = check(reference, candidate, {"x": [1, 2]}, backend="numpy")
    assert report.notes == [
        "inputs are matched by position: 'x' with 'in'",
        "outputs are matched by position: 'y' with 'out'",
    ]
    assert report.first_divergence is not None
    assert (report.first_divergence.reference, report.first_divergence.candidate) == ("y", "out")


def test_another_number_of_outputs_is_refused() -> None:
    reference = model("g (float[2] x) => (y) { y = Abs (x) }")
    candidate = model("g (float[2] x) => (y, z) { y = Abs (x) z = Neg (x) }")
    with pytest.raises(ModelError, match="outputs y, the candidate y, z; expected as many"):
        check(reference, candidate)


def test_another_output_type_is_a_difference() -> None:
    reference = model("g (float[2] x) => (y) { y = Abs (x) }")
    candidate = model("g (float[2] x) => (y) { y = Cast <to = 7> (x) }")
    report = check(reference, candidate, {"x": [1, 2]}, tolerances=Tolerances(atol=100))
    assert report.failed == {"y": "type: reference float32, candidate int64"}
    assert report.first_divergence is not None
    assert report.first_divergence.max_abs is None
    json.dumps(report.to_json(), allow_nan=False)


def test_nothing_to_compare_is_no_equality() -> None:
    empty = {"x": np.zeros((0, 4), np.float32)}
    with pytest.raises(ExecutionError, match=r"No values were compared: on 'x' \[0, 4\]"):
        check(model(CHAIN), model(CHAIN), empty, backend="numpy")


def test_texts_that_differ_are_within_no_tolerance() -> None:
    inputs = (
        '<ir_version: 10, opset_import: ["": 21]> g (string[2] a, string[2] b) => (string[2] y)'
    )
    texts = (f"{inputs} {{ y = Identity ({name}) }}" for name in ("a", "b"))
    ours, theirs = (Model(ir.from_onnx_text(text)) for text in texts)
    x = {"a": np.array(["p", "q"], object), "b": np.array(["r", "s"], object)}
    for limits in (Tolerances(atol=9), Tolerances(max_ulp=9), Tolerances(min_sqnr=9)):
        report = check(ours, theirs, x, tolerances=limits, backend="numpy")
        assert report.verdict == "different"
        assert "2 of 2 values differ, of a type without distances" in report.failed["y"]
    assert check(ours, ours, x, tolerances=Tolerances(atol=1.0), backend="numpy").verdict == "equal"


def test_no_batches_are_refused() -> None:
    with pytest.raises(OptionError, match="0 random batches"):
        check(model(CHAIN), model(CHAIN), Inputs(random=0))


def different() -> Any:
    other = model(CHAIN.replace("Relu (q)", "Neg (q)"))
    return check(model(CHAIN), other, {"x": np.ones((1, 4), np.float32)}, backend="numpy")


def test_json_has_the_published_fields() -> None:
    report = json.loads(json.dumps(different().to_json(), allow_nan=False))
    assert report == {
        "qgraph": qgraph.__version__,
        "schema": 2,
        "command": "check",
        "verdict": "different",
        "reference": {"path": None, "sha256": ANY},
        "candidate": {"path": None, "sha256": ANY},
        "batches": 1,
        "outputs": [
            {
                "name": "y",
                "elements": 4,
                "mismatches": 4,
                "max_abs": 2.0,
                "max_ulp": 2 * 0x3F800000,
                "max_steps": 8.0,
                "sqnr_db": pytest.approx(-6.0206, abs=1e-4),
                "cosine": pytest.approx(-1),
                "mean_abs": 2.0,
                "quantiles_abs": {"p50": 2.0, "p90": 2.0, "p99": 2.0, "p99.9": 2.0},
                "top1": 1.0,
                "failed": "4 of 4 values differ, by up to 2, 2130706432 ulp",
            }
        ],
        "first_divergence": {
            "reference": "r",
            "candidate": "r",
            "node": "r",
            "op": "Relu",
            "max_abs": 2.0,
        },
        "tensors": [
            {
                "reference": name,
                "candidate": name,
                "node": name,
                "op": op,
                "elements": 4,
                "mismatches": 0 if same else 4,
                "max_abs": 0.0 if same else 2.0,
                "mean_abs": 0.0 if same else 2.0,
                "max_ulp": 0 if same else 2 * 0x3F800000,
                "relative": 0.0 if same else pytest.approx(2),
                "sqnr_db": None if same else pytest.approx(-6.0206, abs=1e-4),
                "cosine": 1.0 if same else pytest.approx(-1),
            }
            for name, op, same in (
                ("a", "Abs", True),
                ("q", QUANT, True),
                ("r", "Relu", False),
                ("y", QUANT, False),
            )
        ],
        "metric": None,
        "probes": [],
        "runtimes": None,
        "bounds": None,
        "notes": [],
    }


def test_the_error_names_the_worst_output_and_carries_the_report() -> None:
    report = different()
    message = r"1 of 1 outputs, most in 'y': 4 of 4 values differ.*first .* 'r' .* Relu 'r' "
    with pytest.raises(EquivalenceError, match=message) as caught:
        report.raise_if_different()
    assert caught.value.report is report


def test_markdown_lists_the_outputs() -> None:
    text = different().to_markdown()
    assert text.startswith("## Check: different\n")
    assert "| `y` | 4 | 4 | 2 |" in text
    assert "The first tensor that differs is 'r'" in text


def test_the_batch_on_which_tensors_are_compared_is_told() -> None:
    batches = {"x": np.array([[0] * 4, [1] * 4], np.float32)}
    first = model(CHAIN)
    other = model(CHAIN.replace("r = Relu", "u = Neg").replace("(r, t", "(u, t"))
    text = check(first, other, Inputs(batches, batch=1), backend="numpy").to_markdown()
    assert "1 of 3 tensors that both models have differ on the first batch with a diff" in text
    assert "The first tensor that differs on the first batch with a difference is 'y'" in text
    assert "first batch" not in check(first, other, batches, backend="numpy").to_markdown()


def test_a_tensor_with_another_name_in_the_candidate_is_told_with_both() -> None:
    first = model("g (float[2] x) => (float[2] y) { y = Abs (x) }")
    other = model("g (float[2] x) => (float[2] w) { w = Neg (x) }")
    report = check(first, other, {"x": np.ones(2, np.float32)}, backend="numpy")
    with pytest.raises(EquivalenceError) as caught:
        report.raise_if_different()
    assert (
        "The first tensor that differs is 'y' by up to 2, which Abs 'y' produces in the reference; "
        "the candidate's is 'w'."
    ) in str(caught.value)


def test_junit_has_a_failure_for_each_output_that_failed() -> None:
    suite = ET.fromstring(different().to_junit())
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert str(failure.get("message")).startswith("4 of 4 values differ")
    equal = check(model(CHAIN), model(CHAIN), backend="numpy")
    assert ET.fromstring(equal.to_junit()).find("testcase/failure") is None


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("backend", ["numpy", pytest.param("ort", marks=pytest.mark.runtime)])
def test_every_real_model_equals_itself(models: Path, backend: str) -> None:
    if backend == "ort":
        pytest.importorskip("onnxruntime")
    for path in sorted(models.glob("*.onnx")):
        report = check(path, path, backend=backend)
        assert report.verdict == "equal", path.name
        assert report.first_divergence is None


@pytest.mark.slow
def test_an_ulp_in_a_real_model_is_found(models: Path) -> None:
    reference = qgraph.load(models / "brev_cnn_w4a4.onnx")
    candidate = reference.clone()
    node = next(n for n in candidate.nodes("Quant") if "/r4/" in str(n.outputs[0].name))
    scale = node.inputs[1]
    assert scale is not None
    assert scale.const_value is not None
    old = scale.const_value.numpy()
    scale.const_value = ir.tensor(np.nextafter(old, np.float32(1)), name=scale.name)
    x = np.load(models / "brev_cnn_w4a4.npz")["x"]
    report = check(reference, candidate, {"x": x})
    assert report.verdict == "different"
    assert report.first_divergence is not None
    assert report.first_divergence.reference == node.outputs[0].name
    assert (
        check(reference, candidate, {"x": x}, tolerances=Tolerances(min_sqnr=120)).verdict
        == "equal"
    )
