"""Find the first tensor in which two models differ, and the parts that compute it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.comparison.metrics import OutputComparison, compare
from qgraph.comparison.report import TensorComparison
from qgraph.errors import ModelError, UnsupportedError
from qgraph.execution.executor import Executor
from qgraph.graph.opset.versions import declare_domains, raise_ir_version
from qgraph.graph.scopes import node_name
from qgraph.graph.slices import ancestors, sources
from qgraph.model import Model
from qgraph.proof.matching.classes import Class
from qgraph.proof.matching.match import Matching
from qgraph.proof.matching.normalise import normalised_models
from qgraph.records import by_key, dataclass
from qgraph.reports import operator_name

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Match:
    """Two tensors, by node and names, that must be equal if the models are equal."""

    node: ir.Node
    reference: str
    candidate: str
    is_output: bool


def correspondence(
    reference: Model, candidate: Model, outputs: Mapping[str, str]
) -> tuple[Match, ...]:
    """Return the pairs of corresponding tensors in the main graphs, in the order of the reference.

    The graphs are matched as for a proof: values correspond if equal operators compute them from
    corresponding values, or if the claims of the matching pair them. Names are only used to choose
    among several counterparts. ``outputs`` are outputs of the candidate, by outputs of the
    reference.
    """
    named = {str(value.name) for value in values_of(candidate.ir.graph) if value.name}
    try:
        partners = _partners(
            Matching(*normalised_models(reference.ir, candidate.ir, keep_inputs=False)), named
        )
    except (ModelError, UnsupportedError) as error:
        logger.info("tensors are matched by name, because the graphs cannot be matched: %s", error)
        partners = {name: name for name in named}
    partners |= outputs
    return tuple(
        Match(node, name, partners[name], is_output=name in outputs)
        for node in reference.ir.graph
        for name in (value.name for value in node.outputs)
        if name and name in partners
    )


def _partners(matching: Matching, known: set[str]) -> dict[str, str]:
    """Return the candidate's value for each value of the reference that has a counterpart."""
    there = by_key(
        (matching.class_of(matching.candidate, value), str(value.name))
        for value in values_of(matching.candidate.normalised.graph)
        if value.name in known
    )
    met: dict[Class, int] = {}
    partners = {}
    for value in values_of(matching.reference.normalised.graph):
        number = matching.class_of(matching.reference, value)
        equal = there.get(number)
        if not equal or not value.name:
            continue
        # equal values are paired in order
        turn = met[number] = met.get(number, -1) + 1
        name = str(value.name)
        partners[name] = name if name in equal else equal[min(turn, len(equal) - 1)]
    return partners


def values_of(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield all values of a main graph, each once: inputs, initializers, results of nodes."""
    yield from graph.inputs
    yield from (each for each in graph.initializers.values() if not each.is_graph_input())
    for node in graph:
        yield from node.outputs


_HELD_BYTES = 1 << 28
"""Maximum bytes of candidate tensors that wait for their counterparts."""


@dataclass(frozen=True)
class ModelRun:
    """A model's main graph, its executor, and its inputs."""

    graph: ir.Graph
    executor: Executor
    inputs: Mapping[str, npt.ArrayLike]


def compare_tensors(
    reference: ModelRun, candidate: ModelRun, matches: Sequence[Match]
) -> list[TensorComparison]:
    """Return the comparisons of corresponding tensors, in the order of the reference.

    Both models run in parallel, so that only the tensors that the candidate computes earlier are
    kept. If these are too many, some are computed in another run. Tensors that differ in type or
    shape are skipped.
    """
    compared: dict[int, OutputComparison] = {}
    rest = list(range(len(matches)))
    while rest:
        rest = _compare_some(reference, candidate, matches, rest, compared)
    return [
        TensorComparison(
            match.reference,
            match.candidate,
            node_name(match.node),
            operator_name(match.node),
            compared[index],
        )
        for index, match in enumerate(matches)
        if index in compared
    ]


def first_divergence(
    graph: ir.Graph, tensors: Sequence[TensorComparison], outputs: Collection[str]
) -> TensorComparison | None:
    """Return the first differing tensor that differing outputs of the reference depend on."""
    ends = [value for value in graph.outputs if value.name in outputs]
    relevant = {str(value.name) for value in ancestors(ends)}
    differing = [tensor for tensor in tensors if not tensor.compared.equal]
    return next((tensor for tensor in differing if tensor.reference in relevant), None)


def _compare_some(
    reference: ModelRun,
    candidate: ModelRun,
    matches: Sequence[Match],
    wanted: Sequence[int],
    compared: dict[int, OutputComparison],
) -> list[int]:
    """Compare the matches at the indices ``wanted``, and return the remaining indices.

    At least one of them is compared or skipped.
    """
    index_of = {matches[index].reference: index for index in wanted}
    uses = Counter(matches[index].candidate for index in wanted)
    ours = reference.executor.stream(reference.inputs, list(index_of))
    theirs = candidate.executor.stream(candidate.inputs, list(uses))
    held: dict[str, Any] = {}
    left: list[int] = []
    lost: set[str] = set()
    # Infinities and NaN are ordinary results here.
    with np.errstate(all="ignore"):
        for name, ours_value in ours:
            index = index_of[name]
            match = matches[index]
            partner = match.candidate
            if partner in lost:
                left.append(index)
                continue
            value = held.get(partner)
            while partner not in held:
                other, value = next(theirs)
                if other == partner:
                    break
                held[other] = value.copy() if isinstance(value, np.ndarray) else value
                if sum(getattr(array, "nbytes", 0) for array in held.values()) > _HELD_BYTES:
                    lost.add(other)
                    del held[other]
            uses[partner] -= 1
            if not uses[partner]:
                held.pop(partner, None)
            elif partner not in held:
                held[partner] = value.copy() if isinstance(value, np.ndarray) else value
            if match.is_output or _form(ours_value) == _form(value):
                compared[index] = compare(match.reference, [ours_value], [value])
            del value
    return left


def _form(value: Any) -> tuple[Any, Any]:
    return getattr(value, "dtype", None), getattr(value, "shape", None)


def frontier(
    graph: ir.Graph,
    output: ir.Value,
    ends: Collection[ir.Value],
    places: Mapping[ir.Value, int] | None = None,
) -> list[ir.Value]:
    """Return ``ends`` and graph inputs at which the search back from ``output`` itself stops.

    They are in the order of :func:`values_of`, which ``places`` states if it is known.
    """
    last = {*ends, *graph.inputs}
    _, *inner = ancestors([output], lambda v: () if v in last and v is not output else sources(v))
    inputs = last.intersection(inner)
    if places is None:
        return [value for value in values_of(graph) if value in inputs]
    return sorted(inputs, key=lambda value: places[value])


def excerpt(
    model: Model, inputs: Sequence[tuple[str, str]], output: tuple[str, str], absent: Sequence[str]
) -> ir.Model:
    """Return the part of a model's main graph that computes a value from others, as a model.

    The part has no shapes, because it may be run on fewer samples than the model. Its initializers
    must not be inputs too.

    Inputs and output are given by their names in the model and in the part; the output may be a
    constant. ``absent`` names further, unused inputs of the part.
    """
    source = model.ir
    values = {str(value.name): value for value in values_of(source.graph) if value.name}
    wanted = values[output[0]]
    if wanted.producer() is None:
        graph = _handing_on(wanted, source)
    else:
        graph = ir.convenience.extract(source.graph, [values[name] for name, _ in inputs], [wanted])
    own = {str(value.name): value for value in graph.inputs}
    renamed = [(own[name], new) for name, new in inputs]
    if wanted.producer() is not None:
        renamed.append((graph.outputs[0], output[1]))
    taken = {str(value.name) for value in values_of(graph)} - {str(v.name) for v, _ in renamed}
    for value in values_of(graph):
        if value.name in taken and value.name in {new for _, new in renamed}:
            value.name = f"{value.name}_inside"
    for value, new in renamed:
        value.name = new
    for value in values_of(graph):
        if not value.is_initializer():
            value.shape = None
    graph.inputs.extend(ir.Value(name=name) for name in absent)
    part = ir.Model(
        graph,
        ir_version=source.ir_version,
        functions=[function.clone() for function in source.functions.values()],
    )
    declare_domains(part)
    raise_ir_version(part)
    return part


def _handing_on(constant: ir.Value, source: ir.Model) -> ir.Graph:
    """Return a graph without inputs whose output is a constant of another graph."""
    tensor = constant.const_value
    name = str(constant.name)
    kept = ir.Value(
        name=f"{name}_stored", type=constant.type, shape=constant.shape, const_value=tensor
    )
    node = ir.Node("", "Identity", [kept], outputs=[ir.Value(name=name, type=constant.type)])
    return ir.Graph(
        [],
        node.outputs,
        nodes=[node],
        initializers=[kept],
        opset_imports=source.graph.opset_imports,
        name=source.graph.name,
    )
