"""Every rule: what a primitive computes at inner points lies between the ends it gives."""

from __future__ import annotations

import numpy as np
import pytest

from qgraph.numerics.float32 import NEGATIVE_INFINITY, POSITIVE_INFINITY, from_keys, to_keys
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.numerics.primitives import NUMPY
from qgraph.proof.functions.expression import undefined
from qgraph.proof.functions.interval import RULES, Interval, apply, settled

N = 4000
ORDINARY = [0.0, 0.5, 1, 1.5, 2, 2.5, 3, 6, 7.5, 28, 127, 128, 240, 255, 448, 57344, 61440, 2.0**24]
EXTREME = [1e-45, 7e-40, 2.0**-127, 2.0**-126, 2.0**127, 3.4e38, np.inf]
SPECIAL = np.array([sign * x for x in (*ORDINARY, *EXTREME) for sign in (1.0, -1.0)], np.float32)
MINIFLOATS = [n for n, f in FORMATS.items() if not isinstance(f, IntFormat)]
CASTS = [
    *[{"to": to} for to in ("FLOAT", "BOOL", "INT8", "UINT8", "INT4", "UINT16", "INT32", "INT64")],
    *[{"to": to, "saturate": s} for to in MINIFLOATS if to != "FLOAT8E8M0" for s in (0, 1)],
    *[
        {"to": "FLOAT8E8M0", "saturate": s, "round_mode": mode}
        for s in (0, 1)
        for mode in ("up", "down", "nearest")
    ],
]
FLOAT_OPERANDS = {
    **dict.fromkeys(["Add", "Sub", "Mul", "Div", "Min", "Max"], 2),
    **dict.fromkeys(["Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"], 2),
    **dict.fromkeys(["Neg", "Abs", "Sign", "Sqrt", "Reciprocal", "Round", "Floor", "Ceil"], 1),
    **dict.fromkeys(["Relu", "IsNaN"], 1),
}


def _ends(rng) -> tuple[np.ndarray, np.ndarray]:
    """Intervals of keys: of special numbers, of a few neighbours, of anything."""
    special = to_keys(rng.choice(SPECIAL, (2, N)))
    anything = rng.integers(NEGATIVE_INFINITY, POSITIVE_INFINITY + 1, (2, N))
    ordinary = to_keys(rng.normal(0, 10, (2, N)).astype(np.float32))
    near = special[0] + rng.integers(-3, 4, (2, N))
    which = rng.integers(0, 6, N)
    keys = np.choose(which, [special, anything, ordinary, near, special[:1], ordinary[:1]])
    keys = np.clip(keys, NEGATIVE_INFINITY, POSITIVE_INFINITY)
    return keys.min(axis=0), keys.max(axis=0)


def _inner(rng, lo, hi) -> np.ndarray:
    """Keys within: the ends, their neighbours, both zeros, special numbers, and others."""
    candidates = np.stack(
        [
            lo,
            hi,
            np.minimum(lo + 1, hi),
            np.maximum(hi - 1, lo),
            np.clip(0, lo, hi),
            np.clip(-1, lo, hi),
            np.clip(to_keys(rng.choice(SPECIAL, N)), lo, hi),
            lo + (rng.random(N) * (hi - lo)).astype(np.int64),
        ]
    )
    return candidates[rng.integers(0, len(candidates), N), np.arange(N)]


def _contained(name, operands, points, attributes) -> None:
    """Check a rule at one point of each box; ties of zeros may get either sign."""
    with np.errstate(all="ignore"):
        result = apply(name, operands, attributes)
        y = np.asarray(NUMPY[name](*points, **attributes))
        open_ = undefined(name, list(points), attributes)
    fine = np.ones(N, bool) if result.bad is None else ~result.bad
    assert fine.mean() > 0.03
    assert not (fine & open_).any()
    if result.nan is not None:
        assert not (fine & result.nan).any()
        assert np.isnan(y[result.nan]).all()
    lo, hi = (np.broadcast_to(end, y.shape)[fine] for end in (result.lo, result.hi))
    y = y[fine]
    if y.dtype == bool:
        assert (lo <= y).all()
        assert (y <= hi).all()
        return
    assert not np.isnan(y).any()
    assert (to_keys(lo) <= to_keys(hi)).all()
    either = [y]
    if name in ("Min", "Max", "Relu"):
        a, b = points if len(points) == 2 else (points[0], np.float32(0))
        tie = ((a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b)))[fine]
        either = [np.where(tie, zero, y) for zero in (np.float32(0), np.float32(-0.0))]
    for value in either:
        assert (to_keys(lo) <= to_keys(value)).all()
        assert (to_keys(value) <= to_keys(hi)).all()


@pytest.mark.parametrize("name", FLOAT_OPERANDS)
def test_results_lie_within_the_bounds(name: str) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        operands, points = [], []
        for _ in range(FLOAT_OPERANDS[name]):
            lo, hi = _ends(rng)
            operands.append(Interval(from_keys(lo), from_keys(hi)))
            points.append(from_keys(_inner(rng, lo, hi)))
        _contained(name, operands, points, {})


@pytest.mark.parametrize("name", ["Mul", "Min", "Max", "Add"])
def test_results_of_one_operand_twice_lie_within_the_bounds(name: str) -> None:
    rng = np.random.default_rng(0)
    lo, hi = _ends(rng)
    operand = Interval(from_keys(lo), from_keys(hi))
    point = from_keys(_inner(rng, lo, hi))
    _contained(name, [operand, operand], [point, point], {})


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div", "Min", "Max", "Less", "Equal"])
def test_results_with_a_constant_lie_within_the_bounds(name, every, place, each) -> None:
    rng = np.random.default_rng(place)
    lo, hi = _ends(rng)
    operands = [Interval(from_keys(lo), from_keys(hi))] * 2
    points = [from_keys(_inner(rng, lo, hi))] * 2

    def check(constant: np.float32) -> None:
        value = np.array(constant)
        operands[place], points[place] = Interval.constant(value), value
        if name == "Div" and place == 1 and constant == 0:
            assert apply_is_safe_for_zero_denominators(operands)
        else:
            _contained(name, operands, points, {})

    each(SPECIAL[::every], check)


def apply_is_safe_for_zero_denominators(operands) -> bool:
    with np.errstate(all="ignore"):
        result = apply("Div", operands, {})
    a = operands[0]
    return bool(result.bad is not None and result.bad[(a.lo <= 0) & (a.hi >= 0)].all())


@pytest.mark.parametrize("attributes", CASTS, ids=lambda a: "-".join(map(str, a.values())))
def test_casts_lie_within_the_bounds(attributes) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        lo, hi = _ends(rng)
        operand = Interval(from_keys(lo), from_keys(hi))
        _contained("Cast", [operand], [from_keys(_inner(rng, lo, hi))], attributes)


def _truths(rng) -> tuple[Interval, np.ndarray]:
    kind = rng.integers(0, 3, N)
    return Interval(kind == 1, kind >= 1), np.where(kind == 2, rng.random(N) < 0.5, kind == 1)


@pytest.mark.parametrize(("name", "count"), [("Not", 1), ("And", 2), ("Or", 2)])
def test_logic_lies_within_the_bounds(name: str, count: int) -> None:
    rng = np.random.default_rng(0)
    operands, points = zip(*(_truths(rng) for _ in range(count)), strict=True)
    _contained(name, operands, points, {})


@pytest.mark.parametrize("to", ["FLOAT", "INT8", "BOOL"])
def test_casts_of_truth_values_lie_within_the_bounds(to: str) -> None:
    operand, point = _truths(np.random.default_rng(0))
    _contained("Cast", [operand], [point], {"to": to})


@pytest.mark.parametrize("seed", range(4))
def test_where_lies_within_the_bounds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    condition, chosen = _truths(rng)
    operands, points = [condition], [chosen]
    for _ in range(2):
        lo, hi = _ends(rng)
        operands.append(Interval(from_keys(lo), from_keys(hi)))
        points.append(from_keys(_inner(rng, lo, hi)))
    _contained("Where", operands, points, {})


def test_where_is_bad_only_for_a_branch_that_may_be_taken() -> None:
    x = np.zeros(3, np.float32)
    bad = Interval(x, x, bad=np.ones(3, bool))
    condition = Interval(np.array([True, False, False]), np.array([True, True, False]))
    result = apply("Where", [condition, bad, Interval(x, x)], {})
    assert result.bad is not None
    assert result.bad.tolist() == [True, True, False]


@pytest.mark.parametrize("size", [1, 2, 3, 16, 100])
def test_gather_lies_within_the_bounds(size: int) -> None:
    rng = np.random.default_rng(size)
    table = rng.choice(SPECIAL, size)
    ends = np.sort(rng.integers(0, size, (2, N)), axis=0).astype(np.float32)
    point = np.floor(ends[0] + rng.random(N) * (ends[1] - ends[0] + 0.999)).astype(np.float32)
    _contained("Gather", [Interval(table, table), Interval(*ends)], [table, point], {})


def test_gather_outside_of_the_table_is_bad() -> None:
    table = np.arange(3, dtype=np.float32)
    index = Interval(np.float32([-1, 0, 2, 3]), np.float32([0, 2, 3, 3]))
    result = apply("Gather", [Interval(table, table), index], {})
    assert result.bad is not None
    assert result.bad.tolist() == [True, False, True, True]


@pytest.mark.parametrize(
    ("name", "operands"),
    [
        ("Add", [(-np.inf, 0), (0, np.inf)]),
        ("Sub", [(0, np.inf), (0, np.inf)]),
        ("Mul", [(-1, 1), (1, np.inf)]),
        ("Div", [(-1, 1), (0, 1)]),
        ("Div", [(1, np.inf), (1, np.inf)]),
        ("Div", [(1, 2), (-1, 1)]),
        ("Sqrt", [(-1, 1)]),
        ("Reciprocal", [(-1, 1)]),
    ],
)
def test_possible_nan_is_bad(name: str, operands) -> None:
    given = [Interval(np.float32([lo]), np.float32([hi])) for lo, hi in operands]
    with np.errstate(all="ignore"):
        result = apply(name, given, {})
    assert result.bad is not None
    assert result.bad.all()


def _some_nan(rng) -> tuple[Interval, np.ndarray]:
    """Intervals of which some are NaN throughout and others may be, with ends that mean nothing."""
    lo, hi = _ends(rng)
    kind = rng.integers(0, 4, N)
    point = np.where(kind == 1, np.float32(np.nan), from_keys(_inner(rng, lo, hi)))
    point = np.where((kind == 2) & (rng.random(N) < 0.5), np.float32(np.nan), point)
    interval = Interval(from_keys(lo), from_keys(hi), bad=(kind == 1) | (kind == 2), nan=kind == 1)
    return interval, point


@pytest.mark.parametrize("name", [n for n in FLOAT_OPERANDS if n not in ("Sign", "IsNaN")])
def test_what_is_said_to_be_nan_is_nan(name: str) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        given = [_some_nan(rng) for _ in range(FLOAT_OPERANDS[name])]
        operands, points = zip(*given, strict=True)
        _contained(name, operands, points, {})
        with np.errstate(all="ignore"):
            result = apply(name, operands, {})
        if result.lo.dtype != np.bool_:
            sure = np.logical_or.reduce([o.nan for o in operands])
            assert (result.nan == sure).all()


@pytest.mark.parametrize("attributes", CASTS, ids=lambda a: "-".join(map(str, a.values())))
def test_casts_of_nan_are_nan_where_that_is_said(attributes) -> None:
    operand, point = _some_nan(np.random.default_rng(1))
    _contained("Cast", [operand], [point], attributes)


@pytest.mark.parametrize("seed", range(4))
def test_where_is_nan_where_each_branch_that_may_be_taken_is(seed: int) -> None:
    rng = np.random.default_rng(seed)
    condition, chosen = _truths(rng)
    condition.bad = rng.random(N) < 0.2
    chosen = np.where(condition.bad, rng.random(N) < 0.5, chosen)
    operands, points = zip(*(_some_nan(rng) for _ in range(2)), strict=True)
    _contained("Where", [condition, *operands], [chosen, *points], {})
    result = apply("Where", [condition, *operands], {})
    yes, no = (operand.nan for operand in operands)
    assert (result.nan[yes & no]).all()
    assert (result.nan == yes)[condition.lo & ~condition.bad].all()
    assert (result.nan == no)[~condition.hi & ~condition.bad].all()


@pytest.mark.parametrize("to", ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2FNUZ"])
def test_a_cast_beyond_a_format_is_nan_on_one_side_of_zero_only(to: str) -> None:
    lo, hi = np.float32([1e5, -1e9, -1e5, 1.0]), np.float32([1e9, -1e5, 1e5, 1e9])
    result = apply("Cast", [Interval(lo, hi)], {"to": to, "saturate": 0})
    assert result.bad is not None
    assert result.nan is not None
    assert result.nan.tolist() == [True, True, False, False]
    assert result.bad.all()


@pytest.mark.parametrize(("name", "other"), [("Max", 0.0), ("Min", 0.0), ("Relu", None)])
def test_zeros_of_both_signs_leave_the_sign_open(name: str, other) -> None:
    zero = np.float32([-0.0, 0.0, -0.0, 1.0])
    operands = [Interval(zero, zero)]
    if other is not None:
        operands.append(Interval.constant(np.array(other, np.float32)))
    result = apply(name, operands, {})
    assert result.open is not None
    assert result.open.tolist() == [True, False, True, False]
    absorbed = apply("Add", [result, Interval.constant(np.array(0.0, np.float32))], {})
    assert settled(absorbed).all()
    kept = apply("Mul", [result, Interval.constant(np.array(2.0, np.float32))], {})
    assert kept.open is not None
    assert kept.open.tolist() == result.open.tolist()


def test_every_primitive_has_a_rule_or_is_known_to_have_none() -> None:
    assert set(NUMPY) - set(RULES) == {"Identity", "Pow"}
