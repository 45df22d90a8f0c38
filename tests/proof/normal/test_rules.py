"""Conditions and limits of single rules."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.certificate import ProofVerdict
from qgraph.errors import EquivalenceError
from qgraph.exactness import Exactness
from qgraph.ops.sums_of_products import is_never_empty
from tests.proof.normal.conftest import is_one, parse
from tests.verify.checking import verify

X = "g (float[2,3,8,8] x) => (float[] y) "
PAIR = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) "
ONE = "<float s = {0.25}, uint8 z = {3}>"


def pooled(attributes: str, sizes: tuple[int | str | None, ...] = (1, 1, 5)) -> bool:
    model = parse(f"g (float[1,1,5] x) => (float[] y) {{ y = MaxPool <{attributes}> (x) }}")
    return is_never_empty(model.graph[0], sizes)


@pytest.mark.parametrize(
    ("attributes", "never_empty"),
    [
        ("kernel_shape = [2]", True),
        ("kernel_shape = [3], pads = [2, 2]", True),
        ("kernel_shape = [2], pads = [2, 0]", False),
        ("kernel_shape = [2], pads = [0, 2]", False),
        ("kernel_shape = [2], dilations = [3], pads = [2, 2]", True),
        ("kernel_shape = [2], dilations = [6], pads = [3, 3]", False),  # -1 and 5
        ('kernel_shape = [3], auto_pad = "SAME_UPPER"', True),
        ("kernel_shape = [3], pads = [1, 1], ceil_mode = 1", False),
    ],
)
def test_windows_in_the_padding(attributes, never_empty):
    assert pooled(attributes) == never_empty


def test_open_sizes_leave_windows_with_gaps_open():
    assert not pooled("kernel_shape = [2], dilations = [3], pads = [2, 2]", (1, 1, "n"))
    assert not pooled("kernel_shape = [3], pads = [2, 2]", (1, 1, "n"))
    assert pooled("kernel_shape = [3], pads = [1, 1]", (1, 1, "n"))
    assert pooled("kernel_shape = [3]", (1, 1, "n"))


def test_a_maximum_over_a_function_that_falls_stays():
    """FakeQuantize as written has a top level above the top of its range for these ends."""
    low, high = -0.1, 0.2
    top = np.float32(np.float32(high) - np.float32(low)) + np.float32(low)
    assert top > np.float32(high)
    header = '<ir_version: 10, opset_import: ["": 21, "org.openvinotoolkit": 1]>'
    fake = "org.openvinotoolkit.FakeQuantize <levels = 256>"
    for ends, same in (((-1.0, 1.0), True), ((low, high), False)):
        constants = f"<float l = {{{ends[0]}}}, float h = {{{ends[1]}}}>"
        ours, theirs = (
            ir.from_onnx_text(f"{header} {X} {constants} {{ {body} }}")
            for body in (
                f"a = {fake} (x, l, h, l, h) y = MaxPool <kernel_shape = [2, 2]> (a)",
                f"a = MaxPool <kernel_shape = [2, 2]> (x) y = {fake} (a, l, h, l, h)",
            )
        )
        assert is_one(ours, theirs) == same


def test_signs_of_zeros_that_are_distinguished_stay():
    """1 / Relu(x) is -inf or inf: the zero of a Relu and that of a Max need not agree."""
    bodies = ("r = Relu(x)", "r = Max(x, o)", "r = Clip(x, o)")
    constants = "<float o = {0}>"
    for after, same in (("y = Neg(r)", True), ("y = Reciprocal(r)", False)):
        models = [parse(f"{X} {constants} {{ {body} {after} }}") for body in bodies]
        assert is_one(models[0], models[1]) == same
        assert is_one(models[0], models[2]) == same


POOLED = (
    f"{X} {ONE} {{ {PAIR} y = MaxPool <kernel_shape = [2, 2]> (d) }}",
    (
        f"{X} {ONE} {{ m = MaxPool <kernel_shape = [2, 2]> (x) q = QuantizeLinear(m, s, z) "
        "y = DequantizeLinear(q, s, z) }"
    ),
)


def test_conditions_are_named_and_checked():
    ours, theirs = map(parse, POOLED)
    found = qgraph.prove(ours, theirs, evidence=True)
    assert (found.verdict, found.exactness) == (ProofVerdict.PROVED, Exactness.VALUES)
    assert any(condition.startswith("no NaN reaches maxima") for condition in found.conditions)
    document = found.to_json()
    assert verify(document, ours, theirs) == "proved"
    for name in ("conditions", "notes"):
        for place in range(len(document[name])):
            kept = [text for i, text in enumerate(document[name]) if i != place]
            with pytest.raises(EquivalenceError):
                verify({**document, name: kept}, ours, theirs)


@pytest.mark.slow
def test_equal_values_are_not_verified_as_equal_bits():
    ours, theirs = map(parse, POOLED)
    document = qgraph.prove(ours, theirs, evidence=True).to_json()
    with pytest.raises(EquivalenceError):
        verify({**document, "exactness": "bits"}, ours, theirs)


def test_powers_are_no_squares():
    """ONNX leaves the last bits of Pow open, so that it is not the rounded square."""
    ours = parse(f"{X} <float t = {{2}}> {{ y = Pow(x, t) }}")
    assert not is_one(ours, parse(f"{X} {{ y = Mul(x, x) }}"))


def test_code_operators_are_their_definitions():
    codes = "g (uint8[1,2,3,3] x, uint8[1,2,3,3] w) => (uint8[] y) "
    constants = "<float s = {0.25}, float u = {0.5}, uint8 z = {3}, uint8 o = {0}, float e = {1}"
    cast = "a = Cast <to = 1> (x) b = Sub(a, f) "
    product = parse(
        f"{codes} {constants}> {{ y = com.microsoft.QLinearMul(x, s, z, w, u, o, s, z) }}"
    )
    lowered = f"{cast} c = Cast <to = 1> (w) d = Mul(b, c) m = Mul(d, u) n = Add(m, f) "
    found = f"{codes} {constants}, float f = {{3}}> {{ {lowered} y = QuantizeLinear(n, e, o) }}"
    assert is_one(product, parse(found))
    assert not is_one(product, parse(found.replace("f = {3}", "f = {4}")))
    average = parse(
        f"{codes} {constants}> {{ y = com.microsoft.QLinearGlobalAveragePool(x, s, z, u, o) }}"
    )
    # 0.25 / (0.5 * 9)
    ratio = np.float32(0.25) / (np.float32(0.5) * np.float32(9))
    lowered = (
        f"{codes} {constants}, float f = {{3}}, float r = {{{ratio!s}}}, int64[2] i = {{2, 3}}> "
        f"{{ {cast} t = ReduceSum(b, i) m = Mul(t, r) y = QuantizeLinear(m, e, o) }}"
    )
    assert is_one(average, parse(lowered))
    assert not is_one(average, parse(lowered.replace("{2, 3}", "{1, 2}")))


EMPTY = "int64[1] a = {1}, int64[1] b = {2}"


@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin"])
def test_a_maximum_of_nothing_is_no_result_of_a_function(op_type):
    """By the definition it is minus infinity, for an open size of 0."""
    ours, theirs = (
        parse(f"g (float[N,3] x) => (float[] y) <int64[1] a = {{0}}> {{ {body} }}")
        for body in (
            f"r = Relu(x) y = {op_type}(r, a)",
            f"r = {op_type}(x, a) y = Relu(r)",
        )
    )
    assert not is_one(ours, theirs)


def test_a_pool_over_open_sizes_is_no_reduction():
    ours, theirs = (
        parse(f"g (float[1,2,H,W] x) => (float[] y) <int64[2] a = {{2, 3}}> {{ {body} }}")
        for body in ("y = GlobalMaxPool(x)", "y = ReduceMax(x, a)")
    )
    assert not is_one(ours, theirs)


def test_parameters_of_no_elements_stay():
    pair = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = Slice(d, b, b, a)"
    constants = "float[4] s = {1, 1, 2, 2}, uint8[4] z = {0, 1, 0, 1}"
    model = parse(f"g (float[N,4] x) => (float[] y) <{constants}, {EMPTY}> {{ {pair} }}")
    assert is_one(model, model)


def test_a_start_beyond_the_data_is_not_clamped():
    """ONNX clamps it to the first element; implementations return no element."""
    ours = parse(
        "g (float[5] x) => (float[] y) "
        "<int64[1] b = {-10}, int64[1] e = {-20}, int64[1] a = {0}, int64[1] s = {-1}> "
        "{ y = Slice(x, b, e, a, s) }"
    )
    theirs = parse("g (float[5] x) => (float[] y) <int64[1] i = {0}> { y = Gather(x, i) }")
    assert not is_one(ours, theirs)


@pytest.mark.parametrize(("kind", "same"), [("int8", True), ("float16", True), ("uint4", False)])
def test_two_negations_are_joined_where_neg_takes_the_type(kind: str, same: bool) -> None:
    """ONNX defines Neg for real numbers and signed integers of at least 8 bits."""
    ours, theirs = (
        parse(f"g ({kind}[N] x) => (float[N] y) {{ {body} }}")
        for body in ("n = Neg(x) m = Neg(n) y = Cast <to = 1> (m)", "y = Cast <to = 1> (x)")
    )
    assert is_one(ours, theirs) == same


def test_any_number_but_0_leaves_a_reduction_without_axes_out():
    """ONNX names 0 and 1 alone, so runtimes read other numbers in either way."""
    ours, theirs = (
        parse(f"{X} {{ y = ReduceMax <noop_with_empty_axes = {number}> (x) }}")
        for number in (0, -1)
    )
    assert not is_one(ours, theirs)


def test_maxima_of_numbers_that_are_read_from_strings_are_taken_behind_the_cast():
    ours, theirs = (
        parse(f"g (string[2,3] x) => (float[1,1] y) {{ a = Cast <to = 1> (x) {body} }}")
        for body in ("b = Neg(a) c = Neg(b) y = ReduceMax(c)", "y = ReduceMax(a)")
    )
    assert is_one(ours, theirs)
