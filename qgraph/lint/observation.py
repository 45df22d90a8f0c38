"""Run a model on inputs, and collect statistics of its quantizers and layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from qgraph.lint.facts import ModelFacts
from qgraph.lint.seen import Observation, Saturation, SeenQuantizer
from qgraph.model import Model
from qgraph.numerics import Array
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


_LIMITS = -32768, 32767
_MOST_ROWS = 64
"""Number of rows of data that are tried for each pair: those with the largest codes."""

_MOST_WEIGHTS = 1 << 22


def saturation_of(facts: ModelFacts, node: ir.Node, x: Array, batch: int) -> Saturation | None:
    """Return the saturation of a layer on codes ``x`` of data; None if none was found.

    Processors without VNNI multiply four codes of data by four weights, and add neighbours with
    saturation to 16 bits before anything else (vpmaddubsw). Neighbours are elements 2i and 2i + 1
    along the axis that is added up; those of a Conv are channels at one position, as kernels with
    channels last have them.
    """
    decoder = facts.decoder_of(node.inputs[1])
    codes = None if decoder is None else facts.stored(decoder)
    if codes is None or codes.size > _MOST_WEIGHTS:
        return None
    operands = _rows(node, x, codes.array())
    if operands is None:
        return None
    data, weights = operands
    worst: Saturation | None = None
    channels: set[int] = set()
    for first in range(0, data.shape[1] - 1, 2):
        pair = data[:, first : first + 2]
        chosen = np.argsort(-(pair[:, 0] + pair[:, 1]), kind="stable")[:_MOST_ROWS]
        sums = np.tensordot(pair[chosen], weights[first : first + 2], (1, 0))
        sums = sums.reshape(chosen.size, -1, weights.shape[-1])
        wrong = (sums < _LIMITS[0]) | (sums > _LIMITS[1])
        if not wrong.any():
            continue
        channels.update(np.flatnonzero(wrong.any((0, 1))).tolist())
        row, tap, channel = np.unravel_index(np.abs(sums).argmax(), sums.shape)
        total = int(sums[row, tap, channel])
        if worst is None or abs(total) > abs(worst.total):
            w = weights[first : first + 2].reshape(2, -1, weights.shape[-1])[:, tap, channel]
            x0, x1 = (int(code) for code in pair[chosen[row]])
            pairs = (x0, x1), (int(w[0]), int(w[1]))
            worst = Saturation(0, int(channel), batch, int(chosen[row]), first, *pairs, total)
    if worst is None:
        return None
    return Saturation(**{**vars(worst), "channels": len(channels)})


def _rows(node: ir.Node, x: Array, weights: Array) -> tuple[Array, Array] | None:
    """Return data ``[rows, summed]`` and weights ``[summed, places, channels]``, or None."""
    x, weights = x.astype(np.int64), weights.astype(np.int64)
    if node.op_type == "Conv":
        groups: int = node.attributes.get_int("group", 1)
        if groups != 1 or x.ndim < 3:
            return None
        rows = np.moveaxis(x, 1, -1).reshape(-1, x.shape[1])
        return rows, np.moveaxis(weights.reshape(*weights.shape[:2], -1), 0, -1)
    flips: list[int] = [node.attributes.get_int(name, 0) for name in ("transA", "transB")]
    if weights.ndim != 2 or flips[0]:
        return None
    if flips[1]:
        weights = weights.T
    return x.reshape(-1, x.shape[-1]), weights[:, None, :]
