"""Normalise two models for matching, and list the types and shapes that their proof uses.

``normalised_models`` returns copies of two models with functions inlined, of one opset, with types
and shapes inferred anew from the inputs that both models accept. Results of shape computations
become constants: a chain of Shape, Gather and Concat that always gives [1, 300] is the constant
[1, 300], and can then be compared with an initializer. ``listed_facts`` returns the types and
shapes for a certificate:

* the inputs, with the types and shapes that both models accept;
* the values at the two ends of each region, and those from which its inputs are computed;
* the results of Reshape, Flatten, Squeeze and Unsqueeze, which are compared by their shapes;
* the operands of Casts that change nothing;
* values that sizes determine, and that are constants in the proof.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from qgraph.certificate import ListedFact
from qgraph.conditions import Condition, of_sizes
from qgraph.errors import UnsupportedError
from qgraph.graph.constants import constant, freeze_inputs
from qgraph.graph.inference.walk import Facts, infer, names_in, reshaped_sizes, write_all
from qgraph.graph.interface import Domain, common_domain
from qgraph.graph.opset.rewrites import LARGEST
from qgraph.graph.opset.versions import declare_domains, require
from qgraph.graph.schema import OpKey, versions_of
from qgraph.graph.scopes import graphs_of, inline_functions, nodes_of, owners
from qgraph.graph.sizes import stated_shape
from qgraph.graph.slices import ancestors
from qgraph.ops.composite import composite_of, differing, write_out
from qgraph.ops.integer.definitions import define
from qgraph.ops.static_parameters import freeze_static_parameters
from qgraph.proof.matching.operators import is_identity, keeps_shape, new_shape
from qgraph.proof.matching.products import has_packed_products, write_products
from qgraph.proof.matching.sums import split_biases, with_common_sums
from qgraph.records import dataclass, field

logger = logging.getLogger(__name__)

_SIDES = "reference", "candidate"

_BOUNDS_ARE_INPUTS = 11
"""First opset in which the bounds of Clip are inputs, without a default number."""


@dataclass(frozen=True)
class NormalisedModel:
    """A copy of a model in the form that is matched.

    Attributes:
        model: the copy.
        frozen: number of initializers that were also graph inputs and are constants here.
        has_common_sums: whether sums of products of codes were written in one form.
        index: 0 for the reference, 1 for the candidate.
        domain: the inputs that both models accept, which determine all types and shapes.
        fixed: by name, the operators of values that sizes determine and that are constants here.
        bias_sums: names of sums whose bias was split off into an Add.
        open_clips: names of the results of each Clip of real numbers that lacks a bound.
        has_open_sums: whether those sums are not known to be whole and bounded.
        defined: operators on codes that were replaced by their definitions, in both models.
        sizes: names of open sizes that operators of the model as written compute with.
    """

    model: ir.Model
    frozen: int
    has_common_sums: bool = False
    index: int = 0
    domain: Domain = field(default_factory=lambda: Domain(({}, {})))
    fixed: Mapping[str, str] = field(default_factory=dict)
    bias_sums: frozenset[str] = frozenset()
    open_clips: frozenset[str] = frozenset()
    has_open_sums: bool = False
    defined: frozenset[OpKey] = frozenset()
    sizes: frozenset[str] = frozenset()

    @property
    def graph(self) -> ir.Graph:
        """The main graph."""
        return self.model.graph

    @property
    def imports(self) -> dict[str, int]:
        """Domains and their versions."""
        return versions_of(self.model.opset_imports)


def normalised_models(
    reference: ir.Model,
    candidate: ir.Model,
    *,
    keep_inputs: bool,
    open_sums: bool = False,
    defines: bool = False,
) -> tuple[NormalisedModel, NormalisedModel]:
    """Return copies of two models that can be matched node by node.

    Both are raised to the higher of their two opsets, if possible. If one has products with packed
    weights, all products are written in one form. If the models use different operators for them,
    sums of products of codes, biases, and operators that are defined as a graph of standard
    operators are written in one form too; nodes that such a graph does not cover are kept. The
    types and shapes of the inputs are those that both models accept. All others are inferred from
    them; those that the models state are not used. Values that sizes determine become constants.
    If ``keep_inputs``, initializers that are also graph inputs are no constants. ``open_sums`` is
    described at :func:`with_common_sums`. If ``defines``, operators on codes in which the models
    differ are first replaced by their definitions.

    Raises:
        UnsupportedError: a function cannot be inlined.
        ModelError: no opset has all nodes of a model.
    """
    copies = [flat(model) for model in (reference, candidate)]
    counts = [0 if keep_inputs else freeze_inputs(copy) for copy in copies]
    for copy in copies:
        freeze_static_parameters(copy)
    domain = common_domain(*copies)
    fixed, sizes = [], []
    for copy, interface in zip(copies, domain.interfaces, strict=True):
        facts = infer(copy, interface)
        sizes.append(reshaped_sizes(facts))
        fixed.append(fix_static_values(copy.graph, facts))
        write_all(copy, infer(copy, interface) if fixed[-1] else facts)
    unfolded = differing(copies, composite_of)
    for copy in copies:
        write_out(copy, [node for node in nodes_of(copy.graph) if OpKey.of(node) in unfolded])
    defined = define(copies) if defines else frozenset()
    if unfolded or defined:
        for copy, interface in zip(copies, domain.interfaces, strict=True):
            write_all(copy, infer(copy, interface))
    packed = any(map(has_packed_products, copies))
    summed, has_open_sums = with_common_sums(copies, open_sums=open_sums)
    biased = split_biases(summed or copies)
    highest = max(copy.opset_imports.get("", 0) for copy in copies)
    normalised = []
    for index, copy in enumerate(summed or copies):
        if packed:
            write_products(copy)
        try:
            raised = require(copy, highest)
        except UnsupportedError as error:
            logger.info("left at its opset: %s", error)
            raised = False
        if packed or summed or biased or raised:
            write_all(copy, infer(copy, domain.interfaces[index]))
        normalised.append(
            NormalisedModel(
                copy,
                counts[index],
                summed is not None,
                index,
                domain,
                fixed[index],
                biased,
                frozenset(_open_clips(copy)),
                has_open_sums,
                defined,
                sizes[index],
            )
        )
    return normalised[0], normalised[1]


def _open_clips(model: ir.Model) -> Iterator[str]:
    if model.opset_imports.get("", 0) < _BOUNDS_ARE_INPUTS:
        return
    for node in nodes_of(model.graph):
        if node.domain == "" and node.op_type == "Clip":
            bounds = [*node.inputs[1:], None, None][:2]
            x = node.inputs[0]
            if None in bounds and (x is None or x.dtype is None or x.dtype.is_floating_point()):
                yield str(node.outputs[0].name)


def _state_bounds(owner: ir.Graph | ir.Function) -> None:
    """Give each Clip of an opset before 11 the bounds that it has where it states none."""
    for node in nodes_of(owner):
        if node.domain == "" and node.op_type == "Clip":
            for name, bound in (("min", -LARGEST), ("max", LARGEST)):
                if name not in node.attributes:
                    node.attributes[name] = ir.AttrFloat32(name, bound)


def flat(model: ir.Model) -> ir.Model:
    """Return a copy with functions inlined; raise UnsupportedError if one cannot be."""
    copy = model.clone()
    declare_domains(copy)
    for owner in owners(copy):
        if owner.opset_imports.get("", _BOUNDS_ARE_INPUTS) < _BOUNDS_ARE_INPUTS:
            _state_bounds(owner)
    if not copy.functions:
        return copy
    versions = {key.opset_imports.get("") for key in owners(copy)} - {None}
    if len(versions) > 1:
        require(copy, max(version for version in versions if version is not None))
    inline_functions(copy)
    return copy


def live_nodes(outputs: Iterable[ir.Value]) -> set[ir.Node]:
    """Return the nodes on which the outputs depend, with those of subgraphs."""
    producers = (value.producer() for value in ancestors(outputs))
    return {node for node in producers if node is not None}


def listed_facts(
    sides: Sequence[NormalisedModel], names: Sequence[Collection[str]]
) -> tuple[list[ListedFact], list[Condition]]:
    """Return the types and shapes of values in regions and of others the proof uses; conditions."""
    facts: dict[ListedFact, None] = {}
    used = set().union(*(side.sizes for side in sides))
    for side, wanted in zip(sides, names, strict=True):
        own = {value.name: value for value in side.graph.inputs}
        facts.update(dict.fromkeys(_fact(side, value) for value in own.values()))
        live = live_nodes(side.graph.outputs)
        for node in nodes_of(side.graph):
            for value in _compared(side, node) if node in live else ():
                fact = _fact(side, value)
                facts[fact] = None
                texts = [size for size in fact.shape or () if isinstance(size, str)]
                used.update(*map(names_in, texts))
            for value in node.outputs:
                if value.name in wanted:
                    facts[_fact(side, value)] = None
    return list(facts), of_sizes(used, sides[0].domain.shared)


def _compared(side: NormalisedModel, node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values whose type or shape the matching of a node depends on."""
    if node.op_type == "Cast" and is_identity(node, side.imports) and node.inputs[0] is not None:
        yield node.inputs[0]
    elif new_shape(node) is not None or str(node.outputs[0].name) in side.fixed:
        yield node.outputs[0]
        if keeps_shape(node) and node.inputs[0] is not None:
            yield node.inputs[0]


def _fact(side: NormalisedModel, value: ir.Value) -> ListedFact:
    name = str(value.name)
    held = None
    if name in side.fixed and (array := constant(value)) is not None:
        held = tuple(array.reshape(-1).tolist())
    because = side.fixed.get(name) or side.domain.reasons[side.index].get(name) or origin(value)
    dtype, type_name = value.dtype, None
    if dtype is not None and dtype is not ir.DataType.UNDEFINED:
        type_name = "string" if dtype is ir.DataType.STRING else str(dtype.numpy())
    return ListedFact(_SIDES[side.index], name, type_name, stated_shape(value), because, held)


def fix_static_values(graph: ir.Graph, facts: Facts) -> dict[str, str]:
    """Replace nodes with known results by Constant nodes of the same names, in place.

    Nodes on constants alone are left unchanged. Returns the replaced operators with their operands,
    by the names of the results.
    """
    constants: set[ir.Value] = set()
    fixed: dict[str, str] = {}
    for node in nodes_of(graph):
        if _is_constant(node, constants):
            constants.update(node.outputs)
            continue
        if len(node.outputs) != 1 or graphs_of(node):
            continue
        (result,) = node.outputs
        fact = facts.get(result)
        array = None if fact is None else fact.array
        if array is None:
            continue
        fixed[str(result.name)] = origin(result)
        node.resize_inputs(0)
        node.attributes.clear()
        node.domain, node.op_type = "", "Constant"
        node.attributes["value"] = ir.AttrTensor("value", ir.tensor(array))
    return fixed


def origin(value: ir.Value) -> str:
    """Return the operator that computes a value, with its operands, as a text."""
    node = value.producer()
    if node is None:
        return "stored in the file" if value.is_initializer() else "stated for the input"
    operands = ", ".join(str(operand.name) for operand in node.inputs if operand is not None)
    return f"{node.op_type} of {operands}" if operands else node.op_type


def _is_constant(node: ir.Node, constants: set[ir.Value]) -> bool:
    if node.op_type == "Constant" and not node.domain:
        return True
    used = [value for value in node.inputs if value is not None]
    return bool(used) and all(
        value in constants or (value.is_initializer() and not value.is_graph_input())
        for value in used
    )
