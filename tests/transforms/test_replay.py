"""What is done once for a form, or left out, gives what doing it for each node would give."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph import transforms
from qgraph.graph.edit import Draft
from qgraph.proof.functions.lowering import lower_node
from qgraph.quantizers import compare, sites
from qgraph.quantizers.recognition import regions
from qgraph.quantizers.recognition.readers import is_ruled_out
from qgraph.quantizers.recognition.regions import is_elementwise
from tests.fuzz.networks import network

QONNX = '"qonnx.custom_op.general": 2'
SCALES = (0.5, 0.1, 1.0, 0.5, 0.25, 3e-39)


def without_replay(patch: pytest.MonkeyPatch) -> None:
    """Let each node be read and lowered by itself, and each chain of steps be looked at."""
    patch.setattr(sites, "searched", lambda nodes, alone: list(filter(is_elementwise, nodes)))
    patch.setattr(
        sites.PatternMatcher, "alone", lambda self, node, readers: sites._site_of(node, readers)
    )
    patch.setattr(sites, "connected_to_constants", lambda nodes, connects: list(nodes))
    patch.setattr(Draft, "again", lambda self, region, scale=None: None)
    patch.setattr(sites.PatternMatcher, "_are_hopeless", lambda self, steps: False)
    patch.setattr(
        sites.PatternMatcher,
        "_may_be_quantizer",
        lambda self, steps, kinds: not is_ruled_out(steps),
    )
    patch.setattr(
        regions.UseDefGraph,
        "_lowered",
        lambda self, node, known, sizes: (
            self._lower_half(node, known, sizes)
            if any(v.dtype in regions.HALF_TYPES for v in node.inputs if v is not None)
            else lower_node(node, known, sizes, self._builder)
        ),
    )


def converted(model: ir.Model, to: str) -> tuple[bytes, str]:
    """Return the file of a model in a dialect, or of a folded one, and the report."""
    own = qgraph.load(model.clone())
    step = transforms.FoldWeights() if to == "fold" else transforms.ConvertDialect(to=to)
    report = own.apply(step)
    return own.to_proto().SerializeToString(deterministic=True), json.dumps(report.to_json())


def expect_same(model: ir.Model, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare file and report with and without replay."""
    once = converted(model, to)
    with monkeypatch.context() as patch:
        without_replay(patch)
        each = converted(model, to)
    assert once == each


def chain() -> ir.Model:
    """Return quantizers of two forms and several scales, with clamps that belong to some."""
    lines, last, numbers = [], "x", ["float z = {0}", "float b = {4}", "float l = {-8}"]
    for i, scale in enumerate(SCALES * 2):
        numbers += [f"float s{i} = {{{scale}}}", f"float h{i} = {{{7 * scale}}}"]
        numbers += [f"float g{i} = {{{-8 * scale}}}"]
        lines.append(f"c{i} = Clip ({last}, g{i}, h{i}) r{i} = Relu (c{i})")
        data = f"r{i}" if i % 2 else f"c{i}"
        quant = f"qonnx.custom_op.general.Quant <signed = 1, narrow = {i % 2}>"
        lines.append(f"q{i} = {quant} ({data}, s{i}, z, b) d{i} = Div (q{i}, s{i})")
        lines.append(f"a{i} = Clip (d{i}, l, h{i}) e{i} = Round (a{i}) m{i} = Mul (e{i}, s{i})")
        last = f"m{i}"
    text = f"""<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
    net (float[1, 4] x) => (float[1, 4] y) <{", ".join(numbers)}>
    {{ {" ".join(lines)} y = Identity ({last}) }}"""
    return ir.from_onnx_text(text)


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("to", ["qdq", "onnx"])
def test_a_chain_of_few_forms(to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_same(chain(), to, monkeypatch)


def scaled(zero_point: float, bits: int, signed: int) -> ir.Model:
    """Return quantizers side by side that differ in their scale only, then pairs that do."""
    numbers = [f"float z = {{{zero_point}}}", f"float b = {{{bits}}}", "int8 k = {1}"]
    lines = []
    quant = f"qonnx.custom_op.general.Quant <signed = {signed}>"
    for i in range(len(PLANTED)):
        numbers.append(f"float s{i} = {{1}}")
        lines.append(f"q{i} = {quant} (x, s{i}, z, b) r{i} = Relu (q{i})")
        lines.append(f"c{i} = QuantizeLinear (x, s{i}, k) d{i} = DequantizeLinear (c{i}, s{i}, k)")
        lines.append(f"n{i} = Neg (d{i})")
    last = ", ".join(f"r{i}, n{i}" for i in range(len(PLANTED)))
    text = f"""<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
    net (float[1, 4] x) => (float[1, 4] y) <{", ".join(numbers)}>
    {{ {" ".join(lines)} y = Sum ({last}) }}"""
    model = ir.from_onnx_text(text)
    for i, scale in enumerate(PLANTED):
        value = model.graph.initializers[f"s{i}"]
        value.const_value = ir.tensor(np.float32(scale), name=f"s{i}")
    return model


TINY, LARGEST = 2.0**-149, 2.0**128 - 2.0**104
PLANTED = (TINY, 0.25, 3 * TINY, 0.1, 0.0, -0.0, -0.25, -0.1, np.nan, np.inf, -np.inf, 1.0, 3.0)
PLANTED += (LARGEST, LARGEST / 8, LARGEST / 127, 2.0**-126, 2.0**-127, 1e-38, 1e36, 7.0, 2.0, 1 / 3)
"""Scales for some of which a form is not equal that is equal for others, and faulty ones."""


@pytest.mark.cases(fast=4, slow=6)
@pytest.mark.parametrize("to", ["qdq", "qonnx", "onnx", "openvino"])
@pytest.mark.parametrize(
    "quantizer",
    [
        (0, 4, 1),
        pytest.param((3, 8, 0), marks=pytest.mark.slow),
        pytest.param((0, 8, 1), marks=pytest.mark.exhaustive),
        pytest.param((0.5, 3, 0), marks=pytest.mark.slow),
        pytest.param((0, 2, 0), marks=pytest.mark.exhaustive),
    ],
)
def test_scales_of_all_kinds_side_by_side(
    quantizer: tuple[float, int, int], to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_same(scaled(*quantizer), to, monkeypatch)


def shaped(kind: str) -> ir.Model:
    """Return equal quantizers of data of several shapes, whose types the model does not state."""
    lines, numbers = [], ["float z = {0}", "float b = {4}", "float w = {8}"]
    quant = "qonnx.custom_op.general.Quant <signed = 0>"
    shapes = ("1, 16", "4, 4", "16, 1", "1, 4, 4", "2, 8", "1, 1, 16", "16", "1, 2, 8")
    for i, sizes in enumerate(shapes):
        numbers.append(f"int64[{sizes.count(',') + 1}] t{i} = {{{sizes}}}")
        numbers.append(f"float s{i} = {{{i + 1}}}")
        lines.append(f"x{i} = Reshape (x, t{i})")
        lines.append(f"y{i} = {quant} (x{i}, s{i if kind == 'scales' else 0}, z, {'bw'[i // 7]})")
        lines.append(f"r{i} = Reshape (y{i}, t0)")
    last = ", ".join(f"r{i}" for i in range(len(shapes)))
    return ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21, {QONNX}]>
    net (float[1, 16] x) => (float[1, 16] y) <{", ".join(numbers)}>
    {{ {" ".join(lines)} y = Sum ({last}) }}""")


@pytest.mark.parametrize("to", ["qdq", "qonnx", "onnx", "openvino"])
@pytest.mark.parametrize("kind", ["scales", "equal"])
def test_data_of_several_shapes(kind: str, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_same(shaped(kind), to, monkeypatch)


def test_quantizers_of_several_shapes_are_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forms are two numbers of bits, and ranks of 1, 2 and 3 with or without an axis of size 1."""
    calls, own = [], compare.lower

    def counted(*arguments: object, **options: object) -> object:
        calls.append(arguments)
        return own(*arguments, **options)

    monkeypatch.setattr(compare, "lower", counted)
    qgraph.load(shaped("scales")).apply(transforms.ConvertDialect(to="qdq"))
    assert len(calls) == 2 * 7  # 4 x 4 and 2 x 8 alone are alike, each other is of its own form


def test_a_form_that_is_equal_for_one_scale_is_not_taken_for_the_next() -> None:
    """With the smallest scale, each quotient is whole, and there is no tie to round."""
    quant = "qonnx.custom_op.general.Quant <signed = 0>"
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21, {QONNX}]>
    net (float[4] x) => (float[4] a, float[4] b)
    <float s = {{1}}, float t = {{0.25}}, float z = {{3}}, float w = {{8}}>
    {{ a = {quant} (x, s, z, w) b = {quant} (x, t, z, w) }}""")
    model.graph.initializers["s"].const_value = ir.tensor(np.float32(TINY), name="s")
    converted = qgraph.load(model)
    report = converted.apply(transforms.ConvertDialect(to="qdq"))
    pair = "QuantizeLinear+DequantizeLinear"
    assert [site.spelling for site in report.sites] == [pair, f"Div+Add+{pair}"]
    ties = np.float32([0.125, 0.375, -0.125, -0.375])
    # Quant rounds 0.5 + 3 to 4 and 1.5 + 3 to 4; a pair alone would round 0.5 to 0 and 1.5 to 2.
    result = converted.run({"x": ties}, backend="numpy")["b"]
    np.testing.assert_array_equal(result, np.float32([0.25, 0.25, -0.25, -0.25]))


@pytest.mark.parametrize("to", ["qdq", "qonnx", "onnx", "fold"])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 60))]
)
def test_random_networks(seed: int, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_same(ir.from_proto(network(np.random.default_rng(seed))), to, monkeypatch)


@pytest.mark.exhaustive
def test_exported_models(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = sorted((shared / "models").glob("*.onnx"))
    for path in paths:
        model = qgraph.load(path).ir
        for to in ("qdq", "onnx", "fold"):
            expect_same(model, to, monkeypatch)
    assert paths
