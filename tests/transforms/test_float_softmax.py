"""Operators on decoded codes stay as written: ONNX Runtime changes Softmax, and merges pairs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import qgraph
from qgraph.reports import SiteStatus
from qgraph.transforms.runtime_faults import FloatSoftmax, SeparatePairs

runtime = pytest.importorskip("onnxruntime")

TEXT = """<ir_version: 8, opset_import: ["": 17]>
    net (float[2,8,16] x) => (y)
    <float s = {0.1}, TYPE z = {0}, float t = {STEP}, TYPE o = {LOW}, int64[2] rows = {16, 16},
     float[16] steps = {STEPS}, TYPE[16] lows = {LOWS}, float n = {0}, float e = {1},
     float h = {0.5}> {
        c = QuantizeLinear (x, s, z)
        d = DequantizeLinear (c, s, z)
        BODY
        q = QuantizeLinear (p, t, o)
        y = DequantizeLinear (q, t, o)
    }"""
CODES = {"uint8": 0, "int8": -128}
WRONG = {
    "alone": "p = Softmax <axis = 2> (d)",
    "reshaped before": "r = Reshape (d, rows) p = Softmax <axis = 1> (r)",
    "limited behind": "r = Softmax <axis = 2> (d) l = Clip (r, n, e) p = Relu (l)",
    "moved behind": "r = Softmax <axis = 1> (d) p = Transpose <perm = [0, 2, 1]> (r)",
}
RIGHT = {
    "a whole number of steps": ("p = Softmax <axis = 2> (d)", "0.00390625"),
    "flattened behind": ("r = Softmax <axis = 2> (d) p = Flatten (r)", "0.00392157"),
    "limited to a half": ("r = Softmax <axis = 2> (d) p = Clip (r, n, h)", "0.00392157"),
    "of floats": ("r = Exp (d) p = Softmax <axis = 2> (r)", "0.00392157"),
}


def model(body: str, kind: str = "uint8", step: str = "0.00392157") -> onnx.ModelProto:
    text = TEXT.replace("BODY", body).replace("TYPE", kind).replace("{STEP}", f"{{{step}}}")
    text = text.replace("{STEPS}", f"{{{', '.join(str(each / 5120) for each in range(20, 36))}}}")
    text = text.replace("LOWS", ", ".join(["LOW"] * 16)).replace("LOW", str(CODES[kind]))
    return onnx.parser.parse_model(text)


def differing(proto: onnx.ModelProto, reference: onnx.ModelProto) -> int:
    """Return how many results of ONNX Runtime differ from those of the operators as written."""
    x = np.random.default_rng(0).normal(0, 2, (2, 8, 16)).astype(np.float32)
    exact = qgraph.load(reference).run({"x": x}, backend="numpy")["y"]
    session = runtime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return int(np.count_nonzero(session.run(None, {"x": x})[0] != exact))


@pytest.mark.cases(fast=2, slow=3)
@pytest.mark.runtime
@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("name", WRONG)
def test_softmax_of_codes_is_computed_as_written(name, kind):
    proto = model(WRONG[name], kind)
    assert differing(proto, proto) > 5
    loaded = qgraph.load(proto)
    before = loaded.clone()
    result = qgraph.deploy(loaded, "onnxruntime-cpu")
    assert not [each for each in result.findings if each.rule.id == "QG324"]
    assert differing(loaded.to_proto(), proto) == 0
    proof = qgraph.prove(before, loaded)
    assert (str(proof.verdict), str(proof.exactness)) == ("proved", "bits")
    once = loaded.to_proto()
    qgraph.deploy(loaded, "onnxruntime-cpu")
    assert loaded.to_proto() == once


@pytest.mark.runtime
def test_a_softmax_before_scales_of_channels_is_computed_as_written():
    """ONNX Runtime takes the first scale for all channels, although 1 is 256 steps of it."""
    proto = model("p = Softmax <axis = 2> (d)", step="0.00390625")
    for node in proto.graph.node[-2:]:
        node.attribute.append(onnx.helper.make_attribute("axis", 2))
        node.input[1:] = ["steps", "lows"]
    assert differing(proto, proto) > 100
    (found,) = qgraph.lint(proto, "onnxruntime-cpu", select="QG324")
    assert found.figures == {"scales": 16}
    loaded = qgraph.load(proto)
    qgraph.deploy(loaded, "onnxruntime-cpu")
    assert differing(loaded.to_proto(), proto) == 0


@pytest.mark.cases(fast=1)
@pytest.mark.runtime
@pytest.mark.parametrize("name", RIGHT)
def test_other_softmax_stay(name):
    body, step = RIGHT[name]
    loaded = qgraph.load(model(body, step=step))
    assert differing(loaded.to_proto(), loaded.to_proto()) == 0
    qgraph.deploy(loaded, "onnxruntime-cpu")
    assert not list(loaded.nodes("Max"))


def test_only_named_softmax_of_codes_get_a_limit():
    loaded = qgraph.load(model(WRONG["alone"].replace("p =", "[here] p =")))
    assert not loaded.apply(FloatSoftmax(nodes="!here")).sites
    report = loaded.apply(FloatSoftmax(nodes="here"))
    assert report.count(SiteStatus.CHANGED) == 1
    assert report.sites[0].verdict.exactness == "bits"
    (limit,) = loaded.nodes("Max")
    lowest = limit.inputs[1].const_value.numpy()
    assert lowest == 0  # the codes are UINT8 without a zero point
    assert not loaded.apply(FloatSoftmax()).sites


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.runtime
@pytest.mark.parametrize("between", ["", "i = Identity (d)", "i = Reshape (d, rows)"])
def test_two_pairs_stay_apart(between):
    proto = model(f"{between} p = Identity ({'i' if between else 'd'})", step="0.17")
    wrong = differing(proto, proto)
    assert (wrong > 20) == (len(list(qgraph.lint(proto, "onnxruntime-cpu", select="QG301"))) == 1)
    loaded = qgraph.load(proto)
    before = loaded.clone()
    qgraph.deploy(loaded, "onnxruntime-cpu")
    assert not list(qgraph.lint(loaded, "onnxruntime-cpu", select="QG301"))
    assert differing(loaded.to_proto(), proto) == 0
    proof = qgraph.prove(before, loaded)
    assert (str(proof.verdict), str(proof.exactness)) == ("proved", "bits")
    once = loaded.to_proto()
    qgraph.deploy(loaded, "onnxruntime-cpu")
    assert loaded.to_proto() == once


def test_only_named_quantizers_of_decoded_codes_get_a_limit():
    loaded = qgraph.load(model("p = Identity (d)", step="0.17"))
    assert not loaded.apply(SeparatePairs(nodes="!q")).sites
    assert loaded.apply(SeparatePairs(nodes="c|q")).count(SiteStatus.CHANGED) == 1
    (limit,) = loaded.nodes("Max")
    assert [node.op_type for node in limit.outputs[0].consumers()] == ["QuantizeLinear"]
    assert not loaded.apply(SeparatePairs()).sites
