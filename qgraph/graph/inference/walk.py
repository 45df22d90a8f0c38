"""Infer facts about all values of a model, in one pass over its nodes in topological order.

Facts about the results of If, Loop and Scan hold for every branch and iteration. The graphs of If
can use outer values. The state of a Loop or a Scan is assumed to keep its initial type and shape.
If an iteration changes them, only the common facts are assumed, and so on until an iteration keeps
the assumption. Then it holds in all iterations. Facts about the values of a function hold for all
its calls.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import onnx_ir as ir

from qgraph.graph.inference.dimensions import Dim, Size, symbol
from qgraph.graph.inference.elementwise import of_quantizer
from qgraph.graph.inference.movement import part_of_sequence
from qgraph.graph.inference.rules import (
    RULES,
    UNKNOWN,
    Call,
    Fact,
    Unknown,
    given,
    joined,
    of_tensor,
    require,
)
from qgraph.graph.schema import is_own, like_typed, versions_of
from qgraph.graph.scopes import CONTROL, bodies
from qgraph.records import dataclass, field, replace

_FAMILIES = ("elementwise", "movement", "reshape", "windows")
"""Modules of rules, which register themselves."""

for _family in _FAMILIES:
    importlib.import_module(f"qgraph.graph.inference.{_family}")

Facts = Mapping[ir.Value, Fact]
"""Facts about the values of a model; values that are not listed are unknown."""

Interface = Mapping[str, Sequence[Dim]]
"""Shapes of the inputs of a model, by name."""


def infer(model: ir.Model, interface: Interface | None = None) -> dict[ir.Value, Fact]:
    """Return the facts about the values of a model, independent of the types stated in the file.

    The element types and the fixed sizes that the model states for its inputs are used: they are
    its interface, unless shapes of inputs are given. Everything else is inferred from them, the
    constants and the operators. Initializers that are also inputs can be fed, so they are not
    constants. Inputs of functions that nothing calls are unknown.
    """
    return _walked(model, interface).known


def size_limits(model: ir.Model, interface: Interface | None = None) -> dict[str, int]:
    """Return upper bounds of open sizes on valid inputs of a model, by their texts.

    For the interface see :func:`infer`. Functions are left out.
    """
    return _walked(model, interface).limits


def _walked(model: ir.Model, interface: Interface | None) -> _Walk:
    facts: dict[ir.Value, Fact] = {}
    walk = _Walk(facts, model.functions, versions_of(model.opset_imports))
    shapes = open_interface(model) if interface is None else interface
    facts |= {
        value: Fact(value.dtype, shapes.get(str(value.name)))
        for value in model.graph.inputs
        if value.type is None or isinstance(value.type, ir.TensorType)
    }
    walk.graph(model.graph)
    for function in model.functions.values():
        if function.identifier() not in walk.calls:
            walk.function(function, [UNKNOWN] * len(function.inputs))
    return walk


def infer_nodes(
    nodes: Iterable[ir.Node], known: dict[ir.Value, Fact], imports: Mapping[str, int]
) -> None:
    """Add facts about the results of nodes, each after those that it takes operands from.

    No node calls a function. Facts about operands are ``known``; constants are listed too.
    """
    _Walk(known, {}, imports).nodes(nodes)


def open_interface(model: ir.Model) -> dict[str, tuple[Dim, ...]]:
    """Return the shapes of a model's inputs, with distinct names for all open sizes."""
    return {
        str(value.name): tuple(
            size if isinstance(size, int) and size >= 0 else symbol(f"input{index}_{axis}")
            for axis, size in enumerate(value.shape.dims)
        )
        for index, value in enumerate(model.graph.inputs)
        if value.shape is not None
    }


def with_facts(model: ir.Model, interface: Interface | None = None) -> ir.Model:
    """Return a copy of a model whose values have the inferred types and shapes.

    Unknown types are missing, even if the model states them. Open sizes stand in shapes by
    their texts.
    """
    copy = model.clone()
    write_all(copy, infer(copy, interface))
    return copy


def write_all(model: ir.Model, facts: Facts) -> None:
    """Set the types and shapes of all values of a model from facts, as :func:`with_facts` does."""
    for body in bodies(model):
        for value in _values(body):
            write(value, facts.get(value, UNKNOWN))


def write(value: ir.Value, fact: Fact) -> None:
    """Set the type and the shape of a value from a fact, unless it is not a tensor."""
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
    """Return the name of an open size if it is valid in a polynomial, else None."""
    return name if name and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else None


Body: TypeAlias = Callable[[ir.Graph, Sequence[Fact]], list[Fact]]
"""Infers a graph from facts of its inputs; returns those of its outputs."""

_ROUNDS = 4


def _control(call: Call, body: Body) -> list[Fact]:
    """Return the facts about the results of an operator that runs graphs."""
    if call.node.op_type == "If":
        branches = [body(_graph(call, name), ()) for name in ("then_branch", "else_branch")]
        return [joined(a, b) for a, b in zip(*branches, strict=True)]
    graph = _graph(call, "body")
    operands = range(len(call.operands))
    settled = None
    if call.node.op_type == "Loop":
        counters = [Fact(ir.DataType.INT64, ()), Fact(ir.DataType.BOOL, ())]
        start = [_form(call.optional(index)) for index in operands[2:]]
        settled = _settled(body, graph, counters, start, (), 1)
    elif call.node.op_type == "Scan" and call.version >= 9:
        carried = len(operands) - call.integer("num_scan_inputs", 0)
        start = [_form(call[index]) for index in operands[:carried]]
        parts = [Fact(call[index].dtype) for index in operands[carried:]]
        settled = _settled(body, graph, (), start, parts, 0)
    if settled is not None:
        state, others = settled
        return [*state, *(Fact(other.dtype) for other in others)]
    # Of other operators the graphs are inferred too, for what lies in them
    for attribute in call.node.attributes.values():
        if attribute.type is ir.AttributeType.GRAPH and not attribute.is_ref():
            inner = attribute.as_graph()
            body(inner, [UNKNOWN] * len(inner.inputs))
    raise Unknown


def _settled(
    body: Body,
    graph: ir.Graph,
    before: Sequence[Fact],
    start: Sequence[Fact],
    after: Sequence[Fact],
    skipped: int,
) -> tuple[list[Fact], list[Fact]]:
    """Return facts about the state that hold in all iterations, and facts about other results."""
    state = list(start)
    for left in reversed(range(_ROUNDS)):
        results = body(graph, [*before, *state, *after])[skipped:]
        if len(results) < len(state):
            body(graph, [UNKNOWN] * len(graph.inputs))  # forget what was assumed
            raise Unknown
        common = [joined(a, _form(b)) for a, b in zip(state, results, strict=False)]
        if list(map(repr, common)) == list(map(repr, state)):
            return state, results[len(state) :]
        state = common if left > 1 else [UNKNOWN] * len(state)
    raise Unknown


def _form(fact: Fact) -> Fact:
    return Fact(fact.dtype, fact.shape)


def _graph(call: Call, name: str) -> ir.Graph:
    attribute = given(call.node.attributes.get(name))
    require(not attribute.is_ref(), attribute.type is ir.AttributeType.GRAPH)
    return attribute.as_graph()


@dataclass
class _Walk:
    """The facts known so far, in one model or function."""

    known: dict[ir.Value, Fact]
    functions: Mapping[ir.OperatorIdentifier, ir.Function]
    imports: Mapping[str, int]
    limits: dict[str, int] = field(default_factory=dict)
    calls: dict[ir.OperatorIdentifier, list[Fact]] = field(default_factory=dict)
    """Facts about the inputs of each function that hold for all calls so far."""

    def graph(self, graph: ir.Graph) -> None:
        self.known |= {
            value: of_tensor(value.const_value)
            for value in graph.initializers.values()
            if value.const_value is not None and not value.is_graph_input()
        }
        self.nodes(graph)

    def function(self, function: ir.Function, operands: Sequence[Fact]) -> list[Fact]:
        """Infer a function from facts of one more call; return facts about its results."""
        inputs = [*operands, *[UNKNOWN] * len(function.inputs)][: len(function.inputs)]
        before = self.calls.get(function.identifier())
        if before is not None:
            inputs = [joined(a, b) for a, b in zip(before, inputs, strict=True)]
        if before is None or list(map(repr, before)) != list(map(repr, inputs)):
            self.calls[function.identifier()] = inputs
            self.known.update(zip(function.inputs, inputs, strict=True))
            replace(self, imports=versions_of(function.opset_imports), limits={}).nodes(function)
        return [self.known.get(value, UNKNOWN) for value in function.outputs]

    def nodes(self, body: Iterable[ir.Node]) -> None:
        for node in body:
            self.known.update(zip(node.outputs, self._results(node), strict=False))

    def _call(self, node: ir.Node, version: int) -> Call:
        operands = [None if v is None else self.known.get(v, UNKNOWN) for v in node.inputs]
        return Call(node, version, operands, self.limits)

    def _results(self, node: ir.Node) -> Sequence[Fact]:
        domain = "" if node.domain == "ai.onnx" else node.domain
        version = self.imports.get(domain)
        call = self._call(node, version or 1)
        if (function := self.functions.get(node.op_identifier())) is not None:
            operands = [call.optional(index) for index in range(len(node.inputs))]
            return self.function(function, operands)
        if version is None and not domain:
            return [UNKNOWN] * len(node.outputs)
        facts: Sequence[Fact] = [UNKNOWN] * len(node.outputs)
        try:
            if not domain and node.op_type == "SequenceAt":
                # Facts are about tensors, so an element is inferred from what is split.
                sequence = node.inputs[0].producer() if node.inputs[0] else None
                facts = part_of_sequence(self._call(sequence or node, call.version))
            elif not domain and node.op_type in CONTROL:
                facts = _control(call, self._body)
            elif (rule := RULES.get((domain, node.op_type))) is not None:
                facts = rule(call)
            elif is_own(node.op_type, call.version, domain):
                facts = of_quantizer(call)
        except (Unknown, ValueError, IndexError):  # also of a node that violates its definition
            if not domain:
                facts = self._types(node, call.version)
        possible = [fact if _is_possible(fact) else UNKNOWN for fact in facts]
        return possible + [UNKNOWN] * (len(node.outputs) - len(possible))

    def _types(self, node: ir.Node, version: int) -> list[Fact]:
        """Return the types of the results of a standard node that has a rule."""
        like = [like_typed(node, index, version) for index in range(len(node.outputs))]
        return [UNKNOWN if v is None else Fact(self.known.get(v, UNKNOWN).dtype) for v in like]

    def _body(self, graph: ir.Graph, inputs: Sequence[Fact]) -> list[Fact]:
        if len(inputs) != len(graph.inputs):
            inputs = [UNKNOWN] * len(graph.inputs)
        self.known.update(zip(graph.inputs, inputs, strict=True))
        replace(self, limits={}).graph(graph)  # a branch that does not run limits nothing
        return [self.known.get(value, UNKNOWN) for value in graph.outputs]


def _is_possible(fact: Fact) -> bool:
    return not any(isinstance(size, int) and size < 0 for size in fact.shape or ())


def _values(body: ir.Graph | ir.Function) -> list[ir.Value]:
    """Return the inputs, the initializers and the results of a body; not those of bodies in it."""
    values = list(body.inputs)
    if isinstance(body, ir.Graph):
        values += [v for v in body.initializers.values() if not v.is_graph_input()]
    return values + [value for node in body for value in node.outputs]


@contextmanager
def inferred(
    model: ir.Model,
    values: Iterable[ir.Value],
    *,
    keeps_types: bool = True,
    facts: Facts | None = None,
) -> Iterator[None]:
    """Set the inferred shapes and types of values within the block.

    A shape is None if no rank can be inferred, even if the file states one. A type that cannot be
    inferred stays as stated. Inputs of the model keep types and shapes. Without values, nothing is
    inferred. With ``keeps_types``, inferred types stay after the block if the file states none.
    ``facts`` are inferred if they are None.
    """
    wanted = [v for v in dict.fromkeys(values) if not (v.is_graph_input() or v.is_initializer())]
    if facts is None:
        facts = infer(model) if wanted else {}
    wanted = [
        v for v in wanted if not v.is_graph_output() or facts.get(v, UNKNOWN).shape is not None
    ]
    before = [(value, value.type, value.shape) for value in wanted]
    for value in wanted:
        fact = facts.get(value, UNKNOWN)
        value.shape = _shape(value.shape, fact)
        if fact.dtype is not None and fact.dtype is not value.dtype:
            value.type = ir.TensorType(fact.dtype)
    try:
        yield
    finally:
        for value, value_type, shape in before:
            value.shape = shape
            if value_type is not None or not keeps_types:
                value.type = value_type


def _shape(stated: ir.Shape | None, fact: Fact) -> ir.Shape | None:
    """Return an inferred shape; an open size keeps the name that the file states for it."""
    if fact.shape is None:
        return None
    if stated is not None and stated.dims == fact.shape:
        return stated
    names: list[int | ir.SymbolicDim] = [ir.SymbolicDim(None)] * len(fact.shape)
    if stated is not None and len(stated) == len(fact.shape):
        names = list(stated.dims)
    return ir.Shape(
        [
            size if isinstance(size, int) else name if isinstance(name, ir.SymbolicDim) else None
            for size, name in zip(fact.shape, names, strict=True)
        ]
    )


RESHAPING = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})

_FUNCTIONS = {"floor", "min"}
"""Names in the texts of sizes that are no sizes."""


def reshaped_sizes(facts: Mapping[ir.Value, Fact]) -> frozenset[str]:
    """Return the names of the open sizes of the results of operators that reshape."""
    texts = [
        str(size)
        for value, fact in facts.items()
        if (node := value.producer()) is not None and node.op_type in RESHAPING
        for size in fact.shape or ()
        if isinstance(size, Size)
    ]
    return frozenset().union(*map(names_in, texts))


def names_in(size: str) -> set[str]:
    """Return the names of open sizes in the text of a size."""
    return set(re.findall(r"[A-Za-z_]\w*", size)) - _FUNCTIONS
