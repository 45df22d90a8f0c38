"""Schemas of operators: names, domains, versions, inputs, attributes with defaults, types."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.graph.constants import constant_tensor
from qgraph.graph.scopes import inputs_of
from qgraph.records import dataclass
from qgraph.registry import load_plugins

MICROSOFT = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""

LINEAR_DOMAINS = ("", MICROSOFT)
"""Domains with QuantizeLinear and DequantizeLinear."""

QONNX_DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general", "finn")
"""Domains of the operators of QONNX in files, the current one first."""


class OpKey(NamedTuple):
    """Domain and name of an operator."""

    domain: str
    name: str

    @classmethod
    def of(cls, node: ir.Node) -> OpKey:
        """Return the key of a node's operator."""
        return cls(node.domain, node.op_type)


def versions_of(imports: Mapping[str, int]) -> dict[str, int]:
    """Return opset versions by domain, in which that of the standard operators is empty."""
    return {("" if domain == "ai.onnx" else domain): n for domain, n in imports.items()}


_declared: set[tuple[OpKey, int]] = set()


def is_standard(name: str, version: int, domain: str) -> bool:
    """Return whether the ONNX standard itself has an operator, not a dialect or a plugin."""
    return (domain == "" or domain.startswith("ai.onnx.")) and onnx.defs.has(name, version, domain)


def is_own(name: str, version: int, domain: str) -> bool:
    """Return whether a plugin, or a module of qgraph that is imported, defines an operator."""
    for group in ("operators", "dialects"):
        load_plugins(group)
    key = OpKey(domain, name)
    return any((key, since) in _declared for since in range(1, version + 1))


def _as_is(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Attribute:
    """One attribute of an operator.

    Attributes:
        name: its name, as written.
        default: the value if absent, in the form of the file; None if it is required.
        also: other names that files contain; ``name`` takes precedence if both occur.
        parse: converts the value in the file to the argument of kernels; raises ValueError.
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
            attribute = node.attributes.get(name)
            if attribute is None:
                continue
            if attribute.is_ref():
                raise OperatorError(
                    f"{where(node)}: attribute {name!r} refers to an attribute of the function, "
                    f"expected a value. Inline the function first."
                )
            if attribute.type is not self.kind:
                raise OperatorError(
                    f"{where(node)}: attribute {name!r} is of type {attribute.type.name}, "
                    f"expected {self.kind.name}. Correct the model's exporter."
                )
            return self._parse(node, name, attribute.value)
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


_OWN_DOMAINS = frozenset({"", "qonnx.custom_op.general", "org.openvinotoolkit"})
"""Domains in which qgraph defines operators, all with different names."""


@dataclass(frozen=True)
class OpSchema:
    """Schema of an operator.

    Attributes:
        domains: domains under which files contain it.
        inputs: names of the inputs, data first.
        attributes: its attributes; unknown ones in a file are ignored.
        optional: how many trailing inputs may be absent.
        since: opset version of its domain that introduced it.
        also: other names of the same operator.
        standard: whether onnx defines it already.
    """

    name: str
    domains: tuple[str, ...]
    inputs: tuple[str, ...]
    attributes: tuple[Attribute, ...] = ()
    optional: int = 0
    since: int = 1
    also: tuple[str, ...] = ()
    standard: bool = False

    @cached_property
    def keys(self) -> tuple[OpKey, ...]:
        """All (domain, name) pairs of this operator."""
        names = (self.name, *self.also)
        return tuple(OpKey(domain, name) for domain in self.domains for name in names)

    @cached_property
    def identity(self) -> str:
        """Name that no other operator or version has: ``Quant-1``, ``com.example::Quant-1``."""
        domain = self.domains[0]
        return f"{'' if domain in _OWN_DOMAINS else f'{domain}::'}{self.name}-{self.since}"

    def accepts(self, node: ir.Node) -> bool:
        """Return whether ``node`` is this operator with a fitting number of inputs."""
        return OpKey.of(node) in self.keys and self.takes(len(node.inputs))

    def takes(self, count: int) -> bool:
        """Return whether the operator may have ``count`` inputs."""
        return len(self.inputs) - self.optional <= count <= len(self.inputs)

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

    def declare(self) -> None:
        """Register the operator for :func:`is_own`; onnx does not define it."""
        _declared.update((key, self.since) for key in self.keys)


_LATEST = {"": onnx.defs.onnx_opset_version()}


def element_type(
    value: ir.Value | None, imports: Mapping[str, int] = _LATEST
) -> ir.DataType | None:
    """Return the element type of a value: the stated type, or that implied by its producers.

    Producers are followed as long as operators keep the type of one operand. ``imports`` are the
    domains of the model and their versions. None for an absent value.
    """
    while value is not None and value.dtype is None:
        tensor = constant_tensor(value) if value.const_value is None else value.const_value
        node = value.producer()
        if tensor is not None:
            return tensor.dtype
        if node is None or node.domain not in LINEAR_DOMAINS:
            return None
        if node.op_type == "QuantizeLinear":
            return code_type(node)
        if node.domain != "":
            return None
        named = node.attributes.get("to") if node.op_type == "Cast" else None
        if named is not None and not named.is_ref() and named.as_int():
            return ir.DataType(named.as_int())
        value = like_typed(node, value.index() or 0, imports.get("", 0))
    return None if value is None else value.dtype


def code_type(node: ir.Node) -> ir.DataType | None:
    """Return the type of the codes of a QuantizeLinear or DequantizeLinear.

    It is that of the zero point, of the input, or what the attribute says.
    """
    x, _, zero_point = inputs_of(node, 3)
    dtype = element_type(zero_point)
    if dtype is not None:
        return dtype
    if node.op_type == "DequantizeLinear":
        return element_type(x)
    attribute = node.attributes.get("output_dtype")
    if attribute is not None and not attribute.is_ref() and attribute.as_int():
        return ir.DataType(attribute.as_int())
    return ir.DataType.UINT8 if zero_point is None else None


def like_typed(node: ir.Node, index: int, version: int) -> ir.Value | None:
    """Return an operand that has the type of a result of a standard node; None if none has."""
    operands = zip(_like_result(node.op_type, index, version), node.inputs, strict=False)
    return next((value for is_like, value in operands if is_like and value is not None), None)


@functools.cache
def _like_result(op_type: str, index: int, version: int) -> tuple[bool, ...]:
    """Return which operands of a standard operator have the type of a result."""
    if not onnx.defs.has(op_type, version, ""):
        return ()
    schema = onnx.defs.get_schema(op_type, version, "")
    result = schema.outputs[min(index, len(schema.outputs) - 1)]
    # The results of If, Loop and Scan may have several types.
    operands = schema.inputs if result.is_homogeneous else ()
    return tuple(formal.type_str == result.type_str for formal in operands)


def takes_data(op_type: str, version: int, dtype: ir.DataType) -> bool:
    """Return whether a standard operator takes data of a type in an opset."""
    if not onnx.defs.has(op_type, version, ""):
        return False
    data = onnx.defs.get_schema(op_type, version, "").inputs[0]
    return f"tensor({dtype.name.lower()})" in data.types


def attribute_values(node: ir.Node, version: int) -> dict[str, Hashable]:
    """Return the attributes of a node, with defaults of the imported version for absent ones.

    Equal values compare equal, floats by their bits; graphs are omitted.
    """
    is_known = onnx.defs.has(node.op_type, version, node.domain)
    values = dict(_defaults(node.op_type, version, node.domain)) if is_known else {}
    for name, own in node.attributes.items():
        if own.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            values[name] = _comparable(own)
    return values


@functools.cache
def _defaults(op_type: str, version: int, domain: str) -> Mapping[str, Hashable]:
    """Return the attributes of an operator that have defaults, as :func:`attribute_values` does."""
    schema = onnx.defs.get_schema(op_type, version, domain)
    stated = {name: attribute.default_value for name, attribute in schema.attributes.items()}
    return {
        name: _comparable(ir.serde.deserialize_attribute(default))
        for name, default in stated.items()
        if default.name
    }


def _comparable(attribute: ir.Attr) -> Hashable:
    """Return the value of an attribute so that equal ones compare equal, floats by their bits."""
    if attribute.is_ref():
        return "ref", attribute.ref_attr_name
    value: Any = attribute.value
    match attribute.type:
        case ir.AttributeType.FLOAT:
            return np.float32(value).tobytes()
        case ir.AttributeType.FLOATS:
            return np.asarray(value, np.float32).tobytes()
        case ir.AttributeType.STRING:
            return bytes(value) if isinstance(value, bytes) else str(value)
        case ir.AttributeType.STRINGS:
            return tuple(value)
        case ir.AttributeType.INT:
            return int(value)
        case ir.AttributeType.INTS:
            return tuple(map(int, value))
        case ir.AttributeType.TENSOR:
            return _held(value)
        case ir.AttributeType.TENSORS:
            return tuple(map(_held, value))
    # Of what remains there is no form that two equal ones are sure to share: types and sparse
    # tensors are equal as they are stored, or to nothing but themselves.
    try:
        return bytes(ir.to_proto(attribute).SerializeToString(deterministic=True))
    except (NotImplementedError, TypeError, ValueError):
        return "only", id(attribute)


def _held(tensor: ir.TensorProtocol) -> Hashable:
    """Return type, shape and content of a tensor."""
    held: Hashable
    if tensor.dtype == ir.DataType.STRING:
        held = tuple(tensor.numpy().reshape(-1).tolist())
    else:
        held = tensor.tobytes()
    return str(tensor.dtype), tuple(tensor.shape.numpy()), held
