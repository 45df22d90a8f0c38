"""Operators that one model has and the other one writes out, by the checker alone.

The models are written by hand, with scales that are powers of two, so that expected codes follow
by hand. A planted fault changes the candidate, and leaves the certificate of the equal one.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.conditions import SUMMED_ALIKE, SUMS_OF_CODES, WHOLE_SUMS
from qgraph.errors import OperatorError
from qgraph.graph.edit import Editor
from qgraph.numerics.float32 import HIGHEST, LOWEST, from_keys, to_keys
from qgraph.numerics.primitives import NUMPY
from qgraph.ops.composite import region_of
from qgraph.ops.integer.definitions import write
from qgraph.ops.integer.kernels import read_pair
from qgraph.verify.functions import BoxEnds
from tests.verify.checking import certificate, checked, texts, without

HEADER = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>'
UNITS = "float s = {0.5}, float t = {0.25}, float u = {2}, uint8 z = {3}, uint8 p = {7}"
WRITTEN = "y = QuantizeLinear(m, one, p)"


def model(body: str, x: str, parameters: str, y: str = "uint8[] y") -> ir.Model:
    text = f"{HEADER} g ({x}) => ({y}) <{UNITS}, float one = {{1}}, {parameters}> {{ {body} }}"
    return ir.from_onnx_text(text)


MATRIX = "int8[3,2] w = {1, -2, 3, 4, -5, 6}, int8 o = {0}, float k = {0.0625}, float three = {3}"
PRODUCT = "y = QLinearMatMul(x, s, z, w, t, o, u, p)"
SUMS = (
    "c = Cast <to = 1> (x) a = Sub(c, three) b = Cast <to = 1> (w) r = MatMul(a, b) m = Mul(r, k) "
)
IMAGE = "float k = {0.0625}, float three = {3}, int64[2] axes = {2, 3}, float[1] eight = {8}"
AVERAGE = "y = com.microsoft.QLinearGlobalAveragePool(x, s, z, u, p)"
TOTAL = (
    "c = Cast <to = 1> (x) a = Sub(c, three) r = ReduceSum <keepdims = 1> (a, axes) m = Mul(r, k) "
)
PAIR = "uint8[5] x, uint8[5] v"
FACTORS = "float k = {0.0625}, float three = {3}, float seven = {7}, uint8 none = {0}"
TIMES = "y = com.microsoft.QLinearMul(x, s, z, v, t, none, u, p)"
MULTIPLIED = (
    "c = Cast <to = 1> (x) a = Sub(c, three) b = Cast <to = 1> (v) r = Mul(a, b) "
    "q = Mul(r, k) m = Add(q, seven) y = QuantizeLinear(m, one, none)"
)
WIDE = "double f = {0.25}, double g = {0.125}, double h = {6.25}, uint8 none = {0}"
PLUS = "y = com.microsoft.QLinearAdd(x, s, z, v, t, none, u, p)"
ADDED = (
    "a = Cast <to = 11> (x) b = Cast <to = 11> (v) c = Mul(b, g) d = Add(c, h) "
    "e = Cast <to = 1> (d) i = Cast <to = 11> (e) j = Mul(a, f) n = Add(j, i) "
    "m = Cast <to = 1> (n) y = QuantizeLinear(m, one, none)"
)

CASES = {  # data, parameters, operator, what it stands for, conditions, planted faults
    "product": (
        "uint8[2,3] x",
        MATRIX,
        PRODUCT,
        SUMS + WRITTEN,
        {WHOLE_SUMS},
        [
            ("Sub(c, three)", "Sub(c, one)"),
            ("Mul(r, k)", "Mul(r, t)"),
            ("(m, one, p)", "(m, one, z)"),
        ],
    ),
    "average": (
        "uint8[1,2,2,2] x",
        IMAGE,
        AVERAGE,
        TOTAL + WRITTEN,
        {SUMS_OF_CODES},
        [
            ("Mul(r, k)", "Mul(r, t)"),
            ("(m, one, p)", "(m, one, z)"),
            ("Sub(c, three)", "Sub(c, one)"),
        ],
    ),
    "times": (PAIR, FACTORS, TIMES, MULTIPLIED, set(), [("(q, seven)", "(q, three)")]),
    "plus": (
        PAIR,
        WIDE,
        PLUS,
        ADDED,
        set(),
        [("Mul(b, g)", "Mul(b, f)"), ("Add(c, h)", "Add(c, f)")],
    ),
}
# s * t / u = 0.0625; s / (u * 4) = 0.0625; s / u = 0.25 and t / u = 0.125, 7 - 3 * 0.25 = 6.25


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize("name", CASES)
def test_an_operator_is_its_definition(name):
    x, parameters, operator, written, needed, faults = CASES[name]
    ours, theirs = (model(body, x, parameters) for body in (operator, written))
    found = certificate(ours, theirs)
    assert found["verdict"] == "proved"
    assert needed <= set(texts(found))
    assert checked(found, ours, theirs).verdict == "proved"
    for right, wrong in faults:
        assert right in written
        other = model(written.replace(right, wrong), x, parameters)
        assert checked(found, ours, other).verdict != "proved", wrong
        assert checked(found, other, ours).verdict != "proved", wrong
    for text in needed:
        assert checked(without(found, text), ours, theirs).verdict != "proved"


def test_sums_that_float32_rounds_have_no_such_definition():
    """256 * 255 * 255 is nearly 2**24, and 260 * 255 * 255 lies above."""
    for depth, is_exact in ((256, True), (260, False)):
        sizes = f"uint8[{depth},1] w = {{{', '.join(['255'] * depth)}}}, uint8 o = {{0}}"
        body = "y = QLinearMatMul(x, s, o, w, t, o, u, o)"
        sums = "a = Cast <to = 1> (x) b = Cast <to = 1> (w) r = MatMul(a, b) m = Mul(r, k) "
        sides = [
            model(each, f"uint8[2,{depth}] x", f"{sizes}, float k = {{0.0625}}")
            for each in (body, sums + "y = QuantizeLinear(m, one, o)")
        ]
        made = certificate(*sides)
        assert (made["verdict"] == "proved") is is_exact
        made |= {"verdict": "proved", "exactness": "bits", "regions": []}
        assert (checked(made, *sides).verdict == "proved") is is_exact


def test_a_sum_that_float64_rounds_twice_is_not_its_definition():
    """205 steps of a are half a unit in the last place and a little more; b adds 0.5."""
    step = np.float32(5237765 * 2.0**-55)
    exact = Fraction(205) * Fraction(float(step)) + Fraction(1, 2)
    assert exact > Fraction(1, 2) + Fraction(2) ** -25  # so that the nearest float32 is above 0.5
    twice = np.float32(np.float64(205) * np.float64(step) + np.float64(0.5))
    assert twice == 0.5  # and rounds to the code 0, not 1
    constants = (
        f"float tiny = {{{float(step)!r}}}, float half = {{0.5}}, uint8 none = {{0}}, "
        f"double f = {{{float(step)!r}}}, double g = {{0.5}}, double k = {{0}}"
    )
    operator = "y = com.microsoft.QLinearAdd(x, tiny, none, v, half, none, one, none)"
    ours = model(operator, PAIR, constants)
    theirs = model(ADDED.replace("Add(c, h)", "Add(c, k)"), PAIR, constants)
    made = certificate(model(PLUS, PAIR, WIDE), model(ADDED, PAIR, WIDE))
    assert made["regions"] == []
    assert checked(made, ours, theirs).verdict != "proved"


PACKED = "uint8[2,1,16] w = {{{}}}, float[2] scales = {{0.5, 0.25}}"
BITS = "<K = 32, N = 2, bits = 4, block_size = 32>"


def packed(codes: list[int], body: str, parameters: str = "") -> ir.Model:
    """A MatMulNBits of 32 rows and 2 columns: two codes in a byte, the first in the low half."""
    pairs = [low + 16 * high for low, high in zip(codes[::2], codes[1::2], strict=True)]
    constants = PACKED.format(", ".join(map(str, pairs))) + parameters
    return model(body, "float[2,32] x", constants, "float[2,2] y")


def test_packed_weights_are_decoded_again():
    codes = [(5 * place) % 16 for place in range(64)]
    # codes less 8, times the scale of their column
    rows = [
        [(code - 8) * scale for code in codes[start : start + 32]]
        for start, scale in ((0, 0.5), (32, 0.25))
    ]
    ours = packed(codes, f"y = com.microsoft.MatMulNBits {BITS} (x, w, scales)")

    def reals(values: list[list[float]]) -> ir.Model:
        numbers = ", ".join(f"{value!r}" for pair in zip(*values, strict=True) for value in pair)
        return packed(codes, "y = MatMul(x, d)", f", float[32,2] d = {{{numbers}}}")

    theirs = reals(rows)
    found = certificate(ours, theirs)
    assert found["verdict"] == "proved"
    assert SUMMED_ALIKE in texts(found)
    assert checked(found, ours, theirs).verdict == "proved"
    rows[1][7] += 0.25
    assert checked(found, ours, reals(rows)).verdict != "proved"
    assert checked(without(found, SUMMED_ALIKE), ours, theirs).verdict != "proved"


@pytest.mark.parametrize("name", ["QLinearMul", "QLinearAdd"])
def test_ratios_of_scales_that_are_not_finite_have_no_definition(name):
    """1e30 / 1e-30 and 1e30 * 1e30 / 1e-30 are infinite in float32, and 0 times that is NaN."""
    text = (
        f"{HEADER} g (uint8[5] x, uint8[5] v) => (uint8[5] y) <float s = {{1e30}}, "
        "float u = {1e-30}, uint8 z = {3}, uint8 p = {7}> "
        f"{{ y = com.microsoft.{name}(x, s, z, v, s, z, u, p) }}"
    )
    (node,) = ir.from_onnx_text(text).graph
    draft = Editor(ir.from_onnx_text(text)).draft(region_of(node))
    with pytest.raises(OperatorError, match="no graph of standard operators"):
        write(draft, node)


def test_zero_points_of_another_type_than_the_codes_are_refused():
    text = (
        f"{HEADER} g (uint8[5] x, uint8[5] v) => (uint8[5] y) <{UNITS}, int8 o = {{-3}}> "
        "{ y = com.microsoft.QLinearMul(x, s, o, v, t, z, u, p) }"
    )
    (node,) = ir.from_onnx_text(text).graph
    with pytest.raises(OperatorError, match="a zero point is int8 and the codes are uint8"):
        read_pair(node)


EDGES = [0.0, -0.0, 1.0, -2.5, 0.5, 1e-45, 3e38, -3e38, np.inf, -np.inf, np.nan]
ONE_OPERAND = [
    "Abs",
    "Ceil",
    "Floor",
    "IsNaN",
    "Neg",
    "Reciprocal",
    "Relu",
    "Round",
    "Sign",
    "Sqrt",
]
TWO_OPERANDS = ["Add", "Div", "Equal", "Greater", "LessOrEqual", "Max", "Min", "Mul", "Pow", "Sub"]
APPLIED = [  # None stands for the data
    *((name, (None,)) for name in [*ONE_OPERAND, "Cast"]),
    *((n, pair) for n in TWO_OPERANDS for c in EDGES for pair in ((None, c), (c, None))),
    *((name, (None, None)) for name in TWO_OPERANDS),
    *(("Where", (None, one, other)) for one in EDGES for other in (*EDGES, None)),
]


@np.errstate(all="ignore")
def test_results_in_a_box_that_is_not_open_lie_between_those_at_its_ends():
    random, count = np.random.default_rng(5), 600
    edges = to_keys(np.array(EDGES[:8], np.float32))
    keys = np.concatenate([random.integers(LOWEST, HIGHEST, 80), edges - 1, edges, edges + 1])
    first, last = boxes = np.sort(random.choice(keys.clip(LOWEST, HIGHEST), (2, count)), axis=0)
    inner = first + (random.uniform(0, 1, (40, count)) * (last - first)).astype(np.int64)
    inner = np.concatenate([inner, np.clip(0, first, last)[None]])
    closed = 0
    for name, operands in APPLIED:
        attributes = {"to": "FLOAT8E4M3FN", "saturate": 0} if name == "Cast" else {}
        ends, results = BoxEnds(-0.0), []
        for apply, chosen in ((getattr(ends, name), boxes), (NUMPY[name], inner)):
            data = from_keys(chosen)
            arrays = [data if c is None else np.array([c], np.float32) for c in operands]
            arrays[0] = data > 1 if name == "Where" else arrays[0]
            results.append(np.broadcast_to(apply(*arrays, **attributes), data.shape))
        found, every = results
        fits = (found.min(axis=0) <= every) & (every <= found.max(axis=0))
        fits |= np.isnan(found).all(axis=0) & np.isnan(every)
        is_closed = np.broadcast_to(~ends.is_open, count)
        closed += int(is_closed.sum())
        assert fits[:, is_closed].all(), (name, operands)
    assert closed > 1e5
