"""What a model computes from inputs, summarised while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx_ir as ir

from qgraph.lint.saturation import Saturation, saturation_of
from qgraph.model import Model
from qgraph.numerics import Array
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.quantizer import Affine, Quantizer, Ranged

if TYPE_CHECKING:
    from qgraph.lint.facts import ModelFacts

Batch: TypeAlias = Mapping[str, Any]
"""Arrays by the names of the inputs of a model."""

_MOST_LEVELS = 1 << 16


@dataclass
class SeenQuantizer:
    """What a quantizer of data was given, over all batches.

    Attributes:
        site: the quantizer.
        levels: number of its codes.
        values: how many values there were.
        not_finite: how many of them were NaN or infinite.
        below, above: how many were clipped at each end.
        ties: how many lay exactly between two codes.
        codes: the codes that occurred.
        low, high: ``[channels]`` range of each channel of axis 1; None of data of one axis.
    """

    site: Site
    levels: int
    values: int = 0
    not_finite: int = 0
    below: int = 0
    above: int = 0
    ties: int = 0
    codes: set[int] = field(default_factory=set)
    low: Array | None = None
    high: Array | None = None
    zero_is_lowest: bool = False

    def add(self, x: Array) -> None:
        """Count in the data of one batch."""
        data = x.astype(np.float32, copy=False)
        places = _places(self.site.quantizer, data)
        if places is None:
            return
        q, lo, hi = places
        finite = np.isfinite(data)
        self.values += data.size
        self.not_finite += int(data.size - np.count_nonzero(finite))
        with np.errstate(invalid="ignore"):
            self.below += int(np.count_nonzero(finite & (q < lo - 0.5)))
            self.above += int(np.count_nonzero(finite & (q > hi + 0.5)))
            inside = finite & (q > lo - 0.5) & (q < hi + 0.5)
            # A code is the nearest whole number; between two lies a half.
            self.ties += int(np.count_nonzero(inside & (q - np.floor(q) == 0.5)))
        codes = np.clip(np.rint(q[finite] if q.shape == finite.shape else q), lo.min(), hi.max())
        self.codes.update(np.unique(codes).astype(np.int64).tolist())
        self._add_channels(np.where(finite, data, 0))

    def _add_channels(self, data: Array) -> None:
        if data.ndim < 2 or not data.size:
            return
        axes = tuple(axis for axis in range(data.ndim) if axis != 1)
        low, high = data.min(axes), data.max(axes)
        if self.low is None or self.high is None or self.low.shape != low.shape:
            self.low, self.high = low, high
        else:
            self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)


@dataclass
class Observation:
    """Values of a model over some batches.

    Attributes:
        batches: number of batches.
        quantizers: what each quantizer of data in the main graph was given.
        saturated: products of codes that saturate, by their layer.
    """

    batches: int = 0
    quantizers: list[SeenQuantizer] = field(default_factory=list)
    saturated: dict[ir.Node, Saturation] = field(default_factory=dict)


def observe(facts: ModelFacts, batches: Sequence[Batch]) -> Observation:
    """Run a model on some batches, and return what was seen.

    Raises:
        ExecutionError: an input is missing or does not fit, or a node fails.
        UnsupportedError: an operator has no kernel.
    """
    found = Observation()
    for site in facts.sites:
        levels = _levels(site.quantizer)
        if site.weight is None and levels and site.root.graph is facts.model.graph and site.x.name:
            seen = SeenQuantizer(site, levels)
            if isinstance(site.quantizer, Affine):
                zero, lo = site.quantizer.to_real.zero_point, site.quantizer.lo
                seen.zero_is_lowest = bool((zero == lo).all())
            elif isinstance(site.quantizer, Ranged):
                seen.zero_is_lowest = bool((site.quantizer.input_low == 0).all())
            found.quantizers.append(seen)
    layers = _products(facts)
    names = [str(seen.site.x.name) for seen in found.quantizers]
    names += [str(value.name) for value in layers.values()]
    model = Model(facts.model)
    for batch in batches:
        values = dict(model.run(batch, taps=list(dict.fromkeys(names)))) | dict(batch)
        found.batches += 1
        for seen in found.quantizers:
            seen.add(np.asarray(values[str(seen.site.x.name)]))
        for node, codes in layers.items():
            known = found.saturated.get(node)
            new = saturation_of(facts, node, np.asarray(values[str(codes.name)]), found.batches - 1)
            if new is not None and (known is None or new.channels > known.channels):
                found.saturated[node] = new
    return found


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


def _places(quantizer: Quantizer, x: Array) -> tuple[Array, Array, Array] | None:
    """Return where data lies among the codes, and the first and last code."""
    with np.errstate(all="ignore"):
        if isinstance(quantizer, Affine):
            q = x / quantizer.scale + quantizer.zero_point
            return q, np.asarray(quantizer.lo), np.asarray(quantizer.hi)
        if isinstance(quantizer, Ranged):
            low, high = quantizer.input_low, quantizer.input_high
            top = np.float32(quantizer.levels - 1)
            return (x - low) / (high - low) * top, np.zeros(()), np.asarray(top)
    return None
