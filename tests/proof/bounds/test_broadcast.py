"""Data that broadcasts before it is moved or summed is other data than what broadcasts behind it.

Each pair of models computes other codes, although it applies one operator to the same codes.
"""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import qgraph
from qgraph.text import json_text
from tests.verify.checking import checked

pytestmark = pytest.mark.runtime

SQUARES = "s = Mul (a, a) m = ReduceMean (s, {}) e = Add (m, one) k = Sqrt (e) t = Div (a, k)"
CONV = "Conv <pads = [1, 1, 1, 1]>"
POOL = "AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1>"
ROWS = "w = Add (a, four) t = {} (w{}) u = Add (t, b)"
ROW = "t = {} (a{}) w = Add (t, four) u = Add (w, b)"
SHAPED = "w = Add (a, {}) t = Reshape (w, flat) u = Add (t, b)"
SUMMED = "w = Add (a, b) u = {} (w{})"
APART = "t = {0} (a{1}) w = {0} (b{1}) u = Add (t, w)"
PAIRS = {
    "Gather": ([4], [4, 4], [form.format("Gather", ", order") for form in (SUMMED, APART)]),
    "Conv": (
        [1, 2, 1, 1],
        [1, 2, 4, 4],
        [form.format(CONV, ", weights") for form in (SUMMED, APART)],
    ),
    "AveragePool": (
        [1, 2, 1, 1],
        [1, 2, 4, 4],
        [form.format(POOL, "") for form in (SUMMED, APART)],
    ),
    "Reshape": ([2, 1, 2], [16], [SHAPED.format("wide"), SHAPED.format("long")]),
    "two Reshapes": (
        [2],
        [16],
        [
            "h = Reshape (a, high) w = Add (h, wide) t = Reshape (w, flat) u = Add (t, b)",
            SHAPED.format("wide"),
        ],
    ),
    "Softmax": ([4, 1], [4, 4], [form.format("Softmax", "") for form in (ROWS, ROW)]),
    "ReduceLogSumExp": (
        [4, 1],
        [4, 4],
        [form.format("ReduceLogSumExp", ", first") for form in (ROWS, ROW)],
    ),
    "MatMul by a vector": (
        [4],
        [4, 4],
        ["w = Add (a, four) u = MatMul (b, w)", "t = MatMul (b, a) u = Add (t, four)"],
    ),
    "MatMul of more terms": (
        [4, 1],
        [1, 4],
        ["u = MatMul (a, b)", "v = Add (a, four) w = Add (b, four) u = MatMul (v, w)"],
    ),
    "root mean square": (
        [1, 4, 4],
        [1, 4, 4],
        [f"{SQUARES.format(axis)} u = Add (t, b)" for axis in ("first", "second")],
    ),
}
CONSTANTS = {
    "four": np.zeros((4, 4), np.float32),
    "wide": np.zeros((2, 4, 2), np.float32),
    "long": np.zeros((2, 2, 2, 2), np.float32),
    "one": np.float32(1),
    "weights": (np.arange(36, dtype=np.float32) - 15).reshape(2, 2, 3, 3) / 8,
    "order": np.int64([2, 1, 0, 3]),
    "flat": np.int64([16]),
    "high": np.int64([2, 1, 1]),
    "first": np.int64([1]),
    "second": np.int64([2]),
}


def model(shapes: tuple[list[int], list[int]], nodes: str, scale: float = 0.11) -> ir.Model:
    """Return a model that quantizes what nodes compute of two tensors of codes."""
    proto = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
        net (int8{shapes[0]} x, int8{shapes[1]} d) => (int8 y)
        <float s_x = {{0.05}}, int8 z_x = {{3}}, float s_y = {{{scale}}}, int8 z_y = {{4}}> {{
            a = DequantizeLinear (x, s_x, z_x) b = DequantizeLinear (d, s_x, z_y)
            {nodes}
            [end] y = QuantizeLinear (u, s_y, z_y)
        }}""")
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in CONSTANTS.items())
    return ir.from_proto(proto)


def farthest(models: list[ir.Model], shapes: tuple[list[int], list[int]]) -> int:
    """Return the largest difference of codes that ONNX Runtime computes."""
    random = np.random.default_rng(0)
    codes = [random.integers(-128, 128, shape).astype(np.int8) for shape in shapes]
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    files = [ir.to_proto(each).SerializeToString() for each in models]
    sessions = [ort.InferenceSession(file, options) for file in files]
    ours, theirs = (s.run(None, dict(zip("xd", codes, strict=True)))[0] for s in sessions)
    assert ours.shape == theirs.shape
    return int(np.abs(ours.astype(int) - theirs).max())


@pytest.mark.cases(fast=1, slow=5)
@pytest.mark.parametrize("name", PAIRS)
def test_broadcasting_first_is_no_bound_of_one_step(name):
    *shapes, forms = PAIRS[name]
    pair = [model(shapes, form) for form in forms]
    assert farthest(pair, shapes) > 1
    assert qgraph.prove(*pair, within="1step").verdict != "bounded"


@pytest.mark.cases(fast=1, slow=4)
@pytest.mark.parametrize("name", PAIRS)
def test_another_scale_behind_it_is_bounded(name):
    *shapes, forms = PAIRS[name]
    for form in forms:
        pair = [model(shapes, form, scale) for scale in (0.11, 0.1102)]
        proved = qgraph.prove(*pair, within="1step")
        assert proved.verdict == "bounded"
        assert not proved.beyond
        assert farthest(pair, shapes) <= 1


@pytest.mark.parametrize("name", ["Conv"])
def test_the_checker_knows_what_broadcasts(name):
    *shapes, forms = PAIRS[name]
    pair = [model(shapes, forms[0], scale) for scale in (0.11, 0.1102)]
    document = json.loads(json_text(qgraph.prove(*pair, evidence=True, within="1step").to_json()))
    assert checked(document, *pair).verdict == "bounded"
    other = model(shapes, forms[1], 0.1102)
    assert checked(document, pair[0], other).verdict == "undecided"


@pytest.mark.slow
def test_reshapes_to_two_unknown_sizes_are_not_one():
    forms = ("Reshape (c, turned)", "Identity (c)")
    pair = [
        ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
            net (int8[A,B] x, int64[2] sizes) => (int8[6] y)
            <float s = {{0.1}}, float u = {{{scale}}}, int8 z = {{0}}, int64[2] back = {{1, 0}},
             int64[1] flat = {{6}}> {{
                a = DequantizeLinear (x, s, z) turned = Gather (sizes, back)
                b = Reshape (a, sizes) c = Neg (b) d = {form}
                e = Transpose (d) f = Reshape (e, flat) y = QuantizeLinear (f, u, z)
            }}""")
        for form, scale in zip(forms, (0.1, 0.1003), strict=True)
    ]
    feeds = {"x": np.int8([[1, 2, 3], [4, 5, 6]]), "sizes": np.int64([2, 3])}
    ours, theirs = (qgraph.load(each).run(feeds, backend="numpy")["y"] for each in pair)
    assert np.abs(ours.astype(int) - theirs).max() > 1
    assert qgraph.prove(*pair, within="1step").verdict != "bounded"


REPEATED = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1,
    "qonnx.custom_op.general": 1]> g (uint8[SIZE,2] x) => (int8[] y)
    <float s = {0.25}, uint8 z = {2}, float t = {0.0625}, int8 u = {19}, float zero = {0},
     float bits = {8}, float other = {3}, CONSTANT> {
        d = DequantizeLinear (x, s, z)
        e = OPERATOR
        y = QuantizeLinear (e, t, u) }"""


@pytest.mark.cases(fast=1, slow=4)
@pytest.mark.parametrize(
    "operator",
    [
        *("Add (d, c)", "Sub (c, d)", "Mul (d, c)", "Div (d, c)", "Max (d, c)", "Sum (d, c)"),
        *("Mean (d, c)", "qonnx.custom_op.general.Quant (d, c, zero, bits)"),
    ],
)
@pytest.mark.parametrize(
    ("size", "shape"), [("1", (2, 1)), ("1", (1, 1, 1)), ("2", (2, 1, 1)), ("N", (3, 1))]
)
def test_constants_that_repeat_data_leave_bounds_undecided(operator, size, shape):
    """All numbers are equal, so only the shapes of the codes differ, for N if it is 1."""
    many = ", ".join(["3"] * int(np.prod(shape)))
    text = REPEATED.replace("SIZE", size).replace("OPERATOR", operator)
    one, other = (
        ir.from_onnx_text(text.replace("CONSTANT", constant))
        for constant in ("float c = {3}", f"float{list(shape)} c = {{{many}}}")
    )
    data = (1 if size == "N" else int(size), 2)
    assert np.broadcast_shapes(data, shape) != data
    for pair in ((one, other), (other, one)):
        for within in ((), ("8step",)):
            assert qgraph.prove(*pair, within=within).verdict == "undecided"


def test_constants_that_differ_along_an_open_axis_are_bounded():
    text = REPEATED.replace("SIZE", "N").replace("OPERATOR", "Add (d, c)")
    one, other = (
        ir.from_onnx_text(text.replace("CONSTANT", f"float[3,1] c = {{1, {two}, 3}}"))
        for two in ("2", "2.05")
    )
    assert qgraph.prove(one, other, within="1step").verdict == "bounded"


CHANNELS = """<ir_version: 10, opset_import: ["": 21]>
    net (int8[1,2,4,4] x) => (int8 y)
    <float s = {{0.05}}, int8 z = {{3}}, float t = {{0.5}}, float[1,2,1,1] one = {{1, 1}},
     float[3,2,1,1] w = {{1, 2, 3, 4, 5, 6}}, float[3,1,1] c = {{2, 2, 2}}, float two = {{2}}> {{
        a = DequantizeLinear (x, s, z)
        p = Conv (a, one)
        q = Mul (p, {})
        {}
        y = QuantizeLinear (u, t, z)
    }}"""


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize(
    ("tail", "is_bounded"),
    [
        ("v = Conv (a, w) u = Add (v, q)", True),  # the sum has three channels in both models
        ("u = Add (q, q)", False),
        ("u = Add (q, two)", False),
        ("v = Conv (a, w) e = Add (v, q) u = Sub (e, q)", False),
    ],
)
def test_one_channel_is_repeated_only_for_a_product_of_several(tail, is_bounded):
    models = [ir.from_onnx_text(CHANNELS.format(factor, tail)) for factor in ("c", "two")]
    verdict = str(qgraph.prove(*models, within="1step").verdict)
    assert (verdict in ("proved", "bounded")) is is_bounded
