"""Products with constant weights, written in one way: MatMul, then Add of the bias.

MatMulNBits is the product with the weights that its codes stand for, and Gemm without factors is
the product with its matrix; both add a bias to the finished sum. In which order the products are
summed is left open for all three.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qgraph.errors import UnsupportedError
from qgraph.graph.constants import constant
from qgraph.kernels.mat_mul_n_bits import Weights, is_mat_mul_n_bits


def has_packed_products(model: ir.Model) -> bool:
    """Return whether a model contains a MatMulNBits."""
    return any(is_mat_mul_n_bits(node) for node in model.graph)


def spell_out_products(model: ir.Model) -> None:
    """Replace MatMulNBits and Gemm in the main graph of ``model``, in place, where possible."""
    for node in list(model.graph):
        if is_mat_mul_n_bits(node):
            _spell_out_packed(node)
        elif node.domain == "" and node.op_type == "Gemm":
            _spell_out_gemm(node)


def _spell_out_packed(node: ir.Node) -> None:
    inputs = [*node.inputs, *[None] * (6 - len(node.inputs))]
    x, bias = inputs[0], inputs[5]
    parameters = [None if value is None else constant(value) for value in inputs[1:5]]
    known = all(
        (value is None) == (array is None)
        for value, array in zip(inputs[1:5], parameters, strict=True)
    )
    codes, scales = parameters[:2]
    if x is None or not known or codes is None or scales is None:
        return
    if scales.dtype != np.float32:  # which is the type of the data and of the product too
        return
    try:
        weights = Weights.of(node)
    except UnsupportedError:
        return

    def values() -> ir.TensorProtocol:
        array = weights.values(codes, scales, *parameters[2:])
        return ir.Tensor(np.ascontiguousarray(array.T))

    shape = ir.Shape((weights.k, weights.n))
    name = f"{node.outputs[0].name}_weights"
    tensor = ir.LazyTensor(values, dtype=ir.DataType.FLOAT, shape=shape, name=name)
    value = ir.Value(
        name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=shape, const_value=tensor
    )
    if isinstance(node.graph, ir.Graph) and x.dtype in (None, ir.DataType.FLOAT):
        node.graph.register_initializer(value)
        _replace(node, x, value, bias)


def _spell_out_gemm(node: ir.Node) -> None:
    get = node.attributes
    plain = get.get_float("alpha", 1.0) == 1 and get.get_float("beta", 1.0) == 1
    x, matrix = node.inputs[:2]
    if not plain or get.get_int("transA", 0) != 0 or x is None or matrix is None:
        return
    if get.get_int("transB", 0):
        turned = ir.node("Transpose", [matrix], {"perm": [1, 0]})
        turned.name = turned.outputs[0].name = f"{node.outputs[0].name}_matrix"
        turned.outputs[0].type = matrix.type
        if isinstance(node.graph, ir.Graph):
            node.graph.insert_before(node, turned)
        matrix = turned.outputs[0]
    _replace(node, x, matrix, node.inputs[2] if len(node.inputs) > 2 else None)


def _replace(node: ir.Node, x: ir.Value, matrix: ir.Value, bias: ir.Value | None) -> None:
    """Put a MatMul, and an Add if there is a bias, in the place of ``node``."""
    old, graph = node.outputs[0], node.graph
    if not isinstance(graph, ir.Graph):
        return
    name = old.name
    old.name = f"{name}_replaced"
    made = [ir.node("MatMul", [x, matrix], name=node.name)]
    if bias is not None:
        made[0].outputs[0].name = f"{name}_product"
        made.append(ir.node("Add", [made[0].outputs[0], bias], name=f"{node.name}_bias"))
    for step in made:
        step.outputs[0].type, step.outputs[0].shape = old.type, old.shape
    last = made[-1].outputs[0]
    last.name = name
    graph.insert_before(node, made)
    old.replace_all_uses_with(last, replace_graph_outputs=True)
    graph.remove(node, safe=True)
