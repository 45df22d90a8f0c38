"""Pairs of operators that are two forms of one sum over real numbers, and not over floats."""

from __future__ import annotations

import itertools

import onnx_ir as ir

from qgraph.matching.attained import is_move

_STEPS = frozenset({"Add", "Div", "Mul", "Sub"})
"""Operators in which the parts of a larger one end."""

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})
_MEANS = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean"})
_NORMALIZATIONS = frozenset(
    {"BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization"}
    | {"LpNormalization", "RMSNormalization", "SimplifiedLayerNormalization"}
)

_REWRITES = (
    (_PRODUCTS, _PRODUCTS | {"Add", "Mul", "ReduceSum"}),
    (_MEANS, _MEANS | {"Conv", "Div", "Mul", "ReduceSum"}),
    (_NORMALIZATIONS, _NORMALIZATIONS | _STEPS | {"Conv", "Gemm", "MatMul"}),
    ({"Softmax"}, {"Div", "Mul", "Exp"}),
    ({"LogSoftmax"}, {"Log", "Sub"}),
    ({"ReduceL2", "ReduceLogSumExp", "ReduceSumSquare"}, {"Log", "ReduceSum", "Sqrt"}),
    ({"Attention", "MultiHeadAttention"}, {"MatMul", "Transpose"}),
    ({"Gelu"}, {"Mul"}),
    ({"FusedConv", "FusedGemm", "FusedMatMul"}, _PRODUCTS | _STEPS | {"Relu"}),
)
"""Operators, and those in which other forms of them end."""

_PAIRS = {
    frozenset(pair)
    for ours, theirs in _REWRITES
    for pair in itertools.product(ours, theirs)
    if len(set(pair)) == 2
}


def rewritten_sum(reference: ir.Node, candidate: ir.Node) -> str | None:
    """Return why two operators cannot be proved equal if they are two forms of one sum.

    None is returned for operators that are no such pair. What only moves elements may follow them.
    """
    first, second = _sum(reference), _sum(candidate)
    if frozenset({first.op_type, second.op_type}) not in _PAIRS:
        return None
    return (
        f"{_name(first)} and {_name(second)} are forms of a sum that add in another order or with "
        "other roundings, which ONNX does not fix; so they are not equal for all inputs, and only "
        "a bound of their difference could be proved"
    )


def _sum(node: ir.Node) -> ir.Node:
    """Return the node whose elements ``node`` has, where it only moves them."""
    while is_move(node) and node.inputs[0] is not None:
        made = node.inputs[0].producer()
        if made is None:
            break
        node = made
    return node


def _name(node: ir.Node) -> str:
    return f"{node.op_type} {node.name or node.outputs[0].name!r}"
