"""Read a model for the checker: operators, types and shapes, and the model in definitions.

Functions are inlined, constants frozen, and definitions written out. The rules for types and shapes
are those of onnx; the prover has its own (``qgraph/graph/inference``). What a file states of inner
values is not used. A size is a number, the name of a symbolic dimension, or None if unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

import ml_dtypes
import onnx
import onnx_ir as ir
from onnx.shape_inference import InferenceError, infer_node_outputs

from qgraph.errors import EquivalenceError, OperatorError, UnsupportedError
from qgraph.graph.constants import constant, freeze_inputs
from qgraph.graph.inference.walk import infer, open_interface
from qgraph.graph.opset.versions import OLDEST, changes
from qgraph.graph.schema import OpKey, attribute_values, versions_of
from qgraph.graph.scopes import inline_functions, subgraphs
from qgraph.graph.sizes import stated_shape
from qgraph.graph.slices import between
from qgraph.numerics import Array
from qgraph.ops.integer.definitions import with_definitions
from qgraph.ops.known_values import KnownValues, is_random
from qgraph.ops.moved_elements import Sizes, primes_of
from qgraph.ops.operator import OPERATORS, operator_of
from qgraph.reasons import Undecidable

FAILURES = (UnsupportedError, Undecidable, OperatorError, ValueError, TypeError, IndexError)
"""What is raised about models that the checker does not know enough of."""


def need(condition: object, reason: str) -> None:
    """Raise UnsupportedError unless a condition holds, without which nothing is decided."""
    if not condition:
        raise UnsupportedError(reason)


def confirm(statement: object, problem: str) -> None:
    """Raise EquivalenceError unless a statement of a certificate holds."""
    if not statement:
        raise EquivalenceError(problem)


def names(text: str) -> frozenset[str]:
    """Return the names in a text."""
    return frozenset(text.split())


_REVIEWED = 28
"""The opset up to which the standard operators were reviewed for signs of zeros."""

SWAPPABLE = names("Add And BitwiseAnd BitwiseOr Equal Mul Or Xor")
"""Standard operators whose two operands may be swapped."""

QUANTIZERS = names("FakeQuantize IntQuant Quant QuantizeLinear")
_BY_SIGN = frozenset({"Atan2", "BitCast", "Pow", "Reciprocal", "Unique"})
_BY_DIVISION = {"BatchNormalization": 4, "Div": 1, "QuantizeLinear": 1}
_EVEN = names("Abs Cos Cosh Exp Sigmoid Softplus")
_BY_SCALES = frozenset({"QLinearConv", "QLinearMatMul"})


def graphs_of(node: ir.Node) -> list[ir.Graph]:
    """Return the subgraphs of a node."""
    attributes = sorted(node.attributes.items())
    return [graph for _, attribute in attributes for graph in subgraphs(attribute)]


def is_apart(node: ir.Node, imports: Mapping[str, int]) -> bool:
    """Return whether the results depend on more than the operands, or the node has subgraphs."""
    return bool(graphs_of(node)) or is_random(node, imports)


def meaning(node: ir.Node, imports: Mapping[str, int]) -> Hashable:
    """Return a key that is equal for nodes that compute equal results from equal operands.

    Subgraphs are ignored. Versions of an operator that differ only in types or texts have one key.
    """
    present = [value is not None for value in node.inputs]
    while present and not present[-1]:
        present.pop()
    outputs = len(node.outputs) if node.op_type == "Split" else 0
    try:
        operator = operator_of(node)
        if operator is not None and not operator.schema.standard:
            values = sorted(operator.schema.attributes_of(node).items())
            return operator.schema.identity, tuple(present), str(values)
    except OperatorError:
        pass  # compared like an unknown operator
    opset = imports.get(node.domain, 1)
    attributes = attribute_values(node, opset)
    version = opset if node.domain else _version(node.op_type, opset)
    identity = node.domain, node.op_type, node.overload, version
    return (*identity, tuple(present), outputs, tuple(sorted(attributes.items())))


def _version(name: str, opset: int) -> Hashable:
    """Return the last opset that changed the meaning of a standard operator."""
    return ("opset", opset) if opset < OLDEST else max(changes(name, OLDEST, opset), default=0)


def tells_zeros_apart(node: ir.Node, index: int) -> bool:
    """Return whether the sign of a zero in one operand may change the result of a node.

    The prover has its own table on purpose. Operators of other domains count as telling them apart.
    """
    name = node.op_type
    try:
        operator = operator_of(node)
    except OperatorError:
        return True
    if operator is not None and (name == "QuantizeLinear" or not operator.schema.standard):
        return index > 0  # scales, ranges and zero points
    if node.domain or name == "CastLike" or name in _BY_SCALES:
        return True
    if name == "Cast":
        return node.attributes.get_int("to", 1) == ir.DataType.STRING
    if name in _BY_SIGN or _BY_DIVISION.get(name) == index:
        return index == 1 or not forgets_zero_signs(node)
    is_standard = onnx.defs.has(name, "")
    return not is_standard or onnx.defs.get_schema(name).since_version > _REVIEWED


def forgets_zero_signs(node: ir.Node) -> bool:
    """Return whether a node is an even function, so that -0 and +0 give the same result."""
    if node.domain == "" and node.op_type == "Pow":
        exponents = constant(node.inputs[1])
        return exponents is not None and bool(((exponents >= 0) & (exponents % 2 == 0)).all())
    return node.domain == "" and node.op_type in _EVEN


Shape = tuple[int | str | None, ...]
Arrays = Callable[[ir.Value | None], Array | None]
"""Returns the array of a constant; None for other values."""

ON_CODES_OF_ONE_TYPE = names(
    "QLinearAdd QLinearAveragePool QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul "
    "QLinearReduceMean QLinearSigmoid QLinearSoftmax"
)
"""Operators of ONNX Runtime whose result has the type of the first operand."""

_INVALID = InferenceError, onnx.checker.ValidationError, onnx.defs.SchemaError


def infer_results(node: ir.Node, imports: Mapping[str, int], arrays: Arrays) -> None:
    """Write the types and shapes of the results of a node, from those of its operands."""
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


class Reading:
    """A private copy of a model, and its graph with the types and shapes that the checker reads.

    ``defined`` operators are replaced by their definitions in the graph, but not in the model.
    Initializers that are also graph inputs are constants unless ``keep_inputs`` is set; ``frozen``
    is their number.
    """

    def __init__(
        self, model: ir.Model, *, keep_inputs: bool, defined: Collection[OpKey] = ()
    ) -> None:
        OPERATORS.names()  # loads the operators
        copy = model.clone()
        inline_functions(copy)
        self.frozen = 0 if keep_inputs else freeze_inputs(copy)
        self.model = copy
        copy = with_definitions(copy, defined) if defined else copy
        self.graph = copy.graph
        self.imports = versions_of(copy.opset_imports)
        self._values: dict[str, list[ir.Value]] = {}
        self._known = KnownValues(self.imports, has_functions=False)
        self._enter(self.graph)

    def _enter(self, graph: ir.Graph) -> None:
        """Read the types and shapes of all values of a graph."""
        for value in dict.fromkeys((*graph.inputs, *graph.initializers.values())):
            self._values.setdefault(str(value.name), []).append(value)
            if value.const_value is not None and not value.is_graph_input():
                tensor = value.const_value
                write(value, tensor.dtype, tuple(tensor.shape.numpy()))
            elif graph is not self.graph:
                write(value, None, None)
        for node in graph:
            self._known.enter([node])
            infer_results(node, self.imports, self.array)
            for value in node.outputs:
                self._values.setdefault(str(value.name), []).append(value)
            for inner in graphs_of(node):
                self._enter(inner)

    def shapes(self, primes: Sequence[int]) -> tuple[dict[ir.Value, Sizes], dict[str, int]]:
        """Return the inferred shapes, and primes used in place of open sizes of the inputs."""
        interface = open_interface(self.model)
        facts = infer(self.model, interface)
        shapes = {value: fact.shape for value, fact in facts.items() if fact.shape is not None}
        return shapes, primes_of(interface.values(), primes)

    def named(self, name: str) -> list[ir.Value]:
        """Return the values of a name; subgraphs may use the same name."""
        return self._values.get(name, [])

    def has(self, value: ir.Value) -> bool:
        """Return whether a value is constant, and IEEE 754 determines all its bits."""
        return self._known.has(value)

    def array(self, value: ir.Value | None) -> Array | None:
        """Return the array of a constant, computed if necessary; None for other values."""
        return None if value is None else self._known.array(value)

    def sources(self, node: ir.Node) -> list[ir.Value]:
        """Return the operands of a node that are not constant."""
        return list(dict.fromkeys(v for v in node.inputs if v is not None and not self.has(v)))

    def between(self, end: ir.Value, starts: Collection[ir.Value]) -> list[ir.Node] | None:
        """Return the nodes that compute ``end`` from ``starts`` alone, if any, operands first."""
        return between(end, starts, self._operands)

    def _operands(self, value: ir.Value) -> list[ir.Value]:
        node = value.producer()
        if node is None or self.has(value) or is_apart(node, self.imports):
            return []
        return self.sources(node)
