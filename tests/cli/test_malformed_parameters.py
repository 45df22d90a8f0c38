"""Quantizers with parameters that fit no data: commands say so, or leave the node alone."""

from __future__ import annotations

import pytest

HEAD = """<ir_version: 10, opset_import: ["": 21, "org.openvinotoolkit": 1,
    "qonnx.custom_op.general": 2, "com.example": 1]> net (float[1,4] x) => (float[1,4] y) """
EMPTY_LIMITS = """<float[1,4] a = {-1, -2, -3, -4}, float[0] b = {}> {
    y = org.openvinotoolkit.FakeQuantize <levels = 16> (x, a, b, a, b)
}"""
NO_INPUTS = """<float s = {0.5}> {
    c = org.openvinotoolkit.FakeQuantize <levels = 16> ()
    y = Mul (x, c)
}"""
EMPTY_MANTISSA = """<float s = {0.5}, float z = {0}, float o = {2},
    float e = {4}, float[0] m = {}, float b = {7}, float t = {240}> {
    r = qonnx.custom_op.general.Trunc <rounding_mode = "FLOOR"> (x, s, z, e, o, o)
    y = qonnx.custom_op.general.FloatQuant <has_inf = 0, has_nan = 1, has_subnormal = 1,
        saturation = 1, rounding_mode = "ROUND"> (r, s, e, m, b, t)
}"""


HUGE_WIDTH = """<float s = {0.5}, float z = {0}, float b = {17179869184}> {
    y = qonnx.custom_op.general.Quant <signed = 1, narrow = 0, rounding_mode = "ROUND"> (x, s, z, b)
}"""
UNKNOWN_DOMAIN = "{ y = com.example.MatMulNBits <bits = 4.0> (x) }"
BODIES = {
    "limits": EMPTY_LIMITS,
    "inputs": NO_INPUTS,
    "mantissa": EMPTY_MANTISSA,
    "width": HUGE_WIDTH,
    "domain": UNKNOWN_DOMAIN,
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("command", ["info", "lint", "convert --to qdq", "fold"])
def test_no_command_ends_in_an_inner_error(qgraph, write, tmp_path, command, body):
    name, *options = command.split()
    output = ["-o", tmp_path / "out.onnx"] if name in ("convert", "fold") else []
    found = qgraph(name, write(HEAD + BODIES[body]), *output, *options)
    assert found.status in (0, 1, 3)
    assert "could not" not in found.err + found.out
