"""Where two models begin to differ, and how far each of their tensors is apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.equivalence.findings import TensorComparison
from qgraph.equivalence.metrics import OutputComparison, compare
from qgraph.execution.control import captured
from qgraph.execution.executor import Executor
from qgraph.matching.correspondence import Match
from qgraph.report import operator_name

_TAPS_AT_ONCE = 32
"""How many inner tensors a model is asked for at a time; some backends hold all of them."""

_HELD_BYTES = 1 << 30
"""How much of the reference is held while the candidate is run."""


@dataclass(frozen=True)
class Run:
    """A model's main graph, what runs it, and the inputs to run it on."""

    graph: ir.Graph
    executor: Executor
    inputs: Mapping[str, npt.ArrayLike]


def compare_tensors(
    reference: Run, candidate: Run, matches: Sequence[Match]
) -> list[TensorComparison]:
    """Return how far the tensors are apart that belong together, in the order of the reference.

    No more than a share of the tensors is held at a time: the models are run several times where
    they have many or large ones. Tensors of another type or shape are no outputs by mistake, and
    left out.
    """
    found = []
    rest = list(matches)
    # how large tensors are is not known at first; the inputs are a hint
    fed = sum(getattr(x, "nbytes", 0) for x in reference.inputs.values())
    at_once = min(_TAPS_AT_ONCE, max(1, _HELD_BYTES // max(1, fed)))
    while rest:
        held = _hold(reference, rest[:at_once])
        block, rest = rest[: len(held)], rest[len(held) :]
        at_once = min(_TAPS_AT_ONCE, 2 * len(held))
        found += _compare_block(candidate, block, held)
    return found


def first_divergence(
    graph: ir.Graph, tensors: Sequence[TensorComparison], outputs: Collection[str]
) -> TensorComparison | None:
    """Return the first tensor that differs among those that an output that differs is made of.

    Args:
        graph: of the reference.
        tensors: of the reference in its order, compared.
        outputs: names of the outputs that differ.
    """
    relevant = _sources(graph, outputs)
    differing = [tensor for tensor in tensors if not tensor.compared.equal]
    return next((tensor for tensor in differing if tensor.reference in relevant), None)


def _hold(run: Run, matches: Sequence[Match]) -> list[Any]:
    """Return the tensors of the reference, as many from the first on as may be held."""
    places = {match.reference: place for place, match in enumerate(matches)}
    held: dict[int, Any] = {}
    full = len(matches)
    size = 0

    def keep(name: str, value: Any) -> None:
        nonlocal full, size
        place = places[name]
        if place >= full:
            return
        held[place] = value.copy() if isinstance(value, np.ndarray) else value
        size += getattr(value, "nbytes", 0)
        while size > _HELD_BYTES and full > 1:
            full -= 1
            size -= getattr(held.pop(full, None), "nbytes", 0)

    run.executor.run(run.inputs, taps=list(places), observe=keep)
    return [held[place] for place in range(full)]


def _compare_block(run: Run, block: Sequence[Match], held: list[Any]) -> list[TensorComparison]:
    places: dict[str, list[int]] = {}
    for place, match in enumerate(block):
        places.setdefault(match.candidate, []).append(place)
    compared: dict[int, OutputComparison] = {}

    def receive(name: str, value: Any) -> None:
        for place in places[name]:
            ours, match = held[place], block[place]
            held[place] = None
            if match.is_output or _form(ours) == _form(value):
                compared[place] = compare(match.reference, [ours], [value])

    run.executor.run(run.inputs, taps=list(places), observe=receive)
    return [
        TensorComparison(
            match.reference,
            match.candidate,
            match.node.name or str(match.node.outputs[0].name),
            operator_name(match.node),
            compared[place],
        )
        for place, match in enumerate(block)
        if place in compared
    ]


def _form(value: Any) -> tuple[Any, Any]:
    return getattr(value, "dtype", None), getattr(value, "shape", None)


def _sources(graph: ir.Graph, outputs: Collection[str]) -> set[str]:
    """Return the names of the values that outputs are made of, theirs included."""
    pending = [value for value in graph.outputs if value.name in outputs]
    found = set(pending)
    while pending:
        node = pending.pop().producer()
        for value in () if node is None else (*node.inputs, *captured(node)):
            if value is not None and value not in found:
                found.add(value)
                pending.append(value)
    return {str(value.name) for value in found}
