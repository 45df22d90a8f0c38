"""Reduce a model file to one node and one tensor of each form; it can be read if the whole can.

Reading a large graph takes long because of its many nodes, most of which are alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container
from itertools import count

import onnx

_NAMES = ("input", "output", "name", "doc_string", "metadata_props")
"""Fields of a node that may differ between nodes of one form."""


def keep_one_of_each_form(proto: onnx.ModelProto) -> bool:
    """Remove nodes from ``proto`` that can be read if the others can.

    Whether a node can be read depends on its operator and attributes, on which inputs and outputs
    it has, on their types, and on names. Of nodes that are equal in all but the names, the first
    remains; what it uses of removed nodes becomes an input of the graph. Every Constant remains.
    Of tensors in the file that are equal in all but names and numbers, those of the remaining nodes
    and the first remain. The names of all nodes and tensors are checked here.

    Returns:
        Whether each name is defined once, and before it is used. If not, and of a model with
        functions or subgraphs, no such part is known, and ``proto`` stays as it is.
    """
    graph = proto.graph
    if proto.functions or graph.sparse_initializer or graph.quantization_annotation:
        return False
    types = _Types(graph)
    stored = {each.name for each in graph.initializer}
    if len(stored) < len(graph.initializer):
        return False
    given = stored.union([each.name for each in graph.input])
    defined = {"", *given}
    number = len(defined)
    kept: dict[object, onnx.NodeProto] = {}
    for node in graph.node:
        inputs, names = node.input[:], node.output[:]  # in half of the time of list()
        if not defined.issuperset(inputs):
            return False
        number += len(names) - names.count("")
        defined.update(names)
        if node.op_type == "Constant":
            form: object = len(kept)
            attributes = tuple([(each.name, each.t.data_type) for each in node.attribute])
            for name in filter(None, names):
                types.state(name, attributes)
        else:
            form = _form(node), *map(types.get, inputs), "to", *map(types.get, names)
        if form not in kept:
            if any(each.HasField("g") or each.graphs for each in node.attribute):
                return False
            kept[form] = node
    if len(defined) < number:
        return False
    defined.remove("")
    if not defined.issuperset(each.name for each in graph.output):
        return False
    nodes = list(kept.values())
    own = given.union(*(node.output for node in nodes))
    used = dict.fromkeys(name for node in nodes for name in node.input if name)
    near = own.union(used)
    stated = [info for info in graph.value_info if info.name in near]
    infos = {each.name: each for each in (*stated, *graph.output)}
    graph.input.extend(
        infos.get(name, onnx.ValueInfoProto(name=name)) for name in used if name not in own
    )
    outputs = [each for each in graph.output if each.name in own]
    _keep_tensors(graph, {*used, *(each.name for each in outputs)})
    for field, remaining in (
        (graph.node, nodes),
        (graph.output, outputs),
        (graph.value_info, stated),
    ):
        del field[:]
        field.extend(remaining)
    return True


def _keep_tensors(graph: onnx.GraphProto, used: Container[str]) -> None:
    """Remove initializers that nothing uses and that can be read if the others can."""
    forms: set[object] = set()
    extra = set()
    for tensor in graph.initializer:
        if tensor.name in used or tensor.data_location or not tensor.HasField("raw_data"):
            continue
        form = tensor.data_type, tuple(tensor.dims), len(tensor.raw_data)
        if form in forms:
            extra.add(tensor.name)
        forms.add(form)
    graph.initializer.sort(key=lambda tensor: tensor.name in extra)  # large ones are not copied
    del graph.initializer[len(graph.initializer) - len(extra) :]


class _Types(dict[str, int]):
    """For the name of a value, a number for all that is stated about its type."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        super().__init__({"": -1})  # absent; None if nothing is stated
        self._numbers: defaultdict[object, int] = defaultdict(count().__next__)
        for info in (*graph.value_info, *graph.input, *graph.output):
            self.state(info.name, info.type.SerializeToString())
        for tensor in graph.initializer:
            self.state(tensor.name, tensor.data_type)

    def state(self, name: str, what: object) -> None:
        """Add a statement about a value."""
        self[name] = self._numbers[self.get(name), what]


def _form(node: onnx.NodeProto) -> object:
    """Return what is equal for nodes of one form, without their operands."""
    if not (node.attribute or node.device_configurations):
        return node.domain, node.op_type, node.overload
    rest = onnx.NodeProto()
    rest.CopyFrom(node)
    for name in _NAMES:
        rest.ClearField(name)
    return rest.SerializeToString()
