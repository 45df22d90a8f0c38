"""Rules about the data that a model computes from given inputs (QG8)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from qgraph.lint.facts import ModelFacts, nodes_of_site
from qgraph.lint.layers import listed
from qgraph.lint.rule import Found, LintLevel, rule
from qgraph.lint.seen import SeenQuantizer
from qgraph.text import counted

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
