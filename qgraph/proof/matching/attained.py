"""Between which limits a value of a model can be, as far as its operators tell.

A region that differs says nothing about models in which its differing inputs never occur. So the
limits are looked for from inside: both have to be values that some input of the model gives. The
results of sums, such as those of a Conv, count as able to take every value between their limits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import QGraphError
from qgraph.ops.dispatch import Imports, compute
from qgraph.proof.matching.known_values import KnownValues
from qgraph.proof.matching.operators import is_elementwise, is_move

Array = npt.NDArray[Any]
Limits64 = npt.NDArray[np.float64]

_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_AVERAGES = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean"})

_SAMPLES = np.concatenate(
    [np.array([0.0, np.inf]), np.exp2(np.arange(-20.0, 128.0, 0.25))], dtype=np.float32
)
_SAMPLES = np.unique(np.concatenate([-_SAMPLES, _SAMPLES]))
"""Numbers at which elementwise operators are tried."""


@dataclass(frozen=True, eq=False)
class Limits:
    """The smallest and the largest number that were found to occur, by channel.

    Attributes:
        lo, hi: ``[channels]``, or ``[1]`` if all channels are alike.
        in_order: whether channels are where the sum had them, and were not moved.
    """

    lo: Limits64
    hi: Limits64
    in_order: bool = True

    def admit(self, channel: int, channels: int, first: float, last: float) -> bool:
        """Return whether a channel can have a value between two numbers.

        Args:
            channel: the channel.
            channels: how many there are. If they are not those of the limits, all channels of the
                limits have to admit the number, or one of them if there is one channel.
            first: the smaller number.
            last: the larger one.
        """
        fits = (self.lo <= last) & (first <= self.hi)
        if channels == 1:
            return bool(fits.any())
        own = self.in_order and len(fits) == channels
        return bool(fits[channel] if own else fits.all())


class Attained:
    """Finds the limits of values of one model.

    Args:
        known: the constants of the model.
        imports: domains of the model and their versions.
    """

    def __init__(self, known: KnownValues, imports: Imports) -> None:
        self._known = known
        self._imports = imports
        self._found: dict[ir.Value, Limits | None] = {}

    def source(self, value: ir.Value) -> Limits | None:
        """Return the limits of a value between which it can be any number; None if unknown.

        That is so for inputs of the model and for sums, and for what moves their elements.
        """
        start = value
        while (node := value.producer()) is not None and is_move(node):
            if node.inputs[0] is None or self._known.has(node.inputs[0]):
                return None
            value = node.inputs[0]
        if node is None:
            return self.limits(value) if self.is_fed(value) else None
        joins = node.op_type in ("Add", "Sub") and not any(
            operand is None or self._known.has(operand) for operand in node.inputs
        )
        is_sum = node.op_type in _WEIGHTED or node.op_type == "BatchNormalization" or joins
        limits = self.limits(value) if node.domain == "" and is_sum else None
        return None if limits is None else replace(limits, in_order=value is start)

    def is_fed(self, value: ir.Value) -> bool:
        """Return whether a value has the elements of an input of the model."""
        while (node := value.producer()) is not None and is_move(node):
            if node.inputs[0] is None:
                return False
            value = node.inputs[0]
        return node is None and value.is_graph_input() and not self._known.has(value)

    def limits(self, value: ir.Value) -> Limits | None:
        """Return the limits of a value; None if unknown."""
        stack = [value]
        while stack:
            top = stack[-1]
            if top not in self._found:
                needed = [v for v in self._data(top) if v not in self._found]
                if needed and len(stack) < 10_000:
                    stack += needed
                    continue
                self._found[top] = self._of(top)
            stack.pop()
        return self._found[value]

    def _data(self, value: ir.Value) -> list[ir.Value]:
        node = value.producer()
        operands = () if node is None else node.inputs
        return [v for v in operands if v is not None and not self._known.has(v)]

    def _of(self, value: ir.Value) -> Limits | None:
        node = value.producer()
        if node is None:
            return _whole_type(value) if value.is_graph_input() else None
        data = self._data(value)
        limits = [self._found.get(v) for v in data]
        met = [found for found in limits if found is not None]
        if not met or len(met) < len(limits):
            return None
        if is_move(node):
            one = len(data) == 1 and data[0] is node.inputs[0]
            return _alike(met[0]) if one else None
        if node.domain == "" and node.op_type in _RULES:
            return _RULES[node.op_type](self, node, met)
        if len(met) == 1 and is_elementwise(node) and data[0] is node.inputs[0]:
            return self._tried(node, met[0])
        return None

    def _constant(self, node: ir.Node, place: int) -> Array | None:
        value = node.inputs[place] if place < len(node.inputs) else None
        return None if value is None else self._known.array(value)

    def _tried(self, node: ir.Node, met: Limits) -> Limits | None:
        """Return the limits of the results of an elementwise operator, from trying it."""
        arrays = {v: self._known.array(v) for v in node.inputs[1:] if v is not None}
        if any(array is None or array.size != 1 for array in arrays.values()):
            return None
        x, value = _between(met), node.inputs[0]
        if value is None or value.dtype is None:
            return None
        if value.dtype.is_integer():
            x = np.unique(np.concatenate([x, np.arange(met.lo.min(), met.lo.min() + 256)]))
            x = np.rint(x[(met.lo.min() <= x) & (x <= met.hi.max())])
        known: dict[ir.Value, Any] = dict(arrays)
        try:
            with np.errstate(all="ignore"):
                known[value] = x.astype(value.dtype.numpy())
            y = np.asarray(compute(node, self._imports, known)).astype(np.float64)
        except (QGraphError, ValueError, TypeError):
            return None
        y = y[~np.isnan(y)]
        return Limits(y.min(keepdims=True), y.max(keepdims=True)) if y.size else None

    def _weighted(self, node: ir.Node, met: list[Limits]) -> Limits | None:
        if len(met) == 2:
            return _product(*met) if node.op_type == "MatMul" else None
        weight = self._constant(node, 1)
        bias = self._constant(node, 2) if len(node.inputs) > 2 else None
        if len(met) != 1 or weight is None or weight.dtype.kind not in "fiu":
            return None
        w = _by_result(node, weight.astype(np.float64))
        x = _alike(met[0])
        low, high = (float(limit[0]) for limit in (x.lo, x.hi))
        up, down = np.maximum(w, 0).sum(axis=1), np.minimum(w, 0).sum(axis=1)
        with np.errstate(all="ignore"):
            lo, hi = (_times(up, a) + _times(down, b) for a, b in ((low, high), (high, low)))
            if bias is not None and bias.size in (1, len(lo)):
                lo, hi = (side + bias.astype(np.float64).reshape(-1) for side in (lo, hi))
        return None if np.isnan(lo).any() or np.isnan(hi).any() else Limits(lo, hi)

    def _normalized(self, node: ir.Node, met: list[Limits]) -> Limits | None:
        arrays = [self._constant(node, place) for place in range(1, 5)]
        if len(met) != 1 or any(array is None for array in arrays):
            return None
        scale, shift, mean, variance = (
            np.asarray(array, np.float64).reshape(-1) for array in arrays
        )
        with np.errstate(all="ignore"):
            factor = scale / np.sqrt(variance + node.attributes.get_float("epsilon", 1e-5))
            ends = [_times(factor, limit) + (shift - _times(factor, mean)) for limit in _ends(met)]
        if any(np.isnan(end).any() for end in ends):
            return None
        return Limits(np.minimum(*ends), np.maximum(*ends))

    def _added(self, node: ir.Node, met: list[Limits]) -> Limits | None:
        operands = [v for v in node.inputs if v is not None]
        arrays = [None if not self._known.has(v) else self._known.array(v) for v in operands]
        sides = []
        for value, array in zip(operands, arrays, strict=True):
            if array is not None:
                if array.size != 1:
                    return None
                sides.append(Limits(*(np.full(1, float(array.reshape(-1)[0])),) * 2))
                continue
            found = self._found.get(value)
            if found is None:
                return None
            sides.append(_alike(found))
        one, other = sides
        if node.op_type == "Sub":
            other = Limits(-other.hi, -other.lo)
        with np.errstate(all="ignore"):
            lo, hi = one.lo + other.lo, one.hi + other.hi
        return None if np.isnan(lo).any() or np.isnan(hi).any() else Limits(lo, hi)


_RULES: dict[str, Callable[[Attained, ir.Node, list[Limits]], Limits | None]] = {
    **dict.fromkeys(_WEIGHTED, Attained._weighted),
    **dict.fromkeys(_AVERAGES, lambda _self, _node, met: _alike(met[0])),
    "Add": Attained._added,
    "Sub": Attained._added,
    "BatchNormalization": Attained._normalized,
}


def _whole_type(value: ir.Value) -> Limits | None:
    kind = value.dtype
    if kind is None or kind in (ir.DataType.STRING, ir.DataType.BOOL):
        return None
    if kind.is_integer():
        signed, bits = kind.is_signed(), kind.bitwidth
        lo, hi = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1) if signed else (0.0, 2.0**bits - 1)
    else:
        lo, hi = -np.inf, np.inf
    return Limits(np.array([lo]), np.array([hi]))


def _between(met: Limits) -> npt.NDArray[np.float32]:
    lo, hi = met.lo.min(), met.hi.max()
    ends = np.array([lo, hi], np.float32)
    return np.unique(np.concatenate([ends, _SAMPLES[(lo <= _SAMPLES) & (hi >= _SAMPLES)]]))


def _alike(met: Limits) -> Limits:
    """Return the limits that some channel has."""
    return Limits(met.lo.min(keepdims=True), met.hi.max(keepdims=True))


def _ends(met: list[Limits]) -> tuple[Limits64, Limits64]:
    return met[0].lo, met[0].hi


def _times(weights: Limits64, limit: float | Limits64) -> Limits64:
    """Return products in which zero times infinity is zero."""
    found = np.asarray(weights * limit)
    return np.where(np.asarray(weights) == 0, 0.0, found)


def _product(one: Limits, other: Limits) -> Limits | None:
    """Return limits of sums of products of two values of the model."""
    signs = [(found.lo.min() < 0, found.hi.max() > 0) for found in (one, other)]
    both = all(signs[0]) or all(signs[1])
    ends = [abs(float(end)) for found in (one, other) for end in (found.lo.min(), found.hi.max())]
    if not both or max(ends[:2]) == 0 or max(ends[2:]) == 0:
        return None
    size = max(ends[:2]) * max(ends[2:])
    return Limits(np.array([-size]), np.array([size]))


def _by_result(node: ir.Node, weight: Limits64) -> Limits64:
    """Return weights ``[results, products]``: those of one channel of the result in a row."""
    if node.op_type == "Conv":
        return weight.reshape(len(weight), -1)
    if node.op_type == "ConvTranspose":
        group = node.attributes.get_int("group", 1)
        parts = np.split(weight, group, axis=0)
        return np.concatenate([np.moveaxis(p, 1, 0).reshape(p.shape[1], -1) for p in parts])
    if node.op_type == "Gemm" and node.attributes.get_int("transB", 0) != 0:
        return weight.reshape(len(weight), -1)
    moved = weight if weight.ndim < 2 else np.moveaxis(weight, -1, 0)
    return moved.reshape(moved.shape[0] if weight.ndim > 1 else 1, -1)
