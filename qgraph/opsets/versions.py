"""Operator set versions: facts, the declaration of domains, and raising a model's version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import onnx
import onnx_ir as ir
from onnx import defs
from onnx.helper import VERSION_TABLE  # noqa: TID251 - the source of what it tabulates

from qgraph.errors import ModelError, OptionError, UnsupportedError
from qgraph.graph.edit import Editor
from qgraph.graph.inference.walk import infer
from qgraph.graph.scopes import Body, bodies, owners
from qgraph.graph.tensors import slots
from qgraph.opsets import signed_codes
from qgraph.opsets.adapt import LATEST, OLDEST, adapt, asks_for_shapes, stays

CEILING = 21
"""Highest opset that is used unless a higher one is asked for or the model has one: INT4 needs it,
and all runtimes that read quantized models have it."""

QDQ_SINCE: Mapping[str, int] = MappingProxyType(
    {
        "INT8": 10,
        "UINT8": 10,
        "INT32": 10,
        "FLOAT8E4M3FN": 19,
        "FLOAT8E4M3FNUZ": 19,
        "FLOAT8E5M2": 19,
        "FLOAT8E5M2FNUZ": 19,
        "INT16": 21,
        "UINT16": 21,
        "INT4": 21,
        "UINT4": 21,
        "FLOAT4E2M1": 23,
        "INT2": 25,
        "UINT2": 25,
        "FLOAT6E2M3": 28,
        "FLOAT6E3M2": 28,
    }
)
"""Opset since which QuantizeLinear or DequantizeLinear take codes of a type (INT32: only the
latter)."""

IR_SINCE: Mapping[ir.DataType, int] = MappingProxyType(
    {
        ir.DataType.FLOAT8E4M3FN: 9,
        ir.DataType.FLOAT8E4M3FNUZ: 9,
        ir.DataType.FLOAT8E5M2: 9,
        ir.DataType.FLOAT8E5M2FNUZ: 9,
        ir.DataType.INT4: 10,
        ir.DataType.UINT4: 10,
        ir.DataType.FLOAT4E2M1: 11,
        ir.DataType.FLOAT8E8M0: 12,
        ir.DataType.INT2: 13,
        ir.DataType.UINT2: 13,
        ir.DataType.FLOAT6E2M3: 14,
        ir.DataType.FLOAT6E3M2: 14,
    }
)
"""Version of the file format since which there is an element type."""

_IR_OF_FREE_INITIALIZERS = 4
_IR_OF_FUNCTIONS = 8
_INPUTS_OF_TRUNC_2 = 6


def minimum_ir_version(model: ir.Model) -> int:
    """Return the lowest version of the file format that has everything that ``model`` contains."""
    opset = max(owner.opset_imports.get("", 1) for owner in owners(model))
    needed = [min((row[1] for row in VERSION_TABLE if row[2] >= opset), default=onnx.IR_VERSION)]
    if model.functions:
        needed.append(_IR_OF_FUNCTIONS)
    if any(not value.is_graph_input() for value in model.graph.initializers.values()):
        needed.append(_IR_OF_FREE_INITIALIZERS)
    needed += [IR_SINCE.get(dtype, 1) for dtype in _element_types(model)]
    return max(needed)


def declare_domains(model: ir.Model) -> list[str]:
    """Import the domains that nodes use and the model or a function does not; return them.

    Version 1 is imported, of ``qonnx.custom_op.general`` version 2 where a Trunc has the inputs
    that came with it, of the standard domain the lowest that has all its nodes, from 9 upward.

    Returns:
        Each addition as ``domain version``, once.

    Raises:
        ModelError: no version of the standard domain has all its nodes.
    """
    added: dict[str, None] = {}
    for owner in owners(model):
        imports = owner.opset_imports
        nodes = list(ir.traversal.RecursiveGraphIterator(owner))
        for domain in dict.fromkeys(node.domain for node in nodes):
            if domain in imports:
                continue
            known = model.opset_imports.get(domain)
            imports[domain] = known or _version_of(domain, [n for n in nodes if n.domain == domain])
            added[f"{domain or 'ai.onnx'} {imports[domain]}"] = None
    return list(added)


def require(model: ir.Model, version: int) -> bool:
    """Raise the standard opset of ``model`` to ``version``, in place, if it is lower.

    Where an operator has changed on the way, its nodes are rewritten so that they compute what
    they did. Functions are raised too. If one node cannot be rewritten, nothing is changed. Zero
    points that ONNX Runtime would refuse afterwards are left out where they are zero.

    Returns:
        Whether anything was raised.

    Raises:
        UnsupportedError: names the node that cannot be rewritten, or the version that is unknown.
    """
    model.opset_imports.setdefault("", OLDEST)
    if all(owner.opset_imports.get("", version) >= version for owner in owners(model)):
        return False
    if version > LATEST:
        raise UnsupportedError(
            f"Opset {version} is required, but operators are known up to opset {LATEST} only. "
            "Ask for a lower one."
        )
    if _has_changes(model, version):
        _raise(model.clone(), version)
    _raise(model, version)
    model.ir_version = max(model.ir_version or 0, minimum_ir_version(model))
    return True


def _element_types(model: ir.Model) -> set[ir.DataType]:
    types = {slot.tensor.dtype for slot in slots(model)}
    for body in bodies(model):
        values = [*body.inputs, *(value for node in body for value in node.outputs)]
        types.update(value.dtype for value in values if value.dtype is not None)
    return types


def _version_of(domain: str, nodes: Sequence[ir.Node]) -> int:
    if domain == "qonnx.custom_op.general":
        return (
            2
            if any(n.op_type == "Trunc" and len(n.inputs) == _INPUTS_OF_TRUNC_2 for n in nodes)
            else 1
        )
    if domain:
        return 1
    for version in range(OLDEST, LATEST + 1):
        if all(_fits(node, version) for node in nodes):
            return version
    raise ModelError(
        "The model does not import the standard operators, and no opset from "
        f"{OLDEST} to {LATEST} has all of its nodes. Export the model again."
    )


def _fits(node: ir.Node, version: int) -> bool:
    try:
        schema = defs.get_schema(node.op_type, version, "")
    except defs.SchemaError:
        return False
    return (
        not schema.deprecated
        and schema.min_input <= len(node.inputs) <= schema.max_input
        and schema.min_output <= len(node.outputs) <= schema.max_output
        and set(node.attributes) <= set(schema.attributes)
    )


def _has_changes(model: ir.Model, version: int) -> bool:
    """Return whether any node might have to be rewritten, which may fail halfway."""
    return any(
        owner.opset_imports.get("", version) < OLDEST
        or not stays(node, owner.opset_imports.get("", version), version)
        for owner, node in _standard(model)
    )


def _standard(model: ir.Model) -> Iterator[tuple[Body, ir.Node]]:
    """Yield the nodes that are operators of the standard domain, with what holds them."""
    own = set(model.functions)
    for owner in owners(model):
        for node in list(ir.traversal.RecursiveGraphIterator(owner)):
            if not node.domain and node.op_identifier() not in own:
                yield owner, node


def _raise(model: ir.Model, version: int) -> None:
    editor = Editor(model)
    float_type = only_float_type(model)
    found = [(owner.opset_imports.get("", version), node) for owner, node in _standard(model)]
    is_asked = any(asks_for_shapes(node, now, version) for now, node in found)
    known = infer(model) if is_asked else None
    for before, node in found:
        if before < version:
            adapt(node, before, version, editor, float_type, known)
    if model.opset_imports.get("", version) < signed_codes.SINCE <= version:
        signed_codes.leave_out_zero_points(signed_codes.refused_decoders(model))
    for owner in owners(model):
        if owner.opset_imports.get("", version) < version:
            owner.opset_imports[""] = version


def only_float_type(model: ir.Model) -> ir.DataType | None:
    """Return float32 if no other floating type occurs, also as the target of a Cast."""
    casts = {
        ir.DataType(node.attributes["to"].as_int())
        for body in bodies(model)
        for node in body
        if node.op_type == "Cast" and "to" in node.attributes and not node.attributes["to"].is_ref()
    }
    others = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
    return None if others & (_element_types(model) | casts) else ir.DataType.FLOAT


def ceiling(model: ir.Model, asked: int | None = None) -> int:
    """Return the highest opset that may be used for ``model``: ``asked``, or the default.

    The default is 21, or the opset of the model if that is higher. It is 20 for a model of a lower
    opset that ONNX Runtime would refuse at 21: see :mod:`qgraph.opsets.signed_codes`.

    Raises:
        OptionError: what is asked for is no version.
    """
    if asked is None:
        now = model.opset_imports.get("", 0)
        if now < signed_codes.SINCE <= CEILING and not all(
            map(signed_codes.is_symmetric, signed_codes.refused_decoders(model))
        ):
            return max(now, signed_codes.SINCE - 1)
        return max(CEILING, now)
    if asked < 1:
        raise OptionError(
            f"opset={asked} is no version of an operator set, expected 1 or more. Leave it out for "
            "the default."
        )
    return asked
