"""What a node of an operator looks like: inputs, attributes with defaults, domains, versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import onnx
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.graph.published import publish


class OpKey(NamedTuple):
    """Domain and name of an operator."""

    domain: str
    name: str

    @classmethod
    def of(cls, node: ir.Node) -> OpKey:
        """Return the key of a node's operator."""
        return cls(node.domain, node.op_type)


def _as_is(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Attribute:
    """One attribute of an operator.

    Attributes:
        name: its name, as written.
        default: the value when absent, as it would stand in the file; None if it is required.
        also: other spellings that files contain; ``name`` wins where both occur.
        parse: turns what stands in the file into what kernels take; raises ValueError.
        kind: type in the file.
    """

    name: str
    default: int | float | str | None = None
    also: tuple[str, ...] = ()
    parse: Callable[[Any], Any] = _as_is
    kind: ir.AttributeType = ir.AttributeType.INT

    def read(self, node: ir.Node) -> Any:
        """Return the parsed value of the attribute of ``node``, the default where it is absent."""
        for name in (self.name, *self.also):
            found = node.attributes.get(name)
            if found is None:
                continue
            if found.is_ref():
                raise OperatorError(
                    f"{where(node)}: attribute {name!r} is left to the caller of the function, "
                    "expected a value. Inline the function first."
                )
            if found.type is not self.kind:
                raise OperatorError(
                    f"{where(node)}: attribute {name!r} is of type {found.type.name}, "
                    f"expected {self.kind.name}. Correct the model's exporter."
                )
            return self._parse(node, name, found.value)
        if self.default is None:
            raise OperatorError(
                f"{where(node)}: attribute {self.name!r} is absent, but {node.op_type} requires "
                "it. Correct the model's exporter."
            )
        return self._parse(node, self.name, self.default)

    def _parse(self, node: ir.Node, name: str, value: Any) -> Any:
        try:
            return self.parse(value)
        except ValueError as error:
            raise OperatorError(f"{where(node)}: attribute {name!r}: {error}") from error


@dataclass(frozen=True)
class OpSchema:
    """The form of an operator.

    Attributes:
        name: operator name.
        domains: domains under which files contain it.
        inputs: names of the inputs, data first.
        attributes: its attributes; unknown ones in a file are ignored.
        optional: how many trailing inputs may be absent.
        since: opset version of its domain that introduced it.
        also: other names with the same meaning.
        standard: whether onnx defines it already.
        spare: how many more inputs the checker lets pass: those that a later version adds, since
            files contain that version under this one's number.
    """

    name: str
    domains: tuple[str, ...]
    inputs: tuple[str, ...]
    attributes: tuple[Attribute, ...] = ()
    optional: int = 0
    since: int = 1
    also: tuple[str, ...] = ()
    standard: bool = False
    spare: int = 0

    @cached_property
    def keys(self) -> tuple[OpKey, ...]:
        """All (domain, name) pairs that mean this operator."""
        names = (self.name, *self.also)
        return tuple(OpKey(domain, name) for domain in self.domains for name in names)

    def accepts(self, node: ir.Node) -> bool:
        """Return whether ``node`` is this operator with a fitting number of inputs."""
        most = len(self.inputs)
        return OpKey.of(node) in self.keys and most - self.optional <= len(node.inputs) <= most

    def values(self, node: ir.Node) -> list[ir.Value | None]:
        """Return the inputs of ``node`` in schema order; None where an optional one is absent.

        Raises:
            OperatorError: an input is missing.
        """
        values: list[ir.Value | None] = list(node.inputs)
        values += [None] * (len(self.inputs) - len(values))
        for name, value in zip(
            self.inputs[: len(self.inputs) - self.optional], values, strict=False
        ):
            if value is None:
                raise OperatorError(
                    f"{where(node)}: input {name!r} is missing, but {self.name} requires "
                    f"({', '.join(self.inputs)}). Correct the model's exporter."
                )
        return values

    def attributes_of(self, node: ir.Node) -> dict[str, Any]:
        """Return all attributes of ``node``, parsed, defaults filled in.

        Raises:
            OperatorError: one is missing or has a value that the operator does not know.
        """
        return {attribute.name: attribute.read(node) for attribute in self.attributes}

    def publish(self) -> None:
        """Enter the operator into ``onnx.defs``: the checker and shape inference then know it.

        The output has the type of the data input and the shape of all inputs broadcast. Under an
        import of a later version the checker finds the entry of the highest version up to it.
        """
        if self.standard:
            return
        for key in self.keys:
            publish(self._onnx_schema(key))

    def _onnx_schema(self, key: OpKey) -> onnx.defs.OpSchema:
        names = [*self.inputs, *(f"more_{i + 1}" for i in range(self.spare))]
        required = len(self.inputs) - self.optional
        numbers = ["tensor(float)", "tensor(float16)", "tensor(bfloat16)", "tensor(double)"]
        integers = [f"tensor({sign}int{bits})" for sign in ("", "u") for bits in (8, 16, 32, 64)]
        parameter = onnx.defs.OpSchema.FormalParameter
        option = onnx.defs.OpSchema.FormalParameterOption
        inputs = [parameter(names[0], "T", "data")]
        inputs += [
            parameter(
                name,
                f"P{place}",
                "parameter, broadcast to the data",
                param_option=option.Single if place < required else option.Optional,
            )
            for place, name in enumerate(names[1:], start=1)
        ]
        schema = onnx.defs.OpSchema(
            key.name,
            key.domain,
            self.since,
            inputs=inputs,
            outputs=[parameter("y", "T", "quantized data")],
            type_constraints=[
                ("T", numbers, "floating-point data"),
                *((f"P{i}", numbers + integers, "a parameter") for i in range(1, len(names))),
            ],
            attributes=[
                onnx.defs.OpSchema.Attribute(
                    name,
                    getattr(onnx.defs.OpSchema.AttrType, attribute.kind.name),
                    "",
                    required=attribute.default is None,
                )
                for attribute in self.attributes
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
    kinds: list[onnx.TypeProto | None] = [context.get_input_type(i) for i in range(count)]
    given = [kind.tensor_type for kind in kinds if kind is not None]
    if all(kind.HasField("shape") for kind in given):
        result.tensor_type.shape.SetInParent()
        _broadcast([kind.shape for kind in given], result.tensor_type.shape)
    context.set_output_type(0, result)


def _broadcast(shapes: Sequence[onnx.TensorShapeProto], result: onnx.TensorShapeProto) -> None:
    rank = max(len(shape.dim) for shape in shapes)
    for place in range(-rank, 0):
        dims = [shape.dim[place] for shape in shapes if -place <= len(shape.dim)]
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
