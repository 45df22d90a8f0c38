"""Operators that are defined by a graph of standard operators.

A definition writes the graph. The executor runs this graph, ``lower-vendor-operators`` inserts it,
and proofs compare it, so that all three agree.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir

from qgraph.errors import OperatorError, UnsupportedError, where
from qgraph.graph.edit import Draft, Editor, Operand, Region
from qgraph.graph.opset.versions import require
from qgraph.graph.schema import OpKey
from qgraph.graph.scopes import nodes_of
from qgraph.numerics import Array
from qgraph.records import dataclass
from qgraph.registry import Registry

Write = Callable[[Draft, ir.Node], Operand | Sequence[Operand]]
Run = Callable[[dict[ir.Value, Any]], None]

_OPSET = 13
"""Definitions use operators of this opset."""


@dataclass(frozen=True)
class Composite:
    """An operator and the graph that defines it.

    Attributes:
        keys: its domains and names in files.
        define: ``define(draft, node)`` writes the graph for one node and returns its outputs. It
            raises ValueError for a node that it does not define.
        remark: how the graph and the operator differ; None if they are equal.
        is_defined: whether there is a graph; otherwise ``define`` gives the reason and a remedy.
    """

    keys: tuple[OpKey, ...]
    define: Write
    remark: str | None = None
    is_defined: bool = True

    def write(self, draft: Draft, node: ir.Node) -> Operand:
        """Write the graph for ``node``, and return the value that replaces its first output.

        Raises:
            OperatorError: the definition does not cover the node.
        """
        draft.needs(_OPSET)
        try:
            result = self.define(draft, node)
        except ValueError as error:
            raise OperatorError(f"{where(node)}: {error}") from error
        first, *others = result if isinstance(result, Sequence) else [result]
        for old, new in zip(node.outputs[1:], others, strict=False):
            draft.others[old] = new if isinstance(new, ir.Value) else draft.constant(new)
        return first


COMPOSITES: Registry[Composite] = Registry("operator", "qgraph.ops.definitions", "operators")
_BY_KEY: dict[OpKey, Composite] = {}


def composite(
    name: str,
    *domains: str,
    also: Iterable[OpKey] = (),
    remark: str | None = None,
    is_defined: bool = True,
) -> Callable[[Write], Write]:
    """Return a decorator that registers the definition it is put on; see :class:`Composite`.

    ``also`` are other domains and names with the same meaning.
    """

    def register(define: Write) -> Write:
        keys = (*(OpKey(domain, name) for domain in domains), *also)
        COMPOSITES.add(name)(Composite(keys, define, remark, is_defined))
        _BY_KEY.clear()
        return define

    return register


def composite_of(node: ir.Node) -> Composite | None:
    """Return the operator of ``node``; None if it has no graph here."""
    if not _BY_KEY:
        _BY_KEY.update((key, entry) for entry in COMPOSITES for key in entry.keys)
    return _BY_KEY.get(OpKey.of(node))


def region_of(node: ir.Node) -> Region:
    """Return the region of ``node`` only; it may have several inputs that are not parameters."""
    return Region(ir.Value(name=""), node.outputs[0], (node,))


def differing(models: Sequence[ir.Model], wanted: Callable[[ir.Node], object]) -> frozenset[OpKey]:
    """Return the operators of wanted nodes whose number differs between the models."""
    counts = [Counter(OpKey.of(n) for n in nodes_of(m.graph) if wanted(n)) for m in models]
    keys = {key for each in counts for key in each}
    return frozenset(key for key in keys if len({each[key] for each in counts}) > 1)


def write_composite(draft: Draft, node: ir.Node) -> Operand:
    """Write the graph that defines a node, see :meth:`Composite.write`."""
    entry = composite_of(node)
    if entry is None:
        raise OperatorError(f"{where(node)}: its operator is not defined by a graph")
    return entry.write(draft, node)


def write_out(
    model: ir.Model,
    nodes: Iterable[ir.Node],
    write: Callable[[Draft, ir.Node], Operand] = write_composite,
    limit: float = math.inf,
) -> None:
    """Replace nodes of ``model`` by their graphs, in place; its opset is raised if needed.

    Nodes stay if their definition does not cover them or needs an opset above ``limit``; all nodes
    stay if the opset cannot be raised.
    """
    editor = Editor(model)
    drafts = []
    for node in nodes:
        draft = editor.draft(region_of(node))
        try:
            draft.giving(write(draft, node))
        except OperatorError:
            draft.discard()
            continue
        if draft.opset > limit:
            draft.discard()
        else:
            drafts.append(draft)
    try:
        require(model, max((draft.opset for draft in drafts), default=0))
    except UnsupportedError:
        for draft in drafts:
            draft.discard()
        return
    for draft in drafts:
        draft.commit(sweep=False)


class _Written(NamedTuple):
    inputs: list[ir.Value | None]
    draft: Draft
    steps: list[Run]


def composite_kernel(
    node: ir.Node, entry: Composite, prepare: Callable[[ir.Node], Run]
) -> Callable[..., list[Any]]:
    """Return what computes a node by its graph, written for each form (type and shape) of inputs.

    ``prepare`` returns a function that computes a standard node and stores its outputs.
    """
    written: dict[tuple[Any, ...], _Written] = {}

    def run(*arrays: Any) -> list[Any]:
        form = tuple(None if a is None else (a.dtype, a.shape) for a in arrays)
        if form not in written:
            written.clear()
            written[form] = _written_for(node, entry, prepare, arrays)
        inputs, draft, steps = written[form]
        values: dict[ir.Value, Any] = {
            value: array for value, array in zip(inputs, arrays, strict=True) if value is not None
        }
        values |= draft.constants
        values |= {value: tensor.numpy() for value, tensor in draft.tensors.items()}
        for step in steps:
            step(values)
        return [values[value] for value in (draft.y, *draft.others.values())]

    return run


def _written_for(
    node: ir.Node, entry: Composite, prepare: Callable[[ir.Node], Run], arrays: Sequence[Any]
) -> _Written:
    pairs = zip(node.inputs, arrays, strict=True)
    inputs = [None if value is None else _of_form(value, array) for value, array in pairs]
    image = ir.Node(
        node.domain,
        node.op_type,
        inputs,
        node.attributes.values(),
        num_outputs=len(node.outputs),
        name=node.name,
    )
    image.outputs[0].name = node.outputs[0].name
    graph = ir.Graph([], [], nodes=[], name="node")
    draft = Draft(Editor(ir.Model(graph, ir_version=10)), region_of(image))
    draft.giving(entry.write(draft, image))
    values = [value for new in draft.nodes for value in (*new.inputs, *new.outputs)]
    for index, value in enumerate(dict.fromkeys(value for value in values if value)):
        value.name = f"v{index}"
    return _Written(inputs, draft, [prepare(new) for new in draft.nodes])


def _of_form(value: ir.Value, array: Array) -> ir.Value:
    dtype = ir.DataType.from_numpy(array.dtype)
    return ir.Value(name=value.name, type=ir.TensorType(dtype), shape=ir.Shape(array.shape))
