"""Roundings of data to whole numbers, at which two models are compared; maxima before them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Float64
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.numerics.rounding import Rounding
from qgraph.ops.approximation import ZERO
from qgraph.proof.bounds.combination import Atoms, Combination
from qgraph.proof.bounds.quantity import Quantity
from qgraph.reasons import OUT_OF_RANGE, Undecidable


@dataclass(frozen=True, eq=False)
class Event:
    """A rounding of data to whole numbers in one model.

    Attributes:
        kind: "Round", "Floor", "Ceil", another rounding mode, or "Sign", which gives -1 and 1.
        before: the rounded function, in steps.
        node: the node that rounds.
        mantissa: bits of the mantissa of a minifloat, whose smallest step is 1; None for integers.
    """

    kind: str
    before: Quantity
    node: ir.Node
    mantissa: int | None = None

    def rounded(self, numbers: Float64) -> Float64:
        """Return the codes of exact numbers."""
        round_to_whole = _ROUNDINGS.get(self.kind, np.rint)
        if self.mantissa is None:
            return np.asarray(round_to_whole(numbers))
        step = self.spacing(numbers)
        return np.asarray(round_to_whole(numbers / step) * step)

    def spacing(self, numbers: Float64) -> Float64:
        """Return the distance of codes around each number; the larger one at a power of two."""
        if self.mantissa is None:
            return np.ones(())
        _, exponents = np.frexp(np.where(np.isfinite(numbers), numbers, 1.0))
        return np.asarray(np.ldexp(1.0, np.maximum(exponents - 1 - self.mantissa, 0)))

    def place(self, numbers: Float64) -> Float64:
        """Return the index of numbers in the format, linear between two of them, counted from 0."""
        if self.mantissa is None:
            return numbers
        sizes = np.where(np.isfinite(numbers), np.abs(numbers), 0.0)
        _, exponents = np.frexp(sizes)
        doublings = np.maximum(exponents - 1 - self.mantissa, 0)
        steps = doublings * 2.0**self.mantissa + np.ldexp(sizes, -doublings)
        return np.asarray(np.where(np.isfinite(numbers), np.sign(numbers) * steps, numbers))


_ROUNDINGS: dict[str, Callable[[Float64], Float64]] = {
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Down": np.trunc,
    "Up": lambda numbers: np.asarray(np.sign(numbers) * np.ceil(np.abs(numbers))),
}
"""Roundings that are not to nearest, by kind."""


@dataclass(frozen=True, eq=False)
class Pending:
    """Whole numbers ``clip(round(before), low, high) + offset`` that are not used yet."""

    event: Event
    low: Float64
    high: Float64
    offset: Float64

    def limited(self, name: str, end: Float64) -> Pending:
        """Return their maximum or minimum with whole numbers."""
        pick = np.maximum if name == "Max" else np.minimum
        code = end - self.offset
        return replace(self, low=pick(self.low, code), high=pick(self.high, code))


Operand = Quantity | Pending
Settle = Callable[[Pending], Quantity]

MINIFLOAT_ROUNDINGS = {
    Rounding.ROUND: "Round",
    Rounding.CEIL: "Ceil",
    Rounding.FLOOR: "Floor",
    Rounding.UP: "Up",
    Rounding.DOWN: "Down",
}
"""Kinds of roundings that commute with divisions by powers of two."""


def expect_inside(codes: Pending, name: str) -> None:
    """Raise Undecidable if whole numbers may leave the range of a type, which ONNX leaves open."""
    form = FORMATS.get(name)
    if not isinstance(form, IntFormat):
        return
    before = codes.event.before
    reach = np.floor(before.low - before.error), np.ceil(before.high + before.error)
    low, high = (np.clip(end, codes.low, codes.high) + codes.offset for end in reach)
    if not ((low >= form.lo).all() and (high <= form.hi).all()):
        raise Undecidable(OUT_OF_RANGE(f"a Cast to {name} of numbers beyond it is not defined"))


def in_order(x: Combination, y: Combination) -> tuple[Combination, Combination]:
    """Return the operands of a commutative function in an order of their own."""
    return (x, y) if x.serials <= y.serials else (y, x)


def extreme(atoms: Atoms, name: str, x: Quantity, y: Quantity) -> Quantity:
    """Return the maximum or minimum of two tensors; ``name`` is "Max" or "Min".

    With a relative error below 1, both ends ``t - e(t)`` and ``t + e(t)`` of what may be executed
    in place of a number t rise with t. So the result lies between the ends of the exact one.
    """
    pick = np.maximum if name == "Max" else np.minimum
    low, high = pick(x.low, y.low), pick(x.high, y.high)
    atom = atoms.make("function", name, in_order(x.meant, y.meant), (low, high))
    unit = None if x.unit is None or y.unit is None else np.minimum(x.unit, y.unit)
    absolute, relative = np.maximum(x.absolute, y.absolute), np.maximum(x.relative, y.relative)
    if not (relative < 1).all():
        absolute, relative = np.maximum(x.error, y.error), ZERO
    return Quantity(Combination.of(atom), low, high, absolute, relative, unit)


def extreme_codes(
    atoms: Atoms, name: str, codes: tuple[Operand, Operand], node: ir.Node
) -> Pending | None:
    """Return the maximum or minimum of codes as codes of the larger or smaller number.

    Roundings and limits are monotone, so this is the same, if both are equal for both tensors.
    Returns None for other data than codes, and for codes that are rounded or limited in two ways.
    """
    a, b = codes
    if not (isinstance(a, Pending) and isinstance(b, Pending)):
        return None
    ends = [(p.low, p.high, p.offset) for p in (a, b)]
    forms = [(p.event.kind, p.event.mantissa) for p in (a, b)]
    if forms[0] != forms[1] or not all(map(np.array_equal, *ends)):
        return None
    before = extreme(atoms, name, a.event.before, b.event.before)
    return replace(a, event=replace(a.event, before=before, node=node))
