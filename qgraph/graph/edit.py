"""Replace regions of a graph by drafts, which do not change the graph until they are committed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.exactness import Verdict
from qgraph.graph.deferred import DeferredTensor, deferred_form
from qgraph.graph.draft_parts import Operand as Operand, Region as Region, SizeSummary, Tracer
from qgraph.graph.opset.history import first_opset
from qgraph.graph.scopes import (
    bodies,
    keep_from_functions,
    remove_constant,
    remove_unused,
    unused,
)
from qgraph.numerics import Array
from qgraph.numerics.values import OpenScale, fingerprint

HALF_TYPES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
"""16-bit float types, in which drafts compute if the data or the result has this type."""

_HAS_BFLOAT16, _ROUNDS_BFLOAT16 = 13, 22
"""First opsets in which float operators, and Round, accept bfloat16."""


class Draft:
    """New nodes that may replace a region.

    ``draft.op.Div(draft.x, scale)`` appends a node and returns its output; NumPy arrays and Python
    numbers become initializers, and an operator on constants is computed instead. The graph is not
    changed before :meth:`commit`.

    Attributes:
        region: the region that it may replace.
        entry: node and operand index at which the region reads its input.
        x: placeholder of the input of the replaced region.
        half: the 16-bit type in which it computes; None for float32.
        y: the output; :meth:`giving` sets it.
        others: values that replace further outputs of the region's last node.
        promise: level of equality, if it holds by construction and is checked when the model is
            saved; None if it must be decided.
        size_summary: sizes before and after of the constant that the draft stores.
        open: the constants that depend on an open scale.
        template: the draft with an open scale from which it was made, and the ``scale`` filled in.
        copied: nodes of an equal draft, whose opset it needs, with inputs; :meth:`commit` copies.
    """

    def __init__(self, editor: Editor, region: Region) -> None:
        self._editor = editor
        self.region = region
        self.entry = region.entry
        shape = None if region.x.shape is None else ir.Shape(region.x.shape)
        self.x = ir.Value(name=region.x.name, type=region.x.type, shape=shape)
        # Regions of several data inputs have none that counts; their drafts state all types.
        types = () if region.x.dtype is None else (region.x.dtype, region.y.dtype)
        self.half = next((dtype for dtype in types if dtype in HALF_TYPES), None)
        self.y: ir.Value = self.x
        self.others: dict[ir.Value, ir.Value] = {}
        self.nodes: list[ir.Node] = []
        self.constants: dict[ir.Value, Array] = {}
        self.tensors: dict[ir.Value, ir.TensorProtocol] = {}
        self.promise: Verdict | None = None
        self.size_summary: SizeSummary | None = None
        self.open: list[ir.Value] = []
        self.template: Draft | None = None
        self.copied: list[tuple[ir.Node, Sequence[ir.Value | None]]] = []
        self.scale: Array | None = None
        self._needs = 1
        self.op = Tracer(self)

    @property
    def spelling(self) -> str:
        """The operators in order: ``QuantizeLinear+Clip+DequantizeLinear``."""
        return "+".join(node.op_type for node in self.nodes)

    @property
    def opset(self) -> int:
        """The lowest opset that has all operators, types and forms drafted."""
        lowest = max([self._needs, *map(first_opset, () if self.copied else self.nodes)])
        if self.half is not ir.DataType.BFLOAT16:
            return lowest
        rounds = any(node.op_type == "Round" for node in self.nodes)
        return max(lowest, _ROUNDS_BFLOAT16 if rounds else _HAS_BFLOAT16)

    def needs(self, opset: int) -> None:
        """Record that the draft needs at least ``opset``."""
        self._needs = max(self._needs, opset)

    def giving(self, result: Operand) -> Draft:
        """Set the output to ``result``, remove unneeded nodes, and return the draft."""
        self.y = result if isinstance(result, ir.Value) else self.constant(result)
        needed = {self.y, *self.others.values()}
        kept = []
        for node in reversed(self.nodes):
            if needed.isdisjoint(node.outputs):
                node.resize_inputs(0)
                continue
            needed.update(value for value in node.inputs if value is not None)
            kept.append(node)
        self.nodes = kept[::-1]
        return self

    def constant(self, array: npt.ArrayLike, name: str = "const") -> ir.Value:
        """Return a constant operand; ``name`` ends the name of its initializer.

        A float32 constant is converted to the type in which the draft computes.
        """
        values: Any = array if isinstance(array, OpenScale) else np.asarray(array)
        if values.dtype == np.float32 and self.half is not None:
            with np.errstate(over="ignore"):
                values = values.astype(self.half.numpy())
        if isinstance(values, OpenScale):
            value = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(()))
            self.open.append(value)
        elif (later := deferred_form(values)) is not None:
            return self.stored(later, name)
        else:
            value = ir.val(name, const_value=ir.Tensor(values))
        self.constants[value] = values
        return value

    def stored(self, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        """Return a constant operand that is not read, such as codes that are computed later."""
        value = ir.val(name, const_value=tensor)
        self.tensors[value] = tensor
        return value

    def node(
        self,
        name: str,
        operands: Iterable[Operand | None],
        attributes: dict[str, Any] | None = None,
        *,
        domain: str = "",
        dtype: ir.DataType | None = None,
    ) -> ir.Value:
        """Append a node of any operator and return its output, of type ``dtype`` if known."""
        inputs = [
            self.constant(operand) if isinstance(operand, np.ndarray | OpenScale) else operand
            for operand in operands
        ]
        new = ir.node(name, inputs, attributes or {}, domain=domain)
        if dtype is ir.DataType.FLOAT and self.half is not None:
            dtype = self.half
        if dtype is not None:
            new.outputs[0].type = ir.TensorType(dtype)
        self.nodes.append(new)
        return new.outputs[0]

    def copy(
        self,
        node: ir.Node,
        operands: Iterable[Operand | None],
        changes: Mapping[str, Any] | None = None,
        *,
        dtype: ir.DataType | None = None,
    ) -> ir.Value:
        """Add a copy of a node with other operands and attributes, and return its output.

        An attribute that changes to None is left out. ``dtype`` is that of the node by default.
        """
        attributes = {**node.attributes, **(changes or {})}
        listed = {name: value for name, value in attributes.items() if value is not None}
        dtype = dtype or node.outputs[0].dtype
        return self.node(node.op_type, operands, listed, domain=node.domain, dtype=dtype)

    @contextmanager
    def in_float32(self) -> Iterator[None]:
        """Append nodes that compute in float32 for any type of the data."""
        half, self.half = self.half, None
        yield
        self.half = half

    def again(self, region: Region) -> Draft | None:
        """Return the same draft for an equal region; None if it fits its own region only.

        Both share constants and nodes. The nodes are copied when the new draft is committed.
        """
        if not (self.copied or self._is_general):
            return None
        draft = copy(self)
        draft.region, draft.entry, draft._needs = region, region.entry, self.opset
        draft.copied = self.copied or [(node, node.inputs) for node in self.nodes]
        return draft

    def with_scale(self, region: Region, scale: Array) -> Draft | None:
        """Return :meth:`again` of a draft with an open scale, for a region that has ``scale``."""
        draft = self.again(region)
        if draft is None:
            return None
        draft.template, draft.scale, draft.open = self, scale, []
        draft.constants, filled = dict(self.constants), {}
        for value in self.open:
            number: Any = draft.constants.pop(value)
            filled[value] = draft.constant(number.at(scale), value.name or "const")
        draft.copied = [
            (node, [value and filled.get(value, value) for value in inputs])
            for node, inputs in draft.copied
        ]
        draft.y = filled.get(self.y, self.y)
        return draft

    def apart(self) -> Draft:
        """Return the draft with nodes of its own in place of those that it shares."""
        if not self.copied:
            return self
        draft = copy(self)
        draft.nodes, draft.copied = [], []
        new: dict[ir.Value, ir.Value] = {}
        for node, inputs in self.copied:
            operands = [value and new.get(value, value) for value in inputs]
            new[node.outputs[0]] = draft.copy(node, operands)
        draft.y = new.get(self.y, self.y)
        return draft

    @property
    def _is_general(self) -> bool:
        """Whether nothing binds it to its region."""
        is_stated = self.promise is not None or self.size_summary is not None
        is_plain = all(len(node.outputs) == 1 for node in self.nodes)
        known = {None, self.x, *self.constants, *(node.outputs[0] for node in self.nodes)}
        is_closed = known.issuperset(chain([self.y], *(node.inputs for node in self.nodes)))
        return is_plain and is_closed and not (is_stated or self.others or self.tensors)

    def discard(self) -> None:
        """Discard the draft: remove its uses of values of the graph, and its arrays."""
        for node in self.nodes if not self.copied else ():
            node.resize_inputs(0)
        self.constants, self.tensors = {}, {}
        self.region = Region(self.region.x, self.region.y, self.region.nodes)

    def commit(self, *, sweep: bool = True) -> None:
        """Replace the region by the draft; see :meth:`Editor.replace`."""
        self._editor.replace(self, sweep=sweep)


class Editor:
    """Fresh names and shared constants for all edits that one pass makes to a model.

    ``deferred`` has tensors that will be computed when the model is saved, by their weight.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._names: set[str] = set()
        self._has_learned = False
        self._functions = {id(function.graph) for function in model.functions.values()}
        self._shared: dict[tuple[int, object], ir.Value] = {}
        self._placed: dict[tuple[int, ir.Value], ir.Value] = {}
        self.deferred: dict[tuple[object, ...], list[DeferredTensor]] = {}

    def learn(self) -> None:
        """Read all names in the model again, after other code has edited it."""
        self._has_learned = False

    def _learn(self) -> None:
        self._has_learned = True
        for body in bodies(self._model):
            self._names.update(value.name or "" for value in body.inputs)
            if isinstance(body, ir.Graph):
                self._names.update(body.initializers)
            for node in body:
                self._names.add(node.name or "")
                self._names.update([value.name or "" for value in node.outputs])

    def draft(self, region: Region) -> Draft:
        """Return an empty draft for a region."""
        return Draft(self, region)

    def fresh(self, name: str) -> str:
        """Reserve and return ``name``, with a number appended if it is in use."""
        if not self._has_learned:
            self._learn()
        if name in self._names:
            name = unused(name, self._names)
        self._names.add(name)
        return name

    def replace(self, draft: Draft, *, sweep: bool = True) -> None:
        """Commit ``draft``: insert its nodes, replace the output, remove unused nodes.

        The new output takes over name, type, shape and metadata of the old one. A ``sweep`` removes
        all nodes that only the old output needed, not only its producer.
        """
        if sweep:
            self.replace_all([draft])
            return
        anchor = draft.region.nodes[-1]
        self._put(draft)
        if anchor.graph is not None:
            anchor.graph.remove(anchor, safe=True)

    def replace_all(self, drafts: Iterable[Draft]) -> None:
        """Carry out all ``drafts``, in order, as :meth:`replace` does one."""
        replaced: list[ir.Node] = []
        for draft in drafts:
            self._put(draft)
            replaced += reversed(draft.region.nodes)
        # Constants are visited once, at the end: listing the users of a shared constant takes long.
        for value in dict.fromkeys(remove_unused(replaced)):
            remove_constant(value)

    def _put(self, draft: Draft) -> None:
        region, anchor = draft.region, draft.region.nodes[-1]
        graph = anchor.graph
        if graph is None:
            raise ValueError(f"{anchor.op_type} {anchor.name!r} belongs to no graph")
        stem = region.y.name or "quantized"
        values: dict[ir.Value | None, ir.Value] = {draft.x: draft.x}
        if draft.entry is not None:
            # Read now: an earlier edit may have put another value in the place of region.x.
            node, index = draft.entry
            values[draft.x] = node.inputs[index] or region.x
        put: list[ir.Node] = []
        for node, inputs in draft.copied or [(node, node.inputs) for node in draft.nodes]:
            operands: list[ir.Value | None] = []
            for value in inputs:
                if value not in values and (value in draft.constants or value in draft.tensors):
                    values[value] = self._settled(draft, value, anchor, graph, stem)
                operands.append(values.get(value, value))
            op_type = node.op_type
            name = self.fresh(f"{stem}_{op_type}")
            if draft.copied:
                (old,) = node.outputs
                kind = None if old.dtype is None else ir.TensorType(old.dtype)
                new = ir.Value(name=self.fresh(f"{stem}_{op_type.lower()}"), type=kind)
                values[old], attributes = new, node.attributes.data.values()
                node = ir.Node(node.domain, op_type, operands, attributes, outputs=[new], name=name)
            else:
                for index, value in enumerate(operands):
                    if value is not node.inputs[index]:
                        node.replace_input_with(index, value)
                node.name = name
                for output in node.outputs:
                    output.name = self.fresh(f"{stem}_{op_type.lower()}")
            if self._model.functions:
                keep_from_functions(node, self._model)
                graph.insert_before(anchor, node)
            else:
                put.append(node)
        graph.insert_before(anchor, put)
        for old, new in ((region.y, values.get(draft.y, draft.y)), *draft.others.items()):
            self._hand_over(old, new)

    def _settled(
        self, draft: Draft, value: ir.Value, anchor: ir.Node, graph: Any, stem: str
    ) -> ir.Value:
        """Return the constant in ``graph`` that takes the place of a constant of a draft."""
        placed = self._placed.get((id(graph), value))
        if placed is None or placed.graph is None:
            tensor = draft.tensors.get(value)
            content = fingerprint(draft.constants[value]) if tensor is None else tensor
            placed = self.share(value, content, anchor, graph, stem)
            self._placed[id(graph), value] = placed
        return placed

    def share(
        self, value: ir.Value, content: object, anchor: ir.Node, graph: Any, stem: str
    ) -> ir.Value:
        """Return a constant in ``graph`` with this content, shared with earlier edits."""
        key = id(graph), content
        if key not in self._shared or self._shared[key].graph is None:
            self._shared[key] = self.place(value, anchor, graph, stem)
        return self._shared[key]

    def place(self, value: ir.Value, anchor: ir.Node, graph: Any, stem: str) -> ir.Value:
        """Return a constant in ``graph``, visible from ``anchor``, equal to ``value``.

        It is an initializer, or in a function, which has none, the output of a Constant node.
        """
        name = self.fresh(f"{stem}_{value.name}")
        tensor = value.const_value
        if id(graph) not in self._functions and isinstance(graph, ir.Graph):
            placed = ir.Value(name=name, type=value.type, shape=value.shape, const_value=tensor)
            graph.register_initializer(placed)
            return placed
        node = ir.node("Constant", [], {"value": tensor}, name=name)
        placed = node.outputs[0]
        placed.name, placed.type, placed.shape = name, value.type, value.shape
        graph.insert_before(anchor, node)
        return placed

    def _hand_over(self, old: ir.Value, new: ir.Value) -> None:
        name = old.name
        old.name = self.fresh(f"{name}_replaced")
        new.name, new.type, new.shape, new.doc_string = name, old.type, old.shape, old.doc_string
        new.metadata_props.update(old.metadata_props)
        if old.meta:
            new.meta.update(old.meta)
        old.replace_all_uses_with(new, replace_graph_outputs=True)
