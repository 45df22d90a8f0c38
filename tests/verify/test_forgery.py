"""Certificates made up by hand for models that are not equal, or for no reason, are refused."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import onnx_ir as ir
import pytest

import qgraph
from qgraph.conditions import AFTER_DIFFERENCE, AS_WRITTEN, EQUAL_OPERATORS, ZERO_SIGNS
from qgraph.errors import EquivalenceError, ModelError
from qgraph.proof.functions import enumeration
from qgraph.text import json_text
from qgraph.version import SEMANTICS
from tests.verify.checking import checked, confirmed, verify

HEADER = '<ir_version: 10, opset_import: ["": 21]>'


def model(
    body: str, parameters: str = "", x: str = "float[4] x", y: str = "float[4] y"
) -> ir.Model:
    return ir.from_onnx_text(f"{HEADER} g ({x}) => ({y}) <{parameters}> {{ {body} }}")


def region(nodes: tuple[list[str], list[str]], values: tuple[str, str], **changes: Any) -> dict:
    return {
        "reference_nodes": nodes[0],
        "candidate_nodes": nodes[1],
        "reference_value": values[0],
        "candidate_value": values[1],
        "entries": [["x", "x"]],
        "verdict": "proved",
        "exactness": "bits",
        "method": "congruence",
        "counted": True,
        "conditions": [],
        "differing_inputs": 0,
        "zero_sign_inputs": 0,
        "channels": 1,
        "differing_channels": [],
        "largest_steps": None,
        "nan_differs": False,
        "infinity_differs": False,
        "witness": None,
        "bound": None,
        "reason": None,
        "reason_id": None,
        "boxes": [],
        "cases": [],
    } | changes


def document(*regions: dict, **changes: Any) -> dict:
    return {
        "semantics": SEMANTICS,
        "verdict": "proved",
        "exactness": "bits",
        "keep_inputs": False,
        "limits": [],
        "against": "execution",
        "order": "any",
        "conditions": [AS_WRITTEN.to_json(), EQUAL_OPERATORS.to_json()],
        "notes": [],
        "shown_by": None,
        "facts": [],
        "regions": list(regions),
    } | changes


def fact(side: str, kind: str, shape: list[int]) -> dict:
    """What a certificate lists of the output."""
    return {"model": side, "tensor": "y", "type": kind, "shape": shape, "because": ""}


def refused(
    made: dict, ours: ir.Model, theirs: ir.Model, match: str = "", *, outright: bool = True
) -> None:
    """Assert that a certificate is refuted, or at least confirmed by nobody.

    Args:
        made: the certificate.
        ours: the reference.
        theirs: the candidate.
        match: what the checker gives as a reason.
        outright: whether the checker refutes it alone, or leaves that to the prover.
    """
    found = checked(made, ours, theirs)
    reasons = [str(part.reason) for part in found.parts if part.status != "checked"]
    assert (found.is_refuted, str(found.verdict)) == (outright, "undecided"), reasons
    assert re.search(match, "; ".join(reasons)), reasons
    if not outright:
        try:
            verdict = confirmed(made, found, ours, theirs)
        except EquivalenceError:
            return
        assert verdict == "undecided"


def test_a_made_up_certificate_holds_where_it_is_true():
    ours = model("[n] a = Sign(x) [y] y = Exp(a)")
    theirs = model("[n] b = Sign(x) [y] y = Exp(b)")
    made = document(region((["n"], ["n"]), ("a", "b")))
    assert verify(made, ours, theirs) == "proved"


def test_nothing_rests_on_itself():
    ours, theirs = model("[y] y = Exp(x)"), model("[y] y = Sin(x)")
    empty = region(([], []), ("y", "y"), entries=[["y", "y"]])
    refused(document(empty), ours, theirs, "no region proves output 'y' equal", outright=False)
    ours, theirs = (model(f"[f] e = {name}(x) [y] y = Identity(e)") for name in ("Exp", "Sin"))
    handed_on = region((["y"], ["y"]), ("y", "y"), entries=[["e", "e"]])
    refused(document(handed_on), ours, theirs, "no region proves output 'y' equal", outright=False)


@pytest.mark.slow
def test_two_regions_do_not_carry_each_other():
    ours = model("[f] e = Exp(x) [a] a = Neg(e) [b] y = Neg(a)")
    theirs = model("[f] e = Sin(x) [a] a = Neg(e) [b] y = Neg(a)")
    regions = [
        region((["a"], ["a"]), ("a", "a"), entries=[["e", "e"]]),
        region((["a", "b"], ["a", "b"]), ("y", "y"), entries=[["e", "e"]]),
    ]
    refused(document(*regions), ours, theirs, "no region proves output 'y' equal", outright=False)


def test_equal_functions_of_unequal_values():
    """The regions hold, but the values that they begin at differ."""
    body = "[q] q = QuantizeLinear(x, {}, z) [d] d = DequantizeLinear(q, s, z) [y] y = Exp(d)"
    scales = "float s = {0.5}, float t = {0.25}, int8 z = {0}"
    ours, theirs = (model(body.format(scale), scales) for scale in "st")
    made = document(region((["d"], ["d"]), ("d", "d"), entries=[["q", "q"]]))
    found = checked(made, ours, theirs)
    assert found.regions[0].status == "checked"
    refused(made, ours, theirs, "no region proves output 'y' equal", outright=False)


def test_a_difference_has_to_concern_the_outputs():
    """Two values that differ, as they may: nothing is said of the outputs by that."""
    ours, theirs = model("[n] a = Neg(x) [y] y = Exp(x)"), model("[n] a = Abs(x) [y] y = Exp(x)")
    shown = {"input": 1.0, "reference": -1.0, "candidate": 1.0, "channel": 0}
    apart = region(
        (["n"], ["n"]),
        ("a", "a"),
        verdict="different",
        exactness="different",
        method="none",
        counted=False,
        infinity_differs=True,
        witness=shown,
        reason="the inputs that differ are not counted: as is said",
    )
    made = document(apart, verdict="different", exactness="different")
    made["conditions"].append(AFTER_DIFFERENCE.to_json())
    refused(made, ours, theirs, "does not decide", outright=False)


def test_integers_wrap():
    """Over real numbers both sides are one function, in INT8 they are not."""
    int8 = "int8 k = {100}"
    ours = model("[c] i = Cast <to = 3> (x) [a] j = Add(i, k) [d] y = Cast <to = 1> (j)", int8)
    theirs = model("[c] i = Cast <to = 3> (x) [a] j = Add(k, i) [d] y = Cast <to = 1> (j)", int8)
    made = document(region((["c", "a", "d"], ["c", "a", "d"]), ("y", "y")))
    refused(made, ours, theirs, "Add of these types", outright=False)


def test_elements_stay_where_they_are():
    reshape = "int64[2] n = {1, 4}"
    flat = {"x": "float[4,1] x", "y": "float[4,4] y"}
    ours = model("[r] r = Reshape(x, n) [y] y = Add(r, x)", reshape, **flat)
    theirs = model("[r] r = Reshape(x, n) [y] y = Add(x, x)", reshape, **flat)
    made = document(region((["r", "y"], ["y"]), ("y", "y")))
    refused(made, ours, theirs, "Reshape has no definition", outright=False)
    ours = model("[r] y = Reshape(x, n)", "int64[2] n = {1, 4}", **flat)
    theirs = model("[r] y = Identity(x)", "", **flat)
    refused(
        document(region((["r"], ["r"]), ("y", "y"))),
        ours,
        theirs,
        "Reshape has no definition",
        outright=False,
    )


def test_parameters_do_not_enlarge_one_side_only():
    ours, theirs = (
        model("[y] y = Add(x, c)", "float c = {1}"),
        model("[y] y = Add(x, c)", "float[1,1] c = {1}"),
    )
    refused(
        document(region((["y"], ["y"]), ("y", "y"))),
        ours,
        theirs,
        "more dimensions",
        outright=False,
    )


def test_scales_of_channels_are_left_to_the_prover():
    """They belong to an axis, and the axes of the models differ."""
    ours, theirs = (
        model(
            f"[q] y = QuantizeLinear <axis = {axis}> (x, s)",
            "float[2] s = {1, 2}",
            "float[2,2] x",
            "uint8[2,2] y",
        )
        for axis in (0, 1)
    )
    made = document(region((["q"], ["q"]), ("y", "y")))
    refused(made, ours, theirs, "several channels", outright=False)


def test_the_sign_of_zero_that_is_left_open_is_no_equality_in_bits():
    """ONNX does not say which zero Max takes of -0 and +0, which Ceil makes of what is above -1."""
    clipped = "[c] c = Ceil(x) [l] l = Min(c, h)"
    ours = model(f"{clipped} [r] y = Relu(l)", "float h = {3}")
    theirs = model(f"{clipped} [r] y = Max(l, o)", "float h = {3}, float o = {0}")
    found = json.loads(json_text(qgraph.prove(ours, theirs, evidence=True).to_json()))
    assert verify(found, ours, theirs) == "proved"
    (made,) = found["regions"]
    assert made["method"] == "intervals"
    assert made["zero_sign_inputs"] > 1 << 29
    changed = copy.deepcopy(found)
    changed["regions"][0] |= {"exactness": "bits", "zero_sign_inputs": 0, "witness": None}
    changed["exactness"] = "bits"
    for boxes in changed["regions"][0]["boxes"]:
        boxes["signs"] = ""
    refused(changed, ours, theirs, "it has no witness")


def test_all_inputs_are_tried_again(monkeypatch):
    # all that there are here: some millions around zero
    finite = 1 << 20
    monkeypatch.setattr(enumeration, "_FINITE", finite)
    chosen = "g = Greater(x, o) [r] y = Where(g, x, o)"
    ours, theirs = model("[r] y = Relu(x)"), model(chosen, "float o = {0}")
    found = json.loads(json_text(qgraph.prove(ours, theirs, evidence=True).to_json()))
    (made,) = found["regions"]
    assert made["method"] == "exhaustive"
    assert verify(found, ours, theirs) == "proved"
    made["zero_sign_inputs"] = 2
    refused(found, ours, theirs, "tries all inputs one by one", outright=False)


@pytest.mark.slow
def test_operators_that_see_the_sign_of_zeros():
    """Whatever the search says: a certificate that leaves a Reciprocal behind is refused."""
    bounded = (
        "[d] d = Div(x, s) [r] r = Round(d) [c] c = Clip(r, l, h) [m] m = Mul(c, s) [y] y = {}(m)"
    )
    linear = (
        "[q] q = QuantizeLinear <output_dtype = 5> (x, s) [m] m = DequantizeLinear(q, s) "
        "[y] y = {}(m)"
    )
    constants = "<float s = {0.5}, float l = {-32768}, float h = {32767}>"
    ours, theirs = (
        [
            ir.from_onnx_text(
                f"{HEADER} g (float[4] x) => (float[4] y) {constants} {{ {body.format(last)} }}"
            )
            for last in ("Neg", "Reciprocal")
        ]
        for body in (bounded, linear)
    )
    found = json.loads(json_text(qgraph.prove(ours[0], theirs[0], evidence=True).to_json()))
    assert verify(found, ours[0], theirs[0]) == "proved"
    kept = [r for r in found["regions"] if r["reference_value"] == "m"]
    if kept:
        refused(found, ours[1], theirs[1], "no region proves output 'y' equal", outright=False)


@pytest.mark.parametrize("made", [{}, {"regions": 3}, {"regions": [{}]}, {"verdict": "certain"}])
def test_what_is_no_certificate(made):
    ours = model("[y] y = Exp(x)")
    whole = {"semantics": SEMANTICS} if not made else document() | made
    with pytest.raises(ModelError, match="cannot be read"):
        verify(whole, ours, ours)


def test_what_is_counted_follows_from_the_method():
    ours = model("[n] a = Sign(x) [y] y = Exp(a)")
    theirs = model("[n] b = Sign(x) [y] y = Exp(b)")
    uncounted = region((["n"], ["n"]), ("a", "b"), counted=False)
    refused(document(uncounted), ours, theirs, "counted: True was found")


ADD = "[y] y = Add(x, u)"
TWO = "float[4] x, float[4] u"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("[y] y = Softmax <axis = 0> (x)", "[y] y = Softmax <axis = -1> (x)"),
        ("[y] y = Sub(x, u)", "[y] y = Sub(u, x)"),
        (ADD, "[y] y = Add(x, x)"),
        ("[y] y = RandomUniformLike(x)", "[y] y = RandomUniformLike(x)"),
        ("[y] y = Clip(x, u)", "[y] y = Clip(x, , u)"),
        ("[y] y = Mean(x, u)", "[y] y = Sum(x, u)"),
    ],
)
def test_only_equal_operators_on_equal_operands_are_equal(ours, theirs):
    sides = [model(body, x=TWO) for body in (ours, theirs)]
    found = checked(document(), *sides)
    assert found.verdict == "undecided"
    assert str(found.outputs.reason).startswith("no region proves output 'y' equal")


def test_inputs_of_two_types_are_not_equal():
    """No certificate makes them so: a Cast of both would give one number for many."""
    body = "[c] c = Cast <to = 1> (x) [y] y = Exp(c)"
    ours, theirs = (model(body, x=f"{kind}[4] x") for kind in ("int8", "uint8"))
    found = checked(document(), ours, theirs)
    assert found.verdict == "undecided"
    assert str(found.outputs.reason).startswith("no region proves output 'y' equal")


def test_operands_that_may_be_swapped():
    found = checked(document(), model(ADD, x=TWO), model("[y] y = Add(u, x)", x=TWO))
    assert found.verdict == "proved"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"conditions": [EQUAL_OPERATORS.to_json()]},
            "the condition 'every operator computes as written",
        ),
        ({"exactness": "codes"}, "its verdict is proved, but its level is codes"),
        ({"verdict": "undecided"}, "its regions give the verdict proved"),
        (
            {"facts": [fact("candidate", "float16", [4])]},
            "'y' of the candidate has another type or shape",
        ),
        (
            {"facts": [fact("reference", "float32", [5])]},
            "'y' of the reference has another type or shape",
        ),
    ],
)
def test_a_certificate_states_no_more_than_holds(changes, reason):
    ours = model(ADD, x=TWO)
    honest = checked(document(facts=[fact("candidate", "float32", [4])]), ours, ours)
    assert honest.statements.status == "checked"
    found = checked(document(**changes), ours, ours)
    assert found.is_refuted
    assert reason in str(found.statements.reason)


def test_constants_are_computed_again():
    ours = model("[c] c = Mul(k, k) [y] y = Add(x, c)", "float[4] k = {1, 2, 3, 4}")
    theirs = model("[d] d = Add(k, l) [y] y = Add(x, d)", CONSTANTS.format(12))
    stated = {"entries": [], "method": "constant"}
    made = document(region((["c"], ["d"]), ("c", "d"), **stated))
    assert checked(made, ours, theirs).verdict == "proved"
    theirs = model("[d] d = Add(k, l) [y] y = Add(x, d)", CONSTANTS.format(11))
    refused(made, ours, theirs, "the constants differ in 1 elements")


CONSTANTS = "float[4] k = {{1, 2, 3, 4}}, float[4] l = {{0, 2, 6, {}}}"
CODES = {"x": "int8[4] x", "parameters": "float s = {0.5}, float o = {0}"}
NEGATED = "[d] d = DequantizeLinear(x, s) [n] a = Neg(d) [y] y = {}(a)"
SUBTRACTED = "[d] d = DequantizeLinear(x, s) [n] a = Sub(o, d) [y] y = {}(a)"
ZERO = {"input": 0.0, "reference": -0.0, "candidate": 0.0, "channel": 0}
SIGNED: dict[str, Any] = {
    "exactness": "values",
    "method": "exhaustive",
    "zero_sign_inputs": 1,
    "witness": ZERO,
}


def signs(**changes: Any) -> dict:
    """A certificate for a value that is -0 in one model and +0 in the other."""
    part = region((["d", "n"], ["d", "n"]), ("a", "a"), **SIGNED | changes)
    conditions = [c.to_json() for c in (AS_WRITTEN, EQUAL_OPERATORS, ZERO_SIGNS(1))]
    return document(part, conditions=conditions, exactness=part["exactness"])


def test_zeros_of_different_signs_are_equal_in_value():
    sides = [model(body.format("Exp"), **CODES) for body in (NEGATED, SUBTRACTED)]
    assert checked(signs(), *sides).verdict == "proved"
    refused(signs(witness=None), *sides, "it has no witness")
    refused(signs(witness=ZERO | {"reference": 0.0}), *sides, "its witness is")
    refused(signs(witness=ZERO | {"input": 1.0}), *sides, "the sides do not differ on its witness")
    refused(signs(zero_sign_inputs=0), *sides, "zero sign inputs: 1 was found")
    others = signs(candidate_nodes=["n"])
    refused(others, *sides, "does not consist of the named nodes", outright=False)
    refused(signs(exactness="bits"), *sides, "exactness: values was found")
    refused(signs(reference_value="d"), *sides, "", outright=False)


@pytest.mark.parametrize("name", ["Reciprocal", "Exp"])
def test_operators_after_zeros_of_different_signs(name):
    sides = [model(body.format(name), **CODES) for body in (NEGATED, SUBTRACTED)]
    found = checked(signs(), *sides)
    assert found.verdict == ("proved" if name == "Exp" else "undecided")


def test_results_that_onnx_does_not_define_are_not_compared():
    """Numbers beyond the range of INT8 have no defined result, nor has NaN."""
    body = "[c] c = Cast <to = 3> (x) [y] y = Cast <to = 1> (c)"
    ours = model(body, x="float16[4] x")
    found = checked(document(region((["c", "y"], ["c", "y"]), ("y", "y"))), ours, ours)
    assert found.regions[0].status == "unchecked"
    assert "ONNX does not define the result" in str(found.regions[0].reason)
