"""What each quantizer of a candidate costs: the report of ``qgraph why``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qgraph.certificate import Identity
from qgraph.comparison.metrics import finite
from qgraph.display import Displayed
from qgraph.text import counted
from qgraph.version import head


@dataclass
class QuantizerCost:
    """What one quantizer costs. Ratios of signal to noise are in dB; None if values are equal.

    Attributes:
        node, op: of the quantizer, as reports name it.
        tensor: what it returns.
        is_weight: whether its data are constant.
        local_sqnr_db: given the reference's values before the layer, what the layer with its
            quantizer returns, against the reference. Of weights: the weights themselves.
        accumulated_sqnr_db: the same with what the candidate itself computes before the layer.
        drop_alone: by how much the metric of the reference falls with this quantizer alone.
        gain_if_restored: by how much that of the candidate rises without it.
        alone_sqnr_db: outputs of the reference with this quantizer alone, against its own.
        restored_sqnr_db: outputs of the candidate without it, against those of the reference.
        codes: codes that differ, thresholds crossed, clipping, unused codes; see
            :class:`~qgraph.comparison.why.tally.CodeTally`.
        bound: of the segment that ends in it, and what was seen of it; None if not asked for.
        reason: why it could not be compared or exchanged.
    """

    node: str
    op: str
    tensor: str
    is_weight: bool
    local_sqnr_db: float | None = None
    accumulated_sqnr_db: float | None = None
    drop_alone: float | None = None
    gain_if_restored: float | None = None
    alone_sqnr_db: float | None = None
    restored_sqnr_db: float | None = None
    codes: Mapping[str, Any] = field(default_factory=dict)
    bound: Mapping[str, Any] | None = None
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields; numbers that are not finite become null."""
        plain = dict(vars(self)) | dict(self.codes)
        del plain["codes"]
        return {n: finite(v) if isinstance(v, float) else v for n, v in plain.items()}

    @property
    def order(self) -> tuple[bool, float, float, float, float]:
        """A key by which the most harmful quantizer comes first.

        A quantizer that happens to raise the metric costs nothing of it, and is ranked by the
        signal-to-noise ratio, as one without which the metric stays.
        """
        restored = math.inf if self.restored_sqnr_db is None else self.restored_sqnr_db
        alone = math.inf if self.alone_sqnr_db is None else self.alone_sqnr_db
        return (
            self.reason is not None,
            -max(self.gain_if_restored or 0.0, 0.0),
            -max(self.drop_alone or 0.0, 0.0),
            -restored,
            alone,
        )


@dataclass(frozen=True, repr=False)
class WhyReport(Displayed):
    """Which quantizer costs what, the most harmful first.

    Attributes:
        metric: ``top1`` or another metric of labels; ``agreement``, the share of rows whose largest
            output is where the reference has it; ``sqnr`` where outputs are no scores.
        reference, candidate: the metric of both; of ``sqnr`` that of the candidate in dB.
        sqnr_db: outputs of the candidate against those of the reference; None if equal.
        quantizers: one for each quantizer of the candidate.
        batches: how many were run.
        batches_in_all: how many there are; more than were run if the time limit was reached.
        notes: what the report leaves out.
        files: the two models.
    """

    metric: str
    reference: float | None
    candidate: float | None
    sqnr_db: float | None
    quantizers: Sequence[QuantizerCost]
    batches: int
    batches_in_all: int
    notes: Sequence[str]
    files: tuple[Identity, Identity]

    @property
    def summary(self) -> str:
        """The quantizer that costs most."""
        if self.sqnr_db is None:
            return f"equal outputs, {counted(len(self.quantizers), 'quantizer')}"
        worst = "no quantizer was exchanged" if self.guilty is None else self.guilty.node
        return f"{worst}, first of {counted(len(self.quantizers), 'quantizer')}"

    @property
    def guilty(self) -> QuantizerCost | None:
        """The quantizer that costs most; None if outputs are equal, or none was exchanged."""
        if self.sqnr_db is None:
            return None
        return next((cost for cost in self.quantizers if cost.reason is None), None)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON report."""
        first, second = (dict(vars(identity)) for identity in self.files)
        return {
            **head("why"),
            "models": {"reference": first, "candidate": second},
            "metric": self.metric,
            "reference": self.reference,
            "candidate": self.candidate,
            "sqnr_db": finite(self.sqnr_db),
            "batches": self.batches,
            "batches_in_all": self.batches_in_all,
            "quantizers": [cost.to_json() for cost in self.quantizers],
            "notes": list(self.notes),
        }
