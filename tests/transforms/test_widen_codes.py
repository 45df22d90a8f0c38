"""Narrow codes become multiples of a power of two, and weights stay the same numbers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.errors import OptionError
from qgraph.exactness import Exactness
from qgraph.graph.constants import constant
from qgraph.model import load
from qgraph.transforms.recoding import WidenCodes

BITS = Exactness.BITS


def graph(stored: str, operands: str = "c, s", attributes: str = "axis = 0") -> str:
    return f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[4, 3] x) => (float[4, 2] y) <{stored}> {{
            w = DequantizeLinear <{attributes}> ({operands})
            y = Gemm <transB = 1> (x, w)
        }}"""


# Text has the bytes of codes of 4 bits, the first code in the low half.
CASES = {
    # constants, operands, codes and scales afterwards
    "four bits": (
        "int4[2, 3] c = {120, 19, 15}, float[2] s = {0.3, -0.7}",
        "c, s",
        [[-64, 56, 24], [8, -8, 0]],
        np.float32([0.3, -0.7]) / np.float32(8),
    ),
    "binary": ("int8[2, 3] c = {1, -1, 1, 1, -1, -1}, float s = {0.3}", "c, s", 64, 1 / 64),
    "zero point": (
        "uint4[2, 3] c = {240, 88, 118}, float s = {3}, uint4 z = {7}",
        "c, s, z",
        [[-56, 64, 8], [-16, -8, 0]],
        np.float32(3 / 8),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_codes_and_scales(check_pass, name):
    stored, operands, codes, scale = CASES[name]
    attributes = "axis = 0" if name == "four bits" else "axis = 1"
    model, _ = check_pass(WidenCodes(), graph(stored, operands, attributes), exactly=BITS)
    (node,) = model.nodes("DequantizeLinear")
    found = constant(node.inputs[0])
    assert found.dtype == np.int8
    assert len(node.inputs) == 2
    if name == "binary":
        assert set(found.reshape(-1).tolist()) == {-codes, codes}
        assert constant(node.inputs[1]) == np.float32(0.3) * np.float32(scale)
    else:
        np.testing.assert_array_equal(found, codes)
        np.testing.assert_array_equal(constant(node.inputs[1]), scale)


def test_the_limit_is_an_option_and_scales_stay_normal(check_pass):
    text = graph("int8[2, 3] c = {7, -7, 3, 1, -1, 0}, float s = {0.5}")
    model, _ = check_pass(WidenCodes(limit=127), text, exactly=BITS)
    assert np.abs(constant(next(iter(model.nodes("DequantizeLinear"))).inputs[0])).max() == 112
    (entry,) = load(ir.from_onnx_text(text.replace("0.5", "3e-38"))).apply(WidenCodes()).sites
    assert (entry.reason_id, "normal" in entry.reason) == ("QG003", True)
    with pytest.raises(OptionError, match="1 to 127"):
        WidenCodes(limit=200)


def test_wide_codes_biases_and_blocks_are_kept():
    for stored, attributes in (
        ("int8[2, 3] c = {33, -7, 3, 1, -1, 0}, float s = {0.5}", "axis = 0"),
        ("int4[2, 3] c = {19, 19, 19}, float[2, 1] s = {0.5, 1}", "block_size = 3"),
    ):
        model = load(ir.from_onnx_text(graph(stored, attributes=attributes)))
        assert not model.apply(WidenCodes()).modified


def test_codes_that_no_product_takes_stay_as_they_are(check_pass):
    """A decoded weight with an offset is no stored code times a scale, in any unit of it."""
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (float[4, 3] x) => (float[4, 2] y)
        <int4[3, 2] c = {120, 19, 15}, float s = {1}, float z = {0.5}, float u = {0.25}> {
            d = DequantizeLinear (c, s)
            e = Sub (d, z)
            w = Mul (e, u)
            y = MatMul (x, w)
        }"""
    model, _ = check_pass(WidenCodes(), text, exactly=BITS)
    (node,) = model.nodes("DequantizeLinear")
    assert node.inputs[0].dtype.name == "INT4"
