"""Enters the operators of the dialects into ``onnx.defs``, for onnx's checker and inference."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import onnx

from qgraph.graph.schema import OpKey, OpSchema
from qgraph.ops.operator import OPERATORS

_NUMBERS = ["tensor(float)", "tensor(float16)", "tensor(bfloat16)", "tensor(double)"]
_INTEGERS = [f"tensor({sign}int{bits})" for sign in ("", "u") for bits in (8, 16, 32, 64)]
_LATER_INPUTS = {"Trunc": 1}
"""Inputs that a later version adds: files contain that version under the number of the first."""

_Formal = onnx.defs.OpSchema.FormalParameter
_Option = onnx.defs.OpSchema.FormalParameterOption


def publish(schemas: Sequence[OpSchema] | None = None) -> None:
    """Enter operators into ``onnx.defs``, all of the dialects by default.

    The output has the type of the data input and the shape of all inputs broadcast. Under an
    import of a later version the checker finds the entry of the highest version up to it.
    """
    # It tabulates all operators when it is imported, and refuses names of several domains.
    importlib.import_module("onnx.reference")
    for schema in [entry.schema for entry in OPERATORS] if schemas is None else schemas:
        for key in () if schema.standard else schema.keys:
            if not onnx.defs.has(key.name, schema.since, key.domain):
                onnx.defs.register_schema(_onnx_schema(schema, key))


def _onnx_schema(own: OpSchema, key: OpKey) -> onnx.defs.OpSchema:
    later = _LATER_INPUTS.get(own.name, 0) if own.since == 1 else 0
    names = [*own.inputs, *(f"more_{i + 1}" for i in range(later))]
    required = len(own.inputs) - own.optional
    inputs = [_Formal(names[0], "T", "data")]
    for index, name in enumerate(names[1:], start=1):
        option = _Option.Single if index < required else _Option.Optional
        inputs.append(_Formal(name, f"P{index}", "a parameter", param_option=option))
    schema = onnx.defs.OpSchema(
        key.name,
        key.domain,
        own.since,
        inputs=inputs,
        outputs=[_Formal("y", "T", "quantized data")],
        type_constraints=[
            ("T", _NUMBERS, "floating-point data"),
            *((f"P{i}", _NUMBERS + _INTEGERS, "a parameter") for i in range(1, len(names))),
        ],
        attributes=[
            onnx.defs.OpSchema.Attribute(
                name,
                getattr(onnx.defs.OpSchema.AttrType, attribute.kind.name),
                "",
                required=attribute.default is None,
            )
            for attribute in own.attributes
            for name in (attribute.name, *attribute.also)
        ],
    )
    schema.set_type_and_shape_inference_function(_infer_broadcast)
    return schema


def _infer_broadcast(context: onnx.shape_inference.InferenceContext) -> None:
    data = context.get_input_type(0)
    if data is None:
        return
    result = onnx.TypeProto()
    result.tensor_type.elem_type = data.tensor_type.elem_type
    count = context.get_num_inputs()
    types: list[onnx.TypeProto | None] = [context.get_input_type(i) for i in range(count)]
    tensors = [each.tensor_type for each in types if each is not None]
    if all(each.HasField("shape") for each in tensors):
        result.tensor_type.shape.SetInParent()
        _broadcast([each.shape for each in tensors], result.tensor_type.shape)
    context.set_output_type(0, result)


def _broadcast(shapes: Sequence[onnx.TensorShapeProto], result: onnx.TensorShapeProto) -> None:
    rank = max(len(shape.dim) for shape in shapes)
    for index in range(-rank, 0):
        dims = [shape.dim[index] for shape in shapes if -index <= len(shape.dim)]
        sizes = {dim.dim_value for dim in dims if dim.HasField("dim_value")} - {1}
        unknown = {dim.dim_param for dim in dims if not dim.HasField("dim_value")}
        dim = result.dim.add()
        if len(sizes) > 1:
            raise onnx.shape_inference.InferenceError(
                f"parameters do not broadcast to the data: sizes {sorted(sizes)} meet in one axis"
            )
        if sizes or not unknown:
            dim.dim_value = sizes.pop() if sizes else 1
        elif len(unknown) == 1 and (name := unknown.pop()):
            dim.dim_param = name
