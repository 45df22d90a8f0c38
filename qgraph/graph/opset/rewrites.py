"""The versions of standard operators with changes, and the rewrite for each change.

For each operator and version with a change, a function rewrites a node so that it computes the same
as before, or refuses. Zero points of 0 that ONNX Runtime would refuse later are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant, constant_tensor, is_constant
from qgraph.graph.opset.change import OpsetChange, divide_by_window, may_be_set, start_windows
from qgraph.graph.schema import code_type
from qgraph.graph.scopes import all_nodes, input_of

_RESIZE_WITH_ROI, _RESIZE_WITHOUT_ROI = 11, 13

LARGEST = float(np.finfo(np.float32).max)

_DATA_OF_ANY_TYPE = 23
"""First opset in which QuantizeLinear again accepts data of another type than its scale."""

_FNUZ = frozenset({ir.DataType.FLOAT8E4M3FNUZ, ir.DataType.FLOAT8E5M2FNUZ})


def _axes(change: OpsetChange) -> None:
    # No axes in an attribute are all axes; in an input they may be none. Only Unsqueeze needs some.
    if change.get("axes", ()) or change.node.op_type == "Unsqueeze":
        change.integers(1, "axes")
    else:
        change.take("axes")


def _slice(change: OpsetChange) -> None:
    change.integers(1, "starts", required=True)
    change.integers(2, "ends", required=True)
    change.integers(3, "axes")


def _split_evenly(change: OpsetChange) -> None:
    if len(change.node.inputs) < 2 or change.node.inputs[1] is None:
        change.set("num_outputs", len(change.node.outputs))


def _pad(change: OpsetChange) -> None:
    change.integers(1, "pads", required=True)
    value = change.take("value", 0.0)
    if value or np.signbit(value):
        change.number_like_input(2, "value", value)


def _clip(change: OpsetChange) -> None:
    # An absent bound was the largest finite float32, and need not be since.
    for index, name, default in ((1, "min", -LARGEST), (2, "max", LARGEST)):
        change.number_like_input(index, name, change.take(name, default))


def _top_k(change: OpsetChange) -> None:
    count = change.take("k")
    if count is None:
        raise change.refuse("it has no attribute 'k'")
    change.feed(1, "k", np.asarray([count], np.int64))


def _has_mask(change: OpsetChange) -> bool:
    return any(value.uses() or value.is_graph_output() for value in change.node.outputs[1:])


def _dropout_mask(change: OpsetChange) -> None:
    if _has_mask(change):
        raise change.refuse("its mask is used, which was a number and became a truth value")


def _dropout(change: OpsetChange) -> None:
    if _has_mask(change):
        raise change.refuse("its mask is used, which was left open and is all true since")
    change.feed(1, "ratio", np.asarray(change.take("ratio", 0.5), np.float32))


def _batch_normalization(change: OpsetChange) -> None:
    if any(value.name for value in change.node.outputs[1:]):
        raise change.refuse("it has the outputs of training, which have other meanings since")


def _batch_normalization_of_halves(change: OpsetChange) -> None:
    if change.element_type(change.x) not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        raise change.refuse("it trains, and its statistics are computed in float32 since")


def _trains(node: ir.Node) -> bool:
    return may_be_set(node, "training_mode")


def _saturates(node: ir.Node) -> bool:
    return may_be_set(node, "saturate", default=True)


def _rounds_up(node: ir.Node) -> bool:
    return may_be_set(node, "ceil_mode")


def _casts_to_fnuz(node: ir.Node) -> bool:
    attribute = node.attributes.get("to")
    return _saturates(node) and (
        attribute is None or attribute.is_ref() or attribute.value in _FNUZ
    )


def _casts_like_fnuz(node: ir.Node) -> bool:
    return _saturates(node) and _may_be(node, 1, _FNUZ)


def _quantizes_to_fnuz(node: ir.Node) -> bool:
    return _saturates(node) and len(node.inputs) > 2 and _may_be(node, 2, _FNUZ)


def _quantizes_integers(node: ir.Node) -> bool:
    data = node.inputs[0] if node.inputs else None
    return data is not None and data.dtype is ir.DataType.INT32


def _may_be(node: ir.Node, index: int, types: frozenset[ir.DataType]) -> bool:
    """Return whether an input may have one of the given types.

    The type of a constant and of an input of the model is sure; others are only stated.
    """
    value = input_of(node, index)
    if value is None:
        return False
    tensor = value.const_value
    stated = value.dtype if value.is_graph_input() else None
    dtype = stated if tensor is None else tensor.dtype
    return dtype is None or dtype in types


def _infinity_of_fnuz(change: OpsetChange) -> None:
    raise change.refuse("infinity became NaN in types without it, and the largest number since")


def _quantize_integers(change: OpsetChange) -> None:
    if change.target < _DATA_OF_ANY_TYPE:
        raise change.refuse(
            f"its data is INT32, which opsets from 19 to {_DATA_OF_ANY_TYPE - 1} only take with "
            "a scale of that type"
        )


def _scatter(change: OpsetChange) -> None:
    change.node.op_type = "ScatterElements"


def _upsample(change: OpsetChange) -> None:
    change.node.op_type = "Resize"
    if change.target >= _RESIZE_WITH_ROI:
        _resize_as_upsample(change)
        change.reached = _RESIZE_WITH_ROI


def _resize(change: OpsetChange) -> None:
    scales = constant(change.node.inputs[1]) if len(change.node.inputs) > 1 else None
    if change.get("mode", "nearest") == "nearest" and (scales is None or (scales < 1).any()):
        raise change.refuse("it picks the nearest pixel for a scale that may be below 1")
    _resize_as_upsample(change)


def _resize_as_upsample(change: OpsetChange) -> None:
    """Write the former Upsample, or Resize for scales of 1 or more, in the newer Resize."""
    node = change.node
    node.resize_inputs(3)
    node.replace_input_with(2, node.inputs[1])
    node.replace_input_with(1, None)
    if change.target < _RESIZE_WITHOUT_ROI:
        change.feed(1, "roi", np.zeros(0, np.float32))
    change.set("coordinate_transformation_mode", "asymmetric")
    change.set("nearest_mode", "floor")


def _resize_by_sizes(change: OpsetChange) -> None:
    if change.get("coordinate_transformation_mode") == "tf_half_pixel_for_nn":
        raise change.refuse("coordinate_transformation_mode 'tf_half_pixel_for_nn' was removed")
    if len(change.node.inputs) > 3 and change.node.inputs[3] is not None:
        change.node.replace_input_with(2, None)


def _softmax(change: OpsetChange) -> None:
    """Softmax, LogSoftmax and Hardmax took all dimensions from ``axis`` on as one."""
    axis, shape = change.get("axis", 1), change.sizes
    if axis == -1 or (shape is not None and axis == len(shape) - 1):
        change.set("axis", axis)
        return
    node = change.node
    size = change.insert("Shape", [change.x])
    flat = change.insert("Flatten", [change.x], axis=axis)
    flat_result = change.insert(node.op_type, [flat], axis=-1)
    node.op_type = "Reshape"
    node.attributes.clear()
    node.resize_inputs(2)
    node.replace_input_with(0, flat_result)
    node.replace_input_with(1, size)


def _one_hot(change: OpsetChange) -> None:
    indices = constant(change.x)
    if indices is None or (indices < 0).any():
        raise change.refuse("its indices may be negative, which count from the end since")


def _conv_transpose(change: OpsetChange) -> None:
    if change.get("output_shape") or str(change.get("auto_pad", "")).startswith("SAME"):
        raise change.refuse("an odd padding went to the other side before opset 11")


def _grid_sample(change: OpsetChange) -> None:
    mode = change.get("mode", "bilinear")
    change.set("mode", {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))


def _group_normalization(change: OpsetChange) -> None:
    raise change.refuse("its scale and bias belong to groups, and to channels since")


def _floats_only(change: OpsetChange) -> None:
    dtype = change.x.dtype
    if dtype is not None and dtype.is_integer():
        raise change.refuse(f"its input is {dtype.name}, and it only takes floats since")


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")

ADAPTERS: Mapping[tuple[str, int], Callable[[OpsetChange], None]] = {
    ("AveragePool", 19): divide_by_window,
    ("AveragePool", 22): start_windows,
    ("BatchNormalization", 14): _batch_normalization,
    ("BatchNormalization", 15): _batch_normalization_of_halves,
    ("Cast", 24): _infinity_of_fnuz,
    ("CastLike", 24): _infinity_of_fnuz,
    ("Clip", 11): _clip,
    ("ConvTranspose", 11): _conv_transpose,
    ("DFT", 20): lambda change: change.feed(
        2, "axis", np.asarray(change.take("axis", 1), np.int64)
    ),
    ("Dropout", 10): _dropout_mask,
    ("Dropout", 12): _dropout,
    ("Erf", 13): _floats_only,
    ("GridSample", 20): _grid_sample,
    ("GroupNormalization", 21): _group_normalization,
    ("Hardmax", 13): _softmax,
    ("LogSoftmax", 13): _softmax,
    ("MaxPool", 22): start_windows,
    ("OneHot", 11): _one_hot,
    ("Pad", 11): _pad,
    ("QuantizeLinear", 19): _quantize_integers,
    ("QuantizeLinear", 24): _infinity_of_fnuz,
    ("ReduceLogSum", 28): _floats_only,
    ("ReduceLogSumExp", 28): _floats_only,
    ("ReduceSum", 13): _axes,
    ("Resize", 11): _resize,
    ("Resize", 13): _resize_by_sizes,
    ("RoiAlign", 16): lambda change: change.set(
        "coordinate_transformation_mode", "output_half_pixel"
    ),
    ("Scatter", 11): _scatter,
    ("Slice", 10): _slice,
    ("Softmax", 13): _softmax,
    ("Split", 13): lambda change: change.integers(1, "split"),
    ("Split", 18): _split_evenly,
    ("Squeeze", 13): _axes,
    ("TopK", 10): _top_k,
    ("Unsqueeze", 13): _axes,
    ("Upsample", 10): _upsample,
    **{(f"Reduce{name}", 18): _axes for name in _REDUCTIONS},
}
"""Rewrite for an operator and the version that changed it."""

CONCERNS: Mapping[tuple[str, int], Callable[[ir.Node], bool]] = {
    ("AveragePool", 19): _rounds_up,
    ("AveragePool", 22): _rounds_up,
    ("BatchNormalization", 15): _trains,
    ("Cast", 24): _casts_to_fnuz,
    ("CastLike", 24): _casts_like_fnuz,
    ("MaxPool", 22): _rounds_up,
    ("QuantizeLinear", 19): _quantizes_integers,
    ("QuantizeLinear", 24): _quantizes_to_fnuz,
}
"""For some rewrites, the nodes that they affect; the others affect all nodes."""

SHAPED = frozenset(
    {
        *("AveragePool", "BatchNormalization", "Clip", "Hardmax"),
        *("LogSoftmax", "MaxPool", "Pad", "Softmax"),
    }
)
"""Operators whose rewriting needs the shape or the type of their data."""


SIGNED_CODES_SINCE = 21
"""Opset since which QuantizeLinear states the type of its codes."""

_NOT_MISREAD = (None, ir.DataType.UINT8, ir.DataType.INT32)  # int32 is refused
SIGNED_CODES_REASON = (
    "ONNX Runtime refuses signed codes with a zero point at opset 21 or later where an operator "
    "that moves values follows; store the model at a lower opset, or keep unsigned codes"
)

_MOVING = frozenset(
    {"Dropout", "Identity", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)


def refused_decoders(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """Return the nodes with a zero point for which ONNX Runtime refuses opset 21.

    ONNX Runtime copies a quantizer across operators that only move values: Reshape(DQ(q)) becomes
    DQ(Q(Reshape(DQ(q)))), for a scalar scale and zero point. From opset 21 on the copy states the
    type of its codes. On processors where INT8 codes are then converted to UINT8, zero points
    get the new type and the stated type stays INT8: "output_dtype INT8 does not match y_zero_point
    type UINT8" (versions 1.31 and 1.32). A DequantizeLinear without a zero point is not changed.
    """
    return [
        node
        for node in nodes
        if node.op_type == "DequantizeLinear"
        and not node.domain
        and _has_signed_point(node)
        and is_copied_over(node.outputs[0])
    ]


def refused_pairs(model: ir.Model, nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """Return those of the nodes for which ONNX Runtime refuses the unchanged model."""
    is_new = model.opset_imports.get("", 0) >= SIGNED_CODES_SINCE
    return refused_decoders(nodes) if is_new else []


def is_copied_over(value: ir.Value) -> bool:
    """Return whether ONNX Runtime copies the quantizer of ``value`` across an operator.

    This includes a MatMul that an Add follows: both become a Gemm between two Reshapes.
    """
    readers = (use.node for use in value.uses() if use.idx == 0 and not use.node.domain)
    return any(
        n.op_type in _MOVING or (n.op_type == "MatMul" and meets_add(n.outputs[0])) for n in readers
    )


def unsigned_copies(model: ir.Model) -> list[ir.Node]:
    """Return each DequantizeLinear without a zero point whose copy decodes UINT8, not its codes.

    From opset 21 on the copy states their type. A QuantizeLinear after it needs no copy.
    """
    return [
        node
        for node in all_nodes(model)
        if node.op_type == "DequantizeLinear" and input_of(node, 2) is None
        if code_type(node) not in _NOT_MISREAD and not is_constant(node.inputs[0])
        if model.opset_imports.get("", 0) < SIGNED_CODES_SINCE
        if is_copied_over(node.outputs[0]) and _is_read(node.outputs[0])
    ]


def _is_read(value: ir.Value) -> bool:
    return value.is_graph_output() or any(
        _is_read(n.outputs[0]) if n.op_type in _MOVING else n.op_type != "QuantizeLinear"
        for n in value.consumers()
    )


def meets_add(value: ir.Value) -> bool:
    """Return whether an Add reads a value."""
    return any(use.node.op_type == "Add" and not use.node.domain for use in value.uses())


def is_symmetric(node: ir.Node) -> bool:
    """Return whether the zero point of a DequantizeLinear is zero, so that it can be removed."""
    point = constant(node.inputs[2])
    return point is not None and not point.any()


def leave_out_zero_points(nodes: Iterable[ir.Node]) -> None:
    """Remove zero points of DequantizeLinear nodes that are zero."""
    for node in nodes:
        if not is_symmetric(node):
            continue
        point, graph = node.inputs[2], node.graph
        node.resize_inputs(2)
        if (
            point is not None
            and isinstance(graph, ir.Graph)
            and not (point.uses() or point.is_graph_input() or point.is_graph_output())
            and graph.initializers.get(point.name or "") is point
        ):
            del graph.initializers[point.name or ""]


def _has_signed_point(node: ir.Node) -> bool:
    point = constant_tensor(input_of(node, 2))
    return point is not None and point.dtype is ir.DataType.INT8 and point.size == 1
