"""Compare a deployed model with its input on data: accuracy, differing codes, and bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qgraph.bound import Bounding
from qgraph.comparison.bound_report import BoundsReport
from qgraph.comparison.check import Inputs, check
from qgraph.comparison.tolerance import Scoring, Tolerances
from qgraph.errors import EquivalenceError, ExecutionError
from qgraph.model import Model


@dataclass(frozen=True)
class Accuracy:
    """Results of a deployed model on data, compared with those of its input.

    Attributes:
        samples: rows of the inputs.
        before, after: share of correct samples, whose largest score is that of the label; None
            without labels.
        bounds: for each segment, the differing codes, and distances with their bounds.
    """

    samples: int
    before: float | None
    after: float | None
    bounds: BoundsReport

    @property
    def codes_that_differ(self) -> float | None:
        """Share of codes that differ, with each model on its own codes; None without codes."""
        coded = [each for each in self.bounds.segments if not each.is_output]
        total = sum(each.elements for each in coded)
        return sum(each.accumulated_codes for each in coded) / total if total else None

    def to_json(self) -> dict[str, object]:
        """Return the fields, and the number of bounds that are violated."""
        violated = sum(each.violated is not None for each in self.bounds.segments)
        return {
            "samples": self.samples,
            "before": self.before,
            "after": self.after,
            "codes_that_differ": self.codes_that_differ,
            "violated_bounds": violated,
            "bounds": self.bounds.to_json(),
        }


def accuracy(
    reference: Model,
    candidate: Model,
    request: Bounding,
    inputs: Inputs,
    labels: npt.ArrayLike | None,
) -> Accuracy:
    """Compare a deployed model with its input on data.

    Args:
        reference: the input of a deployment.
        candidate: its result.
        request: the limits of the deployment.
        inputs: arrays by name, and options of random inputs.
        labels: the labels of the rows; None if they are not known.

    Raises:
        OptionError: labels and outputs do not fit.
        ExecutionError: a model cannot be run on the inputs.
        EquivalenceError: a bound is violated, which is an error of qgraph.
    """
    feeds = inputs.feeds or {}
    rows = [np.shape(array)[0] for array in feeds.values() if np.ndim(array)]
    if 0 in rows:
        raise ExecutionError("The inputs have no rows, expected one or more. Give other inputs.")
    tolerances, scoring = Tolerances(within=request), Scoring(labels)
    result = check(reference, candidate, inputs, tolerances=tolerances, scoring=scoring)
    if result.bounds is None:
        raise AssertionError("limits are given, so bounds are computed")
    for segment in result.bounds.segments:
        if segment.violated:
            raise EquivalenceError(
                f"{segment.candidate or segment.reference!r}: {segment.violated}. This is an error "
                "of qgraph: please report the model and the inputs, and do not deploy the result.",
                result,
            )
    samples = max(rows, default=result.batches)
    if result.metric is None:
        return Accuracy(samples, None, None, result.bounds)
    scores = result.metric.reference, result.metric.candidate
    return Accuracy(result.metric.samples, *scores, result.bounds)
