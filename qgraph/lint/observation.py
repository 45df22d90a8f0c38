"""Run a model on inputs, and collect statistics of its quantizers and layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from qgraph.lint.facts import ModelFacts
from qgraph.lint.saturation import saturation_of
from qgraph.lint.seen import Observation, SeenQuantizer
from qgraph.model import Model
from qgraph.quantizers.quantizer import Affine, Quantizer, Ranged

Batch: TypeAlias = Mapping[str, Any]
"""Arrays by the names of the inputs of a model."""

_MOST_LEVELS = 1 << 16


def observe(facts: ModelFacts, batches: Sequence[Batch]) -> Observation:
    """Run a model on batches, and return the statistics.

    Raises:
        ExecutionError: an input is missing or does not fit, or a node fails.
        UnsupportedError: an operator has no kernel.
    """
    observation = Observation()
    for site in facts.sites:
        levels = _levels(site.quantizer)
        if site.weight is None and levels and site.root.graph is facts.model.graph and site.x.name:
            seen = SeenQuantizer(site, levels)
            if isinstance(site.quantizer, Affine):
                zero, lo = site.quantizer.to_real.zero_point, site.quantizer.lo
                seen.zero_is_lowest = bool((zero == lo).all())
            elif isinstance(site.quantizer, Ranged):
                seen.zero_is_lowest = bool((site.quantizer.input_low == 0).all())
            observation.quantizers.append(seen)
    layers = _products(facts)
    names = [str(seen.site.x.name) for seen in observation.quantizers]
    names += [str(value.name) for value in layers.values()]
    model = Model(facts.model)
    for batch in batches:
        values = dict(model.run(batch, taps=list(dict.fromkeys(names)))) | dict(batch)
        observation.batches += 1
        for seen in observation.quantizers:
            seen.add(np.asarray(values[str(seen.site.x.name)]))
        for node, codes in layers.items():
            worst = observation.saturated.get(node)
            new = saturation_of(
                facts, node, np.asarray(values[str(codes.name)]), observation.batches - 1
            )
            if new is not None and (worst is None or new.channels > worst.channels):
                observation.saturated[node] = new
    return observation


def _products(facts: ModelFacts) -> dict[ir.Node, ir.Value]:
    """Return the layers of UINT8 data and INT8 weights in the main graph, with their data codes."""
    layers: dict[ir.Node, ir.Value] = {}
    for layer in facts.layers:
        x, w = (facts.decoder_of(value) for value in layer.node.inputs[:2])
        if x is None or w is None or (x.kind, w.kind) != ("UINT8", "INT8"):
            continue
        codes, before = x.node.inputs[0], layer.description.x.before
        is_direct = not before and codes is not None and codes.producer() is not None
        if is_direct and codes is not None and layer.node.graph is facts.model.graph:
            layers[layer.node] = codes
    return layers


def _levels(quantizer: Quantizer) -> int:
    if isinstance(quantizer, Ranged):
        return quantizer.levels
    if isinstance(quantizer, Affine):
        number = float(quantizer.hi.max()) - float(quantizer.lo.min()) + 1
        return int(number) if number <= _MOST_LEVELS else 0
    return 0
