"""Every rule says what executing random nodes of its operator shows."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from qgraph.graph.inference.rules import RULES, rule
from qgraph.graph.inference.walk import infer
from qgraph.ops.operator import OPERATORS
from tests.graph.inference.chains import Chain, execute
from tests.graph.inference.generator import (
    by_kernels,
    by_reference,
    by_runtime,
    contradiction,
    judge,
)
from tests.graph.inference.makers import MAKERS

pytest.importorskip("onnxruntime")

for _family in (
    "contractions",
    "elementwise",
    "movement",
    "products",
    "quantizers",
    "sizes",
    "vendors",
    "windows",
):
    importlib.import_module(f"tests.graph.inference.cases.{_family}")


def test_every_rule_is_exercised_and_nothing_else() -> None:
    assert set(MAKERS) == set(RULES)


def test_every_quantizer_has_a_rule() -> None:
    keys = {tuple(key) for operator in OPERATORS for key in operator.schema.keys}
    assert keys <= set(RULES)


def test_an_operator_has_one_rule() -> None:
    with pytest.raises(ValueError, match="two rules for ::Conv"):
        rule("Conv")(lambda call: [])


def compare(seed: int, count: int, least: int, every: int = 1) -> None:
    """Compare ``count`` random nodes of operators, each of which is executed ``least`` times."""
    for place, (domain, name) in enumerate(sorted(MAKERS)[::every]):
        executed = 0
        for k in range(count):
            rng = np.random.default_rng([seed, place, k])
            case = MAKERS[domain, name](name, rng)
            executions, _, wrong = judge(case, rng)
            executed += executions
            assert wrong is None, (
                f"{domain}::{name}-{case.opset} {case.attributes}, draw {k}: {wrong}"
            )
        assert executed >= least, f"{domain}::{name} was never executed"


def test_rules_agree_with_executions() -> None:
    compare(0, 1, 0, every=4)


@pytest.mark.exhaustive
def test_rules_agree_with_many_executions() -> None:
    compare(1, 12, 1)


def follow(seed: int, count: int) -> int:
    """Compare the values of random chains; return how many of them were known."""
    known = 0
    for k in range(count):
        chain = Chain(np.random.default_rng([seed, k]))
        for _ in range(14):
            chain.step()
        facts = infer(chain.model())
        for run in (by_reference, by_runtime, by_kernels):
            values = execute(chain, run)
            for node in chain.nodes:
                (value,) = node.outputs
                if value.name in values:
                    wrong = contradiction(facts[value], values[value.name], chain.sizes)
                    assert wrong is None, (
                        f"chain {k}: {node.op_type}, {facts[value]} against {wrong}"
                    )
                    known += facts[value].items is not None
    return known


def test_values_of_shape_computations_agree_with_executions() -> None:
    assert follow(0, 3) > 30


@pytest.mark.slow
def test_values_of_many_shape_computations_agree_with_executions() -> None:
    assert follow(1, 60) > 600
