"""Bounds beside what segments compute on data, on models of a few numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph import Tolerances
from qgraph.bound import Bounding
from qgraph.comparison import bound_runs
from qgraph.errors import EquivalenceError, ExecutionError, OptionError
from qgraph.reporting.check_view import check_page
from qgraph.transforms.deployment.report import accuracy

SUM = """<ir_version: 10, opset_import: ["": 21]>
net (float[N,2] x) => (float[N,1] y)
<float s = {0.5}, uint8 z = {0}, float[2,1] w = {1, 3}, float[1] b = {BIAS}, float t = {2}> {
    [a] c = QuantizeLinear (x, s, z)
    [a_real] d = DequantizeLinear (c, s, z)
    [product] p = Gemm (d, w, b)
    [q] e = QuantizeLinear (p, t, z)
    [q_real] r = DequantizeLinear (e, t, z)
    [last] y = Mul (r, s)
}"""
ONE, TENTH = (Tolerances(within=limit) for limit in ("1step", "0.1step"))
LIMIT = "Clip (a, high, low)"
X = np.array([[0.5, 0.0], [0.5, 0.5], [1.5, 0.5], [200, 200]], np.float32)


def model(bias: str) -> ir.Model:
    return ir.from_onnx_text(SUM.replace("BIAS", bias))


@pytest.mark.parametrize("backend", ["numpy", pytest.param("ort", marks=pytest.mark.runtime)])
def test_codes_and_distances_are_those_computed_by_hand(backend: str) -> None:
    # codes of x: (1, 0), (1, 1), (3, 1), (255, 255); sums before the bias: 0.5, 2, 3, 510
    # in steps of 2, without a bias: 0.25, 1, 1.5 (a tie: 2), 255; with 0.6 more: 0.3 steps more
    report = qgraph.check(model("0"), model("0.6"), {"x": X}, backend=backend, tolerances=ONE)
    assert report.bounds is not None
    first, second, output = report.bounds.segments
    assert (first.elements, first.differing_codes, first.accumulated_codes) == (8, 0, 0)
    # 0.55, 1.3, 1.8, 255.3 (clipped): only the first one is another code
    assert (second.elements, second.differing_codes, second.largest_steps) == (4, 1, 1)
    assert second.distance == pytest.approx(0.3, rel=1e-6)
    assert second.distance_bound == pytest.approx(0.3, rel=1e-3)
    assert second.own_error is not None
    assert second.own_error < 1e-9
    # given equal codes, the output is equal; the code that differs moves it by 2 * 0.5
    assert (output.differing_codes, output.accumulated_codes) == (0, 1)
    assert output.accumulated_steps == 1.0
    assert report.verdict == "equal"
    assert report.outputs[0].mismatches == 1


def test_a_limit_that_the_data_exceeds_is_named() -> None:
    report = qgraph.check(model("0"), model("0.6"), {"x": X}, tolerances=TENTH)
    assert report.verdict == "different"
    assert report.bounds is not None
    assert [segment.beyond for segment in report.bounds.segments] == [None, "0.1step", None]
    with pytest.raises(EquivalenceError, match="exceeds the limit"):
        report.raise_if_different()


def test_a_violated_bound_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bound_runs.paired

    def halved(*args: object, **options: object) -> object:
        pairing = whole(*args, **options)  # type: ignore[arg-type]
        pairing.segments = [replace(s, shift=s.shift / 2) for s in pairing.segments]
        return pairing

    monkeypatch.setattr(bound_runs, "paired", halved)
    report = qgraph.check(model("0"), model("0.6"), {"x": X}, tolerances=ONE)
    assert report.verdict == "different"
    assert report.example is not None
    assert np.array_equal(report.example["x"], X)
    with pytest.raises(EquivalenceError, match="is violated") as raised:
        report.raise_if_different()
    assert "--witness" in str(raised.value)
    assert "Bound" in report.to_markdown()
    assert "violated" in report.to_junit()
    with pytest.raises(EquivalenceError, match="do not deploy the result"):
        accuracy(
            *map(qgraph.load, (model("0"), model("0.6"))),
            Bounding("1step"),
            qgraph.Inputs({"x": X}),
            None,
        )


def test_codes_of_other_numbers_and_integer_kernels_are_compared() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    net (float[N,2] x) => (uint8[N,1] y)
    <float s = {0.5}, uint8 z = {0}, float[2,1] w = {1, 3}, float t = {2}> {
        [a] c = QuantizeLinear (x, s, z)
        [a_real] d = DequantizeLinear (c, s, z)
        [product] p = MatMul (d, w)
        [q] y = QuantizeLinear (p, t, z)
    }"""
    kernel = """<ir_version: 10, opset_import: ["": 21]>
    net (float[N,2] x) => (uint8[N,1] y)
    <float s = {0.5}, int8 z = {-128}, int8[2,1] w = {1, 3}, float one = {1}, int8 zw = {0},
     float t = {2}, uint8 zy = {0}> {
        [a] c = QuantizeLinear (x, s, z)
        [k] y = QLinearMatMul (c, s, z, w, one, zw, t, zy)
    }"""
    x = np.random.default_rng(0).uniform(0, 60, (64, 2)).astype(np.float32)
    report = qgraph.check(*map(ir.from_onnx_text, (text, kernel)), {"x": x}, tolerances=ONE)
    assert report.bounds is not None
    first, second, *_ = report.bounds.segments
    assert first.differing_codes == second.differing_codes == 0
    # int8 codes end at 127, which is code 255 of uint8: all sums are the same numbers
    assert (second.elements, second.reason, second.distance) == (64, None, 0.0)


def test_inputs_beyond_their_range_and_unknown_names_are_errors() -> None:
    one, other = (
        ir.from_onnx_text(
            f'<ir_version: 10, opset_import: ["": 21]> net (float[N] x) => (float[N] y) '
            f"<float s = {{{scale}}}> {{ [m] y = Mul (x, s) }}"
        )
        for scale in ("1", "1.5")
    )
    within = Tolerances(within=Bounding("y:1", ranges={"x": (-1, 1)}))
    report = qgraph.check(one, other, {"x": np.ones(3, np.float32)}, tolerances=within)
    assert report.bounds is not None
    (segment,) = report.bounds.segments
    assert (segment.distance, segment.violated) == (0.5, None)
    with pytest.raises(ExecutionError, match="expected the range of --range, -1 to 1"):
        qgraph.check(one, other, {"x": np.full(3, 2, np.float32)}, tolerances=within)
    with pytest.raises(OptionError, match=r"no output 'z', which a limit names, expected one of y"):
        qgraph.check(one, other, tolerances=Tolerances(within="z:1"))


@pytest.mark.parametrize("operation", ["Add", "Mul"])
def test_segments_begin_with_codes_of_operators_that_show_nothing_else(operation: str) -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
    net (float[N,2] x) => (float[N,2] y)
    <float s = {0.5}, float t = {0.25}, uint8 z = {3}, uint8 one = {1}, float w = {3}> {
        [a] c = QuantizeLinear (x, s, z)
        BODY
        [d] r = DequantizeLinear (e, t, one)
        [last] y = Mul (r, w)
    }"""
    codes = f"[k] e = com.microsoft.QLinear{operation} (c, s, z, c, s, z, t, one)"
    reals = f"[b] q = DequantizeLinear (c, s, z) [p] m = {operation} (q, q) "
    reals += "[k] e = QuantizeLinear (m, t, one)"
    x = np.array([[0.5, 1.0], [-1.5, 60]], np.float32)
    for texts in ((codes, reals), (reals, codes)):
        models = [ir.from_onnx_text(text.replace("BODY", body)) for body in texts]
        report = qgraph.check(*models, {"x": x}, tolerances=ONE)
        assert report.bounds is not None
        assert [s.reason for s in report.bounds.segments] == [None] * 3
        assert [s.violated for s in report.bounds.segments] == [None] * 3
        # all numbers are multiples of a quarter: nothing is rounded in either model
        assert report.bounds.segments[1].distance == 0.0


def test_codes_that_are_an_output_are_meant_as_they_are() -> None:
    texts = [
        f"""<ir_version: 10, opset_import: ["": 21]>
        net (float[N,2] x) => (uint8[N,1] y)
        <float s = {{0.5}}, uint8 z = {{0}}, uint8[2,1] w = {{1, 3}}, float t = {{2}},
         uint8 n = {{9}}, float one = {{{scale}}}> {{
            [a] c = QuantizeLinear (x, s, z)
            [k] y = QLinearMatMul (c, s, z, w, one, z, t, n)
        }}"""
        for scale in ("1", "1.001")
    ]
    report = qgraph.check(*map(ir.from_onnx_text, texts), {"x": X}, tolerances=ONE)
    assert report.bounds is not None
    assert [s.violated for s in report.bounds.segments] == [None] * 3
    # sums are 0.25, 1, 1.5 and 255 steps: no code lies farther than half a step from them
    assert report.bounds.segments[1].distance == 0.0


def test_a_quantizer_that_serves_two_segments_is_compared_in_one() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
    net (float[N,2] x) => (float[N,2] y)
    <float s = {0.5}, uint8 z = {0}, uint8 few = {14}, float n = {0}, float four = {4}> {
        BODY
        [wide_real] a = DequantizeLinear (c, s, z)
        [last] y = Add (a, b)
    }"""
    wide = "[wide] c = QuantizeLinear (x, s, z) "
    narrow = """[narrow] b = qonnx.custom_op.general.Quant
        <signed = 0, narrow = 1, rounding_mode = "ROUND">(x, s, n, four)"""
    bodies = narrow + wide, wide + "d = Clip (c, z, few)  b = DequantizeLinear (d, s, z)"
    models = [ir.from_onnx_text(text.replace("BODY", body)) for body in bodies]
    report = qgraph.check(*models, {"x": X}, tolerances=ONE)
    assert report.bounds is not None
    assert [segment.violated for segment in report.bounds.segments if segment.violated] == []
    assert report.verdict == "equal"


def test_a_single_number_is_compared_with_its_bound() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    net (float x) => (float y) <float s = {0.5}, int8 z = {0}, float d = {2}> {
        c = QuantizeLinear (OF, s, z)
        y = DequantizeLinear (c, s, z)
        t = Mul (x, d)
    }"""
    one, other = (ir.from_onnx_text(text.replace("OF", name)) for name in ("x", "t"))
    x = {"x": np.float32(0.25)}
    assert qgraph.check(one, one, x, tolerances=ONE).verdict == "equal"
    x = {"x": np.float32(2)}
    assert qgraph.check(one, other, x, tolerances=ONE).verdict == "different"


def float8(weight: str) -> ir.Model:
    return ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
    net (float[N,2] x) => (float[N,1] y) <float s = {{0.5}}, float[2,1] w = {{1, {weight}}}> {{
        c = QuantizeLinear <output_dtype = 17> (x, s)
        d = DequantizeLinear (c, s)
        y = MatMul (d, w)
    }}""")


def test_segments_that_are_not_compared_allow_no_difference() -> None:
    """Codes of FP8 are not compared: 0.5 + 3 * 0.5 and 0.5 - 3 * 0.5 differ by 3."""
    same = qgraph.check(float8("3"), float8("3"), {"x": X[1:2]}, tolerances=ONE)
    page = check_page(same.to_json())
    assert (same.verdict, page.verdict) == ("equal", "equal")
    assert "2 segments could not be compared with bounds" in page.sentence
    found = qgraph.check(float8("3"), float8("-3"), {"x": X[1:2]}, tolerances=ONE)
    assert (found.verdict, found.outputs[0].max_abs) == ("different", 3)
    assert check_page(found.to_json()).verdict == "different"
    assert any("cannot be compared with bounds" in note for note in found.notes)
    allowed = replace(ONE, atol=3.5)
    found = qgraph.check(float8("3"), float8("-3"), {"x": X[1:2]}, tolerances=allowed)
    assert (found.verdict, check_page(found.to_json()).verdict) == ("equal", "within tolerance")


def test_both_roundings_of_a_trunc_are_compared() -> None:
    """Trunc rounds x to whole numbers, and a sixteenth of them down once more."""
    text = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
        net (float[N,2] x) => (float[N,1] y)
        <float one = {1}, uint8 zero = {0}, float[2,1] w = {0.25, WEIGHT}, float z = {0},
         float in = {8}, float t = {16}, float out = {4}> {
            c = QuantizeLinear (x, one, zero)
            d = DequantizeLinear (c, one, zero)
            p = MatMul (d, w)
            y = qonnx.custom_op.general.Trunc <signed: int = 0, narrow: int = 0,
                rounding_mode: string = "FLOOR"> (p, one, z, in, t, out)
        }"""
    models = [ir.from_onnx_text(text.replace("WEIGHT", w)) for w in ("0.75", "0.8")]
    candidate = qgraph.Model(models[1].clone())
    qgraph.convert(candidate, to="onnx")
    x = np.float32([[4, 8], [100, 40], [63, 63]])
    report = qgraph.check(models[0], candidate, {"x": x}, tolerances=Tolerances(within="99step"))
    assert report.bounds is not None
    assert [s.reason for s in report.bounds.segments] == [None] * 4
    named = {segment.reference: segment for segment in report.bounds.segments}
    rounded, truncated = named["y_Round"], named["y_Floor"]
    # 7, 55 and 63 against 7.4, 57 and 66.15
    assert (rounded.differing_codes, rounded.largest_steps) == (2, 3)
    # 3 and 3 from 55 and 63; 3 and 4 from 57 and 66
    assert (truncated.differing_codes, truncated.accumulated_codes) == (0, 1)


NORMALIZED = """<ir_version: 10, opset_import: ["": 21]>
net (float[N,2] x) => (float[N,1] y)
<float s = {0.5}, uint8 z = {128}, float[2,1] w = {1, 3}, float[1] b = {BIAS}, float t = {2},
 float[2] g = {1, 1}, float[1,2] m = {0, -inf}> {
    n = LayerNormalization (x, g)
    a = QuantizeLinear (n, s, z)
    c = DequantizeLinear (a, s, z)
    k = Add (c, m)
    p = Softmax (k)
    q = QuantizeLinear (p, s, z)
    d = DequantizeLinear (q, s, z)
    r = Gemm (d, w, b)
    e = QuantizeLinear (r, t, z)
    y = DequantizeLinear (e, t, z)
}"""


@pytest.mark.parametrize(("bias", "codes"), [("0", 0), ("0.6", 1)])
def test_segments_behind_a_result_without_a_bound_are_compared(bias: str, codes: int) -> None:
    """LayerNormalization of data of any range has none; a mask of minus infinity is constant."""
    reference, other = (ir.from_onnx_text(NORMALIZED.replace("BIAS", b)) for b in ("0", bias))
    report = qgraph.check(reference, other, {"x": X[:1]}, backend="numpy", tolerances=ONE)
    assert report.bounds is not None
    first, second, third, *_ = report.bounds.segments
    assert [s.reason for s in report.bounds.segments] == [None] * 4
    # only codes of the first one are compared, whatever the normalization computes
    assert (first.elements, first.distance, first.differing_codes) == (2, None, 0)
    # Softmax of (a, -inf) is (1, 0), and its codes are (2, 0); the product is 1
    assert (second.elements, second.differing_codes, second.distance) == (2, 0, 0)
    # in steps of 2: 0.5, a tie (0), and with the bias 0.8 (1)
    assert (third.differing_codes, report.verdict) == (codes, "equal")


def test_nan_is_within_no_bound() -> None:
    """Neither NaN in the data nor NaN that a model makes of them counts as equal codes."""
    models = model("0"), model("0.6")
    with pytest.raises(ExecutionError, match="'x' has NaN or infinite values"):
        qgraph.check(*models, {"x": X * np.float32(np.nan)}, tolerances=ONE)
    text = SUM.replace("BIAS", "0").replace("Gemm (d, w, b)", "Gemm (k, w, b)")
    text = text.replace("[product]", "k = Div (d, d)\n    [product]")
    broken = ir.from_onnx_text(text)
    report = qgraph.check(broken, broken, {"x": X}, backend="numpy", tolerances=ONE)
    assert report.bounds is not None
    found = next(s for s in report.bounds.segments if "NaN on these data" in str(s.reason))
    assert found.elements == 0


CUMULATED = """<ir_version: 10, opset_import: ["": 21]>
net (float[N,2] x) => (float[N,2] y)
<float s = {0.5}, float t = {0.01}, int8 z = {0}, float b = {BIAS}, int64 ax = {1}> {
    q = QuantizeLinear (x, s, z)
    a = DequantizeLinear (q, s, z)
    u = CumSum (a, ax)
    v = Sigmoid (u)
    n = Add (v, b)
    e = QuantizeLinear (n, t, z)
    y = DequantizeLinear (e, t, z)
}"""


def test_codes_behind_a_result_without_a_bound_have_a_limit_too() -> None:
    """There are no distances to judge, so the codes are: 0.05 more are 5 steps of 0.01."""
    models = [ir.from_onnx_text(CUMULATED.replace("BIAS", bias)) for bias in ("0.1", "0.15")]
    report = qgraph.check(*models, {"x": X[:2]}, backend="numpy", tolerances=TENTH)
    assert report.bounds is not None
    assert [s.largest_steps for s in report.bounds.segments if s.distance is None] == [5]
    assert report.verdict == "different"


def test_codes_that_only_one_model_can_have_are_the_start_of_no_segment() -> None:
    """The Clip returns 1 for all data, and the other model has at most 0.0635."""
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (int8[N,3] x) => (float[N,3] y)
        <float s = {0.0005}, float t = {0.0499}, int8 z = {0}, float high = {2}, float low = {1}> {
            a = DequantizeLinear (x, s, z)
            b = LIMIT
            q = QuantizeLinear (b, t, z)
            y = DequantizeLinear (q, t, z)
        }"""
    pair = [ir.from_onnx_text(text.replace("LIMIT", each)) for each in ("Identity (a)", LIMIT)]
    report = qgraph.check(*pair, {"x": np.full((1, 3), 17, np.int8)}, tolerances=ONE)
    assert report.bounds is not None
    assert [each.violated for each in report.bounds.segments] == [None, None]
    assert report.verdict == "different"
    assert report.bounds.segments[0].beyond


TAKEN = """<ir_version: 10, opset_import: ["": 21]>
net (float[8,4] x) => (float[8,4] y)
<float s = {0.1}, int8 z = {0}, float k = {3000}, float[4] b = {0.5, 1, -1, 2},
 float[4,4] w = {1.3, 2.2, -3.7, 4.2, 0.5, 0.6, -0.7, 0.8, 0.9, 1, 2, 3, -4, 5, 6, 7}> {
    FIRST
    n = Mul (m, k)
    r = Sin (n)
    c = QuantizeLinear (r, s, z)
    d = DequantizeLinear (c, s, z)
    SECOND
}"""
SUMS = [
    ("p = MatMul (x, w) m = Add (p, b)", "q = MatMul (d, w) y = Add (q, b)"),
    ("m = Gemm (x, w, b)", "y = Gemm (d, w, b)"),
]


def test_what_follows_codes_that_are_only_taken_as_equal_is_not_compared() -> None:
    """The bound holds for equal codes d. The sine of sums in the millions has any code."""
    models = [
        ir.from_onnx_text(TAKEN.replace("FIRST", first).replace("SECOND", second))
        for first, second in SUMS
    ]
    x = np.random.default_rng(0).normal(0, 100, (8, 4)).astype(np.float32)
    report = qgraph.check(*models, {"x": x}, backend="numpy", tolerances=ONE)
    assert report.bounds is not None
    assert [(str(s.reason), s.violated) for s in report.bounds.segments] == [
        ("Sin has no bound", None),
        ("it begins at 'd', which has no bound", None),
    ]
    proof = qgraph.prove(*models, within="0.0000001step")
    (bound,) = (region.bound for region in proof.regions if region.bound is not None)
    assert bound.seen is None


def test_codes_that_follow_such_codes_are_not_compared() -> None:
    end = "e = QuantizeLinear (o, s, z) y = DequantizeLinear (e, s, z)"
    models = [
        ir.from_onnx_text(
            TAKEN.replace("FIRST", first).replace("SECOND", second.replace("y =", "o =") + end)
        )
        for first, second in SUMS
    ]
    x = np.random.default_rng(0).normal(0, 100, (8, 4)).astype(np.float32)
    report = qgraph.check(*models, {"x": x}, backend="numpy", tolerances=ONE)
    assert report.bounds is not None
    assert [str(each.reason) for each in report.bounds.segments][:2] == [
        "Sin has no bound",
        "it begins at 'd', which has no bound",
    ]
