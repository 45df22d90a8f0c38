"""Which elements of a weight have one scale, and where the weight may be cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_ALIGNED = 8
"""Elements after which codes of any width end at a whole byte."""


@dataclass(frozen=True)
class Groups:
    """Which elements of a weight, seen as ``[outer, length, inner]``, have one scale.

    Attributes:
        outer, length, inner: sizes.
        size: elements along ``length`` that share a scale; the last ones may be fewer.
        spread: whether the groups at one place of ``length`` are one group, whatever the outer and
            the inner index: scales of the whole tensor, or of an axis.
    """

    outer: int
    length: int
    inner: int
    size: int
    spread: bool = False

    @classmethod
    def blocks(cls, shape: Sequence[int], axis: int, size: int) -> Groups:
        """Return blocks of ``size`` elements along ``axis``."""
        return cls(product_of(shape[:axis]), shape[axis], product_of(shape[axis + 1 :]), size)

    @classmethod
    def channels(cls, shape: Sequence[int], axis: int) -> Groups:
        """Return one group for each index of ``axis``."""
        outer, inner = product_of(shape[:axis]), product_of(shape[axis + 1 :])
        if shape[axis] == 1:
            return cls.tensor(shape)
        if outer == 1:
            return cls(shape[axis], inner, 1, max(inner, 1))
        return cls(outer, shape[axis], inner, 1, spread=True)

    @classmethod
    def tensor(cls, shape: Sequence[int]) -> Groups:
        """Return one group of all elements."""
        count = product_of(shape)
        return cls(1, count, 1, count, spread=True)

    @property
    def count(self) -> int:
        """Groups along ``length``."""
        return -(-self.length // self.size)

    @property
    def scales(self) -> int:
        """How many scales there are."""
        return self.count if self.spread else self.outer * self.count * self.inner

    def pieces(self, part: Box, elements: int) -> Iterator[Box]:
        """Cut a box into boxes of about ``elements``, each of whole groups in a row."""
        row = self.length * self.inner
        if self.spread and self.count == 1:
            # One group of everything is cut anywhere.
            for start in range(part.first, part.last, elements):
                yield Box(0, 1, start, min(start + elements, part.last))
            return
        block = self.size * self.inner
        if row <= elements and (part.first, part.last) == (0, self.length):
            step = max(elements // max(row, 1), 1)
            for top in range(part.top, part.bottom, step):
                yield Box(top, min(top + step, part.bottom), 0, self.length)
            return
        step = max(elements // max(block, 1), 1) * self.size
        for top in range(part.top, part.bottom):
            for start in range(part.first, part.last, step):
                yield Box(top, top + 1, start, min(start + step, part.last))

    def parts(self, elements: int) -> list[Box]:
        """Cut everything into boxes of about ``elements`` whose codes begin at whole bytes."""
        row = self.length * self.inner
        single = self.spread and self.count == 1
        if self.outer == 1 or (row > elements and row % _ALIGNED == 0 and self.size % 4 == 0):
            unit = _ALIGNED * (1 if single else self.size)
            step = max(elements // max(unit * self.inner, 1), 1) * unit
            if self.outer == 1 or (self.count * self.inner) % _ALIGNED == 0:
                return [
                    Box(top, top + 1, start, min(start + step, self.length))
                    for top in range(self.outer)
                    for start in range(0, self.length, step)
                ]
        rows = max(elements // max(row * _ALIGNED, 1), 1) * _ALIGNED
        return [
            Box(top, min(top + rows, self.outer), 0, self.length)
            for top in range(0, self.outer, rows)
        ]


@dataclass(frozen=True)
class Box:
    """Outer indices from ``top`` to ``bottom``, and places along the length, ends excluded."""

    top: int
    bottom: int
    first: int
    last: int


def product_of(sizes: Sequence[int]) -> int:
    """Return the product of sizes, 1 of none."""
    product = 1
    for size in sizes:
        product *= size
    return product
