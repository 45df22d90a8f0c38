"""Versions of the standard operators since opset 9 that do not change existing nodes.

A version changes nothing if an unchanged node of the previous version computes the same in the new
one: for example, it adds types, adds attributes whose defaults keep the behaviour, or clarifies the
text. The texts of all versions were read for this table. Versions that are not listed here have an
entry in :data:`qgraph.graph.opset.rewrites.ADAPTERS`; a version in neither table is unknown, and no
node is raised across it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import onnx_ir as ir
from onnx import defs

_OPERATORS_OF: Mapping[tuple[int, ...], str] = MappingProxyType(
    {
        (10, 11): "AveragePool",
        (10, 11, 12): "MaxPool",
        (11,): "Hardmax LogSoftmax NonMaxSuppression ReduceSum Softmax Split",
        (11, 12, 13): "ArgMax ArgMin",
        (11, 12, 13, 19, 21, 23, 24, 25): "Constant",
        (11, 12, 13, 20): "ReduceMax ReduceMin",
        (11, 13): (
            "Concat Gather Gemm ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean "
            "ReduceProd ReduceSumSquare Slice"
        ),
        (11, 13, 16, 19, 21, 23, 24, 25): "If Loop",
        (11, 13, 19): "Equal",
        (11, 13, 21, 23, 24, 25): "Flatten",
        (11, 13, 28): "DepthToSpace",
        (11, 16, 19, 21, 23, 24, 25): "Scan",
        (11, 18, 22): "LpPool",
        (11, 21, 23, 24, 25): "Squeeze Unsqueeze",
        (11, 22): "Conv MaxUnpool",
        (11, 24): "TopK",
        (11, 28): "Compress",
        (12, 13): "Clip GatherND Max Min",
        (12, 13, 15): "Pow",
        (13,): (
            "Abs Ceil Exp Expand Floor GatherElements Greater LRN Less Log MatMul Mean "
            "MeanVarianceNormalization Neg NonZero Reciprocal Sigmoid Sign "
            "SoftmaxCrossEntropyLoss Sqrt Sum Tanh Tile"
        ),
        (13, 14): "Add Div Mul Relu Sub",
        (13, 14, 16, 19, 21, 23, 24, 25): "Identity",
        (13, 14, 19, 21, 23, 24, 25): "Reshape",
        (13, 15, 19, 21, 23, 24, 25): "Shape",
        (13, 16, 18): "ScatterElements ScatterND",
        (13, 18, 19, 21, 23, 24, 25): "Pad",
        (13, 19, 21, 23, 24, 25): "Size",
        (13, 19, 21, 23, 24, 25, 28): "DequantizeLinear",
        (13, 19, 21, 23, 25, 28): "Cast",
        (13, 20): "IsNaN",
        (13, 21, 23, 24, 25): "Transpose",
        (13, 21, 23, 25, 28): "QuantizeLinear",
        (13, 22): "Dropout NegativeLogLikelihoodLoss",
        (13, 28): "Mod SpaceToDepth",
        (14,): "CumSum",
        (14, 22): "GRU LSTM RNN",
        (16,): "GreaterOrEqual LeakyRelu LessOrEqual PRelu Where",
        (18, 19): "Resize",
        (18, 28): "OptionalGetElement OptionalHasElement",
        (19, 21, 23, 25): "CastLike",
        (20,): "IsInf",
        (20, 21, 23, 24, 25): "ConstantOfShape",
        (21,): "QLinearMatMul",
        (22,): (
            "Acos Acosh Asin Asinh Atan Atanh Bernoulli ConvTranspose Cos Cosh DeformConv Det "
            "Elu EyeLike GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample HardSigmoid "
            "HardSwish InstanceNormalization LpNormalization MaxRoiPool Mish Multinomial "
            "RandomNormal RandomNormalLike RandomUniform RandomUniformLike RoiAlign Round Selu "
            "Sin Sinh Softplus Softsign Tan ThresholdedRelu"
        ),
        (24,): "SplitToSequence",
        (24, 25): "Attention",
        (27,): "Range",
        (28,): "BitShift Celu Einsum OneHot Optional ReverseSequence Unique",
    }
)

SAME: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {name: versions for versions, names in _OPERATORS_OF.items() for name in names.split()}
)
"""For each operator, its versions after opset 9 that do not change existing nodes."""

EARLY = frozenset({"LayerNormalization"})
"""Operators that files contain under opsets from before their first version, with its meaning:
ONNX Runtime has them without regard to the opset."""


@cache
def first_version(name: str) -> int | None:
    """Return the opset that introduced a standard operator; None if onnx has none of that name."""
    version = _since(name, _ANY)
    while version is not None and (earlier := _since(name, version - 1)) is not None:
        version = earlier
    return version


@cache
def versions_between(name: str, source: int, target: int) -> tuple[int, ...]:
    """Return the opsets after ``source`` up to ``target`` in which an operator has a new version.

    There are none of operators that are not standard.
    """
    versions = []
    step = _since(name, target)
    while step is not None and step > source:
        versions.append(step)
        step = _since(name, step - 1)
    return tuple(reversed(versions))


def is_known(name: str, version: int) -> bool:
    """Return whether ``name`` exists in opset ``version``, or is not a standard operator."""
    first = first_version(name)
    return first is None or first <= version or name in EARLY


_ANY = 1 << 16


def _since(name: str, version: int) -> int | None:
    try:
        return int(defs.get_schema(name, version, "").since_version)
    except defs.SchemaError:
        return None


_FORM_SINCE = {
    name: opset
    for opset, names in (
        (5, "Reshape"),
        (6, "Abs Ceil Floor"),
        (7, "Add Div Equal Mul Sub"),
        (8, "Max Min"),
        (9, "Cast Greater IsNaN Less Sign Where"),
        (11, "Clip Round"),
        (12, "GreaterOrEqual LessOrEqual"),
    )
    for name in names.split()
}
"""First opset, if not 1, in which an operator has the form and broadcasting that drafts use."""

_TYPES_SINCE = (
    (1, 10, 1, "INT8 UINT8 INT32"),
    (19, 19, 9, "FLOAT8E4M3FN FLOAT8E4M3FNUZ FLOAT8E5M2 FLOAT8E5M2FNUZ"),
    (1, 21, 1, "INT16 UINT16"),
    (21, 21, 10, "INT4 UINT4"),
    (23, 23, 11, "FLOAT4E2M1"),
    (24, None, 12, "FLOAT8E8M0"),
    (25, 25, 13, "INT2 UINT2"),
    (28, 28, 14, "FLOAT6E2M3 FLOAT6E3M2"),
)
"""First opset in which Cast, and QuantizeLinear and DequantizeLinear support a type; IR version."""

_CAST_SINCE = {name: cast for cast, _, _, names in _TYPES_SINCE for name in names.split()}


def first_opset(node: ir.Node) -> int:
    """Return the lowest opset that has the operator, the form and the types of a drafted node."""
    if node.domain:
        return 1
    first = _FORM_SINCE.get(node.op_type, 1)
    if node.op_type != "Cast":
        return first
    source = node.inputs[0].dtype if node.inputs[0] is not None else None
    types = {source, ir.DataType(node.attributes["to"].as_int())}
    return max(first, *(_CAST_SINCE.get(dtype.name, 1) for dtype in types if dtype is not None))


QDQ_SINCE: Mapping[str, int] = MappingProxyType(
    {name: qdq for _, qdq, _, names in _TYPES_SINCE if qdq for name in names.split()}
)
"""First opset in which QuantizeLinear and DequantizeLinear accept codes of a type (INT32: only the
latter)."""

IR_SINCE: Mapping[ir.DataType, int] = MappingProxyType(
    {ir.DataType[name]: since for _, _, since, names in _TYPES_SINCE for name in names.split()}
)
"""First IR version with an element type."""
