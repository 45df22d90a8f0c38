"""A Clip that lacks a bound, of which ONNX leaves open what it makes of an infinity."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

import qgraph
from qgraph.conditions import OPEN_BOUNDS
from qgraph.errors import EquivalenceError
from tests.verify.checking import verify

CLIP, RELU = "y = Clip(x, z)", "y = Relu(x)"
BOTH = "y = Clip(x, z, h)"


def parse(body: str) -> onnx.ModelProto:
    constants = "float z = {0}, float h = {6}"
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]>'
        f"g (float[2] x) => (float[2] y) <{constants}> {{ {body} }}"
    )


@pytest.mark.runtime
def test_the_runtime_takes_the_largest_number_for_a_bound():
    session = ort.InferenceSession(parse(CLIP).SerializeToString())
    (y,) = session.run(None, {"x": np.array([np.inf, 1], np.float32)})
    assert y[0] == np.finfo(np.float32).max


@pytest.mark.parametrize(("ours", "theirs"), [(CLIP, RELU), (RELU, CLIP)])
def test_equality_with_relu_has_a_condition(ours, theirs):
    found = qgraph.prove(parse(ours), parse(theirs))
    assert (found.verdict, OPEN_BOUNDS in found.conditions) == ("proved", True)


@pytest.mark.parametrize("body", [CLIP, BOTH, RELU])
def test_equality_with_itself_has_none(body):
    found = qgraph.prove(parse(body), parse(body))
    assert (found.verdict, OPEN_BOUNDS in found.conditions) == ("proved", False)


def test_the_checker_demands_it():
    pair = parse(CLIP), parse(RELU)
    document = qgraph.prove(*pair, evidence=True).to_json()
    assert verify(document, *pair) == "proved"
    document["conditions"].remove(OPEN_BOUNDS.to_json())
    with pytest.raises(
        EquivalenceError, match=r"condition .no infinity reaches a Clip .* is missing"
    ):
        verify(document, *pair)
