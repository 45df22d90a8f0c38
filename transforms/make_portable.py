"""The passes ``make-portable`` and ``strip-functions``: function bodies of quantizers.

A body is the definition of an operator, traced into a function of the model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import build_function

from qgraph.errors import OperatorError
from qgraph.exactness import Exactness
from qgraph.graph.constants import constant
from qgraph.graph.opset import versions as opset
from qgraph.graph.opset.versions import raise_versions, restore_versions
from qgraph.graph.schema import OpKey
from qgraph.graph.scopes import IR_OF_OVERLOADS, PORTABLE, nodes_of, owners
from qgraph.model import Model
from qgraph.ops.operator import Operator, is_defined, operator_of
from qgraph.quantizers.dialects.dialect import try_out
from qgraph.reasons import RUNTIME_FAILS, UNREADABLE
from qgraph.records import dataclass
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.transforms.base import Transform, transform
from qgraph.transforms.drafts.choice import SAME, entry, refused

_IR_OF_DEFAULTS = 9

_LOWEST_OPSET = 11
"""Opset that introduced Round, which most definitions use."""

_OPSET_OF_ORDER = 12
_OPSET_OF_E8M0 = 24

# Powers of two whose products reach from 2**-127, one factor or none of each, up to 2**127.
_HALVINGS = (127, 64, 32, 16, 8, 4, 2, 1)


Functions = dict[ir.OperatorIdentifier, ir.Function]


@transform("make-portable", preserves=Exactness.BITS)
class MakePortable(Transform):
    """Add a function body in standard operators for every quantizer.

    Runtimes without the operators of a dialect execute the bodies.

    1. ``q(x, ...)`` stays ``q(x, ...)``, with a function ``q`` whose body is the definition of the
       operator. There is one function for each operator, version and combination of attributes.
    2. Functions of one operator with several combinations are overloads, which ONNX has since IR
       version 10. ONNX Runtime ignores overloads inside functions, so there an operator can have
       only one combination.
    3. The opset is raised to 11 and the IR version to 9 or 10 if they are lower. The metadata
       ``qgraph.make-portable`` store the old versions, for ``strip-functions``.

    ONNX Runtime computes the bits of the definition with one exception: a FakeQuantize whose output
    range ends at -0 gives +0 there.
    """

    def apply(self, model: Model, report: Report) -> None:
        """Read every quantizer, raise the versions once, and write the functions."""
        added = opset.declare_domains(model.ir)
        if added:
            report.notes.append(f"declared operator sets: {', '.join(added)}")
        old, calls = _take_back(model)
        groups: dict[_Key, list[_QuantizerCall]] = {}
        for call in _quantizers(model.ir):
            if isinstance(call, SiteReport):
                report.sites.append(call)
            else:
                groups.setdefault(call.key, []).append(call)
        names = _overloads(groups, model.ir)
        if names:
            lowest_ir = IR_OF_OVERLOADS if any(names.values()) else _IR_OF_DEFAULTS
            report.notes += raise_versions(model.ir, _LOWEST_OPSET, lowest_ir, PORTABLE)
        for key, members in groups.items():
            name = names.get(key)
            nodes = [call.node for call in members if not (call.nested and name)]
            if name is not None:
                is_new = _write(model.ir, key, name, nodes, old)
                for node in nodes:
                    node.overload = name
                    if not is_new and calls.get(node) == name:
                        reason = "it already has a function"
                        report.sites.append(entry(node, SiteStatus.KEPT, reason))
                        continue
                    form = f"function {node.op_type} {name}".strip()
                    changed = entry(node, SiteStatus.CHANGED, spelling=form, verdict=SAME)
                    report.sites.append(changed)
            others = [call.node for call in members if call.nested and name != ""]
            report.sites += [refused(node, RUNTIME_FAILS(_NESTED)) for node in others]
        unused = set(old) - set(model.ir.functions)
        if unused:
            report.notes.append(f"unused functions removed: {len(unused)}")


_NESTED = (
    "it is in a function, where ONNX Runtime ignores overloads; overloads are needed here, "
    "because other nodes of this operator have other attributes or no function; inline functions "
    "first"
)


@dataclass(frozen=True)
class _Key:
    """Properties that are equal for nodes with a common function."""

    domain: str
    name: str
    operator: Operator
    items: tuple[tuple[str, Any], ...]

    @property
    def operation(self) -> OpKey:
        return OpKey(self.domain, self.name)

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.items)

    @property
    def label(self) -> str:
        """The arguments as a name: ``signed1_narrow0_rounding_mode_ROUND``."""
        parts = [
            f"{name}_{value}" if isinstance(value, str) else f"{name}{int(value)}"
            for name, value in self.items
        ]
        if self.operator.schema.since > 1:
            parts.insert(0, f"version{self.operator.schema.since}")
        return "_".join(parts) or "plain"

    @property
    def defaults(self) -> dict[str, ir.Attr]:
        """The attributes with the names and types of the body."""
        return {
            each.name: ir.Attr(
                each.name,
                each.kind,
                (str if each.kind is ir.AttributeType.STRING else int)(self.arguments[each.name]),
            )
            for each in self.operator.schema.attributes
        }


@dataclass(frozen=True)
class _QuantizerCall:
    """A quantizer that needs a function; ``nested``: it is in a function itself."""

    node: ir.Node
    key: _Key
    nested: bool


def _take_back(model: Model) -> tuple[Functions, dict[ir.Node, str]]:
    """Remove the functions that the pass wrote, and their overloads from the nodes that call them.

    Returns:
        The functions by identifier, and the overload that each node named.
    """
    functions = model.ir.functions
    old = {
        key: function for key, function in functions.items() if PORTABLE in function.metadata_props
    }
    for key in old:
        del functions[key]
    calls = {node: node.overload for node in model.nodes() if node.op_identifier() in old}
    for node in calls:
        node.overload = ""
    return old, calls


def _quantizers(model: ir.Model) -> Iterable[_QuantizerCall | SiteReport]:
    for owner in owners(model):
        for node in list(nodes_of(owner)):
            try:
                operator = operator_of(node)
                if operator is None or operator.schema.standard:
                    continue
                if node.op_identifier() in model.functions:
                    yield entry(node, SiteStatus.KEPT, "the model has a function of its own for it")
                    continue
                yield _QuantizerCall(node, _key(node, operator), isinstance(owner, ir.Function))
            except OperatorError as error:
                yield refused(node, UNREADABLE(str(error)))


def _key(node: ir.Node, operator: Operator) -> _Key:
    """Return the key of the function that a node needs; OperatorError if it cannot have one."""
    if node.domain == "":
        raise OperatorError(
            "Runtimes accept no functions in the standard domain. Give the node the domain "
            f"{operator.schema.domains[0]!r}."
        )
    arguments = operator.arguments(node)
    parameters = [constant(value) for value in node.inputs[1:]]
    arrays = [array for array in parameters if array is not None]
    if len(arrays) == len(parameters) and node.inputs[0] is not None:
        try_out(node, node.inputs[0], *arrays)
    return _Key(node.domain, node.op_type, operator, tuple(arguments.items()))


def _overloads(groups: dict[_Key, list[_QuantizerCall]], model: ir.Model) -> dict[_Key, str]:
    """Assign an overload name to each function to write.

    The empty name goes to the function for nodes inside functions, or to the only one of its
    operator, unless another node without overload would call it too.
    """
    mine = {call.node for members in groups.values() for call in members}
    nodes = (n for owner in owners(model) for n in nodes_of(owner))
    strangers = {OpKey.of(node) for node in nodes if not node.overload and node not in mine}
    names = {}
    taken = set(model.functions)
    for key, members in groups.items():
        rivals = [other for other in groups if other.operation == key.operation]
        inside = [other for other in rivals if any(call.nested for call in groups[other])]
        plain = (inside or rivals) == [key] and key.operation not in strangers
        if not plain and all(call.nested for call in members):
            continue
        name = stem = "" if plain else key.label
        number = 1
        while (*key.operation, name) in taken:
            name, number = f"{stem}_{number}", number + 1
        taken.add((*key.operation, name))
        names[key] = name
    return names


def _write(
    model: ir.Model, key: _Key, overload: str, nodes: Iterable[ir.Node], old: Functions
) -> bool:
    """Add the function for ``key`` to the model; return whether the function is new."""
    attributes = dict(key.defaults)
    for node in nodes:
        for name, attribute in node.attributes.items():
            attributes.setdefault(name, attribute)
    identifier = (*key.operation, overload)
    function = old.get(identifier)
    is_new = function is None or dict(function.attributes) != attributes
    if function is None or is_new:
        function = _body(key, model.opset_imports[""], overload, attributes)
    model.functions[identifier] = function
    return is_new


def _body(key: _Key, opset: int, overload: str, attributes: dict[str, ir.Attr]) -> ir.Function:
    """Return a function that computes an operator in standard operators of ``opset``.

    The body is the operator's definition after casts of all parameters to float32. Values of the
    attributes become the defaults of the function.
    """
    schema = key.operator.schema

    def trace(op: Any, x: Any, *parameters: Any) -> Any:
        floats = [op.Cast(parameter, to=ir.DataType.FLOAT) for parameter in parameters]
        return key.operator.define(_Portable(op, opset), x, *floats, **key.arguments)

    data, *others = schema.inputs
    inputs = [
        ir.Value(name=data, type=ir.TensorType(ir.DataType.FLOAT)),
        *(ir.Value(name=other) for other in others),
    ]
    domain, name = key.operation
    traced = build_function(trace, inputs, domain=domain, name=name, opset_imports={"": opset})
    traced.outputs[0].name = "y"
    function = ir.Function(domain, name, overload, graph=traced.graph, attributes=attributes)
    arguments = ", ".join(f"{argument}={value}" for argument, value in key.items)
    function.doc_string = f"{schema.name}, version {schema.since}: {arguments}"
    function.metadata_props[PORTABLE] = "function"
    return function


class _Portable:
    """Writes primitives as other operators if a runtime lacks or changes them at an opset.

    Args:
        op: onnxscript's builder of the body.
    """

    def __init__(self, op: Any, opset: int) -> None:
        self._op = op
        self._opset = opset
        self._constants: dict[bytes, Any] = {}
        self._power: Any = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return functools.partial(self._call, name)

    def _call(self, name: str, *operands: Any, **attributes: Any) -> Any:
        return getattr(self._op, name)(*map(self._operand, operands), **attributes)

    def _operand(self, operand: Any) -> Any:
        """Return a constant of type float32 for a number.

        The builder would add a CastLike, which exists only since opset 15.
        """
        if isinstance(operand, ir.Value):
            return operand
        number = np.float32(operand)
        bits = number.tobytes()
        if bits not in self._constants:
            name = f"constant_{len(self._constants)}"
            self._constants[bits] = self._op.initializer(ir.tensor(number, name=name), name)
        return self._constants[bits]

    def Add(self, a: Any, b: Any) -> Any:  # noqa: N802 - an ONNX operator
        """Write a + b as b - (-a), the same bits, unless b is a number.

        ONNX Runtime drops the Add of a parameter that is zero, so that -0 + 0 would be -0.
        """
        if not isinstance(b, ir.Value):
            return self._call("Add", a, b)
        return self._call("Sub", b, self._call("Neg", a))

    def GreaterOrEqual(self, a: Any, b: Any) -> Any:  # noqa: N802 - an ONNX operator
        """Write two comparisons below the opset of the operator; both are false for NaN."""
        if self._opset >= _OPSET_OF_ORDER:
            return self._call("GreaterOrEqual", a, b)
        return self._call("Or", self._call("Greater", a, b), self._call("Equal", a, b))

    def LessOrEqual(self, a: Any, b: Any) -> Any:  # noqa: N802 - an ONNX operator
        """Write two comparisons, as for GreaterOrEqual."""
        return self.GreaterOrEqual(b, a)

    def Cast(self, v: Any, **attributes: Any) -> Any:  # noqa: N802 - an ONNX operator
        """Find a power of two by halving the range, below the opset that casts to E8M0."""
        if self._opset >= _OPSET_OF_E8M0:
            return self._call("Cast", v, **attributes)
        if attributes["to"] == ir.DataType.FLOAT8E8M0:
            self._power = self._floor_power_of_two(v)
            return self._power
        return v if v is self._power else self._call("Cast", v, **attributes)

    def _floor_power_of_two(self, v: Any) -> Any:
        """Return ``2 ** floor(log2(v))``, at least 2**-127 and at most 2**127, of v >= 0.

        Each comparison and each product is exact. NaN gives 2**127, which affects no result,
        because the caller also computes with the NaN itself.
        """
        power: Any = 2.0**-127
        for exponent in _HALVINGS:
            higher = self._call("Mul", power, 2.0**exponent) if exponent < 127 else 1.0
            power = self._call("Where", self._call("Less", v, higher), power, higher)
        return power


@transform("strip-functions", preserves=Exactness.BITS)
class StripFunctions(Transform):
    """Remove the function bodies that make-portable wrote.

    The model is again what it was before ``make-portable``: nodes name no overload, the IR version
    is restored, and so is the opset if raising it rewrote no node. Functions without
    ``qgraph.make-portable`` in their metadata are kept.

    The preparation that all passes share is not undone: domains of all nodes are imported, and
    initializers are removed from the graph inputs.
    """

    def apply(self, model: Model, report: Report) -> None:
        """Remove the functions, free their nodes of overloads, restore the versions."""
        removed, calls = _take_back(model)
        for node in model.nodes():
            if node in calls:
                report.sites.append(entry(node, SiteStatus.CHANGED, verdict=SAME))
            elif node.op_identifier() in model.ir.functions and is_defined(node):
                reason = "its function is the model's own"
                report.sites.append(entry(node, SiteStatus.KEPT, reason))
        if removed and not calls:
            report.notes.append(f"unused functions removed: {len(removed)}")
        report.notes += restore_versions(model.ir, PORTABLE)
