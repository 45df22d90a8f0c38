"""Bounds beside data where one model moves codes before rounding and the other one behind it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import qgraph
from qgraph import Tolerances
from qgraph.bound import Bounding
from qgraph.comparison.cut_model import CutModel
from qgraph.comparison.divergence import values_of
from qgraph.proof.bounds.paired_models import paired
from tests.proof.bounds.test_moved_cuts import CASES, S_Y, model

pytestmark = pytest.mark.runtime

X = np.random.default_rng(1).integers(-128, 128, (1, 2, 6, 6)).astype(np.int8)
WITHIN = Tolerances(within="5step")


def result(each: ir.Model) -> np.ndarray:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    proto = ir.to_proto(each)
    proto.graph.output[0].ClearField("type")
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    session = ort.InferenceSession(proto.SerializeToString(), options)
    return session.run(None, {"x": X})[0]


@pytest.mark.cases(fast=4, slow=13)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("move", "ours", "theirs"), CASES[::2])
def test_codes_that_differ_are_those_of_the_whole_models(move, ours, theirs, turned):
    # half of the difference of a bias of 1.5 steps shows in a code
    pair = [
        model(ours[0], move, first=ours[1]),
        model(theirs[0], move, first=theirs[1], off=1.5 * S_Y),
    ]
    pair = pair[::-1] if turned else pair
    steps = np.rint(np.abs(np.subtract(*map(result, pair))) / S_Y)
    report = qgraph.check(*pair, {"x": X}, tolerances=WITHIN)
    first, output = report.bounds.segments
    assert first.reason is None
    assert first.elements == steps.size
    assert first.differing_codes == np.count_nonzero(steps) > 0
    assert first.largest_steps == steps.max()
    # what is rounded is 1.5 steps more; an integer kernel shows only codes
    assert 1 <= first.distance <= first.distance_bound
    assert first.distance_bound == pytest.approx(1.5, abs=0.02)
    assert first.violated is None
    # from equal codes, the outputs are equal
    assert (output.differing_codes, output.violated) == (0, None)
    assert output.accumulated_codes == first.differing_codes


NEXT = """<ir_version: 10, opset_import: ["": 21]>
    net (int8[1,2,3,4] x) => (float y)
    <int8[2,2,1,1] w = {1, 2, 3, -4}, float s = {0.3}, float s_w = {S_W}, int8 z = {0},
     float f = {F}, float t = {2.9}, float[2,3] v = {1, 3, -2, 0.5, 1, 2}, uint8 u = {128}> {
        a = DequantizeLinear (x, s, z)
        k = DequantizeLinear (w, s_w, z)
        m = Conv (a, k)
        n = Mul (m, f)
        END
        p = MatMul (d, v)
        e = QuantizeLinear (p, t, u)
        y = DequantizeLinear (e, t, u)
    }"""
MOVE = "Transpose <perm = [0, 3, 1, 2]>"
TURN = "Transpose <perm = [0, 1, 3, 2]>"
ENDS = (
    f"""r = {MOVE} (n) q = QuantizeLinear (r, s, z) i = DequantizeLinear (q, s, z)
        d = {TURN} (i)""",
    f"""q = QuantizeLinear (n, s, z) r = {MOVE} (q) i = {TURN} (r)
        d = DequantizeLinear (i, s, z)""",
    f"""q = QuantizeLinear (n, s, z) h = DequantizeLinear (q, s, z) r = {MOVE} (h)
        l = QuantizeLinear (r, s, z) i = DequantizeLinear (l, s, z) d = {TURN} (i)""",
)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("end", ENDS[1:], ids=["codes", "quantized again"])
def test_segments_behind_moved_codes_begin_with_equal_ones(end, turned):
    forms = [(ENDS[0], "0.05", "1.3"), (end, "0.066", "1")][:: -1 if turned else 1]
    pair = [
        ir.from_onnx_text(NEXT.replace("END", end).replace("S_W", s_w).replace("{F}", f"{{{f}}}"))
        for end, s_w, f in forms
    ]
    x = np.random.default_rng(2).integers(-128, 128, (1, 2, 3, 4)).astype(np.int8)
    report = qgraph.check(*pair, {"x": x}, tolerances=WITHIN)
    first, second, _ = report.bounds.segments
    assert first.differing_codes > 0
    # both models compute the rest alike
    assert (second.differing_codes, second.reason) == (0, None)
    assert second.accumulated_codes > 0


def test_an_output_that_is_codes_of_a_kernel_is_equal_for_equal_codes():
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (uint8[N,2] x) => (uint8[N,1] y)
        <float s = {0.5}, uint8 z = {0}, float[2,1] w = {1, 3}, float t = {2.3}> {
            d = DequantizeLinear (x, s, z)
            p = MatMul (d, w)
            y = QuantizeLinear (p, t, z)
        }"""
    kernel = """<ir_version: 10, opset_import: ["": 21]>
        net (uint8[N,2] x) => (uint8[N,1] y)
        <float s = {0.5}, uint8 z = {0}, int8[2,1] w = {1, 3}, float one = {1}, int8 zw = {0},
         float t = {2}> {
            y = QLinearMatMul (x, s, z, w, one, zw, t, z)
        }"""
    x = np.uint8([[10, 20], [0, 0], [30, 40]])
    models = map(ir.from_onnx_text, (text, kernel))
    report = qgraph.check(*models, {"x": x}, tolerances=Tolerances(within="9step"))
    # sums of 35, 0 and 75: 15, 0 and 33 steps of 2.3, and 18 (17.5), 0 and 38 (37.5) steps of 2
    first, output = report.bounds.segments
    assert (first.differing_codes, first.largest_steps) == (2, 5)
    assert (output.differing_codes, output.violated, output.reason) == (0, None, None)


def test_a_rounding_that_is_cut_twice_has_two_names():
    text = """<ir_version: 10, opset_import: ["": 21]> net (float[2] x) => (int8[2] y)
        <float s = {0.5}, int8 z = {0}> { y = QuantizeLinear (x, s, z) }"""
    pairing = paired((ir.from_onnx_text(text), ir.from_onnx_text(text)), Bounding())
    side = CutModel(pairing.models[0], pairing.reference, "numpy")
    rounding, _ = pairing.segments[0].roundings
    side.uncut_point(rounding)
    side.point(rounding)
    assert {value.name for value in values_of(side.whole.ir.graph)} == {
        *("x", "s", "z", "y"),
        *("y_cut", "y_cut_1"),
    }
