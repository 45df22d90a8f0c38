"""Random models through random passes: what a report claims is what the executor sees."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import qgraph
from qgraph.errors import QGraphError
from qgraph.exactness import Exactness
from qgraph.proof.functions import decide as engine
from qgraph.transforms.base import parse_spec

FOLDER = Path(__file__).parents[1] / "proof" / "certification"

PASSES = [
    *[f"convert{{to={dialect}}}" for dialect in ("qdq", "qonnx", "openvino", "onnx")] * 2,
    "convert{to=qdq,exact=bits}",
    "convert{to=openvino,exact=codes}",
    "fold-weights",
    "repack",
    "make-portable",
    "strip-functions",
    "raise-integer-operators",
    "lower-integer-operators",
    "raise-mat-mul-n-bits",
    "lower-mat-mul-n-bits",
    "raise-microsoft",
    "lower-microsoft",
    "split-fake-quantize",
    "fuse-output-scale",
    "tune-ranges",
    "drop-rounding",
    "quantize-weights{format=int4,min_elements=1}",
    "fold-batch-norm",
    "fold-constants",
    "quantize-bias",
    "widen-codes",
    "widen-floats",
    "float-products",
    "float-softmax",
    "separate-pairs",
    "separate-limits",
    "unit-scales",
    "unit-scales{exact=near}",
    "float-sums",
    "keep-roundings",
    "separate-weights",
    "merge-activation",
    "shift-zero-points",
    "symmetric-weights",
    "split-zero-points",
    "split-leaky-relu",
    "split-gemm",
    "write-convolutions",
    "whole-zero-points",
    "lower-pointwise",
    "shift-zero-points{activations=int8,centre=true}",
    "merge-activation{form=units}",
    "move-quantizers{units=true}",
    "plain-pairs{dialect=qonnx}",
    "plain-pairs{dialect=qonnx,zero_points=false}",
    "move-quantizers",
    "canonical-operators",
    "plain-pairs",
    "move-channel-scales",
]
for _spec in PASSES:
    parse_spec(_spec)  # an unknown option would count as a refusal


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


drawing, changing = map(_module, ("fuzz_models", "fuzz_mutations"))


def faults(seed: int, seen: Counter[str], builders: Sequence[Any] = ()) -> list[str]:
    """Return what is wrong after some random passes over a random model."""
    random = np.random.default_rng(seed)
    made = drawing.model(random, builders=builders)
    made.metadata_props.add(key="origin", value="drawn")
    feeds = [changing.feeds(random, made, hard=bool(turn % 2)) for turn in range(4)]
    model = qgraph.load(made)
    found = []
    try:
        _results(model, feeds)
    except QGraphError:
        seen["does not run"] += 1
        return []
    for spec in random.choice(PASSES, 3):
        before = _results(model, feeds)
        try:
            report = model.apply(parse_spec(str(spec)))
        except QGraphError:
            seen["refused"] += 1
            continue
        seen[str(report.exactness)] += report.modified
        label = f"seed {seed}, {spec}: "
        found += [label + fault for fault in _form(made, model)]
        after = _results(model, feeds)
        if report.exactness >= Exactness.VALUES and _differ(before, after):
            found.append(f"{label}values changed, the report says {report.exactness}")
    return found


def _results(model: Any, feeds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all values of the main graph for each of the inputs."""
    names = [value.name for node in model.ir.graph for value in node.outputs if value.name]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = [model.run(given, backend="numpy", taps=names) for given in feeds]
    outputs = {value.name for value in model.outputs}
    return [
        {}
        if any(map(changing.has_nan, run.values())) or _divides_by_zero(model, run)
        else {n: run[n] for n in outputs}
        for run in runs
    ]


def _divides_by_zero(model: Any, run: dict[str, Any]) -> bool:
    """Return whether a zero that the model computes is a divisor."""
    divisors = {node.inputs[-1].name for node in model.nodes("Div", "Reciprocal")}
    return any((run[name] == 0).any() for name in divisors & run.keys())


def _differ(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> bool:
    """Compare the runs without NaN and without divisors whose sign of zero reports leave open."""
    pairs = [pair for pair in zip(before, after, strict=True) if all(pair)]
    return any(changing.differ(a[name], b[name]) for a, b in pairs for name in a)


def _form(made: onnx.ModelProto, model: Any) -> list[str]:
    """Return what is wrong with a model apart from its values."""
    proto = ir.to_proto(model.ir)
    found = []
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        found.append(f"the checker refuses it: {error}")
    for kind in ("input", "output"):
        names = [[v.name for v in getattr(m.graph, kind)] for m in (made, proto)]
        if names[0] != names[1]:
            found.append(f"its {kind}s were {names[0]} and are {names[1]}")
    if {p.key: p.value for p in proto.metadata_props}.get("origin") != "drawn":
        found.append("metadata is lost")
    again = ir.to_proto(qgraph.load(onnx.ModelProto.FromString(proto.SerializeToString())).ir)
    for function in (*proto.functions, *again.functions):
        del function.value_info[:]  # types of values inside, which a reader may fill in
    if again.SerializeToString(deterministic=True) != proto.SerializeToString(deterministic=True):
        found.append("it is another model when it is read again")
    return found


@pytest.mark.slow
def test_reports_of_random_pipelines_are_true():
    seen = Counter[str]()
    assert not [fault for seed in range(9) for fault in faults(seed, seen)]
    assert seen["values"] > 1


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(1000, 1015), marks=pytest.mark.slow, id="15"),
        pytest.param(range(1015, 1060), marks=pytest.mark.exhaustive, id="45"),
        pytest.param(range(1060, 1200), marks=pytest.mark.exhaustive, id="140"),
    ],
)
def test_reports_of_many_random_pipelines_are_true(seeds):
    seen = Counter[str]()
    assert not [fault for seed in seeds for fault in faults(seed, seen)]
    assert seen["values"] > len(seeds) // 10


def test_a_claim_that_is_too_high_is_found(monkeypatch):
    """A pass that changes values is said to keep them."""
    monkeypatch.setitem(globals(), "PASSES", ["drop-rounding"])
    for search in (engine.decide, engine.explore):
        # how far it changes them does not matter here, and takes long to find out
        monkeypatch.setitem(search.__kwdefaults__, "max_boxes", 1 << 12)
    monkeypatch.setattr("qgraph.reports.Report.exactness", Exactness.VALUES)
    seen, few = Counter[str](), [drawing.fake_quantize, drawing.unary]
    assert any("values changed" in f for seed in range(2000, 2012) for f in faults(seed, seen, few))
