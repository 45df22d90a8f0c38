"""Which constants that nodes compute are the same on every processor."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.certificate import ProofVerdict
from qgraph.model import Model
from qgraph.ops.known_values import KnownValues

pytestmark = pytest.mark.sums


def known(body: str, parameters: str) -> tuple[KnownValues, ir.Value]:
    """Return the constants of a graph, and its value ``k``."""
    model = ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["": 21]> '
        f"g (float[2] x) => (y) <{parameters}> {{ {body} }}"
    )
    values = KnownValues(model.graph.opset_imports)
    values.enter(model.graph)
    return values, next(v for node in model.graph for v in node.outputs if v.name == "k")


WEIGHTS = "float[2,3] a = {1, -2, 0.5, 3, 4, 0.25}"


@pytest.mark.parametrize(
    ("body", "parameters", "expected"),
    [
        # multiples of 2**-4 with a sum below 2**20
        ("k = MatMul (a, b)", f"{WEIGHTS}, float[3,1] b = {{2, 0.25, 1}}", [[2], [7.25]]),
        ("k = ReduceSum <keepdims = 0> (a, i)", f"{WEIGHTS}, int64[1] i = {{1}}", [-0.5, 7.25]),
        (
            "k = Gemm <transB = 1> (a, b, c)",
            f"{WEIGHTS}, float[1,3] b = {{2, 0.25, 1}}, float[1] c = {{-2}}",
            [[0], [5.25]],
        ),
        # 2**24 + 1 - 2**24: the sum is a float32, but not each sum of two
        ("k = ReduceSum <keepdims = 0> (a)", "float[3] a = {16777216, 1, -16777216}", None),
        # not multiples of one unit that is large enough
        ("k = ReduceSum <keepdims = 0> (a)", "float[3] a = {0.1, 0.2, 1e9}", None),
        ("k = MatMul (a, b)", f"{WEIGHTS}, float[3,1] b = {{0.1, 0.7, 1e-9}}", None),
        ("k = Gemm <alpha = 0.5> (a, b)", f"{WEIGHTS}, float[3,1] b = {{2, 0.25, 1}}", None),
        ("k = ReduceSum <keepdims = 0> (a)", "int64[2] a = {9007199254740993, 2}", 2**53 + 3),
        ("k = Softmax (a)", WEIGHTS, None),
        ("k = Exp (a)", "double[2] a = {1, 2}", None),
    ],
)
def test_a_sum_is_known_if_no_order_of_additions_rounds(body, parameters, expected) -> None:
    values, k = known(f"{body} y = Identity (x)", parameters)
    assert values.has(k) == (expected is not None)
    if expected is None:
        assert values.array(k) is None
    else:
        np.testing.assert_array_equal(values.array(k), expected)
    assert not values.inexact


def test_a_zero_sum_has_no_sign_of_its_own() -> None:
    values, k = known("k = MatMul (a, b)", "float[1,1] a = {-1}, float[1,1] b = {0}")
    array = values.array(k)
    assert array is not None
    assert not np.signbit(array).any()


def test_functions_are_the_exact_results_rounded_once() -> None:
    values, k = known("k = Exp (a)", "float[2] a = {1, 88}")
    assert not values.inexact  # nobody has asked yet
    np.testing.assert_array_equal(values.array(k), np.float32([2.7182818284590452, 1.6516363e38]))
    assert values.inexact == {"Exp"}


def test_what_is_computed_from_such_a_constant_rests_on_it_too() -> None:
    values, k = known("l = Log (a) e = Exp (l) k = Neg (e)", "float[2] a = {1, 8}")
    np.testing.assert_array_equal(values.array(k), [-1, -8])
    assert values.inexact == {"Exp", "Log"}


FOLDED = """<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y)
    <float[2,3] a = {%s}, float[3,2] b = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6}, float[2,2] w = {%s}>
    { %s }"""
COMPUTED = "w2 = MatMul (a, b) m = MatMul (x, w2) y = Relu (m)"
STORED = "m = MatMul (x, w) y = Relu (m)"


def test_a_sum_that_rounds_is_neither_equal_to_nor_different_from_a_constant() -> None:
    """One processor adds the products to the stored numbers, another to their neighbours."""
    a = np.float32([[1, 2, 3], [0.1, 0.2, 0.3]])
    b = np.float32([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    texts = [", ".join(f"{number:.9g}" for number in m.reshape(-1)) for m in (a, a @ b)]
    sides = [Model(ir.from_onnx_text(FOLDED % (*texts, body))) for body in (COMPUTED, STORED)]
    assert qgraph.prove(*sides).verdict is ProofVerdict.UNDECIDED
    assert qgraph.prove(sides[0], sides[0].clone()).verdict is ProofVerdict.PROVED


def test_a_sum_without_roundings_is_equal_to_its_constant() -> None:
    texts = "1, 2, 3, 4, 5, 6", "-1, 1, -1, 4"
    exact = FOLDED.replace("{0.1, 0.2, 0.3, 0.4, 0.5, 0.6}", "{1, 0, -1, 2, 0, -1}")
    sides = [Model(ir.from_onnx_text(exact % (*texts, body))) for body in (COMPUTED, STORED)]
    assert qgraph.prove(*sides).verdict is ProofVerdict.PROVED
