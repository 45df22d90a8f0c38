"""Definitions that are recorded once and repeated on data."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph import Tolerances
from qgraph.bound import Bounding
from qgraph.comparison import ideal
from qgraph.comparison.ideal import Definitions
from qgraph.proof.bounds.paired_models import paired
from qgraph.reasons import Undecidable

TEXT = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
net (float[N,2] x) => (float[N,2] y)
<float[2] s = {0.1, 0.3}, float z = {1}, float b = {4}, float half = {0.5}> {
    [q] a = qonnx.custom_op.general.Quant <signed = 1, rounding_mode = "ROUND"> (x, s, z, b)
    [last] y = Mul (a, half)
}"""
X = np.array([[0.25, 0.75], [-0.04, 9.0]], np.float32)


def recorded() -> tuple[Definitions, ir.Node, ir.Value]:
    models = ir.from_onnx_text(TEXT), ir.from_onnx_text(TEXT)
    evaluation = paired(models, Bounding()).reference
    node = evaluation.named["a"].producer()
    assert node is not None
    value = node.inputs[0]
    assert value is not None
    return Definitions(evaluation), node, value


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_what_is_rounded_is_computed_in_the_arithmetic_asked_for(kind: Any) -> None:
    known, node, value = recorded()
    for x in (X, X[::-1], X[:1]):
        scale = np.array([0.1, 0.3], np.float32).astype(kind)
        places = x.astype(kind) / scale + kind(1)
        expected = np.minimum(np.maximum(places, kind(-8)), kind(7))
        assert np.array_equal(known.before(node, value, x, kind), expected)
        assert np.array_equal(known.before(node, value, x, kind, limits=False), places)


def test_a_result_is_meant_to_be_its_code_times_the_stored_scale() -> None:
    known, node, value = recorded()
    codes = [[3, 3], [1, 7]]  # 3.5 as stored is below the tie: 0.25 / 0.1 is 2.49999996
    scales = [Fraction(float(np.float32(number))) for number in (0.1, 0.3)]
    for row, expected in zip(known.result(node, {value: X}).tolist(), codes, strict=True):
        for meant, code, scale in zip(row, expected, scales, strict=True):
            assert meant == float((code - 1) * scale)


def test_a_node_that_rounds_nothing_is_refused() -> None:
    known, node, _ = recorded()
    (last,) = node.outputs[0].consumers()
    with pytest.raises(Undecidable, match="Mul rounds nothing"):
        known.before(last, node.outputs[0], X, np.float32)


def test_definitions_are_not_read_again_for_more_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    lower = ideal.lower_node

    def counted(node: ir.Node, *operands: Any, **options: Any) -> Any:
        calls.append(node)
        return lower(node, *operands, **options)

    monkeypatch.setattr(ideal, "lower_node", counted)
    numbers = []
    for count in (1, 5):
        calls.clear()
        inputs = qgraph.Inputs(random=count, shapes={"x": [4, 2]})
        models = ir.from_onnx_text(TEXT), ir.from_onnx_text(TEXT)
        report = qgraph.check(*models, inputs, tolerances=Tolerances(within="1step"))
        assert report.bounds is not None
        numbers.append(len(calls))
    assert numbers[0] == numbers[1] > 0
