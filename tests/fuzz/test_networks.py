"""Every pass on random networks, alone and after others, judged by ONNX Runtime.

What a report calls equal has to be equal there, what a certificate proves too. Each result has to
be a valid model that ONNX Runtime loads, and a second application has nothing left to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

import qgraph
from qgraph.errors import QGraphError
from qgraph.exactness import Exactness
from qgraph.transforms.base import parse_spec
from tests.fuzz.networks import MICROSOFT, feeds, network
from tests.fuzz.test_passes import portable

PASSES = (
    *(f"convert{{to={dialect}}}" for dialect in ("qdq", "qonnx", "openvino", "onnx")),
    *(
        "convert{to=qdq,exact=bits}",
        "convert{to=openvino,exact=near}",
        "convert{to=qonnx,exact=near}",
    ),
    *("fold-weights", "fold-weights{scale_type=smallest}", "quantize-weights{min_elements=1}"),
    "quantize-weights{min_elements=1,format=uint4,block_size=4}",
    *("repack", "repack{to=int8}", "repack{to=uint8}", "repack{blocks=rows}"),
    *("lower-integer-operators", "lower-integer-operators{form=qdq,exact=near}"),
    *("raise-integer-operators", "raise-integer-operators{microsoft=true,exact=near}"),
    *("lower-mat-mul-n-bits", "raise-mat-mul-n-bits{block_size=16,exact=near}"),
    *("lower-microsoft", "raise-microsoft", "raise-microsoft{all=true}", "lower-vendor-operators"),
    *("fuse-output-scale", "split-fake-quantize", "split-fake-quantize{exact=codes}"),
    *("tune-ranges", "drop-rounding", "drop-rounding{clamp=true}", "make-portable"),
    *("strip-functions", "fold-batch-norm", "quantize-bias", "fold-constants", "widen-codes"),
    *("merge-activation", "shift-zero-points", "symmetric-weights", "split-zero-points"),
    *("split-leaky-relu", "split-gemm", "lower-pointwise", "plain-pairs", "canonical-operators"),
    *("move-channel-scales", "move-quantizers", "widen-floats", "float-products", "float-sums"),
    *("keep-roundings", "float-softmax", "separate-pairs", "separate-limits"),
    *("unit-scales", "unit-scales{exact=near}"),
    "whole-zero-points",
    "write-convolutions",
)
for _spec in PASSES:
    parse_spec(_spec)  # an unknown option would count as a refusal
Results = list[dict[str, Any]]


def results(model: qgraph.Model, given: Sequence[dict[str, Any]], runtime: Any) -> Results:
    """Return the outputs for some inputs, without any optimization."""
    proto = portable(model)
    # The checker infers no types behind operators of com.microsoft in a function.
    vendor = any(node.domain == MICROSOFT for body in proto.functions for node in body.node)
    onnx.checker.check_model(proto, full_check=not vendor)
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in proto.graph.output]
    return [dict(zip(names, session.run(names, each), strict=True)) for each in given]


def is_equal(level: Exactness, before: Results, after: Results) -> bool:
    """Return whether results are as equal as a level says; NaN equals NaN."""
    for old, new in zip(before, after, strict=True):
        if list(old) != list(new):
            return False
        for a, b in zip(old.values(), new.values(), strict=True):
            if not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
                return False
            both = [np.signbit(x[~np.isnan(x)]) for x in (a, b) if x.dtype.kind == "f"]
            if level is Exactness.BITS and both and not np.array_equal(*both):
                return False
    return True


def faults(seed: int, specs: Sequence[str], runtime: Any, *, prove: bool = False) -> list[str]:
    """Return what is wrong when passes are applied one after the other."""
    random = np.random.default_rng(seed)
    model, given = qgraph.load(network(random)), feeds(random)
    original, found = model.clone(), []
    first = before = results(model, given, runtime)
    lowest = Exactness.BITS
    for spec in specs:
        label = f"seed {seed}, {' '.join(specs)}, after {spec}: "
        report = model.apply(parse_spec(spec))
        after = results(model, given, runtime)
        lowest = min(lowest, report.exactness)
        if report.exactness >= Exactness.VALUES and not is_equal(report.exactness, before, after):
            found.append(f"{label}the report says {report.exactness}")
        if model.clone().apply(parse_spec(spec)).modified:
            found.append(f"{label}a second application changes it again")
        before = after
    if prove:
        certificate = qgraph.prove(original, model)
        if certificate.verdict == "different" and lowest >= Exactness.VALUES:
            found.append(f"seed {seed}, {specs}: {lowest}, and the certificate says different")
        if certificate.verdict == "proved" and not is_equal(Exactness.VALUES, first, before):
            found.append(f"seed {seed}, {specs}: what is proved equal differs")
    return found


@pytest.mark.runtime
@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("part", range(len(PASSES)))
def test_each_pass_alone(part):
    runtime = pytest.importorskip("onnxruntime")
    seeds = range(10 * part, 10 * part + 10)
    assert not [fault for seed in seeds for fault in faults(seed, PASSES[part : part + 1], runtime)]


@pytest.mark.runtime
@pytest.mark.cases(fast=1, slow=3)
@pytest.mark.parametrize("seed", range(2000, 2100))
def test_passes_one_after_the_other(seed):
    runtime = pytest.importorskip("onnxruntime")
    chosen = [str(spec) for spec in np.random.default_rng(seed + 10**6).choice(PASSES, 3)]
    try:
        found = faults(seed, chosen, runtime, prove=True)
    except QGraphError as error:
        pytest.skip(str(error))  # a pass refuses the model as a whole
    assert not found
