"""Run two models on inputs, or from a differing value on, to see whether outputs differ.

In the second case the reference is C[u] and the candidate is C[v], with the same continuation C. So
C is run twice, by the nodes of the reference, on the values that both models compute from equal
entries. Both runs add in the same order. So a difference of the outputs is not the rounding of a
sum.

    entry ── region of the reference ── u ── C ── output of the reference
    entry ── region of the candidate ── v ── C ── output of the candidate
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.conditions import Demonstration, Reached
from qgraph.errors import ExecutionError, ModelError, OperatorError, OptionError, UnsupportedError
from qgraph.execution.executor import Executor
from qgraph.execution.inputs import batch_shapes, make_inputs
from qgraph.graph.interface import Difference, Pair
from qgraph.graph.slices import reached, sources
from qgraph.numerics import Array, Mask

_SAMPLES = 16
"""Samples at a time, where a model leaves their number open."""

_BATCH_ELEMENTS = 1 << 16
"""Elements of an input at a time, unless one sample has more."""

_OPEN_SIZE = 16
"""Open sizes of an input that has open sizes after the first."""

_MOST_ELEMENTS = 1 << 20
"""Elements of all inputs together; models with larger inputs are not run."""

_MOST_BYTES = 1 << 26
"""Bytes of all initializers of a model; larger models are not run."""

_MOST_NODES = 2000

_BEYOND_ROUNDING = 2.0**-10
"""Difference, relative to the largest output, that rounding cannot explain."""

_UNBOUNDED = frozenset({"Loop", "Scan", "SequenceMap"})

NOT_RUN = (ExecutionError, ModelError, OperatorError, OptionError, UnsupportedError, KeyError)
"""Errors of models or inputs that cannot be run."""


def demonstrate(
    models: tuple[ir.Model, ir.Model],
    inputs: Sequence[Pair],
    outputs: Sequence[tuple[ir.Value, ir.Value, bool]],
    tried: Iterable[Demonstration],
    *,
    same_sums: bool,
) -> Demonstration | None:
    """Return the first of some inputs on which outputs of two models differ; None if there is none.

    Large models, models with unbounded loops, and inputs that cannot be fed are skipped. The models
    must not change meanwhile.

    Args:
        models: the reference and the candidate.
        inputs: pairs of inputs.
        outputs: pairs of outputs to compare, and whether both are determined to the last bit.
        tried: the inputs.
        same_sums: whether the models have the same operators outside of regions that were decided.
    """
    if not are_small(models):
        return None
    executors: list[Executor] = []
    for demonstration in tried:
        try:
            fed = feeds_of(demonstration, models[0].graph)
            if sum(array.size for array in fed.values()) > _MOST_ELEMENTS:
                continue
            executors = executors or [Executor(model) for model in models]
            ours = executors[0].run(fed)
            theirs = executors[1].run({str(b.name): fed[str(a.name)] for a, b in inputs})
        except NOT_RUN:
            continue
        for a, b, is_exact in outputs:
            arrays = ours[str(a.name)], theirs[str(b.name)]
            if _are_apart(*arrays, is_exact=is_exact, same_sums=same_sums):
                return demonstration
    return None


def feeds_of(demonstration: Demonstration, reference: ir.Graph) -> dict[str, Array]:
    """Return the arrays of all inputs of the reference.

    Raises:
        OptionError: the shape or type of an input is not known.
    """
    values = [value for value in reference.inputs if not value.is_initializer()]
    shapes = batch_shapes(values, _SAMPLES, _BATCH_ELEMENTS) | _open_shapes(values)
    drawn = make_inputs(values, number=demonstration.batch, shapes=shapes)
    if demonstration.input in drawn and demonstration.input is not None:
        array = np.full_like(drawn[demonstration.input], demonstration.value)
        for element, number in zip(demonstration.elements, demonstration.values, strict=True):
            array[element] = number
        drawn[demonstration.input] = array
    if demonstration.scale != 1:
        with np.errstate(all="ignore"):
            for name, x in drawn.items():
                if x.dtype.kind == "f":
                    drawn[name] = x * x.dtype.type(demonstration.scale)
    return drawn


def _open_shapes(values: Sequence[ir.Value]) -> dict[str, tuple[int, ...]]:
    """Return shapes for inputs with open sizes after the first."""
    shapes = {}
    for value in values:
        dims = () if value.shape is None else value.shape.dims
        if any(not isinstance(size, int) for size in dims[1:]):
            sizes = [size if isinstance(size, int) else _OPEN_SIZE for size in dims]
            shapes[str(value.name)] = tuple(sizes)
    return shapes


def _are_apart(a: Any, b: Any, *, is_exact: bool, same_sums: bool) -> bool:
    """Return whether two outputs differ by more than rounding explains."""
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return False
    if a.dtype.kind not in "biuf" or b.dtype.kind not in "biuf":
        return False
    if a.shape != b.shape:
        return True
    if is_exact:
        return _differs(a, b, bits=False)
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        size = np.abs(x[np.isfinite(x)]).max(initial=0.0)
        apart = (np.abs(x - y) > _BEYOND_ROUNDING * size) & np.isfinite(x) & np.isfinite(y)
    needed = 1 if same_sums else (x.size + 1) // 2
    return bool(x.size and np.count_nonzero(apart) >= needed)


def are_small(models: Iterable[ir.Model]) -> bool:
    """Return whether models are small enough to be run as a part of a proof."""
    return all(map(_is_small, models))


def _is_small(model: ir.Model) -> bool:
    graph = model.graph
    bounded = not any(node.op_type in _UNBOUNDED for node in graph)
    return bounded and _bytes(model) <= _MOST_BYTES and len(graph) <= _MOST_NODES


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
