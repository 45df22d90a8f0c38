"""What a comparison of two models found, for programs, CI and people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from qgraph.equivalence.findings import MetricReport, ProbeReport, TensorComparison
from qgraph.equivalence.metrics import OutputComparison
from qgraph.errors import EquivalenceError
from qgraph.junit import Case, junit
from qgraph.markup import markdown, markdown_code
from qgraph.report import SCHEMA
from qgraph.storage.identity import Identity

if TYPE_CHECKING:
    from qgraph.equivalence.runtime_report import RuntimeReport

_HEADER = (
    "| output | values | differ | max abs | mean abs | ulp | steps | SQNR dB | cosine | top-1 | |",
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
)

_RANKED = 10
"""How many tensors people are shown; programs get all."""


class CheckVerdict(StrEnum):
    """Whether two models gave the same outputs, within the tolerance asked for."""

    EQUAL = "equal"
    DIFFERENT = "different"


@dataclass(frozen=True)
class CheckReport:
    """The outcome of running two models on the same inputs.

    Attributes:
        verdict: equal or different.
        outputs: each output in the order of the reference.
        failed: names of the outputs beyond the tolerance, with the reason.
        first_divergence: None if all values are equal.
        notes: remarks, such as outputs that were matched by position.
        batches: how many batches were run.
        tensors: where an output differs, or if asked for, all tensors that both models have, in the
            order of the reference, compared on the first batch with a difference.
        metric: what a metric says, where there are labels.
        probes: how near to its thresholds each quantizer of the reference came.
        runtimes: whether a difference is one of the models or of the runtimes.
        example: the inputs of the first batch with a difference, by the names of the reference.
        files: file and hash of the reference and the candidate; no path for a model in memory.
    """

    verdict: CheckVerdict
    outputs: list[OutputComparison]
    failed: Mapping[str, str] = field(default_factory=dict)
    first_divergence: TensorComparison | None = None
    notes: list[str] = field(default_factory=list)
    batches: int = 1
    tensors: Sequence[TensorComparison] = ()
    metric: MetricReport | None = None
    probes: Sequence[ProbeReport] = ()
    runtimes: RuntimeReport | None = None
    example: Mapping[str, Any] | None = field(default=None, repr=False)
    files: tuple[Identity | None, Identity | None] = (None, None)

    @property
    def ranked(self) -> list[TensorComparison]:
        """The tensors that differ, the largest relative error first."""
        differing = [tensor for tensor in self.tensors if not tensor.compared.equal]
        return sorted(differing, key=lambda tensor: -tensor.error)

    @property
    def shown_batch(self) -> str:
        """The part of a sentence that tells on which batch tensors are compared, if of several."""
        if self.batches == 1:
            return ""
        return " on the first batch" + ("" if self.example is None else " with a difference")

    def to_json(self) -> dict[str, Any]:
        """Return the report as ``qgraph check`` writes it."""
        from qgraph import __version__

        first = self.first_divergence
        reference, candidate = (None if f is None else dict(vars(f)) for f in self.files)
        return {
            "qgraph": __version__,
            "schema": SCHEMA,
            "command": "check",
            "verdict": str(self.verdict),
            "reference": reference,
            "candidate": candidate,
            "batches": self.batches,
            "outputs": [
                output.to_json() | {"failed": self.failed.get(output.name)}
                for output in self.outputs
            ],
            "first_divergence": None if first is None else first.to_json(),
            "tensors": [tensor.measures() for tensor in self.tensors],
            "metric": None if self.metric is None else self.metric.to_json(),
            "probes": [probe.to_json() for probe in self.probes],
            "runtimes": None if self.runtimes is None else self.runtimes.to_json(),
            "notes": list(self.notes),
        }

    def raise_if_different(self) -> None:
        """Raise unless the verdict is equal.

        Raises:
            EquivalenceError: names the worst output and the first divergence, carries the report.
        """
        if self.verdict is CheckVerdict.EQUAL:
            return
        failed = [output for output in self.outputs if output.name in self.failed]
        if failed:
            worst = max(failed, key=lambda output: (output.max_abs, output.mismatches))
            what = (
                f"in {len(failed)} of {len(self.outputs)} outputs, most in "
                f"{worst.name!r}: {self.failed[worst.name]}"
            )
        else:
            what = f"by a metric: {self.metric.failed if self.metric else ''}"
        raise EquivalenceError(
            f"The models differ {what}. {self.origin()}Expected equal values "
            "within the tolerance; change the model there, or allow for it with atol, rtol, "
            "max_steps or min_sqnr.",
            report=self,
        )

    def to_markdown(self) -> str:
        """Return a heading, tables of the outputs and of the worst tensors, and what else is known.

        Made for the summary of a CI job.
        """
        lines = [f"## Check: {self.verdict}", ""]
        if self.runtimes is not None:
            lines += [f"**{markdown(self.runtimes.sentence)}**", ""]
        lines += _HEADER
        lines += [self._row(output) for output in self.outputs]
        if self.first_divergence:
            lines += ["", markdown(self.origin().strip())]
        if self.metric is not None:
            lines += ["", markdown(_metric(self.metric))]
        lines += self._tensor_table()
        if self.probes:
            lines += ["", f"- {self.probe_summary()}"]
        if self.runtimes is not None:
            lines += ["", *self.runtimes.table()]
        lines += [f"- {markdown(note)}" for note in self.notes]
        return "\n".join(lines) + "\n"

    def to_junit(self) -> str:
        """Return a JUnit test suite with a case for each output, and one for the metric."""
        cases = [
            Case(output.name, self.failed.get(output.name), text=self.origin())
            for output in self.outputs
        ]
        if self.metric is not None:
            cases.append(Case(f"metric {self.metric.name}", self.metric.failed, text=self.origin()))
        told = [] if self.runtimes is None else [self.runtimes.sentence]
        told += [self.probe_summary()] if self.probes else []
        candidate = self.files[1]
        return junit("check", candidate.path if candidate else None, cases, "\n".join(told))

    def origin(self) -> str:
        """Return a sentence about the first tensor that differs; nothing if there is none."""
        first = self.first_divergence
        if first is None:
            return ""
        by = "" if first.max_abs is None else f" by up to {first.max_abs:g}"
        return (
            f"The first tensor that differs{self.shown_batch} is {first.reference!r}{by}, which "
            f"node {first.node!r} ({first.op}) produces in the reference{first.counterpart}. "
        )

    def probe_summary(self) -> str:
        """Return a sentence about the thresholds that were aimed at."""
        aimed = [probe for probe in self.probes if probe.reason is None]
        targets, crossed, reached = (
            sum(getattr(probe, field) for probe in aimed)
            for field in ("targets", "crossed", "reached")
        )
        left = len(self.probes) - len(aimed)
        told = (
            f"probes: {targets} thresholds of {len(aimed)} quantizers aimed at, {crossed} crossed "
            f"between neighbouring inputs, {reached} met at both floats beside them"
        )
        return told + (f"; {left} quantizers left out" if left else "")

    def _row(self, output: OutputComparison) -> str:
        steps = "" if output.max_steps is None else f"{output.max_steps:g}"
        sqnr = "" if output.sqnr_db is None else f"{output.sqnr_db:.1f}"
        top1 = "" if output.top1 is None else f"{output.top1:.2%}"
        verdict = markdown(self.failed.get(output.name, "ok"))
        return (
            f"| {markdown_code(output.name)} | {output.elements} | {output.mismatches} "
            f"| {output.max_abs:g} | {output.mean_abs:g} | {output.max_ulp} | {steps} | {sqnr} "
            f"| {output.cosine:.9g} | {top1} | {verdict} |"
        )

    def _tensor_table(self) -> list[str]:
        ranked = self.ranked
        if not ranked:
            return []
        count = f"{len(ranked)} of {len(self.tensors)} tensors that both models have differ"
        lines = [
            "",
            f"{count}{self.shown_batch}; the largest relative errors:",
            "",
            "| tensor | made by | differ | max abs | relative error |",
            "|---|---|---:|---:|---:|",
        ]
        for tensor in ranked[:_RANKED]:
            compared = tensor.compared
            lines.append(
                f"| {markdown_code(tensor.reference)} | {markdown(tensor.op)} "
                f"| {compared.mismatches} of {compared.elements} | {compared.max_abs:g} "
                f"| {tensor.error:.3g} |"
            )
        return lines


def _metric(metric: MetricReport) -> str:
    told = (
        f"{metric.name} on {metric.samples} samples: {metric.reference:.6g} in the reference, "
        f"{metric.candidate:.6g} in the candidate"
    )
    return f"{told} ({metric.failed})" if metric.failed else told
