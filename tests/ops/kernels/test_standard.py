from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from qgraph.execution.executor import Executor
from qgraph.ops.kernels import standard as kernels

pytestmark = pytest.mark.sums

PLACEMENTS = [
    "",
    "strides = [2, 2]",
    "pads = [1, 1, 1, 1]",
    "pads = [0, 1, 2, 1], strides = [2, 1]",
    "dilations = [2, 2], pads = [2, 2, 2, 2]",
    'auto_pad = "SAME_UPPER", strides = [2, 2]',
    'auto_pad = "SAME_LOWER", strides = [2, 3]',
    'auto_pad = "VALID"',
]


def model(text: str, opset: int = 19) -> ir.Model:
    return ir.from_onnx_text(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')


def run(text: str, opset: int = 19, **inputs: Any) -> Any:
    (result,) = Executor(model(text, opset)).run(inputs).values()
    return result


def ort(text: str, opset: int = 19, **inputs: Any) -> Any:
    runtime = pytest.importorskip("onnxruntime")
    proto = ir.to_proto(model(text, opset))
    session = runtime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, inputs)[0]


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.runtime
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize(("groups", "channels"), [(1, 6), (2, 6), (4, 8)])
def test_convolution_is_that_of_onnx_runtime(placement: str, groups: int, channels: int) -> None:
    attributes = ", ".join(filter(None, [f"group = {groups}", placement]))
    text = f"""g (float[N,4,H,W] x, float[M,C,3,2] w, float[M] b) => (float[N,M,h,v] y) {{
        y = Conv <{attributes}> (x, w, b) }}"""
    inputs = {"x": normal(3, 4, 9, 10), "w": normal(channels, 4 // groups, 3, 2, seed=1)}
    inputs["b"] = normal(channels, seed=2)
    np.testing.assert_allclose(run(text, **inputs), ort(text, **inputs), rtol=1e-5, atol=1e-5)


TRANSPOSED = [
    "strides = [2, 3], output_padding = [1, 2]",
    'strides = [3, 2], output_padding = [2, 1], auto_pad = "SAME_UPPER"',
    "strides = [2, 2], output_shape = [17, 21]",
    'strides = [2, 2], output_shape = [18, 19], auto_pad = "SAME_UPPER"',
]


@pytest.mark.runtime
@pytest.mark.parametrize("placement", [*PLACEMENTS[:-2], *TRANSPOSED])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_transposed_convolution_is_that_of_onnx_runtime(placement: str, groups: int) -> None:
    attributes = ", ".join(filter(None, [f"group = {groups}", placement]))
    text = f"""g (float[N,4,H,W] x, float[4,C,3,2] w, float[M] b) => (float[N,M,h,v] y) {{
        y = ConvTranspose <{attributes}> (x, w, b) }}"""
    inputs = {"x": normal(3, 4, 9, 10), "w": normal(4, 3, 3, 2, seed=1)}
    inputs["b"] = normal(3 * groups, seed=2)
    np.testing.assert_allclose(run(text, **inputs), ort(text, **inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.runtime
@pytest.mark.parametrize(
    "placement", [*PLACEMENTS, *(f"ceil_mode = 1, {p}" for p in PLACEMENTS[1:5])]
)
@pytest.mark.parametrize(
    "pool",
    [
        "AveragePool <count_include_pad = 0, ",
        "AveragePool <count_include_pad = 1, ",
        "MaxPool <",
    ],
)
def test_pooling_is_that_of_onnx_runtime(placement: str, pool: str) -> None:
    attributes = ", ".join(filter(None, ["kernel_shape = [3, 3]", placement]))
    text = f"""g (float[N,4,H,W] x) => (float[N,4,h,v] y) {{
        y = {pool} {attributes}> (x) }}"""
    x = normal(2, 4, 9, 10)
    np.testing.assert_allclose(run(text, x=x), ort(text, x=x), rtol=1e-6, atol=1e-6)


def test_convolution_over_one_axis_equals_the_sum_written_out() -> None:
    x, w = normal(2, 3, 7), normal(4, 3, 2, seed=1)
    y = run("g (float[N,3,L] x, float[4,3,2] w) => (float[N,4,l] y) { y = Conv (x, w) }", x=x, w=w)
    wide = np.zeros((2, 4, 6))
    for place in range(6):
        for k in range(2):
            wide[:, :, place] += x[:, :, place + k].astype(float) @ w[:, :, k].T.astype(float)
    np.testing.assert_allclose(y, wide, rtol=1e-5, atol=1e-5)


def test_each_sample_of_a_convolution_is_independent_of_its_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "_COLUMN_BYTES", 5000)
    text = "g (float[N,3,H,W] x, float[4,3,3,3] w) => (float[N,4,h,v] y) { y = Conv (x, w) }"
    x, w = normal(7, 3, 8, 8), normal(4, 3, 3, 3, seed=1)
    alone = [run(text, x=x[n : n + 1], w=w) for n in range(7)]
    np.testing.assert_array_equal(run(text, x=x, w=w), np.concatenate(alone))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_products_of_16_bits_are_summed_in_float32(dtype: Any) -> None:
    """2048 + 1 is not a float16, nor a bfloat16: summed in 16 bits the ones would be lost."""
    a = np.asarray([[2048] + [1] * 64], dtype)
    b = np.ones((65, 1), dtype)
    assert kernels.matmul(a, b) == np.asarray(2112, dtype)


def test_products_do_not_depend_on_memory_layout() -> None:
    a, b = normal(5, 300), normal(300, 7, seed=1)
    expected = kernels.matmul(a, b)
    np.testing.assert_array_equal(
        kernels.matmul(np.asfortranarray(a), np.asfortranarray(b)), expected
    )


@pytest.mark.parametrize("transposed", ["transA = 1", "transB = 1", "transA = 1, transB = 1"])
def test_gemm_scales_and_adds(transposed: str) -> None:
    a, b, c = normal(4, 4), normal(4, 4, seed=1), normal(4, seed=2)
    left = a.T if "transA" in transposed else a
    right = b.T if "transB" in transposed else b
    text = f"""g (float[4,4] a, float[4,4] b, float[4] c) => (float[4,4] y) {{
        y = Gemm <{transposed}, alpha = 0.5, beta = 2.0> (a, b, c) }}"""
    expected = 0.5 * (left.astype(float) @ right) + 2 * c.astype(float)
    np.testing.assert_allclose(run(text, a=a, b=b, c=c), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("opset", [9, 14])
def test_batch_normalization_uses_the_given_statistics(opset: int) -> None:
    """At opset 9 the absence of further outputs means inference."""
    x, scale, bias, mean = normal(5, 3), normal(3, seed=1), normal(3, seed=2), normal(3, seed=3)
    var = np.asarray([0.5, 1, 2], np.float32)
    text = """g (float[N,3] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[N,3] y) {
        y = BatchNormalization <epsilon = 0.25> (x, s, b, m, v) }"""
    wide = (x.astype(float) - mean) / np.sqrt(var + 0.25) * scale + bias
    y = run(text, opset, x=x, s=scale, b=bias, m=mean, v=var)
    np.testing.assert_allclose(y, wide, rtol=1e-5, atol=1e-5)


def test_local_response_normalization_sums_over_neighbouring_channels() -> None:
    x = normal(1, 6, 2, 2) * 5
    text = """g (float[N,6,2,2] x) => (float[N,6,2,2] y) {
        y = LRN <size = 4, alpha = 0.5, beta = 0.5, bias = 2.0> (x) }"""
    wide = np.empty(x.shape)
    for c in range(6):
        total = np.square(x[:, max(0, c - 1) : c + 3].astype(float)).sum(axis=1)
        wide[:, c] = x[:, c] / np.sqrt(2 + 0.5 / 4 * total)
    np.testing.assert_allclose(run(text, x=x), wide, rtol=1e-5)


def test_a_window_that_does_not_fit_is_named() -> None:
    text = """g (float[N,1,H,W] x) => (float[N,1,h,v] y) {
        y = MaxPool <kernel_shape = [5, 5]> (x) }"""
    with pytest.raises(Exception, match=r"MaxPool producing 'y'.*5 elements does not fit axis 2"):
        run(text, x=normal(1, 1, 4, 8))


@pytest.mark.runtime
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_indices_of_a_pool_are_those_of_onnx_runtime(placement: str, order: int) -> None:
    attributes = ", ".join(filter(None, [f"storage_order = {order}", placement]))
    text = f"""g (float[N,C,H,W] x) => (int64[N,C,h,v] i) {{
        y, i = MaxPool <kernel_shape = [3, 3], {attributes}> (x) }}"""
    x = np.rint(normal(2, 3, 6, 7))  # with equal elements
    np.testing.assert_array_equal(run(text, 22, x=x), ort(text, 22, x=x))
