"""Random pairs of expressions, and their comparison input by input; see test_fuzz.py."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from qgraph.numerics.float32 import HIGHEST, LOWEST, from_keys, to_keys
from qgraph.numerics.primitives import NUMPY
from qgraph.proof.functions.expression import (
    CONSTANT,
    INPUT,
    TABLE,
    Builder,
    Expr,
    in_order,
    undefined,
)
from qgraph.reasons import Undecidable

UNARY = ["Neg", "Abs", "Sign", "Sqrt", "Reciprocal", "Round", "Floor", "Ceil", "Relu"]
BINARY = ["Add", "Sub", "Mul", "Div", "Min", "Max"]
COMPARISONS = ["Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"]
CASTS: list[dict[str, Any]] = [
    {"to": "FLOAT8E4M3FN", "saturate": 1},
    {"to": "FLOAT8E5M2", "saturate": 0},
    {"to": "FLOAT8E4M3FNUZ", "saturate": 1},
    {"to": "FLOAT4E2M1"},
    {"to": "FLOAT8E8M0", "round_mode": "down"},
]


class Sample:
    """A window of inputs and two expressions that have something to do there."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.low, self.high = self._window()
        self.builder = Builder()
        self._unit = self._real_width() / float(self.rng.choice([1, 3, 10, 64]))
        self._channels = int(self.rng.choice([1, 1, 1, 3]))
        self.reference = self._grow(int(self.rng.integers(2, 9)))
        self.candidate = self._mutated() if self.rng.random() < 0.8 else self._grow(5)

    @property
    def domain(self) -> tuple[float, float]:
        return tuple(from_keys([self.low, self.high]).tolist())

    def _window(self) -> tuple[int, int]:
        size = 1 << int(self.rng.integers(6, 13))
        centre = float(self.rng.choice([0, 0, 1e-45, 0.1, 1, -1, 3.7, -120, 1e-38, 1e30, -3.4e38]))
        low = int(to_keys(np.float32(centre))) + int(self.rng.integers(-size, 1))
        low = min(max(low, LOWEST), HIGHEST - size)
        return low, low + size

    def _real_width(self) -> float:
        ends = from_keys([self.low, self.high]).astype(np.float64)
        return float(max(ends[1] - ends[0], 1e-45))

    def _number(self) -> np.ndarray:
        inner = from_keys(self.rng.integers(self.low, self.high + 1, self._channels))
        unit = np.full(self._channels, self._unit, np.float32)
        special = [0, 0, -0.0, 1, -1, 0.5, 2, 3, -7, 127, 1e-45, 1e38, np.inf]
        special = np.full(self._channels, self.rng.choice(special), np.float32)
        spread = self.rng.normal(0, 4, self._channels).astype(np.float32)
        value = [inner, unit, special, np.rint(spread), spread][self.rng.integers(0, 5)]
        return value if self._channels > 1 else value[0]

    def _grow(self, steps: int) -> Expr:
        b = self.builder
        pool = [b.input]
        if self.rng.random() < 0.8:
            pool.append(b.Sub(b.input, self._number()))
            pool.append(b.Div(pool[-1], np.float32(self._unit)))
        for _ in range(steps):
            made = self._operation(pool)
            if made.op != CONSTANT:
                pool.append(made)
        return pool[-1]

    def _operation(self, pool: list[Expr]) -> Expr:
        b, rng = self.builder, self.rng
        a = pool[-1] if rng.random() < 0.8 else pool[rng.integers(len(pool))]
        other = pool[rng.integers(len(pool))] if rng.random() < 0.3 else self._number()
        match int(rng.integers(0, 10)):
            case 0 | 1:
                return getattr(b, str(rng.choice(UNARY)))(a)
            case 2:
                return getattr(b, str(rng.choice(["Min", "Max"])))(a, np.float32(0))
            case 3 | 4 | 5 | 6:
                operands = [a, other] if rng.random() < 0.8 else [other, a]
                name = str(rng.choice(BINARY))
                # a - a is +0 whatever the sign of a zero, which intervals do not see
                return getattr(b, "Mul" if name == "Sub" and other is a else name)(*operands)
            case 7:
                condition = getattr(b, str(rng.choice(COMPARISONS)))(a, self._number())
                if rng.random() < 0.2:
                    condition = b.Or(b.Not(condition), b.IsNaN(a))
                return b.Where(condition, other, pool[rng.integers(len(pool))])
            case 8:
                clipped = b.Cast(b.Min(b.Max(a, 0.0), 6.0), to="INT64")
                table = rng.normal(0, 2, 7).astype(np.float32)
                return b.Gather(table, clipped) if rng.random() < 0.5 else b.Cast(a, to="INT32")
            case _:
                return b.Cast(b.Cast(a, **CASTS[rng.integers(len(CASTS))]), to="FLOAT")

    def _mutated(self) -> Expr:
        """Rebuild the reference with a constant, an operation or nothing changed."""
        order = in_order([self.reference])
        changed = int(self.rng.integers(1, len(order)))
        made: dict[int, Expr] = {}
        for i, e in enumerate(order):
            operands = [made[id(o)] for o in e.inputs]
            if e.op == INPUT:
                made[id(e)] = e
            elif e.value is not None:
                nudged = i == changed and e.value.dtype == np.float32
                value = np.nextafter(e.value, np.float32(np.inf)) if nudged else e.value
                made[id(e)] = self.builder.constant(value)
            elif i == changed and e.op in ("Round", "Floor", "Ceil"):
                made[id(e)] = self.builder.Floor(operands[0])
            elif i == changed and e.op in ("Add", "Min", "Max", "Mul"):
                made[id(e)] = getattr(self.builder, e.op)(*reversed(operands))
            elif i == changed and e.dtype == "FLOAT":
                again = getattr(self.builder, e.op)(*operands, **dict(e.attributes))
                made[id(e)] = self.builder.Mul(again, 1.0)
            else:
                made[id(e)] = getattr(self.builder, e.op)(*operands, **dict(e.attributes))
        return made[id(self.reference)]


def sample(seed: int) -> Sample | None:
    """Return a sample, or None where the seed leads to something that cannot be built."""
    try:
        return Sample(seed)
    except Undecidable:
        return None


def possible(root: Expr, x: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Return all possible values at ``x``, and where ONNX leaves more than a zero's sign open.

    Min, Max and Relu of zeros of both signs may return either.
    """
    held: dict[int, tuple[list[np.ndarray], np.ndarray]] = {}
    for e in in_order([root]):
        if e.op == INPUT:
            held[id(e)] = [x], np.zeros(x.shape, bool)
            continue
        if e.op in (CONSTANT, TABLE):
            held[id(e)] = [e.value], np.zeros(x.shape, bool)
            continue
        held[id(e)] = _possible_results(e, [held[id(o)] for o in e.inputs], x.shape)
    return held[id(root)]


def _possible_results(e, operands, shape):
    attributes = dict(e.attributes)
    results = []
    unknown = np.zeros(shape, bool)
    choices = itertools.product(*(values for values, _ in operands))
    if len(e.inputs) == 2 and e.inputs[0] is e.inputs[1]:
        choices = ((value, value) for value in operands[0][0])
    for values in choices:
        y = np.asarray(NUMPY[e.op](*values, **attributes))
        results.append(y)
        if e.op in ("Min", "Max", "Relu"):
            a, c = values if e.op != "Relu" else (values[0], np.float32(0))
            tie = (a == 0) & (c == 0) & (np.signbit(a) != np.signbit(c))
            if tie.any():
                results[-1:] = [np.where(tie, zero, y) for zero in np.float32([0.0, -0.0])]
        unknown = unknown | undefined(e.op, list(values), attributes)
    different = {np.broadcast_to(y, shape).tobytes(): y for y in results}
    known = [mask for _, mask in operands]
    if e.op == "Where":
        condition = np.asarray(operands[0][0][0])
        return list(different.values()), unknown | known[0] | np.where(condition, *known[1:])
    for mask in known:
        unknown = unknown | mask
    return list(different.values()), unknown


def count(sample: Sample) -> tuple[int, int] | None:
    """Return how many inputs differ in value and in the sign of zero; None if one is undefined."""
    channels = max(sample.reference.shape + sample.candidate.shape + (1,))
    x = np.broadcast_to(
        from_keys(np.arange(sample.low, sample.high + 1))[:, None],
        (sample.high - sample.low + 1, channels),
    )
    with np.errstate(all="ignore"):
        references, unknown = possible(sample.reference, x)
        candidates, unclear = possible(sample.candidate, x)
    first, *others = (np.broadcast_to(y, x.shape) for y in references + candidates)
    unclear = unknown | unclear
    for group in (references, candidates):
        for y in group[1:]:
            unclear = unclear | ~_same(y, group[0])
    if np.any(unclear):
        return None
    differ = np.zeros(x.shape, bool)
    sign = np.zeros(x.shape, bool)
    for y in others:
        differ |= ~_same(y, first)
        sign |= (y == 0) & (first == 0) & (np.signbit(y) != np.signbit(first))
    return int(differ.sum()), int((sign & ~differ).sum())


def _same(a, b):
    return (a == b) | (np.isnan(a) & np.isnan(b))
