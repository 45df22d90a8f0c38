"""Run two models from a differing value on, to see whether the difference reaches an output.

The reference is C[u] and the candidate is C[v], with the same continuation C. So C is run twice, by
the nodes of the reference, on the values that both models compute from equal entries. Both runs add
in the same order. So a difference of the outputs is not the rounding of a sum.

    entry ── region of the reference ── u ── C ── output of the reference
    entry ── region of the candidate ── v ── C ── output of the candidate
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.evidence import Demonstration, Reached
from qgraph.execution.demonstration import NOT_RUN, are_small, demonstrate, feeds_of
from qgraph.execution.executor import Executor
from qgraph.graph.interface import Difference, Pair
from qgraph.graph.slices import reached, sources
from qgraph.numerics import Array, Mask

_SCALES = 1.0, 2.0**6, 2.0**12
"""Factors of random inputs: large ones pass the limits that biases move out of reach."""

_SHARES = 0.0, 1 / 16, 1.0
"""Shares of the elements that are replaced; 0 for one element of each sample."""

_FEW_BYTES = 1 << 22
"""Bytes of initializers above which only few inputs and the first scale are tried."""

_FEW_INPUTS = 2


def reaches(
    models: tuple[ir.Model, ir.Model],
    inputs: Sequence[Pair],
    difference: Difference,
    tried: Iterable[Demonstration],
) -> Reached | None:
    """Return a run in which the difference of two values reaches an output; None if none does.

    First, the values that the inputs ``tried`` give are used. Then differing numbers replace one
    element of the entry, some elements, or all. The models must not change meanwhile.
    """
    if not are_small(models):
        return None
    try:
        run = _Continuation(models, inputs, difference)
    except NOT_RUN:
        return None
    is_large = sum(map(_bytes, models)) > _FEW_BYTES
    scales = _SCALES[:1] if is_large else _SCALES
    few = itertools.islice(tried, _FEW_INPUTS) if is_large else tried
    natural = [*few, *(Demonstration(scale=scale) for scale in scales[1:])]
    for example in natural:
        if run.shows(example, None):
            return Reached(example)
    generator = np.random.default_rng(0)
    for scale in scales if difference.entry is not None and difference.numbers else ():
        for share in _SHARES:
            if run.shows(Demonstration(scale=scale), (share, generator)):
                return Reached(None)
    return None


def _bytes(model: ir.Model) -> int:
    tensors = (value.const_value for value in model.graph.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


_Replacing = tuple[float, np.random.Generator]
"""Share of the elements to replace, and what chooses them."""


class _Continuation:
    """The region and the continuation of a difference, ready to run."""

    def __init__(
        self, models: tuple[ir.Model, ir.Model], inputs: Sequence[Pair], difference: Difference
    ) -> None:
        self._difference = difference
        self._models = models
        self._names = {str(a.name): b for a, b in inputs}
        ours, theirs = map(Executor, models)
        exit_, entry = difference.exit, difference.entry
        self._rest = _Span(ours, [exit_[0]], difference.outputs)
        if entry is not None:
            self._before = _Span(ours, [], [entry[0]])
            self._regions = (
                _Span(ours, [entry[0]], [exit_[0]]),
                _Span(theirs, [entry[1]], [exit_[1]]),
            )
        self._last: tuple[Demonstration, dict[ir.Value, Any], Any] | None = None

    def shows(self, example: Demonstration, replacing: _Replacing | None) -> bool:
        """Return whether a run from an input shows a difference in an output.

        ``replacing`` says how the entry is changed; None if it is not.
        """
        try:
            with np.errstate(all="ignore"):
                return self._shows(example, replacing)
        except NOT_RUN:
            return False

    def _shows(self, example: Demonstration, replacing: _Replacing | None) -> bool:
        fed, entry = self._start(example)
        exits = self._difference.constants
        if exits is None:
            if replacing is not None:
                entry = self._replaced(fed, entry, *replacing)
                if entry is None:
                    return False
            exits = self._exits(fed, entry)
        if not _differs(*exits, bits=self._difference.bits):
            return False
        start = self._difference.exit[0]
        ours, theirs = (self._rest.run(fed | {start: np.ascontiguousarray(x)}) for x in exits)
        return any(_differs(ours[y], theirs[y], bits=self._difference.bits) for y in ours)

    def _start(self, example: Demonstration) -> tuple[dict[ir.Value, Any], Any]:
        """Return the arrays of the inputs of both models, and of the entry."""
        if self._last is None or self._last[0] != example:
            graph = self._models[0].graph
            feeds = feeds_of(example, graph)
            named = {str(value.name): value for value in graph.inputs}
            fed: dict[ir.Value, Any] = {named[name]: x for name, x in feeds.items()}
            fed |= {self._names[name]: x for name, x in feeds.items()}
            entry = self._difference.entry
            array = None if entry is None else self._before.run(fed)[entry[0]]
            self._last = example, fed, array
        return self._last[1:]

    def _exits(self, fed: Mapping[ir.Value, Any], entry: Any) -> tuple[Any, Any]:
        pair = self._difference.entry or self._difference.exit
        sides = zip(self._regions, pair, self._difference.exit, strict=True)
        ours, theirs = (part.run({**fed, start: entry})[end] for part, start, end in sides)
        return ours, theirs

    def _replaced(
        self, fed: Mapping[ir.Value, Any], entry: Any, share: float, generator: np.random.Generator
    ) -> Any:
        """Return the entry with numbers on which the values differ; None if there are none."""
        if not isinstance(entry, np.ndarray) or not entry.size:
            return None
        replaced = entry.copy()
        chosen = generator.integers(len(self._difference.numbers), size=entry.shape)
        taken = generator.random(entry.shape) < share
        rows = entry.reshape(len(entry) if entry.ndim > 1 else 1, -1)
        if not share:
            numbers = generator.permuted(np.tile(np.arange(rows.shape[1]), (len(rows), 1)), axis=1)
            order = numbers.reshape(entry.shape)
        places = np.zeros(entry.shape, np.bool_)
        for index, number in enumerate(self._difference.numbers):
            filled = np.full_like(entry, number)
            own = (chosen == index) & _places(entry, *self._exits(fed, filled))
            replaced = np.where(own, filled, replaced)
            places |= own
        if not share:
            ranks = np.where(places, order, rows.shape[1]).reshape(rows.shape)
            first = ranks == ranks.min(axis=1, keepdims=True)
            taken = first.reshape(entry.shape)
        return np.where(taken & places, replaced, entry) if (taken & places).any() else None


def _places(entry: Array, ours: Array, theirs: Array) -> Mask:
    """Return the elements of the entry with differing results; all if it is not elementwise."""
    if ours.shape != entry.shape or theirs.shape != entry.shape:
        return np.ones(entry.shape, np.bool_)
    return np.asarray(ours != theirs)


class _Span:
    """A part of a model, from values that are given to values that are wanted."""

    def __init__(
        self, executor: Executor, given: Collection[ir.Value], wanted: Sequence[ir.Value]
    ) -> None:
        used = reached(wanted, lambda value: () if value in given else sources(value))
        self._plan = executor.part({value.producer() for value in used if value not in given})
        self._wanted = frozenset(wanted)

    def run(self, environment: Mapping[ir.Value, Any]) -> dict[ir.Value, Any]:
        """Return the wanted values."""
        known = dict(environment)
        self._plan.run(known, self._wanted)
        return {value: known[value] for value in self._wanted}


def _differs(ours: Any, theirs: Any, *, bits: bool) -> bool:
    """Return whether some elements differ."""
    arrays = ours, theirs
    if not all(isinstance(x, np.ndarray) and x.dtype.kind not in "OSU" for x in arrays):
        return False
    if ours.shape != theirs.shape:
        return True
    x, y = (array.astype(np.float64) for array in arrays)
    no_number = np.isnan(x), np.isnan(y)
    differs = (x != y) & ~no_number[0] & ~no_number[1]
    if bits:
        differs |= (no_number[0] != no_number[1]) | (
            (np.signbit(x) != np.signbit(y)) & ~no_number[0]
        )
    return bool(differs.any())


class ModelRuns:
    """Runs models in NumPy for proofs."""

    demonstrate = staticmethod(demonstrate)
    reaches = staticmethod(reaches)
