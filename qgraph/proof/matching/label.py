"""Label nodes so that nodes with one label compute equal results from equal operands."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from qgraph.errors import OperatorError
from qgraph.graph.inference.walk import RESHAPING
from qgraph.graph.interface import stated_shape
from qgraph.graph.opset.history import is_known
from qgraph.graph.opset.versions import OLDEST, changes_of
from qgraph.graph.schema import attribute_values
from qgraph.ops.dispatch import Imports
from qgraph.ops.known_values import is_random
from qgraph.ops.operator import operator_of

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
    for one in ours:
        for other in theirs:
            if one.label == other.label and len(one.operands) == len(other.operands):
                return one, other
    return None


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
    if node.op_type == "Dropout":
        unmasked = all(not value.name for value in node.outputs[1:])
        return unmasked and not is_random(node, imports)
    if node.op_type == "Cast" and node.inputs[0] is not None:
        dtype = node.inputs[0].dtype
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
