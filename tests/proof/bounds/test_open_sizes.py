"""Sums over open axes that a table limits: with more rows than the table the model does not run."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

import qgraph

LARGEST = 6
SUMS = {
    "Softmax": "r = Softmax <axis = -1> (scores)",
    "MatMul": "r = MatMul (scores, d)",
    "ReduceMean": "r = ReduceMean <keepdims = 1> (scores, last)",
    "ReduceLogSumExp": "r = ReduceLogSumExp <keepdims = 1> (scores, last)",
}


def model(name: str, scale: float, *, table: str = "f") -> ir.Model:
    """Return attention over rows to which those of a table are added, or one row."""
    return ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
        net (float[N,S,2] x) => (y)
        <float s = {{0.05}}, uint8 z = {{128}}, float t = {{{scale}}}, int64[1] zero = {{0}},
         int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] last = {{-1}},
         float[6,2] rows = {{1, 2, -1, 0, 0.5, 1, 2, -2, 1, 1, 0, -1}},
         float[1,2] f = {{0.5, -1}}> {{
            shape = Shape (x)
            count = Slice (shape, one, two)
            cut = Slice (rows, zero, count)
            sum = Add (x, {table})
            q = QuantizeLinear (sum, s, z)
            d = DequantizeLinear (q, t, z)
            e = Transpose <perm = [0, 2, 1]> (d)
            scores = MatMul (d, e)
            {SUMS[name]}
            c = QuantizeLinear (r, s, z)
            y = DequantizeLinear (c, s, z)
        }}""")


def pair(name: str, table: str) -> tuple[ir.Model, ir.Model]:
    return model(name, 0.05, table=table), model(name, 0.050000004, table=table)


@pytest.mark.cases(fast=0, slow=2)
@pytest.mark.parametrize("name", SUMS)
def test_sums_over_limited_axes_have_bounds(name):
    sides = pair(name, "cut")
    result = qgraph.prove(*sides, within="1step")
    assert result.verdict == "bounded"
    assert any("S is at most 6:" in condition for condition in result.conditions)
    bound = max(region.bound.max_steps for region in result.regions if region.bound)
    rng = np.random.default_rng(0)
    for count in (1, LARGEST):
        x = rng.normal(size=(2, count, 2)).astype(np.float32)
        ours, theirs = (qgraph.load(side).run({"x": x})["y"] for side in sides)
        assert np.abs(ours - theirs).max() / 0.05 <= bound + 0.01


def test_the_model_does_not_run_beyond_the_limit():
    proto = qgraph.load(model("Softmax", 0.05, table="cut")).to_proto()
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    assert session.run(None, {"x": np.zeros((1, LARGEST, 2), np.float32)})[0].shape[1] == LARGEST
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail, match="broadcast"):
        session.run(None, {"x": np.zeros((1, LARGEST + 1, 2), np.float32)})


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize("name", SUMS)
def test_open_axes_without_a_limit_have_no_bounds(name):
    assert qgraph.prove(*pair(name, "f"), within="1step").verdict != "bounded"
