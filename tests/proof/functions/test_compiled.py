"""Loops that numba compiles, against NumPy: bit by bit, each primitive on all kinds of numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from qgraph.numerics.primitives import NUMPY
from qgraph.proof.functions import blocks as block_module, enumeration
from qgraph.proof.functions.blocks import CompiledBlocks, NumpyBlocks, Same, evaluations_of
from qgraph.proof.functions.enumeration import enumerate_inputs
from qgraph.proof.functions.expression import Builder, Expr
from qgraph.proof.functions.finding import special_inputs
from qgraph.proof.functions.program import PairProgram

pytest.importorskip("numba", reason="the extra 'fast' is not installed")

F = np.float32
NUMBERS = [
    *(F(n) for n in (0.0, -0.0, 1, -1, 3, 0.1, -0.3, 2**-10, 5, 127, 1e10, 2**24 + 2, 0.5)),
    *(F(n) for n in (np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1e-45, -1e-45, 1.2e-38, 5e-39)),
]
UNARY = ["Neg", "Abs", "Sign", "Reciprocal", "Round", "Floor", "Ceil", "Relu"]
BINARY = ["Add", "Sub", "Mul", "Div", "Min", "Max"]
COMPARISONS = ["Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"]

Function = Callable[[Any, Any], Any]


def inputs(*functions: Expr, count: int) -> np.ndarray:
    """Return special numbers, their neighbours, and random bit patterns, NaN among them."""
    random = np.random.default_rng(0).integers(0, 1 << 32, count, dtype=np.uint32).view(F)
    tiny = np.arange(64, dtype=np.uint32).view(F)
    return np.concatenate([special_inputs(*functions), random, tiny, -tiny])


class Numbers:
    """Computes with the primitives of NumPy what a builder would write down."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *operands, **attributes: NUMPY[name](*operands, **attributes)


def same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))


def check(function: Function, *, count: int = 1 << 16, open_where: Function | None = None) -> None:
    """Compare a function with NumPy; ``open_where`` says where ONNX leaves its result open."""
    builder = Builder()
    root = function(builder, builder.input)
    program = PairProgram(root, builder.input)
    (blocks,) = evaluations_of(program, 0, 1 << 15, 1, inputs=1 << 32)
    assert isinstance(blocks, CompiledBlocks)
    x = inputs(root, count=count)
    with np.errstate(all="ignore"):
        expected = np.broadcast_to(np.asarray(function(Numbers(), x), F), x.shape)
        is_open = np.zeros(x.shape, bool) if open_where is None else open_where(np, x)
    results = np.empty((2, len(x)), F)
    found, _ = blocks.compute(x.view(np.uint32), *results)
    assert found == is_open.any()
    wrong = ~(same(results[0], expected) | is_open)
    assert not wrong.any(), (x[wrong][:3], results[0][wrong][:3], expected[wrong][:3])
    assert same(results[1], x).all()
    closed = np.ascontiguousarray(x[~is_open])
    some, differ = blocks.compute(closed.view(np.uint32), *results[:, : len(closed)])
    assert not some
    assert differ == bool((results[0].view("u4") != results[1].view("u4"))[: len(closed)].any())


def zeros_of_other_sign(first: Function, second: Function) -> Function:
    def where(op: Any, x: np.ndarray) -> np.ndarray:
        a, b = (np.broadcast_to(np.asarray(side(op, x), F), x.shape) for side in (first, second))
        return (a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))

    return where


def chosen(name: str, first: Function, second: Function) -> Function | None:
    return zeros_of_other_sign(first, second) if name in ("Min", "Max", "Relu") else None


def as_number(function: Function) -> Function:
    return lambda op, x: op.Where(function(op, x), F(1), F(2))


def cases() -> Iterator[tuple[str, Function, Function | None]]:
    for name in UNARY:
        is_open = chosen(name, lambda _op, x: x, lambda _op, _x: F(0))
        yield name, lambda op, x, name=name: getattr(op, name)(x), is_open
    for name, number in itertools.product(BINARY, NUMBERS):
        is_open = chosen(name, lambda _op, x: x, lambda _op, _x, n=number: n)
        yield name, lambda op, x, name=name, n=number: getattr(op, name)(x, n), is_open
        yield name, lambda op, x, name=name, n=number: getattr(op, name)(n, x), is_open
    for name, number in itertools.product(BINARY, (F(-1), F(0.1), F(1e-30))):

        def other(op: Any, x: Any, number: F = number) -> Any:
            return (op.multiply if op is np else op.Mul)(x, number)

        is_open = chosen(name, lambda _op, x: x, other)
        yield name, lambda op, x, name=name, o=other: getattr(op, name)(x, o(op, x)), is_open
    for name, number in itertools.product(COMPARISONS, NUMBERS):
        yield name, as_number(lambda op, x, name=name, n=number: getattr(op, name)(x, n)), None
    for name in ("And", "Or"):
        yield (
            name,
            as_number(
                lambda op, x, name=name: getattr(op, name)(op.Less(x, F(1)), op.Greater(x, F(-1)))
            ),
            None,
        )
    yield "Not", as_number(lambda op, x: op.Not(op.IsNaN(x))), None
    yield "Where", lambda op, x: op.Where(op.Less(x, F(0.5)), op.Mul(x, F(3)), x), None
    yield "Cast", as_number(lambda op, x: op.Cast(x, to="BOOL")), None
    yield "Cast", lambda op, x: op.Cast(op.IsNaN(x), to="FLOAT"), None
    yield "Cast", lambda op, x: op.Cast(op.Cast(op.IsNaN(x), to="INT8"), to="FLOAT"), None
    for kind, low, beyond in (("INT8", -128, 128), ("UINT8", 0, 256), ("INT32", -(2**31), 2**31)):
        yield (
            "Cast",
            lambda op, x, kind=kind: op.Cast(op.Cast(x, to=kind), to="FLOAT"),
            lambda _op, x, low=low, beyond=beyond: ~((np.trunc(x) >= low) & (x < beyond)),
        )
    yield (
        "Gather",
        lambda op, x: op.Gather(np.array([3, 1, 4], F), op.Cast(op.Mul(x, F(2)), to="INT8")),
        lambda _op, x: ~((np.trunc(x * F(2)) >= 0) & (x * F(2) < 3)),
    )


@pytest.mark.exhaustive
def test_each_primitive_computes_what_numpy_does():
    names = set()
    for name, function, open_where in cases():
        check(function, open_where=open_where)
        names.add(name)
    assert names == {*block_module._FORMS, "Cast"} - {"IsNaN"}


def contracted(op: Any, x: Any) -> Any:
    return op.Add(op.Mul(x, F(1 + 2**-12)), F(-1))


@pytest.mark.slow
def test_a_product_and_a_sum_are_rounded_one_by_one():
    x = np.random.default_rng(0).uniform(0.5, 2, 1 << 12).astype(F)
    fused = (x.astype(np.float64) * np.float64(F(1 + 2**-12)) - 1).astype(F)
    # the inputs would tell
    assert (fused != contracted(Numbers(), x)).mean() > 0.1
    check(contracted, count=1 << 12)


def pair(first: Function, second: Function) -> tuple[Expr, Expr]:
    builder = Builder()
    return first(builder, builder.input), second(builder, builder.input)


PAIRS = {
    "equal": pair(lambda op, x: op.Mul(x, 2.0), lambda op, x: op.Add(x, x)),
    "rounded": pair(lambda op, x: op.Mul(x, F(0.1)), lambda op, x: op.Div(x, 10.0)),
    "signs of zeros": pair(
        lambda op, x: op.Round(op.Div(x, F(0.3))),
        lambda op, x: op.Cast(
            op.Cast(op.Min(op.Max(op.Round(op.Div(x, F(0.3))), -8.0), 7.0), to="INT4"), to="FLOAT"
        ),
    ),
    "zeros on the way": pair(
        lambda op, x: op.Relu(op.Sub(x, F(0.5))),
        lambda op, x: op.Max(op.Add(x, F(-0.5)), F(0)),
    ),
    "channels": pair(
        lambda op, x: op.Mul(x, np.array([0.1, 0.5, 0.0], F)),
        lambda op, x: op.Div(x, np.array([10, 2, np.inf], F)),
    ),
}


@pytest.mark.cases(fast=0, slow=2)
@pytest.mark.parametrize("name", PAIRS)
def test_findings_are_those_of_numpy(name, monkeypatch):
    monkeypatch.setattr(enumeration, "_FINITE", 1 << 22)
    expected = enumerate_inputs(*PAIRS[name])
    made = []
    monkeypatch.setattr(block_module, "_LEAST", 0)
    monkeypatch.setattr(
        block_module.CompiledBlocks,
        "__init__",
        lambda self, *rest, old=CompiledBlocks.__init__: (made.append(self), old(self, *rest))[1],
    )
    assert _fields(enumerate_inputs(*PAIRS[name])) == _fields(expected)
    assert made


def _fields(finding: Any) -> dict[str, Any]:
    runs = {name: getattr(finding, name) for name in ("runs", "at_infinity")}
    lists = {k: {n: c.tolist() for n, c in vars(v).items()} for k, v in runs.items()}
    return vars(finding) | lists


def test_what_computes_otherwise_is_not_used(monkeypatch, caplog):
    monkeypatch.setitem(block_module._FORMS, "Sub", "{0} - {1} * np.float32(1.0000001)")
    program = PairProgram(*pair(lambda op, x: op.Sub(x, 3.0), lambda op, x: op.Add(x, -3.0)))
    (blocks,) = evaluations_of(program, 0, 1 << 15, 1, inputs=1 << 32)
    assert isinstance(blocks, NumpyBlocks)
    assert "results of numba differ from those of NumPy" in caplog.text
    assert blocks.compare(0x3F800000) is Same.EQUAL


def test_square_roots_and_few_inputs_are_left_to_numpy():
    roots = PairProgram(*pair(lambda op, x: op.Sqrt(op.Abs(x)), lambda op, x: x))
    plain = PairProgram(*PAIRS["equal"])
    for program, inputs in ((roots, 1 << 32), (plain, 1 << 20)):
        (blocks,) = evaluations_of(program, 0, 1 << 15, 1, inputs=inputs)
        assert isinstance(blocks, NumpyBlocks)
