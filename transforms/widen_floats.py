"""``widen-floats``: float32 in place of floats of 16 bits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Verdict
from qgraph.graph.constants import array_of
from qgraph.graph.edit import Editor
from qgraph.graph.inference.rules import UNKNOWN
from qgraph.graph.inference.walk import infer
from qgraph.graph.scopes import graphs_of
from qgraph.model import Model
from qgraph.ops.operator import operator_of
from qgraph.reasons import NO_OPERATOR
from qgraph.reports import Report, SiteStatus
from qgraph.transforms.base import Transform, transform
from qgraph.transforms.drafts.choice import entry, refused

_NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_TYPE_NAMES = ("dtype", "output_dtype")
_DOMAINS = ("", "com.microsoft")
_OWN_TYPES = frozenset({"CastLike", "Optional", "SequenceEmpty", "If", "Loop", "Scan"})
_BOUND = "results are rounded less; bound the difference with 'qgraph prove --within'"


@transform("widen-floats", bounded=True)
class WidenFloats(Transform):
    """Compute in float32 what a model computes in floats of 16 bits.

    1. Constants of float16 and bfloat16 become float32 constants of the same numbers, and all
       operators on them compute in float32.
    2. Inputs and outputs keep their types: a Cast follows each input and precedes each output.
       A Cast to 16 bits stays, with a Cast back after it, so that its rounding stays too.

    No number of the model changes, but results are rounded less. Kernels on codes of most runtimes
    need scales of float32. Fold weights first, since float weights become twice as large.
    """

    def apply(self, model: Model, report: Report) -> None:
        """Widen all values, or none."""
        graph = model.ir.graph
        nodes = list(graph)
        facts = infer(model.ir)
        kinds = {v: v.dtype or facts.get(v, UNKNOWN).dtype for v in _values(graph)}
        narrow = [value for value, dtype in kinds.items() if dtype in _NARROW]
        computing = [node for node in nodes if node.op_type != "Cast" or node.domain]
        if not any(v in narrow for node in computing for v in (*node.inputs, *node.outputs)):
            return
        for node in nodes:
            is_known = node.domain in _DOMAINS or operator_of(node) is not None
            if graphs_of(node) or node.op_type in _OWN_TYPES or not is_known:
                reason = f"{node.op_type} may state types of its own; the model keeps its types"
                report.sites.append(refused(node, NO_OPERATOR(reason)))
                return
        ends = [(value, kinds[value]) for value in narrow if value.is_graph_output()]
        starts = [(value, kinds[value]) for value in narrow if value.is_graph_input()]
        kept = {node for node in nodes if node.op_type == "Cast" and _target(node) in _NARROW}
        editor = Editor(model.ir)
        for value in narrow:
            if not value.is_graph_input():
                _widen(value)
        for node in nodes:
            if node in kept:
                _cast_behind(editor, graph, node.outputs[0], _target(node), node)
            else:
                _widen_attributes(node)
        for value, dtype in starts:
            _cast_behind(editor, graph, value, dtype, None)
        for value, dtype in ends:
            _cast_before(editor, graph, value, dtype)
        for node in nodes:
            if any(value in narrow for value in node.outputs) and node not in kept:
                verdict = Verdict()
                report.sites.append(entry(node, SiteStatus.CHANGED, _BOUND, verdict=verdict))


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def _target(node: ir.Node) -> ir.DataType | None:
    to = node.attributes.get_int("to", None)
    return None if to is None else ir.DataType(to)


def _widen(value: ir.Value) -> None:
    """Give a value, and a constant, the type float32."""
    if value.const_value is not None:
        array = array_of(value)
        if array is not None:
            value.const_value = ir.tensor(np.asarray(array).astype(np.float32), name=value.name)
    value.type = ir.TensorType(ir.DataType.FLOAT)


def _widen_attributes(node: ir.Node) -> None:
    """Let the attributes of a node state float32 where they state 16 bits."""
    for name, attribute in list(node.attributes.items()):
        if attribute.type is ir.AttributeType.TENSOR:
            tensor = attribute.as_tensor()
            if tensor.dtype in _NARROW:
                wide = ir.tensor(tensor.numpy().astype(np.float32), name=tensor.name)
                node.attributes[name] = ir.AttrTensor(name, wide)
        elif name in _TYPE_NAMES and attribute.as_int() in _NARROW:
            node.attributes[name] = ir.AttrInt64(name, ir.DataType.FLOAT)


def _cast_behind(
    editor: Editor,
    graph: ir.Graph,
    value: ir.Value,
    dtype: ir.DataType | None,
    node: ir.Node | None,
) -> None:
    """Let all users of a value of 16 bits take it as float32."""
    value.type = ir.TensorType(dtype or ir.DataType.FLOAT16)
    uses = list(value.uses())
    if not uses:
        return
    cast = _cast(editor, value, ir.DataType.FLOAT)
    if node is None:
        graph.insert_before(graph[0], cast)
    else:
        graph.insert_after(node, cast)
    for user, index in uses:
        user.replace_input_with(index, cast.outputs[0])


def _cast_before(
    editor: Editor, graph: ir.Graph, value: ir.Value, dtype: ir.DataType | None
) -> None:
    """Give an output its type again."""
    maker = value.producer()
    if maker is None or (maker.op_type == "Cast" and value.dtype is dtype):
        return
    name, shape = str(value.name), value.shape
    cast = _cast(editor, value, dtype or ir.DataType.FLOAT16)
    graph.insert_after(maker, cast)
    for index, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[index] = cast.outputs[0]
    value.name = editor.fresh(f"{name}_float")
    cast.outputs[0].name, cast.outputs[0].shape = name, shape


def _cast(editor: Editor, value: ir.Value, to: ir.DataType) -> ir.Node:
    name = editor.fresh(f"{value.name}_{to.name.lower()}")
    cast = ir.node("Cast", [value], {"to": to}, name=editor.fresh(f"{name}_Cast"))
    cast.outputs[0].name, cast.outputs[0].shape = name, value.shape
    cast.outputs[0].type = ir.TensorType(to)
    return cast
