"""Products of rows between two Reshapes, as ONNX Runtime's optimizer writes a MatMul."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import qgraph

pytestmark = pytest.mark.runtime

RANDOM = np.random.default_rng(0)
WEIGHTS = RANDOM.integers(-127, 128, (4, 8))
BIAS = RANDOM.normal(size=8).astype(np.float32)
ENDS = {
    "rows": "y = QuantizeLinear (n, s_y, z)",
    "heads": """h = Reshape (n, heads) t = Transpose <perm = [0, 2, 1, 3]> (h)
        y = QuantizeLinear (t, s_y, z)""",
    "other rows": "h = Reshape (n, others) y = QuantizeLinear (h, s_y, z)",
}
REFERENCE = "m = MatMul (a, v) n = Add (m, b)"
ROWS = "r = Reshape (a, rows) g = Gemm (r, v, b) n = Reshape (g, whole)"
CHANGED = {
    "other rows": "o = Transpose <perm = [1, 0, 2]> (a) r = Reshape (o, rows) g = Gemm (r, v, b)",
    "another last axis": """o = Reshape (a, turned) p = Transpose <perm = [0, 2, 1]> (o)
        r = Reshape (p, rows) g = Gemm (r, v, b)""",
}


def model(product: str, end: str, *, size: int | str = 2) -> ir.Model:
    weights, bias = (", ".join(map(str, array.ravel())) for array in (WEIGHTS, BIAS))
    return ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
        net (int8[{size},3,4] x) => (int8 y)
        <int8[4,8] w = {{{weights}}}, float[8] b = {{{bias}}}, float s = {{0.05}},
         float s_w = {{0.011}}, float s_y = {{0.3}}, int8 z = {{0}}, int64[2] rows = {{-1, 4}},
         int64[3] whole = {{-1, 3, 8}}, int64[4] heads = {{-1, 3, 2, 4}},
         int64[3] others = {{-1, 3, 4}}, int64[3] turned = {{-1, 4, 3}}> {{
            a = DequantizeLinear (x, s, z)
            v = DequantizeLinear (w, s_w, z)
            {product} {ENDS[end]}
        }}""")


def session(
    model: bytes, level: ort.GraphOptimizationLevel, path: str = ""
) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = level
    options.optimized_model_filepath = path
    return ort.InferenceSession(model, options)


def outputs(model: ir.Model) -> np.ndarray:
    """Return what ONNX Runtime computes of random codes."""
    runtime = session(
        ir.to_proto(model).SerializeToString(), ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    )
    codes = np.random.default_rng(1).integers(-128, 128, (500, 2, 3, 4)).astype(np.int8)
    return np.stack([runtime.run(None, {"x": x})[0] for x in codes]).astype(np.int64)


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("end", ENDS)
def test_product_of_reshaped_rows_is_bounded(end):
    sides = model(REFERENCE, end), model(ROWS, end)
    found = qgraph.prove(*sides, within="1step")
    assert found.verdict == "bounded"
    assert not found.beyond
    deviation = max(region.bound.deviation_steps for region in found.regions if region.bound)
    assert deviation < 0.001
    one, other = map(outputs, sides)
    assert np.abs(one - other).max() <= 1


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("change", CHANGED)
def test_products_of_other_rows_are_not(change):
    sides = model(REFERENCE, "rows"), model(f"{CHANGED[change]} n = Reshape (g, whole)", "rows")
    one, other = map(outputs, sides)
    assert np.abs(one - other).max() > 100
    found = qgraph.prove(*sides, within="200step")
    assert found.verdict not in ("proved", "bounded")


def test_rewriting_of_the_optimizer_is_bounded(tmp_path: Path):
    """A MatMul of several axes and an Add become a Gemm between two Reshapes."""
    reference = model(REFERENCE, "heads")
    path = tmp_path / "optimized.onnx"
    level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session(ir.to_proto(reference).SerializeToString(), level, str(path))
    assert [n.op_type for n in onnx.load(path).graph.node].count("Gemm") == 1
    found = qgraph.prove(reference, path, within="1step")
    assert found.verdict == "bounded"
    assert not found.beyond


@pytest.mark.parametrize("end", ENDS)
def test_open_sizes_stay_open(end):
    sides = model(REFERENCE, end, size="N"), model(ROWS, end, size="N")
    found = qgraph.prove(*sides, within="1step")
    assert found.verdict == "bounded"
    assert not found.beyond


ROW_CODES = np.array([[3, -127, 40], [0, 5, 127], [-127, 1, 9], [64, 127, -2]])
ROW_RANGES = np.array([0.9, 0.35, 0.5, 1.7], np.float32)
TURNED = """<ir_version: 10, opset_import: ["": 21, "org.openvinotoolkit": 1]>
    net (float[1, 5, 3] x) => (float[1, 2, 5, 2] y)
    <float s = {{0.02}}, uint8 z = {{128}}, float t = {{0.05}}, int64[4] h = {{1, 5, 2, 2}},
     {stored}> {{
        q = QuantizeLinear (x, s, z)
        d = DequantizeLinear (q, s, z)
        w = {weights}
        v = Transpose <perm = [1, 0]> (w)
        m = MatMul (d, v)
        r = Reshape (m, h)
        p = Transpose <perm = [0, 2, 1, 3]> (r)
        c = QuantizeLinear (p, t, z)
        y = DequantizeLinear (c, t, z)
    }}"""


def ideal_shift(weights: np.ndarray, low: np.ndarray, high: np.ndarray, codes: np.ndarray) -> float:
    """Return how far weights of FakeQuantize are from codes with the scale of its steps."""

    def listed(array: np.ndarray) -> str:
        return ", ".join(map(repr, array.astype(np.float32).reshape(-1).tolist()))

    ranges = f"float[4, 1] l = {{{listed(low)}}}, float[4, 1] u = {{{listed(high)}}}"
    reference = TURNED.format(
        stored=f"float[4, 3] f = {{{listed(weights)}}}, {ranges}",
        weights="org.openvinotoolkit.FakeQuantize <levels = 255> (f, l, u, l, u)",
    )
    scales, stored = (high - low) / np.float32(254), ", ".join(map(str, codes.reshape(-1)))
    candidate = TURNED.format(
        stored=f"int8[4, 3] k = {{{stored}}}, float[4] e = {{{listed(scales)}}}",
        weights="DequantizeLinear <axis = 0> (k, e)",
    )
    proof = qgraph.prove(*map(ir.from_onnx_text, (reference, candidate)), within="1step")
    (bound,) = [region.bound for region in proof.regions if region.bound]
    return float(bound.ideal_shift)


@pytest.mark.parametrize("more", [0, 1])
def test_weights_of_fake_quantize_are_codes_and_scales(more):
    weights = ROW_CODES * np.float64(ROW_RANGES)[:, None] / 127 * 1.001
    codes = ROW_CODES + more * (np.arange(12).reshape(4, 3) == 11)
    # a weight of one more, times data of -2.56, in steps of 0.05
    shift = more * float(ROW_RANGES[3]) / 127 * 2.56 / 0.05
    found = ideal_shift(weights, -ROW_RANGES, ROW_RANGES, codes)
    assert shift - 1e-6 <= found < shift + 2e-4


def test_weights_of_fake_quantize_between_multiples_of_their_scale_are_no_codes():
    """The range starts at -126.8 steps, so each weight is 0.2 steps from the code beside it."""
    low, high = -ROW_RANGES, ROW_RANGES * np.float32(1.003)
    scales = np.float64(high - low)[:, None] / 254
    weights = (ROW_CODES + 127) * scales + np.float64(low)[:, None]
    codes = np.rint(weights / scales).astype(int)
    shift = 2.54 / 0.05 * np.abs(weights - codes * scales).sum(axis=1).max()
    assert 0.2 < shift <= ideal_shift(weights, low, high, codes)
