"""Proofs of models whose sums of codes are written in different ways."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

import qgraph
from qgraph.certificate import ProofVerdict
from qgraph.conditions import WHOLE_SUMS
from qgraph.exactness import Exactness
from qgraph.execution.prepare import prepare
from qgraph.model import Model, load
from qgraph.proof.matching.sums import with_common_sums
from qgraph.text import json_text
from qgraph.transforms.lowered_operators import (
    LowerIntegerOperators,
    RaiseIntegerOperators,
    SumForm,
)
from tests.verify.checking import verify

SUMS = ["ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul", "QGemm"]


def lowered(model: ir.Model, form: SumForm, exact: Exactness = Exactness.VALUES) -> Model:
    found = load(model.clone())
    found.apply(LowerIntegerOperators(form=form, exact=exact))
    return found


def is_real(model: ir.Model) -> bool:
    return model.graph.outputs[0].dtype is ir.DataType.FLOAT


def computed(model: Model | ir.Model, feeds: dict[str, np.ndarray]) -> np.ndarray:
    executor = prepare(model.ir if isinstance(model, Model) else model)
    (y,) = executor.run(feeds).values()
    return y


@pytest.mark.cases(fast=3, slow=5)
@pytest.mark.parametrize("name", SUMS)
def test_exact_forms_are_proved_and_verified(case, name, scales):
    was_real = False
    for seed in range(5):
        made = case(name, seed, scales)
        if is_real(made.model) and was_real:
            continue  # one takes a second or two, and shows what all do
        candidate = lowered(made.model, SumForm.EXACT)
        found = qgraph.prove(load(made.model), candidate, evidence=True)
        if is_real(made.model):  # whose zeros have a sign that additions leave open
            assert (found.verdict, found.exactness) == (ProofVerdict.PROVED, Exactness.VALUES)
            was_real = True
            continue
        assert (found.verdict, found.exactness) == (ProofVerdict.PROVED, Exactness.BITS)
        assert WHOLE_SUMS in found.conditions
        document = json.loads(json_text(found.to_json()))
        assert verify(document, load(made.model), candidate) == "proved"


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("name", ["QLinearConv", "QLinearMatMul", "QGemm"])
def test_real_forms_are_proved_where_the_pass_says_so(case, name):
    """The pass tries all sums; the proof looks at all floats that a sum may be rounded to."""
    seen = Counter()
    for seed in range(30):
        made = case(name, seed, "powers")
        if is_real(made.model):
            continue
        candidate = load(made.model.clone())
        report = candidate.apply(LowerIntegerOperators(form=SumForm.QDQ, exact=Exactness.NEAR))
        (site,) = report
        found = qgraph.prove(load(made.model), candidate)
        seen[site.verdict.exactness, found.verdict] += 1
        if found.verdict is ProofVerdict.PROVED:
            assert np.array_equal(computed(made.model, made.feeds), computed(candidate, made.feeds))
    assert seen[Exactness.BITS, ProofVerdict.PROVED] >= 5
    assert not seen[Exactness.BITS, ProofVerdict.DIFFERENT]
    assert not seen[Exactness.NEAR, ProofVerdict.PROVED]


def test_forms_that_differ_only_between_whole_numbers_are_equal():
    head = """<ir_version: 8, opset_import: ["": 19]> g (uint8[N,4] q) => (uint8[N,2] y)
        <float s = {0.125}, uint8 z = {3}, float t = {0.5}, int8 o = {0}, float r = {0.054},
         uint8 e = {128}, int8[4,2] w = {1, -1, 0, 1, 1, 0, -1, 1}> """
    ours = head + "{ y = QLinearMatMul (q, s, z, w, t, o, r, e) }"
    theirs = (
        head + "{ a = DequantizeLinear (q, s, z) b = DequantizeLinear (w, t, o) "
        "m = MatMul (a, b) y = QuantizeLinear (m, r, e) }"
    )
    unit, step = np.float32(0.0625), np.float32(0.054)
    one, other = (lambda x: np.rint(x * (unit / step))), (lambda x: np.rint(x * unit / step))
    between, sums = np.float32(-109.296005), np.arange(-756, 757, dtype=np.float32)
    assert one(between) != other(between)
    assert np.array_equal(one(sums), other(sums))
    found = qgraph.prove(text(ours), text(theirs))
    assert (found.verdict, found.exactness) == (ProofVerdict.PROVED, Exactness.BITS)


def text(source: str) -> Model:
    return load(onnx.parser.parse_model(source))


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize("name", SUMS)
def test_what_is_compared_computes_what_the_operator_does(case, name, scales):
    """The common form, by itself: run in NumPy against the kernel, on all seeds."""
    for seed in range(12):
        made = case(name, seed, scales)
        found, _ = with_common_sums(
            [made.model, lowered(made.model, SumForm.EXACT).ir], open_sums=False
        )
        if is_real(made.model):
            assert found is None
            continue
        assert found is not None
        assert name not in {node.op_type for node in found[0].graph}
        random = np.random.default_rng(seed)
        for _ in range(4):
            feeds = {
                key: random.integers(
                    np.iinfo(x.dtype).min, np.iinfo(x.dtype).max + 1, x.shape
                ).astype(x.dtype)
                for key, x in made.feeds.items()
            }
            expected = computed(made.model, feeds)
            np.testing.assert_array_equal(computed(found[0], feeds), expected)


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("name", ["QLinearConv", "QLinearMatMul", "QGemm"])
def test_changed_constants_are_never_proved(case, name):
    """One element of one constant is changed by the least that there is."""
    seen: Counter[str] = Counter()
    for seed in range(4):
        made = case(name, seed, "powers" if seed % 2 else "any")
        if is_real(made.model):
            continue
        form = SumForm.QDQ if seed % 2 else SumForm.EXACT
        candidate = lowered(made.model, form, Exactness.NEAR)
        if qgraph.prove(load(made.model), candidate).verdict is not ProofVerdict.PROVED:
            continue
        random = np.random.default_rng(seed)
        for key in list(candidate.ir.graph.initializers):
            mutant = candidate.ir.clone()
            value = mutant.graph.initializers[key]
            array = value.const_value.numpy().copy()
            place = int(random.integers(array.size))
            if array.dtype == np.float32:
                array.flat[place] = np.nextafter(array.flat[place], np.float32(np.inf))
            else:
                array.flat[place] ^= 1
            value.const_value = ir.tensor(array, name=key)
            verdict = qgraph.prove(load(made.model), load(mutant)).verdict
            seen[verdict] += 1
            if verdict is ProofVerdict.PROVED:
                # a change that no sum shows: all data that one row can be, as far as tried
                for other in range(50):
                    draws = np.random.default_rng(other)
                    feeds = {
                        k: draws.integers(
                            np.iinfo(x.dtype).min, np.iinfo(x.dtype).max + 1, x.shape
                        ).astype(x.dtype)
                        for k, x in made.feeds.items()
                    }
                    ours, theirs = computed(made.model, feeds), computed(mutant, feeds)
                    assert np.array_equal(ours, theirs), (seed, key)
    assert seen.total() - seen[ProofVerdict.PROVED] >= 3


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize("form", SumForm)
@pytest.mark.parametrize("name", ["QLinearAdd", "QLinearMul"])
def test_operators_on_pairs_of_codes_are_proved_and_verified(case, name, form, scales):
    seen = 0
    for seed in range(6):
        made = case(name, seed, scales)
        candidate = lowered(made.model, form)
        seen += name not in {node.op_type for node in candidate.ir.graph}
        found = qgraph.prove(load(made.model), candidate, evidence=True)
        assert found.verdict is ProofVerdict.PROVED
        document = json.loads(json_text(found.to_json()))
        assert verify(document, load(made.model), candidate) == "proved"
        candidate.apply(LowerIntegerOperators(form=form, exact=Exactness.NEAR))
        refused = qgraph.prove(load(made.model), candidate).verdict is not ProofVerdict.PROVED
        same = np.array_equal(computed(made.model, made.feeds), computed(candidate, made.feeds))
        assert refused or same
    # real numbers are as good only where their roundings happen to agree
    assert seen >= 2 or form is SumForm.QDQ


def test_an_operator_on_single_codes_is_proved_and_verified():
    model = text("""<ir_version: 8, opset_import: ["": 19, "com.microsoft": 1]>
        g (float[N,4] x) => (float[N,4] y) <float s = {0.0371}, uint8 z = {101},
        float t = {0.0117}, uint8 e = {17}> {
            q = QuantizeLinear (x, s, z)
            c = com.microsoft.QLinearSigmoid (q, s, z, t, e)
            y = DequantizeLinear (c, t, e) }""")
    candidate = lowered(model.ir, SumForm.EXACT)
    assert "QLinearSigmoid" not in {node.op_type for node in candidate.ir.graph}
    found = qgraph.prove(model, candidate, evidence=True)
    assert found.verdict is ProofVerdict.PROVED
    document = json.loads(json_text(found.to_json()))
    assert verify(document, model, candidate) == "proved"
    candidate.ir.graph.initializers["s"].const_value = ir.tensor(np.float32(0.0372), name="s")
    assert qgraph.prove(model, candidate).verdict is not ProofVerdict.PROVED


HEAD = """<ir_version: 8, opset_import: ["": 19]>
    g (uint8[N,{k}] q) => ({out}[N,2] y) <float s = {{{s}}}, uint8 z = {{3}}, float t = {{0.5}},
     int8 o = {{0}}, float r = {{0.25}}, uint8 e = {{128}},
     int8[{k},2] w = {{{weights}}}> {{ """
OURS = "y = QLinearMatMul (q, s, z, w, t, o, r, e) }"
THEIRS = (
    "a = DequantizeLinear (q, s, z) b = DequantizeLinear (w, t, o) m = MatMul (a, b) "
    "y = QuantizeLinear (m, r, e) }"
)


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(
    ("k", "weight", "s", "verdict"),
    [
        (4, 2, 0.125, ProofVerdict.PROVED),
        # 252 * 127 * 525 is above 2**24
        (525, 127, 0.125, ProofVerdict.BOUNDED),
        (524, 127, 0.125, ProofVerdict.PROVED),
        # each product is rounded
        (4, 2, 0.1, ProofVerdict.BOUNDED),
    ],
)
def test_decoded_products_are_sums_where_nothing_is_rounded(k, weight, s, verdict):
    weights = ", ".join([str(weight)] * 2 * k)
    head = HEAD.format(k=k, weights=weights, s=s, out="uint8")
    assert qgraph.prove(text(head + OURS), text(head + THEIRS)).verdict is verdict


@pytest.mark.slow
def test_a_sum_whose_zero_has_a_sign_is_equal_in_value_only():
    head = HEAD.format(k=1, weights="2, 3", s=0.125, out="float")
    ours = (
        head + "i = MatMulInteger (q, w, z, o) f = Cast <to = 1> (i) u = Mul (s, t) "
        "y = Mul (f, u) }"
    )
    theirs = head + THEIRS.replace("y = QuantizeLinear (m, r, e)", "y = Identity (m)")
    found = qgraph.prove(text(ours), text(theirs))
    assert (found.verdict, found.exactness) == (ProofVerdict.PROVED, Exactness.VALUES)
    found = qgraph.prove(text(ours), text(theirs), exact=Exactness.BITS)
    assert found.verdict is not ProofVerdict.PROVED


@pytest.mark.exhaustive
def test_float8_keeps_the_sign_of_a_zero_sum():
    """Where additions start at the first product, all of which are -0, the sum is -0."""
    head = """<ir_version: 10, opset_import: ["": 21]> g (uint8[1,1] q) => (float8e4m3fn[1,1] y)
        <uint8 z = {0}, int8 o = {0}, int8[1,1] w = {-1}, float s = {1}> { """
    ours = (
        head + "i = MatMulInteger (q, w, z, o) f = Cast <to = 1> (i) "
        "y = QuantizeLinear <output_dtype = 17> (f, s) }"
    )
    theirs = (
        head + "a = DequantizeLinear (q, s, z) b = DequantizeLinear (w, s, o) m = MatMul (a, b) "
        "y = QuantizeLinear <output_dtype = 17> (m, s) }"
    )
    found = qgraph.prove(text(ours), text(theirs))
    assert (found.verdict, found.exactness) == (ProofVerdict.PROVED, Exactness.VALUES)
    found = qgraph.prove(text(ours), text(theirs), exact=Exactness.BITS)
    assert found.verdict is not ProofVerdict.PROVED


GEMM = """<ir_version: 8, opset_import: ["": 19]>
    g (uint8[2,2] q) => (uint8[2,2] y) <int8[2,2] w = {{1, 2, 3, 4}}, float s = {{0.5}},
     uint8 z = {{0}}, float u = {{1}}, uint8 e = {{0}}, float[2,1] c = {{1, 2}}> {{ {lines} }}"""
BIASED = "a = DequantizeLinear (q, u, z) b = DequantizeLinear (w, u) m = Gemm (a, b, c) "
WHOLE = "a = Cast <to = {to}> (q) b = Cast <to = {to}> (w) "


@pytest.mark.parametrize(
    "lines",
    [
        WHOLE.format(to=1) + "m = Gemm <alpha = 2.0> (a, b) n = Mul (m, s) "
        "y = QuantizeLinear (n, u, e)",
        WHOLE.format(to=10) + "m = MatMul (a, b) i = Cast <to = 6> (m) y = Cast <to = 2> (i)",
        BIASED + "y = QuantizeLinear (m, s, e)",
    ],
    ids=["a factor", "sums in float16", "a bias for each row"],
)
def test_products_that_have_no_integer_form_are_not_raised(lines):
    """Their factor, their rounding to 11 bits, and the axis of their bias would be lost."""
    model = text(GEMM.format(lines=lines))
    q = np.array([[3, 200], [77, 255]], np.uint8)
    before = computed(model, {"q": q})
    model.apply(RaiseIntegerOperators(microsoft=True, exact=Exactness.NEAR))
    assert "QGemm" not in {node.op_type for node in model.ir.graph}
    assert "MatMulInteger" not in {node.op_type for node in model.ir.graph}
    np.testing.assert_array_equal(computed(model, {"q": q}), before)
