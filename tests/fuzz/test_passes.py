"""Each pass alone on random small quantized models, judged by kernels that are not ours.

ONNX Runtime without optimizations, or onnx.reference, runs the model before and after the pass;
operators of other dialects run by the function bodies of ``make-portable``. What the report calls
equal in values or in bits has to be equal there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from onnx_ir.passes.common import InlinePass

import qgraph
from qgraph.exactness import Exactness
from qgraph.transforms.base import parse_spec

PASSES = (
    "repack",
    "raise-integer-operators",
    "lower-integer-operators",
    "make-portable",
    "tune-ranges",
    "split-fake-quantize",
    "fuse-output-scale",
    "drop-rounding",
    "fold-weights",
    "lower-microsoft",
    "raise-microsoft",
    "fold-constants",
    "widen-codes",
    "widen-floats",
    "float-products",
    "float-softmax",
    "separate-pairs",
    "separate-limits",
    "unit-scales",
    "float-sums",
    "keep-roundings",
    "separate-weights",
    "merge-activation",
    "shift-zero-points",
    "symmetric-weights",
    "canonical-operators",
    "plain-pairs",
    "move-channel-scales",
    "move-quantizers",
)
WHOLE = {"int8": (-128, 127), "uint8": (0, 255)}


def model(random: np.random.Generator, opsets: tuple[int, ...]) -> str:
    """Return a chain of quantizers and products, as text."""
    body, weights = [], []
    value = "x"
    for place in range(int(random.integers(1, 3))):
        kind = str(random.choice(("pair", "fake", "quant", "codes")))
        value = _quantized(random, kind, f"a{place}", value, body, weights)
        weight = _quantized(
            random, str(random.choice(("pair", "fake"))), f"w{place}", None, body, weights
        )
        body.append(f"[product{place}] p{place} = MatMul ({value}, {weight})")
        value = f"p{place}"
        if random.random() < 0.4:
            body.append(f"[relu{place}] r{place} = Relu ({value})")
            value = f"r{place}"
    value = _quantized(
        random, str(random.choice(("pair", "fake", "quant"))), "o", value, body, weights
    )
    body.append(f"y = Identity ({value})")
    return f"""<ir_version: 10, opset_import: ["": {random.choice(opsets)},
        "org.openvinotoolkit": 1, "qonnx.custom_op.general": 2]>
    net (float[3,4] x) => (float[3,4] y) <{", ".join(weights)}> {{ {" ".join(body)} }}"""


def _quantized(random, kind, name, value, body, stored) -> str:
    """Append a quantizer of a value, or of a new weight, and return its output."""
    scale = float(np.float32(random.choice((0.5, 0.1, 0.03, 2.0)) * random.uniform(0.5, 1)))
    if kind in ("pair", "codes"):
        dtype = str(random.choice(list(WHOLE)))
        low, high = WHOLE[dtype]
        zero = int(random.integers(low, high + 1)) if random.random() < 0.5 else max(low, 0)
        zero = 0 if value is None and dtype == "int8" else zero
        stored += [f"float s{name} = {{{scale!r}}}", f"{dtype} z{name} = {{{zero}}}"]
        codes = f"c{name}"
        if value is None:
            numbers = ", ".join(map(str, random.integers(low, high + 1, 16)))
            stored.append(f"{dtype}[4,4] {codes} = {{{numbers}}}")
        else:
            body.append(f"[q{name}] {codes} = QuantizeLinear ({value}, s{name}, z{name})")
        body.append(f"[d{name}] {name} = DequantizeLinear ({codes}, s{name}, z{name})")
        return name
    if value is None:
        numbers = ", ".join(repr(float(x)) for x in random.normal(size=16).astype(np.float32))
        value = f"f{name}"
        stored.append(f"float[4,4] {value} = {{{numbers}}}")
    if kind == "quant":
        bits, signed = int(random.integers(2, 9)), int(random.integers(0, 2))
        stored += [f"float s{name} = {{{scale!r}}}", f"float b{name} = {{{bits}}}"]
        stored.append(f"float z{name} = {{{int(random.integers(0, 2))}}}")
        body.append(
            f"[{name}] {name} = qonnx.custom_op.general.Quant <signed = {signed}, narrow = 0, "
            f'rounding_mode = "ROUND"> ({value}, s{name}, z{name}, b{name})'
        )
        return name
    levels = int(random.choice((256, 255, 16)))
    low = float(np.float32(-random.uniform(0, 4)))
    high = float(np.float32(random.uniform(0.5, 4)))
    stored += [f"float l{name} = {{{low!r}}}", f"float h{name} = {{{high!r}}}"]
    ends = f"l{name}, h{name}"
    body.append(
        f"[{name}] {name} = org.openvinotoolkit.FakeQuantize <levels = {levels}> "
        f"({value}, {ends}, {ends})"
    )
    return name


def portable(made: qgraph.Model) -> onnx.ModelProto:
    """Return the model in standard operators and functions of these."""
    copy = made.clone()
    copy.apply(parse_spec("make-portable"))
    return copy.to_proto()


def outputs(made: qgraph.Model, feeds: list[np.ndarray], runtime: object) -> list[np.ndarray]:
    proto = portable(made)
    if runtime is None:
        # The reference takes functions that differ in their overload for one.
        evaluator = ReferenceEvaluator(ir.to_proto(InlinePass()(ir.from_proto(proto)).model))
        return [evaluator.run(["y"], {"x": x})[0] for x in feeds]
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = runtime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [session.run(["y"], {"x": x})[0] for x in feeds]


def faults(seed: int, runtime: object, passes: Sequence[str] = PASSES) -> list[str]:
    """Return what a report claims and other kernels refute, for each pass alone."""
    random = np.random.default_rng(seed)
    # The reference has no DequantizeLinear below opset 19.
    text = model(random, (20, 21) if runtime is None else (17, 20, 21))
    original = qgraph.load(ir.from_onnx_text(text))
    feeds = [(random.normal(size=(3, 4)) * scale).astype(np.float32) for scale in (1, 4, 0.1)]
    before = outputs(original, feeds, runtime)
    found = []
    for spec in passes:
        changed = original.clone()
        report = changed.apply(parse_spec(spec))
        onnx.checker.check_model(portable(changed), full_check=True)
        after = outputs(changed, feeds, runtime)
        for old, new in zip(before, after, strict=True):
            same = {
                Exactness.BITS: np.array_equal(old.view(np.int32), new.view(np.int32)),
                Exactness.VALUES: np.array_equal(old, new),
            }
            if not same.get(report.exactness, True):
                worst = np.abs(old - new).max()
                found.append(f"seed {seed}: {spec}: {report.exactness}, differs by {worst}\n{text}")
                break
    return found


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.runtime
@pytest.mark.sums
@pytest.mark.parametrize("seed", range(3))
def test_reports_hold_in_onnx_runtime(seed):
    assert not faults(seed, pytest.importorskip("onnxruntime"), PASSES[seed::3])


@pytest.mark.exhaustive
@pytest.mark.runtime
@pytest.mark.parametrize("part", range(8))
def test_many_reports_hold_in_onnx_runtime(part):
    runtime = pytest.importorskip("onnxruntime")
    seeds = range(1000 + 50 * part, 1050 + 50 * part)
    assert not [fault for seed in seeds for fault in faults(seed, runtime)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(4))
def test_many_reports_hold_in_the_reference(part):
    seeds = range(5000 + 25 * part, 5025 + 25 * part)
    assert not [fault for seed in seeds for fault in faults(seed, None)]
