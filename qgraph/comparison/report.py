"""Results of a comparison of two models; :mod:`qgraph.reporting` renders them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from qgraph.certificate import Identity
from qgraph.comparison.metrics import OutputComparison, finite, finite_fields
from qgraph.comparison.tolerance import BoundsReport
from qgraph.errors import EquivalenceError
from qgraph.records import field, guarded
from qgraph.reporting.bounds_view import bounds_sentence
from qgraph.reporting.check_view import origin
from qgraph.reporting.findings import junit_report
from qgraph.reporting.pages import markdown_report
from qgraph.reporting.runtimes_view import runtime_sentence
from qgraph.text import Displayed, as_json
from qgraph.version import head


@guarded(frozen=True)
class TensorComparison:
    """Comparison of a tensor of both models on one batch, with its node in the reference."""

    reference: str
    candidate: str
    node: str
    op: str
    compared: OutputComparison

    @property
    def max_abs(self) -> float | None:
        """Largest absolute difference; None if shapes differ or it is not finite."""
        return finite(self.compared.max_abs)

    @property
    def error(self) -> float:
        """Norm of the difference divided by that of the reference; tensors are ranked by it."""
        relative = self.compared.relative
        return float("inf") if relative is None else relative

    def to_json(self) -> dict[str, Any]:
        """Return the names of the tensor and its largest difference."""
        return finite_fields(self, "reference", "candidate", "node", "op", "max_abs")

    def measures(self) -> dict[str, Any]:
        """Return all measures of the tensor."""
        names = ("elements", "mismatches", "mean_abs", "max_ulp", "relative", "sqnr_db", "cosine")
        return self.to_json() | finite_fields(self.compared, *names)


@guarded(frozen=True)
class MetricReport:
    """Scores of both models by a metric and labels, and why the candidate fails the limit."""

    name: str
    samples: int
    reference: float
    candidate: float
    failed: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields; a score that is not finite becomes null."""
        return finite_fields(self)


@guarded(frozen=True)
class ProbeReport:
    """Distances of the inputs from the thresholds of one quantizer.

    Attributes:
        node: the quantizer, in the reference.
        tensor: what it quantizes.
        targets: number of thresholds to probe.
        crossed: number of thresholds between two neighbouring inputs among the probes.
        reached: number of thresholds for which both neighbouring floats occurred at the quantizer.
        largest_gap: the largest distance, in units of the quantizer's step, that a crossed
            threshold has to the nearer of its two probes; None if none was crossed or the step is
            not known.
        reason: why it was not probed.
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
        return finite_fields(self)


ROUNDING = 1e-5
"""Relative errors up to this are explained by another order of summation."""

STOPPED = 0.1
"""An option removes a difference if less than this fraction of it remains."""


class CandidateForm(StrEnum):
    """Form in which a runtime ran the candidate."""

    WRITTEN = "as written"
    STANDARD = "standard operators"


@guarded(frozen=True)
class StandardForm:
    """The candidate with its quantizers in standard operators, for runtimes that lack them.

    Each rewritten quantizer is proved equal in every bit, for every input; weights are
    computed ahead.

    Attributes:
        respelled: number of rewritten quantizers.
        left: operators without an equal form; if there are any, the form is not run.
        outputs: differences of its outputs from the candidate's on these inputs, by definition.
        error: the same as for a runtime.
    """

    respelled: int
    left: Sequence[str]
    outputs: Sequence[OutputComparison]
    error: float | None

    @property
    def is_runnable(self) -> bool:
        """Whether runtimes can run this form."""
        return not self.left and self.error is not None and self.error <= ROUNDING

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return finite_fields(self) | {"exactness": None if self.left else "bits"}


@guarded(frozen=True)
class Stopped:
    """An option that removes a difference or a part of it, and the remaining error."""

    what: str
    option: str | None
    error: float


@guarded(frozen=True)
class RuntimeResult:
    """The candidate in one configuration of a runtime, compared with its definition.

    Attributes:
        runtime: name and version.
        level: plain, basic or default.
        setting: the level in words.
        outputs: difference of each output.
        error: norm of all differences as a share of the norm of all outputs; None if it does not
            run, or the error is infinite.
        suspects: causes of the difference, the largest first; or the cause of a failure to run.
        failure: why it does not run.
        form: form of the candidate.
        refused: why the candidate did not run as written, if that was tried.
    """

    runtime: str
    level: str
    setting: str
    outputs: Sequence[OutputComparison] = ()
    error: float | None = None
    suspects: Sequence[Stopped] = ()
    failure: str | None = None
    form: CandidateForm = CandidateForm.WRITTEN
    refused: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        names = ("runtime", "level", "setting", "form", "refused", "error", "outputs")
        culprits = [dict(vars(suspect)) for suspect in self.suspects]
        return finite_fields(self, *names) | {"culprits": culprits, "failure": self.failure}


@guarded(frozen=True)
class RuntimeReport:
    """Origin of a difference: the rewrite, or the installed runtimes at each of their levels."""

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
        return runtime_sentence(self._facts(), rounding=ROUNDING, stopped=STOPPED)

    def to_json(self) -> dict[str, Any]:
        """Return the fields, and the sentence."""
        return {"sentence": self.sentence, **self._facts()}

    def _facts(self) -> dict[str, Any]:
        return {
            "rewrite": {"error": finite(self.error), "outputs": as_json(self.rewrite)},
            **finite_fields(self, "results", "missing"),
            "standard_form": as_json(self.standard),
        }


class CheckVerdict(StrEnum):
    """Whether the outputs of two models are equal within the tolerance."""

    EQUAL = "equal"
    DIFFERENT = "different"


@guarded(frozen=True, repr=False)
class CheckReport(Displayed):
    """Result of running two models on the same inputs.

    Attributes:
        verdict: equal or different.
        outputs: each output in the order of the reference.
        failed: names of the outputs beyond the tolerance, with the reason.
        first_divergence: None if all values are equal.
        notes: remarks, such as outputs that were matched by position.
        batches: number of batches that were run.
        tensors: if an output differs, or on request, all tensors that both models have, in the
            order of the reference, compared on the first batch with a difference.
        metric: scores, if there are labels.
        probes: distances from the thresholds of each quantizer of the reference.
        runtimes: changes by the rewrite and by runtimes.
        example: the inputs of the first batch with a difference, or with a violated bound, by the
            names of the reference.
        bounds: comparison of the data with bounds, if they were computed.
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
    bounds: BoundsReport | None = None
    files: tuple[Identity | None, Identity | None] = (None, None)

    @property
    def summary(self) -> str:
        """The verdict, and the number of differing values."""
        differ = sum(output.mismatches for output in self.outputs)
        whole = sum(output.elements for output in self.outputs)
        return f"{self.verdict}, {differ} of {whole} values differ"

    def to_json(self) -> dict[str, Any]:
        """Return the report as ``qgraph check`` writes it."""
        reference, candidate = (None if f is None else dict(vars(f)) for f in self.files)
        return {
            **head("check"),
            "verdict": str(self.verdict),
            "reference": reference,
            "candidate": candidate,
            "batches": self.batches,
            "outputs": [
                output.to_json() | {"failed": self.failed.get(output.name)}
                for output in self.outputs
            ],
            "first_divergence": as_json(self.first_divergence),
            "tensors": [tensor.measures() for tensor in self.tensors],
            **finite_fields(self, "metric", "probes", "runtimes", "bounds", "notes"),
        }

    def raise_if_different(self) -> None:
        """Raise EquivalenceError, with the report and the worst output, unless equal."""
        if self.verdict is CheckVerdict.EQUAL:
            return
        failed = [output for output in self.outputs if output.name in self.failed]
        if failed:
            worst = max(failed, key=lambda output: (output.max_abs, output.mismatches))
            what = (
                f"in {len(failed)} of {len(self.outputs)} outputs, most in "
                f"{worst.name!r}: {self.failed[worst.name]}"
            )
        elif self.metric is not None and self.metric.failed:
            what = f"by a metric: {self.metric.failed}"
        else:
            what = f"beyond their bounds. {bounds_sentence(self.to_json()['bounds'])}"
        raise EquivalenceError(
            f"The models differ {what}. {origin(self.to_json())} Expected equal values "
            "within the tolerance; change the model there, or allow for it with atol, rtol, "
            "max_steps or min_sqnr.",
            report=self,
        )

    def to_markdown(self) -> str:
        """Return the report in GitHub's Markdown, for the summary of a CI job."""
        return markdown_report(self.to_json())

    def to_junit(self) -> str:
        """Return a JUnit test suite with a case for each output, and one for the metric."""
        return junit_report(self.to_json())
