from __future__ import annotations

import json
import math
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from qgraph.comparison.metrics import OutputComparison, compare, same, within


def floats(*numbers: float) -> Any:
    return np.asarray(numbers, np.float32)


def one(x: Any, y: Any, **options: Any) -> OutputComparison:
    return compare("y", [x], [y], **options)


def test_zeros_of_either_sign_and_nan_are_the_same() -> None:
    x, y = floats(0.0, math.nan, math.inf), floats(-0.0, math.nan, math.inf)
    assert same(x, y).all()
    assert one(x, y) == OutputComparison("y", 3, 0)
    assert one(x, y).equal


def test_differences_are_measured() -> None:
    found = one(floats(1, 2, 3, 4), floats(1, 2, 3.5, 3))
    assert (found.elements, found.mismatches, found.max_abs) == (4, 2, 1.0)
    # signal 30, error 1.25
    assert found.sqnr_db == pytest.approx(10 * math.log10(24))
    assert found.cosine == pytest.approx(27.5 / math.sqrt(30 * (1 + 4 + 12.25 + 9)))
    assert found.max_steps is None


@pytest.mark.parametrize(
    ("x", "y", "ulps"),
    [
        (floats(1), np.nextafter(floats(1), floats(2)), 1),
        (floats(2), np.nextafter(floats(2), floats(1)), 1),
        (floats(1e-45), floats(-1e-45), 2),
        (floats(3.4028235e38), floats(math.inf), 1),
        (floats(math.inf), floats(math.nan), 1),
        (floats(-3.4028235e38), floats(3.4028235e38), 2 * 0x7F7FFFFF),
        (np.asarray([1.0]), np.asarray([1 + 2**-52]), 1),
        (
            np.asarray([-1.7976931348623157e308]),
            np.asarray([1.7976931348623157e308]),
            2 * 0x7FEFFFFFFFFFFFFF,
        ),
        (np.asarray([1], np.float16), np.asarray([1 + 2**-10], np.float16), 1),
        (np.asarray([1], ml_dtypes.bfloat16), np.asarray([1 + 2**-7], ml_dtypes.bfloat16), 1),
        (np.asarray([-128], np.int8), np.asarray([127], np.int8), 255),
        (np.asarray([-8], ml_dtypes.int4), np.asarray([7], ml_dtypes.int4), 15),
        (np.asarray([True]), np.asarray([False]), 1),
    ],
)
def test_ulps_count_the_numbers_between(x: Any, y: Any, ulps: int) -> None:
    assert one(x, y).max_ulp == ulps
    assert one(y, x).max_ulp == ulps


def test_nan_on_one_side_is_infinitely_far_and_null_in_json() -> None:
    found = one(floats(1, 2), floats(1, math.nan))
    assert (found.mismatches, found.max_abs, found.sqnr_db) == (1, math.inf, -999.0)
    text = json.dumps(found.to_json(), allow_nan=False)
    assert json.loads(text)["max_abs"] is None


def test_steps_are_those_of_the_quantizer_also_per_channel() -> None:
    x, y = floats(1, 2).reshape(1, 2), floats(1.5, 2.5).reshape(1, 2)
    assert one(x, y, steps=[floats(0.25, 0.5)]).max_steps == 2.0
    assert one(x, x, steps=[floats(0.25, 0.5)]).max_steps == 0.0


def test_batches_are_counted_together() -> None:
    found = compare("y", [floats(1, 2), floats(3)], [floats(1, 2), floats(4)])
    assert (found.elements, found.mismatches) == (3, 1)


@pytest.mark.parametrize(
    ("x", "y", "note"),
    [
        (floats(1), np.asarray([1.0]), "type: reference float32, candidate float64"),
        (floats(1), floats(1, 1), r"shape: reference \[1\], candidate \[2\]"),
        (floats(1), [floats(1)], "only tensors"),
    ],
)
def test_what_cannot_be_compared_differs_and_says_why(x: Any, y: Any, note: str) -> None:
    found = one(x, y)
    assert not found.equal
    assert found.note is not None
    assert re.search(note, found.note)
    assert not within(x, y, atol=1e9, rtol=0)
    json.dumps(found.to_json(), allow_nan=False)


def test_strings_are_compared() -> None:
    x, y = np.asarray(["a", "b"], object), np.asarray(["a", "c"], object)
    assert one(x, y).mismatches == 1
    assert within(x, x, atol=0, rtol=0)
    assert not within(x, y, atol=9, rtol=9)


def test_within_is_relative_to_the_reference() -> None:
    x, y = floats(100, -0.0, math.nan, math.inf), floats(101, 0.0, math.nan, math.inf)
    assert within(x, y, atol=0, rtol=0.01)
    assert not within(x, y, atol=0, rtol=0.009)
    assert within(x, y, atol=1, rtol=0)
    assert not within(floats(math.inf), floats(1), atol=1e30, rtol=1)


def test_the_mean_counts_all_values_and_quantiles_those_below() -> None:
    x = np.zeros(1000, np.float32)
    y = x.copy()
    y[:200] = 0.25
    y[:5] = 3.0
    found = one(x, y)
    assert found.mean_abs == pytest.approx((195 * 0.25 + 5 * 3.0) / 1000)
    # of 1000 sorted differences the 500th is 0, the 900th and the 990th 0.25, the 999th 3
    assert found.quantiles == (0.0, 0.25, 0.25, 3.0)
    assert one(x, x).quantiles == (0.0, 0.0, 0.0, 0.0)


def test_quantiles_are_told_to_eleven_bits() -> None:
    generator = np.random.default_rng(3)
    x = np.zeros(5000, np.float32)
    y = generator.exponential(1.0, 5000).astype(np.float32)
    expected = np.sort(y)[[2499, 4499, 4949, 4994]]
    found = np.asarray(one(x, y).quantiles)
    assert (found <= expected).all()
    assert (found >= expected * (1 - 2**-10)).all()


def test_top1_agreement_counts_rows_of_scores() -> None:
    x = floats(1, 2, 3, 4, 9, 8).reshape(3, 2)
    y = floats(1, 2, 5, 4, 9, 8).reshape(3, 2)
    assert one(x, y).top1 == pytest.approx(2 / 3)
    assert one(x, x).top1 == 1.0
    assert one(x.reshape(1, 3, 2), y.reshape(1, 3, 2)).top1 == pytest.approx(2 / 3)
    assert one(x.ravel(), y.ravel()).top1 is None


def test_batches_give_what_all_of_them_at_once_give() -> None:
    generator = np.random.default_rng(1)
    x = generator.standard_normal((6, 4)).astype(np.float32)
    y = x + generator.choice([0, 0.01], (6, 4)).astype(np.float32)
    whole, parts = one(x, y), compare("y", np.split(x, 3), np.split(y, 3))
    assert (whole.mismatches, whole.max_ulp) == (parts.mismatches, parts.max_ulp)
    assert whole.sqnr_db == pytest.approx(parts.sqnr_db)
    assert whole.cosine == pytest.approx(parts.cosine)
    assert (whole.quantiles, whole.top1) == (parts.quantiles, parts.top1)


def test_the_relative_error_is_the_norm_of_the_difference() -> None:
    assert one(floats(3, 4), floats(3, 4.5)).relative == pytest.approx(0.1)
    assert one(floats(3, 4), floats(3, 4)).relative == 0.0
    assert one(floats(0, 0), floats(0, 1)).relative is None
