"""Sizes of dimensions: numbers, polynomials over the open sizes of inputs, or unknown.

The open sizes of a model's inputs are atoms, such as ``N``. A :class:`Size` is a polynomial over
atoms with integer coefficients; an inexact quotient, and the minimum of a size and a number, are
separate atoms::

    Flatten of [N, 3, 8]        ->  [N, 24]
    stride 2 over H + 2         ->  [floor((H)/2) + 1]
    Reshape of [N, 24] to [-1]  ->  [24*N]
    Slice of [64] from 0 to N   ->  [min(N, 64)]

Polynomials have one form, so equal texts mean equal sizes. Sizes with different texts may still be
equal. An atom is at least 0, and a product of atoms is below :data:`LIMIT`: this holds for every
tensor that fits in memory, and prevents overflow of int64 arithmetic on sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TypeAlias

LIMIT = 1 << 40
"""Products of open sizes are below this number."""

INT64 = -(1 << 63), (1 << 63) - 1

_MOST_TERMS = 24
"""Polynomials of more terms are treated as unknown."""

_Monomial: TypeAlias = tuple[str, ...]


class Size:
    """A polynomial over open sizes that is not a number.

    ``terms`` has the coefficients that are not zero, by the sorted atoms of the product.
    """

    __slots__ = ("__dict__", "terms")

    def __init__(self, terms: Mapping[_Monomial, int]) -> None:
        self.terms = dict(sorted(terms.items(), key=lambda term: (-len(term[0]), term[0])))

    @cached_property
    def text(self) -> str:
        """The polynomial in its one form, such as ``4*N + 1``."""
        parts = []
        for atoms, factor in self.terms.items():
            size = abs(factor)
            shown = "*".join((*([str(size)] if size != 1 or not atoms else []), *atoms))
            parts.append(f"{'-' if factor < 0 else '+'} {shown}")
        first, *rest = parts
        return " ".join((first[2:] if first[0] == "+" else f"-{first[2:]}", *rest))

    def at(self, numbers: Mapping[str, int]) -> int:
        """Return the number for a number of each open size."""
        parts = (
            factor * math.prod(numbers[atom] for atom in atoms)
            for atoms, factor in self.terms.items()
        )
        return sum(parts)

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Size) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


Dim: TypeAlias = int | Size | None
"""A size: a number, a polynomial, or None if unknown."""


def symbol(name: str) -> Size:
    """Return the open size ``name``."""
    return Size({(name,): 1})


def add(a: Dim, b: Dim) -> Dim:
    """Return ``a + b``."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if a is None or b is None:
        return None
    total = dict(_terms(a))
    for atoms, factor in _terms(b).items():
        total[atoms] = total.get(atoms, 0) + factor
    return _size(total)


def multiply(a: Dim, b: Dim) -> Dim:
    """Return ``a * b``; 0 times anything is 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if a == 0 or b == 0:
        return 0
    if a is None or b is None:
        return None
    total: dict[_Monomial, int] = {}
    for left, factor in _terms(a).items():
        for right, other in _terms(b).items():
            atoms = tuple(sorted(left + right))
            total[atoms] = total.get(atoms, 0) + factor * other
    return _size(total)


def subtract(a: Dim, b: Dim) -> Dim:
    """Return ``a - b``."""
    return add(a, multiply(-1, b))


def product(dims: Iterable[Dim]) -> Dim:
    """Return the product of some sizes, 1 for none."""
    dims = tuple(dims)
    if 0 in dims:
        return 0
    total: Dim = 1
    for dim in dims:
        total = multiply(total, dim)
    return total


def floor_divide(a: Dim, by: int) -> Dim:
    """Return ``a / by`` rounded down, for ``by`` above 0."""
    if isinstance(a, int):
        return a // by
    if a is None or by < 1:
        return None
    whole = {atoms: factor // by for atoms, factor in a.terms.items()}
    rest = {atoms: factor % by for atoms, factor in a.terms.items() if factor % by}
    constant = rest.pop((), 0)
    if not rest:
        return _size(whole)
    common = math.gcd(by, *rest.values())
    rest = {atoms: factor // common for atoms, factor in rest.items()}
    rest[()] = constant // common
    below = Size({atoms: factor for atoms, factor in rest.items() if factor})
    return add(_size(whole), symbol(f"floor(({below.text})/{by // common})"))


def least(a: Dim, limit: int) -> Dim:
    """Return the minimum of a size and a positive number; None if the size may be negative."""
    if isinstance(a, int):
        return min(a, limit) if a >= 0 else None
    return None if a is None or bounds(a)[0] < 0 else symbol(f"min({a.text}, {limit})")


def _limit(a: Size, of: Size) -> int | None:
    """Return the number if a size is the minimum of a size and a number."""
    head, _, number = a.text.removesuffix(")").rpartition(", ")
    return int(number) if head == f"min({of.text}" and number.isdigit() else None


def limits_of(a: Dim, b: Dim) -> dict[str, int]:
    """Return the upper bound of an open size, by its text, if two sizes broadcast.

    ``N`` and ``min(N, 64)`` broadcast only up to 64, see :func:`broadcast`.
    """
    if not isinstance(a, Size) or not isinstance(b, Size):
        return {}
    limits = {a.text: _limit(b, a), b.text: _limit(a, b)}
    return {text: number for text, number in limits.items() if number is not None and number > 1}


def exact_divide(a: Dim, by: Dim) -> Dim:
    """Return the polynomial ``c`` with ``a == by * c``, None if there is none or it is unknown."""
    if a is None or by is None or by == 0:
        return None
    quotient: dict[_Monomial, int] = {}
    rest: Dim = a
    (atoms, factor), *_ = sorted(_terms(by).items(), key=_order, reverse=True)
    while rest != 0:
        if rest is None or len(quotient) > _MOST_TERMS:
            return None
        (top, amount), *_ = sorted(_terms(rest).items(), key=_order, reverse=True)
        left = list(top)
        for atom in atoms:
            if atom not in left:
                return None
            left.remove(atom)
        if amount % factor or tuple(left) in quotient:
            return None
        step = {tuple(left): amount // factor}
        quotient |= step
        rest = subtract(rest, multiply(by, _size(step)))
    return _size(quotient)


def bounds(a: int | Size) -> tuple[int, int]:
    """Return numbers between which a size lies, both included."""
    if isinstance(a, int):
        return a, a
    low = high = a.terms.get((), 0)
    for atoms, factor in a.terms.items():
        if atoms:
            low += min(factor, 0) * LIMIT
            high += max(factor, 0) * LIMIT
    return low, high


def merged(a: Dim, b: Dim) -> Dim:
    """Return the more precise one of two descriptions of one size.

    Raises:
        ValueError: they are different numbers.
    """
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise ValueError(f"{a} and {b} cannot be one size")
    return b if a is None or (isinstance(b, int) and not isinstance(a, int)) else a


def broadcast(a: Dim, b: Dim) -> Dim:
    """Return the size to which two sizes broadcast, if they do.

    An open size against a number other than 1 is 1 or that number. Of two open sizes either one may
    be 1, unless they are the same. ``N`` and ``min(N, 64)`` broadcast to ``N``: if they differed,
    the latter would be 64, which does not broadcast.

    Raises:
        ValueError: they do not broadcast.
    """
    if a == 1 or a == b:
        return b
    if b == 1:
        return a
    if isinstance(a, int) and isinstance(b, int):
        raise ValueError(f"{a} and {b} do not broadcast")  # noqa: TRY004 - the types are right
    if isinstance(a, int) or isinstance(b, int):
        return a if isinstance(a, int) else b
    if a is None or b is None:
        return None
    return a if _limit(b, a) else b if _limit(a, b) else None


def _terms(a: int | Size) -> Mapping[_Monomial, int]:
    return a.terms if isinstance(a, Size) else {(): a} if a else {}


def _order(term: tuple[_Monomial, int]) -> tuple[int, _Monomial]:
    return len(term[0]), term[0]


def _size(terms: Mapping[_Monomial, int]) -> Dim:
    kept = {atoms: factor for atoms, factor in terms.items() if factor}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    return None if len(kept) > _MOST_TERMS else Size(kept)
