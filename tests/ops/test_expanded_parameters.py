"""Constants that are expanded to the shape of data are read as constants."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import qgraph
from qgraph import transforms
from qgraph.ops.static_parameters import expanded_parameters

# As Keras exports a layer of HGQ2 that saturates: the limits are computed behind the Expand.
SATURATED = """<ir_version: 9, opset_import: ["": 20]>
net (float[N,3] x) => (float[N,3] y)
<float[1,3] integer = {{2, 1, 0}}, float[1,3] fraction = {{1, 2, 3}}, float two = {{2}},
 float half = {{0.5}}, float none = {{0}}> {{
    shape = Shape (x)
    i = Expand (integer, shape)
    f = Expand (fraction, shape)
    step = Neg (f)
    finest = Pow (two, step)
    top = Pow (two, i)
    highest = Sub (top, finest)
    lowest = Neg (top)
    below = Less (x, lowest)
    above = Greater (x, highest)
    a = Where (below, lowest, x)
    c = Where (above, highest, a)
    m = Pow (two, f)
    t = Mul (c, m)
    nothing = Sub (t, t)
    {rounding}
    v = Add (r, nothing)
    d = Div (v, m)
    bits = Add (i, f)
    has = Greater (bits, none)
    zeros = ConstantOfShape (shape)
    y = Where (has, d, zeros)
}}"""
ROUNDINGS = {
    "RND_CONV": "r = Round (t)",
    "TRN": "r = Floor (t)",
    "RND": "h = Add (t, half) r = Floor (h)",
}
X = np.array(
    [[-9, -9, -9], [9, 9, 9], [0.75, 0.375, -0.1875], [-0.25, -0.125, -0.0625]], np.float32
)
# 2, 1, 0 integer bits and 1, 2, 3 fractional bits beside the sign, by the definition of ap_fixed.
FIRST = [[-4, -2, -1], [3.5, 1.75, 0.875]]
EXPECTED = {
    "RND_CONV": [*FIRST, [1, 0.5, -0.25], [0, 0, 0]],
    "TRN": [*FIRST, [0.5, 0.25, -0.25], [-0.5, -0.25, -0.125]],
    "RND": [*FIRST, [1, 0.5, -0.125], [0, 0, 0]],
}


def saturated(mode: str) -> ir.Model:
    return ir.from_onnx_text(SATURATED.format(rounding=ROUNDINGS[mode]))


@pytest.mark.cases(fast=3)
@pytest.mark.runtime
@pytest.mark.parametrize("mode", ROUNDINGS)
@pytest.mark.parametrize("dialect", ["qonnx", "qdq", "openvino"])
def test_quantizers_that_saturate_are_converted(mode: str, dialect: str) -> None:
    model = qgraph.load(saturated(mode))
    before = onnxruntime.InferenceSession(ir.to_proto(model.ir).SerializeToString())
    assert before.run(None, {"x": X})[0].tolist() == EXPECTED[mode]
    candidate = model.clone()
    (site,) = candidate.apply(transforms.ConvertDialect(to=dialect)).sites
    assert site.outcome == "changed"
    assert {node.op_type for node in candidate.nodes()}.isdisjoint({"Expand", "Shape"})
    assert candidate.run({"x": X}, backend="numpy")["y"].tolist() == EXPECTED[mode]
    assert qgraph.prove(model, candidate).verdict == "proved"


@pytest.mark.parametrize("mode", ROUNDINGS)
def test_weights_with_bits_of_their_own_become_codes(mode: str) -> None:
    text = SATURATED.format(rounding=ROUNDINGS[mode])
    text = text.replace("Shape (x)", "Shape (w)").replace("(x,", "(w,").replace(", x)", ", w)")
    text = text.replace("y = Where (has, d, zeros)", "q = Where (has, d, zeros) y = Add (x, q)")
    numbers = ", ".join(map(str, X.reshape(-1)))
    model = qgraph.load(
        ir.from_onnx_text(text.replace("float two", f"float[4,3] w = {{{numbers}}}, float two"))
    )
    folded = model.clone()
    (site,) = folded.apply(transforms.FoldWeights()).sites
    assert (site.outcome, str(site.verdict.exactness)) == ("changed", "bits")
    assert {node.op_type for node in folded.nodes()} <= {"DequantizeLinear", "Add", "Constant"}
    zeros = np.zeros((4, 3), np.float32)
    assert folded.run({"x": zeros}, backend="numpy")["y"].tolist() == EXPECTED[mode]
    assert qgraph.prove(model, folded).verdict == "proved"


def test_info_reads_the_format() -> None:
    (quantizer,) = qgraph.info(qgraph.load(saturated("TRN"))).quantizers
    assert (quantizer.format, quantizer.rounding) == ("int4", "FLOOR")
    assert quantizer.scale == (0.125, 0.5)


def arrays(nodes: str, inputs: str = "float[N,2] x", outputs: str = "float[N,2] y") -> set[str]:
    model = ir.from_onnx_text(
        f"""<ir_version: 9, opset_import: ["": 20]>
        net ({inputs}) => ({outputs}) <float[1,2] p = {{3, 4}}, float one = {{1}}> {{
            s = Shape (x) e = Expand (p, s) {nodes}
        }}"""
    )
    onnx.checker.check_model(ir.to_proto(model))
    return {str(value.name) for value in expanded_parameters(model)}


def test_the_value_that_meets_the_data_is_replaced() -> None:
    assert arrays("y = Add (x, e)") == {"e"}
    assert arrays("n = Neg (e) m = Mul (n, one) y = Add (x, m)") == {"m"}
    assert arrays("n = Neg (e) a = Add (x, e) y = Mul (a, n)") == {"e", "n"}


def test_a_tensor_without_axes_is_replaced_by_one() -> None:
    model = ir.from_onnx_text(
        """<ir_version: 9, opset_import: ["": 20]>
        net (float x) => (float y) <int64[0] s> {
            s = Constant <value = int64[0] {}> ()
            e = ConstantOfShape <value = float[1] {2}> (s)
            y = Add (x, e)
        }"""
    )
    (array,) = expanded_parameters(model).values()
    assert array.tolist() == 2  # not [2], with which the sum would be a list of one


@pytest.mark.parametrize(
    "nodes",
    [
        "y = Neg (e)",
        "c = Concat <axis = 0> (e, e) y = Add (x, c)",
        "d = ReduceSum <keepdims = 0> (e) y = Add (x, d)",
        "q = QuantizeLinear (e, one) d = DequantizeLinear (q, one) y = Add (x, d)",
    ],
    ids=["output", "moved", "reduced", "quantized"],
)
def test_others_keep_their_shape(nodes: str) -> None:
    assert arrays(nodes) == set()


def test_smaller_data_do_not_give_the_shape() -> None:
    assert arrays("y = Add (z, e)", "float[N,2] x, float[1,2] z") == set()


def test_a_quantized_constant_is_no_parameter() -> None:
    text = """<ir_version: 9, opset_import: ["": 20]>
    net (float[N,2] x) => (float[N,2] y) <float[1,2] p = {3.2, 4.1}, float s = {0.5}> {
        d = Div (p, s) r = Round (d) q = Mul (r, s)
        n = Shape (x) e = Expand (q, n) y = Add (x, e)
    }"""
    assert expanded_parameters(ir.from_onnx_text(text)) == {}
