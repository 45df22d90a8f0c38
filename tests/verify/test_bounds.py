"""Bounds of a certificate, recomputed by the checker alone."""

from __future__ import annotations

import copy
import functools
import importlib.util
import itertools
import json
import re
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph import transforms
from qgraph.bound import Bounding
from qgraph.errors import EquivalenceError
from qgraph.text import json_text
from tests.verify.checking import checked, confirmed, leaves

MAKE_MOBILENET = Path(__file__).parents[1] / "benchmarks" / "make_mobilenet.py"

LAYER = """<ir_version: 10, opset_import: ["": 21]>
    net (uint4[1,3] x) => (int8[1,2] y)
    <int8[3,2] w = {3, -5, 7, 2, -1, 6}, float s = {0.3}, float s_y = {0.11}, uint4 z = {2},
     int8 z_y = {0}, float[2] f = {1.7, 0.9}, float[2] b = {0.5, -0.3}, float[2] c = {0.6, -0.3},
     float s_w = {0.07}, float[2] s_v = {0.119, 0.0631}> {
        a = DequantizeLinear (x, s, z)
        FORM
        r = Relu (n)
        [end] y = QuantizeLinear (r, s_y, z_y)
    }"""
FORMS = (
    "v = DequantizeLinear (w, s_w) m = MatMul (a, v) k = Mul (m, f) n = Add (k, b)",
    "v = DequantizeLinear <axis = 1> (w, s_v) m = MatMul (a, v) n = Add (m, c)",
)


def layer(form: int, scale: str = "0.0631") -> ir.Model:
    return ir.from_onnx_text(LAYER.replace("FORM", FORMS[form]).replace("0.0631", scale))


def pair() -> tuple[ir.Model, ir.Model]:
    return layer(0), layer(1)


@functools.cache
def proved(against: str) -> str:
    request = Bounding("8step", against=against)
    proof = qgraph.prove(*pair(), evidence=True, within=request)
    return json_text(proof.to_json())


def proof_of_pair(against: str = "execution") -> dict[str, Any]:
    return dict(json.loads(proved(against)))


def true_shift() -> list[Fraction]:
    """How far both layers lie apart in real numbers, in steps of the codes, by channel."""
    exact = lambda text: Fraction(float(np.float32(text)))  # noqa: E731
    weights = [[3, -5], [7, 2], [-1, 6]]
    found = []
    numbers = [(1.7, 0.5, 0.6, 0.119), (0.9, -0.3, -0.3, 0.0631)]
    for channel, (f, b, c, scale) in enumerate(numbers):
        apart = []
        for codes in itertools.product(range(16), repeat=3):
            total = sum((x - 2) * w[channel] for x, w in zip(codes, weights, strict=True))
            real = total * exact(0.3)
            one = max(real * exact(0.07) * exact(f) + exact(b), 0) / exact(0.11)
            other = max(real * exact(scale) + exact(c), 0) / exact(0.11)
            apart.append(abs(min(one, 128) - min(other, 128)))
        found.append(max(apart))
    return found


def stated(document: dict[str, Any]) -> dict[str, Any]:
    return next(r["bound"] for r in document["regions"] if r["verdict"] == "bounded")


@pytest.mark.slow
def test_a_bound_is_checked_and_lies_above_exact_arithmetic():
    document = proof_of_pair()
    found = checked(document, *pair())
    assert str(found.verdict) == "bounded"
    assert found.counts == {"checked": 2, "unchecked": 0, "refuted": 0}
    bound = stated(document)
    for row, exact in zip(bound["channels"], true_shift(), strict=True):
        assert exact <= row[2] <= exact * Fraction(5, 4)


@pytest.mark.parametrize(
    "name",
    ["deviation_steps", "tie_distance_steps", "reference_error", "candidate_error", "ideal_shift"],
)
@pytest.mark.parametrize("against", ["execution", "ideal"])
def test_a_smaller_figure_is_not_checked(name, against):
    document = proof_of_pair(against)
    stated(document)[name] *= 0.5
    assert leaves(document, *pair())


def test_the_error_of_the_reference_counts_against_what_it_executes():
    """Both layers mean one function, so that nothing but the errors tells them apart."""
    gemm = LAYER.replace("FORM", f"{FORMS[1].partition(' m =')[0]} n = Gemm (a, v, c)")
    models = layer(1), ir.from_onnx_text(gemm)
    documents = {}
    for against in ("execution", "ideal"):
        proof = qgraph.prove(*models, evidence=True, within=Bounding("8step", against=against))
        documents[against] = json.loads(json_text(proof.to_json()))
        assert str(checked(documents[against], *models).verdict) == "bounded"
    less, document = stated(documents["ideal"])["deviation_steps"], documents["execution"]
    assert less < 0.6 * stated(document)["deviation_steps"]
    stated(document)["deviation_steps"] = less
    assert leaves(document, *models)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"max_steps": 0}, "max steps"),
        ({"order": "chunk:2"}, "another question"),
        ({"against": "ideal"}, "another question"),
        ({"levels": 1000.0}, "levels"),
        ({"levels": float("nan")}, "levels"),
        ({"absolute": 1e-9}, "absolute"),
        ({"channels": [[0.0, 0.0, 0.0]] * 2}, "of a channel"),
        ({"channels": [[9.0, 9.0, 9.0]] * 3}, "2 channels"),
        ({"code_shift": 1}, "ideal shift|max steps|deviation"),
    ],
)
def test_a_changed_bound_is_not_checked(changes, reason):
    document = proof_of_pair()
    stated(document).update(changes)
    reasons = [str(part.reason) for part in checked(document, *pair()).regions]
    assert any(re.search(reason, text) for text in reasons), reasons


@pytest.mark.parametrize("side", ["reference_nodes", "candidate_nodes"])
@pytest.mark.parametrize("names", [[], ["end", "r"], ["r"]])
def test_a_region_ends_at_the_nodes_that_it_names(side, names):
    document = proof_of_pair()
    region = next(each for each in document["regions"] if each["verdict"] == "bounded")
    assert region[side] == ["end"]
    region[side] = names
    reasons = [str(part.reason) for part in checked(document, *pair()).regions]
    assert "it does not end at the named nodes" in reasons


def test_a_looser_bound_is_checked():
    document = proof_of_pair()
    bound = stated(document)
    bound |= {
        name: 2 * bound[name] for name in bound if name.endswith(("_steps", "error", "shift"))
    }
    bound["channels"] = []
    assert str(checked(document, *pair()).verdict) == "bounded"


def test_a_bound_for_chunks_is_no_bound_for_any_order():
    models = [qgraph.load(model) for model in pair()]
    proof = qgraph.prove(*models, evidence=True, within=Bounding("8step", order="chunk:1"))
    document = copy.deepcopy(proof.to_json())
    document["order"] = stated(document)["order"] = "any"
    found = checked(document, *models)
    assert found.is_refuted


def test_other_models_have_other_bounds():
    document = proof_of_pair()
    for others in ((layer(0), layer(1, "0.0633")), pair()[::-1]):
        assert str(checked(document, *others).verdict) == "undecided"


def test_an_output_has_no_shift_of_codes():
    pair = [ir.from_onnx_text(POOLED.replace("POOL", p)) for p in (POOL, OF_ALL)]
    proof = qgraph.prove(*pair, evidence=True, within="8step")
    document = json.loads(json_text(proof.to_json()))
    assert str(checked(document, *pair).verdict) == "bounded"
    stated(document)["code_shift"] = 1
    assert checked(document, *pair).is_refuted


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("uint4", "uint8", "UINT4 in the reference and UINT8"),
        ("[1,", "[2,", "[1,3] in the reference"),
    ],
)
def test_models_that_take_different_inputs_have_no_bounds(old, new, reason):
    document = proof_of_pair() | {"facts": []}
    other = ir.from_onnx_text(LAYER.replace("FORM", FORMS[1]).replace(old, new))
    found = checked(document, layer(0), other)
    assert found.is_refuted
    assert reason in str(found.outputs.reason)


def test_weights_of_zero_are_no_multiple_of_others():
    def sides(*weights: str) -> list[ir.Model]:
        text = LAYER.replace("uint4 z = {2}", "uint4 z = {0}")
        forms = [text.replace("FORM", form) for form in FORMS]
        pairs = zip(forms, weights, strict=True)
        return [ir.from_onnx_text(form.replace("3, -5, 7, 2, -1, 6", w)) for form, w in pairs]

    zeros, others = "3, 0, 7, 0, -1, 0", "3, 5, 7, 2, -1, 6"
    document = qgraph.prove(*sides(zeros, zeros), evidence=True, within="8step").to_json()
    document = json.loads(json_text(document))
    bound = stated(document)
    bound |= {"channels": [], "candidate_error": 2 * bound["candidate_error"]}
    assert str(checked(document, *sides(zeros, zeros)).verdict) == "bounded"
    # codes of the second channel differ by up to 33
    for weights in ((zeros, others), (others, zeros)):
        assert leaves(document, *sides(*weights))


@pytest.mark.parametrize("name", ["Relu", "Clip"])
def test_an_unknown_operator_is_no_standard_one_of_its_name(name):
    end = "g = Div (r, s_y) h = Round (g) y = Clip (h, lo, hi)"
    text = LAYER.replace("[end] y = QuantizeLinear (r, s_y, z_y)", end)
    text = text.replace("int8[1,2] y", "float[1,2] y").replace("21]", '21, "odd": 1]')
    text = text.replace("<int8", "<float lo = {0}, float hi = {9}, int8")
    sides, odd = [
        [ir.from_onnx_text(each.replace("FORM", form)) for form in FORMS]
        for each in (text, text.replace(f"= {name}", f"= odd.{name}"))
    ]
    proof = qgraph.prove(*sides, evidence=True, within="8step")
    document = json.loads(json_text(proof.to_json())) | {"facts": []}
    assert str(checked(document, *sides).regions[0].status) == "checked"
    assert str(checked(document, *odd).regions[0].status) != "checked"


LIMITED = """<ir_version: 10, opset_import: ["": 21]>
    net (uint8[1,4] x) => (float[1,2] y)
    <float s = {0.1}, float t = {0.11}, uint8 z = {0}, uint8 three = {3}, float k = {K},
     int8[4,2] w = {3, -5, 7, 2, -1, 6, 90, -101}, float[2] f = {0.5, -0.3}> {
        d = DequantizeLinear (x, s, z)
        [one] all = QuantizeLinear (d, t, z)
        few = Clip (all, z, three)
        e = DequantizeLinear (CODES, t, z)
        v = DequantizeLinear (w, k)
        m = MatMul (e, v)
        y = Add (m, f)
    }"""


def test_codes_with_and_without_limits_are_not_taken_for_equal():
    one, other, without = (
        ir.from_onnx_text(LIMITED.replace("CODES", codes).replace("K}", f"{scale}}}"))
        for codes, scale in (("few", 2), ("few", 2.01), ("all", 2.01))
    )
    proof = qgraph.prove(one, other, evidence=True, within="8step")
    document = json.loads(json_text(proof.to_json())) | {"facts": []}
    assert str(checked(document, one, other).verdict) == "bounded"
    # the largest code is round(25.5 / 0.11) = 232, not 3
    assert str(checked(document, one, without).verdict) == "undecided"


CODES = """<ir_version: 10, opset_import: ["": 21]>
    net (uint8[2,1200] x) => (uint8[2,2] y)
    <uint8[1200,2] w = {W}, A s_a = {S_A}, uint8 z = {0}, B s_b = {S_B}, uint8 z_w = {128},
     float s_y = {120}, uint8 z_y = {128}> {
        [end] y = QLinearMatMul (x, s_a, z, w, s_b, z_w, s_y, z_y)
    }"""


def product_of_codes(*scales: tuple[float, ...]) -> ir.Model:
    """A sum that may exceed 2**24, so that codes are not compared for each sum."""
    weights = np.random.default_rng(0).choice([1, 255], 2400)
    text = CODES.replace("{W}", f"{{{', '.join(map(str, weights))}}}")
    for name, kind, scale in zip(("{S_A}", "{S_B}"), ("A s_a", "B s_b"), scales, strict=True):
        text = text.replace(name, f"{{{', '.join(map(str, scale))}}}")
        dtype = "float" if len(scale) == 1 else f"float[{len(scale)}]"
        text = text.replace(kind, f"{dtype} {kind[2:]}")
    return ir.from_onnx_text(text)


def test_scales_of_rows_are_no_scales_of_columns():
    columns, near = (product_of_codes((0.1,), (scale, 0.1)) for scale in (0.05, 0.05003))
    proof = qgraph.prove(columns, near, evidence=True, within="8step")
    document = json.loads(json_text(proof.to_json()))
    assert str(checked(document, columns, near).verdict) == "bounded"
    rows = product_of_codes((0.1, 0.2), (0.05,))
    assert str(checked(document | {"facts": []}, rows, near).verdict) == "undecided"


HALF_LAYER = """<ir_version: 10, opset_import: ["": 21]>
    net (int8[1,4] x) => (int8[1,2] y)
    <int8[4,2] w = {3, -5, 7, 2, -1, 6, 90, -101}, float16 s = {S}, float16 t = {T},
     float16 u = {U}, int8 z = {0}> {
        a = DequantizeLinear (x, s, z)
        v = DequantizeLinear (w, u, z)
        m = MatMul (a, v)
        [end] y = QuantizeLinear (m, t, z)
    }"""


def half_layer(weight_scale: float) -> ir.Model:
    text = HALF_LAYER
    for name, scale in (("{S}", 0.3), ("{T}", 0.9), ("{U}", weight_scale)):
        bits = int(np.float16(scale).view(np.uint16))
        text = text.replace(name, f"{{{bits}}}")
    return ir.from_onnx_text(text)


def test_a_float16_sum_that_is_added_in_float32_is_left_to_the_prover():
    """It is rounded once more."""
    models = half_layer(0.07), half_layer(0.0701)
    within = Bounding("20step", accumulate="float32")
    document = copy.deepcopy(qgraph.prove(*models, evidence=True, within=within).to_json())
    assert leaves(document, *models)
    # the largest sum is 114 * 128 * 0.3 * 0.07 = 306, where numbers of float16 are 1/4 apart, and
    # the quotient by 0.9 is 340 steps, rounded to a quarter of a step
    bound = stated(document)
    least = (Fraction(1, 8) / Fraction(9, 10) + Fraction(1, 8)) * Fraction(99, 100)
    assert bound["reference_error"] >= least


def test_all_entries_and_outputs_are_needed():
    document = proof_of_pair()
    for place in range(len(document["regions"])):
        changed = copy.deepcopy(document)
        del changed["regions"][place]
        assert str(checked(changed, *pair()).verdict) == "undecided"
    changed = copy.deepcopy(document)
    changed["regions"][0]["entries"] = []
    assert "its entries are others" in str(checked(changed, *pair()).regions[0].reason)


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("change", ["folded", "with codes as biases"])
def test_all_regions_of_a_mobilenet_are_checked(change, monkeypatch):
    spec = importlib.util.spec_from_file_location("make_mobilenet", MAKE_MOBILENET)
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "make_mobilenet", maker)
    spec.loader.exec_module(maker)
    model = qgraph.load(maker.make_mobilenet(0.125))
    if change != "folded":
        model.apply(transforms.FoldBatchNorm(), transforms.ConvertDialect(to="qdq"))
    changed = model.clone()
    changed.apply(transforms.FoldBatchNorm() if change == "folded" else transforms.QuantizeBias())
    proof = qgraph.prove(model, changed, evidence=True, hashes=False, within="1step")
    assert sum(region.verdict == "bounded" for region in proof.regions) == 27
    found = checked(proof.to_json(), model, changed)
    assert found.counts == {"checked": 29, "unchecked": 0, "refuted": 0}
    assert str(found.verdict) == "bounded"


QUANTIZED_OUTPUT = """<ir_version: 10, opset_import: ["": 21, "org.openvinotoolkit": 1]>
    g (float[N, 4] x) => (float[N, 4] y) <float low = {0}, float high = {2.55}> {
        y = org.openvinotoolkit.FakeQuantize <levels = 256> (x, low, high, low, high)
    }"""
PAIR_AT_OUTPUT = """<ir_version: 10, opset_import: ["": 21]>
    g (float[N, 4] x) => (float[N, 4] y) <float s = {0.01}, uint8 z = {0}> {
        c = QuantizeLinear (x, s, z)
        y = DequantizeLinear (c, s, z)
    }"""


def test_an_output_that_one_model_quantizes_and_the_other_decodes_is_not_refuted() -> None:
    models = [ir.from_onnx_text(text) for text in (QUANTIZED_OUTPUT, PAIR_AT_OUTPUT)]
    certificate = qgraph.prove(*models, within="1step")
    assert str(certificate.verdict) == "bounded"
    found = qgraph.verify(certificate, *models, prover=False)
    assert "refuted" not in [str(part.status) for part in found.parts]


REAL_LIMITS = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
    net (int8[1,4] x) => (float y)
    <float[4,2] w = {1, 2, 3, -4, 5, 6, -7, 8}, float s = {0.0019}, int8 z = {0},
     float step = {0.1}, float zero = {0}, float bits = {8}, float low = {-1}, float high = {1},
     float[2,2] v = {0.5, 1, -1.5, 2}, float k = {K}> {
        a = DequantizeLinear (x, s, z)
        m = MatMul (a, w)
        q = qonnx.custom_op.general.Quant (m, step, zero, bits)
        c = Clip (q, low, high)
        r = MatMul (c, v)
        p = Mul (r, k)
        [end] y = qonnx.custom_op.general.Quant (p, step, zero, bits)
    }"""


def test_limits_of_decoded_numbers_are_no_limits_of_codes():
    models = [ir.from_onnx_text(REAL_LIMITS.replace("K", k)) for k in ("1.0", "1.003")]
    document = json.loads(json_text(qgraph.prove(*models, evidence=True, within="1step").to_json()))
    assert str(checked(document, *models).verdict) == "bounded"
    bound = stated(document)
    # codes from -10 to 10 are at most 30 steps in the second channel, which differ by 0.3 %
    assert 0.09 <= bound["ideal_shift"] < 0.0901
    bound.update({"levels": 6.0, "channels": []})
    for name in ("deviation_steps", "tie_distance_steps", "ideal_shift"):
        bound[name] *= 0.5
    assert str(checked(document, *models).verdict) == "undecided"


POOL, OF_ALL = "GlobalAveragePool", "AveragePool <kernel_shape = [3, 3]>"
POOLED = """<ir_version: 10, opset_import: ["": 21]>
    net (uint8[N,2,3,3] x) => (float[N,2] y)
    <float s = {0.3}, uint8 z = {4}, int64[2] flat = {0, 2}, float[2,2] w = {0.5, 1.1, -1.5, 2}> {
        a = DequantizeLinear (x, s, z)
        p = POOL (a)
        f = Reshape (p, flat)
        y = MatMul (f, w)
    }"""


def test_a_pool_of_whole_images_is_a_global_one():
    whole, other, part = (
        ir.from_onnx_text(POOLED.replace("POOL", pool))
        for pool in (
            POOL,
            OF_ALL,
            "AveragePool <kernel_shape = [3, 2], strides = [1, 2]>",
        )
    )
    document = json.loads(
        json_text(qgraph.prove(whole, other, evidence=True, within="8step").to_json())
    )
    assert str(checked(document, whole, other).verdict) == "bounded"
    assert str(checked(document | {"facts": []}, whole, part).verdict) == "undecided"


ODD = """<ir_version: 10, opset_import: ["": 21]>
    net (uint8[1,2,3,3] x) => (int8[1,2,3,3] y)
    <float s = {0.3}, uint8 z = {4}, float[2,2,1,1] w = {1, 2, -1, 0.5}, float k = {FACTOR},
     float three = {3.02}, float five = {5.02}, float s_y = {0.1}, int8 z_y = {0}> {
        a = DequantizeLinear (x, s, z)
        b = Conv (a, w)
        c = Mul (b, k)
        d = STEP
        [end] y = QuantizeLinear (d, s_y, z_y)
    }"""
WHOLE = "AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (c)"


@pytest.mark.parametrize(
    ("honest", "other"),
    [
        (WHOLE, WHOLE.replace("]>", "], count_include_pad = 1>")),
        (WHOLE, WHOLE.replace("[1, 1, 1, 1]", "[0, 0, 2, 2]")),
        (WHOLE, 'AveragePool <kernel_shape = [3, 3], auto_pad = "SAME_UPPER"> (c)'),
        ("Clip (c, three, five)", "Clip (c, five, three)"),
    ],
)
def test_padded_windows_of_whole_images_and_limits_in_reverse_order_are_not_exchanged(
    honest, other
):
    ours, theirs = (
        ir.from_onnx_text(ODD.replace("FACTOR", factor).replace("STEP", honest))
        for factor in ("1.0", "1.0001")
    )
    proof = qgraph.prove(ours, theirs, evidence=True, within="8step")
    document = json.loads(json_text(proof.to_json()))
    forged = ir.from_onnx_text(ODD.replace("FACTOR", "1.0001").replace("STEP", other))
    assert str(checked(document | {"facts": []}, ours, forged).verdict) == "undecided"


BETTER = """<ir_version: 10, opset_import: ["": 21]> net (uint8[1,2,3,3] x) => (float y)
    <float[2,2,1,1] w = {0.3, -0.7, WEIGHT, -0.9}, float[2] b = {BIAS, -1.4}, float s = {0.05},
     int8 z = {0}, float s_y = {0.09}, int64[1] from = {0}, int64[1] to = {2},
     int64[1] axis = {2}> {
        a = DequantizeLinear (x, s)
        m = Conv (a, w, b)
        AFTER
        [end] c = QuantizeLinear (p, s_y, z)
        y = DequantizeLinear (c, s_y, z)
    }"""


def document_of(after: str) -> tuple[dict[str, Any], list[ir.Model]]:
    """A certificate of two models that differ in a weight and a bias."""
    text = BETTER.replace("AFTER", after)
    numbers = ("-0.2", "7.4"), ("-0.2001", "7.4001")
    models = [ir.from_onnx_text(text.replace("WEIGHT", w).replace("BIAS", b)) for w, b in numbers]
    proof = qgraph.prove(*models, evidence=True, within="1step")
    return json.loads(json_text(proof.to_json())), models


def test_channels_of_moved_elements_keep_their_distances():
    document, models = document_of("r = Relu (m) p = Slice (r, from, to, axis)")
    assert document["verdict"] == "bounded"
    assert not checked(document, *models).is_refuted


@pytest.mark.slow
def test_a_smaller_figure_is_unchecked_if_the_prover_may_know_better_rules():
    document, models = document_of("p = HardSigmoid <alpha = 0.01> (m)")
    assert str(checked(document, *models).verdict) == "bounded"
    stated(document)["deviation_steps"] *= 0.9
    found = checked(document, *models)
    assert found.counts["unchecked"] == 1
    assert found.counts["refuted"] == 0
    with pytest.raises(EquivalenceError, match="the prover finds another result"):
        confirmed(document, found, *models)
