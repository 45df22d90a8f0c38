"""Slices of a graph: ancestors, descendants, dominators and cuts.

All functions walk over values. Their argument ``step`` returns the next values of a value, so that
the caller chooses them: all operands, operands of elementwise nodes only, or users. With ``most``,
a walk stops at that number of values.

    r = Relu(x)     ancestors([y])           y, a, b, r, x
    a = Neg(r)      between(y, [r])          Neg, Exp, Add
    b = Exp(r)      nearest_cut(y, is_relu)  r
    y = Add(a, b)   dominators(y)            y, r, x
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import onnx_ir as ir

from qgraph.graph.scopes import graphs_of, operands
from qgraph.records import dataclass

Step = Callable[[ir.Value], Iterable[ir.Value]]
"""Returns the values next to a value; empty at the end of a walk."""


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
    """Return the values that are reachable from ``starts``, each with the values next to it.

    The starts come first. The walk stops after ``most`` values; those that were not expanded have
    no next ones.
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
    """Return ``values`` and all values that they are computed from, the nearest first."""
    return list(reached(values, step, most=most))


def nearest_cut(
    end: ir.Value,
    is_member: Callable[[ir.Value], bool],
    step: Step = sources,
    *,
    most: int | None = None,
) -> list[ir.Value] | None:
    """Return the nearest values of a kind that cut ``end`` off from the inputs of the graph.

    None is returned if ``end``, which is not in the cut, also depends on values of another kind.
    """
    ways = reached([end], lambda v: () if v is not end and is_member(v) else step(v), most=most)
    leaves = [value for value, following in ways.items() if not following]
    return leaves if all(leaf is not end and is_member(leaf) for leaf in leaves) else None


def between(
    end: ir.Value, starts: Collection[ir.Value], step: Step = sources, *, most: int | None = None
) -> list[ir.Node] | None:
    """Return the nodes that compute ``end`` from ``starts``, operands first.

    None is returned if ``end`` also depends on other values without operands. The list is empty if
    ``end`` is one of ``starts``.
    """
    ways = reached([end], lambda value: () if value in starts else step(value), most=most)
    if any(not following and value not in starts for value, following in ways.items()):
        return None
    users: dict[ir.Value, list[ir.Value]] = {value: [] for value in ways}
    for value, following in ways.items():
        for near in following:
            users[near].append(value)
    missing = {value: len(following) for value, following in ways.items()}
    order = [value for value, following in ways.items() if not following]
    for value in order:  # grows by the values whose operands are all in it
        for user in users[value]:
            missing[user] -= 1
            if not missing[user]:
                order.append(user)
    nodes = dict.fromkeys(value.producer() for value in order if value not in starts)
    return [node for node in nodes if node is not None]


@dataclass(frozen=True, eq=False, slots=True)
class ValueChain:
    """Linked list of a value and the values on all paths to it (its dominators), nearest first.

    Attributes:
        value: the value.
        rest: the chain after it; None at its end.
        far: a later part of the chain, for searches in logarithmic time. None at its end.
        last: the farthest value.
        length: the number of values.
    """

    value: ir.Value
    rest: ValueChain | None
    far: ValueChain | None
    last: ir.Value
    length: int

    def __iter__(self) -> Iterator[ir.Value]:
        """Yield the values."""
        chain: ValueChain | None = self
        while chain is not None:
            yield chain.value
            chain = chain.rest


class Dominators:
    """The dominators of values; chains share their common parts. Operands must not change."""

    def __init__(self, step: Step = sources) -> None:
        self._step = step
        self._chains: dict[ir.Value, ValueChain] = {}

    def of(self, value: ir.Value) -> ValueChain:
        """Return the values on all paths to ``value``; see :func:`dominators`."""
        chains = self._chains
        pending: list[tuple[ir.Value, list[ir.Value] | None]] = [(value, None)]
        while pending:
            each, following = pending.pop()
            if each in chains:
                continue
            if following is None:
                following = list(self._step(each))
                pending += [(each, following), *((operand, None) for operand in following)]
            else:
                chains[each] = _chain(each, _meeting([chains[operand] for operand in following]))
        return chains[value]


def _chain(value: ir.Value, rest: ValueChain | None) -> ValueChain:
    """Return a chain extended by a value at its front, with a jump."""
    if rest is None:
        return ValueChain(value, None, None, value, 1)
    jump = rest.far or rest
    behind = jump.far or jump
    is_even = rest.length - jump.length == jump.length - behind.length
    return ValueChain(value, rest, behind if is_even else rest, rest.last, rest.length + 1)


def _meeting(chains: Sequence[ValueChain]) -> ValueChain | None:
    """Return the common part of chains; None if they end differently."""
    meeting = None
    for chain in chains:
        one, other = sorted((meeting or chain, chain), key=lambda each: each.length)
        while other.rest is not None and other.far is not None and other.length > one.length:
            other = other.far if other.far.length >= one.length else other.rest
        while one is not other:
            if one.rest is None or one.far is None or other.rest is None or other.far is None:
                return None
            is_behind = one.far is not other.far
            one, other = (one.far, other.far) if is_behind else (one.rest, other.rest)
        meeting = one
    return meeting


def dominators(value: ir.Value, step: Step = sources) -> list[ir.Value]:
    """Return the values on all paths to ``value``, including it, the nearest first."""
    return list(Dominators(step).of(value))
