"""When sums become the same codes in one step and by way of real numbers."""

from __future__ import annotations

import numpy as np
import pytest

from qgraph.exactness import Exactness, Method
from qgraph.ops.integer.forms import compare_sums, compare_tables
from qgraph.ops.integer.products import read_product


def all_codes(bound: int, s_a: np.ndarray, s_b: np.ndarray, s_y: np.ndarray, z: np.ndarray):
    """Both forms for every sum, written out."""
    limits = np.iinfo(z.dtype)
    acc = np.arange(-bound, bound + 1).astype(np.float32)
    once = np.rint(acc * (s_a * s_b / s_y)) + float(z)
    real = np.rint((acc * (s_a * s_b)) / s_y) + float(z)
    return (np.clip(codes, limits.min, limits.max) for codes in (once, real))


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_the_differing_sums_are_counted(dtype):
    random = np.random.default_rng(0)
    differing = 0
    for _ in range(150):
        s_a, s_b = np.exp2(random.integers(-6, 0, 2)).astype(np.float32)
        s_y = np.asarray(random.integers(1, 90) / 100, np.float32)
        z = np.asarray(random.integers(0, 100)).astype(dtype)
        bound = int(random.integers(1, 60000))
        once, real = (list(codes) for codes in all_codes(bound, s_a, s_b, s_y, z))
        verdict = compare_sums(bound, np.asarray(s_a), np.asarray(s_b), s_y, z)
        count = sum(a != b for a, b in zip(once, real, strict=True))
        assert verdict.method is Method.EXHAUSTIVE
        assert verdict.differing_inputs == count
        assert verdict.exactness is (Exactness.NEAR if count else Exactness.BITS)
        if count:
            place = int(verdict.witness.input) + bound
            assert once[place] == verdict.witness.reference
            assert real[place] == verdict.witness.candidate
        differing += count
    assert differing > 0


@pytest.mark.parametrize(
    ("bound", "s_a", "s_b", "reason"),
    [
        (None, 0.5, 0.5, "the sums are not known"),
        (1 << 24, 0.5, 0.5, "the sums may reach 16777216"),
        (99, 0.1, 0.5, "scales that are no powers of two"),
        (99, 0.5, 0.3, "scales that are no powers of two"),
        (99, -0.5, 0.5, "scales that are no powers of two"),
        (99, 2.0**-60, 0.5, "scales that are no powers of two"),
        pytest.param((1 << 24) - 1, 2.0**-40, 1.0, "too many sums", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_claimed_without_a_proof(bound, s_a, s_b, reason):
    known = [np.asarray(value, np.float32) for value in (s_a, s_b, 0.7)]
    several = np.exp2(np.arange(40, dtype=np.float32) - 20) * known[1]
    verdict = compare_sums(bound, known[0], several, known[2], np.asarray(3, np.uint8))
    assert (verdict.exactness, verdict.method) == (Exactness.NEAR, Method.NONE)
    assert reason in verdict.reason


def test_tables_are_compared_by_their_largest_gap():
    expected = np.array([1, 2, 3], np.uint8)
    assert compare_tables(expected, expected, "codes").exactness is Exactness.BITS
    near = compare_tables(np.array([1, 3, 3], np.uint8), expected, "codes")
    assert (near.exactness, near.differing_inputs) == (Exactness.NEAR, 1)
    far = compare_tables(np.array([1, 2, 255], np.uint8), expected, "codes")
    assert far.exactness is Exactness.DIFFERENT


@pytest.mark.parametrize("name", ["ConvInteger", "MatMulInteger", "QLinearConv", "QGemm"])
@pytest.mark.parametrize("is_known", [True, False])
def test_no_codes_give_larger_sums_than_the_bound(case, name, is_known):
    for seed in range(10):
        made = case(name, seed)
        (node,) = made.model.graph
        place = 1 if name.endswith("Integer") else 3
        weights = made.model.graph.initializers[f"i{place}"]
        product = read_product(node)
        if not is_known:
            known, weights.const_value = product.bound, None
            assert product.bound >= known
            continue
        # The largest sum is reached where each code is as far from zero as it can be.
        a, b = product.a, product.b
        limits = np.iinfo(a.dtype)
        zero = 0 if a.zero_point is None else int(a.zero_point)
        far = max((limits.min - zero, limits.max - zero), key=abs)
        whole = b.known.astype(np.int64) - (0 if b.zero_point is None else b.zero_point)
        axes = tuple(range(1, whole.ndim))
        rows = whole if name == "QGemm" else whole.T if whole.ndim == 2 else whole
        assert product.bound == abs(far) * int(np.abs(rows).sum(axis=axes).max())
