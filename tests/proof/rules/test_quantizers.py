"""Codes of quantizers, as executed, against what they round: no code is off by more than its bound.

What is rounded is computed here in float64, from the written definition of each quantizer.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.bound import Bounding
from qgraph.proof.bounds.paired_models import paired

WEIGHTS = np.array([[3, -5, 7], [2, 11, -13], [-17, 1, 19], [23, -29, 31]], np.float32) / 16
SCALE = float(np.float32(0.37))

TEXT = """<ir_version: 10, opset_import: ["": 23, "qonnx.custom_op.general": 1]>
net (KIND[2,4] x) => (KIND[2,3] y) <KIND[4,3] w = {WEIGHTS}, KIND s = {SCALE}, EXTRA> {
    m = MatMul (x, w)
    QUANTIZER
}"""

FORMS = {
    "int8": ("int8 z = {0}", "q = QuantizeLinear (m, s, z) y = DequantizeLinear (q, s, z)"),
    "uint4": ("uint4 z = {8}", "q = QuantizeLinear (m, s, z) y = DequantizeLinear (q, s, z)"),
    "float8e4m3fn": (
        "float8e4m3fn z = {0}",
        "q = QuantizeLinear (m, s, z) y = DequantizeLinear (q, s, z)",
    ),
    "float4e2m1": (
        "int32 z = {0}",
        "q = QuantizeLinear <output_dtype = 23> (m, s) y = DequantizeLinear (q, s)",
    ),
    "Quant": (
        "float z = {0}, float b = {8}",
        'y = qonnx.custom_op.general.Quant <signed = 1, rounding_mode = "FLOOR"> (m, s, z, b)',
    ),
    "FloatQuant": (
        "float e = {4}, float n = {3}, float b = {7}, float t = {448}",
        "y = qonnx.custom_op.general.FloatQuant (m, s, e, n, b, t)",
    ),
    "FloatQuant, ceiled": (
        "float e = {2}, float n = {1}, float b = {1}, float t = {6}",
        'y = qonnx.custom_op.general.FloatQuant <rounding_mode = "CEIL"> (m, s, e, n, b, t)',
    ),
    "BipolarQuant": ("float z = {0}", "y = qonnx.custom_op.general.BipolarQuant (m, s)"),
}
GRIDS = {
    "int8": (1.0, np.arange(-128, 128)),
    "uint4": (1.0, np.arange(-8, 8)),
    "float8e4m3fn": (2.0**-9, None),
    "float4e2m1": (0.5, np.array([0, 1, 2, 3, 4, 6, 8, 12])),
    "Quant": (1.0, np.arange(-128, 128)),
    "FloatQuant": (2.0**-9, None),
    "FloatQuant, ceiled": (0.5, np.array([0, 1, 2, 3, 4, 6, 8, 12])),
    "BipolarQuant": (1.0, np.array([-1, 1])),
}
"""The smallest step and all codes in steps; None for e4m3."""


def grid_of(name: str) -> tuple[float, np.ndarray]:
    step, codes = GRIDS[name]
    if codes is None:
        normal = [(8 + n) * 2**e for e in range(15) for n in range(8)]
        codes = np.array([*range(8), *normal])
        codes = codes[codes <= 448 / step]
    both = codes if (codes < 0).any() else np.unique([codes, -codes])
    return step, both.astype(np.float64)


def model(name: str, scale: float, kind: str = "float") -> ir.Model:
    extra, quantizer = FORMS[name]
    numbers = [float(n) for n in WEIGHTS.reshape(-1)]
    if kind == "float16":
        numbers = [int(np.float16(n).view(np.uint16)) for n in numbers]
        scale = int(np.float16(scale).view(np.uint16))
    text = TEXT.replace("KIND", kind).replace("EXTRA", extra).replace("QUANTIZER", quantizer)
    text = text.replace("WEIGHTS", ", ".join(map(str, numbers))).replace("SCALE", str(scale))
    return ir.from_onnx_text(text)


def expect_codes_inside(name: str, kind: str, count: int) -> None:
    near = float(np.nextafter(np.float32(SCALE), np.float32(1)))
    if kind == "float16":
        near = SCALE * (1 + 2.0**-9)
    models = model(name, SCALE, kind), model(name, near, kind)
    pairing = paired(models, Bounding(ranges={"x": (-8, 8)}))
    segment = next(s for s in pairing.segments if s.roundings)
    assert segment.reason is None
    assert np.isfinite(segment.deviation).all()
    step, grid = grid_of(name)
    dtype = np.dtype(kind.replace("float", "float32") if kind == "float" else kind)
    scale = float(np.asarray(SCALE, dtype))
    runs, generator = qgraph.load(models[0]), np.random.default_rng(0)
    for _ in range(count):
        x = generator.uniform(-8, 8, (2, 4)).astype(dtype)
        executed = np.asarray(runs.run({"x": x}, backend="numpy")["y"], np.float64)
        before = x.astype(np.float64) @ WEIGHTS.astype(np.float64) / scale / step
        codes = np.rint(executed / scale / step)
        # the codes that numbers inside the bound may be rounded to
        off = segment.reference_error + 1e-9
        ends = [nearest(before + sign * off, grid, name) for sign in (-1, 1)]
        assert (ends[0] <= codes).all()
        assert (codes <= ends[1]).all()


def nearest(numbers: np.ndarray, grid: np.ndarray, name: str) -> np.ndarray:
    """Return the codes of numbers by a search in the list of codes."""
    if name == "BipolarQuant":
        return np.where(numbers >= 0, 1.0, -1.0)
    above = grid[np.minimum(np.searchsorted(grid, numbers), len(grid) - 1)]
    below = grid[np.maximum(np.searchsorted(grid, numbers, side="right") - 1, 0)]
    if name == "Quant":
        return below
    if "ceiled" in name:
        return above
    return np.where(numbers - below > above - numbers, above, below)


@pytest.mark.parametrize("name", FORMS)
def test_codes_lie_inside_the_bound(name):
    expect_codes_inside(name, "float", 20)


@pytest.mark.parametrize("name", ["int8", "uint4"])
def test_codes_of_float16_lie_inside_the_bound(name):
    expect_codes_inside(name, "float16", 20)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FORMS)
def test_many_codes_lie_inside_the_bound(name):
    expect_codes_inside(name, "float", 2000)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ("y, h, c = LSTM <hidden_size = 2> (x, w, r)", "LSTM has no bound"),
        ("q, s, z = DynamicQuantizeLinear (x) y = DequantizeLinear (q, s, z)", "its scale"),
        ("y = Det (x)", "Det has no bound"),
        ("e = ReduceSum <keepdims = 0> (x) y = Softmax (e)", "Softmax has no bound: its axis -1"),
        ("y = ReduceMean (x, axes)", "ReduceMean has no bound: its axis 3 is none of 3"),
        ("y = Sqrt (x)", "may not be positive"),
        ("y = Div (x, x)", "may be 0"),
    ],
)
def test_operators_without_a_bound_are_named(node, reason):
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        net (float[1,4,4] x) => (float y)
        <float[1,8,4] w = {{{", ".join(["1"] * 32)}}}, float[1,8,2] r = {{{", ".join(["1"] * 16)}}},
         int64[1] axes = {{3}}>
        {{ {node} }}"""
    models = ir.from_onnx_text(text), ir.from_onnx_text(text)
    (segment,) = paired(models, Bounding(ranges={"x": (-1, 1)})).segments
    assert reason in str(segment.reason)
