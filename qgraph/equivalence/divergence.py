"""Where two models begin to differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy.typing as npt
import onnx_ir as ir

from qgraph.equivalence.metrics import compare
from qgraph.equivalence.report import Divergence
from qgraph.executor import Executor
from qgraph.report import operator_name

_TAPS_AT_ONCE = 32
"""How many inner tensors of each model are held at a time."""


@dataclass(frozen=True)
class Run:
    """A model's main graph, what runs it, and the inputs to run it on."""

    graph: ir.Graph
    executor: Executor
    inputs: Mapping[str, npt.ArrayLike]


def first_divergence(
    reference: Run, candidate: Run, outputs: Mapping[str, str]
) -> Divergence | None:
    """Return the first tensor, in the order of the reference's nodes, whose values differ.

    Tensors of both main graphs belong together by name, where their types agree; the outputs as
    ``outputs`` pairs them, names of the reference to names of the candidate.
    """
    known = {value.name for node in candidate.graph for value in node.outputs}
    known |= set(candidate.graph.initializers)
    produced = [
        (node, str(value.name)) for node in reference.graph for value in node.outputs if value.name
    ]
    shared = [
        (node, name, outputs.get(name, name))
        for node, name in produced
        if name in outputs or name in known
    ]
    for start in range(0, len(shared), _TAPS_AT_ONCE):
        block = shared[start : start + _TAPS_AT_ONCE]
        ours = reference.executor.run(reference.inputs, taps=[name for _, name, _ in block])
        theirs = candidate.executor.run(candidate.inputs, taps=[other for _, _, other in block])
        for node, name, other in block:
            x, y = ours[name], theirs[other]
            if name not in outputs and getattr(x, "dtype", None) != getattr(y, "dtype", None):
                continue  # only the names agree
            compared = compare(name, [x], [y])
            if not compared.equal:
                worst = compared.max_abs if math.isfinite(compared.max_abs) else None
                label = node.name or str(node.outputs[0].name)
                return Divergence(name, other, label, operator_name(node), worst)
    return None
