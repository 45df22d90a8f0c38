"""Parameters that follow from sizes: found where they must be, and only then."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.certificate import ProofVerdict
from qgraph.graph.constants import constant
from qgraph.inventory.overview import overview
from qgraph.model import _OF_SIZES
from qgraph.ops import static_parameters
from qgraph.ops.static_parameters import freeze_static_parameters
from qgraph.reports import SiteStatus
from qgraph.transforms.convert import ConvertDialect

HEAD = """<ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 2]>
g (float[{input}] x) => (float[a,b,c,d] y)
<float z = {{0}}, float bits = {{4}}, float unit = {{0.5}}, int64 two = {{2}}, int64 one = {{1}},
 int64 zero = {{0}}, float rescaled = {{0.25}}, float two_ln = {{0.6931472}},
 float step = {{255}}, int64[1] start = {{2}}, int64[1] end = {{9}}>
{{
    r = Relu (x)
    {scale}
    y = qonnx.custom_op.general.Quant <signed = 1, narrow = 0, rounding_mode = "ROUND">
        (r, scale, z, width)
}}"""
WIDTH = "width = Identity (bits)"


def model_of(scale: str, *, sizes: str = "N,3,6,8", width: str = WIDTH) -> ir.Model:
    return ir.from_onnx_text(HEAD.format(input=sizes, scale=f"{scale}\n{width}"))


def parameter(model: ir.Model, place: int) -> float | None:
    array = constant(list(model.graph)[-1].inputs[place])
    return None if array is None else float(array)


PICKED = "s = Shape (r) h = Gather <axis = 0> (s, two) f = Cast <to = 1> (h) "
KNOWN = {
    PICKED + "scale = Div (unit, f)": 0.5 / 6,
    "s = Shape <start = 2, end = 3> (r) h = Squeeze (s, zero_axis)"
    " f = Cast <to = 1> (h) scale = Mul (unit, f)": 3.0,
    "s = Shape (r) k = Slice (s, start, end) f = Cast <to = 1> (k)"
    " i = Floor (f) p = Gather <axis = 0> (i, one) scale = Mul (unit, p)": 4.0,
    "s = Shape (r) a = Gather <axis = 0> (s, two) b = Gather <axis = 0> (s, one) q = Div (a, b)"
    " f = Cast <to = 1> (q) scale = Mul (unit, f)": 1.0,
    "s = Shape (r) n = Gather <axis = 0> (s, zero) h = Gather <axis = 0> (s, two)"
    " u = Unsqueeze (n, zero_axis) v = Unsqueeze (h, zero_axis) c = Concat <axis = 0> (u, v)"
    " e = Gather <axis = 0> (c, one) f = Cast <to = 1> (e) scale = Div (unit, f)": 0.5 / 6,
}


@pytest.mark.parametrize("scale", KNOWN)
def test_sizes_that_never_change_are_followed(scale: str) -> None:
    axis = "zero_axis = Constant <value_ints = [0]> ()\n"
    model = model_of(axis + scale)
    assert freeze_static_parameters(model) == 1
    assert parameter(model, 1) == np.float32(KNOWN[scale])
    assert not {node.op_type for node in model.graph} & {"Shape", "Cast"}, "nothing needs them"


def test_what_is_stated_of_inner_values_counts_for_nothing() -> None:
    for stated, sizes, expected in (
        ([1, 3, 60, 8], "N,3,6,8", np.float32(0.5 / 6)),
        ([1, 3, 60, 8], "N,3,H,8", None),
    ):
        model = model_of(PICKED + "scale = Div (unit, f)", sizes=sizes)
        relu = model.graph[0].outputs[0]
        relu.type, relu.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(stated)
        freeze_static_parameters(model)
        assert parameter(model, 1) == expected


DYNAMIC = {
    "a size that is not known": "s = Shape (r) n = Gather <axis = 0> (s, zero)"
    " f = Cast <to = 1> (n) scale = Div (unit, f)",
    "a size that is not known, in a product with zero": "s = Shape (r)"
    " n = Gather <axis = 0> (s, zero) m = Mul (n, zero) f = Cast <to = 1> (m)"
    " scale = Add (unit, f)",
    "a size of data": "k = NonZero (r) s = Shape (k) n = Gather <axis = 0> (s, one)"
    " f = Cast <to = 1> (n) scale = Div (unit, f)",
    "a size and data": PICKED + "m = ReduceMax <keepdims = 0> (r) scale = Mul (m, f)",
    "a quotient of a negative number": "s = Shape (r) h = Gather <axis = 0> (s, two)"
    " m = Sub (one, h) q = Div (m, two) f = Cast <to = 1> (q) scale = Mul (unit, f)",
    "a quotient by nothing": PICKED + "d = Sub (f, f) scale = Div (unit, d)",
}


@pytest.mark.parametrize("scale", DYNAMIC.values(), ids=list(DYNAMIC))
def test_everything_else_stays(scale: str) -> None:
    model = model_of(scale)
    before = [node.op_type for node in model.graph]
    assert freeze_static_parameters(model) == 0
    assert [node.op_type for node in model.graph] == before


def test_sizes_inside_a_scan_may_change_from_round_to_round() -> None:
    model = ir.from_onnx_text("""
<ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 2]>
g (float[2,3] x, float[4,5,3] data) => (float[a,b] y, float[a,b,c] o)
<float z = {0}, float bits = {4}, int64 zero = {0}> {
    y, o = Scan <num_scan_inputs = 1,
        body = round (float[2,3] v, float[5,3] e) => (float[a,b] w, float[a,b] u) {
            s = Shape (v) h = Gather <axis = 0> (s, zero) f = Cast <to = 1> (h)
            u = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (v, f, z, bits)
            w = Concat <axis = 0> (u, u)
        }> (x, data)
}""")
    assert freeze_static_parameters(model) == 0


LOGARITHM = " p = Mul (step, f) l = Log (p) o = Div (l, two_ln) width = Ceil (o)"


@pytest.mark.parametrize(("rows", "bits"), [(6, 11), (36, 14), (37, 14)])
def test_a_width_by_a_logarithm_far_from_a_whole_number_is_known(rows: int, bits: int) -> None:
    model = model_of("scale = Identity (unit)", sizes=f"N,3,{rows},8", width=PICKED + LOGARITHM)
    assert freeze_static_parameters(model) == 1
    assert 2 ** (bits - 1) < 255 * rows < 2**bits
    assert parameter(model, 3) == bits


def test_a_width_that_hangs_on_the_last_bits_of_a_logarithm_is_not_known() -> None:
    width = PICKED + LOGARITHM.replace("step", "unit")
    model = model_of("scale = Identity (unit)", sizes="N,3,64,8", width=width)
    assert freeze_static_parameters(model) == 0, "log2(32) is 5, or a little more"


def test_shapes_are_inferred_only_where_a_parameter_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("asked for")

    monkeypatch.setattr("qgraph.ops.static_parameters.infer", refuse)
    plain = "s = Shape (r) f = Cast <to = 1> (s) scale = Mul (unit, rescaled)"
    assert freeze_static_parameters(model_of(plain)) == 0
    with pytest.raises(AssertionError, match="asked for"):
        freeze_static_parameters(model_of(PICKED + "scale = Div (unit, f)"))


def test_such_a_quantizer_is_converted_and_proved() -> None:
    source = model_of(PICKED + "scale = Div (unit, f)")
    model = qgraph.load(source.clone())
    report = model.apply(ConvertDialect(to="qdq"))
    assert [site.outcome for site in report.sites] == [SiteStatus.CHANGED]
    assert "parameters that follow from static dimensions, casts or Expand: 1" in report.notes
    assert qgraph.prove(source, model).verdict is ProofVerdict.PROVED
    other = model_of(PICKED.replace("two", "one") + "scale = Div (unit, f)")
    assert qgraph.prove(other, model).verdict is ProofVerdict.DIFFERENT


def test_such_a_quantizer_is_described_and_the_model_stays() -> None:
    model = model_of(PICKED + "scale = Div (unit, f)")
    (found,) = overview(model).quantizers
    assert found.scale == (np.float32(0.5 / 6),) * 2
    assert overview(model).operators["Shape"] == 1
    assert [node.op_type for node in model.graph][1] == "Shape"


def test_long_chains_do_not_overflow() -> None:
    links = " ".join(f"c{i + 1} = Identity (c{i})" for i in range(3000))
    model = model_of(PICKED + f"c0 = Identity (f) {links} scale = Mul (unit, c3000)")
    assert freeze_static_parameters(model) == 0
    assert static_parameters._DEEP < 3000


CAST = """<ir_version: 10, opset_import: ["": 21]>
g (float[2,3] x) => (float[2,2] y)
<int8[3,2] w = {1, -2, 3, 4, -5, 6}, float[2] s = {0.5, 0.25}, int64[2] z = {0, ZERO}> {
    scale = Cast <to = 1> (s) point = Cast <to = 3> (z)
    d = DequantizeLinear (w, scale, point) y = MatMul (x, d)
}"""


@pytest.mark.parametrize(("zero", "is_constant"), [(7, True), (127, True), (128, False)])
def test_cast_constants_of_channels_are_parameters(zero: int, is_constant: bool) -> None:
    source = ir.from_onnx_text(CAST.replace("ZERO", str(zero)))
    model = qgraph.load(source.clone())
    report = model.apply(ConvertDialect(to="qonnx"))
    assert report.count("changed") == is_constant
    x = np.eye(3, dtype=np.float32)[:2]
    if is_constant:
        weights = (np.array([[1, -2], [3, 4]]) - [0, zero]) * [0.5, 0.25]
        np.testing.assert_array_equal(model.run({"x": x}, backend="numpy")["y"], weights)
        assert qgraph.prove(source, model).verdict is ProofVerdict.PROVED


def test_no_parameter_is_known_without_an_operator_that_passes_look_for():
    """A pass looks for parameters only in a model that has one of these operators."""
    assert static_parameters._EXPANDING | {"Cast", "Shape", "Size"} == _OF_SIZES
    for scale in ("Div (rescaled, unit)", "Log (rescaled)", "Ceil (unit)", "Identity (unit)"):
        own = model_of(f"scale = {scale}")
        assert not static_parameters.static_parameters(own)
        assert not static_parameters.expanded_parameters(own)
