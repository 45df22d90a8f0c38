"""FP8 in graphs of float16: converted bit for bit, with onnx.reference as truth."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import qgraph
from qgraph.exactness import Exactness
from qgraph.transforms import ConvertDialect

ACTIVATION = """<ir_version: 10, opset_import: ["": 21]>
net (float16[N,2] x) => (float16[N,2] y)
<float16[2] s = SCALES, KIND[2] z = {0, 0}> {
    c = QuantizeLinear (x, s, z)
    y = DequantizeLinear (c, s, z)
}"""

WEIGHT = """<ir_version: 10, opset_import: ["": 21]>
net (float16[2,254] x) => (float16[2,254] y)
<float16[2] s = SCALES, float8e4m3fn[2,254] w = CODES> {
    d = DequantizeLinear <axis = 0> (w, s)
    y = Mul (x, d)
}"""


def bits_of(*numbers: float) -> str:
    """Return float16 numbers as ONNX text has them: as bit patterns."""
    return "{" + ", ".join(map(str, np.array(numbers, np.float16).view(np.uint16))) + "}"


def all_finite() -> np.ndarray:
    """Return all finite float16 numbers, each in both channels."""
    numbers = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    return np.repeat(numbers[np.isfinite(numbers)][:, None], 2, axis=1)


def in_runtime(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """Return what ONNX Runtime computes."""
    (y,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    return y


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether both are float16 with equal bits."""
    assert one.dtype == other.dtype == np.float16
    return np.array_equal(one.view(np.uint16), other.view(np.uint16))


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(
    ("kind", "scales", "spelling"),
    [
        # a quotient of float16 is rounded before it is rounded to FP8: not so in float32
        ("float8e4m3fn", (0.013, 0.1), "Div+Cast+FloatQuant+Cast+Mul"),
        ("float8e4m3fn", (0.25, 0.0078125), "Cast+FloatQuant+Cast"),
        ("float8e5m2", (100, 0.1), "Div+Cast+FloatQuant+Cast+Mul"),
    ],
)
def test_activations(kind, scales, spelling):
    text = ACTIVATION.replace("SCALES", bits_of(*scales)).replace("KIND", kind)
    proto = onnx.parser.parse_model(text)
    x = all_finite()
    with np.errstate(over="ignore"):
        (truth,) = ReferenceEvaluator(proto).run(None, {"x": x})
    exact_quotient = np.frexp(scales)[0].tolist() == [0.5, 0.5]
    # ONNX Runtime divides in float32, the definition in the type of the scale.
    assert same_bits(in_runtime(proto, x), truth) is exact_quotient
    for to, expected in (("qonnx", spelling), ("onnx", "Div+Cast+Cast+Sub+Mul")):
        model = qgraph.load(proto)
        (entry,) = model.apply(ConvertDialect(to=to)).sites
        assert (entry.spelling, entry.verdict.exactness) == (expected, Exactness.BITS)
        onnx.checker.check_model(model.to_proto(), full_check=True)
        assert same_bits(model.run({"x": x}, backend="numpy")["y"], truth)
        if to == "onnx":
            assert same_bits(in_runtime(model.to_proto(), x), in_runtime(proto, x))


@pytest.mark.parametrize(("to", "spelling"), [("qonnx", "FloatQuant+Cast"), ("onnx", "Cast+Mul")])
def test_all_codes_of_a_weight(to, spelling):
    codes = [code for code in range(256) if code & 127 != 127]  # without NaN
    text = WEIGHT.replace("SCALES", bits_of(0.013, 0.25))
    proto = onnx.parser.parse_model(text.replace("CODES", "{" + str(codes * 2)[1:-1] + "}"))
    x = np.ones((2, 254), np.float16)
    (truth,) = ReferenceEvaluator(proto).run(None, {"x": x})
    assert same_bits(in_runtime(proto, x), truth)
    model = qgraph.load(proto)
    (entry,) = model.apply(ConvertDialect(to=to)).sites
    assert (entry.spelling, entry.verdict.exactness) == (spelling, Exactness.BITS)
    onnx.checker.check_model(model.to_proto(), full_check=True)
    assert same_bits(model.run({"x": x}, backend="numpy")["y"], truth)
    # FakeQuantize has an even grid, which these values do not lie on.
    (refused,) = qgraph.load(proto).apply(ConvertDialect(to="openvino")).sites
    assert refused.spelling is None
    assert "--to onnx has an equal form" in refused.reason
