"""Whether a difference shows in the outputs of a model."""

from __future__ import annotations

import onnx_ir as ir
import pytest

import qgraph
from qgraph.graph.inference.walk import with_facts
from qgraph.ops.known_values import KnownValues
from qgraph.proof.matching.attained import visible

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
    found = visible(
        start.outputs[0], known, model.graph.outputs, everywhere=True, through_sums=True
    )
    assert found == (shows and last.startswith("y"))


def test_models_without_results_do_not_differ():
    body = "{} y = Slice(r, b, e, a, s)"
    ours = cut(body.format("r = Floor(x)"), 5)
    theirs = cut(body.format("f = Floor(x) r = Max(f, z)"), 5)
    assert qgraph.prove(ours, theirs).verdict != "different"
