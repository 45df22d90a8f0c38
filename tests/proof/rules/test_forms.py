"""The bound of each operator against its execution in ONNX Runtime, and against float64."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from qgraph.bound import Bounding
from qgraph.proof.bounds.paired_models import paired
from qgraph.proof.bounds.segments import Segment
from tests.proof.rules.forms import FORMS, Form

RANGE = 3.0
NUDGE = 2.0**-10
WIDE = 2.0**-45
"""What float64 adds to errors here."""
OF_REFERENCE = 1e-9
"""What onnx.reference adds to differences; some of its functions have an error of 2e-8."""


def segment_of(form: Form, kind: str = "float", stored: str = "float32") -> Segment:
    """Return the bound of a model and of the same model with other constants."""
    models = form.ir(kind, stored=stored), form.ir(kind, nudge=NUDGE, stored=stored)
    ranges = dict.fromkeys(form.inputs, (-RANGE, RANGE))
    segment = paired(models, Bounding(ranges=ranges)).segments[-1]
    assert segment.reason is None, str(segment.reason)
    return segment


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options)


def feeds_of(form: Form, count: int, kind: str = "float32"):
    """Yield inputs: random ones, ends of the range, nearly equal ones, and tiny ones."""
    generator = np.random.default_rng(count)
    for place in range(count):
        feeds = {}
        for name, shape in form.inputs.items():
            x = generator.uniform(-RANGE, RANGE, shape)
            if place % 4 == 1:
                x = generator.choice([-RANGE, RANGE], shape)
            elif place % 4 == 2:
                x = RANGE - np.abs(x) * 1e-5
            elif place % 4 == 3:
                x = x * 1e-3
            feeds[name] = x.astype(kind)
        yield feeds


def expect_inside(form: Form, count: int) -> None:
    segment, runs = segment_of(form), session(form.model())
    ideal, other = form.ideal(), form.ideal(nudge=NUDGE)
    for feeds in feeds_of(form, count):
        meant = ideal(feeds)
        executed = np.asarray(runs.run(None, feeds)[0], np.float64)
        assert (np.abs(executed - meant) <= segment.reference_error + WIDE).all()
        moved = np.abs(other(feeds) - meant)
        assert (moved <= segment.shift + OF_REFERENCE).all()


@pytest.mark.cases(fast=23, slow=56)
@pytest.mark.parametrize("name", FORMS)
def test_execution_and_other_constants_stay_within_the_bound(name):
    expect_inside(FORMS[name], 4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FORMS)
def test_many_inputs_stay_within_the_bound(name):
    expect_inside(FORMS[name], 500)


def test_rows_that_a_mask_hides_as_a_whole_have_no_bound():
    form = FORMS["Softmax, minus infinity"]
    nodes = form.nodes.replace("Softmax", "Softmax <axis = 0>")
    models = [Form(nodes, form.inputs).ir(nudge=nudge) for nudge in (0.0, NUDGE)]
    ranges = dict.fromkeys(form.inputs, (-RANGE, RANGE))
    (segment,) = paired((models[0], models[1]), Bounding(ranges=ranges)).segments
    assert segment.reason is not None


HALVES = ("Conv", "Gemm", "MatMul", "MatMul, data", "Add", "Mul", "Div", "PRelu", "Sigmoid")
HALVES += ("GlobalAveragePool", "AveragePool", "Sum", "Softmax", "BatchNormalization", "Concat")


@pytest.mark.parametrize("name", HALVES)
def test_float16_stays_within_the_bound(name):
    form = FORMS[name]
    segment = segment_of(form, "float16", "float16")
    runs = session(form.model("float16", stored="float16"))
    ideal = form.ideal(stored="float16")
    for feeds in feeds_of(form, 8, "float16"):
        meant = ideal(feeds)
        executed = np.asarray(runs.run(None, feeds)[0], np.float64)
        assert (np.abs(executed - meant) <= segment.reference_error).all()


@pytest.mark.parametrize("name", ["Conv", "MatMul", "Mul", "Concat", "Div, data", "Softmax"])
def test_bounds_of_errors_are_not_beyond_use(name):
    """At most 2000 times the largest error found; twice the distance of other constants."""
    form = FORMS[name]
    segment, runs, ideal = segment_of(form), session(form.model()), form.ideal()
    found = 0.0
    for feeds in feeds_of(form, 12):
        executed = np.asarray(runs.run(None, feeds)[0], np.float64)
        found = max(found, np.abs(executed - ideal(feeds)).max())
    # quotients and powers forget that their operands belong together
    factor = 2e5 if name == "Div, data" else 2000
    assert segment.reference_error.max() <= factor * found
