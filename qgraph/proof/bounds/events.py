"""Roundings of data to whole numbers; two models are compared at their roundings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Float64
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.numerics.rounding import Rounding
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
        if self.mantissa is None:
            return np.asarray(_round(self.kind, numbers))
        step = self.spacing(numbers)
        return np.asarray(_round(self.kind, numbers / step) * step)

    def spacing(self, numbers: Float64) -> Float64:
        """Return the distance of codes around each number; the larger one at a power of two."""
        if self.mantissa is None:
            return np.ones(())
        _, exponents = np.frexp(np.where(np.isfinite(numbers), numbers, 1.0))
        return np.asarray(np.ldexp(1.0, np.maximum(exponents - 1 - self.mantissa, 0)))

    def place(self, numbers: Float64) -> Float64:
        """Return the index of numbers among all numbers of the format, counted from 0.

        The index is linear between two numbers of the format, so thresholds are at half indices.
        """
        if self.mantissa is None:
            return numbers
        sizes = np.where(np.isfinite(numbers), np.abs(numbers), 0.0)
        _, exponents = np.frexp(sizes)
        doublings = np.maximum(exponents - 1 - self.mantissa, 0)
        steps = doublings * 2.0**self.mantissa + np.ldexp(sizes, -doublings)
        return np.asarray(np.where(np.isfinite(numbers), np.sign(numbers) * steps, numbers))


def _round(rounding: str, numbers: Float64) -> Float64:
    match rounding:
        case "Floor":
            return np.floor(numbers)
        case "Ceil":
            return np.ceil(numbers)
        case "Down":
            return np.trunc(numbers)
        case "Up":
            return np.asarray(np.sign(numbers) * np.ceil(np.abs(numbers)))
    return np.rint(numbers)


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
    """Check that whole numbers lie in the range of a type.

    Raises:
        Undecidable: they may not, and the result is not defined.
    """
    form = FORMATS.get(name)
    if not isinstance(form, IntFormat):
        return
    before = codes.event.before
    reach = np.floor(before.low - before.error), np.ceil(before.high + before.error)
    low, high = (np.clip(end, codes.low, codes.high) + codes.offset for end in reach)
    if not ((low >= form.lo).all() and (high <= form.hi).all()):
        raise Undecidable(OUT_OF_RANGE(f"a Cast to {name} of numbers beyond it is not defined"))
