"""Random models and random changes of them: what is proved equal is run, and must be equal.

The proof is given little time for each pair; what it leaves open is no concern here.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest

import qgraph
from qgraph.errors import QGraphError
from qgraph.proof import discharge
from qgraph.proof.functions import decide as engine
from qgraph.proof.matching import operators as canonical


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


drawing, changing = map(_module, ("fuzz_models", "fuzz_mutations"))
SIMPLE = [drawing.unary, drawing.with_constant]


@pytest.fixture(autouse=True)
def _little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up soon on functions that are no step functions."""
    for search in (engine.decide, engine.explore):
        monkeypatch.setitem(search.__kwdefaults__, "max_boxes", 1 << 12)
    monkeypatch.setattr(discharge, "_MOST_OPERATIONS", 0)


def prove(reference: Any, candidate: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return qgraph.prove(reference, candidate, **options)


def search(
    seeds: range, changes: Sequence[Any] = (), builders: Sequence[Any] = ()
) -> tuple[list[Any], Counter[str]]:
    """Return the pairs that are wrongly proved, and how often each verdict was given."""
    wrong, seen = [], Counter[str]()
    for seed in seeds:
        random = np.random.default_rng(seed)
        made = drawing.model(random, builders=builders)
        for turn in range(2):
            try:
                other, label = changing.mutate(random, made, changes)
            except changing.NoChange:
                continue
            try:
                verdict = str(prove(made, other).verdict)
            except QGraphError:
                verdict = "refused"
            seen[verdict] += 1
            if verdict != "proved":
                continue
            try:
                feeds = changing.difference(random, made, other, runs=4)
            except QGraphError:
                seen["does not run"] += 1  # the change made no model of it
                continue
            if feeds is not None:
                wrong.append((seed, turn, label))
    return wrong, seen


@pytest.mark.slow
def test_what_is_drawn_is_valid_and_equal_to_itself():
    for seed in range(8):
        made = drawing.model(np.random.default_rng(seed))
        onnx.checker.check_model(made, full_check=True)
        assert str(prove(made, made).exactness) == "bits"


@pytest.mark.exhaustive
def test_nothing_is_wrongly_proved():
    wrong, seen = search(range(5000, 5014))
    assert not wrong
    assert seen["proved"] > 5
    assert seen["different"] > 2


@pytest.mark.parametrize(
    "count",
    [pytest.param(12, marks=pytest.mark.slow), pytest.param(240, marks=pytest.mark.exhaustive)],
)
def test_nothing_is_wrongly_proved_among_many(count):
    wrong, seen = search(range(6000, 6000 + count))
    assert not wrong
    assert min(seen[verdict] for verdict in ("proved", "different", "undecided")) > count // 10


@pytest.mark.slow
def test_an_unsound_rule_is_found(monkeypatch):
    monkeypatch.setattr(canonical, "_COMMUTATIVE", canonical._COMMUTATIVE | {"Sub", "Div"})
    wrong, _ = search(range(5100, 5110), [changing.operands], SIMPLE)
    assert wrong


@pytest.mark.slow
def test_an_operator_that_is_overlooked_is_found(monkeypatch):
    always = canonical.is_identity
    monkeypatch.setattr(
        "qgraph.proof.matching.classes.is_identity",
        lambda node, imports: node.op_type in ("Round", "Abs") or always(node, imports),
    )
    wrong, _ = search(range(5200, 5208), [changing.bypass], SIMPLE)
    assert wrong


@pytest.mark.slow
def test_an_input_that_is_shown_tells_the_models_apart():
    shown = 0
    for seed in range(5300, 5308):
        random = np.random.default_rng(seed)
        made = drawing.model(random)
        other, _ = changing.mutate(random, made, [changing.number, changing.operator])
        try:
            feeds = prove(made, other, runs=8).counterexample
        except QGraphError:
            continue
        if not feeds:
            continue
        shown += 1
        sides = [qgraph.load(model).run(feeds, backend="numpy") for model in (made, other)]
        assert any(changing.differ(sides[0][name], sides[1][name]) for name in sides[0])
    assert shown > 1
