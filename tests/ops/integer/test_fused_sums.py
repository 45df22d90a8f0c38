"""QLinearAdd where a sum in float64 is not exact, and rounding it again would give another code."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from qgraph.execution.executor import Executor

LONG = np.float32(5237765 * 2.0**-55)
"""205 times this is 2**-25 * (1 + 2**-30): a half unit of 0.5 in float32, and little more."""


def rounded_exactly(value: Fraction) -> np.float32:
    """Return the nearest float32 number, of two the one with an even last bit."""
    near = np.float32(float(value))
    around = [np.nextafter(near, np.float32(end)) for end in (-np.inf, np.inf)]
    return min(
        [near, *around],
        key=lambda x: (abs(Fraction(float(x)) - value), int(x.view(np.int32)) & 1),
    )


@pytest.fixture
def added(node_case):
    """``added(s_b)``: 205 in steps of ``LONG`` and 1 in steps of ``s_b``, in steps of 1."""
    code = np.uint8

    def make(s_b):
        a, b = np.full(40, 205, code), np.full(40, 1, code)
        arrays = [a, LONG, code(0), b, np.float32(s_b), code(0), np.float32(1), code(0)]
        return node_case("QLinearAdd", arrays, (0, 3), a.shape, "UINT8", domain="com.microsoft")

    return make


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7])
def test_a_sum_just_above_a_tie_goes_up(added, n):
    s_b = np.float32(n + 0.5)
    exact = Fraction(205) * Fraction(float(LONG)) + Fraction(float(s_b))
    expected = round(float(rounded_exactly(exact)))
    made = added(s_b)
    assert (Executor(made.model).run(made.feeds)["y"] == expected).all()
    if n == 0:
        assert expected == 1  # rounded twice, it is 0


@pytest.mark.runtime
def test_onnx_runtime_rounds_once(added, ort):
    made = added(0.5)
    np.testing.assert_array_equal(
        Executor(made.model).run(made.feeds)["y"], ort(*vars(made).values())
    )
