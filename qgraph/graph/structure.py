"""Check that the nodes of a model have the inputs, outputs and attributes of their operators.

Readers, kernels and passes rely on this check. Values of parameters are not checked.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import onnx
import onnx_ir as ir

from qgraph.errors import ModelError, where
from qgraph.graph.constants import constant_tensor
from qgraph.graph.schema import MICROSOFT, QONNX_DOMAINS
from qgraph.graph.scopes import nodes_of, owners
from qgraph.records import dataclass

_AGAIN = "Correct what wrote the model, or export it again."

_LAST_VERSION = 2**31 - 1
"""Versions of operator sets are read as 32-bit integers."""

_LAST_OF_ONNX = 1000
"""Far above any version of ONNX, which counts them one by one."""

_ONNX = ("", "ai.onnx.ml")
"""Domains whose operators onnx defines; other domains differ between programs."""

_MOST_CALLED = 20_000
_MOST_EXPANSION = 50
"""Maximum number of nodes after inlining: a constant, plus a multiple of the nodes in the file."""

_NO_NUMBERS = frozenset({ir.DataType.STRING, ir.DataType.COMPLEX64, ir.DataType.COMPLEX128})


_FOREIGN = (
    "",
    MICROSOFT,
    *QONNX_DOMAINS,
    "org.openvinotoolkit",
    "com.amd.quark",
    "com.vai.quantize",
    "trt",
)
"""Domains with operators that onnx does not define, and whose attributes are read here."""

_NAMES = {
    ir.AttributeType.INT: """
        K N accuracy_level axis bit_width bits block_size ceil_mode channels_last count_include_pad
        do_rotary gather_axis group has_inf has_infinity has_nan has_subnormal ibits keepdims kernel
        levels narrow narrow_range num_bits num_heads obits opset output_dtype pad_value precision
        quant_type quantize_axis saturate saturation signed sub_block_shift_bits
        sub_block_size to transA transB unidirectional weight_prepacked""",
    ir.AttributeType.FLOAT: "alpha beta epsilon mask_filter_value out_bias out_scale",
    ir.AttributeType.STRING: """
        activation auto_broadcast auto_pad bfp_method data_layout element_dtype""",
    ir.AttributeType.INTS: "dilations kernel_shape kernel_size pad_amount pads strides",
    ir.AttributeType.FLOATS: "activation_params",
}
_KINDS = {
    name: attribute_type for attribute_type, names in _NAMES.items() for name in names.split()
}
"""Types of the attributes that qgraph reads from operators that onnx does not define."""

_QUANTIZERS = ("Quant", "IntQuant", "BipolarQuant", "Trunc", "FloatQuant", "FakeQuantize")

_KINDS_OF = {
    **{(name, "rounding_mode"): ir.AttributeType.STRING for name in _QUANTIZERS},
    ("BFPFixNeuron", "rounding_mode"): ir.AttributeType.INT,
    ("BFPQuantizeDequantize", "rounding_mode"): ir.AttributeType.INT,
    ("Im2Col", "stride"): ir.AttributeType.INTS,
    ("QuantAvgPool2d", "stride"): ir.AttributeType.INT,
}
"""Attributes whose type differs between operators."""

_NAMES_BY_COUNT = {
    2: "QuantizeLinear DequantizeLinear",
    3: "DynamicQuantizeMatMul GatherBlockQuantized MatMulBnb4 MatMulNBits",
    4: """
        MatMulIntegerToFloat QLinearAveragePool QLinearGlobalAveragePool QLinearLeakyRelu
        QLinearSigmoid""",
    5: "QLinearConcat QLinearSoftmax",
    6: "QGemm",
    7: "QLinearAdd QLinearMul",
    9: "QLinearWhere",
}
_COUNTS = {name: count for count, names in _NAMES_BY_COUNT.items() for name in names.split()}
"""Smallest numbers of inputs of these operators; the trailing ones may be absent beyond that."""


@dataclass(frozen=True)
class _Formal:
    """An input of an operator: its name, whether it is required, and the allowed types."""

    name: str
    is_required: bool
    types: frozenset[str]


@dataclass(frozen=True)
class _Form:
    inputs: tuple[_Formal, ...]
    is_variadic: bool
    outputs: int
    attributes: Mapping[str, tuple[ir.AttributeType, bool]]


def check_structure(model: ir.Model) -> None:
    """Refuse a model with a node that violates the schema of its operator.

    Negative sizes, which some exporters write for sizes that they do not know, are not checked:
    :func:`forget_negative_sizes` removes them.

    Raises:
        ModelError: the message names the node, what is there, and what was expected.
    """
    for owner in owners(model):
        for domain, version in owner.opset_imports.items():
            last = _LAST_OF_ONNX if domain in _ONNX else _LAST_VERSION
            if not 0 < version <= last:
                raise ModelError(
                    f"operator set {domain or 'ai.onnx'!r} is imported at version {version}, "
                    f"expected 1 to {last}. {_AGAIN}"
                )
        parameters = owner.attributes if isinstance(owner, ir.Function) else {}
        for node in nodes_of(owner):
            _check_attributes(node, parameters, is_function=isinstance(owner, ir.Function))
    _check_calls(model)
    kinds = {key: _kinds_of_references(function) for key, function in model.functions.items()}
    for owner in owners(model):
        imports = {**model.graph.opset_imports, **owner.opset_imports}
        for node in nodes_of(owner):
            if not node.outputs:
                raise _fault(node, "it has no outputs", "one at least")
            called = model.functions.get(node.op_identifier())
            is_onnx = called is None and node.domain in _ONNX
            version = imports.get(node.domain, 0)
            form = _known_form(node.op_type, node.domain, version) if is_onnx else None
            if called is not None:
                _check_call(node, called, kinds[called.identifier()])
            if form is not None:
                _check_node(node, form)
            else:
                _check_foreign(node)


def forget_negative_sizes(model: ir.Model) -> None:
    """Make negative sizes of all values unknown; some exporters write unknown sizes as -1."""
    for owner in owners(model):
        for value in _values(owner):
            shape = value.shape
            if shape is not None and any(isinstance(size, int) and size < 0 for size in shape):
                value.shape = ir.Shape(
                    None if isinstance(size, int) and size < 0 else size for size in shape
                )


def _values(owner: ir.Graph | ir.Function) -> Iterator[ir.Value]:
    graphs = [owner.graph if isinstance(owner, ir.Function) else owner]
    for node in nodes_of(owner):
        yield from node.outputs
        graphs += [
            a.as_graph()
            for a in node.attributes.values()
            if a.type is ir.AttributeType.GRAPH and not a.is_ref()
        ]
    for graph in graphs:
        yield from graph.inputs


def _fault(node: ir.Node, state: str, expected: str) -> ModelError:
    return ModelError(f"{where(node)}: {state}, expected {expected}. {_AGAIN}")


def _check_attributes(node: ir.Node, declared: Mapping[str, ir.Attr], *, is_function: bool) -> None:
    for name, attribute in node.attributes.data.items():
        if attribute.is_ref():
            if not is_function or attribute.ref_attr_name not in declared:
                raise _fault(
                    node,
                    f"attribute {name!r} refers to the attribute {attribute.ref_attr_name!r} of a "
                    "function",
                    "a value" if not is_function else "an attribute that the function declares",
                )
            if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
                raise _fault(node, f"attribute {name!r} refers to a graph", "the graph itself")
        elif attribute.type is ir.AttributeType.UNDEFINED or attribute.value is None:
            raise _fault(node, f"attribute {name!r} has no type or no value", "both")


def _kinds_of_references(function: ir.Function) -> dict[str, ir.AttributeType]:
    """Return the types of a function's attributes, as its nodes use them."""
    return {
        str(attribute.ref_attr_name): attribute.type
        for node in nodes_of(function)
        for attribute in node.attributes.values()
        if attribute.is_ref()
    }


def _check_call(node: ir.Node, called: ir.Function, kinds: Mapping[str, ir.AttributeType]) -> None:
    for name, attribute in (dict(called.attributes) | dict(node.attributes)).items():
        if attribute.type is not ir.AttributeType.UNDEFINED:  # a default that there is not
            _check_kind(node, attribute, kinds.get(name))
    for what, here, most in (
        ("inputs", node.inputs, called.inputs),
        ("outputs", node.outputs, called.outputs),
    ):
        if len(here) > len(most):
            raise _fault(
                node,
                f"it has {len(here)} {what}",
                f"at most {len(most)}, as function {called.name!r} has",
            )


def _check_node(node: ir.Node, form: _Form) -> None:
    inputs = list(node.inputs)
    if len(inputs) > len(form.inputs) and not form.is_variadic:
        raise _fault(node, f"it has {len(inputs)} inputs", f"at most {len(form.inputs)}")
    if len(node.outputs) > form.outputs:
        raise _fault(node, f"it has {len(node.outputs)} outputs", f"at most {form.outputs}")
    inputs += [None] * (len(form.inputs) - len(inputs))
    for formal, value in zip(form.inputs, inputs, strict=False):
        if value is None and formal.is_required:
            required = sum(formal.is_required for formal in form.inputs)
            raise _fault(
                node, f"input {formal.name!r} is absent", f"{required} inputs that are there"
            )
        dtype = _no_numbers(value)
        if (
            dtype is not None
            and formal.types
            and f"tensor({dtype.name.lower()})" not in formal.types
        ):
            raise _fault(node, f"input {formal.name!r} is of type {dtype.name}", "real numbers")
    for name, (wanted, is_required) in form.attributes.items():
        attribute = node.attributes.data.get(name)
        if attribute is None:
            if is_required:
                raise _fault(node, f"attribute {name!r} is absent", f"one of type {wanted.name}")
        else:
            _check_kind(node, attribute, wanted)


def _check_kind(node: ir.Node, attribute: ir.Attr, wanted: ir.AttributeType | None) -> None:
    """Compare the type of an attribute with the type that readers expect, if any."""
    if wanted is not None and attribute.type is not wanted:
        state = f"attribute {attribute.name!r} is of type {attribute.type.name}"
        raise _fault(node, state, wanted.name)


def _check_foreign(node: ir.Node) -> None:
    """Check the attributes and inputs that qgraph reads from operators of other domains."""
    is_known = node.domain == MICROSOFT and node.op_type in _COUNTS
    if is_known and len(node.inputs) < _COUNTS[node.op_type]:
        count = _COUNTS[node.op_type]
        raise _fault(node, f"it has {len(node.inputs)} inputs", f"{count} at least")
    if is_known or node.op_type in _QUANTIZERS:
        for value in node.inputs:
            if (dtype := _no_numbers(value)) is not None:
                name = "" if value is None else value.name
                raise _fault(node, f"input {name!r} is of type {dtype.name}", "real numbers")
    for name, attribute in node.attributes.data.items():
        if node.domain in _FOREIGN:
            wanted = _KINDS_OF.get((node.op_type, name), _KINDS.get(name))
            _check_kind(node, attribute, wanted)
            if wanted is ir.AttributeType.STRING and isinstance(attribute.value, bytes):
                raise _fault(node, f"attribute {name!r} is no text", "UTF-8")
        if is_known and name == "bits" and not attribute.is_ref():
            bits = attribute.as_int()
            if not 1 <= bits <= 16:
                raise _fault(node, f"its codes have {bits} bits", "1 to 16")


def _no_numbers(value: ir.Value | None) -> ir.DataType | None:
    """Return the element type of a value if it is known and not a real number."""
    tensor = constant_tensor(value)
    dtype = tensor.dtype if tensor is not None else None if value is None else value.dtype
    return dtype if dtype in _NO_NUMBERS else None


@functools.cache
def _known_form(name: str, domain: str, version: int) -> _Form | None:
    if onnx.defs.has(name, version, domain):
        schema = onnx.defs.get_schema(name, version, domain)
    elif onnx.defs.has(name, domain):
        schema = onnx.defs.get_schema(name, domain)
    else:
        return None
    options = onnx.defs.OpSchema.FormalParameterOption
    is_variadic = bool(schema.inputs) and schema.inputs[-1].option == options.Variadic
    inputs = tuple(
        _Formal(
            formal.name,
            index < schema.min_input and formal.option == options.Single,
            frozenset(formal.types),
        )
        for index, formal in enumerate(schema.inputs)
    )
    attributes = _attributes(schema)
    for other in _other_versions(schema):
        # Files contain attributes of other versions, which are read as they are there.
        for name, (dtype, _) in _attributes(other).items():
            attributes.setdefault(name, (dtype, False))
    return _Form(inputs, is_variadic, schema.max_output, attributes)


def _attributes(schema: onnx.defs.OpSchema) -> dict[str, tuple[ir.AttributeType, bool]]:
    return {
        each.name: (ir.AttributeType[str(each.type).rpartition(".")[2]], each.required)
        for each in schema.attributes.values()
    }


def _other_versions(schema: onnx.defs.OpSchema) -> Iterator[onnx.defs.OpSchema]:
    """Yield the other versions of an operator, the latest first."""
    version = onnx.defs.get_schema(schema.name, schema.domain).since_version
    while version > 0 and onnx.defs.has(schema.name, version, schema.domain):
        other = onnx.defs.get_schema(schema.name, version, schema.domain)
        yield other
        version = other.since_version - 1


def _check_calls(model: ir.Model) -> None:
    """Refuse recursive functions, and functions whose inlining would exceed the memory."""
    if not model.functions:
        return
    import networkx as nx

    calls = nx.MultiDiGraph()
    sizes: dict[ir.OperatorIdentifier, int] = {}
    for key, function in model.functions.items():
        calls.add_node(key)
        nodes = list(nodes_of(function))
        sizes[key] = len(nodes)
        keys = (node.op_identifier() for node in nodes)
        calls.add_edges_from((key, called) for called in keys if called in model.functions)
    if not nx.is_directed_acyclic_graph(calls):
        circle = " calls ".join(repr(key[1]) for key, *_ in nx.find_cycle(calls))
        raise ModelError(
            f"functions call each other in a circle: {circle} calls the first, expected none that "
            f"calls itself. {_AGAIN}"
        )
    whole = dict(sizes)
    for key in reversed(list(nx.topological_sort(calls))):
        whole[key] += sum(whole[called] for _, called in calls.out_edges(key))
    nodes = list(nodes_of(model.graph))
    inlined = len(nodes) + sum(whole.get(node.op_identifier(), 0) for node in nodes)
    inlined = max(inlined, *whole.values()) if whole else inlined
    if inlined > _MOST_CALLED + _MOST_EXPANSION * (len(nodes) + sum(sizes.values())):
        raise ModelError(
            f"functions call functions so often that {inlined} nodes would run, from "
            f"{len(nodes) + sum(sizes.values())} in the file; expected fewer. Call them less often."
        )
