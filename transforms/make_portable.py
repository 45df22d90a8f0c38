"""The pass ``make-portable``: quantizers that any ONNX runtime executes as they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import onnx_ir as ir

from qgraph.dialects.dialect import try_out
from qgraph.errors import OperatorError
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.constants import constant
from qgraph.graph.schema import OpKey
from qgraph.graph.scopes import owners
from qgraph.model import Model
from qgraph.ops.operator import Operator, operator_of
from qgraph.opsets import versions as opset
from qgraph.report import Outcome, Report, SiteReport, operator_name
from qgraph.transforms.base import Transform, transform
from qgraph.transforms.bodies import LOWEST_OPSET, MARK, body
from qgraph.transforms.versions import raise_versions

_IR_OF_DEFAULTS = 9
_IR_OF_OVERLOADS = 10

AS_DEFINED = Verdict(Exactness.BITS, Method.CONGRUENCE)
"""A body is the definition; that a runtime computes its bits is shown by tests, not by a proof."""

Functions = dict[ir.OperatorIdentifier, ir.Function]


@transform("make-portable")
class MakePortable(Transform):
    """Give every quantizer a function body in standard operators, so that any runtime executes it.

    Nodes keep operator, domain, attributes and inputs. There is one function for each operator,
    version and combination of attributes that occurs; where an operator occurs with several, they
    are overloads, and its nodes name theirs, which ONNX has since IR version 10. ONNX Runtime
    overlooks overloads inside functions: there, an operator can occur with one combination only.

    The opset is raised to 11 and the IR version to 9 or 10 where they are lower. The metadata of
    the model then says under ``qgraph.make-portable`` what they were, for ``strip-functions``.

    ONNX Runtime computes the bits of the definition with one exception: a FakeQuantize whose output
    range ends at -0 gives +0 there.
    """

    preserves: ClassVar[Exactness] = Exactness.BITS

    def apply(self, model: Model, report: Report) -> None:
        """Read every quantizer, raise the versions once, write the functions."""
        added = opset.declare_domains(model.ir)
        if added:
            report.notes.append(f"declared operator sets: {', '.join(added)}")
        old, calls = take_back(model)
        groups: dict[_Key, list[_Found]] = {}
        for found in _quantizers(model.ir):
            if isinstance(found, SiteReport):
                report.sites.append(found)
            else:
                groups.setdefault(found.key, []).append(found)
        names = _overloads(groups, model.ir)
        if names:
            lowest_ir = _IR_OF_OVERLOADS if any(names.values()) else _IR_OF_DEFAULTS
            report.notes += raise_versions(model.ir, LOWEST_OPSET, lowest_ir, MARK)
        for key, members in groups.items():
            name = names.get(key)
            nodes = [found.node for found in members if not (found.nested and name)]
            if name is not None:
                new = _write(model.ir, key, name, nodes, old)
                for node in nodes:
                    node.overload = name
                    stood = not new and calls.get(node) == name
                    report.sites.append(_stands(node) if stood else _changed(node, name))
            others = [found.node for found in members if found.nested and name != ""]
            report.sites += [_entry(node, Outcome.REFUSED, _NESTED) for node in others]
        unused = set(old) - set(model.ir.functions)
        if unused:
            report.notes.append(f"functions without use removed: {len(unused)}")


_NESTED = (
    "it stands in a function, where ONNX Runtime overlooks overloads, and the operator needs them: "
    "other nodes of it there have other attributes, or some have no function; inline functions "
    "first"
)


@dataclass(frozen=True)
class _Key:
    """What nodes share that share a function."""

    domain: str
    name: str
    operator: Operator
    items: tuple[tuple[str, Any], ...]

    @property
    def operation(self) -> OpKey:
        return OpKey(self.domain, self.name)

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.items)

    @property
    def label(self) -> str:
        """The arguments as a name: ``signed1_narrow0_rounding_mode_ROUND``."""
        parts = [
            f"{name}_{value}" if isinstance(value, str) else f"{name}{int(value)}"
            for name, value in self.items
        ]
        if self.operator.schema.since > 1:
            parts.insert(0, f"version{self.operator.schema.since}")
        return "_".join(parts) or "plain"

    @property
    def defaults(self) -> dict[str, ir.Attr]:
        """The attributes as the body understands them."""
        known = {}
        for attribute in self.operator.schema.attributes:
            value = self.arguments[attribute.name]
            text = attribute.kind is ir.AttributeType.STRING
            plain = str(value) if text else int(value)
            known[attribute.name] = ir.Attr(attribute.name, attribute.kind, plain)
        return known


@dataclass(frozen=True)
class _Found:
    """A quantizer that needs a function; ``nested``: it stands in a function itself."""

    node: ir.Node
    key: _Key
    nested: bool


def take_back(model: Model) -> tuple[Functions, dict[ir.Node, str]]:
    """Remove the functions that the pass wrote, and their overloads from the nodes that call them.

    Returns:
        The functions by their identifiers, and which overload each of the nodes named.
    """
    functions = model.ir.functions
    old = {key: function for key, function in functions.items() if MARK in function.metadata_props}
    for key in old:
        del functions[key]
    calls = {node: node.overload for node in model.nodes() if node.op_identifier() in old}
    for node in calls:
        node.overload = ""
    return old, calls


def _quantizers(model: ir.Model) -> Iterable[_Found | SiteReport]:
    for owner in owners(model):
        for node in list(ir.traversal.RecursiveGraphIterator(owner)):
            try:
                operator = operator_of(node)
                if operator is None or operator.schema.standard:
                    continue
                if node.op_identifier() in model.functions:
                    reason = "the model has a function of its own for it"
                    yield _entry(node, Outcome.KEPT, reason)
                    continue
                yield _Found(node, _key(node, operator), isinstance(owner, ir.Function))
            except OperatorError as error:
                yield _entry(node, Outcome.REFUSED, str(error))


def _key(node: ir.Node, operator: Operator) -> _Key:
    """Return what function a node needs.

    Raises:
        OperatorError: it cannot have one.
    """
    if node.domain == "":
        raise OperatorError(
            "Runtimes take no functions in the standard domain. Give the node the domain "
            f"{operator.schema.domains[0]!r}."
        )
    arguments = operator.arguments(node)
    known = [constant(value) for value in node.inputs[1:]]
    arrays = [array for array in known if array is not None]
    if len(arrays) == len(known) and node.inputs[0] is not None:
        try_out(node, node.inputs[0], *arrays)
    return _Key(node.domain, node.op_type, operator, tuple(arguments.items()))


def _overloads(groups: dict[_Key, list[_Found]], model: ir.Model) -> dict[_Key, str]:
    """Return the overload of each function that is to be written.

    The plain name, the empty one, goes to the function for nodes inside functions, or to the only
    one of its operator. Nobody gets it while another node without overload would call it too.
    """
    mine = {found.node for members in groups.values() for found in members}
    strangers = {
        OpKey.of(node)
        for owner in owners(model)
        for node in ir.traversal.RecursiveGraphIterator(owner)
        if not node.overload and node not in mine
    }
    names = {}
    taken = set(model.functions)
    for key, members in groups.items():
        rivals = [other for other in groups if other.operation == key.operation]
        inside = [other for other in rivals if any(found.nested for found in groups[other])]
        plain = (inside or rivals) == [key] and key.operation not in strangers
        if not plain and all(found.nested for found in members):
            continue
        name = stem = "" if plain else key.label
        number = 1
        while (*key.operation, name) in taken:
            name, number = f"{stem}_{number}", number + 1
        taken.add((*key.operation, name))
        names[key] = name
    return names


def _write(
    model: ir.Model, key: _Key, overload: str, nodes: Sequence[ir.Node], old: Functions
) -> bool:
    """Give the model the function for ``key``; return whether it is not the one that it had."""
    attributes = dict(key.defaults)
    for node in nodes:
        for name, attribute in node.attributes.items():
            attributes.setdefault(name, attribute)
    identifier = (*key.operation, overload)
    function = old.get(identifier)
    stands = function is not None and dict(function.attributes) == attributes
    if function is None or not stands:
        version = model.opset_imports[""]
        function = body(key.operator, key.arguments, version, *identifier, attributes)
    model.functions[identifier] = function
    return not stands


def _changed(node: ir.Node, overload: str) -> SiteReport:
    entry = _entry(node, Outcome.CHANGED, None)
    return replace(
        entry, spelling=" ".join(["function", node.op_type, overload]).strip(), verdict=AS_DEFINED
    )


def _stands(node: ir.Node) -> SiteReport:
    return _entry(node, Outcome.KEPT, "it has a function already")


def _entry(node: ir.Node, outcome: Outcome, reason: str | None) -> SiteReport:
    name = node.name or node.outputs[0].name or ""
    return SiteReport(name, operator_name(node), "", outcome, reason=reason)
