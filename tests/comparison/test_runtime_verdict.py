"""Differences of runtimes are told from those of a rewrite, with the option that stops them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from qgraph.comparison.check import check
from qgraph.comparison.report import CandidateForm, RuntimeReport, RuntimeResult, Stopped
from qgraph.comparison.runtimes import verdict as runtime_verdict
from qgraph.comparison.runtimes.causes import (
    ONNX_RUNTIME,
    OPENVINO,
    RUNTIMES,
    Answer,
    Runtime,
    RuntimeJobs,
    RuntimeLevel,
    Suspect,
    merged,
)
from qgraph.comparison.runtimes.verdict import (
    Standardized,
    in_standard_operators,
    judge_runtimes,
    without_quantizers,
)
from qgraph.model import Model
from qgraph.text import markdown


def model(text: str, opset: int = 21) -> Model:
    return Model(ir.from_onnx_text(f'<ir_version: 10, opset_import: ["": {opset}]> {text}'))


IDENTITY = model("g (float[4] x) => (float[4] y) { y = Neg (x) }")
X = np.asarray([1, -2, 4, 8], np.float32)
"""Its norm is sqrt(85)."""


class Jobs:
    """A runtime that adds the sum of the faults which no option stops."""

    faults: Mapping[str, float] = {}
    failure: str | None = None

    def __init__(self, candidate: Model, batches: Sequence[Mapping[str, Any]]) -> None:
        self.batches = batches
        self.versions = {"json": "1.2.3-abc"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, runtime: str, configurations: Sequence[Mapping[str, Any]]) -> list[Answer]:
        assert runtime == "json"
        return [self.answer(configuration) for configuration in configurations]

    def answer(self, configuration: Mapping[str, Any]) -> Answer:
        if self.failure is not None or "refused" in configuration:
            return Answer(failure=self.failure or "no such option")
        stopped = configuration.get("disabled", ())
        level = configuration.get("level", "all")
        faults = self.faults if level == "all" else {}
        error = sum(size for name, size in faults.items() if name not in stopped)
        return Answer([{"y": -batch["x"] + np.float32(error)} for batch in self.batches])


FAKE = Runtime(
    "json",
    "Fake",
    (
        RuntimeLevel("plain", "without optimizations", {"level": "none"}),
        RuntimeLevel("default", "by default", {"level": "all"}),
    ),
    (
        Suspect("a trick", "option a", {"disabled": ["a"]}),
        Suspect("no option", "option z", {"refused": True}),
        Suspect("another trick", "option b", {"disabled": ["b"]}),
        Suspect("anything", "option all", {"disabled": ["a", "b", "c"]}),
    ),
)


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(runtime_verdict, "RuntimeJobs", Jobs)

    def run(rewrite: float = 0.0, *, failure: str | None = None, **faults: float) -> RuntimeReport:
        monkeypatch.setattr(Jobs, "faults", faults)
        monkeypatch.setattr(Jobs, "failure", failure)
        ours = [{"y": -X + np.float32(rewrite)}]
        return judge_runtimes(IDENTITY, [{"x": X}], ours, [{"y": -X}], {"y": "y"}, runtimes=[FAKE])

    return run


def test_nothing_is_wrong(judge: Any) -> None:
    found = judge()
    assert found.sentence == "the rewrite is exact; Fake 1.2.3 computes it as defined"
    assert [result.error for result in found.results] == [0.0, 0.0]


def test_the_special_option_is_named_before_the_general_one(judge: Any) -> None:
    found = judge(b=0.5)
    share = 100 * 0.5 * 2 / np.sqrt(85)
    assert found.sentence == (
        f"the rewrite is exact; Fake 1.2.3's defaults change it by {share:.2g} %: "
        "another trick (option b)"
    )
    assert found.results[1].error == pytest.approx(share / 100)


def test_options_may_be_needed_together(judge: Any) -> None:
    (_, result) = judge(a=0.125, b=0.5).results
    assert [(c.option, c.error) for c in result.suspects] == [("option all", 0.0)]
    (_, result) = judge(a=0.01, b=0.5).results
    assert [c.option for c in result.suspects] == ["option b"] or result.suspects[0].error == 0


def test_what_no_option_stops_is_a_number_alone(judge: Any) -> None:
    found = judge(unknown=0.5)
    assert found.results[1].suspects == []
    assert found.sentence.endswith("Fake 1.2.3's defaults change it by 11 %")


def test_a_rewrite_that_is_wrong_is_said_first(judge: Any) -> None:
    found = judge(1.0)
    assert found.error == pytest.approx(2 / np.linalg.norm(-X + 1))
    assert found.sentence.startswith("the rewrite changes the outputs by 24 %; Fake")
    assert judge(2e-6).sentence.startswith(
        "the rewrite is equal except for 4e-07 of the outputs' norm"
    )


def test_a_runtime_that_refuses_says_why(judge: Any) -> None:
    found = judge(failure="no kernel | for this")
    assert found.sentence == (
        "the rewrite is exact; Fake 1.2.3 does not run the candidate (no kernel | for this)"
    )
    assert found.is_empty
    assert not judge().is_empty
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert {result["failure"] for result in document["results"]} == {"no kernel | for this"}


def test_what_is_missing_is_listed() -> None:
    absent = Runtime("no_such_runtime", "Absent", FAKE.levels, ())
    found = judge_runtimes(
        IDENTITY, [{"x": X}], [{"y": X}], [{"y": X}], {"y": "y"}, runtimes=[absent]
    )
    assert found.missing == ["Absent"]
    assert found.sentence == "the rewrite is exact"


def test_options_are_put_together() -> None:
    first = {"level": "x", "disabled": ["a"], "entries": {"k": "1"}}
    second = {"level": "y", "disabled": ["b"], "entries": {"m": "2"}}
    assert merged(first, second) == {
        "level": "y",
        "disabled": ["a", "b"],
        "entries": {"k": "1", "m": "2"},
    }
    assert first["disabled"] == ["a"]


def test_suspects_have_distinct_options_and_names() -> None:
    for runtime in RUNTIMES:
        assert runtime.levels[-1].name == "default"
        assert len({each.option for each in runtime.suspects}) == len(runtime.suspects)
        assert len({each.what for each in runtime.suspects}) == len(runtime.suspects)


def blocked_int4() -> Model:
    """A product with blocks of 4-bit weights, ``[1,64] x [64,8]``."""
    m = model(
        "g (float[N,64] x, int4[64,8] c, float[2,8] s) => (float[N,8] y) "
        "{ w = DequantizeLinear <axis = 0, block_size = 32> (c, s) y = MatMul (x, w) }"
    )
    generator = np.random.default_rng(0)
    codes = generator.integers(-8, 8, (64, 8)).astype(ml_dtypes.int4)
    scales = generator.uniform(0.01, 0.1, (2, 8)).astype(np.float32)
    store(m, c=codes, s=scales)
    return m


def store(m: Model, **arrays: Any) -> None:
    """Make constants of inputs."""
    for name, array in arrays.items():
        (value,) = (each for each in m.ir.graph.inputs if each.name == name)
        value.const_value = ir.tensor(array, name=name)
        m.ir.graph.inputs.remove(value)
        m.ir.graph.register_initializer(value)


@pytest.mark.slow
@pytest.mark.sums
@pytest.mark.runtime
def test_int8_activations_of_mat_mul_n_bits_are_found() -> None:
    pytest.importorskip("onnxruntime")
    x = {"x": np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)}
    m = blocked_int4()
    outputs = [m.run(x, backend="numpy")]
    found = judge_runtimes(m, [x], outputs, outputs, {"y": "y"}, runtimes=[ONNX_RUNTIME])
    plain, basic, default = found.results
    assert plain.error is not None
    assert max(plain.error, basic.error or 0) < 1e-6
    assert default.error is not None
    assert 1e-3 < default.error < 0.05
    (suspect,) = default.suspects
    assert suspect.what == "MatMulNBits with int8 activations"
    assert suspect.option == "session.qdq_matmulnbits_accuracy_level=1"
    assert suspect.error < 1e-6
    assert "MatMulNBits with int8 activations (session.qdq_" in found.sentence


def test_a_crash_of_a_runtime_stays_in_its_process() -> None:
    with RuntimeJobs(IDENTITY, [{"x": X}]) as jobs:
        (answer,) = jobs.run("no_such_module_at_all", [{}])
    assert answer.failure is not None
    assert "no_such_module_at_all" in answer.failure


INT16 = """g (float[N,8] x, float[8,4] w) => (float[N,4] y) <float s = {0.25}, int16 z = {0}> {
    q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) y = MatMul (d, w) }"""


def coarse_int16() -> Model:
    m = model(INT16)
    w = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    store(m, w=w)
    return m


def test_a_model_without_its_quantizers_is_the_float_model() -> None:
    m = coarse_int16()
    x = np.random.default_rng(2).standard_normal((3, 8)).astype(np.float32)
    w = m.ir.graph.initializers["w"].const_value
    assert w is not None
    bare, number = without_quantizers(m, 16)
    assert number == 1
    np.testing.assert_allclose(bare.run({"x": x})["y"], x @ w.numpy(), rtol=1e-5, atol=1e-6)
    assert without_quantizers(m, 8)[1] == 0
    assert not np.allclose(m.run({"x": x})["y"], x @ w.numpy(), atol=1e-3)


def test_quantizers_of_outputs_stay() -> None:
    """Outputs keep their names; what else reads them does without the quantizer."""
    text = """g (float[4] x) => (float[4] y, float[4] n) <float s = {0.5}, int8 z = {0}> {
        q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z) n = Neg (y) }"""
    m = model(text)
    x = np.float32([0.2, 0.3, 0.6, 0.9])
    assert m.run({"x": x})["n"].tolist() == [0, -0.5, -0.5, -1]
    bare, number = without_quantizers(m, None)
    assert number == 1
    found = bare.run({"x": x})
    np.testing.assert_array_equal(found["n"], -x)
    assert found["y"].tolist() == [0, 0.5, 0.5, 1]
    text = "g (float[4] x) => (float[4] y) <float s = {0.5}, int8 z = {0}> { "
    alone = text + "q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z) }"
    assert without_quantizers(model(alone), None)[1] == 0


@pytest.mark.slow
@pytest.mark.sums
@pytest.mark.runtime
def test_quantizers_that_a_runtime_leaves_out_are_found() -> None:
    pytest.importorskip("openvino")
    m = coarse_int16()
    x = {"x": np.random.default_rng(2).standard_normal((3, 8)).astype(np.float32)}
    outputs = [m.run(x, backend="numpy")]
    found = judge_runtimes(m, [x], outputs, outputs, {"y": "y"}, runtimes=[OPENVINO])
    told = [suspect.what for result in found.results for suspect in result.suspects]
    assert told[0] == "1 16-bit quantizers of data are left out"
    assert found.results[0].error is not None
    assert found.results[0].error > 1e-2


@pytest.mark.slow
@pytest.mark.runtime
def test_check_reports_runtimes() -> None:
    pytest.importorskip("onnxruntime")
    m = blocked_int4()
    report = check(m, m, runtimes=True)
    assert report.runtimes is not None
    assert report.verdict == "equal"
    assert markdown(report.runtimes.sentence[1:]) in report.to_markdown()
    assert "The rewrite is exact" in report.to_junit()
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    levels = [
        each["level"] for each in document["runtimes"]["results"] if "ONNX" in each["runtime"]
    ]
    assert levels == ["plain", "basic", "default"]


QUANT = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
    g (float[N,8] x%s) => (float[N,4] y) <float s = {0.5}, float z = {0}, float b = {4}%s> {
        q = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (x, s, z, b)
        p = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (w, s, z, b)
        y = MatMul (q, p)
    }"""
WEIGHTS = ", ".join(["0.25, 1.5, -9, 2.75"] * 8)


def own_operators(*, constant: bool = True) -> Model:
    """A product of two quantizers that no runtime knows."""
    filled = (", float[8,4] w", "") if not constant else ("", f", float[8,4] w = {{{WEIGHTS}}}")
    return Model(ir.from_onnx_text(QUANT % filled))


@pytest.mark.slow
@pytest.mark.runtime
def test_a_dialect_that_no_runtime_knows_is_judged_in_standard_operators() -> None:
    pytest.importorskip("onnxruntime")
    m = own_operators()
    report = check(m, m, runtimes=True)
    assert report.notes == []
    assert report.runtimes is not None
    standard = report.runtimes.standard
    assert standard is not None
    assert (standard.respelled, standard.left, standard.error) == (2, [], 0.0)
    ours = [each for each in report.runtimes.results if each.runtime.startswith("ONNX Runtime")]
    # halves times halves, with sums far below 2**24: no order of additions changes them
    assert [each.error for each in ours] == [0.0] * 3
    assert {each.form for each in ours} == {CandidateForm.STANDARD}
    assert all("Quant" in (each.refused or "") for each in ours)
    assert "computes its standard form as defined" in report.runtimes.sentence
    assert report.runtimes.sentence.endswith(
        "standard form: 2 quantizers in standard operators, each proved equal in every bit, all "
        "outputs equal on these inputs"
    )
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))["runtimes"]
    assert document["standard_form"]["exactness"] == "bits"
    assert document["results"][0]["form"] == "standard operators"
    text = report.to_markdown()
    assert text.count("| standard operators | exact |") >= 3
    name = ours[0].runtime
    assert text.count(f"- {name} does not run the candidate as written: ") == 1


@pytest.mark.slow
@pytest.mark.runtime
def test_a_fault_of_the_standard_form_does_not_pass_for_one_of_the_runtime(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("onnxruntime")
    m = own_operators()

    def wrong(given: Model, batches: Sequence[Mapping[str, Any]]) -> Standardized:
        other = model("g (float[N,8] x, float[8,4] w) => (float[N,4] y) { y = MatMul (x, w) }")
        store(other, w=np.ones((8, 4), np.float32))
        return Standardized(other, 2, [])

    monkeypatch.setattr(runtime_verdict, "in_standard_operators", wrong)
    found = check(m, m, runtimes=True).runtimes
    assert found is not None
    assert found.standard is not None
    assert not found.standard.is_runnable
    assert {result.error for result in found.results} == {None}
    assert "outputs on these inputs differ by" in found.sentence


@pytest.mark.slow
@pytest.mark.runtime
def test_what_has_no_standard_form_is_to_be_converted_first() -> None:
    pytest.importorskip("onnxruntime")
    text = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
        g (float[4] x) => (float[4] y) <float z = {0}, float b = {4}> {
            s = ReduceMax <keepdims = 0> (x)
            y = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (x, s, z, b)
        }"""
    m = Model(ir.from_onnx_text(text))
    report = check(m, m, {"x": X}, runtimes=True)
    (note,) = report.notes
    assert note.startswith("no runtime can run the candidate, so no runtime is judged; convert it")
    assert report.runtimes is not None
    assert {result.error for result in report.runtimes.results} == {None}
    assert report.runtimes.sentence.endswith(
        "standard form: 0 quantizers in standard operators, but there is none for Quant, "
        "so it was not run"
    )


def test_inputs_for_initializers_leave_no_standard_form() -> None:
    m = own_operators()
    m.ir.graph.inputs.append(m.ir.graph.initializers["w"])
    x = {"x": np.zeros((1, 8), np.float32)}
    found = in_standard_operators(m, [x])
    assert found is not None
    assert found.respelled == 2
    assert in_standard_operators(m, [x | {"w": np.zeros((8, 4), np.float32)}]) is None
    assert in_standard_operators(IDENTITY, [x]) is None


def test_what_an_option_leaves_is_told() -> None:
    """A bad kernel makes 7 %; the option that is named takes away only what comes on top."""

    def result(level: str, error: float, *suspects: Stopped) -> RuntimeResult:
        return RuntimeResult("R 1", level, f"at {level}", (), error, suspects)

    some, most = Stopped("a trick", "option a", 0.07), Stopped("a trick", "option a", 0.001)
    plain, default = result("plain", 0.07), result("default", 0.08, some)
    assert RuntimeReport([], 0.0, [plain, default]).sentence == (
        "the rewrite is exact; R 1's defaults change it by 8 % (and by 7 % at plain): "
        "a trick (option a); 7 % is left, which no known option removes"
    )
    alone = RuntimeReport([], 0.0, [result("plain", 0.0), result("default", 0.08, most)])
    assert alone.sentence.endswith("change it by 8 %: a trick (option a)")


def test_a_level_that_fails_is_told_with_what_makes_it_run(
    judge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(jobs: Jobs, configuration: Mapping[str, Any]) -> Answer:
        if configuration["level"] == "all" and "b" not in configuration.get("disabled", ()):
            return Answer(failure="no kernel")
        return Answer([{"y": -batch["x"]} for batch in jobs.batches])

    monkeypatch.setattr(Jobs, "answer", answer)
    found = judge()
    assert found.sentence == (
        "the rewrite is exact; Fake 1.2.3 computes it as defined; it does not run by default "
        "(no kernel), but with option b"
    )
    (failed,) = [result for result in found.to_json()["results"] if result["failure"]]
    assert [cause["option"] for cause in failed["culprits"]] == ["option b"]
