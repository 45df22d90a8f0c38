"""Pairs of QuantizeLinear and DequantizeLinear around data movement; ONNX Runtime is the truth."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from qgraph.inventory.overview import overview
from qgraph.model import load
from qgraph.transforms.convert import ConvertDialect

pytestmark = pytest.mark.runtime

HEAD = """<ir_version: 8, opset_import: ["": 17]>
net (float[2, 3, 4] x) => (float[OUT] y)
<float s = {0.1}, uint8 z = {100}, float[3] sc = {0.1, 0.2, 0.05}, int8[3] zc = {0, 3, -7},
 int64[2] sizes = {6, 4}, int64[1] zero = {0}, int64[1] two = {2}, int64[2] picked = {1, 0}> {
    BODY
}"""

Q, DQ = "QuantizeLinear (x, s, z)", "DequantizeLinear"

CASES = {
    "transpose": ("4,3,2", f"q = {Q} m = Transpose (q) y = {DQ} (m, s, z)"),
    "narrow codes": (
        "4,3,2",
        f"""l = Constant <value = uint8 {{90}}> () h = Constant <value = uint8 {{110}}> ()
        q = {Q} c = Clip (q, l, h) m = Transpose (c) y = {DQ} (m, s, z)""",
    ),
    "reshape": ("4,6", f"q = {Q} a = Reshape (q, sizes) b = Transpose (a) y = {DQ} (b, s, z)"),
    "slice": ("2,3,4", f"q = {Q} m = Slice (q, zero, two, zero) y = {DQ} (m, s, z)"),
    "gather": ("2,3,4", f"q = {Q} m = Gather (q, picked) y = {DQ} (m, s, z)"),
    "concat": (
        "2,6,4",
        f"""q = {Q} n = Neg (x) p = QuantizeLinear (n, s, z) t = Slice (p, zero, two, zero)
        m = Concat <axis = 1> (q, t) y = {DQ} (m, s, z)""",
    ),
    "pool": (
        "2,3,2",
        f"q = {Q} m = MaxPool <kernel_shape = [2], strides = [2]> (q) y = {DQ} (m, s, z)",
    ),
    "one part": ("2,3,4", f"q = {Q} m = Concat <axis = 0> (q) y = {DQ} (m, s, z)"),
    "split": (
        "2,3,4",
        f"""q = {Q} a, b = Split <axis = 2> (q) c = {DQ} (b, s, z) d = {DQ} (a, s, z)
        y = Concat <axis = 2> (c, d)""",
    ),
    "pad": (
        "2,4,5",
        f"""f = Constant <value = uint8 {{103}}> ()
        p = Constant <value_ints = [0, 1, 0, 0, 0, 1]> ()
        q = {Q} m = Pad (q, p, f) y = {DQ} (m, s, z)""",
    ),
    "pad with code 0": (
        "2,4,5",
        f"""p = Constant <value_ints = [0, 1, 0, 0, 0, 1]> ()
        q = {Q} m = Pad (q, p) y = {DQ} (m, s, z)""",
    ),
    "edge": (
        "2,4,5",
        f"""p = Constant <value_ints = [0, 1, 0, 0, 0, 1]> ()
        q = {Q} m = Pad <mode = "edge"> (q, p) y = {DQ} (m, s, z)""",
    ),
    "nearest": (
        "2,6,6",
        f"""r = Constant <value_floats = [1.0, 2.0, 1.5]> ()
        q = {Q} m = Resize <mode = "nearest"> (q, , r) y = {DQ} (m, s, z)""",
    ),
    "blocks": (
        "1,4,3,2",
        f"""four = Constant <value_ints = [1, 1, 6, 4]> () b = Reshape (x, four)
        q = QuantizeLinear (b, s, z) m = SpaceToDepth <blocksize = 2> (q) y = {DQ} (m, s, z)""",
    ),
    "channels": (
        "3,4,2",
        f"""q = QuantizeLinear <axis = 1> (x, sc, zc) m = Transpose <perm = [1, 2, 0]> (q)
        y = {DQ} <axis = 0> (m, sc, zc)""",
    ),
}


@pytest.mark.cases(fast=7)
@pytest.mark.parametrize("name", CASES)
def test_movement_inside_a_pair_is_moved_behind_it(name: str) -> None:
    out, body = CASES[name]
    model = load(ir.from_onnx_text(HEAD.replace("OUT", out).replace("BODY", body)))
    x = np.random.default_rng(1).normal(scale=5, size=(2, 3, 4)).astype(np.float32)
    session = ort.InferenceSession(model.to_proto().SerializeToString())
    (expected,) = session.run(None, {"x": x})
    assert not [each for each in overview(model.ir).quantizers if each.reason]
    report = model.apply(ConvertDialect(to="qonnx"))
    assert report.count("changed") == (2 if name == "concat" else 1)
    assert not report.count("refused")
    np.testing.assert_array_equal(model.run({"x": x}, backend="numpy")["y"], expected)


def test_parts_that_are_decoded_along_other_axes_are_split_apart() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[6, 3, 3] x) => (float[3, 3, 3] y)
    <float s = {0.1}, uint8 z = {100}, float[3] t = {0.1, 0.2, 0.3}, uint8[3] u = {1, 2, 3}> {
        q = QuantizeLinear (x, s, z) a, b = Split <axis = 0> (q)
        c = DequantizeLinear <axis = 1> (a, t, u) d = DequantizeLinear <axis = 2> (b, t, u)
        y = Add (c, d)
    }"""
    model = load(ir.from_onnx_text(text))
    x = np.random.default_rng(1).normal(scale=5, size=(6, 3, 3)).astype(np.float32)
    session = ort.InferenceSession(model.to_proto().SerializeToString())
    (expected,) = session.run(None, {"x": x})
    assert model.apply(ConvertDialect(to="qdq")).notes
    np.testing.assert_array_equal(model.run({"x": x}, backend="numpy")["y"], expected)


@pytest.mark.parametrize("chosen", [True, False])
def test_parts_that_are_decoded_in_branches_are_split_in_each(chosen: bool) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    net (float[6, 3] x, bool first) => (float[3, 3] y) <float s = {0.1}, uint8 z = {100}> {
        q = QuantizeLinear (x, s, z) a, b = Split <axis = 0> (q)
        y = If (first) <
            then_branch = one () => (float[3, 3] c) { c = DequantizeLinear (a, s, z) },
            else_branch = other () => (float[3, 3] n) {
                d = DequantizeLinear (b, s, z) n = Neg (d)
            }>
    }"""
    model = load(onnx.parser.parse_model(text))
    x = np.random.default_rng(1).normal(scale=5, size=(6, 3)).astype(np.float32)
    feeds = {"x": x, "first": np.array(chosen)}
    (expected,) = ort.InferenceSession(model.to_proto().SerializeToString()).run(None, feeds)
    assert model.apply(ConvertDialect(to="qonnx")).count("changed")
    np.testing.assert_array_equal(model.run(feeds, backend="numpy")["y"], expected)


def test_codes_that_are_used_elsewhere_stay() -> None:
    text = HEAD.replace("OUT] y", "4,3,2] y, uint8[2,3,4] q")
    body = f"q = {Q} m = Transpose (q) y = {DQ} (m, s, z)"
    model = load(ir.from_onnx_text(text.replace("BODY", body)))
    x = np.random.default_rng(1).normal(scale=5, size=(2, 3, 4)).astype(np.float32)
    expected = model.run({"x": x}, backend="numpy")
    model.apply(ConvertDialect(to="onnx"))
    found = model.run({"x": x}, backend="numpy")
    assert all(np.array_equal(expected[name], found[name]) for name in expected)


DILATED = "MaxPool <kernel_shape = [2], dilations = [4], pads = [1, 1]> (q)"
"""Windows over the padding alone, whose maximum is the lowest number of the type."""

STAYING = {
    "reversed channels": (
        "2,3,4",
        f"""q = QuantizeLinear <axis = 1> (x, sc, zc) m = Slice (q, last, first, one, last)
        y = {DQ} <axis = 1> (m, sc, zc)""",
    ),
    "padding": ("2,3,2", f"q = {Q} m = {DILATED} y = {DQ} (m, s, z)"),
}


@pytest.mark.parametrize("name", STAYING)
def test_movement_that_decoding_cannot_be_exchanged_with_stays(name: str) -> None:
    out, body = STAYING[name]
    text = HEAD.replace("OUT", out).replace("BODY", body).replace("[2, 3, 4]", "[2, 3, SIZE]")
    text = text.replace("SIZE", "3" if name == "padding" else "4").replace(
        "int64[1] zero",
        "int64[1] last = {-1}, int64[1] first = {-9}, int64[1] one = {1}, int64[1] zero",
    )
    model = load(onnx.shape_inference.infer_shapes(ir.to_proto(ir.from_onnx_text(text))))
    shape = [int(size) for size in model.inputs[0].shape or ()]
    x = np.random.default_rng(1).normal(scale=5, size=shape).astype(np.float32)
    session = ort.InferenceSession(model.to_proto().SerializeToString())
    (expected,) = session.run(None, {"x": x})
    model.apply(ConvertDialect(to="onnx"))
    np.testing.assert_array_equal(model.run({"x": x}, backend="numpy")["y"], expected)


def test_an_axis_that_does_not_exist_is_refused() -> None:
    body = f"""q = QuantizeLinear <axis = 1> (x, sc, zc) m = Reshape (q, sizes)
    y = {DQ} <axis = 7> (m, sc, zc)"""
    text = HEAD.replace("OUT", "4,6").replace("BODY", body)
    model = load(onnx.shape_inference.infer_shapes(ir.to_proto(ir.from_onnx_text(text))))
    report = model.apply(ConvertDialect(to="onnx"))
    assert (report.count("changed"), report.count("refused")) == (0, 2)


EMBEDDING = """<ir_version: 8, opset_import: ["": 17]>
net (int64[N] ids) => (float[N, 2] y)
<uint8[3, 2] table = {0, 255, 3, 4, 130, 7}, float s = {0.1}, uint8 z = {130}> {
    rows = Gather (table, ids)
    [decode] y = DequantizeLinear (rows, s, z)
}"""


@pytest.mark.parametrize(
    ("to", "counts"), [("qdq", (0, 1)), ("qonnx", (1, 0)), ("openvino", (1, 0)), ("onnx", (1, 0))]
)
def test_rows_of_an_embedding_are_decoded_before_they_are_gathered(
    to: str, counts: tuple[int, int]
) -> None:
    model = load(ir.from_onnx_text(EMBEDDING))
    session = ort.InferenceSession(model.to_proto().SerializeToString())
    ids = np.array([2, 0, 0], np.int64)
    (expected,) = session.run(None, {"ids": ids})
    (row,) = overview(model.ir).quantizers
    assert (row.reason, row.weight, row.format) == (None, True, "uint8")
    report = model.apply(ConvertDialect(to=to))
    assert (report.count("changed"), report.count("kept")) == counts
    assert not report.count("refused")
    np.testing.assert_array_equal(model.run({"ids": ids}, backend="numpy")["y"], expected)


def test_rows_with_scales_by_position_stay() -> None:
    text = EMBEDDING.replace("float s = {0.1}, uint8 z = {130}", "float[3] s = {0.1, 0.2, 0.3}")
    text = text.replace("[N", "[3").replace("(rows, s, z)", "<axis = 0> (rows, s)")
    model = load(ir.from_onnx_text(text))
    session = ort.InferenceSession(model.to_proto().SerializeToString())
    ids = np.array([2, 0, 0], np.int64)
    (expected,) = session.run(None, {"ids": ids})
    report = model.apply(ConvertDialect(to="qonnx"))
    assert (report.count("changed"), report.count("refused")) == (0, 1)
    np.testing.assert_array_equal(model.run({"ids": ids}, backend="numpy")["y"], expected)


@pytest.mark.parametrize(("kind", "half"), [("float16", 0x3800), ("bfloat16", 0x3F00)])
def test_what_is_moved_has_the_type_of_the_scale(kind: str, half: int) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 21]>
    net ({kind}[N, 4] x) => ({kind}[4, N] y) <{kind} s = {{{half}}}, int8 z = {{3}}> {{
        q = QuantizeLinear (x, s, z)
        a = Transpose (q)
        b = Identity (a)
        d = DequantizeLinear (b, s, z)
        y = Neg (d)
    }}"""
    model = load(ir.from_onnx_text(text))
    assert model.apply(ConvertDialect(to="qdq")).notes
    assert [node.op_type for node in model.nodes()][1] == DQ
    onnx.checker.check_model(model.to_proto(), full_check=True)
