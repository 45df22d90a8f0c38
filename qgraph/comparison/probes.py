"""Find inputs of a model for which the data of its quantizers are next to thresholds.

The search starts from two inputs for which a quantizer's data are on different sides of a
threshold. It bisects between them until they are neighbours. If only elementwise operators lie
between the input and the quantizer, each element is bisected separately, and both floats next to
the threshold are reached. If earlier quantizers leave gaps, they may not be reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.comparison.report import ProbeReport
from qgraph.comparison.thresholds import (
    DataQuantizer,
    Row,
    SampleRows,
    bisected,
    data_quantizers,
    thresholds_above,
)
from qgraph.errors import ExecutionError, OperatorError
from qgraph.execution.executor import Executor
from qgraph.execution.inputs import make_inputs
from qgraph.graph.constants import constant_expression
from qgraph.graph.scopes import node_name
from qgraph.model import Model
from qgraph.numerics import Array
from qgraph.numerics.float32 import Keys, from_keys, to_keys
from qgraph.proof.matching.operators import is_reshape, operands
from qgraph.records import dataclass, field

_STARTS = 16
"""Number of inputs between which thresholds are searched; fewer if each needs its own run."""
_STARTS_ALONE = 6
_STARTS_LOOKED_AT = 4
"""Number of inputs for the search; each takes about 30 calls of the quantizer."""

_WALKS = 1 << 10
_CHOICE = 8
"""Ratio of candidate thresholds to requested ones, so that the selection can be spread."""

_MOVES = 24
_NEAR = 256
"""Maximum distance, in floats, at which moving single numbers is tried."""

_HALVINGS = 64
"""Number of bisections; enough to make any two inputs neighbours."""


@dataclass
class Probes:
    """Inputs next to thresholds, and their distances from these, by quantizer."""

    batches: list[dict[str, Array]] = field(default_factory=list)
    reports: list[ProbeReport] = field(default_factory=list)


@dataclass
class _Target:
    """A threshold of one element, and one input, in float64, on each side of it.

    ``place`` is the flat index in the quantizer's data, ``key`` that of the first number above the
    threshold, ``values`` are the element for both inputs; these are neighbours if it ``is_done``.
    """

    place: int
    key: int
    below: Row
    above: Row
    values: tuple[float, float]
    is_done: bool = False

    @property
    def distance(self) -> int:
        """Number of floats between the two inputs' elements and the threshold."""
        low, high = (int(to_keys(np.float32(value))) for value in self.values)
        return self.key - 1 - low + high - self.key

    @property
    def is_reached(self) -> bool:
        """Whether both floats next to the threshold were reached."""
        return self.distance == 0

    def take(self, row: Row, value: float) -> None:
        """Replace one of the inputs by another one if that is closer."""
        key, ends = int(to_keys(np.float32(value))), self.values
        if int(to_keys(np.float32(ends[0]))) < key < self.key:
            self.below, self.values = row, (value, ends[1])
        elif self.key <= key < int(to_keys(np.float32(ends[1]))):
            self.above, self.values = row, (ends[0], value)


def make_probes(
    model: Model,
    executor: Executor,
    count: int,
    *,
    seed: int = 0,
    shapes: Mapping[str, Sequence[int]] | None = None,
    starts: Mapping[str, Any] | None = None,
) -> Probes:
    """Return inputs next to up to ``count`` thresholds of each quantizer of data.

    Quantizers of the main graph with constant parameters are probed. If other than elementwise
    operators precede a quantizer, each threshold takes about thirty runs of the model; many of them
    run as one batch if the batch size is open. A quantizer that reads an input gets at least one
    threshold per element. The search starts from random inputs, or from ``starts`` if it has
    several rows.
    """
    frozen = model.clone()
    frozen.freeze_inputs()
    rows = SampleRows(model, executor)
    probes = Probes()
    wanted: list[DataQuantizer] = []
    changing = executor.depending_on([str(value.name) for value in model.inputs])
    for each in data_quantizers(frozen.ir.graph):
        if not isinstance(each, DataQuantizer):
            node, reason = each
            label, data = node_name(node), node.inputs[0]
            name = "" if data is None else str(data.name)
            probes.reports.append(ProbeReport(label, name, reason=reason))
        elif str(each.data.name) in changing:
            wanted.append(each)
    if not wanted:
        return probes
    number = _STARTS if rows.is_open else _STARTS_ALONE
    population = [] if starts is None else rows.split(dict(starts))[:number]
    if len(population) < 2:
        population = [
            row
            for n in range(number)
            for row in rows.split(make_inputs(model.inputs, seed=seed, number=n, shapes=shapes))
        ][:number]
    all_rows: list[Row] = []
    values = rows.values(population, [str(each.data.name) for each in wanted])
    for each in wanted:
        own = [np.asarray(of_row[str(each.data.name)]) for of_row in values]
        report, probed = _aim(rows, each, population, own, count)
        probes.reports.append(report)
        all_rows += probed
    probes.batches = rows.joined(all_rows)
    return probes


def _aim(
    rows: SampleRows,
    quantizer: DataQuantizer,
    population: list[Row],
    values: list[Array],
    count: int,
) -> tuple[ProbeReport, list[Row]]:
    name = str(quantizer.data.name)
    if any(value.dtype != np.float32 or not value.size for value in values):
        return ProbeReport(quantizer.label, name, reason="its data is not float32"), []
    try:
        source = _read_directly(quantizer.data)
        if source is not None and population[0][source].shape == values[0].shape:
            return _probe_elements(rows, quantizer, source, population, count)
        targets = _choose(quantizer, population, values, count)
        _halve(rows, name, targets)
        _refine(rows, name, targets)
    except (ExecutionError, OperatorError) as error:
        return ProbeReport(quantizer.label, name, reason=str(error)), []
    reached = sum(target.is_reached for target in targets)
    crossed = sum(target.is_done for target in targets)
    gap = _largest_gap(quantizer, values[0], targets)
    report = ProbeReport(quantizer.label, name, len(targets), crossed, reached, gap)
    return report, [row for target in targets for row in (target.below, target.above)]


def _choose(
    quantizer: DataQuantizer, population: list[Row], values: list[Array], count: int
) -> list[_Target]:
    """Select thresholds between two inputs, spread over the quantizer's range."""
    flat = np.stack([value.reshape(-1) for value in values])
    top = np.argmax(np.where(np.isnan(flat), -np.inf, flat), axis=0)
    highest = to_keys(np.take_along_axis(flat, top[None], 0)[0])
    origins: dict[int, tuple[int, int]] = {}
    for start, value in enumerate(values[:_STARTS_LOOKED_AT]):
        data = value
        for _ in range(_WALKS):  # from threshold to threshold, up to the value of another input
            keys, exists = (part.reshape(-1) for part in thresholds_above(quantizer, data))
            elements = np.flatnonzero(exists & (keys <= highest))
            for key, first in zip(*np.unique(keys[elements], return_index=True), strict=True):
                origins.setdefault(int(key), (start, int(elements[first])))
            if not elements.size or len(origins) >= _CHOICE * count:
                break
            data = from_keys(np.where(exists, keys, to_keys(data).reshape(-1))).reshape(data.shape)
    keys = np.asarray(sorted(origins))
    spread = np.unique(np.linspace(0, len(keys) - 1, min(count, len(keys))).round().astype(int))
    targets = []
    for key in keys[spread].tolist() if len(keys) else ():
        start, element = origins[key]
        end = int(top[element])
        ends = float(flat[start, element]), float(flat[end, element])
        targets.append(_Target(element, key, population[start], population[end], ends))
    return targets


def _halve(rows: SampleRows, name: str, targets: list[_Target]) -> None:
    """Bisect between the inputs on both sides of each threshold."""
    for _ in range(_HALVINGS):
        open_ = [target for target in targets if not target.is_done]
        if not open_:
            return
        middles = [rows.middle(target.below, target.above) for target in open_]
        results = rows.values([rows.rounded(middle) for middle in middles], [name])
        for target, middle, values in zip(open_, middles, results, strict=True):
            value = values[name].reshape(-1)[target.place]
            if int(to_keys(value)) >= target.key:
                target.above, target.values = middle, (target.values[0], float(value))
            else:
                target.below, target.values = middle, (float(value), target.values[1])
            target.is_done = target.is_reached or rows.are_equal(target.below, target.above)


def _refine(rows: SampleRows, name: str, targets: list[_Target]) -> None:
    """Move single numbers of the inputs to neighbouring floats if that is closer to a threshold."""
    generator = np.random.default_rng(len(targets))
    for _ in range(_MOVES):
        near = [t for t in targets if t.is_done and not t.is_reached and t.distance < _NEAR]
        if not near:
            return
        moved = [
            rows.moved(side, generator) for target in near for side in (target.below, target.above)
        ]
        reached = [values[name].reshape(-1) for values in rows.values(moved, [name])]
        for row, values, target in zip(
            moved, reached, (target for target in near for _ in range(2)), strict=True
        ):
            target.take(row, float(values[target.place]))


def _largest_gap(quantizer: DataQuantizer, data: Array, targets: Sequence[_Target]) -> float | None:
    step = quantizer.step(data)
    if step is None or not targets:
        return None
    gaps = []
    for target in targets:
        edge = float(from_keys(target.key))
        nearer = min(abs(value - edge) for value in target.values)
        gaps.append(nearer / float(step.reshape(-1)[target.place]))
    return max(gaps)


def _read_directly(value: ir.Value) -> str | None:
    """Return the input from which elementwise operators compute ``value``, with its shape."""

    def is_known(operand: ir.Value) -> bool:
        return constant_expression(operand) is not None

    while not value.is_graph_input():
        node = value.producer()
        others = operands(value, is_known)
        if node is None or is_reshape(node) or len(others) != 1:
            return None
        value = others[0]
    return str(value.name)


def _probe_elements(
    rows: SampleRows, quantizer: DataQuantizer, source: str, population: list[Row], count: int
) -> tuple[ProbeReport, list[Row]]:
    """Bisect each element of an input separately: one input then meets many thresholds."""
    name = str(quantizer.data.name)
    population = [*population, *_ranged(quantizer, source, population)]
    values = np.stack([value[name] for value in rows.values(population, [name])])
    inputs = np.stack([row[source] for row in population])
    order = np.argsort(np.where(np.isnan(values), -np.inf, values), axis=0)
    size = values[0].size
    # few elements cross all thresholds from below, many start anywhere
    ranks = np.zeros(size, int) if size < _CHOICE * count else np.arange(size) % len(population)
    begin = np.take_along_axis(order, ranks.reshape(1, *values.shape[1:]), 0)
    data, highest = (np.take_along_axis(values, taken, 0)[0] for taken in (begin, order[-1:]))
    low, high = (to_keys(np.take_along_axis(inputs, taken, 0)[0]) for taken in (begin, order[-1:]))
    met: dict[int, bool] = {}
    probes: list[Row] = []
    for _ in range(_WALKS):
        keys, exists = thresholds_above(quantizer, data)
        exists &= keys <= to_keys(highest)
        if not exists.any() or len(met) >= count:
            break
        ends = _elementwise(rows, name, source, population[0], (keys, exists, low, high))
        pair = [population[0] | {source: from_keys(end)} for end in ends]
        seen = [to_keys(of_row[name]) for of_row in rows.values(pair, [name])]
        exact = exists & (seen[0] == keys - 1) & (seen[1] == keys)
        for key, is_exact in zip(keys[exists].tolist(), exact[exists].tolist(), strict=True):
            met[key] = met.get(key, False) or is_exact
        probes += pair
        data = from_keys(np.where(exists, keys, to_keys(data)))
    reached = sum(met.values())
    gap = 0.0 if reached == len(met) and met else None
    return ProbeReport(quantizer.label, name, len(met), len(met), reached, gap), probes


def _elementwise(
    rows: SampleRows,
    name: str,
    source: str,
    row: Row,
    aim: tuple[Keys, npt.NDArray[np.bool_], Keys, Keys],
) -> tuple[Keys, Keys]:
    """Return keys of neighbouring floats of an input between which the data crosses a threshold."""
    keys, exists, low, high = aim

    def is_above(middle: Keys) -> npt.NDArray[np.bool_]:
        (values,) = rows.values([row | {source: from_keys(middle)}], [name])
        return np.asarray(to_keys(values[name]) >= keys)

    return bisected(low, high, exists, is_above)


def _ranged(quantizer: DataQuantizer, source: str, population: list[Row]) -> Iterator[Row]:
    """Yield inputs that cover the whole range of a quantizer that reads them directly."""
    shape = population[0][source].shape
    step = quantizer.step(np.zeros(shape, np.float32))
    if step is None:
        return
    generator = np.random.default_rng(len(population))
    for size in (2.0, 16.0, 256.0):
        for _ in range(2):
            codes = generator.uniform(-size, size, shape).astype(np.float32)
            yield population[0] | {source: (codes * step).astype(np.float32)}
