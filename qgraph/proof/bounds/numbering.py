"""Find the offset between the codes of two roundings.

A bias and the limits of codes may both differ by the same number. Then either the two models number
equal codes differently, or their codes differ. The decoders decide: in the first case, the codes of
real zero differ by the same number.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Float64
from qgraph.proof.bounds.combination import Atom
from qgraph.proof.bounds.evaluate import Evaluation
from qgraph.proof.bounds.events import Pending
from qgraph.proof.bounds.quantity import Quantity


def zeros_of(side: Evaluation) -> dict[Atom, list[Float64]]:
    """Return the codes of real zero, by the atoms of the decoded codes.

    There may be several: part of a decoder, such as a Sub, may also be read as a decoder.
    """
    zeros: dict[Atom, list[Float64]] = {}
    kinds = ((value.dtype, q) for value, q in side.values.items())
    reals = [q for dtype, q in kinds if dtype is not None and dtype.is_floating_point()]
    for q in (*side.decoded, *reals):
        if not isinstance(q, Quantity) or q.value is not None:
            continue
        terms = [(c, atom) for c, atom in q.meant.terms if c.any()]
        if len(terms) != 1 or not (terms[0][0] > 0).all():
            continue
        ((factor, atom),) = terms
        atom = source_of(atom)
        if atom.kind == "codes":
            zeros.setdefault(atom, []).append(-q.meant.offset / factor)
    return zeros


def source_of(atom: Atom) -> Atom:
    """Return the atom before its elements were moved."""
    while atom.kind == "moved" and len(atom.arguments[0].terms) == 1:
        ((_, atom),) = atom.arguments[0].terms
    return atom


def offset_of(side: Evaluation, node: ir.Node | None) -> Float64 | None:
    """Return the zero point that a node adds after rounding; None if its result is not codes."""
    operand = None if node is None else side.values.get(node.outputs[0])
    return operand.offset if isinstance(operand, Pending) else None


def moved_by(
    delta: Float64,
    offsets: tuple[Float64 | None, Float64 | None],
    zeros: tuple[Sequence[Float64], Sequence[Float64]],
) -> float:
    """Return the error of the assumed offset between the codes of candidate and reference.

    Args:
        delta: assumed code of the candidate minus code of the reference.
        offsets: zero points that both models add after rounding, if the codes are stored.
        zeros: codes of real zero, in the numbering of the reference.
    """
    ours, theirs = offsets
    if ours is not None and theirs is not None and not (delta + theirs - ours).any():
        return 0.0  # stored codes are the same numbers
    apart = [np.rint(there - here) for here, there in product(*zeros)]
    if not all(np.isfinite(each).all() for each in apart):
        return 0.0
    return min((float(each.reshape(-1)[0]) for each in apart), key=abs)
