"""The registry of rules: what the results of an operator are, given what is known of its operands.

A rule is a function of a :class:`Call` that returns one fact for each output, in order; missing
ones are unknown. It raises :class:`Unknown`, or a ValueError or IndexError for a node that violates
its definition, where nothing follows. A fact holds given that the node succeeds::

    @rule("Transpose")
    def transpose(call: Call) -> list[Fact]:
        x = call[0]
        perm = call.integers("perm") or ...
        return [Fact(x.dtype, [x.shape[axis] for axis in perm])]

An operator without a rule has results of which nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from qgraph.graph.inference.facts import UNKNOWN, Fact, Shape


class Unknown(Exception):  # noqa: N818 - no error: nothing follows
    """Nothing follows from the definition of an operator."""


@dataclass(frozen=True)
class Call:
    """A node with what is known of its operands.

    Attributes:
        node: the node.
        version: the imported version of its domain.
        operands: facts of the inputs; None for an absent one.
    """

    node: ir.Node
    version: int
    operands: Sequence[Fact | None]

    def __getitem__(self, place: int) -> Fact:
        """Return what is known of an operand that has to be there."""
        if not self.has(place):
            raise Unknown
        return self.operands[place] or UNKNOWN

    def has(self, place: int) -> bool:
        """Return whether there is an operand at ``place``."""
        return len(self.operands) > place and self.operands[place] is not None

    def optional(self, place: int) -> Fact:
        """Return what is known of an operand that may be absent."""
        return self[place] if self.has(place) else UNKNOWN

    def shape(self, place: int) -> Shape:
        """Return the shape of an operand; nothing follows where its rank is not known."""
        shape = self[place].shape
        if shape is None:
            raise Unknown
        return shape

    def axis(self, name: str, default: int, rank: int) -> int:
        """Return an attribute that counts dimensions, from the end if negative, as a place."""
        return place_of(self.integer(name, default), rank)

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        attribute = self._attribute(name, ir.AttributeType.INT)
        return default if attribute is None else int(attribute.as_int())

    def integers(self, name: str) -> list[int] | None:
        """Return a list of integers, None if the attribute is absent."""
        attribute = self._attribute(name, ir.AttributeType.INTS)
        return None if attribute is None else [int(number) for number in attribute.as_ints()]

    def text(self, name: str, default: str) -> str:
        """Return an attribute that is a text."""
        attribute = self._attribute(name, ir.AttributeType.STRING)
        return default if attribute is None else str(attribute.as_string())

    def dtype(self, name: str) -> ir.DataType | None:
        """Return an attribute that names an element type, None if it is absent or 0."""
        number = self.integer(name, 0)
        return ir.DataType(number) if number else None

    def numbers(self, place: int) -> list[int]:
        """Return the elements of an operand, all of which have to be plain numbers."""
        array = self[place].array
        if array is None or array.dtype.kind not in "iu":
            raise Unknown
        return [int(number) for number in array.reshape(-1)]

    def listed(self, place: int, name: str, since: int) -> list[int] | None:
        """Return numbers that are an attribute before opset ``since``, and then an operand."""
        if self.version < since:
            return self.integers(name)
        return self.numbers(place) if self.has(place) else None

    def _attribute(self, name: str, kind: ir.AttributeType) -> ir.Attr | None:
        attribute = self.node.attributes.get(name)
        if attribute is None:
            return None
        if attribute.is_ref() or attribute.type is not kind:
            raise Unknown
        return attribute


Rule: TypeAlias = Callable[[Call], Sequence[Fact]]

RULES: dict[tuple[str, str], Rule] = {}
"""Rules by domain and name of the operator."""


def rule(*names: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Return a decorator that registers the rule of some operators of one domain."""

    def register(function: Rule) -> Rule:
        for name in names:
            if RULES.setdefault((domain, name), function) is not function:
                raise ValueError(f"two rules for {domain}::{name}")
        return function

    return register


def place_of(axis: int, rank: int) -> int:
    """Return the place of a dimension, counted from the end if negative."""
    if not -rank <= axis < rank:
        raise Unknown
    return axis % rank


def places_of(axes: Sequence[int], rank: int) -> list[int]:
    """Return the places of some different dimensions."""
    places = [place_of(axis, rank) for axis in axes]
    if len(set(places)) < len(places):
        raise Unknown
    return places


def common_type(*facts: Fact) -> ir.DataType | None:
    """Return the type that some operands share by definition, None if unknown or contradictory."""
    kinds = {fact.dtype for fact in facts} - {None}
    return kinds.pop() if len(kinds) == 1 else None
