"""Properties of operators that proofs depend on, and labels of nodes.

is_elementwise   each element of the result follows from one element of each operand
is_move          the results are elements of the first operand
rewritten_sum    two operators are two forms of one sum over real numbers, but not over floats
label            equal for nodes that compute equal results from equal operands
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.graph.inference.walk import RESHAPING
from qgraph.graph.opset.history import is_known
from qgraph.graph.opset.versions import OLDEST, changes_of
from qgraph.graph.schema import attribute_values
from qgraph.graph.scopes import input_of
from qgraph.graph.sizes import stated_shape
from qgraph.numerics import Array
from qgraph.numerics.primitives import NUMPY
from qgraph.ops.dispatch import Imports
from qgraph.ops.known_values import is_random
from qgraph.ops.operator import is_defined, operator_of
from qgraph.records import dataclass

KEEP_ALL = frozenset(
    {"DepthToSpace", "Flatten", "Identity", "Reshape", "SpaceToDepth", "Squeeze", "Transpose"}
    | {"Unsqueeze"}
)
"""Operators whose results are all elements of their first operand."""

_MOVES = KEEP_ALL | {
    *("Expand", "Gather", "GatherElements", "GatherND", "GlobalMaxPool", "MaxPool", "Slice"),
    *("Split", "Tile"),
}
"""Operators whose results are some or all elements of their first operand."""

_OF_TWO_CODES = frozenset({"QLinearAdd", "QLinearMul"})
_OF_ONE_CODE = frozenset({"QLinearLeakyRelu", "QLinearSigmoid"})
"""Operators of com.microsoft that compute each code from one code."""


def is_elementwise(node: ir.Node) -> bool:
    """Return whether a node has a definition over single elements."""
    return (node.domain == "" and node.op_type in NUMPY) or is_defined(node)


def is_move(node: ir.Node) -> bool:
    """Return whether the results of a node are elements of its first operand."""
    return node.domain == "" and node.op_type in _MOVES


def is_moving(node: ir.Node) -> bool:
    """Return whether a node is a Transpose, or changes the shape of its data."""
    return node.domain == "" and (node.op_type in RESHAPING or node.op_type == "Transpose")


def is_reshape(node: ir.Node) -> bool:
    """Return whether a node is a Reshape to a shape that is an input."""
    return node.domain == "" and node.op_type == "Reshape" and len(node.inputs) == 2


def operands(value: ir.Value, is_known: Callable[[ir.Value], bool]) -> list[ir.Value]:
    """Return the operands that are not constant of the elementwise operator of ``value``.

    A Reshape to a constant shape counts as elementwise. The list is empty for results of other
    operators.
    """
    node = value.producer()
    if node is None or is_known(value):
        return []
    if is_reshape(node):
        data, shape = node.inputs[:2]
        return [data] if data is not None and shape is not None and is_known(shape) else []
    used = _computed_operands(node, is_known)
    if node.domain == "com.microsoft" and node.op_type in _OF_TWO_CODES:
        return used if len(used) == 1 and used[0] in (node.inputs[0], node.inputs[3]) else []
    coded = node.domain == "com.microsoft" and node.op_type in _OF_ONE_CODE
    if not coded and not is_elementwise(node):
        return []
    if node.domain == "" and node.op_type in NUMPY:
        return [] if node.op_type == "Gather" and node.inputs[0] in used else used
    # the parameters of a quantizer are not data
    return used if used == list(node.inputs[:1]) else []


def joined(value: ir.Value, is_known: Callable[[ir.Value], bool]) -> list[ir.Value]:
    """Return :func:`operands`, also for operators that combine codes of two tensors."""
    node = value.producer()
    if node is None or node.domain != "com.microsoft" or node.op_type not in _OF_TWO_CODES:
        return operands(value, is_known)
    return [] if is_known(value) else _computed_operands(node, is_known)


def _computed_operands(node: ir.Node, is_known: Callable[[ir.Value], bool]) -> list[ir.Value]:
    return list(dict.fromkeys(v for v in node.inputs if v is not None and not is_known(v)))


def check_parameters(node: ir.Node, array_of: Callable[[ir.Value], Array | None]) -> None:
    """Raise OperatorError if a quantizer does not accept the values of its parameters."""
    operator = operator_of(node)
    if operator is None or operator.schema.standard:
        return
    parameters = [None if value is None else array_of(value) for value in node.inputs[1:]]
    try:
        sizes = np.broadcast_shapes(*(array.shape for array in parameters if array is not None))
    except ValueError as error:
        raise OperatorError(f"{where(node)}: its parameters do not broadcast: {error}") from error
    operator.run(node, [np.zeros(sizes, np.float32), *parameters])


_STEPS = frozenset({"Add", "Div", "Mul", "Sub"})
"""Last operators of forms that express one operator as several nodes."""

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})
MEANS = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean"})
_NORMALIZATIONS = frozenset(
    {"BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization"}
    | {"LpNormalization", "RMSNormalization", "SimplifiedLayerNormalization"}
)

_REWRITES = (
    (_PRODUCTS, _PRODUCTS | {"Add", "Mul", "ReduceSum"}),
    (MEANS, MEANS | {"Conv", "Div", "Mul", "ReduceSum"}),
    (_NORMALIZATIONS, _NORMALIZATIONS | _STEPS | {"Conv", "Gemm", "MatMul"}),
    ({"Softmax"}, {"Div", "Mul", "Exp"}),
    ({"LogSoftmax"}, {"Log", "Sub"}),
    ({"ReduceL2", "ReduceLogSumExp", "ReduceSumSquare"}, {"Log", "ReduceSum", "Sqrt"}),
    ({"Attention", "MultiHeadAttention"}, {"MatMul", "Transpose"}),
    ({"Gelu"}, {"Mul"}),
    ({"FusedConv", "FusedGemm", "FusedMatMul"}, _PRODUCTS | _STEPS | {"Relu"}),
)
"""Operators, each with the last operators of its other forms."""

_PAIRS = {
    frozenset(pair)
    for ours, theirs in _REWRITES
    for pair in itertools.product(ours, theirs)
    if len(set(pair)) == 2
}


def rewritten_sum(reference: ir.Node, candidate: ir.Node) -> str | None:
    """Return why two operators cannot be proved equal if they are two forms of one sum.

    None is returned for other operators. An operator with a bias and one without it are two forms.
    Nodes that only move elements may follow.
    """
    first, second = _moved(reference), _moved(candidate)
    names = frozenset({first.op_type, second.op_type})
    biases = {input_of(node, 2) is not None for node in (first, second)}
    if names not in _PAIRS and not (names <= _PRODUCTS and len(names) == 1 and len(biases) == 2):
        return None
    return (
        f"{described(first.outputs[0])} and {described(second.outputs[0])} are two forms of "
        "one sum with different orders of additions or roundings, which ONNX does not define; they "
        "are not equal for all inputs, and only a bound on their difference could be proved"
    )


def _moved(node: ir.Node) -> ir.Node:
    """Return the node before ``node`` that computes its elements, if ``node`` only moves them."""
    while is_move(node) and node.inputs[0] is not None:
        producer = node.inputs[0].producer()
        if producer is None:
            break
        node = producer
    return node


def described(value: ir.Value) -> str:
    """Return the operator that computes a value, with the name of its node, for a message."""
    node = value.producer()
    if node is None:
        return f"value {value.name!r}"
    return f"{node.op_type} {node.name or value.name!r}"


_COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Xor", "Equal", "BitwiseAnd", "BitwiseOr"})
"""Operators whose operands may be swapped without changing a bit of the result."""

_NEUTRAL = {
    "BatchNormalization": frozenset({"spatial"}),
    "Dropout": frozenset({"ratio", "seed"}),
}
"""Attributes that have no effect in inference."""

_WINDOWS = frozenset(
    {"AveragePool", "Conv", "ConvInteger", "ConvTranspose", "LpPool", "MaxPool", "QLinearConv"}
)
_WEIGHT_PLACE = {"Conv": 1, "ConvInteger": 1, "ConvTranspose": 1, "QLinearConv": 3}


def label(node: ir.Node, imports: Imports) -> tuple[Hashable, ...]:
    """Return a label that is equal for nodes that compute equal results from equal operands.

    Absent attributes have their defaults. Versions of an operator with the same meaning have one
    label. Names and subgraphs are ignored.
    """
    own = _own(node)
    if own is not None:
        return own
    version = imports.get(node.domain, 1)
    attributes = attribute_values(node, version)
    if node.domain == "" and version >= OLDEST:
        for name in _NEUTRAL.get(node.op_type, ()):
            attributes.pop(name, None)
    is_norm = node.op_type == "BatchNormalization" and _outputs(node) < 2
    if is_norm and not node.attributes.get_int("training_mode", 0):
        attributes.pop("momentum", None)
    if node.domain == "" and node.op_type in _WINDOWS:
        attributes = _windows(node) | attributes
    key = _version(node, version), _outputs(node), node.overload
    return (node.domain, node.op_type, key, _places(node), tuple(sorted(attributes.items())))


def is_commutative(of: Hashable) -> bool:
    """Return whether the operands of an operator may be swapped, by its label."""
    return isinstance(of, tuple) and of[0] == "" and of[1] in _COMMUTATIVE


def _outputs(node: ir.Node) -> int:
    """Return the number of outputs if the results depend on it, else 0."""
    if node.op_type == "Split":
        return len(node.outputs)
    if node.op_type == "BatchNormalization":
        return sum(bool(value.name) for value in node.outputs)
    return 0


def _places(node: ir.Node) -> tuple[bool, ...]:
    """Return the presence of each operand; absent ones at the end are ignored."""
    present = tuple(value is not None for value in node.inputs)
    while present and not present[-1]:
        present = present[:-1]
    return present


@dataclass(frozen=True)
class OperatorForm:
    """A form of a node: a label, and the operands that determine its results."""

    label: tuple[Hashable, ...]
    operands: tuple[ir.Value, ...]


def forms(node: ir.Node, imports: Imports) -> list[OperatorForm]:
    """Return all forms of a node: as written, and for reshaping nodes by the shape of the result.

    Consecutive Reshapes are one Reshape to the last shape. A Dropout in inference does not depend
    on its ratio.
    """
    used = tuple(value for value in node.inputs if value is not None)
    is_dropout = (node.domain, node.op_type) == ("", "Dropout")
    if is_dropout and imports.get("", 1) >= OLDEST and not is_random(node, imports):
        version = _version(node, imports.get("", 1))
        return [OperatorForm(("", "Dropout", "without training", version), used[:1])]
    listed = [OperatorForm(label(node, imports), used)]
    if (shape := new_shape(node)) is not None:
        listed.append(OperatorForm(("", "Reshape", "to", shape), (_before_reshapes(used[0]),)))
    return listed


def common_form(
    ours: Sequence[OperatorForm], theirs: Sequence[OperatorForm]
) -> tuple[OperatorForm, OperatorForm] | None:
    """Return the forms of two nodes that have one label; None if there are none."""
    alike = (
        (one, other)
        for one in ours
        for other in theirs
        if one.label == other.label and len(one.operands) == len(other.operands)
    )
    return next(alike, None)


def new_shape(node: ir.Node) -> Hashable:
    """Return the shape that a Reshape or similar operator gives, with texts for open sizes."""
    if node.domain != "" or node.op_type not in RESHAPING or not node.outputs:
        return None
    sizes = stated_shape(node.outputs[0])
    return None if sizes is None or None in sizes else sizes


def _before_reshapes(value: ir.Value) -> ir.Value:
    """Return the value before all consecutive Reshapes that end in ``value``."""
    node = value.producer()
    while node is not None and node.domain == "" and node.op_type in RESHAPING:
        if node.inputs[0] is None:
            break
        value = node.inputs[0]
        node = value.producer()
    return value


def keeps_shape(node: ir.Node) -> bool:
    """Return whether a Reshape or similar operator keeps the shape of its data."""
    shape = new_shape(node)
    data = node.inputs[0] if shape is not None and node.inputs else None
    return data is not None and shape is not None and shape == stated_shape(data)


def is_identity(node: ir.Node, imports: Imports) -> bool:
    """Return whether a node returns its first operand, as Dropout or a Cast to the same type do."""
    if node.domain != "":
        return False
    if node.op_type in RESHAPING:
        return keeps_shape(node)
    match node.op_type:
        case "Dropout":
            unmasked = all(not value.name for value in node.outputs[1:])
            return unmasked and not is_random(node, imports)
        case "Cast":
            dtype = None if node.inputs[0] is None else node.inputs[0].dtype
            return dtype is not None and dtype.value == node.attributes.get_int("to", 0)
    return node.op_type == "Identity"


def _own(node: ir.Node) -> tuple[Hashable, ...] | None:
    """Return the label of an operator that qgraph defines, with parsed attributes."""
    try:
        operator = operator_of(node)
        if operator is None or operator.schema.standard:
            return None
        items = operator.schema.attributes_of(node).items()
        values = tuple((name, str(value)) for name, value in sorted(items))
    except OperatorError:
        return None
    return ("", operator.schema.identity, node.overload, _places(node), values)


def _version(node: ir.Node, version: int) -> Hashable:
    """Return the first version with the meaning that the operator has in ``version``."""
    if node.domain != "":
        return version
    if version < OLDEST:
        known = onnx.defs.has(node.op_type, version, "")
        since = onnx.defs.get_schema(node.op_type, version, "").since_version if known else version
        return "since", since
    if not is_known(node.op_type, version):
        return "before", version
    steps = changes_of(node, OLDEST, version)
    return steps[-1] if steps else 0


def _windows(node: ir.Node) -> dict[str, Hashable]:
    """Return the defaults of absent attributes of operators with windows."""
    index = _WEIGHT_PLACE.get(node.op_type)
    kernel: list[int] | None = None
    attribute = node.attributes.get("kernel_shape")
    weight = None if index is None or len(node.inputs) <= index else node.inputs[index]
    if attribute is not None:
        kernel = list(attribute.as_ints())
    elif weight is not None and weight.shape is not None and weight.shape.is_static():
        kernel = [int(size) for size in weight.shape.numpy()[2:]]
    if kernel is None:
        return {}
    ones = (1,) * len(kernel)
    shape, pads = tuple(map(int, kernel)), (0,) * 2 * len(kernel)
    return {"kernel_shape": shape, "strides": ones, "dilations": ones, "pads": pads}
