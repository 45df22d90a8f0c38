"""Which values are equal because equal operators made them from equal values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Class: TypeAlias = int
"""A set of equal values, by number; :meth:`Congruence.find` gives the number that stands for it."""

_Key: TypeAlias = tuple[Hashable, tuple[Class, ...]]


@dataclass(frozen=True, eq=False)
class _Term:
    """An operator on some operands, and the class of its result."""

    label: Hashable
    operands: tuple[Class, ...]
    result: Class


class Congruence:
    """Classes of equal values, closed under congruence: ``a = b`` implies ``f(a) = f(b)``.

    Args:
        commutative: whether the operands of an operator may be swapped, by its label.
    """

    def __init__(self, commutative: Callable[[Hashable], bool]) -> None:
        self._commutative = commutative
        self._parent: list[Class] = []
        self._uses: list[list[_Term]] = []
        self._terms: dict[_Key, _Term] = {}

    def new(self) -> Class:
        """Return a class that equals no other."""
        self._parent.append(len(self._parent))
        self._uses.append([])
        return len(self._parent) - 1

    def find(self, member: Class) -> Class:
        """Return the number of the class that ``member`` belongs to by now."""
        root = member
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[member] != root:
            self._parent[member], member = root, self._parent[member]
        return root

    def apply(self, label: Hashable, operands: Sequence[Class]) -> Class:
        """Return the class of an operator's result; equal applications share it."""
        key = self._key(label, operands)
        known = self._terms.get(key)
        if known is not None:
            return known.result
        term = self._terms[key] = _Term(label, tuple(operands), self.new())
        for operand in set(key[1]):
            self._uses[operand].append(term)
        return term.result

    def merge(self, one: Class, other: Class) -> None:
        """Make two classes one, and all that follows from it."""
        pending = [(one, other)]
        while pending:
            small, large = map(self.find, pending.pop())
            if small == large:
                continue
            if len(self._uses[small]) > len(self._uses[large]):
                small, large = large, small
            self._parent[small] = large
            for term in self._uses[small]:
                known = self._terms.setdefault(self._key(term.label, term.operands), term)
                if known is not term:
                    pending.append((term.result, known.result))
                self._uses[large].append(term)
            self._uses[small] = []

    def _key(self, label: Hashable, operands: Sequence[Class]) -> _Key:
        found = tuple(map(self.find, operands))
        return label, tuple(sorted(found)) if self._commutative(label) else found
