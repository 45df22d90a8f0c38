"""Single quantizers from each dialect to each other one and back, and into their own."""

from __future__ import annotations

from functools import cache
from itertools import permutations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.reports import SiteStatus
from qgraph.transforms.convert import ConvertDialect
from tests.conformance.cells import DIALECTS, differences
from tests.conformance.quantizers import OPSET, Quantizer, build
from tests.conformance.rows import rows

HOME = {
    "Quant": "qonnx",
    "BipolarQuant": "qonnx",
    "Trunc, version 1": "qonnx",
    "Trunc, version 2": "qonnx",
    "FloatQuant": "qonnx",
    "FakeQuantize": "openvino",
    "Q+DQ": "qdq",
    "Q+Clip+DQ": "qdq",
    "DQ": "qdq",
    "Cast+Cast": "onnx",
    "Div+Cast+Cast+Mul": "onnx",
}
"""The dialect of each operator."""

FAST = ("BipolarQuant", "Q+Clip+DQ", "DQ", "Cast+Cast")
SOME_SLOW = [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in HOME]


@cache
def representatives(operator: str) -> list[Quantizer]:
    """Some rows of an operator, of all kinds."""
    own = [quantizer for quantizer in rows() if quantizer.row.operator == operator]
    chosen = np.random.default_rng(len(own)).permutation(len(own))[:8]
    return [own[place] for place in sorted(chosen)]


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize(("there", "back"), list(permutations(DIALECTS, 2)))
@pytest.mark.parametrize("operator", SOME_SLOW)
def test_there_and_back_computes_the_same(operator, there, back):
    chosen = representatives(operator)
    original = build(chosen)
    model = original.clone()
    for to in (there, back):
        model.apply(ConvertDialect(to=to, opset=OPSET))
        wrong = differences(original, model, chosen)
        assert not wrong, [(chosen[number].row, text) for number, text in wrong.items()]


@pytest.mark.cases(fast=0, slow=3)
@pytest.mark.parametrize("operator", HOME)
def test_in_its_own_dialect_nothing_is_changed(operator):
    model = build(representatives(operator))
    before = ir.to_proto(model.ir)
    report = model.apply(ConvertDialect(to=HOME[operator], opset=OPSET))
    assert {entry.outcome for entry in report} == {SiteStatus.KEPT}, report
    assert ir.to_proto(model.ir) == before


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize("to", DIALECTS)
@pytest.mark.parametrize("operator", HOME)
def test_what_was_written_is_read_as_written(operator, to):
    """A second conversion to the same dialect finds its own quantizers and leaves them alone."""
    model = build(representatives(operator))
    model.apply(ConvertDialect(to=to, opset=OPSET))
    before = ir.to_proto(model.ir)
    report = model.apply(ConvertDialect(to=to, opset=OPSET))
    assert report.count(SiteStatus.CHANGED) == 0, [
        (entry.node, entry.op, entry.spelling)
        for entry in report
        if entry.outcome is SiteStatus.CHANGED
    ]
    assert ir.to_proto(model.ir) == before
