"""Pairs that are one function in two forms are proved, and near misses are not.

That the pairs are equal, and the near misses are not, is seen by running them in ONNX Runtime.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.certificate import ProofVerdict
from qgraph.exactness import Exactness
from tests.proof.normal.conftest import is_one, pairs, parse
from tests.verify.checking import verify

EQUAL, MISSES = pairs("equal.txt"), pairs("near_misses.txt")


def run(model: ir.Model, seed: int) -> np.ndarray:
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    data = ir.to_proto(model).SerializeToString()
    session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(seed)
    feeds = {
        value.name: (
            generator.integers(-80, 80, [s if isinstance(s, int) else 2 for s in value.shape]) / 8
        ).astype(np.float32)
        if value.type == "tensor(float)"
        else np.zeros([2], np.int64)
        for value in session.get_inputs()
    }
    return np.asarray(session.run(None, feeds)[0])


@pytest.mark.cases(fast=7, slow=31)
@pytest.mark.parametrize("name", EQUAL)
def test_equal_pairs_are_proved(name):
    exactness, *texts = EQUAL[name]
    ours, theirs = map(parse, texts)
    assert is_one(ours, theirs)
    assert is_one(ours, theirs, Exactness.BITS) == (exactness == "bits")


@pytest.mark.cases(fast=20)
@pytest.mark.parametrize("name", EQUAL)
def test_equal_pairs_are_equal_where_they_are_run(name):
    _, *texts = EQUAL[name]
    ours, theirs = (run(parse(text), 0) for text in texts)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_are_not_proved(name):
    ours, theirs = map(parse, MISSES[name])
    assert not is_one(ours, theirs)


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_differ_where_they_are_run(name):
    ours, theirs = (run(parse(text), 0) for text in MISSES[name])
    assert ours.shape != theirs.shape or (ours != theirs).any()


@pytest.mark.parametrize("name", ["axis_transpose", "relu_max_pool", "concat", "pad", "hard_swish"])
def test_certificates_hold(name):
    exactness, *texts = EQUAL[name]
    ours, theirs = map(parse, texts)
    found = qgraph.prove(ours, theirs, evidence=True)
    assert (found.verdict, found.exactness) == (ProofVerdict.PROVED, Exactness(exactness))
    assert verify(found.to_json(), ours, theirs) == "proved"
    assert any("normal form" in note for note in found.notes)
    nodes = {n for region in found.regions for n in region.reference_nodes}
    assert nodes <= {node.name or node.outputs[0].name for node in ours.graph}
