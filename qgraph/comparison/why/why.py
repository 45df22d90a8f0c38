"""Find the quantizers that cost accuracy: replace one at a time, and measure each layer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.bound import Bounding
from qgraph.comparison.bound_runs import BoundRuns
from qgraph.comparison.check import Inputs
from qgraph.comparison.divergence import excerpt, frontier
from qgraph.comparison.metrics import Comparing
from qgraph.comparison.tolerance import TOP1, Score, metric_of
from qgraph.comparison.why.pairing import (
    PairedQuantizer,
    Place,
    Skeleton,
    paired_quantizers,
    prepared,
    with_switches,
)
from qgraph.comparison.why.report import CodeTally, QuantizerCost, Scores, WhyReport
from qgraph.effort import is_over, require_time
from qgraph.errors import OptionError, UnsupportedError, member, shown
from qgraph.execution.executor import Backend, Executor
from qgraph.execution.prepare import Batches, RandomBatches, prepare
from qgraph.graph import interface
from qgraph.graph.opset.versions import require
from qgraph.graph.scopes import node_name
from qgraph.model import Model, Source, load
from qgraph.reports import operator_name
from qgraph.storage.archive import Arrays

_AT_ONCE, _BYTES_AT_ONCE = 32, 1 << 28
"""How many quantizers have their values held at a time, and how large these may be together."""


def why(
    reference: Source,
    candidate: Source,
    inputs: Inputs | Arrays | None = None,
    *,
    labels: npt.ArrayLike | None = None,
    metric: str | Score = TOP1,
    backend: str = Backend.AUTO,
    within: Bounding | str | Sequence[str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> WhyReport:
    """Return the accuracy that each quantizer of the candidate costs, compared with a reference.

    The reference may be a float network, or a model with other quantizers. Each single quantizer of
    the candidate is replaced by the part of the reference in its place, and the reverse. Its layer
    is also run on the reference's values.

    Args:
        reference: a path or a model.
        candidate: a path or a model.
        inputs: arrays by the names of the reference, or paths of files with them (.npz, or .npy for
            one array), or :class:`Inputs`; None for one random batch.
        labels: the labels of the rows of the inputs. Without them, a row counts as correct if its
            largest output has the same index as in the reference.
        metric: "top1", "module:function", or a function ``score(outputs, labels)``.
        backend: "auto", "numpy" or "ort".
        within: a limit such as "1step": bounds of the segments are computed and shown next to the
            differences on data.
        progress: called with the number of finished runs, and of all runs.

    Raises:
        ModelError: a model is not usable, or their numbers of inputs or outputs differ.
        OptionError: an option is wrong.
        UnsupportedError: the models cannot be raised to a common opset, or be run.
        ExecutionError: a model cannot be run on the inputs.
        UndecidedError: the time limit was reached in the first batch. If it is reached later, the
            report is on the batches before.
    """
    if not callable(progress):
        raise OptionError(f"progress is {shown(progress)}, expected a function of two numbers.")
    inputs = Inputs.of(inputs)
    if labels is not None and inputs.feeds is None:
        raise OptionError("Labels are given without inputs, expected both. Add the inputs.")
    chosen, judge = member(Backend, backend, "backend"), metric_of(metric)
    sources = load(reference), load(candidate)
    identities = sources[0].identity(), sources[1].identity()
    one, other = (prepared(source.ir) for source in sources)
    one, other = _of_one_opset(one, other)
    data = inputs.feeds
    arrays = () if data is None else Batches(one.graph, data, inputs.batch)
    random = inputs.random or int(data is None)
    drawn = RandomBatches(Model(one).inputs, random, inputs.seed, inputs.shapes)
    count = len(arrays) + len(drawn)
    study = _Study(one, other, chosen, next(iter(arrays or drawn)))
    right = None if labels is None else np.asarray(labels)
    names = [str(value.name) for value in study.models[0].graph.outputs]
    judged = None if right is None else judge
    scoring = Scores(study.boards, names, len(study.switched), judged, right, len(arrays))
    bounds = None
    if within is not None:
        request = Bounding.of(within, sources[0].inputs, sources[0].outputs)
        bounds = BoundRuns((sources[0].ir, sources[1].ir), request, chosen)
    runs = 2 * len(study.switched) + 2
    done, total = 0, count * runs + study.measurements(count)
    for number, feeds in enumerate(itertools.chain(arrays, drawn)):
        if number and is_over():
            study.notes.append(f"the time limit was reached after {number} of {count} batches")
            break
        for _ in scoring.run(feeds, study.renamed(feeds)):
            done += 1
            progress(done, total)
            if not number:
                require_time(f"{done} of {runs} runs of the first batch were done")
        for measured in study.measure(feeds):
            done += measured
            progress(done, total)
        if bounds is not None:
            bounds.add(feeds)
    by_quantizer = {quantizer: study.cost(quantizer) for quantizer in study.quantizers}
    costs = list(by_quantizer.values())
    scoring.enter([by_quantizer[quantizer] for quantizer in study.switched])
    if bounds is not None:
        _enter_bounds(bounds, costs)
    costs.sort(key=lambda cost: cost.order)
    return WhyReport(
        scoring.metric,
        *scoring.ends(),
        scoring.sqnr(),
        costs,
        scoring.batches,
        count,
        study.notes,
        identities,
    )


def _of_one_opset(one: ir.Model, other: ir.Model) -> tuple[ir.Model, ir.Model]:
    """Return both models in the higher of their opsets."""
    opset = max(model.opset_imports.get("", 1) for model in (one, other))
    raised = []
    for model in (one, other):
        copy = model.clone()
        try:
            require(copy, opset)
        except UnsupportedError as error:
            raise UnsupportedError(
                f"The models have different opsets, and one cannot be raised to {opset}: {error}"
            ) from error
        raised.append(copy)
    return raised[0], raised[1]


class _Study:
    """The two models, their paired quantizers, and the measurements of each quantizer."""

    def __init__(
        self,
        reference: ir.Model,
        candidate: ir.Model,
        backend: str,
        feeds: Mapping[str, Any],
    ) -> None:
        self.models = reference, candidate
        paired = interface.fed_alike(reference.graph, candidate.graph)
        self.names = interface.names(paired.inputs)
        skeletons = Skeleton.of(reference), Skeleton.of(candidate)
        self.quantizers = paired_quantizers(*skeletons, paired.outputs)
        self.notes = [
            f"{node_name(refusal.root)} is no quantizer that can be read: {refusal.reason}"
            for refusal in skeletons[1].refused
        ]
        if not self.quantizers:
            raise UnsupportedError(
                "The candidate has no quantizer of constant scale in its main graph, expected one "
                "or more. 'qgraph info' lists what it has; write operators on codes, and weights "
                "in pieces, as quantizers first, as with 'qgraph convert --to qdq'."
            )
        self.reasons = {q: q.reason for q in self.quantizers}
        for quantizer in self.quantizers:
            if quantizer.reason is None and not _are_alike(quantizer):
                self.reasons[quantizer] = "its values have another type in the reference"
        self.switched = [q for q in self.quantizers if self.reasons[q] is None]
        self.executors = [_executor(model, backend) for model in self.models]
        self._bytes: dict[PairedQuantizer, int] = {}
        self._leave_other_shapes(feeds)
        places = [(_known(q.candidate), _known(q.reference)) for q in self.switched]
        turned = [(there, here) for here, there in places]
        self.boards = [
            _executor(with_switches(reference, turned, candidate), backend),
            _executor(with_switches(candidate, places, reference), backend),
        ]
        self._alone = [self._excerpt(q, backend) for q in self.switched]
        self._local = {q: Comparing("") for q in self.switched}
        self._accumulated = {q: Comparing("") for q in self.switched}
        self._tallies = {q: CodeTally(q.site) for q in self.quantizers}
        self._is_first = True

    def _leave_other_shapes(self, feeds: Mapping[str, Any]) -> None:
        """Exclude quantizers whose places have different shapes, and note the sizes of values."""
        ends = [
            [[p.end, p.start or p.end] for p in (_known(q.reference), _known(q.candidate))]
            for q in self.switched
        ]
        ours = [value for here, _ in ends for value in here]
        theirs = [value for _, there in ends for value in there]
        theirs += [value for q in self.switched for value in (q.site.x, q.site.y)]
        forms = _forms(self.executors[0], feeds, ours)
        own = _forms(self.executors[1], self.renamed(feeds), theirs)
        for quantizer, (here, there) in zip(self.switched, ends, strict=True):
            if [forms[v][0] for v in here] != [own[v][0] for v in there]:
                self.reasons[quantizer] = "its values have another shape in the reference"
            held = {there[0], quantizer.site.x, quantizer.site.y}
            self._bytes[quantizer] = forms[here[0]][1] + sum(own[v][1] for v in held)
        self.switched = [q for q in self.switched if self.reasons[q] is None]

    def renamed(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        return {self.names.get(name, name): x for name, x in feeds.items()}

    def _excerpt(
        self, quantizer: PairedQuantizer, backend: str
    ) -> tuple[Executor, dict[str, str]] | None:
        """Return the part that computes a layer, and the reference's values that it reads."""
        end = _known(quantizer.candidate).end
        if quantizer.is_weight:
            return None
        ends = {
            _known(q.candidate).end: _known(q.reference).end
            for q in self.switched
            if not q.is_weight
        }
        graph = self.models[1].graph
        starts = [value for value in frontier(graph, end, ends) if value is not end]
        taken = {f"layer_input_{n}": value for n, value in enumerate(starts)}
        part = excerpt(
            Model(self.models[1]),
            [(str(value.name), name) for name, value in taken.items()],
            (str(end.name), "layer_output"),
            [],
        )
        theirs = {there: here for here, there in self.names.items()}
        fed = {
            name: str(ends[value].name) if value in ends else theirs[str(value.name)]
            for name, value in taken.items()
        }
        return _executor(part, backend), fed

    def measurements(self, batches: int) -> int:
        """Return how many values are compared in some batches; those of weights only once."""
        data = sum(not q.is_weight for q in self.switched)
        return len(self.switched) + data * (batches - 1)

    def measure(self, feeds: Mapping[str, Any]) -> Iterator[int]:
        """Compare the values of each quantizer on one batch; yield how many were compared."""
        chosen = [q for q in self.switched if self._is_first or not q.is_weight]
        for block in self._blocks(chosen):
            self._measure(block, feeds)
            yield len(block)
        self._is_first = False

    def _blocks(self, quantizers: Sequence[PairedQuantizer]) -> Iterator[Sequence[PairedQuantizer]]:
        """Yield quantizers in parts whose values are small enough to be held together."""
        block, size = list[PairedQuantizer](), 0
        for quantizer in quantizers:
            size += self._bytes[quantizer]
            if block and (size > _BYTES_AT_ONCE or len(block) == _AT_ONCE):
                yield block
                block, size = [], self._bytes[quantizer]
            block.append(quantizer)
        if block:
            yield block

    def _measure(self, block: Sequence[PairedQuantizer], feeds: Mapping[str, Any]) -> None:
        alone = dict(zip(self.switched, self._alone, strict=True))
        wanted = [str(_known(q.reference).end.name) for q in block]
        for quantizer in block:
            part = alone[quantizer]
            wanted += [] if part is None else part[1].values()
        ours = _run(self.executors[0], feeds, wanted)
        own = [n for q in block for n in (str(_known(q.candidate).end.name), str(q.site.x.name))]
        own += [str(q.site.y.name) for q in block]
        theirs = _run(self.executors[1], self.renamed(feeds), own)
        for quantizer in block:
            there = ours[str(_known(quantizer.reference).end.name)]
            here = theirs[str(_known(quantizer.candidate).end.name)]
            if here.shape != there.shape:
                reason = f"it has shape {list(here.shape)}, in the reference {list(there.shape)}"
                self.reasons[quantizer] = reason
                continue
            self._accumulated[quantizer].add(there, here)
            part = alone[quantizer]
            layer = here
            if part is not None:
                inputs = {name: ours[value] for name, value in part[1].items()}
                layer = part[0].run(inputs)["layer_output"]
            self._local[quantizer].add(there, layer)
            site = quantizer.site
            y = theirs[str(site.y.name)]
            is_same = _known(quantizer.candidate).end is site.y
            self._tallies[quantizer].add(theirs[str(site.x.name)], y, there if is_same else None)

    def cost(self, quantizer: PairedQuantizer) -> QuantizerCost:
        site = quantizer.site
        cost = QuantizerCost(
            node_name(site.root),
            operator_name(site.root),
            str(site.y.name),
            quantizer.is_weight,
            codes=self._tallies[quantizer].to_json(),
            reason=self.reasons[quantizer],
        )
        if cost.reason is None:
            cost.local_sqnr_db = self._local[quantizer].result().sqnr_db
            cost.accumulated_sqnr_db = self._accumulated[quantizer].result().sqnr_db
        return cost


def _enter_bounds(bounds: BoundRuns, costs: Iterable[QuantizerCost]) -> None:
    segments = {segment.candidate: segment for segment in bounds.results()}
    for cost in costs:
        segment = segments.get(cost.node)
        if segment is not None:
            cost.bound = segment.to_json()


def _executor(model: Model | ir.Model, backend: str) -> Executor:
    return prepare(model if isinstance(model, ir.Model) else model.ir, backend, shares_memory=True)


def _forms(
    executor: Executor, feeds: Mapping[str, Any], values: Sequence[ir.Value]
) -> dict[ir.Value, tuple[tuple[int, ...], int]]:
    """Return shape and size in bytes of some values; none of them is held."""
    found: dict[str, tuple[tuple[int, ...], int]] = {}

    def see(name: str, array: Any) -> None:
        found[name] = np.shape(array), np.asarray(array).nbytes

    executor.run(feeds, taps=list(dict.fromkeys(str(v.name) for v in values)), observe=see)
    return {value: found[str(value.name)] for value in values}


def _run(executor: Executor, feeds: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return executor.run(feeds, taps=list(dict.fromkeys(names)))


def _known(place: Place | None) -> Place:
    if place is None:
        raise AssertionError("a quantizer that is exchanged has places")
    return place


def _are_alike(quantizer: PairedQuantizer) -> bool:
    """Return whether the values of both places have equal types, if known."""
    kinds = {_known(place).end.dtype for place in (quantizer.reference, quantizer.candidate)}
    starts = {_known(p).start is None for p in (quantizer.reference, quantizer.candidate)}
    return len(kinds - {None}) < 2 and len(starts) == 1
