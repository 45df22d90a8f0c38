"""Infer element types and shapes for the checker, from inputs and constants alone.

The rules are those of onnx; the prover has its own (``qgraph/graph/inference``). A shape is a tuple
of sizes: a number, the name of a symbolic dimension, or None if it is unknown. Types and shapes
that a file states for inner values are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import ml_dtypes
import onnx
import onnx_ir as ir
from onnx.shape_inference import InferenceError, infer_node_outputs

from qgraph.errors import OperatorError
from qgraph.graph.interface import stated_shape
from qgraph.numerics import Array
from qgraph.ops.operator import operator_of
from qgraph.verify import confirm
from qgraph.verify.operators import names

Shape = tuple[int | str | None, ...]
Arrays = Callable[[ir.Value | None], Array | None]
"""Returns the array of a constant; None for other values."""

ON_CODES_OF_ONE_TYPE = names(
    "QLinearAdd QLinearAveragePool QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul "
    "QLinearReduceMean QLinearSigmoid QLinearSoftmax"
)
"""Operators of ONNX Runtime whose result has the type of the first operand."""

_INVALID = InferenceError, onnx.checker.ValidationError, onnx.defs.SchemaError


def infer(node: ir.Node, imports: Mapping[str, int], arrays: Arrays) -> None:
    """Write the types and shapes of the results of a node, in place of those that the file states.

    The types and shapes of its operands were inferred before.
    """
    operands = [value for value in node.inputs if value is not None]
    for value in node.outputs:
        write(value, None, None)
    try:
        operator = operator_of(node)
    except OperatorError:
        return
    if node.domain == "com.microsoft" and node.op_type in ON_CODES_OF_ONE_TYPE:
        write(node.outputs[0], operands[0].dtype, None)
    elif operator is not None and not operator.schema.standard:
        # a quantizer: its result has the type of the data, and the shape of a sum of all operands
        terms = [ir.Value(name=v.name, type=operands[0].type, shape=v.shape) for v in operands]
        total = ir.Value(name=node.outputs[0].name)
        _infer_standard(ir.Node("", "Sum", terms, outputs=[total]), imports, arrays)
        write(node.outputs[0], total.dtype, shape_of(total))
    elif node.domain == "" and onnx.defs.has(node.op_type):
        _infer_standard(node, imports, arrays)


def _infer_standard(node: ir.Node, imports: Mapping[str, int], arrays: Arrays) -> None:
    """Write what onnx infers for a standard operator, which may need the values of small inputs."""
    operands = {str(value.name): value for value in node.inputs if value is not None}
    sizes = {n: arrays(v) for n, v in operands.items() if v.dtype is ir.DataType.INT64}
    opset = imports.get("", 1)
    try:
        found = infer_node_outputs(
            onnx.defs.get_schema(node.op_type, opset),
            ir.to_proto(node),
            {name: ir.serde.serialize_value(value).type for name, value in operands.items()},
            {n: ir.serde.serialize_tensor(ir.tensor(a)) for n, a in sizes.items() if a is not None},
            opset_imports=[onnx.OperatorSetIdProto(domain="", version=opset)],
        )
    except (*_INVALID, RuntimeError, ValueError, TypeError):
        return  # the node violates its definition
    for value in node.outputs:
        if str(value.name) in found:
            stated = onnx.ValueInfoProto(name=str(value.name), type=found[str(value.name)])
            ir.serde.deserialize_value_info_proto(stated, value)


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
