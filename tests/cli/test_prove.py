"""``qgraph prove``, and ``--prove`` of the commands that rewrite."""

from __future__ import annotations

import json
import shlex
from xml.etree import ElementTree as ET

import numpy as np
import onnx_ir as ir
import pytest

import qgraph as library

OTHER = """
    <ir_version: 10, opset_import: ["": 20]>
    net (float[N,4] x) => (float[N,3] y)
    <float[4,3] t = {0.5, 0, -0.5, -1, 1, 3, 1.5, 2.5, 1, 2, -2, 0.5}> { y = MatMul (x, t) }"""


@pytest.fixture
def converted(qgraph, model, tmp_path):
    out = tmp_path / "out.onnx"
    assert qgraph("convert", model, "-o", out, "--to", "qdq").status == 0
    return out


@pytest.fixture
def broken(converted, tmp_path):
    """The converted model with another scale of the activation."""
    made = library.load(converted)
    quantize = next(n for n in made.ir.graph if n.op_type == "QuantizeLinear")
    array = np.nextafter(quantize.inputs[1].const_value.numpy(), np.float32(1))
    scale = ir.Value(name="other_scale", const_value=ir.tensor(array, name="other_scale"))
    made.ir.graph.register_initializer(scale)
    for node in [quantize, *(use.node for use in quantize.outputs[0].uses())]:
        node.replace_input_with(1, scale)
    made.save(tmp_path / "broken.onnx")
    return tmp_path / "broken.onnx"


def test_equal_models_are_proved(qgraph, model, converted):
    found = qgraph("prove", model, converted)
    assert found.status == 0
    last = "PROVED: The outputs are equal in value for every input: 2 regions compared."
    assert found.out.splitlines()[-1] == last
    lines = [line.split("  ") for line in found.out.splitlines()]
    rows = {line[0].strip(): [part.strip() for part in line[1:] if part.strip()] for line in lines}
    assert rows["act"][1:3] == ["values", "every input"]
    assert rows["weight"][1:3] == ["bits", "its constant"]
    assert "Conditions of the verdict:\n- every operator computes as written" in found.err


def test_bits_can_be_asked_for(qgraph, model, converted):
    found = qgraph("prove", model, converted, "--exact", "bits")
    assert found.status == 1
    assert found.out.endswith("DIFFERENT: The models differ in 1 of 2 regions.\n")


def test_quiet_leaves_the_verdict(qgraph, model, converted):
    found = qgraph("prove", model, converted, "-q")
    assert len(found.out.splitlines()) == 1
    assert found.err == ""


def test_different_models_are_shown_with_counts_and_a_witness(qgraph, model, broken, tmp_path):
    witness = tmp_path / "w.npz"
    found = qgraph("prove", model, broken, "--witness", witness)
    assert found.status == 1
    assert "DIFFERENT: The models differ in 1 of " in found.out
    assert "inputs that differ" in found.out
    inputs = dict(np.load(witness))
    results = [library.load(path).run(inputs, backend="numpy")["y"] for path in (model, broken)]
    assert (results[0] != results[1]).any()


def test_undecided_models_have_a_status_of_their_own(qgraph, write):
    soft = OTHER.replace("y = MatMul (x, t)", "m = MatMul (x, t) y = Softmax (m)")
    found = qgraph("prove", write(OTHER, "other.onnx"), write(soft, "soft.onnx"))
    assert found.status == 4
    assert found.out.endswith("UNDECIDED: 1 of 1 region could not be decided.\n")
    assert "no rule" in found.out


@pytest.mark.slow
def test_undecided_parts_outweigh_bounded_ones(qgraph, write, tmp_path):
    text = """
        <ir_version: 10, opset_import: ["": 21]>
        net (float[1,2] x, int64[1,8] i) => (float[1,2] y, float[] z)
        <float s = {0.1}, int8 o = {0}, float[2,2] w = {0.3, 0.7, -0.4, 1.1}, float[2] b = {1, 2}> {
            p = QuantizeLinear (x, s, o) d = DequantizeLinear (p, s, o)
            %s q = QuantizeLinear (a, s, o) y = DequantizeLinear (q, s, o) z = RandomNormalLike (x)
        }"""
    sums = "m = MatMul (d, w) a = Add (m, b)", "a = Gemm (d, w, b)"
    files = [write(text % steps, f"{place}.onnx") for place, steps in enumerate(sums)]
    certificate = tmp_path / "c.json"
    found = qgraph("prove", *files, "--certificate", certificate)
    assert "bounded 1; undecided 1" in found.out
    assert found.status == 4
    assert qgraph("prove", *files, "--verify", certificate).status == 4


def test_a_certificate_can_be_verified(qgraph, model, converted, broken, tmp_path, read_json):
    file = tmp_path / "c.json"
    assert qgraph("prove", model, converted, "--certificate", file).status == 0
    document = read_json(file)
    assert document["command"] == "prove"
    assert (document["verdict"], document["exactness"]) == ("proved", "values")
    assert len(document["reference"]["sha256"]) == len(document["candidate"]["sha256"]) == 64
    fields = {"reference_nodes", "candidate_nodes", "verdict", "exactness", "method"}
    fields |= {"differing_inputs", "witness", "reason", "boxes"}
    assert all(fields <= set(region) for region in document["regions"])
    found = qgraph("prove", "--verify", file, model, converted)
    assert found.status == 0
    assert found.out.startswith("VERIFIED")
    assert "another file" in qgraph("prove", "--verify", file, model, broken).error
    assert qgraph("prove", "--verify", file, model, broken).status == 1
    more = document | {
        "regions": [region | {"exactness": "bits"} for region in document["regions"]]
    }
    file.write_text(json.dumps(more))
    found = qgraph("prove", "--verify", file, model, converted)
    assert found.status == 1
    assert found.out.startswith("REFUTED")
    document["regions"][0]["boxes"][0]["starts"] = "-2139095040"
    file.write_text(json.dumps(document))
    found = qgraph("prove", "--verify", file, model, converted)
    assert found.status == 3
    assert "cannot be read" in found.error


def test_nothing_is_overwritten(qgraph, model, converted, folder):
    before = folder()
    assert "another file" in qgraph("prove", model, converted, "--certificate", model).error
    found = qgraph("prove", model, converted, "--verify", model, "--witness", "w.npz")
    assert found.status == 2
    assert folder() == before


@pytest.mark.parametrize("arguments", [["convert", "--to", "qdq"], ["fold"]])
def test_what_is_proved_is_written(qgraph, model, tmp_path, arguments):
    out = tmp_path / "out.onnx"
    found = qgraph(arguments[0], model, "-o", out, *arguments[1:], "--prove")
    assert found.status == 0
    assert "proved equal for every input" in found.out
    assert out.exists()


def test_what_is_not_proved_is_not_written(qgraph, write, folder):
    asymmetric = """
        <ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
        net (float[4] x) => (float[4] y) <float s = {0.25}, float z = {127}, float b = {8}> {
            y = qonnx.custom_op.general.Quant
                <signed = 0, narrow = 0, rounding_mode = "ROUND"> (x, s, z, b) }"""
    path = write(asymmetric)
    before = folder()
    out = path.parent / "out.onnx"
    found = qgraph("convert", path, "-o", out, "--to", "qdq", "--exact", "near", "--prove")
    assert found.status == 1
    assert "1,150 inputs give another value" in found.error
    assert folder() == before


def test_help(qgraph):
    found = qgraph("prove", "--help")
    assert found.status == 0
    assert "--verify" in found.out


def test_summaries_for_servers_are_written(qgraph, model, broken, tmp_path):
    markdown, junit, report = tmp_path / "r.md", tmp_path / "r.xml", tmp_path / "r.json"
    found = qgraph(
        *("prove", model, broken, "--certificate", report),
        *("--markdown", markdown, "--junit", junit),
    )
    assert found.status == 1
    assert markdown.read_text().startswith("## Prove: different\n")
    suite = ET.parse(junit).getroot()
    assert (suite.get("failures"), suite.get("errors")) == ("1", "0")
    later = tmp_path / "later.md", tmp_path / "later.xml"
    assert qgraph("report", report, "--markdown", later[0], "--junit", later[1]).status == 0
    assert later[0].read_text() == markdown.read_text()
    assert later[1].read_text() == junit.read_text()
    found = qgraph("prove", model, broken, "--markdown", report, "--junit", report)
    assert found.status == 2
    assert "is named twice" in found.error


def test_the_next_step_runs_the_bounds_that_were_proved(qgraph, write):
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (float[2,4] x) => (float[2,4] y)
        <float s = {0.1}, float t = {0.07}, int8 z = {0},
         float[4,4] w = {FACTOR, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6}> {
            a = QuantizeLinear (x, s, z)
            b = DequantizeLinear (a, s, z)
            m = MatMul (b, w)
            c = QuantizeLinear (m, t, z)
            y = DequantizeLinear (c, t, z)
        }"""
    pair = [write(text.replace("FACTOR", n), f"{n}.onnx") for n in ("0.5", "0.50001")]
    options = ["--within", "2step", "--order", "chunk:256"]
    found = qgraph("prove", *pair, *options)
    assert found.status == 0
    (line,) = (line for line in found.err.splitlines() if line.startswith("next: "))
    _, _, *words = shlex.split(line, comments=True)
    assert words == ["check", *map(str, pair), *options]
    assert qgraph(*words).status == 0
