"""A difference between two values of two models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from qgraph.graph.interface import Pair
from qgraph.numerics import Array


@dataclass(frozen=True, eq=False)
class Difference:
    """Two values that differ between two models which are otherwise the same.

    Attributes:
        entry: the values that both models compute equally; None if the exit is constant.
        exit: the two values.
        constants: the arrays of the exit, if it is constant.
        outputs: outputs of the reference that depend on the exit.
        numbers: numbers of the entry on which the values differ, if it can take them.
        bits: whether NaN and the signs of zeros count.
    """

    entry: Pair | None
    exit: Pair
    constants: tuple[Array, Array] | None
    outputs: Sequence[ir.Value]
    numbers: Sequence[float]
    bits: bool
