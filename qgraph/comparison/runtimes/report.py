"""Report on a rewrite and on runtimes: the size and cause of each change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from qgraph.comparison.metrics import OutputComparison, finite

ROUNDING = 1e-5
"""Relative errors up to this are explained by another order of summation."""

STOPPED = 0.1
"""An option has removed a difference if less than this fraction of it is left."""


class CandidateForm(StrEnum):
    """CandidateForm of the candidate that a runtime was given."""

    WRITTEN = "as written"
    STANDARD = "standard operators"


@dataclass(frozen=True)
class StandardForm:
    """The candidate with its quantizers in standard operators, for runtimes that lack them.

    Each rewritten quantizer is proved equal in every bit, for every input; weights are
    computed ahead.

    Attributes:
        respelled: number of rewritten quantizers.
        left: operators for which no equal form was found; where there are any, it is not run.
        outputs: how far its outputs are from the candidate's on these inputs, by definition.
        error: the same as for a runtime.
    """

    respelled: int
    left: Sequence[str]
    outputs: Sequence[OutputComparison]
    error: float | None

    @property
    def is_runnable(self) -> bool:
        """Whether runtimes can be judged by this form."""
        return not self.left and self.error is not None and self.error <= ROUNDING

    @property
    def sentence(self) -> str:
        """Text on the form and its equality."""
        told = f"standard form: {_counted(self.respelled)} in standard operators"
        if self.left:
            names = ", ".join(dict.fromkeys(self.left))
            return f"{told}, but there is none for {names}, so it was not run"
        told += ", each proved equal in every bit"
        if all(output.equal for output in self.outputs):
            return f"{told}, all outputs equal on these inputs"
        return f"{told}, outputs on these inputs differ by {_share(self.error)}"

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return {
            "respelled": self.respelled,
            "left": list(self.left),
            "exactness": None if self.left else "bits",
            "error": finite(self.error),
            "outputs": [output.to_json() for output in self.outputs],
        }


@dataclass(frozen=True)
class Stopped:
    """An option that removes a difference, or a part of it.

    Attributes:
        what: what the runtime does without it.
        option: as users write it; None if none is known.
        error: what is left with this and the options before it.
    """

    what: str
    option: str | None
    error: float

    @property
    def told(self) -> str:
        """Text on the change and the option that disables it."""
        return f"{self.what} ({self.option or 'no known option disables it'})"


@dataclass(frozen=True)
class RuntimeResult:
    """The candidate in one configuration of a runtime, compared with its definition.

    Attributes:
        runtime: name and version.
        level: plain, basic or default.
        told: the level in words.
        outputs: how far each output is apart.
        error: norm of all differences as a share of the norm of all outputs; None where it does
            not run, or the error is infinite.
        culprits: causes of the difference, the largest first; or the cause of a failure to run.
        failure: why it does not run.
        form: which form of the candidate it is.
        refused: why the candidate did not run as it is written, where that was tried before.
    """

    runtime: str
    level: str
    told: str
    outputs: Sequence[OutputComparison] = ()
    error: float | None = None
    culprits: Sequence[Stopped] = ()
    failure: str | None = None
    form: CandidateForm = CandidateForm.WRITTEN
    refused: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return {
            "runtime": self.runtime,
            "level": self.level,
            "form": str(self.form),
            "refused": self.refused,
            "error": finite(self.error),
            "outputs": [output.to_json() for output in self.outputs],
            "culprits": [dict(vars(culprit)) for culprit in self.culprits],
            "failure": self.failure,
        }


@dataclass(frozen=True)
class RuntimeReport:
    """Origin of a difference: rewrite or runtimes.

    Attributes:
        rewrite: the outputs of the candidate against those of the reference, by definition.
        error: of the rewrite, as for a runtime.
        results: for each runtime that is installed and each of its levels.
        missing: runtimes that are not installed.
        standard: the form that was tried where the candidate did not run as it is written.
    """

    rewrite: Sequence[OutputComparison]
    error: float | None
    results: Sequence[RuntimeResult] = field(default_factory=list)
    missing: Sequence[str] = ()
    standard: StandardForm | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no installed runtime runs the candidate."""
        failed = [result.failure is not None for result in self.results]
        return bool(failed) and all(failed)

    @property
    def sentence(self) -> str:
        """Summary in one sentence."""
        if all(output.equal for output in self.rewrite):
            parts = ["the rewrite is exact"]
        elif self.error is not None and self.error <= ROUNDING:
            parts = [f"the rewrite is equal except for {self.error:.1g} of the outputs' norm"]
        else:
            parts = [f"the rewrite changes the outputs by {_share(self.error)}"]
        runtimes = dict.fromkeys(result.runtime for result in self.results)
        parts += [self._told(runtime) for runtime in runtimes]
        if self.standard is not None:
            parts.append(self.standard.sentence)
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return {
            "sentence": self.sentence,
            "rewrite": {
                "error": finite(self.error),
                "outputs": [output.to_json() for output in self.rewrite],
            },
            "results": [result.to_json() for result in self.results],
            "missing": list(self.missing),
            "standard_form": None if self.standard is None else self.standard.to_json(),
        }

    def _told(self, runtime: str) -> str:
        """Return a text on the last level that makes a difference, or the worst level."""
        results = [result for result in self.results if result.runtime == runtime]
        refused = results[0].refused
        ran = [result for result in results if result.failure is None]
        if not ran:
            reason = results[-1].failure
            also = "" if refused is None else f", and in standard form neither ({reason})"
            return f"{runtime} does not run the candidate ({refused or reason}){also}"
        found = _changes(runtime, ran)
        failed = [result for result in results if result.failure is not None]
        for result in failed[:1]:
            levels = " and ".join(each.told for each in failed)
            found += f"; it does not run {levels} ({result.failure})"
            found += "".join(f", but with {culprit.option}" for culprit in result.culprits)
        return found


def _changes(runtime: str, results: Sequence[RuntimeResult]) -> str:
    """Return a text on the changes of a runtime to the candidate, over the levels that run."""
    what = "it" if results[0].form is CandidateForm.WRITTEN else "its standard form"
    bad = [result for result in results if _is_bad(result)]
    if not bad:
        worst = max(result.error or 0.0 for result in results)
        found = f"{runtime} computes {what} as defined"
        return found if worst == 0 else f"{found} except for {worst:.1g}, by order of summation"
    last = bad[-1]
    if last.level == "default":
        found = f"{runtime}'s defaults change {what} by {_share(last.error)}"
    else:
        found = f"{runtime} {last.told} changes {what} by {_share(last.error)}"
    first = results[0]
    if first is not last and _is_bad(first):
        found += f" (and by {_share(first.error)} {first.told})"
    if not last.culprits:
        return found
    causes = ", and ".join(each.told for each in last.culprits)
    left = last.culprits[-1].error
    if left > max(ROUNDING, STOPPED * (last.error or 0.0)):
        causes += f"; {_share(left)} is left, which no known option removes"
    return f"{found}: {causes}"


def _is_bad(result: RuntimeResult) -> bool:
    if result.failure is not None:
        return False
    return result.error is None or result.error > ROUNDING


def _share(error: float | None) -> str:
    if error is None:
        return "an infinite amount"
    if error == 0:
        return "0"
    return f"{100 * error:.2g} %" if error > ROUNDING else f"{error:.1g}"


def _counted(number: int) -> str:
    return "1 quantizer" if number == 1 else f"{number} quantizers"
