"""An input of two models on which their outputs differ, named so that anyone can make it again.

Sums are rounded, and their order is left open. So elements of outputs that sums lead to count as
different only if they are apart by more than rounding explains. At least half of the elements have
to be, since the models may add in different orders, and a code that rounding flips moves single
elements far. One element is enough where both models have the same sums, and where all operators on
the way are determined to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.equivalence.inputs import batch_shapes, make_inputs
from qgraph.errors import ExecutionError, ModelError, OperatorError, OptionError, UnsupportedError
from qgraph.execution.control import captured
from qgraph.execution.executor import Executor
from qgraph.graph.scopes import subgraphs
from qgraph.matching.known_values import is_exact
from qgraph.matching.plain import Plain
from qgraph.matching.randomness import is_random
from qgraph.model import Model

Array = npt.NDArray[Any]
Pair = tuple[ir.Value, ir.Value]

_SAMPLES = 16
"""Samples at a time, where a model leaves their number open."""

_BATCH_ELEMENTS = 1 << 16
"""Elements of an input at a time, unless one sample has more."""

_MOST_ELEMENTS = 1 << 20
"""Elements of all inputs together; models with larger inputs are not run."""

_MOST_BYTES = 1 << 26
"""Bytes of all initializers of a model; larger models are not run."""

_MOST_NODES = 2000

_BEYOND_ROUNDING = 2.0**-10
"""Share of the largest element of an output that the rounding of sums does not reach."""

_UNBOUNDED = frozenset({"Loop", "Scan", "SequenceMap"})


@dataclass(frozen=True)
class Demonstration:
    """An input: random arrays, or one input full of a number among them.

    Attributes:
        batch: number of the random arrays.
        input: name of the input of the reference that is full of a number; None without one.
        value: the number.
    """

    batch: int = 0
    input: str | None = None
    value: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the demonstration."""
        return {"batch": self.batch, "input": self.input, "value": self.value}

    def feeds(self, model: Model) -> dict[str, Array]:
        """Return the arrays of all inputs of the reference.

        Raises:
            OptionError: the shape or type of an input is not known.
        """
        shapes = batch_shapes(model, _SAMPLES, _BATCH_ELEMENTS)
        drawn = make_inputs(model, number=self.batch, shapes=shapes)
        if self.input in drawn and self.input is not None:
            drawn[self.input] = np.full_like(drawn[self.input], self.value)
        return drawn


class Runs:
    """Runs two models on demonstrations.

    Args:
        sides: private copies of the models.
        inputs, outputs: pairs of inputs and of outputs.
        same_sums: whether the models are the same operators but for regions that were decided.
    """

    def __init__(
        self,
        sides: tuple[Plain, Plain],
        inputs: Sequence[Pair],
        outputs: Sequence[Pair],
        *,
        same_sums: bool,
    ) -> None:
        self._same_sums = same_sums
        self._sides = sides
        self._inputs, self._outputs = inputs, outputs
        self._model = Model(sides[0].model)
        self._executors: tuple[Executor, Executor] | None = None

    def first(self, demonstrations: Iterable[Demonstration]) -> Demonstration | None:
        """Return the first one on which the outputs differ; None if there is none."""
        if not all(map(_is_small, self._sides)):
            return None
        return next(filter(self.differ, demonstrations), None)

    def differ(self, demonstration: Demonstration) -> bool:
        """Return whether the outputs differ on an input by more than rounding explains."""
        try:
            feeds = demonstration.feeds(self._model)
            if sum(array.size for array in feeds.values()) > _MOST_ELEMENTS:
                return False
            if self._executors is None:
                self._executors = Executor(self._sides[0].model), Executor(self._sides[1].model)
            ours = self._executors[0].run(feeds)
            renamed = {str(b.name): feeds[str(a.name)] for a, b in self._inputs}
            theirs = self._executors[1].run(renamed)
        except (ExecutionError, ModelError, OperatorError, OptionError, UnsupportedError, KeyError):
            return False
        return any(self._apart(pair, ours, theirs) for pair in self._outputs)

    def _apart(self, pair: Pair, ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
        a, b = ours[str(pair[0].name)], theirs[str(pair[1].name)]
        if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
            return False
        if a.dtype.kind not in "biuf" or b.dtype.kind not in "biuf":
            return False
        kinds = {_reliance(value) for value in pair}
        if "undetermined" in kinds:
            return False
        if a.shape != b.shape:
            return True
        x, y = a.astype(np.float64), b.astype(np.float64)
        numbers = ~(np.isnan(x) | np.isnan(y))
        if kinds == {"exact"}:
            return bool((x != y)[numbers].any())
        with np.errstate(all="ignore"):
            size = np.abs(x[np.isfinite(x)]).max(initial=0.0)
            apart = (np.abs(x - y) > _BEYOND_ROUNDING * size) & np.isfinite(x) & np.isfinite(y)
        needed = 1 if self._same_sums else (x.size + 1) // 2
        return bool(x.size and np.count_nonzero(apart) >= needed)


def _reliance(value: ir.Value) -> str:
    """Return whether a value is exact, rounded or undetermined, by the nodes that make it."""
    pending, seen = [value], {value}
    found = "exact"
    while pending:
        node = pending.pop().producer()
        if node is None:
            continue
        if is_random(node, {"": 1}) or _is_open_cast(node):
            return "undetermined"
        graphs = [g for attribute in node.attributes.values() for g in subgraphs(attribute)]
        if not graphs and not (is_exact(node) and not _divides_by_data(node)):
            found = "rounded"
        used = [v for v in (*node.inputs, *captured(node)) if v is not None]
        used += [v for graph in graphs for v in graph.outputs]
        fresh = [v for v in used if v not in seen]
        seen.update(fresh)
        pending += fresh
    return found


def _is_open_cast(node: ir.Node) -> bool:
    """Return whether a node casts numbers to integers, which may leave their range."""
    if node.op_type not in ("Cast", "CastLike") or node.inputs[0] is None:
        return False
    before, after = node.inputs[0].dtype, node.outputs[0].dtype
    if before is None or after is None:
        return True
    return before.is_floating_point() and after.is_integer()


def _divides_by_data(node: ir.Node) -> bool:
    """Return whether a node may tell zeros of both signs apart, which some operators leave open."""
    return node.op_type in ("Div", "Reciprocal", "Mod", "Atan2")


def _is_small(side: Plain) -> bool:
    graph = side.graph
    size = sum(
        value.const_value.nbytes
        for value in graph.initializers.values()
        if value.const_value is not None
    )
    bounded = not any(node.op_type in _UNBOUNDED for node in graph)
    return bounded and size <= _MOST_BYTES and len(graph) <= _MOST_NODES
