"""Operators that change no quantizer next to them: none of both is searched, and none is missed."""

from __future__ import annotations

import random

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.graph.inference.walk import with_facts
from qgraph.numerics.rounding import Rounding
from qgraph.quantizers import sites as matcher
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.quantizer import Affine
from qgraph.quantizers.recognition.readers import quantizer_of
from qgraph.quantizers.recognition.regions import is_elementwise, searched
from qgraph.quantizers.recognition.steps import (
    ArithmeticStep,
    Limited,
    Notation,
    Rounded,
    Signed,
    Step,
)
from qgraph.quantizers.sites import sites

QUANT = 'qonnx.custom_op.general.Quant <signed = 1, narrow = 0, rounding_mode = "ROUND">'
BIT = 'qonnx.custom_op.general.Quant <signed = 0, narrow = 0, rounding_mode = "ROUND">'
NUMBERS = """float s = {0.25}, float t = {0.5}, float one = {1}, float z = {0}, float b = {4},
    float bit = {1}, int8 c = {0}, int8 l = {-2}, int8 h = {1}, float m = {-8}, float n = {7},
    int8[2] codes = {1, -2}, float[2] w = {0.5, -1}"""


def model_of(body: str) -> ir.Model:
    return ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
        net (float[2] x) => (float[2] y) <{NUMBERS}> {{ {body} }}"""
    )


def found_in(body: str) -> list[Site]:
    return [site for site in sites(model_of(body)) if isinstance(site, Site)]


PAIR = "p = QuantizeLinear (x, s, c) d = DequantizeLinear (p, s, c)"
CLIPPED = "p = QuantizeLinear (x, s, c) k = Clip (p, l, h) d = DequantizeLinear (k, s, c)"


@pytest.mark.parametrize(
    "body",
    [
        f"r = Relu (x) y = {QUANT} (r, s, z, b)",
        f"q = {QUANT} (x, s, z, b) a = Neg (q) o = {QUANT} (a, t, z, b) y = Add (x, o)",
        f"{PAIR} y = Relu (d)",
        f"n0 = Neg (x) {CLIPPED.replace('(x', '(n0')} y = Abs (d)",
        "d = DequantizeLinear (codes, s, c) y = Add (x, d)",
        "k = Clip (codes, l, h) d = DequantizeLinear (k, s, c) y = Add (x, d)",
        f"{PAIR} e = DequantizeLinear (codes, s, c) y = Mul (d, e)",
    ],
)
def test_nothing_is_searched_among_operators_that_change_no_quantizer(body: str) -> None:
    assert searched(with_facts(model_of(body)).graph, ()) == []


@pytest.mark.parametrize(
    ("body", "operators"),
    [
        (f"q = {QUANT} (x, one, z, b) y = Relu (q)", ["Quant", "Relu"]),
        (f"v = Div (x, s) q = {QUANT} (v, one, z, b) y = Mul (q, s)", ["Div", "Quant", "Mul"]),
        (
            "p = QuantizeLinear (x, s, c) k = Relu (p) y = DequantizeLinear (k, s, c)",
            ["QuantizeLinear", "Relu", "DequantizeLinear"],
        ),
        (
            f"r = Relu (x) v = Min (r, n) y = {QUANT} (v, s, z, b)",
            ["Relu", "Min", "Quant"],
        ),
    ],
)
def test_operators_that_change_a_quantizer_belong_to_it(body: str, operators: list[str]) -> None:
    (site,) = found_in(body)
    assert [node.op_type for node in site.nodes] == operators


def test_a_constant_of_the_form_of_data_is_a_weight() -> None:
    body = f"q = {QUANT} (x, s, z, b) v = {QUANT} (w, s, z, b) y = Add (q, v)"
    data, weight = found_in(body)
    assert data.weight is None
    assert weight.weight is not None


def test_a_negated_number_is_no_range_of_two_levels() -> None:
    (site,) = found_in(f"a = Neg (x) y = {BIT} (a, s, z, bit)")
    assert [node.op_type for node in site.nodes] == ["Quant"]
    assert isinstance(site.meaning, Affine)


def array(number: float) -> np.ndarray:
    return np.asarray(number, np.float32)


SCALES = (0.25, 0.5, 2.0, 3.0, 4.0, -1.0, -0.5, 1e-45)


def quantizer(draw: random.Random) -> list[Step]:
    """Return the steps of a Quant, or of a QuantizeLinear and a DequantizeLinear."""
    scale, other = (array(draw.choice(SCALES)) for _ in range(2))
    zero = array(draw.choice([0, 0, 1, 3, 0.5]))
    lo, hi = (array(end) for end in draw.choice([(0, 1), (-1, 1), (-8, 7), (0, 15), (0, 0.5)]))
    limits: list[Step] = [Limited("Max", lo), Limited("Min", hi)]
    rounded = Rounded(draw.choice([Rounding.ROUND, Rounding.FLOOR]))
    before = ArithmeticStep("Div", scale)
    after = [ArithmeticStep("Sub", zero), ArithmeticStep("Mul", scale)]
    match draw.randrange(3):
        case 0:
            return [before, ArithmeticStep("Add", zero), *limits, rounded, *after]
        case 1:
            return [before, ArithmeticStep("Add", zero), Signed(array(1), array(-1)), *after]
        case _:
            after[1] = ArithmeticStep("Mul", draw.choice([scale, other]))
            return [before, rounded, *limits, ArithmeticStep("Add", zero), *limits, *after]


@pytest.mark.exhaustive
def test_no_quantizer_of_several_nodes_is_missed() -> None:
    draw = random.Random(0)
    notations = [Notation("qonnx"), Notation("qdq", is_pair=True), Notation("qdq")]
    for _ in range(4000):
        parts: list[list[Step]] = [quantizer(draw)]
        for _ in range(draw.randint(1, 3)):
            other = draw.choice(
                [[Limited("Max", array(0))], [ArithmeticStep("Mul", array(-1))], quantizer(draw)]
            )
            parts.insert(draw.randint(0, len(parts)), other)
        steps = [step for part in parts for step in part]
        assert [quantizer_of(steps, notation) for notation in notations] == [None] * 3, steps
        codes = [ArithmeticStep("Sub", array(1)), ArithmeticStep("Mul", array(0.25)), *steps]
        assert quantizer_of(codes, Notation("qdq", codes="INT8")) is None, codes


@pytest.mark.slow
def test_a_search_among_all_nodes_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    pair = "p{0} = QuantizeLinear ({1}, {2}, c) v{0} = DequantizeLinear (p{0}, {2}, c)"
    operators = [
        pair,
        f"v{{0}} = {QUANT} ({{1}}, {{2}}, z, b)",
        "v{0} = Relu ({1})",
        "v{0} = Neg ({1})",
        "v{0} = Add ({1}, x)",
        "v{0} = Mul ({1}, {2})",
        "v{0} = Clip ({1}, m, n)",
    ]
    joined = 0
    for _ in range(60):
        lines, last = [], "x"
        for i in range(6):
            lines.append(draw.choice(operators).format(i, last, draw.choice(["s", "t", "one"])))
            last = f"v{i}"
        body = " ".join([*lines, f"y = Identity ({last})"])
        some = [(site.y.name, len(site.nodes)) for site in found_in(body)]
        with monkeypatch.context() as patch:
            patch.setattr(
                matcher, "searched", lambda nodes, alone: list(filter(is_elementwise, nodes))
            )
            assert some == [(site.y.name, len(site.nodes)) for site in found_in(body)], body
        joined += any(count > 2 for _, count in some)
    assert joined > 10
