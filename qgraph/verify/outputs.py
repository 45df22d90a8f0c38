"""Decide whether the outputs of two models are equal, given the checked regions.

Every value of both models gets a class; values of one class are equal. The same operator on
operands of the same classes gives results of the same class. Equal constants share a class. A
region puts its two values into one class if its entries are in one class each. The values of a
class may be equal except for the signs of zeros, as long as no operator distinguishes -0 from +0.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import onnx_ir as ir

from qgraph.graph.interface import Pair
from qgraph.numerics.values import fingerprint
from qgraph.verify.operators import (
    SWAPPABLE,
    forgets_zero_signs,
    graphs_of,
    is_apart,
    meaning,
    tells_zeros_apart,
)
from qgraph.verify.reading import Reading
from qgraph.verify.regions import Equality


class EqualValues:
    """The classes of the values of two models, by the equalities of regions and of inputs."""

    def __init__(
        self, sides: tuple[Reading, Reading], claims: Sequence[Equality], inputs: Sequence[Pair]
    ) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._classes: dict[ir.Value, int] = {}
        self._lossy: set[int] = set()
        self._merged: dict[int, int] = {}
        self._claims: dict[ir.Value, list[Equality]] = {}
        self._of_reference: set[int | None] = set()
        self._unequal: ir.Node | None = None
        self._loses_signs = any(claim.loses_signs for claim in claims)
        for index, pair in enumerate(inputs):
            self._classes |= dict.fromkeys(pair, self._number(("input", index)))
        self._read(sides[0], sides[0].graph)
        for claim in claims:
            self._claims.setdefault(claim.values[1], []).append(claim)
        self._of_reference = {None, *self._classes.values()}
        self._read(sides[1], sides[1].graph)

    def difference(self, outputs: Sequence[Pair]) -> str | None:
        """Return why the outputs are not proved equal; None if they are."""
        for a, b in outputs:
            if self._class(a) != self._class(b):
                node = self._unequal
                first = "" if node is None else f"; {node.op_type} {node.name!r} differs"
                return f"no region proves output {a.name!r} equal in both models{first}"
        return None

    def are_equal(self, one: ir.Value | None, other: ir.Value | None) -> bool:
        """Return whether a value of the reference and one of the candidate are in one class."""
        return one is not None and other is not None and self._class(one) == self._class(other)

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _class(self, value: ir.Value) -> int:
        if value not in self._classes:
            self._classes[value] = self._number(id(value))
        return self._classes[value]

    def _read(self, side: Reading, graph: ir.Graph) -> None:
        for value in graph.initializers.values():
            array = None if value.is_graph_input() else side.array(value)
            if array is not None:
                self._classes[value] = self._number(fingerprint(array))
        for node in graph:
            operands = [None if value is None else self._class(value) for value in node.inputs]
            key = self._key(side, node, operands)
            for index, value in enumerate(node.outputs):
                array = side.array(value)
                natural = self._number((*key, index))
                if (node.domain, node.op_type) == ("", "Identity") and operands[0] is not None:
                    natural = operands[0]
                own = natural if array is None else self._number(fingerprint(array))
                if array is not None and (not self._of_reference or own in self._of_reference):
                    self._merged.setdefault(natural, own)  # the class of the constant it computes
                else:
                    own = self._merged.get(natural, natural)
                    own = self._keep_signs(node, value, operands, own)
                self._classes[value] = own
                self._merge(natural, value)
            first = map(self._class, node.outputs[:1])
            if self._of_reference.issuperset(operands) and not self._of_reference.issuperset(first):
                self._unequal = self._unequal or (node if self._of_reference else None)

    def _key(
        self, side: Reading, node: ir.Node, operands: list[int | None]
    ) -> tuple[Hashable, ...]:
        """Return a key that determines the results of a node, after reading its subgraphs."""
        graphs = graphs_of(node)
        if is_apart(node, side.imports) and not graphs:
            return ("apart", id(node))
        if node.domain == "" and node.op_type in SWAPPABLE:
            operands = sorted(operands, key=str)
        key: tuple[Hashable, ...] = (meaning(node, side.imports), *operands)
        for number, graph in enumerate(graphs):
            for index, value in enumerate(graph.inputs):
                self._classes[value] = self._number((*key, "inner", number, index))
                self._lossy |= {self._classes[value]} if self._loses_signs else set()
            self._read(side, graph)
            key = (*key, len(graph.inputs), *map(self._class, graph.outputs))
        return key

    def _keep_signs(
        self, node: ir.Node, value: ir.Value, operands: list[int | None], own: int
    ) -> int:
        """Return the class of a result whose operands may contain zeros of different signs."""
        lossy = [index for index, number in enumerate(operands) if number in self._lossy]
        if any(tells_zeros_apart(node, index) for index in lossy):
            return self._number(id(value))
        is_real = value.dtype is None or value.dtype.is_floating_point()
        inner = self._loses_signs and bool(graphs_of(node))
        if is_real and (inner or (lossy and not forgets_zero_signs(node))):
            self._lossy.add(own)
        return own

    def _merge(self, natural: int, value: ir.Value) -> None:
        """Put a value of the candidate into the class of its partner in a region."""
        for claim in self._claims.get(value, ()):
            pairs = [tuple(map(self._class, entry)) for entry in claim.entries]
            seen = claim.tells_zeros_apart and any(a in self._lossy for a, _ in pairs)
            if seen or any(a != b for a, b in pairs):
                continue
            self._merged[natural] = self._classes[value] = self._class(claim.values[0])
            if claim.loses_signs or any(a in self._lossy for a, _ in pairs):
                self._lossy.add(self._classes[value])
