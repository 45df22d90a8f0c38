"""Find values that occur in a model, and differences that reach an output.

A region that differs does not make models different if its differing inputs never occur. So the
limits of a value are computed from inside: some input of the model reaches each of them. The
results of sums, such as those of a Conv, are assumed to take every value between their limits. Sums
of two values that depend on one input have no limits: ``x - Relu(x)`` is never positive.

Values that differ may become equal further on: a Relu or a quantizer maps many numbers to one, a
bias may move all sums beyond the limit of a Clip, and ``Sub(y, y)`` is zero for every ``y``. So a
difference certainly reaches an output only through operators that move elements. After other
operators, a run has to show it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import QGraphError
from qgraph.graph.inference.rules import Unknown, given, require
from qgraph.graph.scopes import producer_of
from qgraph.graph.slices import ancestors, reached
from qgraph.numerics import Array, Float64
from qgraph.ops.dispatch import Imports, compute
from qgraph.ops.known_values import KnownValues
from qgraph.proof.matching.operators import KEEP_ALL, MEANS, is_elementwise, is_move
from qgraph.records import dataclass, replace

_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

_SAMPLES = np.array([0.0, np.inf, *np.exp2(np.arange(-20.0, 128.0, 0.25))], np.float32)
_SAMPLES = np.unique(np.concatenate([-_SAMPLES, _SAMPLES]))
"""Numbers at which elementwise operators are evaluated."""


@dataclass(frozen=True, eq=False)
class Limits:
    """The smallest and the largest number known to occur, by channel.

    Attributes:
        lo, hi: ``[channels]``, or ``[1]`` if all channels have the same limits.
        in_order: whether the channels are in the order of the sum, and were not moved.
    """

    lo: Float64
    hi: Float64
    in_order: bool = True

    def admit(
        self, channel: npt.NDArray[np.int64], channels: int, first: Float64, last: Float64
    ) -> npt.NDArray[np.bool_]:
        """Return, for each interval, whether its channel can take a value between its ends.

        If the limits have another number of channels, all of them must take such a value, or one of
        them if ``channels`` is 1.
        """
        if channels == 1:
            # the largest upper limit of the channels whose lower limit is not too large
            order = np.argsort(self.lo)
            highest = np.append(-np.inf, np.maximum.accumulate(self.hi[order]))
            fits = np.searchsorted(self.lo[order], last, side="right")
            return np.asarray(first <= highest[fits])
        if self.in_order and len(self.lo) == channels:
            return np.asarray((self.lo[channel] <= last) & (first <= self.hi[channel]))
        return np.asarray((self.lo.max() <= last) & (first <= self.hi.min()))


class Attained:
    """Finds the limits of values of one model."""

    def __init__(self, known: KnownValues, imports: Imports) -> None:
        self._known = known
        self._imports = imports
        self._found: dict[ir.Value, Limits | None] = {}
        self._fed: dict[ir.Value, frozenset[ir.Value]] = {}

    def source(self, value: ir.Value) -> Limits | None:
        """Return limits between which a value can take every number: of inputs, sums, or these
        moved.
        """
        origin = _origin(value)
        node = producer_of(origin)
        if origin is None or node is None:
            return self.limits(origin) if origin is not None and self.is_fed(origin) else None
        named = node.op_type in _WEIGHTED or node.op_type == "BatchNormalization"
        is_sum = node.domain == "" and (named or joins_data(node, self._known))
        limits = self.limits(origin) if is_sum else None
        return None if limits is None else replace(limits, in_order=origin is value)

    def is_fed(self, value: ir.Value) -> bool:
        """Return whether a value has the elements of an input of the model."""
        origin = _origin(value)
        if origin is None or origin.producer() is not None or self._known.has(origin):
            return False
        return origin.is_graph_input()

    def limits(self, value: ir.Value) -> Limits | None:
        """Return the limits of a value; None if unknown."""
        stack = [value]
        while stack:
            top = stack[-1]
            if top not in self._found:
                needed = [v for v in self._data(top) if v not in self._found]
                if needed:
                    stack += needed
                    continue
                try:
                    self._found[top] = self._of(top)
                except Unknown:
                    self._found[top] = None
            stack.pop()
        return self._found[value]

    def _data(self, value: ir.Value) -> list[ir.Value]:
        node = value.producer()
        inputs = () if node is None else node.inputs
        return [v for v in inputs if v is not None and not self._known.has(v)]

    def _of(self, value: ir.Value) -> Limits:
        node = value.producer()
        if node is None:
            self._fed[value] = frozenset([value])
            require(value.is_graph_input())
            return _whole_type(given(value.dtype))
        data = self._data(value)
        origins = [self._fed[v] for v in data]
        self._fed[value] = frozenset[ir.Value]().union(*origins)
        require(data and sum(map(len, origins)) <= len(self._fed[value]))
        met = [given(self._found.get(v)) for v in data]
        if node.domain == "" and node.op_type in _RULES:
            return _RULES[node.op_type](self, node, met)
        require(len(met) == 1 and data[0] is node.inputs[0])
        if is_move(node):
            return _alike(met[0])
        require(is_elementwise(node))
        return self._tried(node, met[0])

    def _arrays(self, node: ir.Node) -> list[Array | None]:
        return [None if value is None else self._known.array(value) for value in node.inputs]

    def _tried(self, node: ir.Node, met: Limits) -> Limits:
        """Return the limits of the results of an elementwise operator, by evaluating it."""
        others = zip(node.inputs[1:], self._arrays(node)[1:], strict=True)
        values: dict[ir.Value, Any] = {v: array for v, array in others if v is not None}
        require(all(array is not None and array.size == 1 for array in values.values()))
        x, value = _between(met), given(node.inputs[0])
        dtype = given(value.dtype)
        if dtype.is_integer():
            x = np.unique(np.concatenate([x, np.arange(met.lo.min(), met.lo.min() + 256)]))
            x = np.rint(x[(met.lo.min() <= x) & (x <= met.hi.max())])
        try:
            with np.errstate(all="ignore"):
                values[value] = x.astype(dtype.numpy())
            y = np.asarray(compute(node, self._imports, values)).astype(np.float64)
        except (QGraphError, ValueError, TypeError) as error:
            raise Unknown from error
        y = y[~np.isnan(y)]
        require(y.size)
        return Limits(y.min(keepdims=True), y.max(keepdims=True))

    def _weighted(self, node: ir.Node, met: list[Limits]) -> Limits:
        if len(met) == 2:
            require(node.op_type == "MatMul")
            return _product(*met)
        _, array, bias = [*self._arrays(node), None][:3]
        weight = given(array)
        require(len(met) == 1 and weight.dtype.kind in "fiu")
        w = _by_result(node, weight.astype(np.float64))
        x = _alike(met[0])
        low, high = (float(limit[0]) for limit in (x.lo, x.hi))
        up, down = np.maximum(w, 0).sum(axis=1), np.minimum(w, 0).sum(axis=1)
        with np.errstate(all="ignore"):
            lo, hi = (_times(up, a) + _times(down, b) for a, b in ((low, high), (high, low)))
            if bias is not None and bias.size in (1, len(lo)):
                lo, hi = (side + bias.astype(np.float64).reshape(-1) for side in (lo, hi))
        return _numbers(lo, hi)

    def _normalized(self, node: ir.Node, met: list[Limits]) -> Limits:
        arrays = map(given, self._arrays(node)[1:5])
        scale, shift, mean, variance = (np.asarray(a, np.float64).reshape(-1) for a in arrays)
        require(len(met) == 1)
        with np.errstate(all="ignore"):
            factor = scale / np.sqrt(variance + node.attributes.get_float("epsilon", 1e-5))
            ends = [
                _times(factor, x) + (shift - _times(factor, mean)) for x in (met[0].lo, met[0].hi)
            ]
        return _numbers(np.minimum(*ends), np.maximum(*ends))

    def _added(self, node: ir.Node, met: list[Limits]) -> Limits:
        sides = []
        for value, array in zip(node.inputs, self._arrays(node), strict=True):
            if array is None:
                sides.append(_alike(given(self._found.get(given(value)))))
            else:
                ends = array.reshape(-1).astype(np.float64)
                require(ends.size == 1)
                sides.append(Limits(ends, ends))
        one, other = sides
        if node.op_type == "Sub":
            other = Limits(-other.hi, -other.lo)
        with np.errstate(all="ignore"):
            lo, hi = one.lo + other.lo, one.hi + other.hi
        return _numbers(lo, hi)


_RULES: dict[str, Callable[[Attained, ir.Node, list[Limits]], Limits]] = {
    **dict.fromkeys(_WEIGHTED, Attained._weighted),
    **dict.fromkeys(MEANS, lambda _self, _node, met: _alike(met[0])),
    "Add": Attained._added,
    "Sub": Attained._added,
    "BatchNormalization": Attained._normalized,
}


def _origin(value: ir.Value) -> ir.Value | None:
    """Return the value before data movement that ends in ``value``; None if there is none."""
    while (node := value.producer()) is not None and is_move(node):
        if node.inputs[0] is None:
            return None
        value = node.inputs[0]
    return value


def joins_data(node: ir.Node, known: KnownValues) -> bool:
    """Return whether a node adds two values that are not constant."""
    return node.op_type in ("Add", "Sub") and not any(
        operand is None or known.has(operand) for operand in node.inputs
    )


def _whole_type(dtype: ir.DataType) -> Limits:
    require(dtype not in (ir.DataType.STRING, ir.DataType.BOOL))
    if not dtype.is_integer():
        return Limits(np.array([-np.inf]), np.array([np.inf]))
    count = 2.0**dtype.bitwidth
    lo = -count / 2 if dtype.is_signed() else 0.0
    return Limits(np.array([lo]), np.array([lo + count - 1]))


def _between(met: Limits) -> npt.NDArray[np.float32]:
    lo, hi = met.lo.min(), met.hi.max()
    ends = np.array([lo, hi], np.float32)
    return np.unique(np.concatenate([ends, _SAMPLES[(lo <= _SAMPLES) & (hi >= _SAMPLES)]]))


def _alike(met: Limits) -> Limits:
    return Limits(met.lo.min(keepdims=True), met.hi.max(keepdims=True))


def _numbers(lo: Float64, hi: Float64) -> Limits:
    require(not (np.isnan(lo).any() or np.isnan(hi).any()))
    return Limits(lo, hi)


def _times(weights: Float64, limit: float | Float64) -> Float64:
    """Return products in which zero times infinity is zero."""
    reach = np.asarray(weights * limit)
    return np.where(np.asarray(weights) == 0, 0.0, reach)


def _product(one: Limits, other: Limits) -> Limits:
    """Return limits of sums of products of two values of the model."""
    signs = [(reach.lo.min() < 0, reach.hi.max() > 0) for reach in (one, other)]
    both = all(signs[0]) or all(signs[1])
    ends = [abs(float(end)) for reach in (one, other) for end in (reach.lo.min(), reach.hi.max())]
    require(both and max(ends[:2]) != 0 and max(ends[2:]) != 0)
    size = max(ends[:2]) * max(ends[2:])
    return Limits(np.array([-size]), np.array([size]))


def _by_result(node: ir.Node, weight: Float64) -> Float64:
    """Return weights ``[results, products]``: one row for each channel of the result."""
    if node.op_type == "ConvTranspose":
        parts = np.split(weight, node.attributes.get_int("group", 1), axis=0)
        return np.concatenate([np.moveaxis(p, 1, 0).reshape(p.shape[1], -1) for p in parts])
    if node.op_type == "Conv" or node.attributes.get_int("transB", 0) != 0:
        return weight.reshape(len(weight), -1)
    moved = weight if weight.ndim < 2 else np.moveaxis(weight, -1, 0)
    return moved.reshape(moved.shape[0] if weight.ndim > 1 else 1, -1)


def is_moved_to(
    value: ir.Value, known: KnownValues, outputs: Collection[ir.Value], *, everywhere: bool
) -> bool:
    """Return whether each difference in ``value`` reaches one of ``outputs`` unchanged.

    If not all elements of the value differ ``everywhere`` in the same way, operators that take some
    elements only may leave out those that differ.
    """
    if _is_empty(value):
        return False

    def following(step: ir.Value) -> list[ir.Value]:
        results: list[ir.Value] = []
        for node, index in step.uses():
            if known.has(node.outputs[0]) and not known.has(value):
                continue
            moves = index == 0 and is_move(node) and (everywhere or node.op_type in KEEP_ALL)
            if moves or (node.domain, node.op_type) == ("", "Concat"):
                results += [v for v in node.outputs if _has_elements(v, node)]
        return results

    moved = reached([value], following)
    return any(output in moved for output in outputs)


def later_operators(value: ir.Value, outputs: Collection[ir.Value]) -> list[str]:
    """Return the operators between a value and outputs that do not only move elements, by type."""
    after = reached([value], lambda v: [y for node, _ in v.uses() for y in node.outputs])
    nodes = [v.producer() for v in ancestors(outputs) if v is not value and v in after]
    return sorted({node.op_type for node in nodes if node is not None and not is_move(node)})


def _has_elements(value: ir.Value, node: ir.Node) -> bool:
    """Return whether the result of a node has elements, if symbolic dimensions are above 0."""
    if value.shape is None:
        return node.op_type in KEEP_ALL
    is_known = all(isinstance(size, int) or size.value for size in value.shape.dims)
    return not _is_empty(value) and (node.op_type in KEEP_ALL or is_known)


def _is_empty(value: ir.Value) -> bool:
    return value.shape is not None and 0 in value.shape.dims
