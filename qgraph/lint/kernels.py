"""Find what kernels on codes change: products that saturate, steps of a Softmax, ties of sums."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.inventory.saturation import ANY_RUNTIME, wrong_products
from qgraph.lint.facts import ModelFacts
from qgraph.lint.layers import listed, quantizer_after

_EIGHT_BITS = ("UINT8", "INT8")
_MOST_PARTS = 64


def cut_off_products(facts: ModelFacts) -> Iterator[tuple[bool, Sequence[ir.Node], str, Any]]:
    """Yield what is wrong without VNNI: whether the target has none, nodes, text, figures."""
    target, model = facts.target, (facts.model, facts.layers, facts.site_ending)
    for limits in (ANY_RUNTIME,) if target is None else target.saturation:
        is_here = target is not None and limits in target.saturating
        beyond = f"beyond -{limits.largest}..{limits.largest}: two neighbours can exceed 16 bits"
        for each in wrong_products(*model, limits, target):
            weights = facts.decoder_of(each.node.inputs[1])
            counts = None if weights is None else facts.counts(weights)
            if each.is_halved:
                text = "its weights are halved and rounded: an operator follows QuantizeLinear"
                yield is_here, [each.node], text, {}
            elif weights is None or counts is None:
                known = {} if each.largest is None else {"largest": each.largest}
                yield is_here, [each.node], f"{each.operand} {beyond}", known
            else:
                many = np.flatnonzero(counts.peak > limits.largest)
                text = f"weights of {many.size} of {counts.peak.size} channels are {beyond}"
                figures = {"channels": listed(many), "count": many.size, "largest": counts.high}
                yield is_here, [each.node, weights.node], text, figures


def coarse_softmax(facts: ModelFacts) -> Iterator[tuple[Sequence[ir.Node], str, dict[str, Any]]]:
    """Yield the quantized Softmax that ONNX Runtime gives other steps: nodes, text, figures."""
    for node in facts.of("Softmax"):
        decoder = facts.decoder_of(node.inputs[0])
        behind = quantizer_after(facts, node, is_fused=True)
        if decoder is None or behind is None:
            continue
        encoder = facts.coder(behind)
        step = encoder.scale if decoder.kind == encoder.kind in _EIGHT_BITS else None
        if step is None or not (step > 0).all():
            continue
        steps = 1 / float(step.flat[0])
        if step.size > 1 and encoder.kind == "UINT8":
            text = f"the first of {step.size} scales counts for all codes"
            yield (node, behind), text, {"scales": int(step.size)}
        elif step.size == 1 and (missing := steps - math.floor(steps)):
            text = f"1 becomes {math.floor(steps)} steps instead of {steps:.6g}"
            yield (node, behind), f"{text}: codes can be one lower", {"steps": missing}


def tied_sums(facts: ModelFacts) -> Iterator[tuple[ir.Node, list[float]]]:
    """Yield each quantized Add that has exact ties, with its scales in steps of the sum."""
    for node in facts.of("Add"):
        operands = [facts.decoder_of(value) for value in node.inputs]
        behind = quantizer_after(facts, node, is_fused=True)
        if behind is None:
            continue
        scales = [None if o is None or o.scale is None else o.scale for o in operands]
        result = facts.coder(behind).scale
        if any(scale is None or scale.size != 1 for scale in (*scales, result)):
            continue
        if result is None or not float(result.flat[0]):
            continue
        ratios = [float(scale.flat[0] / result.flat[0]) for scale in scales if scale is not None]
        if all(map(math.isfinite, ratios)) and _meet_ties(ratios):
            yield node, ratios


def _meet_ties(ratios: list[float]) -> bool:
    """Return whether whole multiples of some ratios can add up to a half-integer."""
    near = [Fraction(ratio).limit_denominator(_MOST_PARTS) for ratio in ratios]
    if any(abs(float(f) - r) > 1e-6 * abs(r) for f, r in zip(near, ratios, strict=True)):
        return False
    parts = math.lcm(*(f.denominator for f in near))
    wholes = [f.numerator * parts // f.denominator for f in near]
    return parts % 2 == 0 and (parts // 2) % math.gcd(parts, *wholes) == 0
