"""Rules about the data that a model computes from given inputs (QG8), and the runs that do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from qgraph.lint.facts import ModelFacts, nodes_of_site
from qgraph.lint.layers import listed
from qgraph.lint.rule import Found, LintLevel, rule
from qgraph.lint.seen import Observation, Saturation, SeenQuantizer
from qgraph.model import Model
from qgraph.numerics import Array
from qgraph.quantizers.quantizer import Affine, Quantizer, Ranged
from qgraph.text import counted

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
    return None if worst is None else Saturation(**{**vars(worst), "channels": len(channels)})


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


ERROR, WARNING, INFO = LintLevel.ERROR, LintLevel.WARNING, LintLevel.INFO
_MUCH = 0.01
_ENOUGH = 256
"""Minimum number of values for findings about unused codes."""

_FEW = 16


@rule("QG801", "range-clips", WARNING, needs_data=True)
def range_clips(facts: ModelFacts) -> Iterator[Found]:
    """A quantizer clips much of its data."""
    for seen in _seen(facts):
        above = seen.above / seen.values
        below = 0 if seen.zero_is_lowest else seen.below / seen.values
        if above + below >= _MUCH:
            text = f"{100 * (above + below):.3g} % of the values are clipped"
            figures = {"above": above, "below": below, "values": seen.values}
            yield Found(nodes_of_site(seen.site), text, figures)


@rule("QG802", "range-too-wide", INFO, needs_data=True)
def range_too_wide(facts: ModelFacts) -> Iterator[Found]:
    """Data uses less than half of the range of its quantizer."""
    for seen in _seen(facts):
        extent = max(seen.codes) - min(seen.codes) + 1 if seen.codes else 0
        if seen.values >= _ENOUGH and extent > 1 and extent * 2 < seen.levels:
            bits = math.log2(seen.levels / extent)
            text = f"codes from {min(seen.codes)} to {max(seen.codes)} of {seen.levels}"
            figures = {"low": min(seen.codes), "high": max(seen.codes), "bits_lost": bits}
            yield Found(nodes_of_site(seen.site), f"{text}: {bits:.2g} bits are lost", figures)


@rule("QG803", "dead-channels", INFO, needs_data=True)
def dead_channels(facts: ModelFacts) -> Iterator[Found]:
    """Channels of data are constant."""
    for seen in _seen(facts):
        if seen.low is None or seen.high is None or seen.low.size < 2:
            continue
        dead = np.flatnonzero(seen.low == seen.high)
        if seen.values // seen.low.size >= _FEW and dead.size > 0:
            text = f"{dead.size} of {seen.low.size} channels have one value only"
            figures = {"channels": listed(dead), "count": int(dead.size)}
            yield Found(nodes_of_site(seen.site), text, figures)


@rule("QG804", "saturated-zero-point", WARNING, needs_data=True)
def saturated_zero_point(facts: ModelFacts) -> Iterator[Found]:
    """The zero point is the lowest code, and data is negative."""
    for seen in _seen(facts):
        share = seen.below / seen.values
        if seen.zero_is_lowest and share >= _MUCH:
            text = f"{100 * share:.3g} % of the values are negative and become 0, as by a Relu"
            yield Found(nodes_of_site(seen.site), text, {"below": share})


@rule("QG805", "codes-not-used", INFO, needs_data=True)
def codes_not_used(facts: ModelFacts) -> Iterator[Found]:
    """Data uses few codes of the range that it spans."""
    for seen in _seen(facts):
        extent = max(seen.codes) - min(seen.codes) + 1 if seen.codes else 0
        used = len(seen.codes)
        if extent > 3 and used * 2 <= extent and seen.values >= _FEW * extent:
            text = f"{used} of {extent} codes between the smallest and the largest occur"
            yield Found(nodes_of_site(seen.site), text, {"used": used, "extent": extent})


@rule(
    "QG806",
    "products-saturate",
    WARNING,
    needs_data=True,
    targets=("onnxruntime-cpu", "openvino-cpu"),
)
def products_saturate(facts: ModelFacts) -> Iterator[Found]:
    """Sums of UINT8 times INT8 saturate on this data without VNNI."""
    observation = facts.observation
    for node, worst in observation.saturated.items() if observation is not None else ():
        text = (
            f"{counted(worst.channels, 'channel')}, such as {worst.channel}: {worst.codes[0]} * "
            f"{worst.weights[0]} + {worst.codes[1]} * {worst.weights[1]} = {worst.total} exceeds "
            f"16 bits, in row {worst.row} of batch {worst.batch}"
        )
        yield Found((node,), text, dict(vars(worst)))


@rule("QG807", "constant-data", INFO, needs_data=True)
def constant_data(facts: ModelFacts) -> Iterator[Found]:
    """A quantizer returns only one value."""
    for seen in _seen(facts):
        if len(seen.codes) == 1 and seen.values >= _FEW:
            code = next(iter(seen.codes))
            text = f"all {seen.values} values have code {code}"
            yield Found(nodes_of_site(seen.site), text, {"code": code})


@rule("QG808", "data-not-finite", ERROR, needs_data=True)
def data_not_finite(facts: ModelFacts) -> Iterator[Found]:
    """NaN or infinite values reach a quantizer."""
    for seen in _seen(facts):
        if seen.not_finite:
            text = f"{seen.not_finite} of {seen.values} values are NaN or infinite"
            yield Found(nodes_of_site(seen.site), text, {"not_finite": seen.not_finite})


@rule("QG809", "data-on-ties", INFO, needs_data=True)
def data_on_ties(facts: ModelFacts) -> Iterator[Found]:
    """Much data lies exactly between two codes."""
    for seen in _seen(facts):
        share = seen.ties / seen.values
        if share >= _MUCH:
            text = f"{100 * share:.3g} % of the values are ties: runtimes round them differently"
            yield Found(nodes_of_site(seen.site), text, {"share": share})


def _seen(facts: ModelFacts) -> Iterator[SeenQuantizer]:
    """Yield each quantizer with data."""
    observation = facts.observation
    for seen in observation.quantizers if observation is not None else ():
        if seen.values:
            yield seen
