"""Normalizations that onnx's reference computes wrongly."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph import Tolerances
from tests.ops.kernels.test_standard import normal, ort, run

FAR = [[-3e38, 1, 2, -2], [1000, -1000, 0, 999.5], [0, 0, 0, 0], [1e-30, -2e-30, 0, 3e-38]]
KINDS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
NAMES = {np.float32: "float", np.float64: "double", np.float16: "float16"}


def compute(node: str, x: Any, opset: int = 22) -> Any:
    name = NAMES.get(x.dtype.type, "bfloat16")
    text = f"g ({name}{list(x.shape)} x) => ({name}{list(x.shape)} y) {{ y = {node} (x) }}"
    return run(text, opset, x=x)


@pytest.mark.parametrize("kind", KINDS)
def test_the_logarithm_of_a_softmax_that_is_0_is_finite(kind: Any) -> None:
    x = np.asarray([[0, -200, -1000, 30]]).astype(kind)
    # the power of 30 is e**30 = 1e13 times that of 0, and the other powers are nothing beside it
    expected = np.asarray([[-30, -230, -1030, 0]]).astype(kind)
    found = compute("LogSoftmax", x).astype(np.float64)
    np.testing.assert_allclose(found, expected.astype(np.float64), 1e-12, 1e-12)


@pytest.mark.parametrize(("opset", "axis", "axes"), [(22, 1, (1,)), (11, 1, (1, 2)), (11, 0, None)])
def test_log_softmax_sums_over_its_axes(opset: int, axis: int, axes: Any) -> None:
    x = normal(2, 3, 4) * 5
    wide = x.astype(np.float64)
    expected = wide - np.log(np.exp(wide).sum(axis=axes, keepdims=True))
    found = compute(f"LogSoftmax <axis = {axis}>", x, opset)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p", [1, 2])
def test_a_norm_is_that_of_magnitudes(kind: Any, p: int) -> None:
    x = (normal(3, 4) - 0.5).astype(kind)
    x[1] = 0
    wide = x.astype(np.float64)
    norms = np.linalg.norm(wide, ord=p, axis=-1, keepdims=True)
    expected = np.divide(wide, norms, where=norms > 0, out=np.zeros_like(wide))
    tolerance = 8 * float(ml_dtypes.finfo(kind).eps)
    found = compute(f"LpNormalization <p = {p}>", x).astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=tolerance)


@pytest.mark.runtime
@pytest.mark.parametrize("node", ["LogSoftmax", "LpNormalization", "LpNormalization <p = 1>"])
def test_numbers_of_any_size_give_what_onnx_runtime_gives(node: str) -> None:
    text = f"g (float[4,4] x) => (float[4,4] y) {{ y = {node} (x) }}"
    x = np.asarray(FAR, np.float32)
    np.testing.assert_allclose(run(text, 22, x=x), ort(text, 22, x=x), rtol=1e-6)


def test_a_bound_of_a_log_softmax_of_far_numbers_holds() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (int8[4,8] x) => (float[4,8] y) <float s = {10}, int8 z = {0}> {
            a = DequantizeLinear (x, s, z)
            y = LogSoftmax (a)
        }"""
    model = ir.from_onnx_text(text)
    x = np.random.default_rng(0).integers(-128, 128, (4, 8)).astype(np.int8)
    within = Tolerances(within="1step")
    report = qgraph.check(model, model, {"x": x}, backend="numpy", tolerances=within)
    assert report.bounds is not None
    assert [s.violated for s in report.bounds.segments] == [None]
    assert report.verdict == "equal"
