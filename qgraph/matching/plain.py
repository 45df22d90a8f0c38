"""Models as proofs see them: functions inlined, of one opset, types and shapes inferred anew."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from qgraph.errors import UnsupportedError
from qgraph.execution.static_parameters import freeze_static_parameters
from qgraph.graph.constants import overridable
from qgraph.graph.inference.walk import infer, with_facts
from qgraph.graph.scopes import nodes_of, owners
from qgraph.matching.biases import split_biases
from qgraph.matching.domain import Domain, common_domain
from qgraph.matching.integer_products import with_common_sums
from qgraph.matching.products import has_packed_products, spell_out_products
from qgraph.matching.static_values import fix_static_values
from qgraph.model import Model
from qgraph.ops.operator import OPERATORS
from qgraph.opsets.versions import declare_domains, require

logger = logging.getLogger(__name__)

_BOUNDS_ARE_INPUTS = 11
"""The opset from which on the bounds of Clip are inputs, and an absent one has no number."""


@dataclass(frozen=True)
class Plain:
    """A private copy of a model.

    Attributes:
        model: the copy.
        frozen: how many initializers were inputs too and are constants here.
        has_common_sums: whether sums of products of codes are written in one way here.
        place: 0 for the reference, 1 for the candidate.
        domain: the inputs that both models take, on which all types and shapes rest.
        fixed: the operators of values that sizes determine and that are constants here, by name.
        bias_sums: names of sums that a node of its own adds the bias to here, and an operator with
            a bias in the model.
        open_clips: names of the results of each Clip of real numbers that lacks a bound.
    """

    model: ir.Model
    frozen: int
    has_common_sums: bool = False
    place: int = 0
    domain: Domain = field(default_factory=lambda: Domain(({}, {})))
    fixed: Mapping[str, str] = field(default_factory=dict)
    bias_sums: frozenset[str] = frozenset()
    open_clips: frozenset[str] = frozenset()

    @property
    def graph(self) -> ir.Graph:
        """The main graph."""
        return self.model.graph

    @property
    def imports(self) -> dict[str, int]:
        """Domains and their versions."""
        imports = self.model.opset_imports
        return {("" if domain == "ai.onnx" else domain): n for domain, n in imports.items()}


def plain(reference: Model, candidate: Model, *, keep_inputs: bool) -> tuple[Plain, Plain]:
    """Return copies of two models that can be matched node by node.

    Both get the higher one of the two opsets, as far as their nodes can be raised to it. If one
    has products with packed weights, all products are written in one way; so are sums of products
    of codes, and biases, if the models have other operators for them. The types and shapes of the
    inputs are those that both models take, all others are inferred from them; what the models state
    of inner values is not used. Values that sizes determine are constants.

    Args:
        reference: one model.
        candidate: the other one.
        keep_inputs: leave initializers that are inputs too, which are not constant then.

    Raises:
        UnsupportedError: a function cannot be inlined.
        ModelError: no opset has all nodes of a model.
    """
    OPERATORS.names()  # which tells onnx of those of the dialects
    copies = [_flat(model) for model in (reference, candidate)]
    counts = [0 if keep_inputs else _freeze(copy) for copy in copies]
    for copy in copies:
        freeze_static_parameters(copy)
    domain = common_domain(*copies)
    fixed = []
    for place, copy in enumerate(copies):
        fixed.append(fix_static_values(copy.graph, infer(copy, domain.interfaces[place])))
        copies[place] = with_facts(copy, domain.interfaces[place])
    packed = any(map(has_packed_products, copies))
    summed = with_common_sums(copies)
    biased = split_biases(summed or copies)
    highest = max(copy.opset_imports.get("", 0) for copy in copies)
    made = []
    for place, copy in enumerate(summed or copies):
        if packed:
            spell_out_products(copy)
        try:
            raised = require(copy, highest)
        except UnsupportedError as error:
            logger.info("left at its opset: %s", error)
            raised = False
        is_changed = packed or summed or biased or raised
        model = with_facts(copy, domain.interfaces[place]) if is_changed else copy
        made.append(
            Plain(
                model,
                counts[place],
                summed is not None,
                place,
                domain,
                fixed[place],
                biased,
                frozenset(_open_clips(model)),
            )
        )
    return made[0], made[1]


def _open_clips(model: ir.Model) -> Iterator[str]:
    if model.opset_imports.get("", 0) < _BOUNDS_ARE_INPUTS:
        return
    for node in nodes_of(model.graph):
        if node.domain == "" and node.op_type == "Clip":
            bounds = [*node.inputs[1:], None, None][:2]
            x = node.inputs[0]
            if None in bounds and (x is None or x.dtype is None or x.dtype.is_floating_point()):
                yield str(node.outputs[0].name)


def _flat(model: Model) -> ir.Model:
    copy = model.ir.clone()
    declare_domains(copy)
    if not copy.functions:
        return copy
    versions = {key.opset_imports.get("") for key in owners(copy)} - {None}
    if len(versions) > 1:
        require(copy, max(version for version in versions if version is not None))
    try:
        InlinePass()(copy)
    except (ir.passes.PassError, ValueError, KeyError) as error:
        raise UnsupportedError(
            f"The functions of the model cannot be inlined ({error}), expected functions of the "
            "opsets of the model and without a circle. Inline them with the tool that wrote them."
        ) from error
    return copy


def _freeze(model: ir.Model) -> int:
    """Make constants of initializers that could be fed; return how many."""
    found = overridable(model.graph)
    for value in found:
        model.graph.inputs.remove(value)
    return len(found)
