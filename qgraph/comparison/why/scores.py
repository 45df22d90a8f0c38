"""Score two models with one quantizer replaced at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qgraph.comparison.metrics import Comparing
from qgraph.comparison.tolerance import Metric
from qgraph.comparison.why.report import QuantizerCost
from qgraph.comparison.why.switches import SELECTED
from qgraph.execution.executor import Executor
from qgraph.numerics import Array

_DECIBELS_OF_ZERO = -999.0

Outputs = list[Array]


class Scores:
    """Scores of both models with one quantizer replaced at a time.

    Args:
        boards: the reference and the candidate, each with switches for its quantizers.
        names: outputs of the reference.
        count: number of switches of each board.
        judge: scores outputs by labels; None for agreement with the reference.
        labels: labels of the rows.
        labelled: number of batches that have labels.

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
        """Run one batch with every switch, and yield after each run.

        Args:
            feeds: the batch by the names of each board.
        """
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
