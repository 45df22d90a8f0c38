"""LeakyRelu behind a layer of codes as the larger of two codes: bounds, kernels, refusals."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import qgraph
from qgraph import Tolerances
from qgraph.bound import Against, Bounding
from qgraph.exactness import Exactness
from qgraph.inventory.executed import executed
from qgraph.model import Model, load
from qgraph.proof.bounds.regions import with_bounds
from qgraph.proof.certify import certify
from qgraph.reports import SiteStatus
from qgraph.transforms.split_layers import SplitLeakyRelu

T = np.float32(0.06)
PADDED = "Conv <pads = [1,1,1,1]> (d, w_, b)"

CASES = {
    # operator, shape of data and weights, axis of channels, shape of the result, function, slopes
    "conv": (PADDED, "N,3,5,5", (4, 3, 3, 3), 0, "N,4,5,5", "LeakyRelu <alpha = 0.1> (c)", None),
    "default slope, no bias": ("Conv (d, w_)", "N,3,5,5", (4, 3, 3, 3), 0, "N,4,3,3",
                               "LeakyRelu (c)", None),
    "depthwise": ("Conv <group = 4> (d, w_, b)", "N,4,5,5", (4, 1, 3, 3), 0, "N,4,3,3",
                  "LeakyRelu <alpha = 0.3> (c)", None),
    "slopes of channels": (PADDED, "N,3,5,5", (4, 3, 3, 3), 0, "N,4,5,5", "PRelu (c, k)",
                           [[[0.05]], [[0.2]], [[0.7]], [[1.0]]]),
    "gemm": ("Gemm <transB = 1, alpha = 0.5> (d, w_, b)", "N,9", (4, 9), 0, "N,4",
             "LeakyRelu <alpha = 0.1> (c)", None),
    "matmul": ("MatMul (d, w_)", "N,7,9", (9, 4), 1, "N,7,4", "LeakyRelu <alpha = 0.1> (c)", None),
}  # fmt: skip


def network(name: str, *, behind: str = "", **changes: str) -> Model:
    op, x, w, axis, y, function, slopes = CASES[name]
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        net (float[{x}] x) => (float[{y}] y)
        <float s = {{0.05}}, uint8 z = {{120}}, float t = {{{T}}}, uint8 u = {{100}},
         uint8 zero = {{0}}, uint8 most = {{200}}> {{
            q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z)
            w_ = DequantizeLinear <axis = {axis}> (w, sw)
            [layer] c = {op}
            l = {changes.get("function", function)}
            p = QuantizeLinear (l, t, u)
            {behind or "y = DequantizeLinear (p, t, u)"}
        }}"""
    random = np.random.default_rng(len(op))
    arrays = {
        # small enough for sums of pairs on every processor
        "w": random.integers(-63, 64, w).astype(np.int8),
        "sw": random.uniform(0.005, 0.02, w[axis]).astype(np.float32),
        "b": random.normal(size=w[axis]).astype(np.float32),
        "k": np.float32(slopes),
    }
    proto = onnx.parser.parse_model(text)
    for key, array in arrays.items():
        if f"{key})" in text or f"({key}," in text:
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, key))
    return load(proto)


def data(model: Model) -> dict[str, np.ndarray]:
    (x,) = model.inputs
    shape = [n if isinstance(n, int) else 60 for n in x.shape]
    return {"x": np.random.default_rng(5).normal(0, 3, shape).astype(np.float32)}


@pytest.mark.cases(fast=1, slow=3)
@pytest.mark.parametrize("name", CASES)
def test_codes_stay_within_the_bound(name):
    before = network(name)
    after = before.clone()
    report = after.apply(SplitLeakyRelu())
    assert report.count(SiteStatus.CHANGED) == 1
    assert after.clone().apply(SplitLeakyRelu()).count(SiteStatus.CHANGED) == 0
    operators = [node.op_type for node in after.nodes()]
    assert not {"LeakyRelu", "PRelu"} & set(operators)
    assert operators.count("Max") == 1
    layers = [node for node in after.nodes() if node.op_type == CASES[name][0].split()[0]]
    assert [node.name for node in layers].count("layer") == 1
    codes = {node.inputs[1].producer().inputs[0] for node in layers}
    assert len(layers) == 2
    assert len(codes) == 1  # stored once

    sides, request = (before.ir, after.ir), Bounding("1step", Against.IDEAL)
    certificate = with_bounds(certify(*sides), sides, request, Exactness.VALUES)
    assert certificate.verdict == "bounded"
    assert max(r.bound.max_steps for r in certificate.regions if r.bound) == 1
    assert max(r.bound.tie_distance_steps for r in certificate.regions if r.bound) < 0.01
    feeds = data(before)
    ours, theirs = (model.run(feeds, backend="numpy")["y"] for model in (before, after))
    apart = np.abs(np.rint(ours / T) - np.rint(theirs / T))
    assert (np.unique(np.rint(ours / T)) < 0).sum() > 3
    assert apart.max() <= 1
    assert np.mean(apart > 0) < 0.01
    within = Tolerances(within="1step")
    checked = qgraph.check(before, after, feeds, tolerances=within, backend="numpy")
    assert checked.bounds is not None
    assert not checked.failed
    assert [s.violated for s in checked.bounds.segments if s.violated] == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"function": "LeakyRelu <alpha = 1.5> (c)"}, "reach from 1.5 to 1.5"),
        ({"function": "LeakyRelu <alpha = -0.5> (c)"}, "reach from -0.5 to -0.5"),
        ({"function": "LeakyRelu <alpha = 0.0> (c)"}, "reach from 0 to 0"),
        ({"behind": "m = DequantizeLinear (p, t, u) y = Add (m, l)"}, None),
        ({"behind": "m = DequantizeLinear (p, t, u) y = Add (m, c)"}, None),
        ({"function": "PRelu (c, c)"}, None),
    ],
)
def test_other_slopes_and_results_that_are_used_elsewhere_stay(changes, reason):
    model = network("conv", **changes)
    before = model.to_proto()
    report = model.apply(SplitLeakyRelu())
    assert model.to_proto() == before
    assert [reason in site.reason for site in report] == ([True] if reason else [])


def test_patterns_choose_layers():
    assert not network("conv").apply(SplitLeakyRelu(nodes="!layer")).modified


LIMITED = "m = Clip (p, zero, most) y = DequantizeLinear (m, t, u)"


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.runtime
@pytest.mark.parametrize(
    ("name", "behind"),
    [("conv", ""), ("depthwise", ""), ("slopes of channels", LIMITED), ("gemm", "")],
)
def test_onnx_runtime_computes_both_layers_on_codes(name, behind, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = network(name, behind=behind)
    before = model.clone()
    assert not any(layer.is_integer for layer in executed(model.ir, "onnxruntime").layers)
    found = qgraph.deploy(model, "onnxruntime-cpu")
    (layer,) = found.layers
    assert layer.kernel is not None
    assert "split-leaky-relu" in layer.rewrites
    assert (layer.bound.max_steps, found.certificate.verdict) == (1, "bounded")
    kernels = executed(model.ir, "onnxruntime").kernels
    assert kernels[layer.kernel] == 2
    model.save(tmp_path / "out.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "out.onnx")
    feeds = data(before)
    expected = before.run(feeds, backend="numpy")["y"]
    apart = np.abs(np.rint(session.run(None, feeds)[0] / T) - np.rint(expected / T))
    assert apart.max() <= 1
    assert np.mean(apart > 0) < 0.01

    once = model.to_proto()
    assert not qgraph.deploy(model, "onnxruntime-cpu").left
    assert model.to_proto() == once


@pytest.mark.slow
@pytest.mark.runtime
def test_a_layer_without_a_name_is_known_by_its_result():
    pytest.importorskip("onnxruntime")
    model = network("gemm")
    (gemm,) = model.nodes("Gemm")
    gemm.name = ""
    (layer,) = qgraph.deploy(model, "onnxruntime-cpu").layers
    assert (layer.node, layer.kernel) == ("c", "QGemm")


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("target", ["openvino-cpu", "tensorrt"])
def test_other_targets_keep_leaky_relu(target):
    model = network("conv")
    qgraph.deploy(model, target)
    assert len(list(model.nodes("LeakyRelu"))) == 1


@pytest.mark.parametrize("kind", ["int4", "uint4"])
def test_codes_of_four_bits_have_no_maximum(kind):
    """Max of ONNX takes codes of 8 bits or more."""
    proto = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
        net (float[N,2] x) => (float[N,2] y)
        <float s = {{0.05}}, uint8 z = {{120}}, {kind} o = {{3}}, int8[2,2] w = {{9, 2, -7, 5}}> {{
            q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z)
            v = DequantizeLinear (w, s)
            c = MatMul (d, v)
            l = LeakyRelu <alpha = 0.1> (c)
            p = QuantizeLinear (l, s, o)
            y = DequantizeLinear (p, s, o)
        }}""")
    assert not load(proto).apply(SplitLeakyRelu()).sites
