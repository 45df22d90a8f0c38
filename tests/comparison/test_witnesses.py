"""Witnesses show what they say: the kernels give the same two values at their inputs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.graph.edit import Editor
from qgraph.ops.dispatch import evaluate
from qgraph.quantizers.compare import Comparer
from qgraph.quantizers.dialects.dialect import DIALECTS, Site
from qgraph.quantizers.sites import sites

QUANT = """y = qonnx.custom_op.general.Quant
    <signed = 1, narrow = 0, rounding_mode = "ROUND"> (x, s, z, b)"""
RANGE = "y = org.openvinotoolkit.FakeQuantize <levels = {levels}> (x, l, h, l, h)"


def site_of(body: str, **constants: float) -> tuple[ir.Model, Site]:
    stated = ", ".join(f"float {name} = {{{value:.9g}}}" for name, value in constants.items())
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1,
            "org.openvinotoolkit": 1]> g (float[N] x) => (float[N] y) <{stated}> {{ {body} }}"""
    )
    (site,) = sites(model)
    assert isinstance(site, Site)
    return model, site


def cases() -> list[tuple[str, dict[str, float]]]:
    random = np.random.default_rng(5)
    found = []
    for levels in (16, 255, 256):
        for zero in (0, levels // 2, levels - 1):
            scale = np.float32(random.lognormal(-3, 1))
            ends = {"l": float(-zero * scale), "h": float((levels - 1 - zero) * scale)}
            found.append((RANGE.format(levels=levels), ends))
    for bits in (2, 4, 8):
        for zero in (0.0, 1.0, 1.3):
            scale = float(np.float32(random.lognormal(-3, 1)))
            found.append((QUANT, {"s": scale, "z": zero, "b": float(bits)}))
    return found


@pytest.mark.cases(fast=1, slow=4)
@pytest.mark.parametrize(("body", "constants"), cases())
def test_kernels_give_the_values_of_the_witness(body, constants):
    model, site = site_of(body, **constants)
    editor, comparer = Editor(model), Comparer(model)
    shown = 0
    for name in ("qdq", "qonnx", "openvino", "onnx"):
        for draft in DIALECTS.find(name).spellings(site, editor):
            verdict = comparer.compare(site, draft)
            if not verdict.differing_inputs:
                continue
            assert verdict.witness is not None
            x = np.array([verdict.witness.input], np.float32)
            reference = evaluate(site.nodes, site.x, site.y, x)
            candidate = evaluate(draft.nodes, draft.x, draft.y, x)
            assert float(reference[0]) == verdict.witness.reference
            assert float(candidate[0]) == verdict.witness.candidate
            assert reference[0] != candidate[0]
            shown += 1
    assert shown or "FakeQuantize" not in body


def test_a_threshold_moved_by_ulps_is_near():
    scale, zero = np.float32(0.010009766), 128
    low, high = float(-zero * scale), float((255 - zero) * scale)
    model, site = site_of(RANGE.format(levels=256), l=low, h=high)
    pair = next(iter(DIALECTS.find("qdq").spellings(site, Editor(model))))
    assert [node.op_type for node in pair.nodes] == ["QuantizeLinear", "DequantizeLinear"]
    assert Comparer(model).compare(site, pair).exactness is Exactness.NEAR
