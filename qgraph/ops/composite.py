"""Operators that are defined by a graph of standard operators, and parts of such graphs.

A definition writes the graph. The executor runs this graph, ``lower-vendor-operators`` inserts it,
and proofs compare it, so that all three agree.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError, UnsupportedError, where
from qgraph.graph.edit import Draft, Editor, Operand, Region
from qgraph.graph.opset.versions import require
from qgraph.graph.schema import OpKey, element_type
from qgraph.graph.scopes import input_of, nodes_of
from qgraph.graph.sizes import fixed_sizes
from qgraph.numerics import Array
from qgraph.numerics.minifloat import Minifloat
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


def region_of(*nodes: ir.Node) -> Region:
    """Return the region of some nodes, up to the last; it may have several inputs of data."""
    return Region(ir.Value(name=""), nodes[-1].outputs[0], nodes)


def drafted(editor: Editor, node: ir.Node, write: Callable[[Draft], Operand]) -> Draft:
    """Return the draft that ``write`` writes for ``node``."""
    draft = editor.draft(region_of(node))
    return draft.giving(write(draft))


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


@dataclass(frozen=True)
class _Written:
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
        graph, draft = written[form], written[form].draft
        pairs = zip(graph.inputs, arrays, strict=True)
        values: dict[ir.Value, Any] = {value: array for value, array in pairs if value is not None}
        values |= draft.constants
        values |= {value: tensor.numpy() for value, tensor in draft.tensors.items()}
        for step in graph.steps:
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


FLOAT = ir.DataType.FLOAT
LAST = np.asarray([-1], np.int64)
"""The last axis, as an operand."""

OPSET_OF_AXES = 18
"""Opset since which all reductions take their axes as an input."""


def sizes_of(node: ir.Node, index: int) -> tuple[int | None, ...]:
    """Return the shape of an input, None for each size that is not known.

    Raises:
        ValueError: not even the rank is known.
    """
    value = node.inputs[index]
    if value is not None and value.shape is None and value.const_value is not None:
        return tuple(int(size) for size in value.const_value.shape.numpy())
    if value is None or (sizes := fixed_sizes(value)) is None:
        raise ValueError(
            f"the rank of its input {index} is not known, expected a shape. Infer shapes first"
        )
    return sizes


def dtype_of(node: ir.Node, index: int) -> ir.DataType:
    """Return the element type of an input.

    Raises:
        ValueError: it is not known.
    """
    dtype = element_type(node.inputs[index]) if index < len(node.inputs) else None
    if dtype is None:
        raise ValueError(f"the type of its input {index} is not known. Infer shapes first")
    return dtype


def operand(node: ir.Node, index: int) -> ir.Value:
    """Return an input.

    Raises:
        ValueError: it is absent.
    """
    value = input_of(node, index)
    if value is None:
        raise ValueError(f"its input {index} is missing, expected a value. Export it again")
    return value


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the front.

    Raises:
        ValueError: there is no such axis.
    """
    if not -rank <= axis < rank:
        raise ValueError(f"its axis {axis} is not one of {rank} dimensions. Export it again")
    return axis % rank


def reshape(draft: Draft, x: Operand, sizes: Sequence[int | None]) -> ir.Value:
    """Return ``x`` in another shape, in which at most one size is not known."""
    wanted = [-1 if size is None else size for size in sizes]
    if wanted.count(-1) > 1:
        raise ValueError(
            f"its shape {list(sizes)} has more than one size that is not known. Infer shapes"
        )
    return draft.node("Reshape", [x, np.asarray(wanted, np.int64)], dtype=type_of(x))


def cast(draft: Draft, x: ir.Value, to: ir.DataType) -> ir.Value:
    """Return ``x`` in another type, and ``x`` itself if it has that."""
    return x if x.dtype is to else draft.node("Cast", [x], {"to": to.value}, dtype=to)


def moved(draft: Draft, x: ir.Value, order: Sequence[int]) -> ir.Value:
    """Return ``x`` with its axes in another order."""
    if list(order) == sorted(order):
        return x
    return draft.node("Transpose", [x], {"perm": list(order)}, dtype=x.dtype)


def unpacked(
    draft: Draft,
    data: ir.Value,
    rank: int,
    bits: int,
    *,
    high: bool = False,
    length: int | None = None,
) -> ir.Value:
    """Return the codes of 1, 2, 4 or 8 bits that bytes ``[..., n]`` hold, ``[..., n * 8 / bits]``.

    The first code is in the high bits of a byte if ``high``. ``length`` is the number of codes
    along the last axis, if known; without it the data, of some ``rank``, must have elements.
    """
    if bits == 8:
        return data
    parts = []
    for index in range(0, 8, bits):
        part = data
        for by, direction in ((8 - bits - index, "LEFT"), (8 - bits, "RIGHT")):
            if by:
                attributes = {"direction": direction}
                part = draft.node(
                    "BitShift", [part, np.asarray([by], np.uint8)], attributes, dtype=data.dtype
                )
        parts.append(draft.node("Unsqueeze", [part, LAST], dtype=data.dtype))
    joined = draft.node("Concat", parts[::-1] if high else parts, {"axis": -1}, dtype=data.dtype)
    return reshape(draft, joined, [*[0] * (rank - 1), length])


def binade(draft: Draft, v: Operand) -> Operand:
    """Return ``2 ** floor(log2(v))`` for finite ``v``, at least 2**-127; exact in any opset.

    With ``q = v * (2**23 + 1)``, rounded, ``q - q * (1 - 2**-24)`` is the power of two below ``v``.
    Large ``v`` are scaled, so that ``q`` does not overflow. OpenVINO would compute the product and
    the difference with one rounding; a Max without effect is between them.
    """
    op = draft.op
    is_large = op.GreaterOrEqual(v, 2.0**100)
    q = op.Mul(op.Where(is_large, op.Mul(v, 2.0**-28), v), 2.0**23 + 1)
    power = op.Sub(q, op.Max(op.Mul(q, 1 - 2.0**-24), 0.0))
    return op.Max(op.Where(is_large, op.Mul(power, 2.0**28), power), 2.0**-127)


def largest(draft: Draft, x: Operand) -> ir.Value:
    """Return the largest number along the last axis, which stays with one element."""
    draft.needs(OPSET_OF_AXES)
    return draft.node("ReduceMax", [x, LAST], {"keepdims": 1}, dtype=FLOAT)


def element(draft: Draft, v: Operand, grid: Minifloat) -> Operand:
    """Return the number of a minifloat nearest to ``v``, ties to even, saturated."""
    op = draft.op
    power = op.Max(binade(draft, op.Abs(v)), 2.0 ** (1 - grid.bias))
    step = op.Mul(power, 2.0**-grid.mantissa_bits)
    y = op.Mul(op.Round(op.Div(v, step)), step)
    return op.Max(op.Min(y, grid.max_value), -grid.max_value)


def blocks_of(
    draft: Draft, x: ir.Value, sizes: Sequence[int | None], axis: int, size: int
) -> ir.Value:
    """Return ``x`` as ``[..., blocks, size]`` with ``axis`` last, padded with zeros.

    Raises:
        ValueError: the size of the axis, or more than one other size, is not known.
    """
    rank, length = len(sizes), sizes[axis]
    if length is None or size < 1:
        raise ValueError(
            f"axis {axis} has no known size, or its block size is {size}. Infer shapes"
        )
    order = [other for other in range(rank) if other != axis] + [axis]
    y, pad = moved(draft, x, order), -length % size
    if pad:
        pads = np.zeros(2 * rank, np.int64)
        pads[-1] = pad
        y = draft.node("Pad", [y, pads], dtype=x.dtype)
    others = [sizes[other] for other in order[:-1]]
    return reshape(draft, y, [*others, (length + pad) // size, size])


def joined_blocks(draft: Draft, y: Operand, sizes: Sequence[int | None], axis: int) -> ir.Value:
    """Return the inverse of :func:`blocks_of`: what was blocks, in the shape ``sizes`` again."""
    rank, length = len(sizes), sizes[axis]
    flat = reshape(draft, y, [*[0] * (rank - 1), -1])
    if length is not None:
        bounds = [np.asarray([n], np.int64) for n in (0, length, rank - 1)]
        flat = draft.node("Slice", [flat, *bounds], dtype=flat.dtype)
    back = list(range(rank - 1))
    back.insert(axis, rank - 1)
    return moved(draft, flat, back)


def type_of(x: Operand) -> ir.DataType | None:
    """Return the element type of an operand, None if the graph does not tell."""
    return x.dtype if isinstance(x, ir.Value) else ir.DataType.from_numpy(x.dtype)
