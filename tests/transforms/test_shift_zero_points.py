"""Unsigned codes become signed ones, with the same values, and back."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.graph.constants import constant
from qgraph.model import load
from qgraph.reports import SiteStatus
from qgraph.transforms.recoding import ShiftZeroPoints, SymmetricWeights

BITS = Exactness.BITS


def chain(kind: str, point: int, nodes: str, opset: int = 17) -> str:
    return f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[1, 1, 8, 8] x) => (float[n, c, h, w] y, float[1, 1, 8, 8] u)
        <float s = {{0.1}}, {kind} z = {{{point}}}, {kind} l = {{{point - 9}}}> {{
            q = QuantizeLinear (x, s, z)
            {nodes}
        }}"""


FORMS = {
    "pair": "y = DequantizeLinear (q, s, z)\n u = Identity (y)",
    "shared": """y = DequantizeLinear (q, s, z)
        v = DequantizeLinear (q, s, z)
        u = Neg (v)""",
    "clip and pool": """c = Clip (q, l)
        p = MaxPool <kernel_shape = [2, 2], pads = [1, 1, 1, 1]> (c)
        y = DequantizeLinear (p, s, z)
        u = DequantizeLinear (c, s, z)""",
    "joined": """k = QuantizeLinear (u, s, z)
        j = Concat <axis = 1> (q, k)
        t = Transpose <perm = [0, 2, 3, 1]> (j)
        y = DequantizeLinear (t, s, z)""",
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(("kind", "point"), [("uint8", 130), ("int8", -100)])
def test_all_codes_of_a_chain_shift(check_pass, name, kind, point):
    text = chain(kind, point, FORMS[name])
    if name == "joined":
        text = text.replace("q = Quant", "u = Abs (x)\n q = Quant")
    to = {"uint8": "int8", "int8": "uint8"}[kind]
    model, _ = check_pass(ShiftZeroPoints(activations=to), text, exactly=BITS)
    step = 128 if kind == "int8" else -128
    for node in model.nodes("QuantizeLinear", "DequantizeLinear"):
        found = constant(node.inputs[2])
        assert (found.dtype, int(found)) == (np.dtype(to), point + step)
    for node in model.nodes("Clip"):
        assert int(constant(node.inputs[1])) == point - 9 + step


def test_channels_and_absent_zero_points(check_pass):
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[2, 300] x) => (float[2, 300] y) <float[2] s = {0.1, 3}> {
            q = QuantizeLinear <axis = 0> (x, s)
            y = DequantizeLinear <axis = 0> (q, s)
        }"""
    model, _ = check_pass(ShiftZeroPoints(activations="int8"), text, exactly=BITS)
    for node in model.nodes():
        np.testing.assert_array_equal(constant(node.inputs[2]), np.int8([-128, -128]))


@pytest.mark.parametrize(
    ("kind", "point", "ends", "after"),
    [
        ("uint8", 0, (0, 15), (0, 15)),
        ("uint8", 7, (0, 15), (-7, 8)),
        ("uint8", 128, (3, 255), (-125, 127)),
        ("int8", -128, (-128, -113), (0, 15)),
        ("uint8", 128, None, None),
    ],
)
def test_zero_points_become_zero_where_codes_fit(check_pass, kind, point, ends, after):
    nodes = "c = Clip (q, a, b)\n y = DequantizeLinear (c, s, z)\n u = Neg (y)"
    text = chain(kind, point, nodes if ends else nodes.replace("Clip (q, a, b)", "Identity (q)"))
    low, high = ends or (0, 0)
    text = text.replace(f"{kind} l =", f"{kind} a = {{{low}}}, {kind} b = {{{high}}}, {kind} l =")
    model, _ = check_pass(ShiftZeroPoints(activations="int8", centre=True), text, exactly=BITS)
    for node in model.nodes("QuantizeLinear", "DequantizeLinear"):
        found = constant(node.inputs[2])
        assert (found.dtype, int(found)) == (np.dtype("int8"), 0)
    for node in model.nodes("Clip"):
        assert tuple(int(constant(v)) for v in node.inputs[1:]) == after


@pytest.mark.parametrize(("product", "kind"), [("m, v", "int8"), ("v, m", "uint8")])
def test_first_factors_of_products_of_data_become_signed(check_pass, product, kind):
    nodes = f"""t = DequantizeLinear (q, s, z)
        m = Transpose <perm = [0, 1, 3, 2]> (t)
        v = Abs (x)
        y = MatMul ({product})
        u = Neg (v)"""
    step = ShiftZeroPoints(activations="keep", products=True)
    model, _ = check_pass(step, chain("uint8", 128, nodes), exactly=Exactness.DIFFERENT)
    (encode,) = model.nodes("QuantizeLinear")
    assert constant(encode.inputs[2]).dtype == np.dtype(kind)


def test_codes_that_cannot_have_the_zero_point_of_first_factors_stay():
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (float[4, 4] x) => (float[n, m] y) <float s = {0.5}, int4 z = {0}> {
            q = QuantizeLinear (x, s, z)
            t = DequantizeLinear (q, s, z)
            y = MatMul (t, x)
        }"""
    report = load(ir.from_onnx_text(text)).apply(ShiftZeroPoints(activations="keep", products=True))
    assert not report.modified


@pytest.mark.parametrize("kind", ["float8e4m3fn", "float"])
def test_codes_that_are_no_integers_stay(kind):
    """The last is no quantizer, but a malformed model may have it."""
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        net (float[4] x) => (float[4] y) <float s = {{0.5}}, {kind} z = {{0}}> {{
            q = QuantizeLinear (x, s, z)
            y = DequantizeLinear (q, s, z)
        }}"""
    model = load(ir.from_onnx_text(text))
    report = model.apply(ShiftZeroPoints(activations="int8", centre=True))
    assert not report.sites
    assert [constant(n.inputs[2]).size for n in model.nodes()] == [1, 1]


def test_zero_points_stay_where_codes_do_not_fit():
    for nodes in (FORMS["pair"], "c = Clip (q, l)\n y = DequantizeLinear (c, s, z)\n u = Neg (y)"):
        model = load(ir.from_onnx_text(chain("uint8", 9, nodes)))
        (entry,) = model.apply(ShiftZeroPoints(activations="int8", centre=True)).sites
        assert entry.reason_id == "QG010"
        assert "codes from 0 to 255 with zero point 9" in entry.reason


REFUSED = {
    "used by MatMulInteger": (
        """m = MatMulInteger (q, q)
           c = Cast <to = 1> (m)
           u = DequantizeLinear (q, s, z)
           y = Mul (c, s)""",
        17,
        "QG008",
    ),
    "operator that moves values": (
        """u = DequantizeLinear (q, s, z)
           y = Transpose <perm = [0, 1, 3, 2]> (u)""",
        21,
        "QG011",
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals_say_why(reason):
    nodes, opset, cause = REFUSED[reason]
    model = load(ir.from_onnx_text(chain("uint8", 130, nodes, opset)))
    (entry,) = model.apply(ShiftZeroPoints(activations="int8")).sites
    assert (entry.outcome, entry.reason_id) == (SiteStatus.REFUSED, cause)
    assert reason in entry.reason


def weights(kind: str, codes: str, point: str) -> str:
    return f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[4, 2] x) => (float[4, 2] y)
        <{kind}[2, 2] c = {{{codes}}}, float[2] s = {{0.5, 0.3}}, {kind}[2] z = {{{point}}}> {{
            w = DequantizeLinear <axis = 0> (c, s, z)
            y = MatMul (x, w)
        }}"""


WEIGHTS = {
    # type, codes, zero points, codes after the shift, symmetric codes or their range
    "middle": ("uint8", "0, 255, 128, 7", "128, 128", [[-128, 127], [0, -121]], "the same"),
    "two": ("uint8", "0, 99, 200, 130", "60, 128", [[-128, -29], [72, 2]], [[-60, 39], [72, 2]]),
    "wide": ("uint8", "0, 255, 128, 7", "0, 128", [[-128, 127], [0, -121]], "-121 to 255"),
    "signed": ("int8", "-10, 3, 90, 7", "-3, 0", None, [[-7, 6], [90, 7]]),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(check_pass, name):
    kind, codes, point, shifted, symmetric = WEIGHTS[name]
    text = weights(kind, codes, point)
    model, report = check_pass(ShiftZeroPoints(), text, exactly=BITS)
    assert report.modified == (shifted is not None)
    if shifted is not None:
        (node,) = model.nodes("DequantizeLinear")
        np.testing.assert_array_equal(constant(node.inputs[0]), np.int8(shifted))
    model, report = check_pass(SymmetricWeights(), text, exactly=BITS)
    (node,) = model.nodes("DequantizeLinear")
    if name == "wide":
        (entry,) = report.sites
        assert entry.reason_id == "QG013"
        assert "from 0 to 128 reach from -121 to 255, expected -128 to 127" in entry.reason
    else:
        wanted = shifted if symmetric == "the same" else symmetric
        np.testing.assert_array_equal(constant(node.inputs[0]), np.int8(wanted))
        assert len(node.inputs) == 2
    if name == "middle":
        (entry,) = load(ir.from_onnx_text(text)).apply(SymmetricWeights(narrow=True)).sites
        assert "expected -127 to 127" in entry.reason


@pytest.mark.parametrize(("point", "kind"), [(0, "int8"), (-100, "uint8")])
def test_codes_with_zero_point_0_can_be_left(check_pass, point, kind):
    text = chain("int8", point, FORMS["pair"])
    step = ShiftZeroPoints(activations="uint8", symmetric=False)
    model, report = check_pass(step, text, exactly=BITS)
    assert report.count(SiteStatus.CHANGED) == (kind != "int8")
    assert {constant(node.inputs[2]).dtype for node in model.nodes("QuantizeLinear")} == {
        np.dtype(kind)
    }


def test_codes_with_zero_point_0_of_a_concat_are_not_left(check_pass):
    text = """<ir_version: 8, opset_import: ["": 17]>
        net (float[2,3] x) => (float[2,6] y, float[2,3] z) <float s = {0.5}, int8 p = {0}> {
            a = QuantizeLinear (x, s, p)    b = DequantizeLinear (a, s, p)
            n = Neg (x)
            c = QuantizeLinear (n, s, p)    d = DequantizeLinear (c, s, p)
            r = Relu (d)
            j = Concat <axis = 1> (b, r)
            e = QuantizeLinear (j, s, p)    y = DequantizeLinear (e, s, p)
            g = QuantizeLinear (x, s, p)    h = DequantizeLinear (g, s, p)
            z = Abs (h)
        }"""
    step = ShiftZeroPoints(activations="uint8", symmetric=False)
    model, _ = check_pass(step, text, exactly=BITS)
    kinds = [str(constant(node.inputs[2]).dtype) for node in model.nodes("QuantizeLinear")]
    assert sorted(kinds) == ["int8", "uint8", "uint8", "uint8"]


@pytest.mark.parametrize(("operator", "kind"), [("Conv", "uint8"), ("ConvTranspose", "int8")])
def test_codes_with_zero_point_0_that_are_turned_for_a_convolution_are_not_left(
    check_pass, operator, kind
):
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        net (float[1,2,3,3] x) => (float[1,2,3,3] y)
        <float s = {{0.5}}, int8 p = {{0}}, int8[2,2,1,1] w = {{1, -2, 3, 4}}> {{
            a = QuantizeLinear (x, s, p)    b = DequantizeLinear (a, s, p)
            t = Transpose <perm = [0, 1, 3, 2]> (b)
            v = DequantizeLinear (w, s)
            y = {operator} (t, v)
        }}"""
    step = ShiftZeroPoints(activations="uint8", symmetric=False)
    model, _ = check_pass(step, text, exactly=BITS)
    (encode,) = model.nodes("QuantizeLinear")
    assert str(constant(encode.inputs[2]).dtype) == kind
