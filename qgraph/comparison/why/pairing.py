"""Pair the quantizers of a candidate with the places of a reference, and exchange them.

Both models are read without their quantizers. The remaining nodes are paired in order if both
models have the same operators, otherwise by name and operator. A quantizer belongs to the operand
of the node after it, so a reference without quantizers is paired too::

    reference   Conv --> Relu ---------------> Conv
    candidate   Conv --> QuantizeLinear... --> Conv      the Relu is part of the quantizer's place

Then each model gets one more input. If its value is the number of a quantizer, the consumers of
this quantizer read the result of the other model's part on the same data::

    data --+--[own quantizer]--------------------+
           +--[what the other model has there]---+--Where(selected == number)--> consumers
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import SequenceMatcher

import numpy as np
import onnx_ir as ir

from qgraph.graph.edit import Editor
from qgraph.graph.interface import Pair
from qgraph.graph.opset.versions import raise_ir_version
from qgraph.graph.scopes import inline_functions, operands
from qgraph.graph.sizes import fixed_sizes
from qgraph.inventory.operands import ACTIVATIONS
from qgraph.ops.static_parameters import settled
from qgraph.quantizers.decompressed import decompressed
from qgraph.quantizers.dialects.dialect import Refusal, Site
from qgraph.quantizers.sites import sites
from qgraph.records import dataclass, field
from qgraph.targets.layer import LAYERS

Use = tuple[ir.Node, int]
"""A node, and the index of an operand."""

_KINDS = {"Gemm": "MatMul"}


@dataclass(frozen=True, eq=False)
class Place:
    """The place of a quantizer in one model, with or without a quantizer.

    It begins with the data before activation functions that only this model has, None for
    constants, and ends with the value that ``uses`` read.
    """

    start: ir.Value | None
    end: ir.Value
    uses: tuple[Use, ...]
    is_output: bool


@dataclass(frozen=True, eq=False)
class PairedQuantizer:
    """A quantizer of the candidate, and its place in both models, or why there is none."""

    site: Site
    reference: Place | None = None
    candidate: Place | None = None
    reason: str | None = None

    @property
    def is_weight(self) -> bool:
        """Whether its data are constant."""
        return self.site.weight is not None


@dataclass(eq=False)
class Skeleton:
    """The main graph of a model, read without its quantizers.

    Attributes:
        graph: the main graph.
        sites: the quantizers by what they return.
        refused: the quantizers that cannot be read.
        nodes: the nodes outside of quantizers that depend on inputs, in order.
        constants: the values that depend on constants alone.
        inside: the nodes of quantizers.
    """

    graph: ir.Graph
    sites: dict[ir.Value, Site] = field(default_factory=dict)
    refused: list[Refusal] = field(default_factory=list)
    nodes: list[ir.Node] = field(default_factory=list)
    constants: set[ir.Value] = field(default_factory=set)
    inside: set[ir.Node] = field(default_factory=set)

    @classmethod
    def of(cls, model: ir.Model) -> Skeleton:
        """Return the skeleton of a model without functions."""
        skeleton = cls(model.graph)
        for each in sites(model):
            if isinstance(each, Refusal):
                skeleton.refused.append(each)
            elif each.root.graph is model.graph:
                skeleton.sites[each.y] = each
        skeleton.inside.update(node for site in skeleton.sites.values() for node in site.nodes)
        skeleton.constants.update(
            v for v in model.graph.initializers.values() if not v.is_graph_input()
        )
        for node in model.graph:
            if skeleton.constants.issuperset(operands(node)):
                skeleton.constants.update(node.outputs)
            elif node not in skeleton.inside:
                skeleton.nodes.append(node)
        return skeleton

    def kinds(self) -> list[tuple[str, str]]:
        """Return the operators of the nodes; a Gemm counts as MatMul."""
        return [(_KINDS.get(node.op_type, node.op_type), node.domain) for node in self.nodes]

    def forms(self) -> list[tuple[object, ...]]:
        """Return the operators of the nodes with the sorted sizes of weights."""
        return [(*form, self._sizes(n)) for form, n in zip(self.kinds(), self.nodes, strict=True)]

    def _sizes(self, node: ir.Node) -> object:
        weights = node.inputs[1] if node.op_type in LAYERS and len(node.inputs) > 1 else None
        if weights is None or weights not in self.constants:
            return None
        sizes = self.sites[weights].shape if weights in self.sites else fixed_sizes(weights)
        if weights.const_value is not None:
            sizes = tuple(weights.const_value.shape.numpy())
        return None if sizes is None else tuple(sorted(map(str, sizes)))


def prepared(model: ir.Model) -> ir.Model:
    """Return a copy of a model without functions, whose initializers are constants.

    Cast, Sub and Mul that decode weights are replaced by DequantizeLinear if the opset allows it.
    Raises UnsupportedError if a function cannot be inlined.
    """
    copy = model.clone()
    inline_functions(copy)
    copy = settled(copy)
    editor, opset = Editor(copy), copy.opset_imports.get("", 1)
    weights = [weight for weight in decompressed(copy, opset) if weight.opset <= opset]
    editor.replace_all([weight.draft(editor) for weight in weights])
    return copy


def paired_quantizers(
    reference: Skeleton, candidate: Skeleton, outputs: Sequence[Pair]
) -> list[PairedQuantizer]:
    """Return all quantizers of the candidate's main graph, in order."""
    partners = _partners(reference, candidate)
    ends = {there: here for here, there in outputs}
    return [
        _paired(site, reference, candidate, partners, ends) for site in candidate.sites.values()
    ]


def _partners(reference: Skeleton, candidate: Skeleton) -> dict[ir.Node, ir.Node]:
    """Return the node of the reference for each node of the candidate that has one."""
    if reference.kinds() == candidate.kinds():
        return dict(zip(candidate.nodes, reference.nodes, strict=True))
    kinds = reference.forms(), candidate.forms()
    named = {(n.name, form): n for n, form in zip(reference.nodes, kinds[0], strict=True) if n.name}
    partners = {
        node: named[node.name, form]
        for node, form in zip(candidate.nodes, kinds[1], strict=True)
        if node.name and (node.name, form) in named
    }
    taken = set(partners.values())
    ours = [p for p in zip(reference.nodes, kinds[0], strict=True) if p[0] not in taken]
    theirs = [p for p in zip(candidate.nodes, kinds[1], strict=True) if p[0] not in partners]
    matcher = SequenceMatcher(None, [k for _, k in ours], [k for _, k in theirs], autojunk=False)
    for a, b, size in matcher.get_matching_blocks():
        for n in range(size):
            partners[theirs[b + n][0]] = ours[a + n][0]
    return partners


def _paired(
    site: Site,
    reference: Skeleton,
    candidate: Skeleton,
    partners: Mapping[ir.Node, ir.Node],
    outputs: Mapping[ir.Value, ir.Value],
) -> PairedQuantizer:
    uses = list(_uses(site.y, candidate))
    paired_uses = [(node, index) for node, index in uses if node in partners]
    counterparts = [
        (partners[node], index) for node, index in paired_uses if index < len(partners[node].inputs)
    ]
    if site.y in outputs:
        end: ir.Value | None = outputs[site.y]
    else:
        end = counterparts[0][0].inputs[counterparts[0][1]] if counterparts else None
    if end is None:
        reason = "no node behind it has a counterpart in the reference"
        if not uses:
            reason = "another quantizer follows it"
        return PairedQuantizer(site, reason=reason)
    is_weight = site.weight is not None
    if is_weight is not (end in reference.constants):
        return PairedQuantizer(site, reason="it quantizes constants in one of the models only")
    own_end = paired_uses[0][0].inputs[paired_uses[0][1]] if is_weight and paired_uses else site.y
    if own_end is None:
        raise AssertionError("an operand that is used is there")
    theirs = tuple((n, index) for n, index in counterparts if n.inputs[index] is end)
    ours = tuple((n, index) for n, index in uses if n.inputs[index] is own_end)
    start = _start(reference, end, set(partners.values()))
    own_start = _start(candidate, own_end, partners)
    if start is not None and own_start is not None:
        maker, own_maker = start.producer(), own_start.producer()
        if maker is not (None if own_maker is None else partners.get(own_maker, own_maker)):
            return PairedQuantizer(site, reason="its data have no counterpart in the reference")
    return PairedQuantizer(
        site,
        Place(start, end, theirs, end in outputs.values()),
        Place(own_start, own_end, ours, own_end in outputs),
    )


def _uses(value: ir.Value, side: Skeleton) -> Iterator[Use]:
    """Yield the operands that read a value, or results of constant nodes on it."""
    for node, index in value.uses():
        if node.outputs and node.outputs[0] in side.constants:
            for output in node.outputs:
                yield from _uses(output, side)
        elif node not in side.inside:
            yield node, index


def _start(side: Skeleton, end: ir.Value, paired: Collection[ir.Node]) -> ir.Value | None:
    """Return the data of a quantizer, before activation functions of only this model."""
    if end in side.constants:
        return None
    value = end
    while True:
        node = value.producer()
        if value in side.sites:
            value = side.sites[value].x
        elif node is not None and node.op_type in ACTIVATIONS and node not in paired:
            data = node.inputs[0]
            if data is None:
                return value
            value = data
        else:
            return value


SELECTED = "selected_quantizer"
"""Name of the input that selects a quantizer; -1 selects none."""


def with_switches(
    model: ir.Model, places: Sequence[tuple[Place, Place]], other: ir.Model
) -> ir.Model:
    """Return a copy of a model without functions, of one opset, with a switch for each place."""
    copy = model.clone()
    graph = copy.graph
    twins = dict(zip(model.graph, graph, strict=True))
    values = dict(zip(model.graph.inputs, graph.inputs, strict=True))
    for name, value in model.graph.initializers.items():
        values.setdefault(value, graph.initializers[name])
    for node, twin in twins.items():
        values |= zip(node.outputs, twin.outputs, strict=True)
    for domain, version in other.graph.opset_imports.items():
        graph.opset_imports.setdefault(domain, version)
    selected = ir.Value(name=SELECTED, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
    graph.inputs.append(selected)
    for number, (own, theirs) in enumerate(places):
        copies: dict[ir.Value, ir.Value] = {}
        if own.start is not None and theirs.start is not None:
            copies[theirs.start] = values[own.start]
        prefix = f"switch_{number}_"
        exchanged = _copied(graph, theirs.end, copies, prefix)
        tensor = ir.tensor(np.int64(number), name=f"{prefix}number")
        constant = ir.Value(
            name=tensor.name, type=selected.type, shape=ir.Shape([]), const_value=tensor
        )
        graph.register_initializer(constant)
        equal = ir.node("Equal", [selected, constant], name=f"{prefix}equal")
        mine = values[own.end]
        where = ir.node("Where", [equal.outputs[0], exchanged, mine], name=f"{prefix}where")
        equal.outputs[0].name, chosen = f"{prefix}is_selected", where.outputs[0]
        chosen.name, chosen.type, chosen.shape = f"{prefix}chosen", mine.type, mine.shape
        graph.extend([equal, where])
        for node, number_of_input in own.uses:
            twins[node].replace_input_with(number_of_input, chosen)
        for index, output in enumerate(graph.outputs):
            if own.is_output and output is mine:
                graph.outputs[index] = chosen
    graph.sort()
    raise_ir_version(copy)
    return copy


def _copied(
    graph: ir.Graph, end: ir.Value, known: dict[ir.Value, ir.Value], prefix: str
) -> ir.Value:
    """Return a value of another model, computed in a graph by copies of its nodes."""
    pending = [end]
    while pending:
        value = pending[-1]
        node = value.producer()
        missing = [] if node is None else [v for v in node.inputs if v and v not in known]
        if value in known:
            pending.pop()
        elif missing:
            pending += missing
        elif node is None:
            known[value] = _twin(value, prefix)
            known[value].const_value = value.const_value
            graph.register_initializer(known[value])
        else:
            twins = [_twin(output, prefix) for output in node.outputs]
            operands = [None if v is None else known[v] for v in node.inputs]
            graph.append(
                ir.Node(
                    node.domain,
                    node.op_type,
                    operands,
                    list(node.attributes.values()),
                    overload=node.overload,
                    outputs=twins,
                    name=f"{prefix}{node.name}",
                )
            )
            known |= zip(node.outputs, twins, strict=True)
    return known[end]


def _twin(value: ir.Value, prefix: str) -> ir.Value:
    return ir.Value(name=f"{prefix}{value.name}", type=value.type, shape=value.shape)
