"""The element types of values that a model does not state, from the operators before them."""

from __future__ import annotations

import onnx
import onnx_ir as ir

_TO = {"Cast": "to", "QuantizeLinear": "output_dtype"}
"""Standard operators with an attribute that names the type of the result."""


def element_type(value: ir.Value, imports: dict[str, int]) -> ir.DataType | None:
    """Return the element type of a value: what is stated, or follows from how it is made.

    The way back is taken as long as operators hand on the type of one operand.

    Args:
        value: of a model.
        imports: domains of the model and their versions.
    """
    while value.dtype is None:
        node = value.producer()
        if node is None or node.domain != "":
            return None
        named = node.attributes.get(_TO.get(node.op_type, ""))
        if named is not None and not named.is_ref() and named.as_int():
            return ir.DataType(named.as_int())
        source = _source(node, value, imports.get("", 0))
        if source is None:
            return None
        value = source
    return value.dtype


def _source(node: ir.Node, value: ir.Value, version: int) -> ir.Value | None:
    """Return an operand that has the type of a result."""
    if not onnx.defs.has(node.op_type, version, ""):
        return None
    schema = onnx.defs.get_schema(node.op_type, version, "")
    place = min(list(node.outputs).index(value), len(schema.outputs) - 1)
    wanted = schema.outputs[place].type_str
    for formal, operand in zip(schema.inputs, node.inputs, strict=False):
        if formal.type_str == wanted and operand is not None:
            return operand
    return None
