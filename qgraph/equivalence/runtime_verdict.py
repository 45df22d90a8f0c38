"""Whether a difference comes from a rewrite or from a runtime, and from what it does.

Both models are computed by their operators' definitions, which judges the rewrite; then the
candidate is computed by runtimes, plainly and by default, which judges them. Where a default makes
a difference, the options that stop what it is known for are tried one by one.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qgraph.equivalence.culprits import RUNTIMES, Culprit, Level, Options, Runtime, merged
from qgraph.equivalence.dropped import without_quantizers
from qgraph.equivalence.metrics import Comparing, OutputComparison
from qgraph.equivalence.runtime_jobs import Answer, RuntimeJobs
from qgraph.equivalence.runtime_report import ROUNDING, RuntimeReport, RuntimeResult, Stopped
from qgraph.errors import QGraphError
from qgraph.executor import Backend, prepare
from qgraph.model import Model

Outputs = Mapping[str, Any]

_STOPPED = 0.1
"""An option has stopped what makes a difference when less than this share of it is left."""

_TOGETHER = 3
"""So many options may be needed together."""

_FEW = 1.05
"""Options that leave errors apart by this factor are equally good."""


def judge_runtimes(
    candidate: Model,
    batches: Sequence[Mapping[str, Any]],
    reference_outputs: Sequence[Outputs],
    candidate_outputs: Sequence[Outputs],
    names: Mapping[str, str],
    *,
    runtimes: Sequence[Runtime] = RUNTIMES,
) -> RuntimeReport:
    """Return what the rewrite and what runtimes change.

    Args:
        candidate: the model that is put to the runtimes.
        batches: its inputs.
        reference_outputs: of the reference by its definition, for each batch.
        candidate_outputs: of the candidate by its definition.
        names: outputs of the candidate by those of the reference.
        runtimes: what to try, where it is installed.
    """
    stripped = _Stripped(candidate, batches)
    renamed = [{a: batch[b] for a, b in names.items()} for batch in candidate_outputs]
    rewrite, error = _compare(reference_outputs, renamed)
    results: list[RuntimeResult] = []
    missing = []
    for runtime in runtimes:
        if importlib.util.find_spec(runtime.module) is None:
            missing.append(runtime.name)
            continue
        with RuntimeJobs(candidate, batches) as jobs:
            results += _Trial(runtime, jobs, candidate_outputs, stripped).results()
    return RuntimeReport(rewrite, error, results, missing)


class _Stripped:
    """What the candidate is by definition when quantizers of its data are left out."""

    def __init__(self, candidate: Model, batches: Sequence[Mapping[str, Any]]) -> None:
        self._candidate = candidate
        self._batches = batches
        self._known: list[tuple[str, list[dict[str, Any]]]] | None = None

    def explain(self, found: Sequence[Outputs], error: float) -> list[Stopped]:
        """Return that quantizers are left out, if outputs look like that."""
        for what, outputs in self._outputs():
            left = _compare(outputs, found)[1]
            if left is not None and left <= max(ROUNDING, _STOPPED * _STOPPED * error):
                return [Stopped(what, None, left)]
        return []

    def _outputs(self) -> list[tuple[str, list[dict[str, Any]]]]:
        if self._known is None:
            self._known = []
            for bits, told in ((16, "16-bit quantizers"), (None, "quantizers")):
                model, number = without_quantizers(self._candidate, bits)
                if not number:
                    continue
                try:
                    executor = prepare(model.ir, Backend.NUMPY)
                    outputs = [executor.run(batch) for batch in self._batches]
                except QGraphError:  # what is left may be no model that can be run
                    continue
                what = f"{number} {told} of data are left out"
                self._known.append((what, outputs))
        return self._known


class _Trial:
    """One runtime that is tried in all its levels."""

    def __init__(
        self,
        runtime: Runtime,
        jobs: RuntimeJobs,
        expected: Sequence[Outputs],
        stripped: _Stripped,
    ) -> None:
        self._runtime = runtime
        self._jobs = jobs
        self._expected = expected
        self._stripped = stripped

    def results(self) -> list[RuntimeResult]:
        """Return the result of each level."""
        levels = self._runtime.levels
        answers = self._jobs.run(self._runtime.module, [level.options for level in levels])
        version = self._jobs.versions.get(self._runtime.module, "")
        name = f"{self._runtime.name} {version.split('-')[0]}".strip()
        found: list[RuntimeResult] = []
        least = 0.0
        for level, answer in zip(levels, answers, strict=True):
            if answer.failure is not None:
                found.append(RuntimeResult(name, level.name, level.told, failure=answer.failure))
                continue
            outputs, error = _compare(self._expected, answer.batches)
            amount = math.inf if error is None else error
            if level is levels[0]:
                least = amount
            culprits: Sequence[Stopped] = ()
            if amount > ROUNDING:
                culprits = self._stripped.explain(answer.batches, amount)
            if not culprits and amount > ROUNDING and amount > least and level is not levels[0]:
                known = self._same(found, outputs)
                culprits = self._culprits(level, amount, least) if known is None else known
            found.append(RuntimeResult(name, level.name, level.told, outputs, error, culprits))
        return found

    def _same(
        self, found: Sequence[RuntimeResult], outputs: Sequence[OutputComparison]
    ) -> Sequence[Stopped] | None:
        """Return the culprits of an earlier level that computes the same."""
        for result in found:
            if list(result.outputs) == list(outputs) and result.culprits:
                return result.culprits
        return None

    def _culprits(self, level: Level, error: float, least: float) -> list[Stopped]:
        """Return the options that take the difference away, each the best after those before."""
        options, left = level.options, error
        usable = [each for each in self._runtime.culprits if "level" not in each.options]
        if level is self._runtime.levels[-1]:
            usable = list(self._runtime.culprits)
        found: list[Stopped] = []
        while usable and len(found) < _TOGETHER:
            errors = self._errors(options, usable)
            best = min(errors)
            if not best < left / _FEW:
                break
            # what is told first is more special than what comes later
            place = next(n for n, each in enumerate(errors) if each <= max(best * _FEW, ROUNDING))
            chosen = usable.pop(place)
            left = errors[place]
            options = merged(options, chosen.options)
            found.append(Stopped(chosen.what, chosen.option, left))
            if left <= max(error * _STOPPED, least, ROUNDING):
                break
        return found

    def _errors(self, options: Options, culprits: Sequence[Culprit]) -> list[float]:
        tried = [merged(options, culprit.options) for culprit in culprits]
        answers = self._jobs.run(self._runtime.module, tried)
        return [self._error(answer) for answer in answers]

    def _error(self, answer: Answer) -> float:
        if answer.failure is not None:
            return math.inf
        error = _compare(self._expected, answer.batches)[1]
        return math.inf if error is None else error


def _compare(
    expected: Sequence[Outputs], found: Sequence[Outputs]
) -> tuple[list[OutputComparison], float | None]:
    """Return how far outputs are apart, each alone and all together."""
    comparisons = {name: Comparing(name) for name in (expected[0] if expected else ())}
    signal = noise = 0.0
    for ours, theirs in zip(expected, found, strict=True):
        for name, comparing in comparisons.items():
            x, y = ours[name], theirs[name]
            if comparing.add(x, y):
                signal += _power(x)
                continue
            if getattr(x, "shape", None) != getattr(y, "shape", ()) or x.dtype.kind not in "biuf":
                noise = math.inf
                continue
            signal += _power(x)
            with np.errstate(all="ignore"):
                noise += _power(np.where(x == y, 0, x.astype(np.float64) - y))
    outputs = [comparing.result() for comparing in comparisons.values()]
    if noise == 0:
        return outputs, 0.0
    if not math.isfinite(noise) or signal == 0:
        return outputs, None
    return outputs, math.sqrt(noise / signal)


def _power(x: Any) -> float:
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "biuf":
        return 0.0
    with np.errstate(all="ignore"):
        return float(np.sum(np.square(x.astype(np.float64))))
