"""Minifloats at the end of segments: codes are counted as neighbours in the format."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

import qgraph

WEIGHTS = np.random.default_rng(0).integers(-127, 128, (8, 4)).astype(np.int8)
BIAS = (0.3, -0.2, 0.5, 1.0)
SCALE, STEP = np.float32(0.05), np.float32(0.11)
KINDS = {
    17: ml_dtypes.float8_e4m3fn,
    18: ml_dtypes.float8_e4m3fnuz,
    19: ml_dtypes.float8_e5m2,
}
"""Numbers of types in ONNX, and their arithmetic."""


def model(kind: int, factor: float, scale: float, first: float = BIAS[0]) -> ir.Model:
    """Return codes times decoded weights and a factor, with a bias, rounded to a minifloat."""
    bias = ", ".join(map(str, (first, *BIAS[1:])))
    return ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
        net (int8[3,8] x) => (float[3,4] y)
        <int8[8,4] w = {{{", ".join(map(str, WEIGHTS.reshape(-1)))}}}, int8 z = {{0}},
         float s = {{{SCALE}}}, float v = {{{scale}}}, float k = {{{factor}}},
         float t = {{{STEP}}}, float[4] b = {{{bias}}}> {{
            a = DequantizeLinear (x, s, z)
            u = DequantizeLinear (w, v, z)
            c = MatMul (a, u)
            d = Mul (c, k)
            e = Add (d, b)
            q = QuantizeLinear <output_dtype = {kind}> (e, t)
            y = DequantizeLinear (q, t)
        }}""")


def executed(kind: int, codes: np.ndarray, factor: float, scale: float, first: float) -> np.ndarray:
    """Return which number of the format each result is, with products added in sequence."""
    x, u = codes.astype(np.float32) * SCALE, WEIGHTS.astype(np.float32) * np.float32(scale)
    total = np.zeros((len(x), 4), np.float32)
    for k in range(8):
        total = total + x[:, k : k + 1] * u[k]
    real = (total * np.float32(factor) + np.float32([first, *BIAS[1:]])) / STEP
    form = KINDS[kind]
    largest = np.float32(ml_dtypes.finfo(form).max)
    bits = np.clip(real, -largest, largest).astype(form).view(np.uint8)
    places = (bits & 0x7F).astype(np.int64)
    return np.where(bits & 0x80, -places, places)


@pytest.mark.cases(fast=1, slow=3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [0.3, 0.301, 0.5])
def test_codes_differ_by_no_more_numbers_of_the_format_than_the_bound(kind, first):
    found = qgraph.prove(model(kind, 1.7, 0.01), model(kind, 1.0, 0.017, first), within="1step")
    bound = found.regions[0].bound
    random = np.random.default_rng(1)
    codes = random.integers(-128, 128, (200_000, 8)).astype(np.int8)
    codes[1::2] = codes[::2] // 64  # small sums, where the format has its smallest steps
    ours = executed(kind, codes, 1.7, 0.01, BIAS[0])
    theirs = executed(kind, codes, 1.0, 0.017, first)
    seen = int(np.abs(ours - theirs).max())
    assert seen <= bound.max_steps
    if first == BIAS[0]:
        # sums reach the largest numbers of the first two types only
        assert (bound.levels == 2 * executed_last(kind)) == (kind != 19)
    else:
        assert seen >= 1


def executed_last(kind: int) -> int:
    """Return which number of the format the largest one is."""
    return int(np.array(ml_dtypes.finfo(KINDS[kind]).max, KINDS[kind]).view(np.uint8))


def test_one_step_is_a_limit_for_e4m3():
    found = qgraph.prove(model(17, 1.7, 0.01), model(17, 1.0, 0.017), within="1step")
    assert found.verdict == "bounded"
    assert not found.beyond
    assert found.regions[0].bound.max_steps == 1
