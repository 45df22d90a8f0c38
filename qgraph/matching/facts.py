"""The types and shapes that a certificate lists: those that its regions and matches rest on.

They are

* the inputs, in the form that both models take;
* the values at the two ends of each region, and those that its inputs are computed from;
* the results of Reshape, Flatten, Squeeze and Unsqueeze, which are compared by their shapes;
* the operands of Casts that change nothing;
* values that sizes determine, and that are constants in the proof.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from qgraph.graph.constants import constant
from qgraph.graph.scopes import nodes_of
from qgraph.matching.canonical import is_identity, keeps_shape, new_shape
from qgraph.matching.liveness import live_nodes
from qgraph.matching.plain import Plain
from qgraph.matching.static_values import origin

OPEN_SIZES = "open sizes of the inputs ({}) and their products are below 2**40"
ONE_SIZE = "dimensions of one name are equal: {} is the size of {}"

_SIDES = "reference", "candidate"


@dataclass(frozen=True)
class ListedFact:
    """What a proof takes a tensor of one model to be.

    Attributes:
        model: "reference" or "candidate".
        tensor: its name.
        type: its element type; None if it is not known.
        shape: numbers, texts of open sizes, and None for what is not known; None without a rank.
        because: what it follows from.
        value: the elements in their order, of a value that sizes determine.
    """

    model: str
    tensor: str
    type: str | None
    shape: tuple[int | str | None, ...] | None
    because: str
    value: tuple[Any, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fact as it stands in a certificate."""
        fact: dict[str, Any] = {
            "model": self.model,
            "tensor": self.tensor,
            "type": self.type,
            "shape": None if self.shape is None else list(self.shape),
            "because": self.because,
        }
        return fact if self.value is None else fact | {"value": list(self.value)}


def listed_facts(
    sides: Sequence[Plain], names: Sequence[Collection[str]]
) -> tuple[list[ListedFact], list[str]]:
    """Return the facts that a proof rests on, and the conditions under which they hold.

    Args:
        sides: the reference and the candidate.
        names: for each of them, the names of the values of regions.
    """
    facts: dict[ListedFact, None] = {}
    used: set[str] = set()
    for side, wanted in zip(sides, names, strict=True):
        own = {value.name: value for value in side.graph.inputs}
        facts.update(dict.fromkeys(_fact(side, value) for value in own.values()))
        live = live_nodes(side.graph.outputs)
        for node in nodes_of(side.graph):
            for value in _compared(side, node) if node in live else ():
                fact = _fact(side, value)
                facts[fact] = None
                used |= _open_sizes(fact)
            for value in node.outputs:
                if value.name in wanted:
                    facts[_fact(side, value)] = None
    conditions = [OPEN_SIZES.format(", ".join(sorted(used)))] if used else []
    for size, places in sorted(sides[0].domain.shared.items()):
        if size in used:
            conditions.append(ONE_SIZE.format(size, places))
    return list(facts), conditions


def _compared(side: Plain, node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values whose type or shape decides what a node is equal to."""
    if node.op_type == "Cast" and is_identity(node, side.imports) and node.inputs[0] is not None:
        yield node.inputs[0]
    elif new_shape(node) is not None or str(node.outputs[0].name) in side.fixed:
        yield node.outputs[0]
        if keeps_shape(node) and node.inputs[0] is not None:
            yield node.inputs[0]


def _fact(side: Plain, value: ir.Value) -> ListedFact:
    name = str(value.name)
    shape = None
    if value.shape is not None:
        shape = tuple(n if isinstance(n, int) else n.value for n in value.shape.dims)
    held = None
    if name in side.fixed and (array := constant(value)) is not None:
        held = tuple(array.reshape(-1).tolist())
    because = side.fixed.get(name) or side.domain.reasons[side.place].get(name) or origin(value)
    kind = None if value.dtype is None else _type_name(value.dtype)
    return ListedFact(_SIDES[side.place], name, kind, shape, because, held)


def _type_name(dtype: ir.DataType) -> str:
    return "string" if dtype is ir.DataType.STRING else str(dtype.numpy())


def _open_sizes(fact: ListedFact) -> set[str]:
    texts = [size for size in fact.shape or () if isinstance(size, str)]
    return {name for text in texts for name in re.findall(r"[A-Za-z_]\w*", text)} - {"floor"}
