"""The maximum or minimum of two tensors of data, and of codes before they are rounded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from qgraph.ops.approximation import ZERO
from qgraph.proof.bounds.combination import Atoms, Combination
from qgraph.proof.bounds.events import Operand, Pending
from qgraph.proof.bounds.quantity import Quantity


def in_order(x: Combination, y: Combination) -> tuple[Combination, Combination]:
    """Return the operands of a commutative function in an order of their own."""
    return (x, y) if x.serials <= y.serials else (y, x)


def extreme(atoms: Atoms, name: str, x: Quantity, y: Quantity) -> Quantity:
    """Return the maximum or minimum of two tensors.

    With a relative error below 1, both ends ``t - e(t)`` and ``t + e(t)`` of what may be executed
    in place of a number t rise with t. So the result lies between the ends of the exact one.

    Args:
        atoms: makes the atoms of both models.
        name: "Max" or "Min".
        x: a tensor.
        y: the other one.
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

    Args:
        atoms: as for :func:`extreme`.
        name: "Max" or "Min".
        codes: both tensors.
        node: the operator.

    Returns:
        None for other data than codes, and for codes that are rounded or limited in two ways.
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
