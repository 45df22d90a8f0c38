"""Values without -0 are found, and what may be -0 is not taken for one of them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.proof.matching.zero_signs import has_positive_zeros

HEADER = '<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>'
QUANT = "qonnx.custom_op.general.Quant<signed = 1, narrow = 0>"
CONSTANTS = (
    "float t = {2}, float h = {3}, float s = {0.5}, float n = {-0.5}, float z = {0}, float b = {4},"
    " float p = {1}, int8 i = {0}, int8 k = {3}, int64[1] a = {1}"
)
RMS = "c = Pow(x, t) m = ReduceMean(c, a)"
OTHER_POINT = f"{RMS} c1 = QuantizeLinear(m, s, i) d = DequantizeLinear(c1, s, k)"

CASES = [
    ("y = DequantizeLinear(q, s)", True),
    ("y = DequantizeLinear(q, n)", False),
    ("y = DequantizeLinear(f, s)", False),
    ("y = Abs(x)", True),
    ("y = Sqrt(x)", False),
    ("c = Abs(x) y = Sqrt(c)", True),
    ("c = Abs(x) y = Mul(c, x)", False),
    (f"{RMS} y = Add(m, s)", True),
    (f"{RMS} y = Add(m, n)", False),
    (f"{RMS} y = {QUANT}(m, s, z, b)", True),
    (f"{RMS} y = {QUANT}(m, n, z, b)", False),
    (f"y = {QUANT}(x, s, z, b)", False),
    (f"y = {QUANT}(x, s, p, b)", True),
    (f"d = DequantizeLinear(q, s) y = {QUANT}(d, s, z, b)", False),
    (f"{RMS} c1 = QuantizeLinear(m, s, i) d = DequantizeLinear(c1, s, i) y = Sqrt(d)", True),
    ("c1 = QuantizeLinear(x, s, i) d = DequantizeLinear(c1, s, i) y = Mul(d, d)", True),
    (f"{OTHER_POINT} y = {QUANT}(d, s, z, b)", False),
]


@pytest.mark.parametrize(("body", "expected"), CASES)
def test_by_the_operators(body: str, expected: bool) -> None:
    model = ir.from_onnx_text(
        f"{HEADER} g (float[2,3] x, int8[2,3] q, float8e4m3fn[2,3] f) => (float[2,3] y) "
        f"<{CONSTANTS}> {{ {body} }}"
    )
    assert has_positive_zeros(model.graph.outputs[0]) == expected
    if not expected or "f, s" in body:
        return
    # No zero of many inputs, among them both zeros and small ones, has a sign.
    values = np.float32([0, -0.0, 0.1, -0.1, 1e-30, -1e-30, 0.3, -0.3, 4, -4])
    for x in np.lib.stride_tricks.sliding_window_view(values, 6):
        codes = np.arange(6, dtype=np.int8).reshape(2, 3) - 3
        feeds = {"x": x.reshape(2, 3), "q": codes}
        feeds |= {"f": np.zeros((2, 3), ir.DataType.FLOAT8E4M3FN.numpy())}
        y = qgraph.load(model.clone()).run(feeds, backend="numpy")["y"]
        assert not np.signbit(y[y == 0]).any()


RECIPROCAL = """{header} g (float[2,3] x) => (float[2,3] y) <{constants}> {{
    u = {square}(x, x)
    {root} v = Sqrt(r) {quantized} y = Reciprocal(d)
}}"""


def model(*, pairs: bool, square: str) -> ir.Model:
    def quantizer(of: str, name: str) -> str:
        if pairs:
            codes = f"{name}c = QuantizeLinear({of}, s, i) "
            return codes + f"{name} = DequantizeLinear({name}c, s, i)"
        return f"{name} = {QUANT}({of}, s, z, w)"

    return ir.from_onnx_text(
        RECIPROCAL.format(
            header=HEADER,
            constants=CONSTANTS + ", float w = {8}",
            square=square,
            root=quantizer("u", "r"),
            quantized=quantizer("v", "d"),
        )
    )


@pytest.mark.parametrize(("square", "verdict"), [("Mul", "proved"), ("Add", "undecided")])
def test_reciprocals_of_roots_are_compared(square: str, verdict: str) -> None:
    """Quant keeps -0, which DequantizeLinear makes +0; a square has none."""
    sides = (model(pairs=pairs, square=square) for pairs in (True, False))
    assert str(qgraph.prove(*sides).verdict) == verdict
