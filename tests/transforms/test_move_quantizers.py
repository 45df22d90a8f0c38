"""Data movement works on codes, and every value stays."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.exactness import Exactness
from qgraph.model import load
from qgraph.reports import SiteStatus
from qgraph.transforms.move_quantizers import MoveQuantizers
from tests.transforms.test_saturation import in_runtime

BITS = Exactness.BITS
Q, DQ = "QuantizeLinear", "DequantizeLinear"
PAIR = "q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)"


def graph(nodes: str, more: str = "", opset: int = 17) -> str:
    return f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[1, 4, 6, 6] x) => (float[n, c, h, w] y)
        <float s = {{0.1}}, uint8 z = {{3}}, float[4] t = {{0.1, 0.2, 0.3, 0.5}},
         uint8[4] p = {{3, 3, 0, 9}}, int64[4] r = {{1, 2, 12, 6}}, int64[1] i = {{2}},
         int64[2] k = {{2, 2}} {more}> {{
            {nodes}
        }}"""


FORMS = {
    # nodes, operators afterwards
    "decoded later": (f"{PAIR} m = Reshape (d, r) y = Neg (m)", [Q, "Reshape", DQ, "Neg"]),
    "channels": (
        """q = QuantizeLinear <axis = 1> (x, t, p)
           d = DequantizeLinear <axis = 1> (q, t, p)
           m = Transpose <perm = [0, 2, 3, 1]> (d)
           y = Neg (m)""",
        [Q, "Transpose", DQ, "Neg"],
    ),
    "encoded earlier": (
        """a = Abs (x)
           f = Flatten (a)
           m = Reshape (f, r)
           q = QuantizeLinear (m, s, z)
           y = DequantizeLinear (q, s, z)""",
        ["Abs", Q, "Flatten", "Reshape", DQ],
    ),
    "pool between pairs": (
        f"""{PAIR}
           m = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (d)
           e = QuantizeLinear (m, s, z)
           y = DequantizeLinear (e, s, z)""",
        [Q, "MaxPool", DQ],
    ),
    "parts": (
        f"""{PAIR}
           a, b = Split <axis = 1> (d, k)
           m = Transpose <perm = [0, 1, 3, 2]> (b)
           y = Sub (a, m)""",
        [Q, "Split", DQ, "Transpose", DQ, "Sub"],
    ),
    "joined": (
        """a = Abs (x)
           b = Neg (x)
           m = Concat <axis = 1> (a, b)
           q = QuantizeLinear (m, s, z)
           d = DequantizeLinear (q, s, z)
           g = Gather <axis = 1> (d, i)
           j = Concat <axis = 1> (g, d)
           y = Neg (j)""",
        ["Abs", Q, "Neg", Q, "Concat", "Gather", "Concat", DQ, "Neg"],
    ),
}


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("name", FORMS)
def test_movement_is_on_codes(check_pass, name, opset):
    nodes, ops = FORMS[name]
    model, _ = check_pass(MoveQuantizers(), graph(nodes, opset=opset), exactly=BITS)
    assert sorted(node.op_type for node in model.nodes()) == sorted(ops)
    decoder = next(iter(model.nodes(DQ)))
    if name == "channels":
        assert decoder.attributes["axis"].value == 3


UNITS = {
    "decoded later": [Q, DQ, "Reshape", Q, DQ, "Neg"],
    "pool between pairs": [Q, DQ, "MaxPool", Q, DQ],
    "encoded earlier": ["Abs", "Flatten", "Reshape", Q, DQ],
}


@pytest.mark.parametrize("name", UNITS)
def test_movement_is_between_two_pairs(check_pass, name):
    model, _ = check_pass(MoveQuantizers(units=True), graph(FORMS[name][0]), exactly=BITS)
    assert [node.op_type for node in model.nodes()] == UNITS[name]


KEPT = {
    "a scale below 0": (
        f"{PAIR} m = MaxPool <kernel_shape = [2, 2]> (d) y = Neg (m)".replace(", s,", ", v,"),
        ", float v = {-0.5}",
    ),
    "scales that are joined": (
        f"""{PAIR} e = QuantizeLinear (x, v, z) f = DequantizeLinear (e, v, z)
            m = Concat <axis = 1> (d, f) y = Neg (m)""",
        ", float v = {0.25}",
    ),
    "a scale that loses codes": (
        f"{PAIR} e = QuantizeLinear (d, v, z) y = DequantizeLinear (e, v, z)",
        ", float v = {0.11}",
    ),
    "channels that are parted": (
        """q = QuantizeLinear <axis = 1> (x, t, p)
           d = DequantizeLinear <axis = 1> (q, t, p)
           a, b = Split <axis = 1> (d, k)
           y = Sub (a, b)""",
        "",
    ),
    "an axis that a reshape merges": (
        """q = QuantizeLinear <axis = 1> (x, t, p)
           d = DequantizeLinear <axis = 1> (q, t, p)
           m = Reshape (d, r)
           y = Neg (m)""",
        "",
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_other_movement_stays(name):
    model = load(ir.from_onnx_text(graph(*KEPT[name])))
    assert model.apply(MoveQuantizers()).count(SiteStatus.CHANGED) == 0


WITHOUT_CODES = {
    # type of codes that the standard does not allow as data, and nodes
    "Concat": ("int4", "b = Neg (d) c = Abs (x) m = Concat <axis = 1> (b, c)"),
    "MaxPool": ("uint16", "b = Abs (x) m = MaxPool <kernel_shape = [2, 2]> (b)"),
    "Slice": ("int4", "m = Slice (d, i, i, i)"),
    "Split": ("uint4", "m, n = Split <axis = 1, num_outputs = 2> (d)"),
}


@pytest.mark.parametrize("name", WITHOUT_CODES)
def test_operators_that_do_not_take_such_codes_stay_on_real_values(check_pass, name):
    kind, nodes = WITHOUT_CODES[name]
    text = f"""<ir_version: 10, opset_import: ["": 22]>
        g (float[1, 4, 6, 6] x) => (float[n, c, h, w] y)
        <float s = {{0.1}}, {kind} z = {{1}}, int64[1] i = {{1}}> {{
            q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z)
            {nodes}
            e = QuantizeLinear (m, s, z)
            y = DequantizeLinear (e, s, z)
        }}"""
    model, _ = check_pass(MoveQuantizers(), text, exactly=BITS)
    (node,) = model.nodes(name)
    assert node.inputs[0].producer().op_type != Q


def test_values_that_are_used_otherwise_stay_real():
    nodes = """a = Abs (x) m = Reshape (a, r) q = QuantizeLinear (m, s, z)
        d = DequantizeLinear (q, s, z) y = Add (d, m)"""
    (entry,) = load(ir.from_onnx_text(graph(nodes))).apply(MoveQuantizers()).sites
    assert (entry.outcome, entry.reason_id) == (SiteStatus.REFUSED, "QG008")


def test_each_operator_gets_its_own_decoder(check_pass):
    text = graph(f"{PAIR} a = Neg (d) b = Abs (d) y = Add (a, b)")
    model, _ = check_pass(MoveQuantizers(dedicated=True), text, exactly=BITS)
    assert [node.op_type for node in model.nodes()].count(DQ) == 2


COPIES = {
    "Pad": "m = Pad (d, k, f)",
    "edges": """m = Pad <mode = "edge"> (d, k)""",
    "Resize": """m = Resize <mode = "nearest"> (d, , t)""",
}
NO_COPIES = {
    "zeros": "m = Pad (d, k)",
    "a number between codes": "m = Pad (d, k, g)",
    "linear": """m = Resize <mode = "linear"> (d, , t)""",
    "a number beyond the edges": """m = Resize <mode = "nearest", extrapolation_value = 0.33,
        coordinate_transformation_mode = "tf_crop_and_resize"> (d, roi, t)""",
}


def copied(body: str) -> str:
    """Return a convolution of moved codes."""
    return f"""<ir_version: 10, opset_import: ["": 18]>
        net (float[1,1,4,4] x) => (float[N,C,H,W] y)
        <float s = {{0.1}}, uint8 z = {{128}}, int8[1,1,2,2] w = {{1, -20, 30, 40}}, int8 o = {{0}},
         int64[8] k = {{0, 0, 1, 0, 0, 0, 1, 2}}, float f = {{-0.5}}, float g = {{-0.55}},
         float[4] t = {{1, 1, 2, 2}},
         float[8] roi = {{0, 0, 0, 0, 1, 1, 2, 2}}, float u = {{3}}> {{
            q = QuantizeLinear (x, s, z)    d = DequantizeLinear (q, s, z)
            v = DequantizeLinear (w, s, o)
            {body}
            [conv] c = Conv (m, v)
            p = QuantizeLinear (c, u, z)    y = DequantizeLinear (p, u, z)
        }}"""


@pytest.mark.parametrize("name", COPIES)
def test_copies_of_codes_are_quantized_again(check_pass, name):
    moved = COPIES[name].split()[2]
    pair = ["QuantizeLinear", "DequantizeLinear"]
    ops = [*pair, "DequantizeLinear", moved, *pair, "Conv", *pair]
    step = MoveQuantizers(units=True, operators="Pad|Resize")
    check_pass(step, copied(COPIES[name]), ops=ops)


@pytest.mark.parametrize("name", NO_COPIES)
def test_other_copies_stay(name):
    model = load(ir.from_onnx_text(copied(NO_COPIES[name])))
    assert not model.apply(MoveQuantizers(units=True, operators="Pad|Resize")).sites


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.runtime
@pytest.mark.parametrize("target", ["onnxruntime-cpu@x86-64", "openvino-cpu@x86-64"])
@pytest.mark.parametrize("name", COPIES)
def test_convolutions_of_copies_run_on_codes(name, target, tmp_path):
    model = load(ir.from_onnx_text(copied(COPIES[name])))
    before = model.clone()
    result = qgraph.deploy(model, target)
    assert [layer.reason for layer in result.left] == []
    x = np.random.default_rng(0).normal(size=(1, 1, 4, 4)).astype(np.float32)
    expected = before.run({"x": x}, backend="numpy")["y"]
    model.save(tmp_path / "out.onnx")
    runtime = "onnxruntime" if target < "op" else "openvino"
    found = in_runtime(tmp_path / "out.onnx", x, runtime)
    assert np.abs(found - expected).max() <= 3.01
    assert np.mean(found != expected) < 0.1
