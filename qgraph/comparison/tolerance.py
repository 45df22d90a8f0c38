"""What differences on data are allowed: tolerances and metrics of outputs, bounds of segments.

Metrics need labels.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, SupportsFloat

import numpy as np
import numpy.typing as npt

from qgraph.bound import Bound, Bounding, Within, limit_of
from qgraph.comparison.metrics import OutputComparison, finite_fields, within
from qgraph.errors import ExecutionError, OptionError, require, shown
from qgraph.numerics import Array, Float64
from qgraph.records import guarded, replace
from qgraph.text import amount, counted

Limit = float | Mapping[str, float]
"""A number for all outputs, or numbers by output name."""

_ANY_SIGN = frozenset({"min_sqnr"})
_SHARES = frozenset({"min_top1"})


@guarded(frozen=True)
class Tolerances:
    """Limits for outputs, each a number for all outputs or numbers by output name.

    Attributes:
        atol, rtol: ``|reference - candidate| <= atol + rtol * |reference|`` for every value.
        max_steps: largest difference in steps of the quantizer that produces the output.
        max_ulp: largest difference in units in the last place.
        min_sqnr: smallest ratio of signal to error, in decibels.
        min_top1: smallest share of rows whose largest value is at the same place.
        within: limits of bounds, for all outputs: the bounds of all segments are computed, see
            :func:`qgraph.prove`, and compared with what the segments compute on the inputs. Then
            outputs may differ if there is no other tolerance.
    """

    atol: Limit = 0.0
    rtol: Limit = 0.0
    max_steps: Limit | None = None
    max_ulp: Limit | None = None
    min_sqnr: Limit | None = None
    min_top1: Limit | None = None
    within: Within | None = None


@guarded(frozen=True)
class Tolerance:
    """Tolerances for one output, as in :class:`Tolerances`; without any, values must be equal."""

    atol: float = 0.0
    rtol: float = 0.0
    max_steps: float | None = None
    max_ulp: float | None = None
    min_sqnr: float | None = None
    min_top1: float | None = None

    @property
    def is_exact(self) -> bool:
        """Whether only equal values are allowed."""
        return self == Tolerance()

    def allows(self, reference: Any, candidate: Any) -> bool:
        """Return whether one batch lies within ``atol`` and ``rtol``, if set."""
        if not (self.atol or self.rtol):
            return True
        return within(reference, candidate, atol=self.atol, rtol=self.rtol)

    def judge(self, compared: OutputComparison, *, allowed: bool) -> str | None:
        """Return why an output exceeds the tolerance over all batches, None if it does not.

        ``allowed`` is the result of :meth:`allows` for all of them. Raises OptionError if a limit
        does not apply to this output.
        """
        if compared.note is not None or compared.equal:
            return compared.note
        if not compared.has_distance:
            count = f"{compared.mismatches} of {compared.elements} values differ"
            return f"{count}, of a type without distances, so tolerances do not apply"
        apart = (
            f"{compared.mismatches} of {compared.elements} values differ, by up to "
            f"{compared.max_abs:g}, {compared.max_ulp} ulp"
        )
        reasons = [] if allowed and not self.is_exact else [apart]
        if self.max_steps is not None:
            if compared.max_steps is None:
                raise OptionError(
                    f"max_steps is given for output {compared.name!r}, which no quantizer with a "
                    "known uniform step produces. Give atol for it, or max_steps by output name."
                )
            if compared.max_steps > self.max_steps:
                reasons.append(f"{apart}, {compared.max_steps:g} steps")
        if self.max_ulp is not None and compared.max_ulp > self.max_ulp:
            reasons.append(f"{apart}; {self.max_ulp:.10g} ulp are allowed")
        if self.min_sqnr is not None and (compared.sqnr_db or 0.0) < self.min_sqnr:
            reasons.append(f"SQNR {compared.sqnr_db:.1f} dB is below {self.min_sqnr:g}")
        if self.min_top1 is not None:
            if compared.top1 is None:
                raise OptionError(
                    f"min_top1 is given for output {compared.name!r}, which has no rows of scores "
                    "along its last axis. Give it by output name, or another limit."
                )
            if compared.top1 < self.min_top1:
                share = f"{compared.top1:.4%} of the rows have the same top-1"
                reasons.append(f"{share}, at least {self.min_top1:.4%} is required")
        return "; ".join(reasons) or None


def tolerances_of(outputs: Collection[str], limits: Tolerances) -> dict[str, Tolerance]:
    """Return the tolerance of each output; raise OptionError for a wrong limit or name."""
    chosen: dict[str, dict[str, float]] = {name: {} for name in outputs}
    numbers = {field: limit for field, limit in vars(limits).items() if field != "within"}
    for field, limit in numbers.items():
        entries = limit if isinstance(limit, Mapping) else dict.fromkeys(outputs, limit)
        for name, number in entries.items():
            if name not in chosen:
                raise OptionError(
                    f"{field} is given for output {name!r}; the outputs of the reference are "
                    f"{', '.join(chosen)}. Use one of these names."
                )
            require(number, SupportsFloat | None, field, "a number, or numbers by output name")
            if number is not None and math.isnan(number):
                raise OptionError(f"{field} is {number}, expected a number.")
            if number is not None and field not in _ANY_SIGN and number < 0:
                raise OptionError(f"{field} is {number}, expected a number that is not negative.")
            if number is not None and field in _SHARES and number > 1:
                raise OptionError(
                    f"{field} is {number}, expected a fraction of the rows from 0 to 1, such as "
                    f"0.99."
                )
            if number is not None:
                chosen[name][field] = number
    return {name: Tolerance(**fields) for name, fields in chosen.items()}


Outputs = Mapping[str, Array]
Score = Callable[[Outputs, Array], float]
"""``score(outputs, labels)``: outputs by name, joined over the batches; larger is better."""

TOP1 = "top1"


@guarded(frozen=True, eq=False)
class Scoring:
    """Options to score outputs by labels.

    Attributes:
        labels: the labels of the rows of the inputs.
        metric: "top1", "module:function", or a function ``score(outputs, labels)``, where larger is
            better.
        max_drop: maximum loss of the candidate's score; without tolerances, values may then differ.
    """

    labels: npt.ArrayLike | None = None
    metric: str | Score = TOP1
    max_drop: float | None = None


class LabelsError(OptionError):
    """Labels and outputs do not fit."""


@guarded(frozen=True)
class Metric:
    """A metric, named ``top1`` or ``module:function``: scores outputs by labels."""

    name: str
    score: Score

    def of(self, outputs: Outputs, labels: Array) -> float:
        """Return the score.

        Raises LabelsError if labels and outputs do not fit, ExecutionError if a function of the
        user fails, or returns no number.
        """
        try:
            return float(self.score(outputs, labels))
        except LabelsError:
            raise
        except Exception as error:  # the user's function may raise any exception
            forms = ", ".join(f"{name!r} {x.dtype}{list(x.shape)}" for name, x in outputs.items())
            raise ExecutionError(
                f"Metric {self.name!r} failed ({type(error).__name__}: {error}) on the outputs "
                f"{forms} and labels {labels.dtype}{list(labels.shape)}, expected a number. "
                f"Correct the function."
            ) from error


def metric_of(score: str | Score) -> Metric:
    """Return the metric for ``top1``, ``module:function`` or a function, or raise OptionError."""
    if not isinstance(score, str):
        if not callable(score):
            raise OptionError(
                f"metric is {shown(score)}, expected {TOP1!r}, a function, or its name as "
                "module:function."
            )
        return Metric(getattr(score, "__name__", "metric"), score)
    if score.casefold() == TOP1:
        return Metric(TOP1, top1)
    module, colon, name = score.partition(":")
    if not (module and colon and name):
        raise OptionError(
            f"There is no metric {score!r}, expected {TOP1!r} or a function as module:function."
        )
    try:
        metric = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise OptionError(
            f"The metric {score!r} cannot be imported ({error}), expected a function "
            "score(outputs, labels). Correct the name, or put its folder on PYTHONPATH."
        ) from error
    return Metric(score, metric)


def top1(outputs: Outputs, labels: Array) -> float:
    """Return the fraction of rows whose largest score is that of the label.

    Uses the first output with a row of scores per label, ``[samples, classes]``. Raises LabelsError
    if there is none.
    """
    flat = np.asarray(labels).reshape(-1)
    if flat.dtype.kind in "OSU":
        raise LabelsError(
            f"labels are of type {flat.dtype}, expected an array with the "
            "number of the right answer for each row. numpy.load reads a file."
        )
    for scores in outputs.values():
        if scores.ndim == 2 and scores.shape[1] > 1 and len(scores) == flat.size:
            return float(np.mean(np.argmax(scores, axis=1) == flat))
    forms = ", ".join(f"{name!r} {list(x.shape)}" for name, x in outputs.items())
    raise LabelsError(
        f"There are {flat.size} labels, but the outputs are {forms}; expected one with a row of "
        "scores for each label. Give as many labels as samples, or your own metric as "
        "module:function."
    )


_ABOUT_ONE = 1 - 2.0**-40
"""Margin for whole numbers of steps that were rounded up."""


@guarded(eq=False)
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
        return finite_fields(self)


@guarded(frozen=True)
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
        return self.request.to_json() | finite_fields(self, "conditions", "segments")
