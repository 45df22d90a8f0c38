"""Results in other forms than tables: JSON, CSV, reports on the standard output; time limits."""

from __future__ import annotations

import csv
import io
import json
import shlex
from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import pytest

import qgraph as api
from qgraph.effort import is_over, step, time_limit, watched
from qgraph.errors import OptionError, UndecidedError
from qgraph.proof import discharge
from qgraph.reporting.pages import next_step

SMOOTH = """<ir_version: 10, opset_import: ["": 20]>
    g (float[N,2] x) => (float[N,2] y) <float c = {NUMBER}> {
        a = FORM (x, c)
        y = Sigmoid (a)
    }"""
"""Mul by 0.25 and Div by 4 are equal, but all inputs have to be tried."""


def smooth(form: str, number: str) -> str:
    return SMOOTH.replace("FORM", form).replace("NUMBER", number)


@pytest.fixture
def pair(write):
    return write(smooth("Mul", "0.25"), "a.onnx"), write(smooth("Div", "4"), "b.onnx")


@pytest.mark.cases(fast=5, slow=7)
@pytest.mark.parametrize(
    "arguments",
    [("info", "M"), ("check", "M", "M"), ("diff", "M", "M"), ("lint", "M"), ("why", "M", "M"),
     ("targets",), ("passes",), ("run", "M", "--stats"), ("prove", "M", "M"),
     pytest.param(("bench", "M", "--runtime", "numpy"), marks=pytest.mark.slow, id="bench")],
    ids=lambda a: a[0],
)  # fmt: skip
def test_csv_has_the_rows_of_the_json_document(qgraph, model, arguments):
    if arguments[0] == "bench":
        arguments = (*arguments, "--rounds", "1")
    given = [model if each == "M" else each for each in arguments]
    rows = list(csv.reader(io.StringIO(qgraph(*given, "--format", "csv").out)))
    heads = [row for row in rows if row[:1] == ["table"]]
    assert heads
    assert all(len(row) == len(heads[-1]) for row in rows[rows.index(heads[-1]) :])
    if arguments[0] == "prove":
        return  # its JSON is the certificate, which is never printed
    document = json.loads(qgraph(*given, "--format", "json").out)
    assert json.loads(qgraph(*given, "--json").out).keys() == document.keys()
    counts = {"info": "quantizers", "diff": "quantizers", "targets": "targets", "passes": "passes"}
    if listed := counts.get(arguments[0]):
        assert sum(row[:1] == [listed] for row in rows) == len(document[listed])


@pytest.mark.parametrize("form", ["json", "csv"])
def test_forms_of_several_models_are_whole_documents(qgraph, model, write, form):
    from tests.cli.conftest import QUANT

    other = write(QUANT, "other.onnx")
    found = qgraph("info", model, other, "--format", form)
    assert found.status == 0
    if form == "json":
        assert json.loads(found.out)["summary"] == {"models": 2, "failed": 0}
        return
    rows = [row for row in csv.reader(io.StringIO(found.out)) if row]
    assert {row[0] for row in rows} == {"model", str(model), str(other)}


def test_a_report_goes_to_standard_output_and_all_else_to_stderr(qgraph, model, tmp_path):
    found = qgraph("check", model, model, "--report", "-")
    assert json.loads(found.out)["verdict"] == "equal"
    assert "EQUAL" in found.err
    out = tmp_path / "out.onnx"
    found = qgraph("convert", model, "-o", out, "--to", "qdq", "--report", "-")
    assert json.loads(found.out)["output"]["path"] == str(out)
    assert f"wrote {out}" in found.err
    found = qgraph("prove", model, out, "--markdown", "-")
    assert found.out.startswith("## Prove: proved")
    found = qgraph("check", model, model, "--report", "-", "--junit", "-")
    assert found.status == 2
    assert "one report only" in found.error
    found = qgraph("prove", model, out, "--certificate", "-")
    assert found.status == 2
    assert "is not a file" in found.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", "M", "M", "--report", "-", "--json"), "one report only, and --json"),
        (("info", "M", "--json", "--format", "csv"), "Use one of them"),
        (("why", "M", "M", "--labels", "label"), "--labels needs --inputs"),
        (("bench", "M", "--threads", 10**8), "1024"),
    ],
)
def test_options_that_contradict_are_refused(qgraph, model, arguments, message):
    found = qgraph(*(model if each == "M" else each for each in arguments))
    assert found.status == 2
    assert message in found.error


def test_a_proof_in_json_is_the_certificate(qgraph, model, tmp_path):
    found = qgraph("prove", model, model, "--json", "--certificate", tmp_path / "c.json")
    assert found.status == 0
    assert json.loads(found.out) == json.loads((tmp_path / "c.json").read_text())


def test_a_proof_that_is_out_of_time_is_undecided(qgraph, pair, tmp_path):
    file = tmp_path / "c.json"
    found = qgraph("prove", *pair, "--timeout", 0.001, "--certificate", file)
    assert found.status == 4
    document = json.loads(file.read_text())
    assert document["verdict"] == "undecided"
    assert "QG066" in {region["reason_id"] for region in document["regions"]}
    assert "qgraph explain QG066" in found.err
    assert qgraph("prove", *pair, "--timeout", 0).status == 2


def test_a_check_that_is_out_of_time_says_how_far_it_came(qgraph, model, write):
    found = qgraph("check", model, model, "--random", 1000000, "--timeout", 0.001)
    assert found.status == 4
    assert "of 1000000 batches were compared in 0.001 seconds" in found.error
    pair = write(smooth("Mul", "0.25"), "a.onnx"), write(smooth("Mul", "0.5"), "b.onnx")
    found = qgraph("check", *pair, "--random", 1000000, "--timeout", 0.001)
    assert found.status == 1
    assert "the time limit; the others were not" in found.err


def test_limits_of_time_in_python(model):
    with time_limit(1e-9), pytest.raises(UndecidedError, match="of 2 batches"):
        api.check(model, model, api.Inputs(random=2))
    assert api.check(model, model).verdict == "equal"
    with pytest.raises(OptionError, match="more than 0"), time_limit(0):
        pass
    told = []
    with watched(lambda *state: told.append(state)), time_limit(60), time_limit(1e-9):
        step("working", 1, 2)
        assert is_over()
    assert told == [("working", 1, 2)]
    assert not is_over()


def test_all_inputs_are_counted_on_the_way():
    text = """<ir_version: 10, opset_import: ["": 20]>
        g (float[2] x) => (float[2] y) <float c = {0.25}> { y = Mul (x, c) }"""
    other = text.replace("Mul", "Div").replace("0.25", "4")
    told = []
    with watched(lambda *state: told.append(state)):
        found = api.prove(*map(ir.from_onnx_text, (text, other)))
    assert found.verdict == "proved"
    name, done, total = told[-1]
    assert name in ("comparing all inputs", "trying all inputs")
    assert 0 <= done <= total


def test_progress_is_that_of_all_functions(monkeypatch):
    """The inputs of two functions are tried, the cheaper one first; its operations count less."""

    def count(outcome):
        for number in range(2):
            step("trying", number, 2)
        return outcome

    monkeypatch.setattr(discharge, "count_all", count)
    monkeypatch.setattr(discharge, "effort", lambda operations: operations)
    stopped = SimpleNamespace(given_up=True)
    shown = [
        discharge.Shown(
            None,
            SimpleNamespace(
                finding=stopped, pair=SimpleNamespace(key=key, functions=(cost,)), is_counted=True
            ),
        )
        for key, cost in (("b", 20), ("a", 10), ("b", 20))
    ]
    told = []
    with watched(lambda *state: told.append(state)):
        discharge.try_all_inputs(shown)
    shares = [done / total for what, done, total in told]
    assert shares == [0, 1 / 6, 1 / 3, 2 / 3]


def test_advice_can_be_pasted():
    node = "/a b/it's #1"
    cost = {"node": node, "reason": None}
    document = {"command": "why", "quantizers": [cost], "sqnr_db": np.float64(3.0)}
    advice = next_step(document, ("a.onnx", "my model.onnx"))
    assert advice is not None
    words = shlex.split(advice, comments=True)
    assert words == ["qgraph", "plot", "my model.onnx", "--node", node, "-o", "worst.svg"]
    assert next_step({"command": "lock"}) is None


def test_a_certificate_leads_to_its_check():
    document = {"command": "prove", "verdict": "proved"}
    advice = next_step(document, ("a.onnx", "b.onnx"), ("--verify", "my proof.json"))
    assert advice is not None
    words = shlex.split(advice, comments=True)
    assert words == ["qgraph", "prove", "a.onnx", "b.onnx", "--verify", "my proof.json"]


EXECUTED = {"path": "a b.onnx", "integer_nodes": 0, "float_nodes": 3}
"""A model of a measurement."""


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"command": "why", "quantizers": [], "sqnr_db": None}, ["prove", "a.onnx", "b.onnx"]),
        ({"command": "run", "quantizers": [{}]}, ["lint", "a.onnx"]),
        (
            {"command": "bench", "runtime": "onnxruntime 1.32.0", "models": [EXECUTED]},
            ["deploy", "a b.onnx", "-o", "deployed.onnx", "--target", "onnxruntime-cpu"],
        ),
        (
            {
                "command": "bench",
                "runtime": "openvino 2026.4.1",
                "models": [EXECUTED | {"integer_nodes": 3}],
            },
            ["info", "a b.onnx"],
        ),
        (
            {"command": "bench", "runtime": "numpy 2.4.6", "models": [EXECUTED, {"path": "c"}]},
            ["check", "a b.onnx", "c"],
        ),
        (
            {
                "command": "bench",
                "runtime": "openvino 2026.4.1",
                "models": [EXECUTED, EXECUTED | {"path": "deployed.onnx"}],
            },
            ["deploy", "a b.onnx", "-o", "deployed1.onnx", "--target", "openvino-cpu"],
        ),
        (
            {
                "command": "bench",
                "runtime": "onnxruntime 1.32.0",
                "models": [EXECUTED, {"path": "c", "integer_nodes": 3}],
            },
            ["check", "a b.onnx", "c"],
        ),
        ({"command": "lint", "models": [], "target": None}, ["targets"]),
        (
            {"command": "lint", "models": [{"findings": [{"id": "QG1"}]}], "target": None},
            ["explain", "QG1"],
        ),
        (
            {"command": "lint", "models": [], "target": "x y"},
            ["deploy", "a.onnx", "--target", "x y", "--dry-run"],
        ),
        ({"command": "why", "quantizers": [], "sqnr_db": 3.0}, ["diff", "a.onnx", "b.onnx"]),
        ({"command": "lock"}, ["lock", "a.onnx", "--check", "b.onnx"]),
        ({"command": "plot"}, ["diff", "a.onnx", "b.onnx"]),
        ({"command": "reduce"}, ["prove", "a.onnx", "b.onnx"]),
        ({"command": "prove --verify"}, ["check", "a.onnx", "b.onnx"]),
    ],
)
def test_results_lead_on(document, words):
    advice = next_step(document, ("a.onnx", "b.onnx"))
    assert advice is not None
    assert shlex.split(advice, comments=True)[1:] == words


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("explain", ["explain", "QG000"]),
        ("explain QG001", ["explain"]),
        ("explain QG112", ["lint", "MODEL", "--select", "QG112"]),
        ("targets", ["targets", "finn"]),
        ("targets finn", ["deploy", "MODEL", "-o", "deployed.onnx", "--target", "finn"]),
        ("passes", ["passes", "canonical-operators"]),
        ("passes convert", ["transform", "MODEL", "-o", "out.onnx", "-p", "convert"]),
    ],
)
def test_lists_lead_on(qgraph, command, words):
    found = qgraph(*command.split())
    (advice,) = [line for line in found.err.splitlines() if line.startswith("next: ")]
    assert shlex.split(advice.removeprefix("next: "), comments=True)[1:] == words
    assert "next: " not in qgraph(*command.split(), "-q").err


def test_a_check_that_fails_leads_on_with_the_same_inputs(qgraph, write):
    """A large difference is cut out of the models; a small one may be rounding, with a bound."""
    text = """<ir_version: 10, opset_import: ["": 20]>
        g (float[N,2] x) => (float[N,2] y) <float c = {NUMBER}> { y = Mul (x, c) }"""
    files = [
        write(text.replace("NUMBER", number), f"{number}.onnx") for number in ("1", "2", "1.001")
    ]
    options = ["--random", "2", "--seed", "7", "--shape", "x:3,2", "--probes", "1", "--batch", "3"]
    for other, words in (
        (files[1], ["reduce", str(files[0]), str(files[1]), "-o", "parts"]),
        (files[2], ["prove", str(files[0]), str(files[2]), "--within", "1step"]),
    ):
        found = qgraph("check", files[0], other, *options)
        assert found.status == 1
        (advice,) = [line for line in found.err.splitlines() if line.startswith("next: ")]
        stated = shlex.split(advice.removeprefix("next: "), comments=True)
        assert stated[: len(words) + 1] == ["qgraph", *words]
        given = stated[len(words) + 1 :]
        pairs = set(zip(options[::2], options[1::2], strict=True))
        assert set(zip(given[::2], given[1::2], strict=True)) == (
            pairs if "reduce" in words else set()
        )
