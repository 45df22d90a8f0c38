"""Slices of a graph: ancestors, descendants, dominators and cuts.

All walks are over values. Each takes a function from a value to the next ones, so that the caller
chooses which ones count: all operands, those of elementwise nodes only, or users.

    r = Relu(x)     ancestors([y])           y, a, b, r, x
    a = Neg(r)      between(y, [r])          Neg, Exp, Add
    b = Exp(r)      nearest_cut(y, is_relu)  r
    y = Add(a, b)   dominators(y)            y, r, x
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import onnx_ir as ir

from qgraph.graph.scopes import graphs_of, operands

_FOLLOWED = 128

Step = Callable[[ir.Value], Iterable[ir.Value]]
"""Returns the values next to a value; none where a walk ends."""


def sources(value: ir.Value) -> list[ir.Value]:
    """Return the values that ``value`` is computed from directly.

    They are the operands of its node, the outer values that subgraphs of the node use, and the
    results of these subgraphs.
    """
    node = value.producer()
    if node is None:
        return []
    return operands(node) + [result for graph in graphs_of(node) for result in graph.outputs]


def reached(
    starts: Iterable[ir.Value], step: Step, *, most: int | None = None
) -> dict[ir.Value, list[ir.Value]]:
    """Return the values that steps from ``starts`` lead to, each with the values next to it.

    Args:
        starts: where the walk begins; they come first.
        step: the values next to a value.
        most: stop before the next step if so many values are reached. Values from which no step was
            taken have no next ones.
    """
    ways: dict[ir.Value, list[ir.Value]] = {start: [] for start in starts}
    pending = deque(ways)
    while pending and (most is None or len(ways) < most):
        value = pending.popleft()
        ways[value] = list(dict.fromkeys(step(value)))
        for following in ways[value]:
            if following not in ways:
                ways[following] = []
                pending.append(following)
    return ways


def ancestors(
    values: Iterable[ir.Value], step: Step = sources, *, most: int | None = None
) -> list[ir.Value]:
    """Return ``values`` and all values that they are computed from, the nearest first.

    Args:
        values: where the walk begins.
        step: what a value is computed from.
        most: the number of values from which on the walk stops.
    """
    return list(reached(values, step, most=most))


def nearest_cut(
    end: ir.Value,
    is_member: Callable[[ir.Value], bool],
    step: Step = sources,
    *,
    most: int | None = None,
) -> list[ir.Value] | None:
    """Return the nearest values of a kind that cut ``end`` off from the inputs of the graph.

    None is returned if ``end`` is also computed from values that are not of the kind.

    Args:
        end: the result; it is not in the cut.
        is_member: whether a value is of the kind.
        step: what a value is computed from.
        most: the number of values from which on the walk stops.
    """
    ways = reached([end], lambda v: () if v is not end and is_member(v) else step(v), most=most)
    leaves = [value for value, following in ways.items() if not following]
    return leaves if all(leaf is not end and is_member(leaf) for leaf in leaves) else None


def between(
    end: ir.Value, starts: Collection[ir.Value], step: Step = sources, *, most: int | None = None
) -> list[ir.Node] | None:
    """Return the nodes that compute ``end`` from ``starts``, operands first.

    None is returned if other values without operands take part. The list is empty if ``end`` is one
    of ``starts``.

    Args:
        end: the result.
        starts: where the walk ends.
        step: what a value is computed from.
        most: the number of values from which on the walk stops.
    """
    ways = reached([end], lambda value: () if value in starts else step(value), most=most)
    if any(not following and value not in starts for value, following in ways.items()):
        return None
    order = nx.topological_sort(_flow(ways))
    nodes = dict.fromkeys(value.producer() for value in order if value not in starts)
    return [node for node in nodes if node is not None]


@dataclass(frozen=True, eq=False, slots=True)
class ValueChain:
    """A value and the values that every way to it passes, the nearest first."""

    value: ir.Value
    rest: ValueChain | None
    last: ir.Value

    def __iter__(self) -> Iterator[ir.Value]:
        """Yield the values."""
        chain: ValueChain | None = self
        while chain is not None:
            yield chain.value
            chain = chain.rest


class Dominators:
    """The dominators of values; chains that meet are one from there on.

    Args:
        step: what a value is computed from; it may not change.
    """

    def __init__(self, step: Step = sources) -> None:
        self._step = step
        self._chains: dict[ir.Value, ValueChain] = {}

    def of(self, value: ir.Value) -> ValueChain:
        """Return the values that every way to ``value`` passes; see :func:`dominators`."""
        passed: list[ir.Value] = []
        while (chain := self._chains.get(value)) is None:
            following = list(dict.fromkeys(self._step(value)))
            if len(following) != 1:
                chain = _linked(_parted(value, self._step) if following else [value])
                self._chains[value] = chain
                break
            passed.append(value)
            (value,) = following
        for each in reversed(passed):
            chain = self._chains[each] = ValueChain(each, chain, chain.last)
        return chain


def _linked(values: Sequence[ir.Value]) -> ValueChain:
    chain = ValueChain(values[-1], None, values[-1])
    for value in reversed(values[:-1]):
        chain = ValueChain(value, chain, chain.last)
    return chain


def dominators(value: ir.Value, step: Step = sources) -> list[ir.Value]:
    """Return the values that every way to ``value`` passes, it included, the nearest first.

    From where the ways part, about a hundred values are followed; dominators that lie farther away
    are not returned.

    Args:
        value: the end of all ways.
        step: what a value is computed from.
    """
    return list(Dominators(step).of(value))


def _parted(value: ir.Value, step: Step) -> list[ir.Value]:
    """Return the dominators of a value at which ways part."""
    ways = reached([value], step, most=_FOLLOWED)
    users = Counter(each for following in ways.values() for each in following)
    # Every way passes one of the values that wait; those whose users are all behind are ready.
    chain, waiting, ready = list[ir.Value](), {value}, [value]
    while ready:
        if len(waiting) == 1:
            chain += waiting
        each = ready.pop()
        if not ways[each]:
            break
        waiting.remove(each)
        waiting.update(ways[each])
        users.subtract(ways[each])
        ready += [operand for operand in ways[each] if not users[operand]]
    return chain


def _flow(ways: Mapping[ir.Value, Sequence[ir.Value]]) -> nx.DiGraph[Any]:
    """Return the graph that has an edge to each value from the values that it is computed from."""
    flow: nx.DiGraph[Any] = nx.DiGraph()
    flow.add_nodes_from(ways)
    flow.add_edges_from(
        (operand, value) for value, following in ways.items() for operand in following
    )
    return flow
