"""Windows of a pool that lie in the padding alone: what they give is no element of the data."""

from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

import qgraph
from qgraph.bound import Bounding
from qgraph.proof.bounds.paired_models import paired
from qgraph.text import json_text
from tests.verify.checking import leaves

pytestmark = pytest.mark.runtime

GAPS = "kernel_shape = [2, 2], dilations = [2, 2], pads = [1, 1, 1, 1]"
"""One element lies in the middle of the gap; the corners of the window are padding."""

ORDERS = ("k = Relu (m) t = {} (k)", "k = {} (m) t = Relu (k)")
ADDED = ("k = {} (m) t = Add (k, f)", "k = Add (m, f) t = {} (k)")
MAX, MEAN = (f"{name}Pool <{{}}>" for name in ("Max", "Average"))


def model(size: int, nodes: str, factor: float = 1.3) -> ir.Model:
    return ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
        net (int8[1,1,{size},{size}] x) => (int8 y)
        <float u = {{0.05}}, int8 z = {{4}}, float f = {{{factor}}}> {{
            a = DequantizeLinear (x, u, z) m = Mul (a, f) {nodes}
            [end] y = QuantizeLinear (t, u, z)
        }}""")


def farthest(models: list[ir.Model], size: int) -> int:
    codes = np.full((1, 1, size, size), -50, np.int8)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    files = [ir.to_proto(each).SerializeToString() for each in models]
    runs = [ort.InferenceSession(file, options).run(None, {"x": codes})[0] for file in files]
    return int(np.abs(runs[0].astype(int) - runs[1]).max())


def test_a_maximum_of_padding_is_not_bounded():
    pair = [
        model(1, order.format(MAX.format(GAPS)), 1.3 + i / 999) for i, order in enumerate(ORDERS)
    ]
    assert farthest(pair, 1) > 100
    segments = paired((pair[0], pair[1]), Bounding("1step")).segments
    assert segments
    assert all("padding alone" in str(segment.reason) for segment in segments)


@pytest.mark.slow
def test_a_mean_of_padding_is_not_bounded():
    pair = [model(1, order.format(MEAN.format(GAPS)), 1.3) for order in ADDED]
    proved = qgraph.prove(*pair, within="1step")
    assert proved.verdict == "undecided"
    assert any("padding alone" in str(region.reason) for region in proved.regions)


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize(
    ("size", "window"),
    [
        (2, GAPS),
        (4, "kernel_shape = [3, 3], pads = [1, 1, 1, 1]"),
        (4, "kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1"),
    ],
)
def test_other_windows_are_bounded(size, window):
    pair = [
        model(size, order.format(MAX.format(window)), 1.3 + i / 9999)
        for i, order in enumerate(ORDERS)
    ]
    proved = qgraph.prove(*pair, within="1step")
    assert proved.verdict == "bounded"
    assert not proved.beyond
    assert farthest(pair, size) <= 1


@pytest.mark.slow
def test_the_checker_leaves_pools_with_padding_to_the_prover():
    nodes = ORDERS[0].format(MAX.format(GAPS))
    pair = [model(2, nodes, factor) for factor in (1.3, 1.3001)]
    document = json.loads(json_text(qgraph.prove(*pair, within="1step", evidence=True).to_json()))
    assert document["verdict"] == "bounded"
    assert leaves(document, *pair)
