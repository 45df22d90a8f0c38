"""Matching of long chains: how much work it is, and which claims there are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness, Method, ProofVerdict
from qgraph.ops.known_values import KnownValues
from qgraph.proof.certify import certify
from qgraph.proof.matching.attained import Attained
from qgraph.proof.matching.classes import ValueClasses
from qgraph.proof.matching.match import Kind, Matching
from qgraph.proof.matching.normalise import normalised_models

Models = Callable[[int], tuple[ir.Model, ir.Model]]

HEAD = '<ir_version: 10, opset_import: ["": 21]> net (float[N] x) => (float[N] y) '


def chains(count: int) -> tuple[ir.Model, ir.Model]:
    """Return clamps of 0 and 6 between negations, written as Clip and as Max and Min."""
    clips, pairs = [], []
    for i in range(count):
        last, inner = f"{'a' if i else 'x'}{i - 1 if i else ''}", f"n{i}"
        name = "y" if i == count - 1 else f"a{i}"
        clips.append(f"{inner} = Neg ({last}) {name} = Clip ({inner}, l, h)")
        pairs.append(f"{inner} = Neg ({last}) m{i} = Max ({inner}, l) {name} = Min (m{i}, h)")
    numbers = "<float l = {0}, float h = {6}> "
    texts = ["{ " + " ".join(lines) + " }" for lines in (clips, pairs)]
    return ir.from_onnx_text(HEAD + numbers + texts[0]), ir.from_onnx_text(
        HEAD + numbers + texts[1]
    )


def blocks(count: int) -> tuple[ir.Model, ir.Model]:
    """Return residual blocks with quantizers in two forms."""
    return residual(count, PIECES, "d"), residual(count, QUANT, "d")


def matched(count: int, models: Models = chains) -> Matching:
    return Matching(*normalised_models(*models(count), keep_inputs=False))


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("models", [chains, blocks])
def test_matching_takes_work_in_proportion_to_a_chain(
    monkeypatch: pytest.MonkeyPatch, models: Models
) -> None:
    work = 0
    own = ValueClasses.class_of

    def counted(self, side, value):
        nonlocal work
        work += 1
        return own(self, side, value)

    monkeypatch.setattr(ValueClasses, "class_of", counted)
    few = matched(100, models), work
    work = 0
    many = matched(400, models), work
    assert many[1] <= 5.5 * few[1]
    for matching, count in ((few[0], 100), (many[0], 400)):
        assert [claim.kind for claim in matching.claims] == [Kind.REGION] * count


def test_each_region_of_a_chain_begins_at_the_nearest_value_and_may_begin_at_the_input() -> None:
    matching = matched(100)
    for place, claim in enumerate(matching.claims):
        assert claim.entries[0][0].name == f"n{place}"
        assert claim.entries[-1][0].name == "x"


@pytest.mark.slow
def test_a_long_chain_is_proved() -> None:
    certificate = certify(*chains(300)).certificate
    assert certificate.exactness is Exactness.BITS
    assert len(certificate.regions) == 300


def residual(blocks: int, form: str, branch: str) -> ir.Model:
    """Return blocks that add a quantized branch to what they begin with."""
    head = HEAD.replace("21]", '21, "qonnx.custom_op.general": 2]')
    lines, last = [], "x"
    for i in range(blocks):
        end = "y" if i == blocks - 1 else f"s{i}"
        quantizer = form.format(x=last, c=f"c{i}", d=f"{branch}{i}")
        lines.append(f"{quantizer} {end} = Add ({last}, {branch}{i})")
        last = end
    numbers = "<float s = {0.5}, int8 z = {0}, float zero = {0}, float bits = {8}> "
    return ir.from_onnx_text(f"{head}{numbers}{{ {' '.join(lines)} }}")


PIECES = "{c} = QuantizeLinear ({x}, s, z) {d} = DequantizeLinear ({c}, s, z)"
QUANT = (
    "{d} = qonnx.custom_op.general.Quant <signed = 1, narrow = 0, rounding_mode = "
    '"ROUND"> ({x}, s, zero, bits)'
)


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("branch", ["d", "e"])
@pytest.mark.parametrize("count", [1, 3, 100])
def test_branches_are_proved_where_they_are_joined(count: int, branch: str) -> None:
    """The sum itself is no step function of what its branches begin with."""
    models = residual(count, PIECES, "d"), residual(count, QUANT, branch)
    certificate = certify(*models).certificate
    assert certificate.exactness is Exactness.VALUES
    assert len(certificate.regions) == count
    assert all(each.method is Method.INTERVALS for each in certificate.regions)


def test_a_difference_in_a_branch_is_found() -> None:
    wider = residual(3, PIECES, "d")
    wider.graph.initializers["s"].const_value = ir.tensor([0.25], name="s")
    certificate = certify(residual(3, QUANT, "e"), wider).certificate
    assert certificate.verdict is ProofVerdict.DIFFERENT


def test_what_comes_before_unlike_operators_is_compared_by_its_names() -> None:
    body = "{q} a = Neg (d) y = {last}"
    head = HEAD.replace("21]", '21, "qonnx.custom_op.general": 2]')
    numbers = "<float s = {0.5}, int8 z = {0}, float zero = {0}, float bits = {8}> "
    models = [
        ir.from_onnx_text(f"{head}{numbers}{{ {body.format(q=form, last=last)} }}")
        for form, last in (
            (PIECES.format(x="x", c="c", d="d"), "Sin (a)"),
            (QUANT.format(x="x", d="d"), "Cos (a)"),
        )
    ]
    certificate = certify(*models).certificate
    assert {str(each.reference_value): str(each.verdict) for each in certificate.regions} == {
        "d": "proved",
        "y": "undecided",
    }


@pytest.mark.exhaustive
def test_branches_that_are_truth_values_are_undecided() -> None:
    body = "{ a = LessOrEqual (x, l) b = LessOrEqual (x, m) c = And (a, b) y = Where (c, x, z) }"
    numbers = "<float l = {L}, float m = {M}, float z = {0}> "
    models = [
        ir.from_onnx_text(HEAD + numbers.replace("L", low).replace("M", m) + body)
        for low, m in (("0.5", "0.1"), ("0.6", "0.2"))
    ]
    certificate = certify(*models).certificate
    assert certificate.verdict is not ProofVerdict.PROVED


def test_limits_are_found_behind_chains_of_any_length() -> None:
    """A Clip gives numbers from -1 to 1, and a Relu behind it those from 0 to 1."""
    first = ir.Value(name="x", shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.FLOAT))
    ends = [
        ir.Value(name=n, const_value=ir.tensor(np.float32(e))) for n, e in (("l", -1), ("h", 1))
    ]
    nodes = [ir.node("Clip", [first, *ends])]
    for _ in range(10_000):
        nodes.append(ir.node("Transpose", nodes[-1].outputs[:1]))
    nodes.append(ir.node("Relu", nodes[-1].outputs[:1]))
    for node in nodes:
        node.outputs[0].dtype, node.outputs[0].shape = ir.DataType.FLOAT, ir.Shape([1])
    graph = ir.Graph(
        [first], nodes[-1].outputs, nodes=nodes, initializers=ends, opset_imports={"": 21}
    )
    known = KnownValues({"": 21})
    known.enter(graph)
    found = Attained(known, {"": 21}).limits(graph.outputs[0])
    assert found is not None
    assert (found.lo.tolist(), found.hi.tolist()) == ([0.0], [1.0])
