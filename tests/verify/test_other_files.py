"""A certificate of two models says nothing of others: changed weights, nodes, whole models."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.comparison.replay import read
from qgraph.errors import EquivalenceError, QGraphError
from qgraph.text import json_text
from tests.verify.checking import verify
from tests.verify.test_tampering import MAKERS, WITHIN

CHECKED = ("chain", "half", "residual", "bounded", "kernel")
"""Pairs whose outputs follow from one region each, so that running them shows what is true."""

STEP = {"bounded": 1, "kernel": 1}
"""The outputs of these are codes; those of the others are equal."""


def changed_weight(model: ir.Model, rng: random.Random) -> str:
    """Change one number of a constant: by a bit, a sign, a factor."""
    name, value = rng.choice(sorted(model.graph.initializers.items()))
    array = value.const_value.numpy().copy()
    place = rng.randrange(array.size)
    number = array.reshape(-1)[place]
    kind = value.const_value.dtype
    if kind.is_integer():
        first = -(1 << (kind.bitwidth - 1)) if kind.is_signed() else 0
        others = [int(number) + 1, int(number) - 1, 0, 7]
        allowed = [n for n in others if first <= n < first + (1 << kind.bitwidth)]
    else:
        near = np.nextafter(number, array.dtype.type(np.inf))
        allowed = [near, -number, number * 2, number + 1, array.dtype.type(0)]
    array.reshape(-1)[place] = rng.choice(allowed)
    value.const_value = ir.tensor(array, dtype=kind, name=name)
    return f"{name}[{place}]"


def permuted_weights(model: ir.Model, rng: random.Random) -> str:
    """Another model of the same structure: all constants have their numbers in another order."""
    for name, value in model.graph.initializers.items():
        array = value.const_value.numpy()
        order = rng.sample(range(array.size), array.size)
        moved = array.reshape(-1)[order].reshape(array.shape)
        value.const_value = ir.tensor(moved, dtype=value.const_value.dtype, name=name)
    return "all constants permuted"


def exchanged_constants(model: ir.Model, rng: random.Random) -> str:
    """Exchange the numbers of two constants of one type and shape."""
    values = sorted(model.graph.initializers.values(), key=lambda value: str(value.name))
    alike = [
        (a, b)
        for a, b in itertools.combinations(values, 2)
        if (a.const_value.dtype, a.const_value.shape) == (b.const_value.dtype, b.const_value.shape)
    ]
    if not alike:
        return changed_weight(model, rng)
    a, b = rng.choice(alike)
    a.const_value, b.const_value = b.const_value, a.const_value
    return f"{a.name} and {b.name} exchanged"


PARTNERS = {
    "Add": "Sub",
    "Sub": "Add",
    "Mul": "Div",
    "Div": "Mul",
    "Max": "Min",
    "Min": "Max",
    "Round": "Floor",
    "Relu": "Neg",
    "Neg": "Abs",
}
MODES = ["ROUND", "FLOOR", "CEIL"]


def exchanged_nodes(model: ir.Model, rng: random.Random) -> str:
    """Exchange operators, operands or attributes of nodes."""
    nodes = list(model.graph)
    node = rng.choice(nodes)
    if node.op_type in PARTNERS and rng.random() < 0.5:
        before, node.op_type = node.op_type, PARTNERS[node.op_type]
        return f"{before} {node.name} is {node.op_type}"
    if "rounding_mode" in node.attributes:
        mode = rng.choice(MODES)
        node.attributes["rounding_mode"] = ir.AttrString("rounding_mode", mode)
        return f"{node.name} rounds by {mode}"
    alike = [n for n in nodes if n is not node and len(n.inputs) == len(node.inputs) > 1]
    if alike and rng.random() < 0.7:
        other, place = rng.choice(alike), rng.randrange(1, len(node.inputs))
        ours, theirs = node.inputs[place], other.inputs[place]
        node.replace_input_with(place, theirs)
        other.replace_input_with(place, ours)
        return f"operand {place} of {node.name} and {other.name} exchanged"
    if len(node.inputs) > 1:
        first, second = node.inputs[:2]
        node.replace_input_with(0, second)
        node.replace_input_with(1, first)
        return f"operands of {node.name} exchanged"
    return changed_weight(model, rng)


CHANGES: list[Callable[[ir.Model, random.Random], str]] = [
    changed_weight,
    changed_weight,
    exchanged_nodes,
    exchanged_constants,
    permuted_weights,
]


def other_models(name: str, rng: random.Random) -> tuple[str, tuple[ir.Model, ir.Model]]:
    """Return what was changed, and both models, of which one or both are others."""
    models = list(MAKERS[name]())
    kind = rng.random()
    if kind < 0.05:
        return "exchanged", (models[1], models[0])
    if kind < 0.1:
        side = rng.randrange(2)
        another = MAKERS[rng.choice([other for other in MAKERS if other != name])]()[side]
        models[side] = another
        return f"another model {side}", (models[0], models[1])
    side = rng.randrange(2)
    changes = [rng.choice(CHANGES)(models[side], rng) for _ in range(rng.choice((1, 1, 2)))]
    return f"{side}: {', '.join(changes)}", (models[0], models[1])


def feeds(model: qgraph.Model, rng: np.random.Generator) -> list[dict[str, np.ndarray]]:
    """Inputs of a model: random numbers, multiples of an eighth, codes."""
    found = []
    for scale in (0.05, 0.3, 1.0, 4.0):
        batch = {}
        for value in model.ir.graph.inputs:
            if value.is_initializer():
                continue  # a condition of the proof: it is not fed
            shape = [n if isinstance(n, int) else 50 for n in value.shape]
            if value.dtype.is_integer():
                numbers = rng.integers(0, 16, shape)
            else:
                numbers = rng.normal(size=shape) * scale
                numbers[..., ::2] = np.rint(numbers[..., ::2] * 8) / 8
            batch[str(value.name)] = numbers.astype(value.dtype.numpy())
        found.append(batch)
    return found


def holds(name: str, models: tuple[qgraph.Model, qgraph.Model]) -> bool:
    """Whether the outputs agree on some inputs, as the certificate of a pair says, but for NaN."""
    rng = np.random.default_rng(0)
    apart = STEP.get(name, 0)
    for _ in range(8 if apart else 1):
        for given in feeds(models[0], rng):
            a, b = (model.run(given, backend="numpy")["y"] for model in models)
            wide = [array.astype(np.float64) for array in (a, b)]
            if not (a.shape == b.shape and (np.abs(wide[0] - wide[1]) <= apart).all()):
                return False
    return True


@dataclass
class Tried:
    """What became of pairs of other models.

    Attributes:
        different: number of those that do not agree, or cannot be run.
        accepted: number of those that the certificate was confirmed for.
        wrong: changes of those of both kinds.
    """

    different: int = 0
    accepted: int = 0
    wrong: list[str] = field(default_factory=list)


def tried(name: str, count: int) -> Tried:
    """Check a certificate without hashes against other models."""
    made = qgraph.prove(*MAKERS[name](), evidence=True, hashes=False, within=WITHIN.get(name, ()))
    document: dict[str, Any] = json.loads(json_text(made.to_json()))
    rng, result = random.Random(f"other files of {name}"), Tried()
    for _ in range(count):
        what, pair = other_models(name, rng)
        is_true = is_confirmed = False
        with contextlib.suppress(QGraphError):
            loaded = qgraph.load(pair[0]), qgraph.load(pair[1])
            is_confirmed = verify(document, *loaded) not in ("undecided", "different")
        with contextlib.suppress(QGraphError):
            is_true = holds(name, (qgraph.load(pair[0]), qgraph.load(pair[1])))
        result.different += not is_true
        result.accepted += is_confirmed
        if is_confirmed and not is_true:
            result.wrong.append(what)
    return result


@pytest.mark.cases(fast=2, slow=7)
@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.parametrize(
    "count",
    [
        3,
        pytest.param(20, marks=pytest.mark.slow),
        pytest.param(300, marks=pytest.mark.exhaustive),
    ],
)
def test_no_certificate_is_confirmed_for_models_that_differ(name, count):
    result = tried(name, count)
    assert result.wrong == []
    if count > 3:
        assert result.different > count / 4
    if count > 20:
        assert result.accepted > 0  # other models may be equal too, in unused weights for example


@pytest.mark.cases(fast=2, slow=7)
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("count", [2, pytest.param(100, marks=pytest.mark.exhaustive)])
def test_a_certificate_is_about_its_files_alone(name, count, tmp_path):
    own = [tmp_path / f"{side}.onnx" for side in ("reference", "candidate")]
    for model, path in zip(MAKERS[name](), own, strict=True):
        qgraph.load(model).save(path)
    made = qgraph.prove(*own, evidence=True, within=WITHIN.get(name, ()))
    certificate = tmp_path / "certificate.json"
    certificate.write_text(json_text(made.to_json()))
    read(certificate, *own)
    rng, refused = random.Random(f"files of {name}"), 0
    for place in range(count):
        _, pair = other_models(name, rng)
        others = [tmp_path / f"{side}_{place}.onnx" for side in ("reference", "candidate")]
        with contextlib.suppress(QGraphError):  # some changes give no model
            for model, path in zip(pair, others, strict=True):
                qgraph.load(model).save(path)
            if any(a.read_bytes() != b.read_bytes() for a, b in zip(own, others, strict=True)):
                refused += 1
                with pytest.raises(EquivalenceError, match="another file"):
                    read(certificate, *others)
    assert refused > count / 4


def test_files_may_not_be_exchanged(tmp_path: Path) -> None:
    own = [tmp_path / f"{side}.onnx" for side in ("reference", "candidate")]
    for model, path in zip(MAKERS["residual"](), own, strict=True):
        qgraph.load(model).save(path)
    certificate = tmp_path / "certificate.json"
    certificate.write_text(json_text(qgraph.prove(*own, evidence=True).to_json()))
    read(certificate, *own)
    for pair in (own[::-1], [own[0]] * 2, [own[1]] * 2):
        with pytest.raises(EquivalenceError):
            read(certificate, *pair)
