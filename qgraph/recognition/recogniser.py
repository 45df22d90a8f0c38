"""Finding quantizers that several nodes spell, whichever operators these are.

A search starts at every operator that can be the core of a quantizer and looks for the largest
region around it that is one: a chain of float operators, or a quantizer of any dialect with float
operators before and behind it. Single nodes, and pairs of QuantizeLinear and DequantizeLinear with
nothing around them, are left to the readers of their dialects.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from qgraph.dialects.site import Site, shape_of, weight_of
from qgraph.graph.constants import constant
from qgraph.proof.expression import FLOAT
from qgraph.quantizer import Quantizer
from qgraph.recognition.chains import Memory, chain_of
from qgraph.recognition.meaning import may_round, quantizer_of
from qgraph.recognition.spelling import Spelling
from qgraph.recognition.steps import Encoded, Rounded, Signed, Snapped, Step
from qgraph.recognition.terrain import Terrain

PLAIN = "onnx"

_CORES = {
    **dict.fromkeys(["Round", "Floor", "Ceil", "Where", "Cast"], PLAIN),
    **dict.fromkeys(["QuantizeLinear", "DequantizeLinear"], "qdq"),
    **dict.fromkeys(["Quant", "IntQuant", "BipolarQuant", "FloatQuant", "Trunc"], "qonnx"),
    "FakeQuantize": "openvino",
}
"""Operators that a search starts from, and whose dialect they make of a region."""

_KNOWN_ALONE = frozenset(name for name, dialect in _CORES.items() if dialect != PLAIN)
"""Operators of dialects, whose readers know what they are without others around them."""

_PAIRS = [
    ["QuantizeLinear", "DequantizeLinear"],
    ["QuantizeLinear", "Clip", "DequantizeLinear"],
    ["Clip", "DequantizeLinear"],
]
_REALS = (None, "FLOAT", "FLOAT16", "BFLOAT16")
_MOST_ROUNDINGS = 3
"""Of one quantizer: to the grid of its data, to codes, and of codes to codes."""
_CODES = ("INT2", "UINT2", "INT4", "UINT4", "INT8", "UINT8", "INT16", "UINT16", "INT32")


_Reading: TypeAlias = tuple[tuple[int, ...], Spelling]


class Recogniser:
    """Finds the quantizers of one graph that are more than a node or a plain pair.

    Args:
        nodes: all nodes of the graph, in topological order, those of subgraphs included.
    """

    def __init__(self, nodes: Iterable[ir.Node]) -> None:
        self._terrain = Terrain(nodes, _KNOWN_ALONE)
        self._memory = Memory()
        self._meanings: dict[_Reading, tuple[tuple[Step, ...], Quantizer | None]] = {}
        self._possible: dict[tuple[int, ...], tuple[tuple[Step, ...], bool]] = {}
        self._taken: set[ir.Node] = set()
        self._ending: dict[ir.Value, Site | None] = {}

    def is_taken(self, node: ir.Node) -> bool:
        """Return whether ``node`` belongs to a quantizer that was found already."""
        return node in self._taken

    def take(self, site: Site) -> None:
        """Let no other quantizer have a node of ``site``."""
        self._taken.update(site.nodes)

    def around(self, node: ir.Node) -> Site | None:
        """Return the largest quantizer that ``node`` is a core of."""
        if node.op_type not in _CORES or not self._terrain.has(node):
            return None
        for y in reversed(self._terrain.exits(node)):
            if y not in self._ending:
                self._ending[y] = self._ending_in(y)
            found = self._ending[y]
            if found and node in found.nodes and self._taken.isdisjoint(found.nodes):
                return found
        return None

    def _ending_in(self, y: ir.Value) -> Site | None:
        """Return the largest quantizer that ends in ``y``."""
        expression = self._terrain.expression(y)
        if expression is None or expression.dtype != FLOAT or not _is_real(y):
            return None
        chain = chain_of(expression, self._memory)
        for place in range(_start(chain.steps), len(chain.steps)):
            starts = chain.starts[place]
            for x in (v for start in starts for v in self._terrain.values(start)) if starts else ():
                found = self._between(x, y, chain.steps[place:])
                if found is not None:
                    return found
        return None

    def _between(self, x: ir.Value, y: ir.Value, steps: tuple[Step, ...]) -> Site | None:
        """Return the quantizer of ``x`` that ends in ``y``, which ``steps`` lead to."""
        if _is_real(x) and not self._may_be_quantizer(steps):
            return None
        nodes = self._terrain.region(x, y)
        spelling = None if nodes is None else _spelling(nodes, x)
        if nodes is None or spelling is None:
            return None
        meaning = self._meaning(steps, spelling)
        return None if meaning is None else _site(x, y, nodes, spelling, meaning)

    def _may_be_quantizer(self, steps: tuple[Step, ...]) -> bool:
        key = tuple(map(id, steps))
        if key not in self._possible:
            # The steps are kept, so that no other one gets the number of one of them.
            self._possible[key] = steps, may_round(steps)
        return self._possible[key][1]

    def _meaning(self, steps: tuple[Step, ...], spelling: Spelling) -> Quantizer | None:
        """Return which quantizer steps are; the same ones are looked at once."""
        key = tuple(map(id, steps)), spelling
        if key not in self._meanings:
            self._meanings[key] = steps, quantizer_of(steps, spelling)
        return self._meanings[key][1]


def _is_real(value: ir.Value) -> bool:
    return value.dtype is None or value.dtype.name in _REALS


def _start(steps: Sequence[Step]) -> int:
    """Return the first of ``steps`` that can belong to a quantizer that ends with the last."""
    count = 0
    for place in range(len(steps) - 1, -1, -1):
        count += isinstance(steps[place], Rounded | Signed | Snapped | Encoded)
        if count > _MOST_ROUNDINGS:
            return place + 1
    return 0


def _spelling(nodes: tuple[ir.Node, ...], x: ir.Value) -> Spelling | None:
    """Return what the operators tell; None where a reader knows them, or dialects are mixed."""
    dialects = {_CORES[node.op_type] for node in nodes if node.op_type in _CORES} - {PLAIN}
    names = [node.op_type for node in nodes]
    if any(node.domain and node.op_type not in _CORES for node in nodes):
        return None
    if len(dialects) > 1 or (dialects and (len(nodes) == 1 or names in _PAIRS)):
        return None
    kind = None if x.dtype is None else x.dtype.name
    decodes = names[0] in ("DequantizeLinear", "Cast") and kind in _CODES
    codes = constant(x) if decodes else None
    # Codes without an element can be packed in no type, and no quantizer takes integers.
    if (decodes and (codes is None or not codes.size)) or (not decodes and kind not in _REALS):
        return None
    is_pair = dialects == {"qdq"} and set(names) <= {name for pair in _PAIRS for name in pair}
    return Spelling(dialects.pop() if dialects else PLAIN, is_pair, kind if decodes else None)


def _site(
    x: ir.Value, y: ir.Value, nodes: tuple[ir.Node, ...], spelling: Spelling, meaning: Quantizer
) -> Site:
    cores = [node for node in nodes if _CORES.get(node.op_type) == spelling.dialect]
    root = nodes[-1] if spelling.dialect == PLAIN else cores[-1]
    parameters = [value for value in vars(meaning).values() if isinstance(value, np.ndarray)]
    shape = shape_of(x, *parameters)
    return Site(x, y, nodes, root, spelling.dialect, meaning, shape, weight_of(x))
