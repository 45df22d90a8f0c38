"""Evaluate definitions on quantities, with one rule for each primitive; see :mod:`.quantity`.

A rounding gives whole numbers, and two models are compared on these. The following operations up to
the codes (clips, an added zero point, casts) only limit or shift the numbers. :class:`Pending`
collects them. When an operation uses the codes, ``settle`` returns their atom.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Float64
from qgraph.numerics.minifloat import MINIFLOATS
from qgraph.numerics.primitives import NUMPY
from qgraph.numerics.rounding import Rounding
from qgraph.ops.approximation import (
    FLOAT32,
    SLACK,
    ZERO,
    FloatType,
    beyond_limits,
    first_overflow,
    granules,
    largest_of,
    multiple_of,
    product,
    rounded,
    sum_of,
)
from qgraph.proof.bounds.combination import Atoms, Combination
from qgraph.proof.bounds.quantity import (
    MINIFLOAT_ROUNDINGS,
    Event,
    Operand,
    Operation,
    Pending,
    Quantity,
    Settle,
    constant,
    expect_inside,
    extreme,
    extreme_codes,
    in_order,
)
from qgraph.proof.bounds.small_constants import SmallConstants
from qgraph.reasons import NO_BOUND, OUT_OF_RANGE, Undecidable
from qgraph.records import dataclass, replace

ENDLESS = np.full((), np.inf)


@dataclass(frozen=True, eq=False)
class _Condition:
    name: str
    data: Quantity


@dataclass(frozen=True, eq=False)
class _SignOf:
    data: Quantity


class QuantityTracer:
    """Evaluates primitives on quantities, for the definition of a node.

    Operations round by ``arithmetic``; ``settle`` returns the atom of codes; ``constants`` are
    shared with other nodes.

    Attributes:
        is_whole: whether operations are on integers.
    """

    def __init__(
        self,
        atoms: Atoms,
        settle: Settle,
        node: ir.Node,
        arithmetic: FloatType = FLOAT32,
        constants: SmallConstants | None = None,
    ) -> None:
        self.is_whole = False
        self.atoms = atoms
        self.settle = settle
        self.node = node
        self.arithmetic = arithmetic
        self._constants = constants or SmallConstants()

    def constant(self, array: Any) -> Quantity:
        """Return a constant of a definition."""
        return self._constants.of(np.asarray(array))

    def __getattr__(self, name: str) -> Callable[..., Operand]:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in NUMPY:
            raise Undecidable(NO_BOUND(f"there is no bound for {name}"))
        return partial(self._call, name)

    def quantity(self, operand: Any) -> Quantity:
        """Return the quantity of an operand: of pending codes, or of a constant."""
        if isinstance(operand, Pending):
            return self.settle(operand)
        if isinstance(operand, Quantity):
            return operand
        if isinstance(operand, _Condition | _SignOf):
            raise Undecidable(NO_BOUND("there is no bound for a comparison of data"))
        return self._constants.of(np.asarray(operand, np.float32))

    def _call(self, name: str, *operands: Any, **attributes: Any) -> Any:
        if name == "Where" and not _is_data(operands[0]):
            # What is not chosen may be NaN.
            chosen = self.quantity(operands[0]).numbers
            if chosen.all() or not chosen.any():
                return operands[1 if chosen.all() else 2]
        executed = [None if _is_data(o) else self.quantity(o) for o in operands]
        constants = [q for q in executed if q is not None and q.value is not None]
        if len(constants) == len(operands):
            return self._constants.folded(name, constants, attributes)
        rule = _RULES.get(name)
        if rule is None or (attributes and name != "Cast"):
            raise Undecidable(NO_BOUND(f"there is no bound for {name}"))
        if self.is_whole:
            return rule(self, *operands, **attributes)
        quantities = [self._as_float(operand) for operand in operands]
        result = rule(self, *quantities, **attributes)
        return self._recorded(result, name, quantities, attributes)

    def _as_float(self, operand: Any) -> Any:
        """Return integers rounded to the float type of an operation."""
        if _is_data(operand) and isinstance(operand, Quantity) and operand.unit is not None:
            return self.rounded(operand)
        return operand

    def _recorded(
        self, result: Any, name: str, operands: Sequence[Any], attributes: dict[str, Any]
    ) -> Any:
        is_new = isinstance(result, Quantity) and not any(result is o for o in operands)
        if not is_new or name not in _RECORDED or self.arithmetic.name != FLOAT32.name:
            return result
        quantities = tuple(map(self.quantity, operands))
        return replace(result, operation=Operation(name, quantities, attributes, result))

    def rounded(self, exact: Quantity) -> Quantity:
        """Return an exact result with the rounding error of its execution."""
        return rounded(exact, self.arithmetic)

    def _add(self, a: Any, b: Any, sign: float = 1.0) -> Operand:
        if isinstance(b, Pending) and not isinstance(a, Pending) and sign > 0:
            a, b = b, a
        if isinstance(a, Pending):
            shift = self.quantity(b)
            if shift.value is not None and _are_whole(shift.value):
                return replace(a, offset=a.offset + sign * shift.value)
        x, y = self.quantity(a), self.quantity(b)
        if _is_zero(y):
            return x
        if _is_zero(x) and sign > 0:
            return y
        return self.rounded(sum_of(x, y, sign))

    def _mul(self, a: Any, b: Any) -> Operand:
        for one, other in ((a, b), (b, a)):
            if isinstance(one, _SignOf):
                return _signed(one, other)
        x, y = self.quantity(a), self.quantity(b)
        if x.value is not None:
            x, y = y, x
        if y.value is not None:
            return self.rounded(multiple_of(x, y.meant.offset, y.value))
        ends = [product(i, j) for i in (x.low, x.high) for j in (y.low, y.high)]
        low, high = np.minimum.reduce(ends), np.maximum.reduce(ends)
        if x.meant.key == y.meant.key:
            low = np.maximum(low, 0.0)
        (one, f), (other, g) = x.meant.factored, y.meant.factored
        meant = self.atoms.multiple("product", in_order(f, g), one * other, (low, high))
        error = (
            product(x.largest, y.error) + product(y.largest, x.error) + product(x.error, y.error)
        )
        unit = None if x.unit is None or y.unit is None else x.unit * y.unit
        overflow = first_overflow(x, y)
        return self.rounded(Quantity(meant, low, high, error, ZERO, unit, overflow=overflow))

    def _div(self, a: Any, b: Any) -> Quantity:
        x, y = self.quantity(a), self.quantity(b)
        if y.value is None:
            return self._quotient(x, y)
        if (y.value == 0).any() or (y.meant.offset == 0).any():
            raise Undecidable(NO_BOUND("a division by 0 has no bound"))
        exact = multiple_of(x, 1 / y.meant.offset, 1 / y.value)
        mantissas, _ = np.frexp(y.value)
        if not (np.abs(mantissas) == 0.5).all():
            exact = replace(exact, unit=None)
        return self.rounded(exact)

    def _quotient(self, x: Quantity, y: Quantity) -> Quantity:
        """Return a division by data whose range does not contain 0."""
        least = np.minimum(np.abs(y.low), np.abs(y.high))
        share = y.absolute / least + y.relative
        if not (((y.low > 0) | (y.high < 0)) & (share < 1)).all():
            raise Undecidable(NO_BOUND("a division by data that may be 0 has no bound"))
        ends = [i / j for i in (x.low, x.high) for j in (y.low, y.high)]
        if not all(np.isfinite(end).all() for end in ends):
            raise Undecidable(OUT_OF_RANGE("the range of a quotient is not known"))
        low, high = np.minimum.reduce(ends), np.maximum.reduce(ends)
        slack = SLACK * largest_of(low, high)
        low, high = low - slack, high + slack
        (one, f), (other, g) = x.meant.factored, y.meant.factored
        meant = self.atoms.multiple("quotient", (f, g), one / other, (low, high))
        left = (1 - share) / (1 + SLACK)  # of the divisor
        absolute, relative = x.absolute / least / left, (x.relative + share) / left
        overflow = first_overflow(x, y)
        return self.rounded(Quantity(meant, low, high, absolute, relative, overflow=overflow))

    def _abs(self, x: Any) -> Quantity:
        q = self.quantity(x)
        if (q.low >= 0).all():
            return replace(q, operation=None)
        ends = np.abs(q.low), np.abs(q.high)
        low = np.where((q.low <= 0) & (q.high >= 0), 0.0, np.minimum(*ends))
        atom = self.atoms.make("function", "Abs", (q.meant,), (low, q.largest))
        return replace(q, meant=Combination.of(atom), low=low, high=q.largest)

    def _limit(self, name: str, *operands: Any) -> Operand:
        data = [operand for operand in operands if _is_data(operand)]
        result: Operand = data[0]
        for other in data[1:]:
            result = extreme_codes(self.atoms, name, (result, other), self.node) or extreme(
                self.atoms, name, self.quantity(result), self.quantity(other)
            )
        for operand in operands:
            if not _is_data(operand):
                result = self._limit_by(name, result, self.quantity(operand))
        return result

    def _limit_by(self, name: str, data: Operand, end: Quantity) -> Operand:
        number = ZERO if end.value is None else end.value
        if isinstance(data, Pending) and _are_whole(number):
            return data.limited(name, number)
        ends = (number, ENDLESS) if name == "Max" else (-ENDLESS, number)
        return self.clipped(self.quantity(data), *ends)

    def clipped(self, x: Quantity, low: Float64, high: Float64) -> Quantity:
        """Return data limited to a range, whose limits are numbers of the type of the data."""
        if (x.low >= low).all() and (x.high <= high).all():
            return x
        overflow = beyond_limits(x, low, high)
        bottom, top = np.clip(x.low, low, high), np.clip(x.high, low, high)
        meant = x.meant
        if len(meant.terms) == 1 and meant.terms[0][1].kind == "clip":
            coefficient, inner = meant.terms[0]
            if (coefficient == 1).all() and not meant.offset.any():
                meant = inner.arguments[0]
                before = inner.numbers
                low, high = (np.clip(end, low, high) for end in before)
        atom = self.atoms.make("clip", None, (meant,), (bottom, top), (low, high))
        unit = None
        if x.unit is not None:
            finite = [granules(np.where(np.isfinite(end), end, 0.0)) for end in (low, high)]
            unit = np.minimum(x.unit, np.minimum(*finite))
        # A result beyond an end is the end, as meant, unless the error leads back inside: then it
        # is that of a number at the end at most.
        kept = x.absolute + product(x.relative, largest_of(bottom, top))
        wide = kept > high - low
        absolute = np.where(wide, high - low, x.absolute)
        relative = np.where(wide, 0.0, x.relative)
        meant = Combination.of(atom)
        return Quantity(meant, bottom, top, absolute, relative, unit, overflow=overflow)

    def _whole(self, rounding: str, x: Any) -> Operand:
        if isinstance(x, Pending):
            return x
        return Pending(Event(rounding, self.quantity(x), self.node), -ENDLESS, ENDLESS, ZERO)

    def snapped(
        self, x: Quantity, mantissa: int, exponent: int, largest: float, mode: Rounding
    ) -> Quantity:
        """Return data, divided by its scale, rounded to a minifloat that saturates.

        ``mantissa`` is its number of bits, ``exponent`` that of the smallest normal number,
        ``largest`` the largest number.
        """
        step = np.asarray(2.0 ** (exponent - mantissa))
        last = np.asarray(largest) / step
        rounding = MINIFLOAT_ROUNDINGS.get(mode)
        if rounding is None or not _are_whole(last):
            raise Undecidable(NO_BOUND(f"a minifloat rounded by {mode} has no bound"))
        event = Event(rounding, multiple_of(x, 1 / step, 1 / step), self.node, mantissa)
        return multiple_of(self.settle(Pending(event, -last, last, ZERO)), step, step)

    def _compare(self, name: str, a: Any, b: Any) -> _Condition:
        if not _is_zero(self.quantity(b)):
            raise Undecidable(NO_BOUND(f"there is no bound for {name} of data"))
        return _Condition(name, self.quantity(a))

    def _where(self, condition: Any, a: Any, b: Any) -> Any:
        if isinstance(condition, _Condition):
            return self._chosen(condition, a, b)
        chosen = self.quantity(condition).value
        if chosen is None or not (chosen.all() or not chosen.any()):
            raise Undecidable(NO_BOUND("there is no bound for Where with a computed condition"))
        return a if chosen.any() else b

    def _chosen(self, condition: _Condition, a: Any, b: Any) -> Pending:
        if isinstance(a, Pending) and isinstance(b, Pending):
            kinds = a.event.kind, b.event.kind
            same = a.event.before is b.event.before is condition.data
            if condition.name == "Greater" and kinds == ("Floor", "Ceil") and same:
                return replace(a, event=replace(a.event, kind="Down"))
        elif condition.name == "GreaterOrEqual" and not (_is_data(a) or _is_data(b)):
            ends = self.quantity(a).value, self.quantity(b).value
            if ends[0] is not None and (ends[0] == 1).all() and (ends[1] == -1.0):
                event = Event("Sign", condition.data, self.node)
                return Pending(event, -np.ones(()), np.ones(()), ZERO)
        raise Undecidable(NO_BOUND("there is no bound for Where with a computed condition"))

    def _cast(self, x: Any, *, to: Any, **more: Any) -> Operand:
        name = to if isinstance(to, str) else ir.DataType(to).name
        if isinstance(x, Pending):
            expect_inside(x, name)
            return x
        q = self.quantity(x)
        if name in ("FLOAT", "DOUBLE"):
            return self.rounded(q)
        minifloat = MINIFLOATS.get(name)
        if minifloat is None or not more.get("saturate", 1):
            raise Undecidable(NO_BOUND(f"there is no bound for a Cast to {name}"))
        lowest = 1 - minifloat.bias
        return self.snapped(q, minifloat.mantissa_bits, lowest, minifloat.max_value, Rounding.ROUND)


_RULES: dict[str, Callable[..., Any]] = {
    "Identity": lambda _, x: x,
    "Add": QuantityTracer._add,
    "Sub": lambda tracer, a, b: tracer._add(a, b, -1.0),
    "Neg": lambda tracer, x: multiple_of(tracer.quantity(x), -np.ones(()), -np.ones(())),
    "Mul": QuantityTracer._mul,
    "Div": QuantityTracer._div,
    "Abs": QuantityTracer._abs,
    "Max": lambda tracer, *operands: tracer._limit("Max", *operands),
    "Min": lambda tracer, *operands: tracer._limit("Min", *operands),
    "Relu": lambda tracer, x: tracer._limit("Max", x, np.float32(0)),
    "Round": lambda tracer, x: tracer._whole("Round", x),
    "Floor": lambda tracer, x: tracer._whole("Floor", x),
    "Ceil": lambda tracer, x: tracer._whole("Ceil", x),
    "Sign": lambda tracer, x: _SignOf(tracer.quantity(x)),
    "Greater": lambda tracer, a, b: tracer._compare("Greater", a, b),
    "GreaterOrEqual": lambda tracer, a, b: tracer._compare("GreaterOrEqual", a, b),
    "IsNaN": lambda _, x: constant(np.zeros((), np.bool_)),
    "Where": QuantityTracer._where,
    "Cast": QuantityTracer._cast,
}


_RECORDED = frozenset({"Add", "Sub", "Mul", "Div", "Neg", "Abs", "Max", "Min", "Relu", "Cast"})
"""Primitives that can be executed on every whole number of a range."""


def _is_data(operand: Any) -> bool:
    if isinstance(operand, Quantity):
        return operand.value is None
    return isinstance(operand, Pending | _Condition | _SignOf)


def _are_whole(array: Float64) -> bool:
    return bool((array == np.rint(array)).all())


def _is_zero(q: Quantity) -> bool:
    return q.value is not None and not q.value.any() and not q.meant.offset.any()


_ROUNDED_SIGNED = {("Ceil", 0.0): "Up", ("Floor", 0.5): "HalfUp", ("Ceil", -0.5): "HalfDown"}


def _signed(sign: _SignOf, codes: Any) -> Pending:
    """Return ``sign(x) * round(|x| + offset)`` as a rounding of x."""
    if isinstance(codes, Pending):
        meant = codes.event.before.meant
        arguments = [atom.arguments for _, atom in meant.terms if atom.attributes == "Abs"]
        rounding = _ROUNDED_SIGNED.get((codes.event.kind, float(meant.offset.max())))
        if rounding and len(arguments) == 1 and arguments[0][0].key == sign.data.meant.key:
            before = replace(sign.data, absolute=codes.event.before.error)
            return Pending(Event(rounding, before, codes.event.node), -ENDLESS, ENDLESS, ZERO)
    raise Undecidable(NO_BOUND("there is no bound for the sign of data"))
