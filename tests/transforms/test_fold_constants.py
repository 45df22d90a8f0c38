"""Chains of constants around stored codes are computed, and nothing is decoded."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.graph.constants import constant
from qgraph.model import load
from qgraph.reports import SiteStatus
from qgraph.transforms.fold_constants import FoldConstants

BITS = Exactness.BITS


def graph(nodes: str, stored: str, opset: int = 17) -> str:
    return f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[4, 3] x) => (float[4, n] y)
        <int8[2, 3] c = {{-128, 127, 3, 8, -9, 0}}, float[2] s = {{0.5, 0.25}}, {stored}> {{
            {nodes}
        }}"""


FORMS = {
    # what lies between, further constants, operators afterwards, codes afterwards
    "clip": (
        """k = Clip (c, lo, hi)
           w = DequantizeLinear <axis = 0> (k, s)
           y = Gemm <transB = 1> (x, w)""",
        "int8 lo = {-7}, int8 hi = {7}",
        ["DequantizeLinear", "Gemm"],
        [[-7, 7, 3], [7, -7, 0]],
    ),
    "transpose": (
        """w = DequantizeLinear <axis = 0> (c, s)
           i = Identity (w)
           t = Transpose (i)
           y = MatMul (x, t)""",
        "float u = {0}",
        ["DequantizeLinear", "MatMul"],
        [[-128, 8], [127, -9], [3, 0]],
    ),
    "transposed back": (
        """w = DequantizeLinear <axis = -2> (c, s)
           i = Transpose (w)
           t = Transpose (i)
           y = Gemm <transB = 1> (x, t)""",
        "float u = {0}",
        ["DequantizeLinear", "Gemm"],
        [[-128, 127, 3], [8, -9, 0]],
    ),
    "quantized weight and reshape": (
        """k = QuantizeLinear <axis = 0> (f, s, z)
           d = DequantizeLinear <axis = -2> (k, s, z)
           w = Reshape (d, r)
           y = MatMul (x, w)""",
        """float[2, 3] f = {1.25, 2, 900, -0.25, 0.375, 9}, int8[2] z = {0, 3},
           int64[3] r = {2, 3, 1}""",
        ["DequantizeLinear", "MatMul"],
        [[[2], [4], [127]], [[2], [5], [39]]],
    ),
    "weight that is encoded anew": (
        """d = DequantizeLinear <axis = 0> (c, s)
           i = Identity (d)
           q = QuantizeLinear (i, v)
           w = DequantizeLinear (q, v)
           y = Gemm <transB = 1> (x, w)""",
        "float v = {0.25}",
        ["DequantizeLinear", "Gemm"],
        [[0, 254, 6], [8, 0, 0]],
    ),
    "weight with a computed scale": (
        """q, v, z = DynamicQuantizeLinear (f)
           w = DequantizeLinear (q, v, z)
           y = Gemm <transB = 1> (x, w)""",
        "float[2, 3] f = {-1, 0, 1.55, 0.5, 0.25, 0}",
        ["DequantizeLinear", "Gemm"],
        [[0, 100, 255], [150, 125, 100]],
    ),
    "bias and cast": (
        """q = QuantizeLinear (b, v)
           e = DequantizeLinear (q, v)
           k = Cast <to = 3> (n)
           w = DequantizeLinear (k, v)
           y = Gemm (x, w, e)""",
        "float[1] b = {3}, float v = {0.5}, int64[3, 1] n = {4, -5, 6}",
        ["DequantizeLinear", "DequantizeLinear", "Gemm"],
        [6],
    ),
}


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("name", FORMS)
def test_codes_are_those_that_the_chain_gives(check_pass, name, opset):
    nodes, stored, ops, codes = FORMS[name]
    text = graph(nodes, stored, opset)
    text = text.replace("float[4, n] y", "float[2, 4, n] y") if "reshape" in name else text
    model, report = check_pass(FoldConstants(), text, ops=ops, exactly=BITS)
    first = next(iter(model.nodes("DequantizeLinear")))
    np.testing.assert_array_equal(constant(first.inputs[0]), codes)
    assert report.count(SiteStatus.REFUSED) == 0


def test_scales_of_blocks_and_scales_that_a_reshape_merges_stay(check_pass):
    for nodes, reason in (
        ("d = DequantizeLinear <axis = 0> (c, s)\n f = Reshape (d, r)", "axis 0, which Reshape"),
        (
            "d = DequantizeLinear <axis = 1, block_size = 3> (c, t)\n f = Reshape (d, r)",
            "a scale for each block",
        ),
    ):
        text = graph(
            f"{nodes}\n y = MatMul (x, f)",
            "float[2, 1] t = {0.5, 1}, int64[2] r = {3, 2}",
            21,
        )
        _, report = check_pass(FoldConstants(), text)
        (entry,) = report.sites
        assert entry.reason_id == "QG013"
        assert reason in entry.reason


def test_codes_of_scales_and_quantizers_in_other_operators_stay():
    text = graph(
        """v = DequantizeLinear (u, w)
           d = DequantizeLinear (c, v)
           r = Round (f)
           e = Mul (r, w)
           y = Gemm <transB = 1> (x, d, e)""",
        "uint8 u = {9}, float w = {0.5}, float[2] f = {1.2, 3.4}",
    )
    model = load(ir.from_onnx_text(text))
    assert model.apply(FoldConstants()).count(SiteStatus.CHANGED) == 0


@pytest.mark.parametrize(("kind", "code"), [("int32", -70000), ("int8", -7)])
def test_biases_are_decoded_where_that_is_asked_for(check_pass, kind, code):
    text = graph(
        """w = DequantizeLinear <axis = 0> (c, s)
           e = DequantizeLinear <axis = 0> (k, s)
           y = Gemm <transB = 1> (x, w, e)""",
        f"{kind}[2] k = {{3, {code}}}",
    )
    model, _ = check_pass(
        FoldConstants(biases=True), text, ops=["DequantizeLinear", "Gemm"], exactly=BITS
    )
    (layer,) = model.nodes("Gemm")
    np.testing.assert_array_equal(constant(layer.inputs[2]), np.float32([1.5, code / 4]))


def test_weights_of_named_layers_become_floats(check_pass):
    weights = np.arange(-6, 6, dtype=np.int8).reshape(3, 4)
    source = ir.from_onnx_text("""<ir_version: 10, opset_import: ["": 21]>
        net (float[N,4] x) => (float[N,3] y, float[N,3] z)
        <float[3] s = {0.5, 0.25, 3.0}, int8[3] zp = {1, 0, -2}, int8[3,4] w = {
            -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5}> {
            named = DequantizeLinear <axis = 0> (w, s, zp)
            other = DequantizeLinear <axis = 0> (w, s, zp)
            [first] y = Gemm <transB = 1> (x, named)
            [second] z = Gemm <transB = 1> (x, other)
        }""")
    model, _ = check_pass(
        FoldConstants(layers="first"), source, ops=["DequantizeLinear", "Gemm", "Gemm"]
    )
    (first,) = (node for node in model.nodes("Gemm") if node.name == "first")
    scale, point = np.float32([0.5, 0.25, 3.0]), np.int8([1, 0, -2])
    expected = (weights - point[:, None]).astype(np.float32) * scale[:, None]
    assert np.array_equal(constant(first.inputs[1]), expected)
