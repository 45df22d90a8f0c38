"""Run two models on the same inputs and compare all outputs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.bound import Bounding
from qgraph.comparison.bound_runs import BoundRuns
from qgraph.comparison.divergence import ModelRun, compare_tensors, correspondence, first_divergence
from qgraph.comparison.metrics import Comparing
from qgraph.comparison.probes import Probes, make_probes
from qgraph.comparison.report import (
    CheckReport,
    CheckVerdict,
    MetricReport,
    RuntimeReport,
    TensorComparison,
)
from qgraph.comparison.runtimes.verdict import judge_runtimes
from qgraph.comparison.tolerance import (
    BoundsReport,
    Metric,
    Scoring,
    Tolerance,
    Tolerances,
    metric_of,
    tolerances_of,
)
from qgraph.effort import step, watch
from qgraph.errors import ExecutionError, OptionError, UndecidedError, require
from qgraph.execution.executor import Backend
from qgraph.execution.prepare import Batches, RandomBatches, prepare
from qgraph.graph import interface
from qgraph.graph.edit import HALF_TYPES
from qgraph.model import Model, Source, load
from qgraph.numerics import Array
from qgraph.ops.operator import output_step
from qgraph.records import guarded
from qgraph.storage.archive import WANTED, Arrays, arrays_by_name
from qgraph.text import counted
from qgraph.version import grouped

Feeds = Mapping[str, npt.ArrayLike]

_BATCHES_OF_RUNTIMES = 4
"""Number of batches for each configuration of a runtime; each batch is run several times."""


_ABOUT_HALVES = (
    "these models compute in 16-bit floats, which ONNX Runtime may round less often between "
    "neighbouring operators, so that equal models differ: --backend numpy rounds after each "
    "operator, and --runtimes separates differences of the models from those of runtimes"
)


@guarded(frozen=True, eq=False)
class Inputs:
    """The inputs of a check: given arrays, then random batches, then probes.

    Attributes:
        feeds: arrays by the names of the reference; arrays with more rows than the batch size of a
            model are run batch by batch. None for random inputs.
        random: number of random batches, see :func:`qgraph.execution.inputs.make_inputs`; None for
            one batch without ``feeds``, and no batch with ``feeds``.
        seed: of the random batches and of the probes.
        shapes: shapes of the random inputs, by name; needed if other dimensions than the batch are
            open.
        batch: rows of ``feeds`` to run at once, if the batch size of the models is open.
        probes: number of thresholds of each quantizer of the reference to probe, see
            :func:`qgraph.comparison.probes.make_probes`.
    """

    feeds: Feeds | None = None
    random: int | None = None
    seed: int = 0
    shapes: Mapping[str, Sequence[int]] | None = None
    batch: int | None = None
    probes: int = 0

    def __post_init__(self) -> None:
        """Check the types."""
        require(self.feeds, Mapping | None, "inputs", WANTED)
        require(self.shapes, Mapping | None, "shapes", "sizes by the names of inputs")
        for name in ("seed", "probes"):
            require(getattr(self, name), Integral, name, "a whole number")
        for name in ("random", "batch"):
            require(getattr(self, name), Integral | None, name, "a whole number, or None")
        if self.seed < 0:
            raise OptionError(f"seed is {self.seed}, expected a number that is not negative.")

    @classmethod
    def of(cls, inputs: Inputs | Arrays | None) -> Inputs:
        """Convert arrays or paths of files, by name, to Inputs; Inputs are returned unchanged."""
        if isinstance(inputs, Inputs):
            return inputs
        return cls(None if inputs is None else arrays_by_name(inputs))


@grouped(inputs=Inputs, tolerances=Tolerances, scoring=Scoring)
def check(
    reference: Source,
    candidate: Source,
    inputs: Inputs | Arrays | None = None,
    *,
    tolerances: Tolerances | None = None,
    scoring: Scoring | None = None,
    backend: str = Backend.AUTO,
    runtimes: bool = False,
    tensors: bool = False,
) -> CheckReport:
    """Run both models in one backend on the same inputs and compare every output.

    Without a tolerance, all values must be equal (-0 equals +0, NaN equals NaN); otherwise each
    given tolerance must be met. Inputs and outputs are matched by name, or by position if names
    differ. If an output differs, the tensors of both models are compared, too, which takes two more
    runs.

    Args:
        reference: a path or a model.
        candidate: a path or a model.
        inputs: arrays by the names of the reference, or paths of files with them (.npz, or .npy for
            one array), or :class:`Inputs`; None for one random batch.
        tolerances: allowed differences of outputs; None for none.
        scoring: labels and metric to score the outputs.
        backend: "auto", "numpy" or "ort".
        runtimes: also run the models by their definitions and in the installed runtimes, and report
            the changes of each.
        tensors: compare the tensors of both models on the first batch even if no output differs,
            since later quantizers may hide a difference.

    Raises:
        ModelError: a model is not usable, or their numbers of inputs or outputs differ.
        OptionError: an option is wrong.
        UnsupportedError: an operator has no kernel in the backend, or the backend is missing.
        ExecutionError: a model cannot be run on the inputs, or gives no values to compare.
    """
    inputs = Inputs.of(inputs)
    require(scoring, Scoring | None, "scoring", "qgraph.Scoring, such as Scoring(labels)")
    limits = "qgraph.Tolerances, such as Tolerances(atol=1e-3)"
    require(tolerances, Tolerances | None, "tolerances", limits)
    scoring, tolerances = scoring or Scoring(), tolerances or Tolerances()
    judging = metric_of(scoring.metric)
    pair = _Compared(load(reference), load(candidate))
    identities = pair.first.identity(), pair.second.identity()
    allowed, within = tolerances_of(pair.names, tolerances), tolerances.within
    _check_options(inputs, scoring)
    pair.prepare(backend)
    arrays, drawn, aimed = _batches(pair, inputs)
    bounds = None
    if within is not None:
        request = Bounding.of(within, pair.first.inputs, pair.first.outputs)
        bounds = BoundRuns((pair.first.ir, pair.second.ir), request, backend)
    labelled = 0 if scoring.labels is None else len(arrays)
    comparison = _OutputPairs(pair, allowed, labelled, bounds)
    cut = comparison.run(
        itertools.chain(arrays, drawn, aimed.batches),
        len(arrays) + len(drawn) + len(aimed.batches),
    )
    notes = [*pair.notes]
    if cut is not None:
        notes.append(f"{cut}, the time limit; the others were not")
    comparison.expect_values()
    judged = None
    if scoring.labels is not None:
        judged = comparison.measure(np.asarray(scoring.labels), judging, scoring.max_drop)
    # A segment that is not compared with its bound may hold any difference.
    left = 0 if bounds is None else bounds.uncompared
    lenient = scoring.max_drop is not None or (bounds is not None and not left)
    lenient &= all(limit.is_exact for limit in allowed.values())
    failed = comparison.failed(lenient=lenient)
    if failed and left:
        notes.append(
            f"{counted(left, 'segment')} cannot be compared with bounds, so outputs have to be "
            "equal, or within a tolerance that is given, such as --max-steps 1"
        )
    if cut is not None and not failed and comparison.violating is None:
        raise UndecidedError(f"{cut}, and no output differs in them. Allow more time.")
    shown = comparison.wrong if tensors or bounds is None else None
    shown = comparison.first if shown is None and tensors else shown
    compared = [] if shown is None else pair.tensors(shown)
    judgement = None
    if runtimes:
        some = list(itertools.islice(itertools.chain(arrays, drawn), _BATCHES_OF_RUNTIMES))
        judgement = pair.in_runtimes(some)
        if judgement.is_empty:
            notes.append(
                "no runtime can run the candidate, so no runtime is judged; convert it to 'qdq' "
                "or 'onnx' and check the result"
            )
    outputs = [each.result() for each in comparison.outputs.values()]
    differing = {output.name for output in outputs if not output.equal}
    bounded = None
    if bounds is not None:
        bounded = BoundsReport(request, bounds.conditions, bounds.results())
    bad = bool(failed) or (judged is not None and judged.failed is not None)
    bad |= bounded is not None and bounded.is_bad
    if bad and not runtimes and backend != Backend.NUMPY and _computes_in_halves(pair.first):
        notes.append(_ABOUT_HALVES)
    return CheckReport(
        CheckVerdict.DIFFERENT if bad else CheckVerdict.EQUAL,
        outputs,
        failed,
        first_divergence(pair.first.ir.graph, compared, differing),
        notes,
        comparison.batches,
        compared,
        judged,
        aimed.reports,
        judgement,
        comparison.wrong if comparison.violating is None else comparison.violating,
        bounded,
        files=identities,
    )


class _Compared:
    """Both models, and what runs them.

    Attributes:
        first, second: the reference and the candidate.
        notes: about inputs and outputs that are matched.
        names: outputs of the candidate, by those of the reference.
    """

    def __init__(self, first: Model, second: Model) -> None:
        self.first, self.second = first, second
        paired = interface.fed_alike(first.ir.graph, second.ir.graph)
        self._feeds, self.names = interface.names(paired.inputs), interface.names(paired.outputs)
        self.notes = paired.notes

    def prepare(self, backend: str) -> None:
        models = self.first, self.second
        self.ours, self._theirs = (prepare(m.ir, backend, shares_memory=True) for m in models)

    def _renamed(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {self._feeds.get(name, name): x for name, x in batch.items()}

    def run(self, batch: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.ours.run(batch), self._theirs.run(self._renamed(batch))

    def tensors(self, batch: dict[str, Any]) -> list[TensorComparison]:
        ours = ModelRun(self.first.ir.graph, self.ours, batch)
        theirs = ModelRun(self.second.ir.graph, self._theirs, self._renamed(batch))
        return compare_tensors(ours, theirs, correspondence(self.first, self.second, self.names))

    def in_runtimes(self, batches: Sequence[Mapping[str, Any]]) -> RuntimeReport:
        """Return what the models compute by their definitions and in the installed runtimes."""
        renamed = list(map(self._renamed, batches))
        executors = [prepare(m.ir, Backend.NUMPY) for m in (self.first, self.second)]
        ours = [executors[0].run(batch) for batch in batches]
        theirs = [executors[1].run(batch) for batch in renamed]
        return judge_runtimes(self.second, renamed, ours, theirs, self.names)


def _batches(
    pair: _Compared, inputs: Inputs
) -> tuple[Sequence[dict[str, Any]] | Batches, RandomBatches, Probes]:
    """Return the batches of given arrays, random batches, and probes of the reference."""
    data, seed, shapes, first = inputs.feeds, inputs.seed, inputs.shapes, pair.first
    arrays = () if data is None else Batches(first.ir.graph, data, inputs.batch)
    drawn = RandomBatches(first.inputs, inputs.random or int(data is None), seed, shapes)
    if not inputs.probes:
        return arrays, drawn, Probes()
    starts = next(iter(arrays), None)
    aimed = make_probes(first, pair.ours, inputs.probes, seed=seed, shapes=shapes, starts=starts)
    return arrays, drawn, aimed


def _computes_in_halves(model: Model) -> bool:
    """Return whether a model has constants or results of 16-bit floats."""
    values = [value for node in model.nodes() for value in node.outputs]
    return any(
        value.dtype in HALF_TYPES for value in [*values, *model.ir.graph.initializers.values()]
    )


def _check_options(inputs: Inputs, scoring: Scoring) -> None:
    random, batch, probes = inputs.random, inputs.batch, inputs.probes
    labels, max_drop = scoring.labels, scoring.max_drop
    if random is not None and random < 1:
        raise OptionError(f"{random} random batches are asked for, expected at least 1.")
    if batch is not None and batch < 1:
        raise OptionError(f"Batches of {batch} rows are asked for, expected at least 1.")
    if probes < 0:
        raise OptionError(f"{probes} probes are asked for, expected a number that is not negative.")
    if labels is not None and inputs.feeds is None:
        raise OptionError("Labels are given without inputs, expected both. Add the inputs.")
    if max_drop is not None and (labels is None or not max_drop >= 0):
        raise OptionError(
            f"max_drop is {max_drop}, expected a number that is not negative, with labels to "
            "score the models by. Give both."
        )


class _OutputPairs:
    """The outputs of both models, batch by batch."""

    def __init__(
        self,
        pair: _Compared,
        allowed: Mapping[str, Tolerance],
        labelled: int,
        bounds: BoundRuns | None,
    ) -> None:
        self._pair, self._allowed, self._bounds = pair, allowed, bounds
        self._values = {str(value.name): value for value in pair.first.outputs}
        self._within = dict.fromkeys(self._values, True)
        self._labelled = labelled
        self._kept: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
        self.outputs = {name: Comparing(name) for name in self._values}
        self.first: dict[str, Any] | None = None
        self.wrong: dict[str, Any] | None = None
        self.violating: dict[str, Any] | None = None
        self.batches = 0

    def run(self, batches: Iterable[dict[str, Any]], total: int) -> str | None:
        """Compare all batches; return how many were compared if the time limit was reached."""
        for number, feeds in enumerate(batches):
            if number and watch().is_over:
                return f"{number} of {total} batches were compared in {watch().seconds:g} seconds"
            step("comparing", number, total)
            self._add(number, feeds)
        return None

    def _add(self, number: int, feeds: dict[str, Any]) -> None:
        self.batches = number + 1
        self.first = feeds if self.first is None else self.first
        ours, theirs = self._pair.run(feeds)
        theirs = {name: theirs[other] for name, other in self._pair.names.items()}
        for name, value in self._values.items():
            x, y = ours[name], theirs[name]
            equal = self.outputs[name].add(x, y, output_step(value, np.shape(x)))
            if not equal:
                self._within[name] &= self._allowed[name].allows(x, y)
                self.wrong = feeds if self.wrong is None else self.wrong
        if number < self._labelled:
            self._kept[0].append(ours)
            self._kept[1].append(theirs)
        if self._bounds is not None and not self._bounds.add(feeds) and self.violating is None:
            self.violating = feeds

    def expect_values(self) -> None:
        """Raise if no values were compared, because the models would count as equal."""
        results = [comparing.result() for comparing in self.outputs.values()]
        if any(result.elements or result.note is not None for result in results):
            return
        fed = (self.first or {}).items()
        forms = ", ".join(f"{name!r} {list(np.shape(x))}" for name, x in fed) or "no inputs"
        names = ", ".join(map(repr, self.outputs)) or "none"
        raise ExecutionError(
            f"No values were compared: on {forms} the outputs ({names}) of the reference have no "
            "elements, expected some. Give inputs with at least one row."
        )

    def failed(self, *, lenient: bool) -> dict[str, str]:
        """Return the outputs that exceed their tolerance, or if ``lenient`` cannot be compared."""
        reasons = {}
        for name, comparing in self.outputs.items():
            metrics, allowed = comparing.result(), self._within[name]
            judged = None if lenient else self._allowed[name].judge(metrics, allowed=allowed)
            reasons[name] = metrics.note or judged
        return {name: reason for name, reason in reasons.items() if reason is not None}

    def measure(self, labels: Array, metric: Metric, max_drop: float | None) -> MetricReport:
        """Return the scores of both models by a metric."""
        scores = []
        for batches in self._kept:
            joined = {
                name: np.concatenate([np.atleast_1d(batch[name]) for batch in batches])
                for name in self._values
                if isinstance(batches[0][name], np.ndarray)
            }
            scores.append(metric.of(joined, labels))
        drop, failed = scores[0] - scores[1], None
        if max_drop is not None and not drop <= max_drop:
            failed = f"{metric.name} is lower by {drop:g}, at most {max_drop:g} is allowed"
        return MetricReport(metric.name, len(labels), scores[0], scores[1], failed)
