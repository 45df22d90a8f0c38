"""Decide whether a difference comes from a rewrite or a runtime, and by which change.

Both models are computed by their operators' definitions, which judges the rewrite; then the
candidate is computed by runtimes, plainly and by default, which judges them: as it is written, or,
where a runtime does not take that, with its quantizers in standard operators. Where a default makes
a difference, the options that stop what it is known for are tried one by one.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qgraph.comparison.metrics import Comparing, OutputComparison
from qgraph.comparison.runtimes.causes import RUNTIMES, Culprit, Level, Options, Runtime, merged
from qgraph.comparison.runtimes.jobs import Answer, RuntimeJobs
from qgraph.comparison.runtimes.report import (
    ROUNDING,
    STOPPED,
    Form,
    RuntimeReport,
    RuntimeResult,
    StandardForm,
    Stopped,
)
from qgraph.comparison.variants import in_standard_operators, without_quantizers
from qgraph.errors import QGraphError
from qgraph.execution.executor import Backend
from qgraph.execution.prepare import prepare
from qgraph.model import Model

Outputs = Mapping[str, Any]

_TOGETHER = 3
"""Maximum number of options to combine."""

_FEW = 1.05
"""Options whose remaining errors differ by less than this factor are equally good."""


def judge_runtimes(
    candidate: Model,
    batches: Sequence[Mapping[str, Any]],
    reference_outputs: Sequence[Outputs],
    candidate_outputs: Sequence[Outputs],
    names: Mapping[str, str],
    *,
    runtimes: Sequence[Runtime] = RUNTIMES,
) -> RuntimeReport:
    """Return the changes by the rewrite and by the runtimes.

    Args:
        candidate: the model that is put to the runtimes.
        batches: its inputs.
        reference_outputs: of the reference by its definition, for each batch.
        candidate_outputs: of the candidate by its definition.
        names: outputs of the candidate by those of the reference.
        runtimes: what to try, where it is installed.
    """
    renamed = [{a: batch[b] for a, b in names.items()} for batch in candidate_outputs]
    rewrite, error = compare_outputs(reference_outputs, renamed)
    written = _Stripped(candidate, batches)
    standard: tuple[StandardForm, _Stripped] | None = None
    results: list[RuntimeResult] = []
    missing = []
    for runtime in runtimes:
        if importlib.util.find_spec(runtime.module) is None:
            missing.append(runtime.name)
            continue
        found = _try(runtime, written, candidate_outputs, Form.WRITTEN)
        if all(result.failure is not None for result in found):
            standard = standard or _standard(candidate, batches, candidate_outputs)
            if standard is not None and standard[0].is_runnable:
                refused = found[-1].failure
                found = _try(runtime, standard[1], candidate_outputs, Form.STANDARD)
                found = [replace(result, refused=refused) for result in found]
        results += found
    return RuntimeReport(
        rewrite, error, results, missing, None if standard is None else standard[0]
    )


def _standard(
    candidate: Model, batches: Sequence[Mapping[str, Any]], expected: Sequence[Outputs]
) -> tuple[StandardForm, _Stripped] | None:
    """Return the candidate in standard operators, and the report on this form."""
    found = in_standard_operators(candidate, batches)
    if found is None:
        return None
    executor = prepare(found.model.ir, Backend.NUMPY)
    outputs, error = compare_outputs(expected, [executor.run(batch) for batch in batches])
    told = StandardForm(found.respelled, found.left, outputs, error)
    return told, _Stripped(found.model, batches)


def _try(
    runtime: Runtime, stripped: _Stripped, expected: Sequence[Outputs], form: Form
) -> list[RuntimeResult]:
    with RuntimeJobs(stripped.candidate, stripped.batches) as jobs:
        return _Trial(runtime, jobs, expected, stripped, form).results()


class _Stripped:
    """Outputs of the candidate, by definition, without quantizers of its data."""

    def __init__(self, candidate: Model, batches: Sequence[Mapping[str, Any]]) -> None:
        self.candidate = candidate
        self.batches = batches
        self._known: list[tuple[str, list[dict[str, Any]]]] | None = None

    def explain(self, found: Sequence[Outputs], error: float) -> list[Stopped]:
        """Return the cause "quantizers are left out" if the outputs agree with it."""
        for what, outputs in self._outputs():
            left = compare_outputs(outputs, found)[1]
            if left is not None and left <= max(ROUNDING, STOPPED * STOPPED * error):
                return [Stopped(what, None, left)]
        return []

    def _outputs(self) -> list[tuple[str, list[dict[str, Any]]]]:
        if self._known is None:
            self._known = []
            for bits, told in ((16, "16-bit quantizers"), (None, "quantizers")):
                model, number = without_quantizers(self.candidate, bits)
                if not number:
                    continue
                try:
                    executor = prepare(model.ir, Backend.NUMPY)
                    outputs = [executor.run(batch) for batch in self.batches]
                except QGraphError:  # the remaining model may not be runnable
                    continue
                what = f"{number} {told} of data are left out"
                self._known.append((what, outputs))
        return self._known


class _Trial:
    """One runtime, tried at all its levels."""

    def __init__(
        self,
        runtime: Runtime,
        jobs: RuntimeJobs,
        expected: Sequence[Outputs],
        stripped: _Stripped,
        form: Form,
    ) -> None:
        self._form = form
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
                enabling: Sequence[Stopped] = ()
                if any(other.failure is None for other in answers):
                    enabling = self._enabling(level)
                failed = RuntimeResult(name, level.name, level.told, culprits=enabling)
                found.append(replace(failed, failure=answer.failure, form=self._form))
                continue
            outputs, error = compare_outputs(self._expected, answer.batches)
            amount = math.inf if error is None else error
            if level is levels[0]:
                least = amount
            culprits: Sequence[Stopped] = ()
            if amount > ROUNDING:
                culprits = self._stripped.explain(answer.batches, amount)
            if not culprits and amount > ROUNDING and amount > least and level is not levels[0]:
                known = self._same(found, outputs)
                culprits = self._culprits(level, amount, least) if known is None else known
            found.append(
                RuntimeResult(
                    name, level.name, level.told, outputs, error, culprits, form=self._form
                )
            )
        return found

    def _same(
        self, found: Sequence[RuntimeResult], outputs: Sequence[OutputComparison]
    ) -> Sequence[Stopped] | None:
        """Return the causes found at an earlier level with the same outputs."""
        for result in found:
            if list(result.outputs) == list(outputs) and result.culprits:
                return result.culprits
        return None

    def _culprits(self, level: Level, error: float, least: float) -> list[Stopped]:
        """Return the options that remove the difference, chosen greedily."""
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
            # earlier causes are more specific than later ones
            place = next(n for n, each in enumerate(errors) if each <= max(best * _FEW, ROUNDING))
            chosen = usable.pop(place)
            left = errors[place]
            options = merged(options, chosen.options)
            found.append(Stopped(chosen.what, chosen.option, left))
            if left <= max(error * STOPPED, least, ROUNDING):
                break
        return found

    def _enabling(self, level: Level) -> list[Stopped]:
        """Return the first option with which a failing level runs."""
        usable = [each for each in self._runtime.culprits if "level" not in each.options]
        errors = self._errors(level.options, usable)
        works = [n for n, error in enumerate(errors) if error < math.inf]
        return [Stopped(usable[n].what, usable[n].option, errors[n]) for n in works[:1]]

    def _errors(self, options: Options, culprits: Sequence[Culprit]) -> list[float]:
        tried = [merged(options, culprit.options) for culprit in culprits]
        answers = self._jobs.run(self._runtime.module, tried)
        return [self._error(answer) for answer in answers]

    def _error(self, answer: Answer) -> float:
        if answer.failure is not None:
            return math.inf
        error = compare_outputs(self._expected, answer.batches)[1]
        return math.inf if error is None else error


def compare_outputs(
    expected: Sequence[Outputs], found: Sequence[Outputs]
) -> tuple[list[OutputComparison], float | None]:
    """Return the differences of the outputs, for each output and in total."""
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
