"""All versions of the standard operators since opset 9, and which of them say nothing new.

A version says nothing new if a node of the version before, written as it stands, computes the same
in the new one: more types, more attributes whose defaults do what was done before, a text spelled
anew. The texts of all versions were read for it. Versions that are not listed here have an entry in
:data:`qgraph.opsets.rewrites.ADAPTERS`; a version in neither table is unknown, and no node is
raised over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

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
"""For an operator, its versions after opset 9 that say nothing new about older nodes."""

EARLY = frozenset({"LayerNormalization"})
"""Operators that files contain under opsets from before their first version, with its meaning:
ONNX Runtime has them without regard to the opset."""


@cache
def first_version(name: str) -> int | None:
    """Return the opset that introduced a standard operator; None if onnx has none of that name."""
    found = _since(name, _ANY)
    while found is not None and (earlier := _since(name, found - 1)) is not None:
        found = earlier
    return found


@cache
def versions_between(name: str, source: int, target: int) -> tuple[int, ...]:
    """Return the opsets after ``source`` up to ``target`` in which an operator has a new version.

    Args:
        name: of a standard operator; of any other one there are no versions.
        source: an opset.
        target: another one.
    """
    found = []
    step = _since(name, target)
    while step is not None and step > source:
        found.append(step)
        step = _since(name, step - 1)
    return tuple(reversed(found))


def is_known(name: str, version: int) -> bool:
    """Return whether the standard operator ``name`` exists in opset ``version``, or is foreign."""
    first = first_version(name)
    return first is None or first <= version or name in EARLY


_ANY = 1 << 16


def _since(name: str, version: int) -> int | None:
    try:
        return int(defs.get_schema(name, version, "").since_version)
    except defs.SchemaError:
        return None
