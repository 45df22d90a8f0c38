"""All inputs one by one, against plain NumPy and against branch and bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from qgraph.exactness import Exactness
from qgraph.numerics.float32 import from_keys, to_keys
from qgraph.proof.functions import enumeration
from qgraph.proof.functions.decide import decide
from qgraph.proof.functions.enumeration import effort, enumerate_inputs
from qgraph.proof.functions.expression import Builder, Expr
from qgraph.proof.functions.level import Graded, grade
from qgraph.proof.functions.pair import FunctionPair
from qgraph.reasons import Undecidable

F = np.float32
TENTH = F(0.1)

Functions = tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]

PAIRS: dict[str, Functions] = {
    "a sum and a product": (lambda op, x: op.Mul(x, 3.0), lambda op, x: op.Add(op.Add(x, x), x)),
    "a factor near one": (lambda op, x: x, lambda op, x: op.Mul(x, F(1.0000001))),
    "orders of a gate": (
        lambda op, x: op.Div(op.Mul(x, op.Min(op.Max(op.Add(x, 3.0), 0.0), 6.0)), 6.0),
        lambda op, x: op.Mul(x, op.Div(op.Min(op.Max(op.Add(x, 3.0), 0.0), 6.0), 6.0)),
    ),
    "NaN on the way": (
        lambda op, x: op.Mul(op.Mul(x, F(1e37)), 0.0),
        lambda op, x: op.Mul(op.Mul(x, F(1e37)), F(1e-37)),
    ),
    "NaN on both sides": (
        lambda op, x: op.Sub(op.Mul(x, F(1e37)), op.Mul(x, F(1e37))),
        lambda op, x: op.Mul(op.Mul(x, F(1e37)), 0.0),
    ),
    "NaN everywhere": (lambda op, x: op.Mul(x, F(np.nan)), lambda op, x: op.Add(x, F(1))),
    "NaN on the other side": (lambda op, x: x, lambda op, x: op.Neg(op.Mul(x, F(np.nan)))),
    "a rounding beside none": (lambda op, x: op.Div(op.Round(x), 3.0), lambda op, x: op.Div(x, 3)),
    "results of different sign": (lambda op, x: x, lambda op, x: op.Neg(x)),
    "a branch": (
        lambda op, x: op.Where(op.Less(x, 0.0), op.Mul(x, TENTH), x),
        lambda op, x: op.Max(x, op.Mul(x, TENTH)),
    ),
}

NUMPY_OPS: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Min": np.minimum,
    "Max": np.maximum,
    "Neg": np.negative,
    "Round": np.rint,
    "Less": np.less,
    "Where": np.where,
}


class Plain:
    """Computes with NumPy what a builder would write down."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*operands: Any) -> Any:
            return NUMPY_OPS[name](*(F(o) if isinstance(o, (int, float)) else o for o in operands))

        return call


def expressions(functions: Functions) -> tuple[Expr, Expr]:
    builder = Builder()
    first, second = (function(builder, builder.input) for function in functions)
    return first, second


def blocks(finite: int, size: int = 1 << 14) -> Iterator[np.ndarray]:
    for sign in (0, 1 << 31):
        for start in range(sign, sign + finite, size):
            yield np.arange(start, min(start + size, sign + finite), dtype=np.uint32).view(F)


def counted(functions: Functions, finite: int) -> tuple[int, int, int | None]:
    """Count what differs in value and in the sign of zero, and the largest distance in floats."""
    differing = signs = 0
    worst: int | None = 0
    with np.errstate(all="ignore"):
        for x in blocks(finite):
            a, b = (function(Plain(), x) for function in functions)
            nan = np.isnan(a), np.isnan(b)
            differ = (a != b) & ~(nan[0] & nan[1])
            differing += int(differ.sum())
            signs += int(((a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))).sum())
            if (differ & (nan[0] | nan[1])).any():
                worst = None
            elif worst is not None and differ.any():
                # both zeros are one float
                places = [keys + (keys < 0) for keys in (to_keys(a), to_keys(b))]
                worst = max(worst, int(np.abs(places[0] - places[1])[differ].max()))
    return differing, signs, worst or None


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    """Leave fewer inputs, from zero to the number of this key, of either sign, in small blocks."""
    finite = 1 << 20
    monkeypatch.setattr(enumeration, "_BLOCK", 1 << 14)
    monkeypatch.setattr(enumeration, "_FINITE", finite)
    return finite


def scaled(functions: Functions) -> Functions:
    """Return the functions of subnormal inputs that are blown up, which reach all magnitudes."""
    reach = F(2.0**127)

    def of(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        return lambda op, x: function(op, op.Mul(op.Mul(x, reach), 256.0))

    return of(functions[0]), of(functions[1])


@pytest.mark.parametrize("name", PAIRS)
def test_counts_are_those_of_numpy(name: str, small: int) -> None:
    functions = scaled(PAIRS[name])
    found = enumerate_inputs(*expressions(functions))
    expected = counted(functions, small)
    assert (found.differing, found.zero_sign, found.largest_ulps) == expected
    assert found.enumerated
    assert found.undecided is None


@pytest.mark.parametrize("zero_point", [0.0, 3.0])
def test_step_functions_are_counted_as_branch_and_bound_does(zero_point: float, small: int) -> None:
    b = Builder()
    x = b.Mul(b.Mul(b.input, F(2.0**127)), 4.0)
    quotient = b.Div(x, TENTH)
    low, high = F(-128), F(127)
    first = b.Sub(b.Round(b.Min(b.Max(b.Add(quotient, zero_point), low), high)), zero_point)
    codes = b.Min(b.Max(b.Add(b.Round(quotient), zero_point), low), high)
    second = b.Sub(b.Cast(b.Cast(codes, to="INT8"), to="FLOAT"), zero_point)
    pair = b.Mul(first, TENTH), b.Mul(second, TENTH)
    end = float(from_keys([small - 1])[0])
    exact = decide(*pair, domain=(-end, end))
    found = enumerate_inputs(*pair)
    assert exact.undecided is None
    assert (found.differing, found.zero_sign) == (exact.differing, exact.zero_sign)
    assert found.differing + found.zero_sign > 0
    assert (found.nan_differs, found.infinity_differs) == (
        exact.nan_differs,
        exact.infinity_differs,
    )
    assert found.by_channel == exact.by_channel


def test_a_sign_that_relu_leaves_open_is_counted(small: int) -> None:
    b = Builder()
    pair = FunctionPair(b.Relu(b.input), b.Where(b.Less(b.input, 0.0), 0.0, b.input))
    found = enumerate_inputs(*pair.functions)
    assert (found.differing, found.zero_sign) == (0, 1)
    assert found.witness is not None
    assert np.signbit(found.witness.input)
    assert grade(found, pair) == Graded(Exactness.VALUES)


def test_what_is_left_open_is_undecidable_unless_it_is_not_taken(small: int) -> None:
    b = Builder()
    x = b.Mul(b.Mul(b.input, F(2.0**127)), 4096.0)
    code = b.Cast(b.Cast(b.Round(x), to="UINT8"), to="FLOAT")
    with pytest.raises(Undecidable, match="leaves open"):
        enumerate_inputs(b.Add(code, x), b.Add(x, code))
    finite = b.Where(b.Less(b.Abs(b.input), 1.0), x, 0.0)  # defined at the infinities
    inner = b.Cast(b.Cast(b.Round(finite), to="UINT8"), to="FLOAT")
    with pytest.raises(Undecidable, match="leaves open"):
        enumerate_inputs(b.Add(inner, x), b.Add(x, inner))
    inside = b.And(b.GreaterOrEqual(x, 0.0), b.Less(x, 255.0))
    kept = [b.Where(inside, sum_, x) for sum_ in (b.Sub(code, x), b.Neg(b.Sub(x, code)))]
    assert enumerate_inputs(kept[0], kept[1]).differing == 0


def test_results_last_as_long_as_they_are_needed(small: int) -> None:
    b = Builder()
    x = b.Mul(b.Mul(b.input, F(2.0**127)), 4.0)
    # the Cast hands its operand on; what is computed next must not overwrite it
    inside = b.Max(b.Min(x, 100.0), -128.0)
    code = b.Cast(b.Max(b.Cast(inside, to="INT8"), np.int8(-5)), to="FLOAT")
    other = b.Mul(b.Add(x, 1.0), 3.0)
    found = enumerate_inputs(b.Add(code, other), b.Add(other, code))
    assert (found.differing, found.zero_sign) == (0, 0)
    with np.errstate(all="ignore"):
        given = np.concatenate(list(blocks(small))) * F(2.0**127) * F(4)
        steps = np.maximum(np.trunc(np.minimum(given, F(100))), F(-5))
        expected = (steps + (given + F(1)) * F(3) != steps).sum()
    assert enumerate_inputs(b.Add(code, other), code).differing == expected


def test_channels_are_counted_one_by_one_and_equal_ones_once(small: int) -> None:
    b = Builder()
    x = b.Mul(b.Mul(b.input, F(2.0**127)), 4.0)
    factors = np.array([3, 2, 2], F), np.array([3, 2.5, 2.5], F)
    pair = b.Mul(x, factors[0]), b.Mul(x, factors[1])
    assert effort(*pair) == 2 * effort(b.Mul(x, 2.0), b.Mul(x, 2.5))
    found = enumerate_inputs(*pair)
    # all but the two zeros, in two channels that are one kind
    assert found.by_channel == ((1, 2 * small - 2),)
    assert (found.differing, found.channels, found.witness_channel) == (4 * small - 4, 3, 1)
    runs = found.runs
    assert set(runs.channel.tolist()) == {1}
    assert ((runs.hi - runs.lo) < enumeration._BLOCK).all()
    assert ((runs.lo > 0) | (runs.hi < -1)).all()


def test_differences_that_were_counted_have_no_steps(small: int) -> None:
    b = Builder()
    reference = b.Round(b.Mul(b.Mul(b.input, F(2.0**127)), 4.0))
    pair = FunctionPair(reference, b.Mul(reference, 2.0))
    found = enumerate_inputs(*pair.functions)
    assert found.differing > 0
    assert grade(found, pair) == Graded(Exactness.DIFFERENT)


def test_the_environment_of_each_thread_is_looked_at(small: int, monkeypatch) -> None:
    calls = []
    monkeypatch.setattr(enumeration, "check_float_environment", lambda: calls.append(1))
    monkeypatch.setattr(enumeration, "available_cores", lambda: 2)
    b = Builder()
    enumerate_inputs(b.input, b.Mul(b.input, 2.0))
    assert len(calls) == 2 + 2 * 2


def test_both_zeros_are_one_float():
    lowest = np.array([-np.finfo(F).max], F)
    gaps = {enumeration._ulps(np.array([zero], F), lowest) for zero in (0.0, -0.0)}
    assert gaps == {0x7F7FFFFF}  # the positive floats up to the largest one
