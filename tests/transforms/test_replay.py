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
from qgraph.quantizers import sites
from qgraph.quantizers.recognition import components, regions
from qgraph.quantizers.recognition.readers import is_ruled_out
from qgraph.quantizers.recognition.searched import is_elementwise
from tests.fuzz.networks import network

SCALES = (0.5, 0.1, 1.0, 0.5, 0.25, 3e-39)


def without_replay(patch: pytest.MonkeyPatch) -> None:
    """Let each node be read and lowered by itself, and each chain of steps be looked at."""
    patch.setattr(sites, "searched", lambda nodes, alone: list(filter(is_elementwise, nodes)))
    patch.setattr(
        sites.PatternMatcher, "alone", lambda self, node, readers: sites._site_of(node, readers)
    )
    patch.setattr(components, "around_constants", lambda nodes, connects: list(nodes))
    patch.setattr(Draft, "again", lambda self, region: None)
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


@pytest.mark.parametrize("to", ["qdq", "onnx"])
def test_a_chain_of_few_forms(to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_same(chain(), to, monkeypatch)


@pytest.mark.parametrize("to", ["qdq", "qonnx", "onnx", "fold"])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 60))]
)
def test_random_networks(seed: int, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_same(ir.from_proto(network(np.random.default_rng(seed))), to, monkeypatch)


@pytest.mark.slow
def test_exported_models(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = sorted((shared / "models").glob("*.onnx"))
    for path in paths:
        model = qgraph.load(path).ir
        for to in ("qdq", "onnx", "fold"):
            expect_same(model, to, monkeypatch)
    assert paths
