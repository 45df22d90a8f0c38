"""Trunc as pairs of QuantizeLinear and DequantizeLinear, and in float operators."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from qgraph.reports import SiteStatus
from qgraph.transforms.convert import ConvertDialect

STEP, DROPPED, OUT_BITS = np.float32(0.0123), 4, 4


def trunc(mode: str, zero_point: float = 0, *, signed: int = 1, version: int = 2) -> str:
    inputs = "x, s, z, i, t, o" if version == 2 else "x, s, z, i, o"
    return f"""<ir_version: 8, opset_import: ["": 13, "qonnx.custom_op.general": {version}]>
        g (float[1, 2, 3000] x) => (float[1, 2, 3000] y)
        <float s = {{{STEP!s}}}, float z = {{{zero_point}}}, float i = {{8}},
         float o = {{{OUT_BITS}}}, float t = {{{STEP * np.float32(2**DROPPED)!s}}}> {{
            y = qonnx.custom_op.general.Trunc
                <rounding_mode = "{mode}", signed = {signed}> ({inputs})
        }}"""


def thresholds(zero_point: float) -> np.ndarray:
    """Points of the input grid and the middles between them, with two neighbours on each side."""
    steps = np.arange(-300, 300, 0.5) - zero_point
    around = [np.float32(steps * np.float64(STEP))]
    for end in (np.float32(np.inf), np.float32(-np.inf)):
        around.append(np.nextafter(around[0], end))
        around.append(np.nextafter(around[-1], end))
    special = np.float32([0.0, -0.0, np.inf, -np.inf, 3e38, -3e38, 1e-45])
    return np.resize(np.concatenate([special, *around]), 6000).reshape(1, 2, 3000)


def by_integers(x: np.ndarray, mode: str, *, signed: int) -> np.ndarray:
    """Zero point 0: the codes by integer arithmetic from the float32 quotient."""
    codes = np.rint(x / STEP).astype(np.float64)
    below = np.floor(codes / 2**DROPPED)
    rest = codes - below * 2**DROPPED
    half = 2 ** (DROPPED - 1)
    up = {
        "FLOOR": rest < 0,
        "CEIL": rest > 0,
        "ROUND": (rest > half) | ((rest == half) & (below % 2 == 1)),
    }[mode]
    lo, hi = (-(2 ** (OUT_BITS - 1)), 2 ** (OUT_BITS - 1) - 1) if signed else (0, 2**OUT_BITS - 1)
    q = np.clip(below + up, lo, hi).astype(np.float32)
    return q * (STEP * np.float32(2**DROPPED))


MODES = ["FLOOR", "CEIL", "ROUND", "UP", "DOWN", "HALF_UP", "HALF_DOWN"]


@pytest.mark.cases(fast=2, slow=11)
@pytest.mark.parametrize(
    ("mode", "zero_point", "signed"), list(itertools.product(MODES, [0, 3, 2.5], [0, 1]))
)
def test_to_qdq_is_exact(check_pass, mode, zero_point, signed):
    model, report = check_pass(
        ConvertDialect(to="qdq"),
        trunc(mode, zero_point, signed=signed),
        inputs={"x": thresholds(zero_point)},
    )
    (entry,) = report.sites
    assert entry.outcome is SiteStatus.CHANGED
    assert "QuantizeLinear" in entry.spelling
    assert "Quantize" in "".join(node.op_type for node in model.ir.graph)


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize(
    ("mode", "ops"),
    [
        ("FLOOR", ["Div", "Round", "Sub", "QuantizeLinear", "Clip", "DequantizeLinear"]),
        ("CEIL", ["Div", "Round", "Sub", "QuantizeLinear", "Clip", "DequantizeLinear"]),
        ("ROUND", ["Div", "Round", "QuantizeLinear", "Clip", "DequantizeLinear"]),
    ],
)
@pytest.mark.parametrize("signed", [0, 1])
def test_codes_are_those_of_integer_arithmetic(check_pass, mode, ops, signed):
    x = thresholds(0)
    model, _ = check_pass(
        ConvertDialect(to="qdq"), trunc(mode, signed=signed), ops=ops, inputs={"x": x}
    )
    finite = np.abs(x) < 1e6
    expected = by_integers(np.where(finite, x, np.float32(0)), mode, signed=signed)
    found = model.run({"x": x}, backend="numpy")["y"]
    np.testing.assert_array_equal(found[finite], expected[finite])


@pytest.mark.parametrize("mode", ["FLOOR", "HALF_UP"])
def test_version_1_has_no_clamp_and_stays_in_float(check_pass, mode):
    model, _ = check_pass(ConvertDialect(to="qdq"), trunc(mode, 3, version=1))
    assert not {node.op_type for node in model.ir.graph} & {"QuantizeLinear", "Clip"}
