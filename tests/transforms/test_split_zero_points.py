"""Weights keep their meaning without zero points: exact values, bounds, and refusals."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph.bound import Against, Bounding
from qgraph.certificate import Certificate
from qgraph.exactness import Exactness, ProofVerdict, Status
from qgraph.model import Model, load
from qgraph.proof.bounds.regions import with_bounds
from qgraph.proof.certify import certify
from qgraph.reports import SiteStatus
from qgraph.transforms.split_layers import SplitZeroPoints
from qgraph.verify.verify import verify

S, T = np.float32(0.05), np.float32(0.8)


def network(op: str, x: str, w: tuple[int, ...], axis: int, *, y: str, points: object) -> Model:
    """Return one layer between quantizers, whose codes reach from 0 to 255 in each channel."""
    random = np.random.default_rng(len(op))
    codes = random.integers(0, 256, w)
    for end, code in ((0, 0), (-1, 255)):
        index = [slice(None) if i == axis else end for i in range(len(w))]
        codes[tuple(index)] = code
    zero = np.uint8(points)
    scale = random.uniform(0.005, 0.02, zero.shape).astype(np.float32)
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        net (float[{x}] x) => (float[{y}] y)
        <float s = {{{S}}}, uint8 z = {{3}}, float t = {{{T}}}, uint8 u = {{128}}> {{
            q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z)
            e = DequantizeLinear <axis = {axis}> (w, sw, zw)
            [layer] c = {op}
            p = QuantizeLinear (c, t, u)
            y = DequantizeLinear (p, t, u)
        }}"""
    proto = onnx.parser.parse_model(text)
    kept = {"w": codes.astype(np.uint8), "sw": scale, "zw": zero}
    channels = w[axis] * (2 if "group = 2" in op and axis == 1 else 1)
    kept["b"] = random.normal(size=channels).astype(np.float32)
    for name, array in kept.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return load(proto)


CASES = {
    # operator, shape of data and weights, axis of channels, shape of the result, zero points
    "conv": ("Conv <pads = [1,1,1,1]> (d, e, b)", "N,3,5,5", (4, 3, 3, 3), 0, "N,4,5,5",
             [0, 90, 255, 128]),
    "one zero point": ("Conv (d, e)", "N,3,5,5", (4, 3, 3, 3), 0, "N,4,3,3", 131),
    "groups": ("Conv <group = 2> (d, e, b)", "N,6,5,5", (4, 3, 3, 3), 0, "N,4,3,3",
               [200, 90, 128, 70]),
    "transposed": ("ConvTranspose <strides = [2,2]> (d, e, b)", "N,3,4,4", (3, 2, 2, 2), 1,
                   "N,2,8,8", [100, 140]),
    "gemm": ("Gemm <transB = 1> (d, e, b)", "N,9", (4, 9), 0, "N,4",
             [0, 90, 255, 128]),
    "matmul": ("MatMul (d, e)", "N,7,9", (9, 4), 1, "N,7,4", [1, 90, 254, 128]),
}  # fmt: skip


def certified(before: Model, after: Model) -> Certificate:
    sides, request = (before.ir, after.ir), Bounding("1step", Against.IDEAL)
    return with_bounds(certify(*sides), sides, request, Exactness.VALUES)


@pytest.mark.cases(fast=2, slow=4)
@pytest.mark.parametrize("name", CASES)
def test_values_stay_within_roundings_and_bounds(name):
    op, x, w, axis, y, points = CASES[name]
    before = network(op, x, w, axis, y=y, points=points)
    after = before.clone()
    report = after.apply(SplitZeroPoints())
    assert report.count(SiteStatus.CHANGED) == 1
    assert after.clone().apply(SplitZeroPoints()).count(SiteStatus.CHANGED) == 0
    layer = next(node for node in after.nodes() if node.name == "layer")
    decode = layer.inputs[1].producer()
    assert len(decode.inputs) == 2
    assert decode.inputs[0].dtype.name == "INT8"

    random = np.random.default_rng(5)
    data = random.normal(3, 4, [6, *map(int, x.split(",")[1:])]).astype(np.float32)
    found = [m.run({"x": data}, backend="numpy")["y"] for m in (before, after)]
    steps = np.abs(np.rint(found[0] / T) - np.rint(found[1] / T))
    assert steps.max() <= 1
    assert np.mean(steps) < 0.01
    assert np.unique(found[0]).size > 10

    certificate = certified(before, after)
    assert certificate.verdict is ProofVerdict.BOUNDED
    bound = certificate.regions[-1].bound or certificate.regions[-2].bound
    assert bound.deviation_steps < 0.01
    findings = verify(certificate, before.ir, after.ir).regions
    unchecked = {found.reason for found in findings if found.status is not Status.CHECKED}
    assert unchecked == (
        {"the checker has no bound for ConvTranspose"} if name == "transposed" else set()
    )

    weight = next(n for n in after.nodes("DequantizeLinear") if n is decode).inputs[0]
    codes = weight.const_value.numpy().copy()
    codes.reshape(-1)[1] += 1 if codes.reshape(-1)[1] < 127 else -1
    weight.const_value = ir.Tensor(codes)
    changed = certified(before, after)
    assert max(r.bound.deviation_steps for r in changed.regions if r.bound) > 0.02


@pytest.mark.parametrize(
    ("op", "w", "axis", "points", "reason"),
    [
        ("Conv <group = 3> (d, e)", (3, 1, 3, 3), 0, [100, 90, 80], "take longer than one"),
        ("Conv <group = 3> (d, e)", (6, 1, 3, 3), 0, 131, "take longer than one"),
        ("Conv (d, e)", (4, 3, 3, 3), 1, [1, 2, 3], "within an output channel"),
    ],
)
def test_layers_that_are_left(op, w, axis, points, reason):
    model = network(op, "N,3,5,5", w, axis, y=f"N,{w[0]},3,3", points=points)
    before = model.to_proto()
    report = model.apply(SplitZeroPoints())
    assert model.to_proto() == before
    (site,) = report.sites
    assert site.outcome is SiteStatus.REFUSED
    assert reason in str(site.reason)
