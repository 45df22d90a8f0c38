"""Infer element types and shapes for the checker, from inputs and constants alone.

A shape is a tuple of sizes: a number, the name of a symbolic dimension, or None if it is unknown.
Types and shapes that a file states for inner values are not used.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import ml_dtypes
import onnx.defs
import onnx_ir as ir

from qgraph.errors import OperatorError
from qgraph.graph.constants import constant
from qgraph.graph.interface import stated_shape
from qgraph.ops.operator import operator_of
from qgraph.verify.findings import confirm
from qgraph.verify.operators import names

Size = int | str | None
Shape = tuple[Size, ...]

_ELEMENTWISE = names(
    "Abs Add Ceil Clip Cos Div Dropout Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity "
    "LeakyRelu Log Max Mean Min Mish Mod Mul Neg PRelu Pow Reciprocal Relu Round Selu Sigmoid "
    "Sign Sin Softplus Softsign Sqrt Sub Sum Tanh"
)
_TRUTHS = names("And Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Not Or Xor")
_SAME_SHAPE = names(
    "BatchNormalization CumSum Hardmax InstanceNormalization LRN LayerNormalization LogSoftmax "
    "LpNormalization Softmax"
)
_SAME_RANK = names(
    "AveragePool Concat Conv ConvTranspose DepthToSpace GlobalAveragePool GlobalMaxPool LpPool "
    "MaxPool Pad Resize Slice SpaceToDepth Split Tile Transpose"
)
_REDUCING = names("ReduceL2 ReduceMax ReduceMean ReduceMin ReduceSum")
ON_CODES_OF_ONE_TYPE = names(
    "QLinearAdd QLinearAveragePool QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul "
    "QLinearReduceMean QLinearSigmoid QLinearSoftmax"
)
"""Operators of ONNX Runtime whose result has the type of the first operand."""


def read(node: ir.Node) -> tuple[ir.DataType | None, Shape | None]:
    """Return the element type and shape of the first output of a node; None where unknown.

    The types and shapes of its operands were inferred before.
    """
    array = constant(node.outputs[0]) if node.op_type == "Constant" else None
    if array is not None:
        text = array.dtype.kind in "OSU"
        return ir.DataType.STRING if text else ir.DataType.from_numpy(array.dtype), array.shape
    try:
        operator = operator_of(node)
        if operator is not None and not operator.schema.standard:
            return _type(node, 0), _broadcast(node)
        if node.domain == "com.microsoft" and node.op_type in ON_CODES_OF_ONE_TYPE:
            return _type(node, 0), None
        if node.domain == "" and node.inputs and onnx.defs.has(node.op_type):
            return _read_type(node), _read_shape(node)
    except (IndexError, TypeError, ValueError, OperatorError):
        pass  # the node violates its definition
    return None, None


def write(value: ir.Value, dtype: ir.DataType | None, shape: Shape | None) -> None:
    """Set the inferred type and shape of a value, in place of those that the file states."""
    value.type = None if dtype is None else ir.TensorType(dtype)
    value.shape = None if shape is None else ir.Shape(list(shape))


def code_range(dtype: ir.DataType) -> tuple[int, int]:
    """Return the smallest and the largest number of an integer type."""
    limits = ml_dtypes.iinfo(dtype.numpy())  # type: ignore[no-untyped-call]
    return int(limits.min), int(limits.max)


def shape_of(value: ir.Value | None) -> Shape | None:
    """Return the inferred shape of a value; None if unknown."""
    return None if value is None else stated_shape(value)


def merged(a: Shape | None, b: Shape | None) -> Shape | None:
    """Return the shape of two equal values."""
    if a is None or b is None:
        return a if b is None else b
    known = (
        {m, n} for m, n in zip(a, b, strict=False) if isinstance(m, int) and isinstance(n, int)
    )
    fits = len(a) == len(b) and all(len(sizes) == 1 for sizes in known)
    confirm(fits, f"equal values have the shapes {list(a)} and {list(b)}")
    return tuple(m if isinstance(m, int) or n is None else n for m, n in zip(a, b, strict=True))


def _type(node: ir.Node, index: int) -> ir.DataType | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None else value.dtype


def _read_type(node: ir.Node) -> ir.DataType | None:
    stated = ir.DataType(node.attributes.get_int("output_dtype", 0)) or None
    match node.op_type:
        case "Cast":
            return ir.DataType(node.attributes.get_int("to", 0))
        case "QuantizeLinear":
            return _type(node, 2) if len(node.inputs) > 2 else stated or ir.DataType.UINT8
        case "DequantizeLinear":
            return stated or _type(node, 1)
    source = _type_of_result(node.op_type)
    if source is None or isinstance(source, ir.DataType):
        return source
    return _type(node, source)


@functools.cache
def _type_of_result(name: str) -> int | ir.DataType | None:
    """Return the operand whose type the first result of a standard operator has, or its type."""
    schema = onnx.defs.get_schema(name)
    result = schema.outputs[0]
    allowed = {c.type_param_str: list(c.allowed_type_strs) for c in schema.type_constraints}
    types = allowed.get(result.type_str, [result.type_str])
    if types in (["tensor(bool)"], ["tensor(int64)"]):
        return ir.DataType.BOOL if "bool" in types[0] else ir.DataType.INT64
    operands = [operand.type_str for operand in schema.inputs]
    is_one = result.is_homogeneous and result.type_str in operands
    return operands.index(result.type_str) if is_one else None


def _read_shape(node: ir.Node) -> Shape | None:
    name = node.op_type
    if name in _ELEMENTWISE or name in _TRUTHS or name == "Where":
        return _broadcast(node)
    data = shape_of(node.inputs[0])
    if name in _SAME_SHAPE or name in ("Cast", "CastLike", "DequantizeLinear", "QuantizeLinear"):
        return data
    if name in ("Flatten", "Gemm"):
        return None, None
    is_kept = name in _SAME_RANK | {"QLinearConv"} or (
        name in _REDUCING and node.attributes.get_int("keepdims", 1) != 0
    )
    return (None,) * len(data) if data is not None and is_kept else None


def _broadcast(node: ir.Node) -> Shape | None:
    """Return the shape to which the operands broadcast."""
    operands = [value for value in node.inputs if value is not None]
    shapes = [shape for value in operands if (shape := shape_of(value)) is not None]
    if len(shapes) < len(operands):
        return None
    rank = max(map(len, shapes))
    columns = zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True)
    return tuple(map(_common, columns))


def _common(sizes: Sequence[Size]) -> Size:
    others = set(sizes) - {1} or {1}
    numbers = [size for size in others if isinstance(size, int)]
    return numbers[0] if numbers else others.pop() if len(others) == 1 else None
