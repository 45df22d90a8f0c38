"""Nodes of one form are lowered once, and only nodes that compute the same are of one form."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.model import load
from qgraph.proof.functions import lowering, pair
from qgraph.proof.functions.expression import Builder, Expr
from qgraph.proof.functions.lowering import Forms, Template
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.quantizer import Affine
from qgraph.quantizers.recognition import readers, regions
from qgraph.quantizers.sites import sites
from qgraph.transforms import ConvertDialect

QUANT = 'qonnx.custom_op.general.Quant <signed = 1, narrow = 0, rounding_mode = "ROUND">'

CONSTANTS = """float s = {0.25}, float same = {0.25}, float t = {0.5}, float z = {0},
    float minus = {-0.0}, float b = {4}, float[1] list = {0.25}, int32 whole = {4}"""


def model_of(body: str, output: str = "y") -> ir.Model:
    return ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
        g (float[2, 8] x, float16[2, 8] w) => (float[2, 8] {output}) <{CONSTANTS}> {{ {body} }}"""
    )


def form_of(node: str):
    (made,) = model_of(f"y = {node}").graph
    return Forms().of(made, {made.inputs[0]: "data"})


def test_the_same_parameters_under_other_names_make_one_form():
    assert form_of(f"{QUANT} (x, s, z, b)") == form_of(f"{QUANT} (x, same, z, b)")


@pytest.mark.parametrize(
    "other",
    [
        f"{QUANT} (x, t, z, b)",
        f"{QUANT} (x, s, minus, b)",
        f"{QUANT} (x, list, z, b)",
        f"{QUANT} (x, s, z, whole)",
        f"{QUANT} (w, s, z, b)",
        f"{QUANT.replace('signed = 1', 'signed = 0')} (x, s, z, b)",
        f"{QUANT.replace('signed = 1', 'signed = 1.0')} (x, s, z, b)",
        f"{QUANT.replace('ROUND', 'FLOOR')} (x, s, z, b)",
        f"{QUANT.replace('Quant', 'IntQuant')} (x, s, z, b)",
        "Clip (x, s, z, b)",
    ],
)
def test_any_difference_makes_another_form(other):
    assert form_of(f"{QUANT} (x, s, z, b)") != form_of(other)


def test_operands_make_the_form():
    (node,) = model_of("y = Add (x, x)").graph
    forms = Forms()
    assert forms.of(node, {node.inputs[0]: 0}) != forms.of(node, {node.inputs[0]: 1})


def test_nodes_with_graphs_or_tensors_are_like_no_other():
    (node,) = model_of("y = Constant <value = float {1}> ()").graph
    assert Forms().of(node, {}) is None


def quantized(op: Builder, x: Expr) -> Expr:
    y = op.Add(op.Div(x, np.float32(0.25)), np.float32(3))
    sign = op.Where(op.GreaterOrEqual(y, 0.0), 1.0, -1.0)
    return op.Mul(op.Sub(op.Round(op.Min(op.Max(y, 0.0), op.Pow(2.0, 3.0))), sign), y)


def test_a_template_over_other_operands_is_what_tracing_gives():
    op = Builder()
    first, second = op.Neg(op.input), op.Abs(op.input)
    made = Template.of(quantized(op, first), [first]).over(op, [second])
    # A builder makes each expression once, so that equal ones are the same object.
    assert made is quantized(op, second)
    assert made is not quantized(op, first)


def test_a_template_of_two_operands_keeps_them_apart():
    op = Builder()
    a, b = op.Neg(op.input), op.Abs(op.input)
    template = Template.of(op.Sub(a, op.Mul(b, a)), [a, b])
    assert template.over(op, [b, a]) is op.Sub(b, op.Mul(a, b))


def test_a_template_may_be_its_operand_or_a_constant():
    op = Builder()
    three = op.constant(np.float32(3))
    assert Template.of(op.input, [op.input]).over(op, [op.Neg(op.input)]) is op.Neg(op.input)
    assert Template.of(three, [op.input]).over(op, [op.Neg(op.input)]) is three


def lowered(monkeypatch) -> list[str]:
    """Return a list to which the operators of nodes are added when these are lowered."""
    names: list[str] = []
    lower_node = pair.lower_node

    def counted(node, *others):
        names.append(node.op_type)
        return lower_node(node, *others)

    for module in (pair, lowering, regions):
        monkeypatch.setattr(module, "lower_node", counted)
    return names


def lowered_in(body: str, monkeypatch, output: str = "y") -> tuple[list[str], list[Site]]:
    names = lowered(monkeypatch)
    found = list(sites(model_of(body, output)))
    assert all(isinstance(site, Site) for site in found)
    return names, [site for site in found if isinstance(site, Site)]


def test_nodes_of_one_form_are_lowered_once(monkeypatch):
    lines = [f"r{i} = Relu ({'x' if i == 0 else f'q{i - 1}'})" for i in range(6)]
    body = " ".join(f"{line} q{i} = {QUANT} (r{i}, s, z, b)" for i, line in enumerate(lines))
    # What scales a quantizer may be a part of one.
    names, found = lowered_in(f"{body} y = Mul (q5, t)", monkeypatch)
    # All types are inferred, also those that are not stated.
    assert sorted(names) == ["Mul", "Quant", "Relu"]
    assert len(found) == 6


def test_drafts_that_differ_in_their_scale_are_lowered_once(monkeypatch):
    parts = (f"p{i} = Softmax (x) q{i} = {QUANT} (p{i}, {s}, z, b)" for i, s in enumerate("st"))
    model = load(model_of(f"{' '.join(parts)} a = Sum (q0, q1) y = Softmax (a)"))
    names = lowered(monkeypatch)
    report = model.apply(ConvertDialect(to="qdq"))
    # A Clip to 4 bits has no scale.
    others = [name for name in names if name != "Clip"]
    assert sorted(others) == ["DequantizeLinear", "Quant", "QuantizeLinear"]
    scales = [node.inputs[1].const_value for node in model.nodes() if len(node.inputs) > 1]
    assert {float(scale.numpy()) for scale in scales if scale is not None} >= {0.25, 0.5}
    assert [entry.verdict.exactness for entry in report.sites] == [Exactness.VALUES] * 2


def test_a_quantizer_without_elementwise_neighbours_is_not_lowered(monkeypatch):
    body = f"p = Softmax (x) q = {QUANT} (p, s, z, b) y = Softmax (q)"
    names, found = lowered_in(body, monkeypatch)
    assert names == []
    assert [[node.op_type for node in site.nodes] for site in found] == [["Quant"]]


def test_an_operator_behind_a_quantizer_is_seen(monkeypatch):
    body = f"p = Softmax (x) q = {QUANT} (p, s, z, b) y = Mul (q, t)"
    names, _ = lowered_in(body, monkeypatch)
    assert names == ["Quant", "Mul"]


def test_chains_that_differ_in_one_number_keep_their_own():
    parts = []
    for i, (before, after) in enumerate([("s", "same"), ("t", "t"), ("s", "s"), ("s", "t")]):
        parts.append(
            f"p{i} = Softmax (x) d{i} = Div (p{i}, {before}) c{i} = Clip (d{i}, z, b) "
            f"r{i} = Round (c{i}) y{i} = Mul (r{i}, {after})"
        )
    body = " ".join([*parts, "a = Sum (y0, y1, y2, y3) y = Softmax (a)"])
    found = {site.y.name: site.quantizer for site in sites(model_of(body))}
    scales = {
        name: float(meaning.scale) for name, meaning in found.items() if isinstance(meaning, Affine)
    }
    # The last one divides by another scale than it multiplies by, and is no quantizer of one scale.
    assert scales == {"y0": 0.25, "y1": 0.5, "y2": 0.25}


def test_what_is_remembered_of_steps_outlives_them(monkeypatch):
    """Steps that are made anew each time must not be taken for others at the same address."""
    asked = []
    quantizer_of = readers.quantizer_of

    def checked(steps, spelling):
        asked.append(tuple(steps))
        return quantizer_of(steps, spelling)

    monkeypatch.setattr(readers, "quantizer_of", checked)
    lines = []
    for i in range(12):
        mode = "Floor" if i % 2 else "Ceil"
        lines.append(
            f"p{i} = Softmax (x) d{i} = Div (p{i}, s) g{i} = Sign (d{i}) a{i} = Abs (d{i}) "
            f"u{i} = {mode} (a{i}) r{i} = Mul (g{i}, u{i}) c{i} = Clip (r{i}, z, b) "
            f"y{i} = Mul (c{i}, s)"
        )
    last = ", ".join(f"y{i}" for i in range(12))
    model = load(model_of(" ".join([*lines, f"a = Sum ({last}) y = Softmax (a)"])))
    modes = [site.quantizer.rounding.name for site in sites(model.ir)]
    assert modes == ["UP", "DOWN"] * 6
    assert len(asked) < 12 * 2
