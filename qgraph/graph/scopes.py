"""Names and scopes of values: check that each name in a model identifies one value.

ONNX files connect nodes by names, onnx_ir by objects: two values with one name are distinct in
memory and become one value in the file.
"""

from __future__ import annotations

from collections import ChainMap, deque
from collections.abc import Callable, Container, Iterable, Iterator
from itertools import chain

import onnx_ir as ir

from qgraph.errors import ModelError, UnsupportedError, where
from qgraph.records import by_key

Scope = ChainMap[str, ir.Value]


Body = ir.Graph | ir.Function
"""Containers of nodes: graphs and functions."""


def owners(model: ir.Model) -> tuple[Body, ...]:
    """Return the main graph and the functions, each with its own opset imports and scope."""
    return (model.graph, *model.functions.values())


def bodies(model: ir.Model) -> Iterator[Body]:
    """Yield the main graph, the functions, and all subgraphs of both."""
    for owner in owners(model):
        yield from _bodies(owner)


def _bodies(body: Body) -> Iterator[Body]:
    yield body
    for node in body:
        for attribute in node.attributes.data.values():
            if attribute.type in _GRAPHS:
                for graph in subgraphs(attribute):
                    yield from _bodies(graph)


def nodes_of(body: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield some nodes, such as those of a graph, each before the nodes of its own subgraphs.

    It does what ``ir.traversal.RecursiveGraphIterator`` does, several times as fast.
    """
    for node in body:
        yield node
        for attribute in node.attributes.data.values():
            if attribute.type in _GRAPHS:
                for graph in subgraphs(attribute):
                    yield from nodes_of(graph)


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the nodes of the main graph, the functions, and all subgraphs of both."""
    for owner in owners(model):
        yield from nodes_of(owner)


def graphs_of(node: ir.Node) -> tuple[ir.Graph, ...]:
    """Return the graphs in the attributes of ``node``; not those nested in them."""
    graphs: tuple[ir.Graph, ...] = ()
    for attribute in node.attributes.data.values():
        if attribute.type in _GRAPHS:
            graphs += subgraphs(attribute)
    return graphs


def is_sorted(body: Body) -> bool:
    """Return whether nodes are in topological order; subgraphs are not checked."""
    seen: set[ir.Node | None] = {None}
    for node in body:
        if graphs_of(node):
            return False
        for value in node.inputs:
            if value is not None and value.producer() not in seen:
                return False
        seen.add(node)
    return True


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)

CONTROL = frozenset({"If", "Loop", "Scan", "SequenceMap"})


def is_control(node: ir.Node) -> bool:
    """Return whether ``node`` is a standard operator that runs its subgraphs."""
    return node.domain == "" and node.op_type in CONTROL


def captured(node: ir.Node) -> list[ir.Value]:
    """Return the outer values that the subgraphs of ``node`` use, each once, in order."""
    graphs = [body for graph in graphs_of(node) for body in _bodies(graph)]
    if not graphs:
        return []
    used = [value for graph in graphs for inner in graph for value in inner.inputs]
    used += [value for graph in graphs for value in graph.outputs]
    own = set(graphs)
    return [value for value in dict.fromkeys(used) if value is not None and value.graph not in own]


def operands(node: ir.Node) -> list[ir.Value]:
    """Return the values that ``node`` and its subgraphs use, each once."""
    used = dict.fromkeys(node.inputs)
    if graphs_of(node):
        used.update(dict.fromkeys(captured(node)))
    return [value for value in used if value is not None]


def input_of(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input of a node; None if it is absent."""
    return node.inputs[index] if index < len(node.inputs) else None


def inputs_of(node: ir.Node, count: int) -> list[ir.Value | None]:
    """Return the first inputs of a node; None for absent ones."""
    return [input_of(node, index) for index in range(count)]


def producer_of(value: ir.Value | None, *names: str) -> ir.Node | None:
    """Return the node that computes a value, if it is a standard operator of one of some ``names``.

    Without names, any node is returned.
    """
    node = None if value is None else value.producer()
    is_other = node is None or (names and (node.domain or node.op_type not in names))
    return None if is_other else node


def remove_unused(nodes: Iterable[ir.Node]) -> list[ir.Value]:
    """Remove unused ``nodes``, and the nodes that only they used; return the used constants."""
    constants: list[ir.Value] = []
    removed: dict[ir.Node, None] = {}
    pending = deque(nodes)
    while pending:
        node = pending.popleft()
        is_gone = node.graph is None or node in removed
        if is_gone or any(o.uses() or o.is_graph_output() for o in node.outputs):
            continue
        removed[node] = None
        for index, value in enumerate(node.inputs):
            if value is None:
                continue
            node.replace_input_with(index, None)
            producer = value.producer()
            if producer is None or producer.op_type == "Constant":
                constants.append(value)
            else:
                pending.append(producer)
    # At once: each call of remove lists the outputs of the graph.
    for graph, unused_nodes in by_key((node.graph, node) for node in removed).items():
        if graph is not None:
            graph.remove(unused_nodes)
    return constants


def remove_constant(value: ir.Value) -> None:
    """Remove an initializer or Constant node that nothing uses any more."""
    if value.uses() or value.is_graph_output() or value.is_graph_input():
        return
    producer, owner = value.producer(), value.graph
    if producer is not None and producer.graph is not None:
        producer.graph.remove(producer, safe=True)
    elif value.is_initializer() and isinstance(owner, ir.Graph):
        del owner.initializers[value.name or ""]


def unused(name: str, taken: Container[str]) -> str:
    """Return ``name``, with a number appended if it is taken."""
    unique, number = name, 1
    while unique in taken:
        unique, number = f"{name}_{number}", number + 1
    return unique


def node_name(node: ir.Node) -> str:
    """Return the name of a node; an unnamed one is named after its first output."""
    return node.name or str(node.outputs[0].name if node.outputs else "")


def inline_functions(model: ir.Model, chosen: Callable[[ir.Function], bool] | None = None) -> None:
    """Replace the calls of functions by their nodes, in place: of all, or of ``chosen`` ones.

    Raises:
        UnsupportedError: functions call each other recursively, or have another opset.
    """
    if not model.functions:
        return
    from onnx_ir.passes.common import InlinePass  # which imports all passes of onnx_ir

    try:
        InlinePass(chosen)(model)
    except (ir.passes.PassError, ValueError, KeyError) as error:
        raise UnsupportedError(
            f"The functions of the model cannot be inlined ({error}), expected functions of the "
            "opsets of the model and without a circle. Inline them with the tool that wrote them."
        ) from error


def check_names(model: ir.Model) -> None:
    """Refuse a model in which a name is missing, defined twice, or identifies another value.

    Raises:
        ModelError: the message names the value and, where there is one, the node that uses it.
    """
    for owner in owners(model):
        _check_body(owner, ChainMap())


def check_origins(model: ir.Model) -> None:
    """Refuse a model with a value that is no input, no constant and no result of a node.

    Raises:
        ModelError: the message names the value and, where there is one, the node that uses it.
    """
    for body in bodies(model):
        uses = [(f"{where(node)}: its input", value) for node in body for value in node.inputs]
        for place, used in (*uses, *(("The output", value) for value in body.outputs)):
            is_known = used is None or used.is_graph_input() or used.is_initializer()
            if used is not None and not is_known and used.producer() is None:
                raise ModelError(f"{place} {_trouble(used, ChainMap())}")


def _check_body(body: Body, outer: Scope) -> None:
    names: dict[str, ir.Value] = {}
    scope = ChainMap(names, *outer.maps)
    owner = f"graph {body.name!r}" if isinstance(body, ir.Graph) else f"function {body.name!r}"
    nodes = list(body)
    stored = body.initializers.values() if isinstance(body, ir.Graph) else ()
    for value in chain(body.inputs, stored, [value for node in nodes for value in node.outputs]):
        if (name := value.name) and names.setdefault(name, value) is not value:
            raise ModelError(
                f"In {owner} the name {name!r} is given to two values, expected one. "
                "Rename one of them, or export the model again."
            )
    for node in nodes:
        for used in node.inputs:
            if used is None or names.get(used.name or "") is used:
                continue
            if scope.get(used.name or "") is not used:
                raise ModelError(f"{where(node)}: its input {_trouble(used, scope)}")
        for graph in graphs_of(node):
            _check_body(graph, scope)
    for value in body.outputs:
        if scope.get(value.name or "") is not value:
            raise ModelError(f"In {owner} the output {_trouble(value, scope)}")


def subgraphs(attribute: ir.Attr) -> tuple[ir.Graph, ...]:
    """Return the graphs that an attribute holds."""
    if attribute.is_ref():
        return ()
    if attribute.type is ir.AttributeType.GRAPH:
        return (attribute.as_graph(),)
    if attribute.type is ir.AttributeType.GRAPHS:
        return tuple(attribute.as_graphs())
    return ()


def _trouble(value: ir.Value, scope: Scope) -> str:
    if not value.name:
        state = "has no name"
    elif value.name in scope:
        state = f"{value.name!r} has the name of another value"
    else:
        state = f"{value.name!r} is not defined in a visible scope"
    return (
        f"{state}, expected a graph input, an initializer or the output of a node. "
        "The file may be cut short; export the model again."
    )


PORTABLE = "qgraph.make-portable"
"""Metadata key of models and functions that ``make-portable`` changed or wrote.

Such a function does what the operator of its name does.
"""

IR_OF_OVERLOADS = 10
"""First IR version in which a node names the overload of the function that it calls."""


def keep_from_functions(node: ir.Node, model: ir.Model) -> None:
    """Set an unused overload of a new node if the model has a function of its name.

    So the node is executed as its operator and not as the function.
    """
    number = 0
    while node.op_identifier() in model.functions:
        number += 1
        node.overload = f"operator_{number}"
        model.ir_version = max(model.ir_version, IR_OF_OVERLOADS)
