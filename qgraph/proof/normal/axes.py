"""Write axes as numbers from 0, and operators along axes in one form.

    axis, axes below zero             -> counted from the first axis
    axes that are absent              -> all axes of a reduction
    ReduceX(x, axes, keepdims = 0)    -> Reshape(ReduceX(x, axes, keepdims = 1))
    Softmax along an axis after which all sizes are 1, likewise LogSoftmax, Hardmax
                                      -> Reshape(Softmax(Reshape(x, [rows, columns]), 1))
    axis of a QuantizeLinear or DequantizeLinear with one scale   -> left out
    GlobalMaxPool(x)                  -> ReduceMax(x, all axes from 2 on)

Equal bit for bit, because the same elements are combined in the same order. Only GlobalMaxPool
keeps values alone, as ONNX does not define whether -0 or +0 is larger, and the maximum of NaN.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qgraph.graph.interface import stated_shape
from qgraph.graph.scopes import input_of
from qgraph.proof.normal.elementwise import is_along_axis
from qgraph.proof.normal.movements import Reshaping, has_elements, static_count, write
from qgraph.proof.normal.rewriter import Rewriter, Sizes

ONE_AXIS = frozenset(
    {"ArgMax", "ArgMin", "Concat", "Gather", "GatherElements", "TopK", "Hardmax", "Softmax"}
    | {"LayerNormalization", "LogSoftmax", "LpNormalization", "ScatterElements"}
    | {"QuantizeLinear", "DequantizeLinear"}
)
_DEFAULT = {"Concat": None, "Hardmax": -1, "LogSoftmax": -1, "Softmax": -1, "TopK": -1}
_DEFAULT |= {"LayerNormalization": -1, "LpNormalization": -1}
_DEFAULT |= {"QuantizeLinear": 1, "DequantizeLinear": 1}
ROWS = frozenset({"Hardmax", "LogSoftmax", "Softmax"})
_SINCE = 13
"""Opset since which Softmax, LogSoftmax and Hardmax work along one axis."""

_AXES_AS_INPUT = 18


def count_axis(graph: Rewriter, node: ir.Node) -> bool:
    """Count the axis of a node from the front."""
    if not node.inputs or node.inputs[0] is None:
        return False
    if node.op_type in ROWS and graph.imports.get("", 1) < _SINCE:
        return False
    scale = graph.array(node.inputs[1]) if is_along_axis(node) else None
    if scale is not None and scale.size == 1:
        if "axis" not in node.attributes or node.attributes.get_int("block_size", 0) > 0:
            return False
        node.attributes.pop("axis")
        return True
    sizes = stated_shape(node.inputs[0])
    axis = node.attributes.get_int("axis", _DEFAULT.get(node.op_type, 0) or 0)
    if sizes is None or axis >= 0 or axis < -len(sizes):
        return False
    node.attributes["axis"] = ir.AttrInt64("axis", axis + len(sizes))
    return True


def write_reduction(graph: Rewriter, node: ir.Node) -> bool:
    """Write a reduction with a list of all its axes and ``keepdims = 1``."""
    if node.domain or not node.op_type.startswith("Reduce"):
        return False
    x = node.inputs[0]
    sizes = None if x is None else stated_shape(x)
    axes = None if sizes is None else reduced_axes(graph, node, len(sizes))
    if x is None or sizes is None or not axes:
        return False
    kept = node.attributes.get_int("keepdims", 1)
    inputs = [x] if "axes" in node.attributes else list(node.inputs[:2])
    if kept and _states(graph, node, axes):
        return False
    result = tuple(1 if axis in axes else size for axis, size in enumerate(sizes))
    listed = np.asarray(axes, np.int64)
    attributes: dict[str, object] = {"keepdims": 1}
    if _takes_axes_as_input(graph, node):
        inputs = [x, graph.constant(listed, "axes")]
    else:
        inputs, attributes["axes"] = [x], axes
    dtype = node.outputs[0].dtype
    whole = graph.node(node, node.op_type, inputs, attributes, dtype=dtype, sizes=result)
    target = tuple(size for axis, size in enumerate(result) if axis not in axes)
    reshaping = Reshaping(result, result if kept else target)
    if reshaping.shape is None:
        return False
    return graph.replace(node.outputs[0], write(graph, reshaping, whole, node))


def reduced_axes(graph: Rewriter, node: ir.Node, rank: int) -> list[int] | None:
    """Return the axes of a reduction in ascending order; None where they are not known."""
    attribute = node.attributes.get("axes")
    operand = input_of(node, 1)
    if attribute is not None:
        axes = [int(axis) for axis in attribute.as_ints()]
    elif operand is not None:
        array = graph.array(operand)
        if array is None:
            return None
        axes = [int(axis) for axis in array.reshape(-1)]
    else:
        axes = []
    if not axes and node.attributes.get_int("noop_with_empty_axes", 0) != 0:
        return None
    if any(not -rank <= axis < rank for axis in axes):
        return None
    return sorted({axis % rank for axis in axes}) or list(range(rank))


def write_rows(graph: Rewriter, node: ir.Node) -> bool:
    """Write a Softmax as a Softmax over rows, if all later dimensions have size 1."""
    x = node.inputs[0]
    sizes = None if x is None else stated_shape(x)
    if x is None or not sizes or None in sizes or graph.imports.get("", 1) < _SINCE:
        return False
    axis = node.attributes.get_int("axis", -1) % len(sizes)
    if any(size != 1 for size in sizes[axis + 1 :]) or (len(sizes), axis) == (2, 1):
        return False
    rows = _product(sizes[:axis])
    if rows is None:
        return False
    flat = Reshaping(sizes, (rows, sizes[axis]))
    back = Reshaping((rows, sizes[axis]), sizes)
    if flat.shape is None or back.shape is None:
        return False
    data = write(graph, flat, x, node)
    dtype = node.outputs[0].dtype
    moved = graph.node(node, node.op_type, [data], {"axis": 1}, dtype=dtype, sizes=flat.target)
    return graph.replace(node.outputs[0], write(graph, back, moved, node))


def write_global_maximum(graph: Rewriter, node: ir.Node) -> bool:
    """Write a GlobalMaxPool as a ReduceMax."""
    x = node.inputs[0]
    sizes = None if x is None else stated_shape(x)
    axes = list(range(2, len(sizes or ())))
    if x is None or sizes is None or not axes or not has_elements(sizes, axes):
        return False  # of no elements, ReduceMax has a result and GlobalMaxPool has none
    if not graph.gives_up_zero_sign(node.outputs[0]):
        return False
    graph.exchanged += 1
    inputs = [x]
    attributes: dict[str, object] = {"keepdims": 1}
    if graph.imports.get("", 1) >= _AXES_AS_INPUT:
        inputs.append(graph.constant(np.asarray(axes, np.int64), "axes"))
    else:
        attributes["axes"] = axes
    maximum = graph.node(
        node,
        "ReduceMax",
        inputs,
        attributes,
        dtype=node.outputs[0].dtype,
        sizes=(*sizes[:2], *[1] * (len(sizes) - 2)),
    )
    return graph.replace(node.outputs[0], maximum)


def _states(graph: Rewriter, node: ir.Node, axes: list[int]) -> bool:
    """Return whether a reduction lists exactly these axes, and states no default attribute."""
    if node.attributes.get_int("noop_with_empty_axes", 0) or "keepdims" not in node.attributes:
        return False
    if "axes" in node.attributes:
        return list(node.attributes["axes"].as_ints()) == axes
    array = graph.array(input_of(node, 1))
    return array is not None and array.tolist() == axes


def _takes_axes_as_input(graph: Rewriter, node: ir.Node) -> bool:
    if "axes" in node.attributes:
        return False
    opset = graph.imports.get("", 1)
    return len(node.inputs) > 1 or opset >= (13 if node.op_type == "ReduceSum" else _AXES_AS_INPUT)


def _product(sizes: Sizes) -> int | str | None:
    """Return a product of sizes as one size: a number, or one symbolic dimension."""
    names = [size for size in sizes if isinstance(size, str)]
    if not names:
        return static_count(sizes)
    return names[0] if len(names) == 1 and static_count(sizes) == 1 else None
