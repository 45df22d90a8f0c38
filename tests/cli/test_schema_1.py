"""Reports that were written with schema 1, which is read as well as the present one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

STORED = Path(__file__).parent / "schema_1"

REFERENCE = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
net (float[N,2] x) => (float[N,2] y, float[N,2] t)
<float[2,2] w = {0.5, -1.1, 0.7, 2}, float s = {0.25}, float z = {0}, float three = {3}, float b = {8}> {
    [act] a = qonnx.custom_op.general.Quant <signed = 0, rounding_mode = "ROUND"> (x, s, z, b)
    [act3] t = qonnx.custom_op.general.Quant <signed = 0, rounding_mode = "ROUND"> (x, s, three, b)
    [product] y = MatMul (a, w)
}"""  # noqa: E501 - one line of the text

CANDIDATE = """<ir_version: 10, opset_import: ["": 21]>
net (float[N,2] x) => (float[N,2] y, float[N,2] t)
<float[2,2] w = {0.5, -1.1, 0.7, 2}, float a_scale = {0.25}, uint8 a_zero_point = {0},
 float t_const = {3}, float t_scale = {1}, uint8 t_zero_point = {3}> {
    [a_QuantizeLinear] a_quantizelinear = QuantizeLinear (x, a_scale, a_zero_point)
    [a_DequantizeLinear] a = DequantizeLinear (a_quantizelinear, a_scale)
    [t_Div] t_div = Div (x, a_scale)
    [t_Add] t_add = Add (t_div, t_const)
    [t_QuantizeLinear] t_quantizelinear = QuantizeLinear (t_add, t_scale, a_zero_point)
    [t_DequantizeLinear] t = DequantizeLinear (t_quantizelinear, a_scale, t_zero_point)
    [product] y = MatMul (a, w)
}"""


def stored(name: str) -> dict:
    return json.loads((STORED / f"{name}.json").read_text())


@pytest.mark.parametrize("name", ["check", "convert", "fold", "prove", "transform"])
def test_reports_are_shown(qgraph, tmp_path, name):
    assert stored(name)["schema"] == 1
    page, log = tmp_path / "r.md", tmp_path / "r.sarif"
    arguments = ("report", STORED / f"{name}.json", "--markdown", page, "--sarif", log)
    assert qgraph(*arguments).status == 0
    assert page.read_text().startswith(f"## {name.capitalize()}: ")
    if name == "convert":
        assert "its scale is zero, a fault that conversions do not carry over |" in page.read_text()


def test_certificates_are_to_be_written_again(qgraph, write, tmp_path):
    """They state conditions in words, which are other ones now."""
    models = write(REFERENCE, "reference.onnx"), write(CANDIDATE, "candidate.onnx")
    certificate = tmp_path / "prove.json"
    certificate.write_text(json.dumps(stored("prove")))
    found = qgraph("prove", "--verify", certificate, *models)
    assert found.status == 3
    assert "another version of qgraph" in found.err
    assert "Run 'qgraph prove' again" in found.err


@pytest.mark.parametrize("command", ["report", "prove"])
def test_later_schemas_are_refused(qgraph, write, tmp_path, command):
    certificate = tmp_path / "later.json"
    certificate.write_text(json.dumps(stored("prove") | {"schema": 3}))
    models = write(REFERENCE, "reference.onnx"), write(CANDIDATE, "candidate.onnx")
    arguments = (certificate, "--markdown", tmp_path / "r.md")
    if command == "prove":
        arguments = ("--verify", certificate, *models)
    found = qgraph(command, *arguments)
    assert found.status == 3
    assert "schema" in found.error
    assert "1" in found.error
    assert "2" in found.error
