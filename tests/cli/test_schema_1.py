"""Reports that were written with schema 1, which is read as well as the present one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from qgraph.certificate import Certificate

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


@pytest.mark.parametrize(("level", "status"), [("values", 0), ("bits", 1)])
def test_certificates_are_verified(qgraph, write, tmp_path, level, status):
    models = write(REFERENCE, "reference.onnx"), write(CANDIDATE, "candidate.onnx")
    document = stored("prove") | {"exactness": level}
    for name, model in zip(("reference", "candidate"), models, strict=True):
        document[name]["sha256"] = hashlib.sha256(model.read_bytes()).hexdigest()
    certificate = tmp_path / "prove.json"
    certificate.write_text(json.dumps(document))
    found = qgraph("prove", "--verify", certificate, *models, "--json")
    assert found.status == status, found
    assert json.loads(found.out)["summary"] == {"checked": 2, "unchecked": 0, "refuted": 0}


OLD_CONDITIONS = """2 initializers that could be fed as inputs too are not fed
zeros count as equal whatever their sign; 1 regions do not keep it, and nothing after them sees it
constants that Exp, Tanh compute are the exact results, rounded once; ONNX leaves their last bits open
open sizes of the inputs (N, M) and their products are below 2**40
dimensions of one name are equal: N is the size of x[0], z[0]
the bias is added last, with one rounding"""  # noqa: E501 - one condition a line

CONDITIONS = """initializers that are also graph inputs keep the values of the file (2)
-0 counts as equal to +0: regions may change the sign of a zero (1), and no operator after them \
distinguishes -0 from +0
constants computed by Exp, Tanh are the exact results, rounded once; ONNX does not define their \
last bits
symbolic dimensions of the inputs (N, M) and their products are below 2**40
dimensions of the same name are equal: N is the size of x[0], z[0]
the bias is added last, with one rounding"""


def test_conditions_are_read_in_the_present_words():
    document = stored("prove") | {"conditions": OLD_CONDITIONS.splitlines()}
    assert Certificate.from_json(document).conditions == tuple(CONDITIONS.splitlines())


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
