"""Prove model files equal, and find an input that shows a difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.bound import Bounding, Within
from qgraph.certificate import Certificate, Identity
from qgraph.comparison.seen import with_seen
from qgraph.errors import (
    ExecutionError,
    OptionError,
    UnsupportedError,
)
from qgraph.exactness import Exactness, ProofVerdict
from qgraph.execution import demonstration
from qgraph.execution.executor import Executor
from qgraph.execution.inputs import batch_shapes, make_inputs
from qgraph.graph.interface import names
from qgraph.model import Model, Source, load
from qgraph.numerics import Array
from qgraph.numerics.float32 import from_keys, to_keys
from qgraph.numerics.values import compare_values
from qgraph.proof.bounds.regions import certified
from qgraph.proof.discharge import Shown
from qgraph.proof.functions.finding import Runs
from qgraph.proof.matching.match import Matching
from qgraph.proof.regions import cut, decide_cuts

Feeds = dict[str, Array]

_BATCH = 32
"""Samples in a batch if the batch size is dynamic."""

_ELEMENTS = 1 << 19
"""Maximum number of elements of an input at a time, unless one sample has more."""

_SHARE_OF_RANDOM = 4
"""Out of this number of runs, one uses random inputs; the others push values towards a
difference."""


def prove(
    reference: Source,
    candidate: Source,
    *,
    exact: str = Exactness.VALUES,
    keep_inputs: bool = False,
    evidence: bool = False,
    runs: int = 0,
    hashes: bool = True,
    within: Within = (),
) -> Certificate:
    """Prove that two models compute equal outputs for every input; see :func:`certify`.

    Args:
        reference: a path or a model.
        candidate: a path or a model.
        exact: level to prove: values, or bits, which includes NaN and the sign of zero.
        keep_inputs: do not treat initializers that are also inputs as constants.
        evidence: list how the inputs of each region were divided, for verification.
        runs: maximum number of runs of each model to find an input on which the outputs differ.
        hashes: name the models by file and hash; a model in memory is serialised for that.
        within: limits, see :meth:`qgraph.bound.Limit.parse`, or :class:`qgraph.bound.Bounding`. If
            equality is not decided, bounds are computed without a limit too.

    Raises:
        ModelError: a model is not usable, or their inputs or outputs differ.
        OptionError: ``exact`` is neither values nor bits, or ``within`` names no input or output.
        UnsupportedError: a function cannot be inlined, or this thread does not follow IEEE 754.
    """
    models = load(reference), load(candidate)
    request = Bounding.of(within, models[0].inputs, models[0].outputs)
    # Hash the files before reading the models, so that both are the same.
    first, second = ((m.identity() if hashes else Identity(None, None)) for m in models)
    proof, certificate = certified(
        (models[0].ir, models[1].ir),
        request,
        exact=exact,
        keep_inputs=keep_inputs,
        evidence=evidence,
        runs=demonstration,
    )
    if not keep_inputs:
        certificate = with_seen(certificate, (models[0].ir, models[1].ir), proof.pairing)
    certificate = replace(certificate, reference=first, candidate=second)
    is_different = certificate.verdict is ProofVerdict.DIFFERENT
    if not runs or not is_different or certificate.counterexample:
        return certificate
    return replace(certificate, counterexample=search(proof.matching, proof.shown, runs=runs))


def search(matching: Matching, shown: Sequence[Shown], *, runs: int) -> Feeds:
    """Return inputs on which the outputs of the models differ; empty if none were found.

    Tries random inputs, witnesses of regions at model inputs, and scaled inputs. It aims at the
    regions that differ. Each model is run at most ``runs`` times.
    """
    differing = [
        s for s in shown if s.verdict.exactness and not s.verdict.reaches(Exactness.VALUES)
    ]
    # If the models cannot be run, or no runs are left, there is no example.
    with suppress(ExecutionError, OptionError, UnsupportedError, _Spent):
        runner = _Runner(matching, runs)
        for feeds in _candidates(runner, matching, differing):
            if runner.differ(feeds):
                return _one_sample(runner, feeds)
    return {}


def _one_sample(runner: _Runner, feeds: Feeds) -> Feeds:
    """Return the first single sample that shows a difference; all samples if none does."""
    opened = batch_shapes(runner.model.inputs, _BATCH, _ELEMENTS)
    with suppress(ExecutionError, _Spent):  # the samples cannot run alone, or no runs are left
        for number in range(max((shape[0] for shape in opened.values()), default=0)):
            some = {k: x[number : number + 1] if k in opened else x for k, x in feeds.items()}
            if runner.differ(some):
                return some
    return feeds


class _Spent(Exception):  # noqa: N818 - an end, not a fault
    """No runs are left."""


class _Runner:
    """Runs both models, a limited number of times."""

    def __init__(self, matching: Matching, runs: int) -> None:
        self.runs = runs
        self.left = runs
        self.model = Model(matching.reference.normalised.model)
        self._outputs = [(str(a.name), str(b.name)) for a, b in matching.interface.outputs]
        self._names = names(matching.interface.inputs)
        self._ours = Executor(matching.reference.normalised.model)
        self._theirs = Executor(matching.candidate.normalised.model)

    def differ(self, feeds: Feeds) -> bool:
        self._spend()
        ours = self._ours.run(feeds)
        theirs = self._theirs.run({self._names[name]: x for name, x in feeds.items()})
        return any(_differ(ours[a], theirs[b]) for a, b in self._outputs)

    def value(self, name: str, feeds: Feeds) -> Array:
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
    shapes = batch_shapes(runner.model.inputs, _BATCH, _ELEMENTS)
    numbers = range(max(1, runner.runs // _SHARE_OF_RANDOM))

    def draw(number: int) -> Feeds:
        return make_inputs(runner.model.inputs, number=number, shapes=shapes)

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
    """Yield an input filled with the witness if the region starts at an input."""
    for entry in s.claim.entries:
        name = str(entry[0].name)
        if entry[0].is_graph_input() and name in draw:
            (outcome,) = decide_cuts(matching, [cut(matching, s.claim.values, entry)])
            witness = outcome.verdict.witness
            if witness is not None:
                yield draw | {name: np.full_like(draw[name], witness.input)}


def _pushed(runner: _Runner, draw: Feeds, entry: ir.Value, runs: Runs) -> Iterator[Feeds]:
    """Yield scaled inputs that bring a value closer and closer to differing inputs."""
    if entry.graph is not runner.model.ir.graph or not len(runs):
        return
    name = str(entry.name)

    def scaled(factor: float) -> Feeds:
        return {
            key: (x * np.float32(factor)).astype(x.dtype) if x.dtype.kind == "f" else x
            for key, x in draw.items()
        }

    element, target = _nearest(runner.value(name, draw).astype(np.float32), runs)
    low, high = 0.0, 2.0
    at = [float(runner.value(name, scaled(f)).reshape(-1)[element]) for f in (low, high)]
    if not min(at) <= target <= max(at):
        return
    for _ in range(24):
        middle = (low + high) / 2
        value = float(runner.value(name, scaled(middle)).reshape(-1)[element])
        key = to_keys(np.float32(value))
        if ((runs.lo <= key) & (key <= runs.hi)).any():
            yield scaled(middle)
            return
        if (value < target) == (at[0] < at[1]):
            low = middle
        else:
            high = middle


def _nearest(values: Array, runs: Runs) -> tuple[int, float]:
    """Return the index of the value closest to a differing run, and the middle of the run."""
    middles = from_keys((runs.lo + runs.hi) // 2).astype(np.float64)
    order = np.argsort(middles)
    flat = values.reshape(-1).astype(np.float64)
    spots = np.clip(np.searchsorted(middles[order], flat), 0, len(middles) - 1)
    targets = middles[order][spots]
    with np.errstate(all="ignore"):
        distance = np.abs(flat - targets)
    element = int(np.argmin(np.where(np.isnan(distance), np.inf, distance)))
    return element, float(targets[element])
