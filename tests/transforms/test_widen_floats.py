"""Models of 16-bit floats compute the same functions in float32, between equal interfaces."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

import qgraph
from qgraph.bound import Bounding
from qgraph.model import load
from qgraph.reports import SiteStatus
from qgraph.transforms.widen_floats import WidenFloats

KINDS = {"float16": (10, np.float16), "bfloat16": (16, ml_dtypes.bfloat16)}


def network(kind: str = "float16") -> ir.Model:
    number, dtype = KINDS[kind]

    def stored(*values: float) -> str:
        # Text has the bits of floats of 16 bits.
        return "{" + ", ".join(map(str, np.array(values, dtype).view(np.uint16))) + "}"

    return ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
        g ({kind}[2, 3] x, float[2, 3] v) => ({kind}[2, 2] y, float[2, 2] u, {kind}[2, 3] c)
        <{kind} s = {stored(0.25)}, uint8 z = {{3}}, int8[3, 2] k = {{1, -2, 3, 4, -5, 60}},
         {kind} t = {stored(0.125)}, int8 e = {{0}}, {kind}[2] b = {stored(0.5, -1.25)}> {{
            q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z)
            w = DequantizeLinear (k, t, e)
            m = MatMul (d, w)
            [add] y = Add (m, b)
            c = Cast <to = {number}> (v)
            h = Constant <value = {kind}[3, 2] {stored(1, 2, 3, 4, 5, 6)}> ()
            n = MatMul (c, h)
            u = Cast <to = 1> (n)
        }}""")


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_and_interface_stay(kind):
    before, model = load(network(kind)), load(network(kind))
    report = model.apply(WidenFloats())
    assert report.count(SiteStatus.CHANGED) == 6
    proto = model.to_proto()
    onnx.checker.check_model(proto, full_check=True)
    for old, new in ((before.inputs, model.inputs), (before.outputs, model.outputs)):
        assert [(v.name, v.dtype) for v in old] == [(v.name, v.dtype) for v in new]
    narrow = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
    inner = {v.dtype for node in model.nodes() if node.op_type != "Cast" for v in node.outputs}
    assert not inner & narrow
    # All sums are exact in either type, so results are equal.
    x = np.float32([[1, 2.25, -0.5], [0.75, 100, 3]])
    if kind == "float16":
        feeds = {"x": x.astype(np.float16), "v": x}
        ours, theirs = (each.run(feeds, backend="numpy") for each in (before, model))
        for name, found in ours.items():
            np.testing.assert_array_equal(theirs[name], found)
            assert theirs[name].dtype == found.dtype
    assert not model.apply(WidenFloats()).count(SiteStatus.CHANGED)


def test_results_are_bounded_against_what_is_meant():
    model = load(network())
    model.apply(WidenFloats())
    request = Bounding("1step", "ideal", ranges={"v": (-4, 4), "x": (-40, 40)})
    found = qgraph.prove(network(), model, within=request)
    assert found.verdict == "bounded"
    assert not found.beyond


@pytest.mark.parametrize(
    "nodes", ["y = CastLike (x, x)", "y = com.example.Own (x)", "o = Optional (x) y = Identity (x)"]
)
def test_operators_that_state_types_are_left(nodes):
    text = f"""<ir_version: 10, opset_import: ["": 21, "com.example": 1]>
        g (float16[2] x) => (float16[2] y) {{ {nodes} }}"""
    model = load(ir.from_onnx_text(text))
    before = model.to_proto()
    report = model.apply(WidenFloats())
    assert report.count(SiteStatus.REFUSED) == 1
    assert report.sites[0].reason_id == "QG006"
    assert model.to_proto() == before


def test_float32_stays_as_it_is():
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (float[2] x) => (float[2] y) { y = Relu (x) }"""
    assert not load(ir.from_onnx_text(text)).apply(WidenFloats()).sites


def test_names_that_are_taken_and_casts_that_nothing_needs():
    model = load(
        ir.from_onnx_text("""<ir_version: 10, opset_import: ["": 21]>
        g (float16[2] x, float[2] v) => (float16[2] y, float16[2] c) {
            x_float = Neg (x)
            y_float = Abs (x_float)
            y = Add (y_float, x)
            c = Cast <to = 10> (v)
        }""")
    )
    model.apply(WidenFloats())
    onnx.checker.check_model(model.to_proto(), full_check=True)
    assert [node.op_type for node in model.nodes()].count("Cast") == 3
    x, v = np.float16([1.5, -2]), np.float32([0.1, 3])
    results = model.run({"x": x, "v": v}, backend="numpy")
    np.testing.assert_array_equal(results["y"], np.float16([3, 0]))
    np.testing.assert_array_equal(results["c"], v.astype(np.float16))
