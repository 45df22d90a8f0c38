"""Replace operators by their definitions, for two models of which one has the definitions.

A definition is a graph of standard operators. A MatMulNBits becomes a MatMul with its decoded
weights.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from qgraph.conditions import Condition
from qgraph.errors import OperatorError, UnsupportedError, where
from qgraph.graph.constants import constant_elements
from qgraph.graph.edit import Draft, Operand
from qgraph.graph.inference.walk import with_facts
from qgraph.graph.schema import OpKey, versions_of
from qgraph.graph.scopes import nodes_of
from qgraph.ops.composite import composite_of, differing, write_composite, write_out
from qgraph.ops.integer import definitions
from qgraph.ops.kernels import mat_mul_n_bits
from qgraph.ops.kernels.mat_mul_n_bits import Weights, is_mat_mul_n_bits


def differing_definitions(models: Sequence[ir.Model]) -> frozenset[OpKey]:
    """Return the operators with definitions that not all models have equally often."""
    return differing(models, _writer)


def conditions_of(models: Sequence[ir.Model], operators: Collection[OpKey]) -> list[Condition]:
    """Return the conditions under which operators of models are equal to their definitions."""
    nodes = (node for model in models for node in nodes_of(model.graph))
    replaced = [node for node in nodes if OpKey.of(node) in operators]
    return [*definitions.conditions(operators), *mat_mul_n_bits.conditions(replaced)]


def with_definitions(model: ir.Model, defined: Collection[OpKey]) -> ir.Model:
    """Return a copy of a model in which operators are replaced by their definitions.

    Nodes stay that their definition does not describe, or that need a later opset. The types and
    shapes that definitions depend on follow from the inputs alone.
    """
    opset = versions_of(model.opset_imports).get("", 0)
    for write in (write_composite, definitions.write, _write_packed):
        model = with_facts(model)
        nodes = [node for node in nodes_of(model.graph) if OpKey.of(node) in defined]
        write_out(model, [node for node in nodes if _writer(node) is write], write, opset)
    return model


def _writer(node: ir.Node) -> object:
    """Return what writes the definition of a node; None if it has none."""
    if is_mat_mul_n_bits(node):
        return _write_packed
    if composite_of(node) is not None:
        return write_composite
    return definitions.write if definitions.is_defined(node) else None


def _write_packed(draft: Draft, node: ir.Node) -> Operand:
    """Write a MatMulNBits as a MatMul with its weights, then Add with its bias.

    Raises:
        OperatorError: a parameter is not constant or of another form, or the data are not float32.
    """
    inputs: list[ir.Value | None] = [*node.inputs, *[None] * (6 - len(node.inputs))]
    x, *_, order, bias = inputs
    codes, scales, points = (constant_elements(value) for value in inputs[1:4])
    if codes is None or scales is None or (points is None and inputs[3] is not None):
        raise OperatorError(f"{where(node)}: its weights are not constant")
    if scales.dtype != np.float32 or order is not None:
        raise OperatorError(f"{where(node)}: its scales are not float32, or it has groups")
    zero = None if points is None else points.array()
    try:
        weights = Weights.of(node)
        weights.check(codes, scales)
        weights.zero_points(zero)
    except (UnsupportedError, ValueError) as error:
        raise OperatorError(f"{where(node)}: {error}") from error

    def decoded() -> ir.TensorProtocol:
        array = weights.values(codes.array(), scales.array(), zero)
        return ir.Tensor(np.ascontiguousarray(array.T))

    shape = ir.Shape((weights.k, weights.n))
    matrix = ir.LazyTensor(decoded, dtype=ir.DataType.FLOAT, shape=shape, name="weights")
    operands = [x, draft.stored(matrix, "weights")]
    total = draft.node("MatMul", operands, dtype=ir.DataType.FLOAT)
    return total if bias is None else draft.op.Add(total, bias)
