"""Applying passes to a file from Python."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx_ir.passes.common import RemoveUnusedNodesPass

import qgraph
from qgraph import transforms
from qgraph.errors import ModelError, OptionError
from qgraph.reporting.pages import page_of
from qgraph.version import head

TEXT = """
    <ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
    net (float[2] x) => (float[2] y)
    <float[2] w = {0.5, 1}, float s = {0.5}, float z = {0}, float b = {4}> {
        q = qonnx.custom_op.general.Quant
            <signed = 1, narrow = 0, rounding_mode = "ROUND"> (w, s, z, b)
        unused = Neg (x)
        y = Add (x, q)
    }"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    ir.save(ir.from_onnx_text(TEXT), tmp_path / "in.onnx")
    return tmp_path / "in.onnx"


def test_it_is_load_apply_and_save(source, tmp_path):
    out, other = tmp_path / "out.onnx", tmp_path / "other.onnx"
    report = transforms.rewrite(source, str(out), transforms.FoldWeights())
    model = qgraph.load(source)
    expected = model.apply(transforms.FoldWeights())
    model.save(other)
    assert out.read_bytes() == other.read_bytes()
    assert report == expected


def test_passes_of_onnx_ir_and_of_qgraph_mix(source, tmp_path):
    out, report = tmp_path / "out.onnx", tmp_path / "r.json"
    steps = (RemoveUnusedNodesPass(), transforms.FoldWeights())
    transforms.rewrite(source, out, *steps, report=report)
    assert [node.op_type for node in onnx.load(out).graph.node] == ["DequantizeLinear", "Add"]
    document = json.loads(report.read_text())
    assert document["command"] == "transform"
    assert [site["pass"] for site in document["sites"]] == ["fold-weights"]


def test_external_data_are_part_of_both_digests(source, tmp_path):
    big, out, report = tmp_path / "big.onnx", tmp_path / "out.onnx", tmp_path / "r.json"
    model = ir.from_onnx_text(
        TEXT.replace("float[2]", "float[4096]").replace("{0.5, 1}", _zeros(4096))
    )
    ir.save(model, big, external_data="big.data")
    digests = []
    for change in (b"\0", b"\1"):
        data = (tmp_path / "big.data").read_bytes()
        (tmp_path / "big.data").write_bytes(data[:-1] + change)
        transforms.rewrite(big, out, report=report)
        document = json.loads(report.read_text())
        digests.append((document["input"]["sha256"], document["output"]["sha256"]))
    assert digests[0][0] != digests[1][0]
    assert digests[0][1] != digests[1][1]


def test_progress_is_told_from_reading_to_writing(source, tmp_path):
    told: list[tuple[str, int, int]] = []
    transforms.rewrite(
        source,
        tmp_path / "out.onnx",
        RemoveUnusedNodesPass(),
        transforms.FoldWeights(),
        writing=transforms.Writing(progress=lambda *state: told.append(state)),
    )
    assert [what for what, _, _ in told] == [
        "reading in.onnx",
        "RemoveUnusedNodesPass, fold-weights",
        "writing out.onnx",
    ]


def test_a_place_that_cannot_be_written_is_told_before_any_work(tmp_path):
    with pytest.raises(ModelError, match="is not a folder"):
        transforms.rewrite(tmp_path / "absent.onnx", tmp_path / "missing" / "out.onnx")


def test_a_model_is_replaced_only_when_that_is_allowed(source):
    before = source.read_bytes()
    with pytest.raises(OptionError, match="in_place=True"):
        transforms.rewrite(source, source, transforms.FoldWeights())
    assert source.read_bytes() == before
    transforms.rewrite(
        source, source, transforms.FoldWeights(), writing=transforms.Writing(in_place=True)
    )
    assert "DequantizeLinear" in {node.op_type for node in onnx.load(source).graph.node}


def _zeros(count: int) -> str:
    return "{" + ", ".join(["0"] * count) + "}"


QUANTIZED = """<ir_version: 10, opset_import: ["": 21]>
net (float[N,2] x) => (uint8[N,1] y)
<float s = {0.5}, uint8 z = {0}, int8[2,1] w = {1, 3}, float one = {1}, int8 zw = {0},
 float[1] b = {0.3}, float t = {2}> {
    c = QuantizeLinear (x, s, z)
    d = DequantizeLinear (c, s, z)
    v = DequantizeLinear (w, one, zw)
    [layer] p = Gemm (d, v, b)
    y = QuantizeLinear (p, t, z)
}"""


def test_sites_that_are_not_equal_have_the_bound_of_their_segment(tmp_path):
    ir.save(ir.from_onnx_text(QUANTIZED), tmp_path / "in.onnx")
    report = transforms.rewrite(
        tmp_path / "in.onnx", tmp_path / "out.onnx", transforms.QuantizeBias()
    )
    (site,) = report.to_json()["sites"]
    # 0.3 becomes one step of 0.5: 0.2 more, a tenth of the quantizer's step of 2
    assert (site["exactness"], site["method"]) == ("bounded", "bound")
    assert site["bound"]["ideal_shift"] == pytest.approx(0.1, rel=2e-4)  # rounded up
    assert site["bound"]["max_steps"] == 1
    assert site["bound"]["conditions"]
    page = page_of(head("transform") | report.to_json())
    assert page.sentence == (
        "1 site changed; given equal codes before each segment, codes move by at most 1 step, and "
        "only within 0.1 steps of a tie."
    )
