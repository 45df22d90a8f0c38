"""Report of ``qgraph why``: the accuracy that each quantizer of a candidate costs."""

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
    """Cost of one quantizer. Signal-to-noise ratios are in dB; None if values are equal.

    Attributes:
        node, op: of the quantizer, as reports name it.
        tensor: its output.
        is_weight: whether its data are constant.
        local_sqnr_db: ratio of the output of the layer and its quantizer to that of the reference,
            on the reference's values before the layer. For weights: ratio of the weights.
        accumulated_sqnr_db: the same on the candidate's values before the layer.
        drop_alone: metric that the reference loses with this quantizer alone.
        gain_if_restored: metric that the candidate gains without it.
        alone_sqnr_db: outputs of the reference with this quantizer alone, against its own.
        restored_sqnr_db: outputs of the candidate without it, against those of the reference.
        codes: codes that differ, thresholds crossed, clipping, unused codes; see
            :class:`~qgraph.comparison.why.tally.CodeTally`.
        bound: bound and differences on data of the segment that ends in it; None if not requested.
        reason: why it could not be compared or replaced.
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

        A quantizer that improves or keeps the metric is ranked by the signal-to-noise ratio.
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
    """The cost of each quantizer, the most harmful first.

    Attributes:
        metric: ``top1`` or another metric of labels; ``agreement``, the share of rows whose largest
            output has the same index as in the reference; ``sqnr`` if outputs are not scores.
        reference, candidate: the metric of both; for ``sqnr``, the ratio of the candidate in dB.
        sqnr_db: ratio of the outputs of the candidate; None if equal.
        quantizers: one entry for each quantizer of the candidate.
        batches: number of batches that were run.
        batches_in_all: number of all batches; larger if the time limit was reached.
        notes: remarks.
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
        """The quantizer that costs most; None if outputs are equal, or none was replaced."""
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
