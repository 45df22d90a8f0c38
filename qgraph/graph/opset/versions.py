"""Opset and IR versions of a model: facts, declaring domains, raising, lowering and restoring.

Most new versions of an operator only add types or change the text;
:mod:`qgraph.graph.opset.history` lists those, :mod:`qgraph.graph.opset.rewrites` the others. A
version in neither table is unknown, and nodes are not raised across it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

import onnx
import onnx_ir as ir
from onnx import defs
from onnx.helper import VERSION_TABLE  # noqa: TID251 - the table of released versions

from qgraph.errors import ModelError, OptionError, UnsupportedError, where
from qgraph.graph.edit import Editor
from qgraph.graph.inference.walk import Facts, infer
from qgraph.graph.opset.change import OpsetChange
from qgraph.graph.opset.history import IR_SINCE, SAME, first_version, is_known, versions_between
from qgraph.graph.opset.rewrites import (
    ADAPTERS,
    CONCERNS,
    SHAPED,
    SIGNED_CODES_SINCE,
    is_symmetric,
    leave_out_zero_points,
    refused_decoders,
)
from qgraph.graph.schema import element_type
from qgraph.graph.scopes import Body, all_nodes, bodies, nodes_of, owners
from qgraph.graph.tensors import slots

OLDEST = 9
"""The lowest opset that can be raised."""

LATEST = 28
"""The highest opset whose operators are in the tables."""


def adapt(
    node: ir.Node,
    source: int,
    target: int,
    editor: Editor,
    float_type: ir.DataType | None,
    facts: Facts | None,
) -> None:
    """Rewrite a standard node of opset ``source`` for a higher opset; see :class:`OpsetChange`.

    Raises:
        UnsupportedError: its computation cannot be expressed in opset ``target``.
    """
    change = OpsetChange(node, source, target, editor, float_type, facts, source)
    if source < OLDEST:
        raise UnsupportedError(
            f"{where(node)}: the opset is {source}; one below {OLDEST} cannot be raised. "
            f"Export the model with opset {target}."
        )
    if not is_known(node.op_type, source):
        first = first_version(node.op_type)
        raise change.refuse(f"the operator came with opset {first} and means nothing before")
    while steps := changes_of(node, change.reached, target):
        change.reached = steps[0]
        rewrite = ADAPTERS.get((node.op_type, steps[0]))
        if rewrite is None:
            raise change.refuse(f"the change by its version {steps[0]} is unknown to qgraph")
        rewrite(change)


def changes(name: str, source: int, target: int) -> list[int]:
    """Return the opsets after ``source`` up to ``target`` that changed the operator ``name``.

    Unknown versions are included; the version that introduced the operator is not.
    """
    same = (first_version(name), *SAME.get(name, ()))
    return [step for step in versions_between(name, source, target) if step not in same]


def changes_of(node: ir.Node, source: int, target: int) -> list[int]:
    """Return the opsets after ``source`` up to ``target`` that may have changed a standard node.

    Changes that only affect other attributes or types than those of ``node`` are not included.
    """
    return [
        step
        for step in changes(node.op_type, source, target)
        if (concerns := CONCERNS.get((node.op_type, step))) is None or concerns(node)
    ]


def stays(node: ir.Node, source: int, target: int) -> bool:
    """Return whether an unchanged standard node computes the same in two opsets."""
    return is_known(node.op_type, source) and not changes_of(node, source, target)


CEILING = 21
"""Default limit of the opset: INT4 needs it, and all runtimes that read quantized models support
it."""

_IR_OF_FREE_INITIALIZERS = 4
_IR_OF_FUNCTIONS = 8
_INPUTS_OF_TRUNC_2 = 6


def raise_ir_version(model: ir.Model) -> None:
    """Raise the IR version as far as the contents of ``model`` need."""
    model.ir_version = max(model.ir_version or 0, minimum_ir_version(model))


def minimum_ir_version(model: ir.Model) -> int:
    """Return the lowest IR version that supports the contents of ``model``."""
    opset = max(owner.opset_imports.get("", 1) for owner in owners(model))
    needed = [min((row[1] for row in VERSION_TABLE if row[2] >= opset), default=onnx.IR_VERSION)]
    if model.functions:
        needed.append(_IR_OF_FUNCTIONS)
    if any(not value.is_graph_input() for value in model.graph.initializers.values()):
        needed.append(_IR_OF_FREE_INITIALIZERS)
    needed += [IR_SINCE.get(dtype, 1) for dtype in _element_types(model)]
    return max(needed)


def declare_domains(model: ir.Model, *, removed: Iterable[str] = ()) -> list[str]:
    """Import the domains that nodes use and the model or a function does not.

    Version 1 is imported, of ``qonnx.custom_op.general`` version 2 where a Trunc has the inputs
    that came with it, of the standard domain the lowest that has all its nodes, from 9 upward. Each
    addition is returned once, as ``domain version``. Imports of ``removed`` domains are deleted if
    no node uses them any more; that of the standard domain stays.

    Raises:
        ModelError: no version of the standard domain has all its nodes.
    """
    added: dict[str, None] = {}
    unused = {*removed} - {""}
    for owner in owners(model):
        imports = owner.opset_imports
        nodes = list(nodes_of(owner))
        for domain in dict.fromkeys([node.domain for node in nodes]):
            unused.discard(domain)
            if domain in imports:
                continue
            version = model.opset_imports.get(domain)
            imports[domain] = version or _version_of(
                domain, [n for n in nodes if n.domain == domain]
            )
            added[f"{domain or 'ai.onnx'} {imports[domain]}"] = None
    for owner in owners(model):
        for domain in unused & set(owner.opset_imports):
            del owner.opset_imports[domain]
    return list(added)


def require(model: ir.Model, version: int) -> bool:
    """Raise the standard opset of ``model`` to ``version``, in place; return whether it was lower.

    Nodes of operators that changed are rewritten so that they compute the same as before. Functions
    are raised too. If one node cannot be rewritten, nothing is changed. Zero points of 0 that ONNX
    Runtime would refuse afterwards are removed.

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
    raise_ir_version(model)
    return True


def _element_types(model: ir.Model) -> set[ir.DataType]:
    types: set[ir.DataType | None] = {slot.tensor.dtype for slot in slots(model)}
    for body in bodies(model):
        types.update(value.dtype for value in body.inputs)
        types.update([value.dtype for node in body for value in node.outputs])
    return {dtype for dtype in types if dtype is not None}


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
    """Return whether raising may have to rewrite a node, which may fail."""
    return any(
        owner.opset_imports.get("", version) < OLDEST
        or not stays(node, owner.opset_imports.get("", version), version)
        for owner, node in _standard(model)
    )


def _standard(model: ir.Model) -> Iterator[tuple[Body, ir.Node]]:
    """Yield the nodes of the standard domain, with the graph or function that contains them."""
    own = set(model.functions)
    for owner in owners(model):
        for node in list(nodes_of(owner)):
            if not node.domain and node.op_identifier() not in own:
                yield owner, node


def _raise(model: ir.Model, version: int) -> None:
    editor = Editor(model)
    float_type = only_float_type(model)
    nodes = [(owner.opset_imports.get("", version), node) for owner, node in _standard(model)]
    is_asked = any(node.op_type in SHAPED and changes_of(node, now, version) for now, node in nodes)
    facts = infer(model) if is_asked else None
    for before, node in nodes:
        if before < version:
            adapt(node, before, version, editor, float_type, facts)
    if model.opset_imports.get("", version) < SIGNED_CODES_SINCE <= version:
        leave_out_zero_points(refused_decoders(all_nodes(model)))
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
    opset that ONNX Runtime would refuse at 21: see :func:`refused_decoders`.

    Raises:
        OptionError: the requested opset cannot be written.
    """
    if asked is None:
        now = model.opset_imports.get("", 0)
        if now < SIGNED_CODES_SINCE <= CEILING and not all(
            map(is_symmetric, refused_decoders(all_nodes(model)))
        ):
            return max(now, SIGNED_CODES_SINCE - 1)
        return max(CEILING, now)
    if not OLDEST <= asked <= LATEST:
        raise OptionError(
            f"opset={asked} is not a version of the standard operators that can be written, "
            f"expected {OLDEST} to {LATEST}. Omit it for the default."
        )
    return asked


def raise_opset(model: ir.Model, needed: Iterable[int]) -> list[str]:
    """Raise the standard opset to the highest of ``needed`` if it is lower; return remarks.

    Functions have their own opset imports, which are raised too.

    Raises:
        UnsupportedError: a node cannot be rewritten for the opset.
    """
    lowest = max(needed, default=0)
    versions = [owner.opset_imports[""] for owner in owners(model) if "" in owner.opset_imports]
    if not lowest or not require(model, lowest):
        return []
    return [f"opset raised from {min(versions, default=0)} to {lowest}"]


def raise_versions(model: ir.Model, lowest_opset: int, lowest_ir: int, key: str) -> list[str]:
    """Raise the opset and the IR version if they are lower; return remarks.

    The metadata of the model under ``key`` store the old IR version, and the old opset if no node
    had to be rewritten.

    Raises:
        UnsupportedError: a node cannot be rewritten for the opset.
    """
    before, ir_before = model.opset_imports.get("", 0), model.ir_version or 0
    as_they_are = _mean_the_same(model, before, lowest_opset)
    was: dict[str, int] = {}
    notes = raise_opset(model, [lowest_opset])
    if notes and as_they_are:
        was["opset"], was["raised_opset"] = before, lowest_opset
    model.ir_version = max(ir_before, lowest_ir, minimum_ir_version(model))
    if model.ir_version > ir_before:
        notes.append(f"IR version raised from {ir_before} to {model.ir_version}")
        was["ir_version"] = ir_before
    if was:
        entered = json.loads(model.metadata_props.get(key, "{}"))
        model.metadata_props[key] = json.dumps(was | entered, sort_keys=True)
    return notes


def restore_versions(model: ir.Model, key: str) -> list[str]:
    """Undo :func:`raise_versions` as far as the nodes allow; return remarks."""
    text = model.metadata_props.pop(key, None)
    if text is None:
        return []
    was: dict[str, int] = json.loads(text)
    notes = []
    before, raised = was.get("opset", 0), was.get("raised_opset", 0)
    if before and model.opset_imports.get("") == raised and _mean_the_same(model, before, raised):
        for owner in owners(model):
            if "" in owner.opset_imports:
                owner.opset_imports[""] = before
        notes.append(f"opset lowered from {raised} to {before}, its original value")
    now = model.ir_version or 0
    model.ir_version = max(was.get("ir_version", now), minimum_ir_version(model))
    if model.ir_version < now:
        notes.append(f"IR version lowered from {now} to {model.ir_version}, its original value")
    return notes


def lower_opset(model: ir.Model, target: int) -> list[str]:
    """Lower the standard opset to ``target`` if all nodes allow it; return remarks.

    All nodes must exist there with the same meaning, attributes and, if known, element types.
    """
    higher = [owner for owner in owners(model) if owner.opset_imports.get("", 0) > target]
    if not higher:
        return []
    now = max(owner.opset_imports[""] for owner in higher)
    for owner in higher:
        for node in nodes_of(owner):
            reason = None if node.domain else _misfit(node, target, owner.opset_imports[""])
            if reason:
                return [f"opset {now} stays, above {target}: {where(node)}: {reason}"]
    for owner in higher:
        owner.opset_imports[""] = target
    return [f"opset lowered from {now} to {target}"]


def _misfit(node: ir.Node, target: int, now: int) -> str | None:
    """Return why a node of opset ``now`` is invalid in opset ``target``; None if it is valid."""
    if not defs.has(node.op_type, target, ""):
        return f"{node.op_type} does not exist in that opset"
    if changes_of(node, target, now):
        return f"{node.op_type} has another meaning in that opset"
    schema = defs.get_schema(node.op_type, target, "")
    for name in node.attributes:
        if name not in schema.attributes:
            return f"its attribute {name!r} does not exist in that opset"
    if not schema.min_input <= len(node.inputs) <= schema.max_input:
        return f"it has {len(node.inputs)} inputs, that opset allows {schema.max_input} at most"
    for values, formals in ((node.inputs, schema.inputs), (node.outputs, schema.outputs)):
        for index, value in enumerate(values):
            formal = formals[min(index, len(formals) - 1)]
            dtype = element_type(value)
            if dtype is not None and f"tensor({dtype.name.lower()})" not in formal.types:
                return f"{formal.name!r} is {dtype.name}, which is not allowed in that opset"
    return None


def _mean_the_same(model: ir.Model, lower: int, higher: int) -> bool:
    """Return whether all nodes, in all bodies, exist with one meaning in both opsets."""
    if len({owner.opset_imports.get("", 0) for owner in owners(model)} - {0}) > 1:
        return False
    nodes = (node for owner in owners(model) for node in nodes_of(owner))
    return all(
        node.domain or (defs.has(node.op_type, lower, "") and not changes_of(node, lower, higher))
        for node in nodes
    )
