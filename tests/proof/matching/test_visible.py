"""Whether a difference shows in the outputs of a model."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.graph.inference.walk import with_facts
from qgraph.ops.known_values import KnownValues
from qgraph.proof.matching.attained import is_moved_to

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
CUT = "int64[1] b = {{2}}, int64[1] e = {{{}}}, int64[1] a = {{2}}, int64[1] s = {{-2}}"


def cut(body: str, end: int) -> ir.Model:
    text = f"g (float[N,2,4] x) => (float[] y) <{CUT.format(end)}, float z = {{0}}> {{ {body} }}"
    return ir.from_onnx_text(f"{HEADER} {text}")


@pytest.mark.parametrize(("end", "shows"), [(0, True), (5, False)])
@pytest.mark.parametrize(
    "last", ["y = Slice(r, b, e, a, s)", "c = Slice(r, b, e, a, s) y = Tanh(c)"]
)
def test_a_slice_that_takes_nothing_shows_nothing(end, shows, last):
    model = with_facts(cut(f"r = Floor(x) {last}", end))
    known = KnownValues({"": 21})
    known.enter(model.graph)
    (start, *_) = model.graph
    found = is_moved_to(start.outputs[0], known, model.graph.outputs, everywhere=True)
    assert found == (shows and last.startswith("y"))


@pytest.mark.slow
def test_models_without_results_do_not_differ():
    body = "{} y = Slice(r, b, e, a, s)"
    ours = cut(body.format("r = Floor(x)"), 5)
    theirs = cut(body.format("f = Floor(x) r = Max(f, z)"), 5)
    assert qgraph.prove(ours, theirs).verdict != "different"


SINGLE = """<ir_version: 10, opset_import: ["": 21]> g (float[1,3,4,4] x) => (float[] y)
    <float[3] s = {0.1, 0.2, SCALE}, int8[3] z = {0, 0, 0}, float[3,1,1,1] single = {1, 2, 3},
     float[3,3,1,1] dense = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[3] one = {1, 1, 1},
     float[3,1,1] mask = {1, 1, 0}, int64[2] parts = {2, 1}, int64[1] first = {0},
     int64[1] last = {2}, int64[1] axis = {1}, int64[2] pick = {0, 1}> {
        q = QuantizeLinear <axis = 1> (x, s, z)
        d = DequantizeLinear <axis = 1> (q, s, z)
        SUM
        REST }"""
SUMS = {
    "Conv of single channels": "c = Conv <group = 3> (d, single)",
    "AveragePool": "c = AveragePool <kernel_shape = [2, 2]> (d)",
    "BatchNormalization": "c = BatchNormalization (d, one, one, one, one)",
}
RESTS = {
    "Split": "y, rest = Split <axis = 1> (c, parts)",
    "Slice": "r = Relu (c) y = Slice (r, first, last, axis)",
    "Gather": "y = Gather <axis = 1> (c, pick)",
    "Mul": "y = Mul (c, mask)",
}


def pair(sum_: str, rest: str) -> list[ir.Model]:
    text = SINGLE.replace("SUM", sum_).replace("REST", rest)
    return [ir.from_onnx_text(text.replace("SCALE", scale)) for scale in ("0.3", "0.4")]


@pytest.mark.cases(fast=1, slow=3)
@pytest.mark.parametrize("rest", RESTS.values(), ids=RESTS)
@pytest.mark.parametrize("sum_", SUMS.values(), ids=SUMS)
def test_what_leaves_the_channel_out_that_differs_shows_nothing(sum_, rest):
    """The outputs depend on the first two channels, which are equal."""
    ours, theirs = pair(sum_, rest)
    x = {"x": np.random.default_rng(0).normal(size=(1, 3, 4, 4)).astype(np.float32)}
    results = [qgraph.load(model).run(x, backend="numpy")["y"] for model in (ours, theirs)]
    assert np.array_equal(*results)
    assert qgraph.prove(ours, theirs).verdict != "different"


@pytest.mark.parametrize("rest", [RESTS["Split"], "y = Identity (c)"])
def test_a_sum_of_all_channels_shows_a_difference_in_one(rest):
    assert qgraph.prove(*pair("c = Conv (d, dense)", rest)).verdict == "different"


def test_weights_of_a_channel_that_is_left_out_make_no_difference():
    ours, theirs = pair(SUMS["Conv of single channels"], RESTS["Split"])
    theirs = ir.from_onnx_text(
        SINGLE.replace("SUM", SUMS["Conv of single channels"])
        .replace("REST", RESTS["Split"])
        .replace("SCALE", "0.3")
        .replace("{1, 2, 3},", "{1, 2, 5},")
    )
    assert qgraph.prove(ours, theirs).verdict != "different"
