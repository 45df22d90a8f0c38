"""A model in standard operators, for runtimes that do not know its quantizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from qgraph.graph.constants import overridable
from qgraph.graph.scopes import bodies
from qgraph.model import Model
from qgraph.ops.operator import operator_of
from qgraph.standardize import standardize

_THEIRS = frozenset({"", "ai.onnx", "com.microsoft"})


@dataclass(frozen=True)
class Standardized:
    """A model whose quantizers are spelled in standard operators.

    Attributes:
        model: with the inputs and outputs of the model it was made from.
        respelled: how many quantizers are spelled anew.
        left: names of the operators of those that are not.
    """

    model: Model
    respelled: int
    left: Sequence[str]


def in_standard_operators(
    model: Model, batches: Sequence[Mapping[str, Any]]
) -> Standardized | None:
    """Return ``model`` with each quantizer in standard operators that are equal in every bit.

    None where there is nothing to spell anew, or where inputs are given for initializers, which
    are constants in the form.

    Args:
        model: is not changed.
        batches: inputs that the form has to take.
    """
    fixed = {value.name for value in overridable(model.ir.graph)}
    if any(not fixed.isdisjoint(batch) for batch in batches):
        return None
    made = standardize(model.ir)
    if made is model.ir:
        return None
    before, left = _quantizers(model.ir), _quantizers(made)
    return Standardized(Model(made), len(before) - len(left), left)


def _quantizers(model: ir.Model) -> list[str]:
    """Return the operators of quantizers that onnx does not define; FakeQuantize has any domain."""
    found = []
    for node in (node for body in bodies(model) for node in body):
        own = node.domain not in _THEIRS or node.op_type == "FakeQuantize"
        if own and operator_of(node) is not None and node.op_identifier() not in model.functions:
            found.append(node.op_type)
    return found
