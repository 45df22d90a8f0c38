"""Codes that are joined where what they are made of has to be shown equal first."""

from __future__ import annotations

import onnx_ir as ir
import pytest

import qgraph
from qgraph.certificate import ProofVerdict
from qgraph.model import load
from qgraph.transforms.lowered_operators import LowerIntegerOperators
from tests.verify.checking import verify

HEADER = '<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1]>'
CONSTANTS = (
    "float s = {0.25}, float u = {0.5}, uint8 z = {3}, "
    "float[2,2] k = {0.5, 1, 1.5, 2}, float v = {4}, float e = {1}"
)
SUM = (
    "d{0} = DequantizeLinear(q{0}, s, z) m{0} = MatMul(d{0}, k) n{0} = MatMul(w, k) "
    "a{0} = QuantizeLinear(m{0}, s, z) b{0} = QuantizeLinear(n{0}, s, z) "
    "t{0} = com.microsoft.QLinearAdd(a{0}, s, z, b{0}, s, z, u, z) y = DequantizeLinear(t{0}, u, z)"
)


def model(codes: str, suffix: str = "") -> ir.Model:
    return ir.from_onnx_text(
        f"{HEADER} g (float[3,2] x, float[3,2] w) => (float[3,2] y) <{CONSTANTS}> "
        f"{{ {codes} {SUM.format(suffix)} }}"
    )


def test_operands_of_an_operator_on_two_codes_are_shown_first():
    ours = model("q = QuantizeLinear(x, s, z)")
    theirs = load(model("p1 = Mul(x, v) q1 = QuantizeLinear(p1, e, z)", "1"))
    theirs.apply(LowerIntegerOperators())
    assert "QLinearAdd" not in {node.op_type for node in theirs.ir.graph}
    found = qgraph.prove(ours, theirs, evidence=True)
    assert found.verdict is ProofVerdict.PROVED
    assert verify(found.to_json(), ours, theirs) == "proved"
    other = load(model("p1 = Mul(x, u) q1 = QuantizeLinear(p1, e, z)", "1"))
    other.apply(LowerIntegerOperators())
    assert qgraph.prove(ours, other).verdict is not ProofVerdict.PROVED


@pytest.mark.exhaustive
def test_a_network_on_codes_is_equal_to_its_lowered_form(models):
    """Averages and products of codes whose operands differ in form, 28 of them as x * g(x)."""
    path = models / "field" / "ort_mbv3_qop_u8u8.onnx"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    lowered = load(path)
    lowered.apply(LowerIntegerOperators())
    found = qgraph.prove(path, lowered, evidence=True)
    assert found.verdict is ProofVerdict.PROVED
    assert verify(found.to_json(), path, lowered) == "proved"
