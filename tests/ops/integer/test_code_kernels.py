"""Kernels of operators on codes: against integers, ONNX Runtime and onnx's reference."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from qgraph.errors import ExecutionError
from qgraph.execution.executor import Executor

pytestmark = pytest.mark.sums

SEEDS = range(25)


def run(case: Any) -> Any:
    return Executor(case.model).run(case.feeds)["y"]


@pytest.mark.cases(fast=3, slow=9)
@pytest.mark.runtime
def test_onnx_runtime_has_the_same_bits(case, ort, operator_name, scales):
    total = 0
    for seed in SEEDS:
        made = case(operator_name, seed, scales)
        expected = ort(made.model, made.feeds)
        found = run(made)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected, err_msg=f"seed {seed}")
        total += expected.size
    assert total > 100


@pytest.mark.runtime
@pytest.mark.parametrize("name", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_all_pairs_of_codes_as_in_onnx_runtime(node_case, ort, name, dtype):
    limits = np.iinfo(dtype)
    every = np.arange(limits.min, limits.max + 1).astype(dtype)
    a, b = np.repeat(every, 256), np.tile(every, 256)
    random = np.random.default_rng(3)
    for _ in range(6):
        s_a, s_b, s_y = (random.integers(1, 60, 3) / 100).astype(np.float32)
        z_a, z_b, z_y = random.integers(limits.min, limits.max + 1, 3).astype(dtype)
        step = s_y * np.float32(20 if name == "QLinearMul" else 1)
        arrays = [a, s_a, z_a, b, s_b, z_b, step, z_y]
        made = node_case(name, arrays, (0, 3), a.shape, dtype.upper(), domain="com.microsoft")
        np.testing.assert_array_equal(run(made), ort(made.model, made.feeds))


def rounded(value: float, zero_point: int, dtype: str) -> int:
    """Return a code of steps, half to even, saturated."""
    limits = np.iinfo(dtype)
    return min(max(round(value) + zero_point, limits.min), limits.max)


@pytest.mark.parametrize("seed", range(12))
def test_a_product_is_summed_in_integers_and_rounded_once(case, seed):
    made = case("QLinearMatMul", seed)
    known = {v.name: v.const_value.numpy() for v in made.model.graph.initializers.values()}
    a, b = made.feeds["i0"], known["i3"]
    n = b.shape[1]
    s_b, z_b = (np.broadcast_to(known[name], (n,)) for name in ("i4", "i5"))
    y = run(made)
    for i, j in itertools.product(range(len(a)), range(n)):
        pairs = zip(a[i].tolist(), b[:, j].tolist(), strict=True)
        acc = sum((p - int(known["i2"])) * (q - int(z_b[j])) for p, q in pairs)
        m = known["i1"] * s_b[j] / known["i6"]
        expected = rounded(float(np.float32(acc) * m), int(known["i7"]), str(a.dtype))
        assert y[i, j] == expected


def test_sums_wrap_around_as_int32(node_case):
    # 66,052 products of 255 * 255 are 2**31 + 47,547,652 or more
    a, b = np.full((1, 66052), 255, np.uint8), np.full((66052, 1), 255, np.uint8)
    made = node_case("MatMulInteger", [a, b], (0,), (1, 1), "INT32")
    exact = 66052 * 255 * 255
    assert exact > 2**32
    assert run(made).tolist() == [[exact - 2**32]]


def test_rows_have_zero_points_of_their_own(node_case):
    a, b = np.array([[1, 2], [3, 4]], np.uint8), np.array([[5, 6], [7, 8]], np.uint8)
    points = [np.array([1, 2], np.uint8), np.array([[5, 6]], np.uint8)]
    made = node_case("MatMulInteger", [a, b, *points], (0,), (2, 2), "INT32")
    # ([[0, 1], [1, 2]]) @ ([[0, 0], [2, 2]])
    assert run(made).tolist() == [[2, 2], [4, 4]]
    scales = [np.array([0.5, 1], np.float32), np.array([1, 2], np.float32)]
    arrays = [a, scales[0], points[0], b, scales[1], points[1], np.float32(1), np.uint8(10)]
    made = node_case("QLinearMatMul", arrays, (0,), (2, 2), "UINT8")
    assert run(made).tolist() == [[11, 12], [14, 18]]


@pytest.mark.parametrize(
    ("name", "place", "wrong", "message"),
    [
        ("QLinearMatMul", 1, np.float64(1), "a scale or bias is float64, expected float32"),
        ("QLinearMatMul", 2, np.int16(1), "zero point is int16 and its codes"),
        ("QLinearMatMul", 7, np.int32(1), "output zero point is int32, expected int8"),
        ("QLinearConv", 1, np.ones(2, np.float32), r"shape \[2\], expected one element"),
    ],
)
def test_what_does_not_fit_is_named(case, name, place, wrong, message):
    made = case(name, 1)
    made.model.graph.initializers[f"i{place}"].const_value = ir.tensor(wrong, name=f"i{place}")
    with pytest.raises(ExecutionError, match=rf"{name} .*in graph 'g'.*{message}"):
        run(made)


def reference(case: Any) -> Any:
    (y,) = ReferenceEvaluator(ir.to_proto(case.model)).run(None, case.feeds)
    return y


class TestReference:
    """Where onnx's reference evaluator gives other codes than ONNX Runtime, whom we follow."""

    @pytest.mark.runtime
    def test_it_adds_the_zero_point_before_it_rounds(self, node_case, ort):
        # 1 * 1 in half steps is a tie: 0 and the zero point 1 make 1; 1.5 rounds to 2
        one = np.uint8(1)
        half, zero = np.float32(0.5), np.uint8(0)
        arrays = [np.array([[1]], np.uint8), half, zero, np.array([[1]], np.uint8)]
        arrays += [np.float32(1), zero, np.float32(1), one]
        made = node_case("QLinearMatMul", arrays, (0,), (1, 1), "UINT8")
        assert (run(made).item(), reference(made).item()) == (1, 2)
        assert ort(made.model, made.feeds).item() == 1

    @pytest.mark.runtime
    def test_it_scales_in_float64(self, node_case, ort):
        # 75 times the factor is 0.5 in float32 and a little more in float64
        scales = [np.float32(s) for s in (0.01, 0.2, 0.3)]
        m = scales[0] * scales[1] / scales[2]
        assert np.float32(75) * m == np.float32(0.5)
        assert 75 * float(m) > 0.5
        zero = np.uint8(0)
        arrays = [np.array([[75]], np.uint8), scales[0], zero, np.array([[1]], np.uint8)]
        arrays += [scales[1], zero, scales[2], zero]
        made = node_case("QLinearMatMul", arrays, (0,), (1, 1), "UINT8")
        assert (run(made).item(), reference(made).item()) == (0, 1)
        assert ort(made.model, made.feeds).item() == 0

    @pytest.mark.parametrize("name", ["ConvInteger", "MatMulInteger"])
    def test_sums_are_the_same(self, case, name):
        for seed in range(6):
            made = case(name, seed)
            np.testing.assert_array_equal(run(made), reference(made))
