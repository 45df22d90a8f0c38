"""Report of bounds on data: differing codes and distances, by segment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qgraph.bound import Bound, Bounding, limit_of
from qgraph.comparison.metrics import finite
from qgraph.numerics import Array, Float64
from qgraph.records import dataclass, replace
from qgraph.text import amount, counted

_ABOUT_ONE = 1 - 2.0**-40
"""Margin for whole numbers of steps that were rounded up."""


@dataclass(eq=False)
class SegmentMeasure:
    """Differences of one segment on data, batch by batch, and its bound.

    Codes and distances are in steps of the quantizer; at an output that is not quantized, they are
    values and real units.

    Attributes:
        reference, candidate: nodes at its end.
        value: the value that the node of the reference computes.
        is_output: whether it ends at an output that is not quantized.
        bound: its bound; None if it was not bounded.
        elements: number of compared codes, over all batches.
        differing_codes: number of them that differ, given equal codes at the start.
        largest_steps: the largest difference of codes, given equal codes at the start.
        accumulated_codes, accumulated_steps: the same if each model runs on its own codes.
        distance: the largest distance of the executed candidate from the ideal values of the
            reference; None, like the next two, if distances were not compared, as behind a result
            without a bound.
        distance_bound: the bound of this distance, of the worst channel.
        own_error: the largest error of the computation of this distance.
        violated: how the data violate the bound; None if they do not.
        beyond: the limit that the data exceed; None if there is none.
        reason: why distances were not compared; if ``elements`` is 0, codes were not compared
            either.
    """

    reference: str
    candidate: str
    value: str
    is_output: bool
    bound: Bound | None = None
    elements: int = 0
    differing_codes: int = 0
    largest_steps: float = 0.0
    accumulated_codes: int = 0
    accumulated_steps: float = 0.0
    distance: float | None = 0.0
    distance_bound: float | None = 0.0
    own_error: float | None = 0.0
    violated: str | None = None
    beyond: str | None = None
    reason: str | None = None

    def without_distances(self) -> None:
        """Compare codes only, since no ideal values are known."""
        self.distance = self.distance_bound = self.own_error = None

    def add(self, apart: Array, grown: Array) -> None:
        """Count differences of codes: from equal codes, and from those of each model."""
        self.elements += apart.size
        self.differing_codes += int(np.count_nonzero(apart))
        self.largest_steps = max(self.largest_steps, float(np.max(apart, initial=0)))
        self.accumulated_codes += int(np.count_nonzero(grown))
        self.accumulated_steps = max(self.accumulated_steps, float(np.max(grown, initial=0)))

    def measure(self, distance: Array, bound: Float64, own: Float64) -> None:
        """Compare distances with their bound; all arrays broadcast to the distances."""
        self.distance = max(self.distance or 0.0, float(np.max(distance, initial=0)))
        self.distance_bound = float(np.max(bound))
        self.own_error = max(self.own_error or 0.0, float(np.max(own)))
        self._expect(
            distance, bound + own, "the candidate lies {} {} from what the reference means"
        )

    def expect_near_ties(self, ties: Array, bound: Float64) -> None:
        """Check the distance of differing codes from a threshold."""
        self._expect(ties, bound, "codes differ {} {} from a threshold")

    def expect_steps(self, most: int) -> None:
        """Check the difference of codes."""
        if self.largest_steps > most:
            steps = counted(int(self.largest_steps), "step")
            self.violated = f"codes differ by {steps}, at most {most} was computed"

    def _expect(self, values: Array, bound: Float64, text: str) -> None:
        beyond = ~(values <= bound)  # so is what is no number
        if self.violated is not None or not beyond.any():
            return
        most = np.broadcast_to(bound, values.shape)
        excess = np.where(beyond, values - most, -np.inf)
        worst = np.unravel_index(int(np.argmax(excess)), values.shape)
        what = text.format(amount(float(values[worst]), 4), "" if self.is_output else "steps")
        self.violated = (
            f"{' '.join(what.split())}, at most {amount(float(most[worst]), 4)} was computed, in "
            f"element {list(map(int, worst))}"
        )

    def judged(self, request: Bounding) -> SegmentMeasure:
        """Return a copy that is judged by limits."""
        if self.reason is not None:
            self.without_distances()
            return replace(self)
        return replace(self, beyond=self._beyond(request))

    def _beyond(self, request: Bounding) -> str | None:
        """Return the limit that the data exceed."""
        limit = limit_of(request.limits, self.value if self.is_output else None)
        if limit is None or self.bound is None:
            return None
        stated = self.bound
        steps = int(self.largest_steps)
        share = self.largest_steps if self.distance is None else self.distance
        if stated.absolute is not None:
            far = share
            ratio = far / stated.absolute if stated.absolute else 0.0
            ulps = None if stated.ulps is None else stated.ulps * ratio
            share = stated.deviation_steps * ratio
            steps = math.ceil(share * _ABOUT_ONE)
            stated = replace(stated, absolute=far, ulps=ulps)
        seen = replace(stated, deviation_steps=share, max_steps=steps)
        return None if limit.holds(seen) else str(limit)

    def to_json(self) -> dict[str, Any]:
        """Return the fields; a number that is not finite becomes null."""
        numbers = ("largest_steps", "accumulated_steps", "distance", "distance_bound", "own_error")
        fields = {name: finite(getattr(self, name)) for name in numbers}
        bound = None if self.bound is None else self.bound.to_json()
        return dict(vars(self)) | fields | {"bound": bound}


@dataclass(frozen=True)
class BoundsReport:
    """Differences of two models on data, by segment, and how their bounds were computed."""

    request: Bounding
    conditions: Sequence[str]
    segments: Sequence[SegmentMeasure]

    @property
    def is_bad(self) -> bool:
        """Whether a bound is violated, or the data exceed a limit."""
        return any(segment.violated or segment.beyond for segment in self.segments)

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        rows = [segment.to_json() for segment in self.segments]
        return self.request.to_json() | {"conditions": list(self.conditions), "segments": rows}
