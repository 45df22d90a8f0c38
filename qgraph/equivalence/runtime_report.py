"""What is told of a rewrite and of runtimes: who changes how much, and by what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from qgraph.equivalence.metrics import OutputComparison, finite

ROUNDING = 1e-5
"""Relative errors up to it are what another order of a sum makes."""


@dataclass(frozen=True)
class Stopped:
    """An option that takes away a difference, or a share of it.

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
        """What it is and what stops it, in words."""
        return f"{self.what} ({self.option or 'no option is known to stop it'})"


@dataclass(frozen=True)
class RuntimeResult:
    """The candidate in one configuration of a runtime, against its own definition.

    Attributes:
        runtime: name and version.
        level: plain, basic or default.
        told: the level in words.
        outputs: how far each output is apart.
        error: norm of all differences as a share of the norm of all outputs; None where it does
            not run, or the error is infinite.
        culprits: what makes the difference, the largest share first.
        failure: why it does not run.
    """

    runtime: str
    level: str
    told: str
    outputs: Sequence[OutputComparison] = ()
    error: float | None = None
    culprits: Sequence[Stopped] = ()
    failure: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return {
            "runtime": self.runtime,
            "level": self.level,
            "error": finite(self.error),
            "outputs": [output.to_json() for output in self.outputs],
            "culprits": [dict(vars(culprit)) for culprit in self.culprits],
            "failure": self.failure,
        }


@dataclass(frozen=True)
class RuntimeReport:
    """Where a difference comes from.

    Attributes:
        rewrite: the outputs of the candidate against those of the reference, by definition.
        error: of the rewrite, as for a runtime.
        results: for each runtime that is installed and each of its levels.
        missing: runtimes that are not installed.
    """

    rewrite: Sequence[OutputComparison]
    error: float | None
    results: Sequence[RuntimeResult] = field(default_factory=list)
    missing: Sequence[str] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there are runtimes, and none runs the candidate."""
        failed = [result.failure is not None for result in self.results]
        return bool(failed) and all(failed)

    @property
    def sentence(self) -> str:
        """What there is to know, in one sentence."""
        if all(output.equal for output in self.rewrite):
            parts = ["the rewrite is exact"]
        elif self.error is not None and self.error <= ROUNDING:
            parts = [f"the rewrite is equal but for {self.error:.1g} of the outputs' norm"]
        else:
            parts = [f"the rewrite changes the outputs by {_share(self.error)}"]
        runtimes = dict.fromkeys(result.runtime for result in self.results)
        parts += [self._told(runtime) for runtime in runtimes]
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
        }

    def table(self) -> list[str]:
        """Return a table in Markdown."""
        lines = ["| computed by | error | because of | stopped by |", "|---|---:|---|---|"]
        lines.append(f"| definition: candidate against reference | {_share(self.error)} | | |")
        for result in self.results:
            what = "; ".join(culprit.what for culprit in result.culprits)
            stops = [culprit.option for culprit in result.culprits if culprit.option]
            option = "; ".join(f"`{each}`" for each in stops)
            error = _share(result.error) if result.failure is None else "does not run"
            shown = what or (result.failure or "").replace("|", "\\|")
            lines.append(
                f"| {result.runtime} {result.told}: candidate against its definition "
                f"| {error} | {shown} | {option} |"
            )
        return lines

    def _told(self, runtime: str) -> str:
        """Tell of the first level of a runtime that makes a difference, or the worst of all."""
        results = [result for result in self.results if result.runtime == runtime]
        if all(result.failure is not None for result in results):
            return f"{runtime} does not run the candidate ({results[-1].failure})"
        bad = [result for result in results if _is_bad(result)]
        if not bad:
            worst = max(result.error or 0.0 for result in results)
            if worst == 0:
                return f"{runtime} computes it as defined"
            return f"{runtime} computes it as defined but for {worst:.1g}, as other orders of sums"
        last = bad[-1]
        if last.level != "default" or last.failure is not None:
            found = f"{runtime} {last.told} changes it by {_share(last.error)}"
        else:
            found = f"{runtime}'s defaults change it by {_share(last.error)}"
        first = results[0]
        if first is not last and _is_bad(first):
            found += f", {_share(first.error)} of it {first.told}"
        if not last.culprits:
            return found
        causes = ", and ".join(each.told for each in last.culprits)
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
