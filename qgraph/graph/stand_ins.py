"""Standard operators with the result types and shapes of those of com.microsoft on codes.

onnx knows nothing of com.microsoft, and its inference ends there. For a node of one of these
operators a standard one is put that has a result of the same type and shape; what it computes is
another matter, so that the graph is good for inference only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import onnx_ir as ir

_DOMAIN = "com.microsoft"

_OF_INPUTS: Mapping[str, tuple[str, tuple[int, ...]]] = MappingProxyType(
    {
        "QLinearAdd": ("Add", (0, 3)),
        "QLinearAveragePool": ("AveragePool", (0,)),
        "QLinearGlobalAveragePool": ("GlobalAveragePool", (0,)),
        "QLinearLeakyRelu": ("Identity", (0,)),
        "QLinearMul": ("Mul", (0, 3)),
        "QLinearSigmoid": ("Identity", (0,)),
        "QLinearSoftmax": ("Identity", (0,)),
        "QLinearWhere": ("Where", (0, 1, 4)),
    }
)
"""Operators whose result has the type of their data, and which standard ones have its shape."""

_PRODUCTS: Mapping[str, tuple[str, tuple[int, int], int]] = MappingProxyType(
    {"MatMulIntegerToFloat": ("MatMul", (0, 1), 2), "QGemm": ("Gemm", (0, 3), 1)}
)
"""Products of codes: the standard one, its operands, and the scale that has the type of real
results."""

_SCALE_OF_QGEMM, _ZERO_OF_QGEMM = 7, 8


def put_stand_ins(model: ir.Model) -> None:
    """Replace nodes of com.microsoft by standard ones with results of the same form, in place."""
    if _DOMAIN not in model.opset_imports:
        return
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.domain == _DOMAIN:
            _put(node)


def _put(node: ir.Node) -> None:
    name = node.op_type
    if name == "QuantizeLinear" or (name == "DequantizeLinear" and _is_float32(node, 1)):
        node.domain = ""
    elif name in _OF_INPUTS and node.attributes.get_int("channels_last", 0) == 0:
        standard, places = _OF_INPUTS[name]
        node.attributes.pop("channels_last", None)
        _become(node, standard, places)
    elif name == "QLinearConcat":
        _become(node, "Concat", range(2, len(node.inputs), 3))
    elif name in _PRODUCTS and (kind := _type_of_product(node)) is not None:
        standard, operands, _ = _PRODUCTS[name]
        product = ir.node(standard, [node.inputs[k] for k in operands], node.attributes)
        product.outputs[0].name = f"{node.outputs[0].name}_product"
        node.prepend(product)
        node.attributes.clear()
        node.attributes["to"] = ir.AttrInt64("to", kind.value)
        node.resize_inputs(1)
        node.replace_input_with(0, product.outputs[0])
        node.domain, node.op_type = "", "Cast"


def _become(node: ir.Node, name: str, places: Sequence[int]) -> None:
    if len(node.inputs) <= max(places, default=0):
        return
    used = [node.inputs[place] for place in places]
    node.resize_inputs(len(used))
    for place, value in enumerate(used):
        node.replace_input_with(place, value)
    node.domain, node.op_type = "", name


def _type_of_product(node: ir.Node) -> ir.DataType | None:
    """Return the type of a product of codes: that of its scale, or of the codes asked for."""
    if len(node.inputs) > _SCALE_OF_QGEMM and node.inputs[_SCALE_OF_QGEMM] is not None:
        zero = node.inputs[_ZERO_OF_QGEMM] if len(node.inputs) > _ZERO_OF_QGEMM else None
        return None if zero is None or zero.const_value is None else zero.const_value.dtype
    return ir.DataType.FLOAT if _is_float32(node, _PRODUCTS[node.op_type][2]) else None


def _is_float32(node: ir.Node, place: int) -> bool:
    value = node.inputs[place] if len(node.inputs) > place else None
    tensor = None if value is None else value.const_value
    return tensor is not None and tensor.dtype == ir.DataType.FLOAT
