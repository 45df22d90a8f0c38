"""Whether operands determine the results of a node to the last bit, with the sign of zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant
from qgraph.graph.schema import OpKey
from qgraph.graph.scopes import input_of
from qgraph.numerics.primitives import NUMPY
from qgraph.ops.dispatch import Imports
from qgraph.ops.operator import is_defined

_EXACT = frozenset(NUMPY) - {"Pow"} | {
    *("ArgMax", "ArgMin", "CastLike", "Clip", "Compress", "Concat", "ConstantOfShape"),
    *("DepthToSpace", "DynamicQuantizeLinear", "Expand", "EyeLike", "Flatten", "GatherElements"),
    *("GatherND", "IsInf"),
    *("MaxPool", "Mod", "NonZero", "OneHot", "Pad", "ReduceMax", "ReduceMin", "Reshape"),
    *("ScatterElements", "ScatterND", "Shape", "Size", "Slice", "SpaceToDepth", "Split"),
    *("Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Xor"),
}
"""Operators whose results IEEE 754 and ONNX determine to the last bit."""

_RANDOM = {
    "": frozenset(
        {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"}
        | {"RandomUniformLike"}
    ),
    "com.microsoft": frozenset({"Sampling"}),
}

_DROPOUT_FOR_INFERENCE = 7
"""Before this version, Dropout is in training mode unless an attribute turns it off."""

_TRAINING_INPUT = {
    OpKey("", "Dropout"): 2,
    OpKey("com.microsoft", "BiasDropout"): 4,
    OpKey("com.microsoft", "BitmaskBiasDropout"): 4,
    OpKey("com.microsoft", "BitmaskDropout"): 2,
}
"""Index of the input for training mode, by operator."""


def is_exact(node: ir.Node) -> bool:
    """Return whether IEEE 754 and ONNX determine the results of a node to the last bit."""
    return (node.domain == "" and node.op_type in _EXACT) or is_defined(node)


def is_random(node: ir.Node, imports: Imports) -> bool:
    """Return whether a node may compute different results from equal operands."""
    index = _TRAINING_INPUT.get(OpKey.of(node))
    if index is None:
        return node.op_type in _RANDOM.get(node.domain, ())
    if node.domain == "" and imports.get("", _DROPOUT_FOR_INFERENCE) < _DROPOUT_FOR_INFERENCE:
        return not node.attributes.get_int("is_test", 0)
    mode = input_of(node, index)
    array = constant(mode)
    return mode is not None and (array is None or bool(array.any()))


CHOOSING = frozenset({"Clip", "Max", "Min", "Relu"})
"""Operators that choose between -0 and +0."""


def meets_both_zeros(node: ir.Node, known: Mapping[ir.Value, Any]) -> bool:
    """Return whether a node, such as Max, selects -0 or +0; ONNX does not define which."""
    if node.domain != "" or node.op_type not in CHOOSING:
        return False
    arrays = [np.asarray(known[value]) for value in node.inputs if value is not None]
    if any(array.dtype.kind in "iub" for array in arrays):
        return False
    if node.op_type == "Relu":
        arrays.append(np.zeros((), arrays[0].dtype))
    zeros = [array == 0 for array in arrays]
    signs = [np.signbit(array.astype(np.float32)) for array in arrays]
    minus = [np.asarray(zero & sign).any() for zero, sign in zip(zeros, signs, strict=True)]
    plus = [np.asarray(zero & ~sign).any() for zero, sign in zip(zeros, signs, strict=True)]
    return any(
        (minus[one] and plus[other]) or (plus[one] and minus[other])
        for one in range(len(arrays))
        for other in range(one)
    )
