"""The parts of what a comparison of two models found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qgraph.equivalence.metrics import OutputComparison, finite


@dataclass(frozen=True)
class TensorComparison:
    """A tensor that both models compute, on one batch.

    Attributes:
        reference, candidate: its name in both models.
        node: the node of the reference that produces it.
        op: that node's operator, ``domain::Name``.
        compared: how far it is apart.
    """

    reference: str
    candidate: str
    node: str
    op: str
    compared: OutputComparison

    @property
    def max_abs(self) -> float | None:
        """Largest absolute difference; None where shapes differ or it is not finite."""
        return finite(self.compared.max_abs)

    @property
    def error(self) -> float:
        """Norm of the difference as a share of that of the reference, to rank tensors by."""
        relative = self.compared.relative
        return float("inf") if relative is None else relative

    @property
    def counterpart(self) -> str:
        """The rest of a sentence about the tensor of the reference: its name in the candidate."""
        return (
            "" if self.candidate == self.reference else f"; the candidate's is {self.candidate!r}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return what names the tensor, and its largest difference."""
        return {
            "reference": self.reference,
            "candidate": self.candidate,
            "node": self.node,
            "op": self.op,
            "max_abs": self.max_abs,
        }

    def measures(self) -> dict[str, Any]:
        """Return all that is known of the tensor."""
        compared = self.compared
        return self.to_json() | {
            "elements": compared.elements,
            "mismatches": compared.mismatches,
            "mean_abs": finite(compared.mean_abs),
            "max_ulp": compared.max_ulp,
            "relative": finite(self.error),
            "sqnr_db": finite(compared.sqnr_db),
            "cosine": finite(compared.cosine),
        }


@dataclass(frozen=True)
class MetricReport:
    """What a metric says of the outputs of both models, by labels.

    Attributes:
        name: of the metric.
        samples: how many labels there are.
        reference, candidate: the scores.
        failed: why the candidate is not good enough; None if it is.
    """

    name: str
    samples: int
    reference: float
    candidate: float
    failed: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields; a score that is not finite becomes null."""
        scores = {"reference": finite(self.reference), "candidate": finite(self.candidate)}
        return dict(vars(self)) | scores


@dataclass(frozen=True)
class ProbeReport:
    """How near inputs came to the thresholds of one quantizer.

    Attributes:
        node: the quantizer, in the reference.
        tensor: what it quantizes.
        targets: how many thresholds were aimed at.
        crossed: how many lie between two neighbouring inputs that are among the probes.
        reached: for how many both floats beside the threshold were met at the quantizer.
        largest_gap: the largest distance, in units of the quantizer's step, that a crossed
            threshold has to the nearer of its two probes; None if none was crossed or the step is
            not known.
        reason: why it was not aimed at.
    """

    node: str
    tensor: str
    targets: int = 0
    crossed: int = 0
    reached: int = 0
    largest_gap: float | None = None
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return dict(vars(self)) | {"largest_gap": finite(self.largest_gap)}
