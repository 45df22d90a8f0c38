"""A certificate that lacks a condition, or states another one, is not confirmed."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import pytest

import qgraph
from qgraph import conditions
from qgraph.bound import Bounding
from qgraph.conditions import Condition, ConditionKind
from qgraph.errors import ModelError, QGraphError
from qgraph.text import json_text
from tests.proof.bounds import test_exact, test_open_sizes
from tests.proof.certification import test_certify
from tests.verify import test_definitions, test_tampering
from tests.verify.checking import checked, confirmed, texts

Pair = tuple[ir.Model, ir.Model]


def pair(parameters: str, *bodies: str, x: str = "float[4] x", y: str = "float[4] y") -> Pair:
    header = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>'
    ours, theirs = (
        ir.from_onnx_text(f"{header} g ({x}) => ({y}) <{parameters}> {{ {body} }}")
        for body in bodies
    )
    return ours, theirs


def defined(name: str) -> Pair:
    x, parameters, *bodies = test_definitions.CASES[name][:4]
    ours, theirs = (test_definitions.model(body, x, parameters) for body in bodies)
    return ours, theirs


STEPS = "float s = {0.25}, uint8 z = {3}, float t = {0.7}"
QUANTIZED = "q = QuantizeLinear({}, s, z) {} = DequantizeLinear(q, s, z) "
WEIGHTS = "float[2,2,1,1] w = {1, -0.5, 0.75, 1}, float[2] b = {0.1, -0.2}"
POOL = "MaxPool <kernel_shape = [2, 2]>"
DECODED = "a = DequantizeLinear(x, s, z) "
HALF = (
    "h = Cast <to = 10> (s) u = Cast <to = 10> (t) v = Cast <to = 10> (w) "
    "a = DequantizeLinear(x, h, z) p = {}(a, v) y = QuantizeLinear(p, u, z)"
)
CODED = {"x": "uint8[2,6] x", "y": "uint8[2,6] y"}


def curve(operator: str) -> Pair:
    """Functions of codes; the candidate rounds with another scale."""
    body = DECODED + f"c = {operator} y = QuantizeLinear(c, {{}}, z)"
    parameters = STEPS + ", float u = {0.7000001}, float[6] one = {1, 1, 1, 1, 1, 1}"
    return pair(parameters, body.format("t"), body.format("u"), **CODED)


def packed(level: int) -> Pair:
    """One MatMulNBits in both models."""
    text = test_certify.PACKED.replace("K = 16", f"K = 16, accuracy_level = {level}")
    return ir.from_onnx_text(text), ir.from_onnx_text(text)


PAIRS: dict[ConditionKind | Condition, Callable[[], Pair]] = {
    **dict.fromkeys(
        (
            conditions.AS_WRITTEN,
            conditions.EQUAL_OPERATORS,
            conditions.NOT_FED,
            conditions.NO_NAN,
            conditions.ZERO_SIGNS,
        ),
        lambda: test_tampering.chain(differs=False),
    ),
    conditions.AFTER_DIFFERENCE: lambda: test_tampering.chain(differs=True),
    conditions.WHOLE_SUMS: lambda: defined("product"),
    conditions.SUMS_OF_CODES: lambda: defined("average"),
    conditions.BIAS_LAST: lambda: pair(
        f"{WEIGHTS}, float[1,2,1,1] c = {{0.1, -0.2}}",
        "y = Conv(x, w, b)",
        "t = Conv(x, w) y = Add(t, c)",
        x="float[1,2,4,4] x",
        y="float[1,2,4,4] y",
    ),
    conditions.OPEN_BOUNDS: lambda: pair("float z = {0}", "y = Clip(x, z)", "y = Relu(x)"),
    conditions.SUMMED_ALIKE: lambda: packed(0),
    conditions.DATA_NOT_ROUNDED: lambda: packed(4),
    conditions.ROUNDED_ONCE: lambda: pair(
        "float c = {0.3}, float e = {1.3498589}", "e0 = Exp(c) y = Add(x, e0)", "y = Add(x, e)"
    ),
    conditions.OPEN_SIZE: lambda: test_tampering.pair(test_tampering.OPEN),
    conditions.ONE_SIZE: lambda: pair(
        "",
        "s = Shape (x) y = Reshape (x, s)",
        "s = Shape (v) y = Reshape (x, s)",
        x="float[N,3] x, float[N,3] v",
        y="float[N,3] y",
    ),
    conditions.LIMITED_SIZE: lambda: test_open_sizes.pair("ReduceMean", "cut"),
    **dict.fromkeys(
        (conditions.NO_NAN_AT_MAXIMA, conditions.ZEROS_REWRITTEN),
        lambda: pair(
            STEPS,
            f"{QUANTIZED.format('x', 'd')} y = {POOL} (d)",
            f"m = {POOL} (x) {QUANTIZED.format('m', 'y')}",
            x="float[2,3,8,8] x",
            y="float[2,3,7,7] y",
        ),
    ),
    conditions.CURVES_WITHIN: lambda: curve("Sigmoid(a)"),
    conditions.LARGEST_FIRST: lambda: curve("Softmax(a)"),
    conditions.VARIANCE_OF_DIFFERENCES: lambda: curve("LayerNormalization(a, one, one)"),
    **dict.fromkeys(
        (
            conditions.GIVEN_CODES,
            conditions.ANY_ORDER,
            conditions.IN_CHUNKS,
            conditions.NO_SPECIALS,
        ),
        lambda: test_tampering.pair(test_tampering.LAYERS),
    ),
    conditions.SUMS_REACH: lambda: pair(
        f"{WEIGHTS}, float low = {{-3}}, float top = {{1e30}}, float other = {{1.1e30}}",
        "c = Conv(x, w) y = Clip(c, low, top)",
        "c = Conv(x, w) y = Clip(c, low, other)",
        x="float[1,2,4,4] x",
        y="float[1,2,4,4] y",
    ),
    conditions.ACCUMULATED: lambda: pair(
        f"{STEPS}, float[2,2] w = {{1, 2.5, 3, -4}}",
        HALF.format("MatMul"),
        HALF.format("Gemm"),
        x="uint8[3,2] x",
        y="uint8[3,2] y",
    ),
    conditions.WRAPPED_SUM: lambda: test_tampering.pair(
        [test_exact.WRAPPING.replace("STEP", s) + test_exact.WRAPS for s in ("2.5e6", "2.500001e6")]
    ),
}
"""For each condition, models whose certificate states it."""

OF_PROVER = {
    *(
        "constants-rounded-once",
        "curves-within",
        "largest-first",
        "limited-size",
        "no-nan-at-maxima",
    ),
    *("open-clip", "sums-of-codes", "variance-of-differences", "whole-sums", "wrapped-sum"),
    *("bias-last", "zeros-rewritten"),
}
"""Conditions on which only regions rest that the checker leaves to the prover without them."""


def test_the_stated_error_of_functions_is_not_more_than_that_of_bounds() -> None:
    (number,) = re.findall(r"within (\S+) of", conditions.CURVES_WITHIN)
    base, _, power = number.partition("**")
    assert float(base) ** float(power or 1) <= conditions.FUNCTION_ERROR


def name_of(kind: ConditionKind | Condition) -> str:
    return kind.name if isinstance(kind, ConditionKind) else kind.kind


NAMES = {name_of(kind): make for kind, make in PAIRS.items()}
FAST = {"accumulated", "any-order", "data-not-rounded", "open-size", "wrapped-sum"}
"""Conditions of different kinds, whose models are decided soon."""


@functools.cache
def certified(name: str) -> tuple[dict[str, Any], Pair]:
    models = NAMES[name]()
    accumulate = "float32" if name == "accumulated" else "own"
    order = "chunk:4" if name == "in-chunks" else "any"
    limit = () if name in ("after-difference", "sums-reach") else "5step"
    within = Bounding(limit, order=order, accumulate=accumulate)
    certificate = qgraph.prove(*models, evidence=True, within=within)
    return dict(json.loads(json_text(certificate.to_json()))), models


def is_confirmed(document: dict[str, Any], models: Pair, *, alone: bool = False) -> bool:
    """Whether the checker, or else the prover for what it leaves, confirms a certificate."""
    result = checked(document, *models)
    if alone or result.is_refuted:
        return not result.is_refuted and result.verdict != "undecided"
    try:
        return confirmed(document, result, *models) == document["verdict"]
    except QGraphError:
        return False


def test_there_are_models_for_each_kind() -> None:
    kinds = [
        each for each in vars(conditions).values() if isinstance(each, (ConditionKind, Condition))
    ]
    assert set(NAMES) == set(map(name_of, kinds))
    assert len(kinds) > 20


@pytest.mark.cases(fast=5, slow=6)
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[] if each in FAST else pytest.mark.slow) for each in NAMES]
)
def test_no_condition_can_be_left_out(name: str) -> None:
    document, models = certified(name)
    (place,) = (
        i for i, each in enumerate(document["conditions"]) if Condition.from_json(each).kind == name
    )
    assert is_confirmed(document, models)
    fewer = copy.deepcopy(document)
    del fewer["conditions"][place]
    result = checked(fewer, *models)
    assert str(result.verdict) == "undecided"
    assert result.is_refuted is (name not in OF_PROVER)
    assert not is_confirmed(fewer, models)


@pytest.mark.cases(fast=7, slow=8)
@pytest.mark.parametrize("name", NAMES)
def test_no_condition_can_be_another_one(name: str) -> None:
    document, models = certified(name)
    for place, each in enumerate(document["conditions"]):
        condition = Condition.from_json(each)
        for index, value in enumerate(condition.values if condition.kind == name else ()):
            changed = list(condition.values)
            changed[index] = value + 1 if isinstance(value, int) else f"{value}_"
            other = copy.deepcopy(document)
            other["conditions"][place] = f"{name}{json.dumps(changed)}: {condition}"
            assert not is_confirmed(other, models)


def test_texts_of_conditions_may_change() -> None:
    document, models = copy.deepcopy(certified("as-written"))
    document["conditions"] = [
        each.removesuffix(condition) + "in other words"
        for each, condition in zip(document["conditions"], texts(document), strict=True)
    ]
    assert is_confirmed(document, models)


@pytest.mark.parametrize(
    "condition",
    [
        "unheard-of: words",
        "as-written",
        "as-written[1]: words",
        "no-nan[true]: words",
        "no-nan[1: words",
        "no-nan" + "[" * 100_000,
        3,
        {"kind": "as-written"},
    ],
)
def test_what_is_no_condition_is_not_read(condition: Any) -> None:
    document, models = copy.deepcopy(certified("as-written"))
    document["conditions"][0] = condition
    with pytest.raises(ModelError, match="cannot be read"):
        checked(document, *models)
