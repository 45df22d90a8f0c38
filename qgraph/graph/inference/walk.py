"""Inferring a model: one walk over its nodes, each after those that it takes operands from."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from qgraph.graph.inference.control import control
from qgraph.graph.inference.dimensions import Dim, symbol
from qgraph.graph.inference.facts import UNKNOWN, Fact, of_tensor
from qgraph.graph.inference.rules import RULES, Call, Unknown
from qgraph.graph.scopes import bodies

_FAMILIES = (
    "elementwise",
    "movement",
    "products",
    "quantizers",
    "recurrent",
    "reductions",
    "reshape",
    "resizing",
    "sizes",
    "windows",
)
"""Modules of rules, which register themselves."""

for _family in _FAMILIES:
    importlib.import_module(f"qgraph.graph.inference.{_family}")

_CONTROL = frozenset({"If", "Loop", "Scan", "SequenceMap"})

Facts = Mapping[ir.Value, Fact]
"""What is known of the values of a model; values that are not listed are unknown."""

Interface = Mapping[str, Sequence[Dim]]
"""Shapes of the inputs of a model, by name."""


def infer(model: ir.Model, interface: Interface | None = None) -> dict[ir.Value, Fact]:
    """Return what is known of the values of a model, whatever the file states of inner ones.

    The element types and the fixed sizes that the model states for its inputs are taken from it:
    they are its interface. All else follows from them, from the constants and from the operators.
    Initializers that are inputs too can be fed, and are no constants.

    Args:
        model: its main graph and its functions are inferred; nothing is known of the inputs of
            functions.
        interface: shapes of the inputs, where they are not those that the model states.
    """
    known: dict[ir.Value, Fact] = {}
    walk = _Walk(known, frozenset(model.functions), _imports(model.opset_imports))
    shapes = open_interface(model) if interface is None else interface
    for value in model.graph.inputs:
        if value.type is None or isinstance(value.type, ir.TensorType):
            known[value] = Fact(value.dtype, shapes.get(str(value.name)))
    walk.graph(model.graph)
    for function in model.functions.values():
        inner = _Walk(known, walk.functions, _imports(function.opset_imports))
        inner.nodes(function)
    return known


def open_interface(model: ir.Model) -> dict[str, tuple[Dim, ...]]:
    """Return the shapes of a model's inputs, with an open size of its own for each open one."""
    return {
        str(value.name): tuple(
            size if isinstance(size, int) and size >= 0 else symbol(f"input{place}_{axis}")
            for axis, size in enumerate(value.shape.dims)
        )
        for place, value in enumerate(model.graph.inputs)
        if value.shape is not None
    }


def with_facts(model: ir.Model, interface: Interface | None = None) -> ir.Model:
    """Return a copy of a model whose values have the types and shapes that are inferred.

    What is not known has none, also where the model states it. Open sizes stand in shapes by
    their texts.
    """
    copy = model.clone()
    facts = infer(copy, interface)
    for body in bodies(copy):
        for value in _values(body):
            write(value, facts.get(value, UNKNOWN))
    return copy


def write(value: ir.Value, fact: Fact) -> None:
    """Give a value the type and the shape of a fact, unless it is no tensor."""
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        return
    value.type = None if fact.dtype is None else ir.TensorType(fact.dtype)
    value.shape = (
        None
        if fact.shape is None
        else ir.Shape(
            [
                size if isinstance(size, int) else ir.SymbolicDim(size and size.text)
                for size in fact.shape
            ]
        )
    )


def named(name: str | None) -> str | None:
    """Return the name of an open size if it can stand in a polynomial, else None."""
    return name if name and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else None


@dataclass
class _Walk:
    """What is known so far, in one model or function."""

    known: dict[ir.Value, Fact]
    functions: frozenset[ir.OperatorIdentifier]
    imports: Mapping[str, int]

    def graph(self, graph: ir.Graph) -> None:
        for value in graph.initializers.values():
            if value.const_value is not None and not value.is_graph_input():
                self.known[value] = of_tensor(value.const_value)
        self.nodes(graph)

    def nodes(self, body: ir.Graph | ir.Function) -> None:
        for node in body:
            facts = self._results(node)
            for value, fact in zip(node.outputs, facts, strict=False):
                self.known[value] = fact

    def _results(self, node: ir.Node) -> Sequence[Fact]:
        domain = "" if node.domain == "ai.onnx" else node.domain
        version = self.imports.get(domain)
        if node.op_identifier() in self.functions or (version is None and not domain):
            return [UNKNOWN] * len(node.outputs)
        known = self.known
        operands = [None if v is None else known.get(v, UNKNOWN) for v in node.inputs]
        call = Call(node, version or 1, operands)
        try:
            if not domain and node.op_type in _CONTROL:
                facts: Sequence[Fact] = control(call, self._body)
            elif (rule := RULES.get((domain, node.op_type))) is not None:
                facts = rule(call)
            else:
                return [UNKNOWN] * len(node.outputs)
        except (Unknown, ValueError, IndexError):
            return [UNKNOWN] * len(node.outputs)  # also of a node that violates its definition
        found = [fact if _is_possible(fact) else UNKNOWN for fact in facts]
        return found + [UNKNOWN] * (len(node.outputs) - len(found))

    def _body(self, graph: ir.Graph, inputs: Sequence[Fact]) -> list[Fact]:
        if len(inputs) != len(graph.inputs):
            inputs = [UNKNOWN] * len(graph.inputs)
        self.known.update(zip(graph.inputs, inputs, strict=True))
        self.graph(graph)
        return [self.known.get(value, UNKNOWN) for value in graph.outputs]


def _is_possible(fact: Fact) -> bool:
    return not any(isinstance(size, int) and size < 0 for size in fact.shape or ())


def _values(body: ir.Graph | ir.Function) -> list[ir.Value]:
    """Return the inputs, the initializers and the results of a body; not those of bodies in it."""
    values = list(body.inputs)
    if isinstance(body, ir.Graph):
        values += [v for v in body.initializers.values() if not v.is_graph_input()]
    return values + [value for node in body for value in node.outputs]


def _imports(imports: Mapping[str, int]) -> dict[str, int]:
    return {("" if domain == "ai.onnx" else domain): n for domain, n in imports.items()}
