"""The accuracy that each quantizer of a candidate costs: the report, scores and counts of codes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qgraph.certificate import Identity
from qgraph.comparison.metrics import Comparing, finite_fields
from qgraph.comparison.tolerance import Metric
from qgraph.comparison.why.pairing import SELECTED
from qgraph.execution.executor import Executor
from qgraph.inventory.statistics import codes_of, is_clipped, levels_of
from qgraph.numerics import Array
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.quantizer import Affine, Ranged, Truncating, Unnamed, arrays_of
from qgraph.records import field, guarded
from qgraph.text import Displayed, counted
from qgraph.version import head


@guarded
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
            :class:`~qgraph.comparison.why.report.CodeTally`.
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
        fields = finite_fields(self)
        codes: dict[str, Any] = fields.pop("codes")
        return fields | codes

    @property
    def order(self) -> tuple[bool, float, float, float, float]:
        """A key by which the most harmful quantizer, by metric, then by SQNR, comes first."""
        restored = math.inf if self.restored_sqnr_db is None else self.restored_sqnr_db
        alone = math.inf if self.alone_sqnr_db is None else self.alone_sqnr_db
        return (
            self.reason is not None,
            -max(self.gain_if_restored or 0.0, 0.0),
            -max(self.drop_alone or 0.0, 0.0),
            -restored,
            alone,
        )


@guarded(frozen=True, repr=False)
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
            **finite_fields(self, "metric", "reference", "candidate", "sqnr_db", "batches"),
            **finite_fields(self, "batches_in_all", "quantizers", "notes"),
        }


_DECIBELS_OF_ZERO = -999.0

Outputs = list[Array]


class Scores:
    """Scores of both models with one quantizer replaced at a time.

    ``boards`` are the models with ``count`` switches each. ``judge`` scores by the labels of rows,
    which the first ``labelled`` batches have; None for agreement with the reference.

    Attributes:
        batches: number of batches that were run.
    """

    def __init__(
        self,
        boards: Sequence[Executor],
        names: Sequence[str],
        count: int,
        judge: Metric | None,
        labels: Array | None,
        labelled: int,
    ) -> None:
        self._boards, self._names = boards, names
        self._judge, self._labels, self._labelled = judge, labels, labelled
        # of each board, first as it is, then with each quantizer exchanged
        self._noise = [[[Comparing(n) for n in names] for _ in range(count + 1)] for _ in boards]
        self._kept: list[list[list[Outputs]]] = [[[] for _ in range(count + 1)] for _ in boards]
        self._rows = 0
        self.batches = 0

    @property
    def metric(self) -> str:
        """Name of the metric."""
        if self._judge is not None:
            return self._judge.name
        return "sqnr" if self._score(0, 0) is None else "agreement"

    def run(self, *feeds: Mapping[str, Any]) -> Iterator[None]:
        """Run one batch, named as each board does, with every switch, and yield after each run."""
        meant: Outputs = []
        is_labelled = self._judge is not None and self.batches < self._labelled
        for side, (board, own) in enumerate(zip(self._boards, feeds, strict=True)):
            for number, noise in enumerate(self._noise[side]):
                selected = np.asarray(number - 1, np.int64)
                outputs = list(board.run({**own, SELECTED: selected}).values())
                meant = meant or outputs
                for comparing, x, y in zip(noise, meant, outputs, strict=True):
                    comparing.add(x, y)
                if is_labelled:
                    self._kept[side][number].append(outputs)
                yield
        if is_labelled:
            self._rows += len(next(iter(feeds[0].values())))
        self.batches += 1

    def ends(self) -> tuple[float | None, float | None]:
        """Return the metric of the reference and of the candidate."""
        if self.metric == "sqnr":
            return None, self.sqnr()
        return self._score(0, 0), self._score(1, 0)

    def sqnr(self) -> float | None:
        """Return the ratio of the candidate's outputs, in dB."""
        return self._sqnr(1, 0)

    def enter(self, costs: Sequence[QuantizerCost]) -> None:
        """Enter the scores of the quantizers that have switches, in their order."""
        for number, cost in enumerate(costs, 1):
            if cost.reason is not None:
                continue
            cost.alone_sqnr_db, cost.restored_sqnr_db = self._sqnr(0, number), self._sqnr(1, number)
            scores = [self._score(side, n) for side in (0, 1) for n in (0, number)]
            if None not in scores:
                whole, alone, own, restored = (float(score or 0.0) for score in scores)
                cost.drop_alone, cost.gain_if_restored = whole - alone, restored - own

    def _score(self, side: int, number: int) -> float | None:
        if self._judge is None or self._labels is None:
            shares = [comparing.result().top1 for comparing in self._noise[side][number]]
            return next((share for share in shares if share is not None), None)
        columns = zip(*self._kept[side][number], strict=True)
        joined = [np.concatenate([np.atleast_1d(x) for x in column]) for column in columns]
        labels = self._labels if self.batches >= self._labelled else self._labels[: self._rows]
        return self._judge.of(dict(zip(self._names, joined, strict=True)), labels)

    def _sqnr(self, side: int, number: int) -> float | None:
        powers = [comparing.power for comparing in self._noise[side][number]]
        signal, noise = (math.fsum(column) for column in zip(*powers, strict=True))
        if not noise:
            return None
        if not math.isfinite(noise) or not signal:
            return _DECIBELS_OF_ZERO
        return 10 * math.log10(signal / noise)


_MOST_COUNTED = 1 << 24
"""Largest product of channels and levels for which codes are counted by channel."""


class CodeTally:
    """Counts the codes of a quantizer, over any number of batches.

    Channels are those of the scale, otherwise those of the data: axis 1, or axis 0 of weights.

    Args:
        site: the quantizer. Stored codes are never clipped.

    Attributes:
        elements, differing: number of codes, and number of those that are not the code of the
            reference's value.
    """

    def __init__(self, site: Site) -> None:
        self._quantizer = quantizer = site.quantizer
        self._is_weight, self._is_decoder = site.weight is not None, site.is_decoder
        self.elements = self.differing = 0
        self._levels: int | None = None
        if isinstance(quantizer, Affine | Ranged):
            self._levels = levels_of(quantizer)
        low = quantizer.lo.min() if isinstance(quantizer, Affine) else 0.0
        self._low = float(low)
        self._used: Array | None = None
        self._crossed: Array | None = None
        self._clipped: Array | None = None
        self._inputs = 0

    def add(self, x: Array, y: Array, reference: Array | None) -> None:
        """Count a batch: data, its quantized values, and what the reference has, in this shape."""
        own = y.astype(np.float32, copy=False)
        with np.errstate(all="ignore"):
            codes = codes_of(self._quantizer, own)
            self._count(codes)
            if not self._is_decoder:
                self._count_clipped(x.astype(np.float32, copy=False))
            if reference is not None and not isinstance(self._quantizer, Truncating | Unnamed):
                there = codes_of(self._quantizer, reference.astype(np.float32, copy=False))
                self._compare(codes, there)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a report; None if codes are not counted."""
        used, crossed, clipped = self._used, self._crossed, self._clipped
        unused = None if used is None else (~used).sum(axis=1)
        shares = None if clipped is None else clipped / max(self._inputs // len(clipped), 1)
        return {
            "codes_that_differ": self.differing / self.elements if self.elements else None,
            "thresholds_crossed": None if crossed is None else int(np.count_nonzero(crossed)),
            "levels": self._levels,
            "clipped": None if clipped is None else float(clipped.sum() / max(self._inputs, 1)),
            "unused_codes": None if used is None else int((~used.any(axis=0)).sum()),
            "channels": None
            if unused is None or len(unused) < 2
            else {
                "count": len(unused),
                "clipped": None if shares is None else shares.tolist(),
                "unused_codes": unused.tolist(),
                "most_clipped": None
                if shares is None
                else {"channel": int(shares.argmax()), "share": float(shares.max())},
                "fewest_codes": {"channel": int(unused.argmax()), "unused": int(unused.max())},
            },
        }

    def _rows(self, array: Array) -> Array:
        """Return the elements by channel, ``[channels, elements]``."""
        axis = self._axis(array.ndim)
        if axis is None:
            return array.reshape(1, -1)
        return np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)

    def _axis(self, rank: int) -> int | None:
        for parameter in arrays_of(self._quantizer):
            wide = [n - parameter.ndim for n, size in enumerate(parameter.shape) if size > 1]
            if len(wide) == 1 and -wide[0] <= rank:
                return wide[0] % rank
        axis = 0 if self._is_weight else 1
        return axis if rank > max(axis, 1) else None

    def _count(self, codes: Array) -> None:
        rows = self._rows(codes)
        if self._levels is None or self._levels * len(rows) > _MOST_COUNTED:
            return
        if self._used is None:
            self._used = np.zeros((len(rows), self._levels), np.bool_)
            self._crossed = np.zeros(self._levels - 1, np.bool_)
        if len(rows) != len(self._used):
            return
        levels = np.nan_to_num(rows - self._low).astype(np.int64).clip(0, self._levels - 1)
        self._used[np.arange(len(rows))[:, None], levels] = True

    def _count_clipped(self, x: Array) -> None:
        rows = self._rows(is_clipped(self._quantizer, x))
        counts = np.count_nonzero(rows, axis=1)
        if self._clipped is None or len(self._clipped) != len(counts):
            self._clipped, self._inputs = np.zeros(len(counts), np.int64), 0
        self._clipped = self._clipped + counts
        self._inputs += x.size

    def _compare(self, codes: Array, there: Array) -> None:
        differ = ~((codes == there) | (np.isnan(codes) & np.isnan(there)))
        self.elements += codes.size
        self.differing += int(np.count_nonzero(differ))
        if self._crossed is None or not differ.any():
            return
        pair = np.nan_to_num(np.stack([codes[differ], there[differ]]) - self._low).astype(np.int64)
        first, last = pair.min(axis=0), pair.max(axis=0)
        ends = np.zeros(len(self._crossed) + 1, np.int64)
        np.add.at(ends, first.clip(0, len(self._crossed)), 1)
        np.add.at(ends, last.clip(0, len(self._crossed)), -1)
        self._crossed |= np.cumsum(ends)[:-1] > 0
