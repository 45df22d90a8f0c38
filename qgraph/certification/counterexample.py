"""Searching for an input of whole models on which a difference of a region reaches the outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.certification.discharge import Shown
from qgraph.certification.regions import cut, decide_cuts
from qgraph.equivalence.inputs import batch_shapes, make_inputs
from qgraph.errors import ExecutionError, OptionError, UnsupportedError
from qgraph.exactness import Exactness
from qgraph.execution.executor import Executor
from qgraph.matching.match import Matching
from qgraph.model import Model
from qgraph.numerics.values import compare_values
from qgraph.proof.finding import Runs
from qgraph.proof.keys import from_keys, to_keys

Array = npt.NDArray[Any]
Feeds = dict[str, Array]

_BATCH = 32
"""Samples at a time, where the model leaves their number open."""

_ELEMENTS = 1 << 19
"""Elements of an input at a time, unless one sample has more."""

_SHARE_OF_RANDOM = 4
"""One in so many runs is on random inputs; the others push values towards a difference."""


def search(matching: Matching, shown: Sequence[Shown], *, runs: int) -> Feeds:
    """Return inputs on which the outputs of the models differ; nothing if none were found.

    Random inputs come first, then the witnesses of regions that begin at a model input, then
    inputs that are scaled until a value that enters a region gets where its results differ.

    Args:
        matching: of the two models.
        shown: what was found; regions that differ are aimed at.
        runs: how many times each model may be run.
    """
    differing = [s for s in shown if s.outcome.rung is not None and not s.reaches(Exactness.VALUES)]
    try:
        runner = _Runner(matching, runs)
        for feeds in _candidates(runner, matching, differing):
            if runner.differ(feeds):
                return _one_sample(runner, feeds)
    except (ExecutionError, OptionError, UnsupportedError, _Spent):
        # Nothing can be run, or fed, or no runs are left: there is no example then.
        return {}
    return {}


def _one_sample(runner: _Runner, feeds: Feeds) -> Feeds:
    """Return the first sample that shows a difference alone; all of them if none is found."""
    opened = batch_shapes(runner.model, _BATCH, _ELEMENTS)
    try:
        for number in range(max((shape[0] for shape in opened.values()), default=1)):
            some = {k: x[number : number + 1] if k in opened else x for k, x in feeds.items()}
            if opened and runner.differ(some):
                return some
    except (ExecutionError, _Spent):
        pass  # the samples do not go alone, or no runs are left
    return feeds


class _Spent(Exception):  # noqa: N818 - an end, not a fault
    """No runs are left."""


class _Runner:
    """Runs both models, so many times."""

    def __init__(self, matching: Matching, runs: int) -> None:
        self.runs = runs
        self.left = runs
        self.model = Model(matching.reference.plain.model)
        self._outputs = [(str(a.name), str(b.name)) for a, b in matching.outputs]
        self._ours = Executor(matching.reference.plain.model)
        self._theirs = Executor(matching.candidate.plain.model)
        graphs = matching.reference.plain.graph, matching.candidate.plain.graph
        free = [[v for v in graph.inputs if not v.is_initializer()] for graph in graphs]
        same = {v.name for v in free[0]} == {v.name for v in free[1]}
        self._names = {
            str(a.name): str(a.name if same else b.name) for a, b in zip(*free, strict=True)
        }

    def differ(self, feeds: Feeds) -> bool:
        """Return whether the outputs of the models differ in value."""
        self._spend()
        ours = self._ours.run(feeds)
        theirs = self._theirs.run({self._names[name]: x for name, x in feeds.items()})
        return any(_differ(ours[a], theirs[b]) for a, b in self._outputs)

    def value(self, name: str, feeds: Feeds) -> Array:
        """Return a value of the reference."""
        self._spend()
        return np.asarray(self._ours.run(feeds, taps=[name])[name])

    def _spend(self) -> None:
        if not self.left:
            raise _Spent
        self.left -= 1


def _differ(a: Any, b: Any) -> bool:
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)) or a.dtype.kind in "OSU":
        return False
    if a.shape != b.shape or a.dtype != b.dtype:
        return True
    return compare_values(a, b).differing > 0


def _candidates(runner: _Runner, matching: Matching, differing: Sequence[Shown]) -> Iterator[Feeds]:
    shapes = batch_shapes(runner.model, _BATCH, _ELEMENTS)
    numbers = range(max(1, runner.runs // _SHARE_OF_RANDOM))

    def draw(number: int) -> Feeds:
        return make_inputs(runner.model, number=number, shapes=shapes)

    aimed = [s for s in differing if s.region is not None and s.outcome.finding is not None]
    for s in aimed:
        yield from _from_inputs(runner, matching, draw(0), s)
    yield from map(draw, numbers)
    for number in numbers:
        for s in aimed:
            if s.region is not None and s.outcome.finding is not None:
                runs = s.outcome.finding.runs
                yield from _pushed(runner, draw(number), s.region.entry[0], runs)


def _from_inputs(runner: _Runner, matching: Matching, draw: Feeds, s: Shown) -> Iterator[Feeds]:
    """Yield an input full of a witness, where a region can be looked at from an input on."""
    for entry in s.claim.entries:
        name = str(entry[0].name)
        if entry[0].is_graph_input() and name in draw:
            exit_ = s.claim.reference, s.claim.candidate
            (outcome,) = decide_cuts(matching, [cut(matching, exit_, entry)])
            if outcome.witness is not None:
                yield draw | {name: np.full_like(draw[name], outcome.witness.input)}


def _pushed(runner: _Runner, draw: Feeds, entry: ir.Value, runs: Runs) -> Iterator[Feeds]:
    """Yield scaled inputs for which a value comes ever nearer to where results differ."""
    if entry.graph is not runner.model.ir.graph or not len(runs):
        return
    name = str(entry.name)

    def scaled(factor: float) -> Feeds:
        return {
            key: (x * np.float32(factor)).astype(x.dtype) if x.dtype.kind == "f" else x
            for key, x in draw.items()
        }

    first = runner.value(name, draw).astype(np.float32)
    place, target = _nearest(first, runs)
    low, high = 0.0, 2.0
    at = [float(runner.value(name, scaled(f)).reshape(-1)[place]) for f in (low, high)]
    if not min(at) <= target <= max(at):
        return
    for _ in range(24):
        middle = (low + high) / 2
        value = float(runner.value(name, scaled(middle)).reshape(-1)[place])
        if _inside(value, runs):
            yield scaled(middle)
            return
        if (value < target) == (at[0] < at[1]):
            low = middle
        else:
            high = middle


def _nearest(values: Array, runs: Runs) -> tuple[int, float]:
    """Return the place of the value that lies nearest to a run, and the middle of that run."""
    middles = from_keys((runs.lo + runs.hi) // 2).astype(np.float64)
    order = np.argsort(middles)
    flat = values.reshape(-1).astype(np.float64)
    spots = np.clip(np.searchsorted(middles[order], flat), 0, len(middles) - 1)
    targets = middles[order][spots]
    with np.errstate(all="ignore"):
        distance = np.abs(flat - targets)
    place = int(np.argmin(np.where(np.isnan(distance), np.inf, distance)))
    return place, float(targets[place])


def _inside(value: float, runs: Runs) -> bool:
    key = to_keys(np.float32(value))
    return bool(((runs.lo <= key) & (key <= runs.hi)).any())
