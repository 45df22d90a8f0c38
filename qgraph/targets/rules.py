"""Rules about the nodes that a runtime loads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant_expression, constant_tensor, is_constant
from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.opset.rewrites import refused_pairs
from qgraph.graph.schema import MICROSOFT, code_type, element_type, is_standard
from qgraph.graph.scopes import all_nodes, inputs_of, node_name, nodes_of, owners
from qgraph.records import dataclass, field
from qgraph.targets.layer import Granularity, Loads

_PAIR = ("QuantizeLinear", "DequantizeLinear")
_PAIR_DOMAINS = ("", "com.microsoft")
_STANDARD = ("", "ai.onnx")
_OPSET_OF_BLOCKS = 21
"""Which operand gives a result its type is the same in all opsets."""


@dataclass(frozen=True)
class NodeForm:
    """A node as far as runtimes care; nodes of one form differ in their label at most.

    Attributes:
        domain, name: its operator; the standard domain is empty.
        label: the name of the node, or of its first output.
        call: whether it is defined by a function of the model.
        inside: whether it stands in a function of the model.
        declared: whether its domain is imported.
        known: whether onnx defines the operator in the version that is imported.
        codes: ONNX type of the codes of QuantizeLinear and DequantizeLinear.
        scale: ONNX type of their scales, or of what the scales are decoded from.
        granularity, block: granularity of their scales; elements of a block.
        weight: whether the data are constant.
        offset: whether a zero point is, or may be, other than zero.
        bits: width of the codes of MatMulNBits and Quant; 0 if not known.
        readers: operators that read the output, also after a Transpose.
        copied: whether ONNX Runtime copies it, and refuses the type of the copy on some processors;
            see :func:`qgraph.graph.opset.rewrites.refused_decoders`.
        since: opset that the types and attributes need.
        opset: version of the domain.
    """

    domain: str
    name: str
    label: str = field(compare=False)
    call: bool = False
    inside: bool = False
    declared: bool = True
    known: bool = True
    codes: str | None = None
    scale: str | None = None
    granularity: Granularity | None = None
    block: int = 0
    weight: bool = False
    offset: bool = False
    bits: int = 0
    readers: frozenset[str] = frozenset()
    copied: bool = False
    since: int = 0
    opset: int = 0


def node_forms(model: ir.Model) -> Iterator[NodeForm]:
    """Yield the form of each node, those in subgraphs and functions too."""
    copied = set(refused_pairs(model, all_nodes(model)))
    for owner in owners(model):
        inside = isinstance(owner, ir.Function)
        for node in nodes_of(owner):
            imports, call = owner.opset_imports, node.op_identifier() in model.functions
            yield _form(node, imports, call=call, inside=inside, copied=node in copied)


def weight_form(node: ir.Node) -> NodeForm | None:
    """Return the form of a DequantizeLinear of a constant; None of other nodes. No data is read."""
    x = node.inputs[0] if node.op_type == "DequantizeLinear" else None
    tensor = constant_tensor(x)
    if tensor is None:
        return None
    codes, readers = tensor.dtype.name, frozenset(_readers(node))
    return NodeForm(node.domain, node.op_type, "", codes=codes, weight=True, readers=readers)


def _form(node: ir.Node, imports: Mapping[str, int], **where: Any) -> NodeForm:
    domain = "" if node.domain in _STANDARD else node.domain
    version = next((imports[d] for d in (domain, node.domain, "ai.onnx") if d in imports), 0)
    return NodeForm(
        domain,
        node.op_type,
        node_name(node),
        declared=domain in imports or (domain == "" and "ai.onnx" in imports),
        known=version > 0 and is_standard(node.op_type, version, domain),
        opset=version,
        **where,
        **_details(node, domain),
    )


def _details(node: ir.Node, domain: str) -> dict[str, Any]:
    """Return the attributes of the form of a node that only some operators have."""
    if node.op_type in _PAIR:
        return _pair(node, domain)
    if (domain, node.op_type) == (MICROSOFT, "MatMulNBits"):
        return {"bits": node.attributes.get_int("bits", 4) or 4}
    if node.op_type in ("Quant", "IntQuant"):
        x, _, zero, bits = inputs_of(node, 4)
        return {"weight": is_constant(x), "offset": _may_be_set(zero), "bits": _width(bits)}
    return {}


def _pair(node: ir.Node, domain: str) -> dict[str, Any]:
    x, scale, zero_point = inputs_of(node, 3)
    size = node.attributes.get("block_size")  # of any type in domains that are not known
    block = size.as_int() if size is not None and size.type is ir.AttributeType.INT else 0
    granularity = Granularity.TENSOR
    if block:
        granularity = Granularity.BLOCK
    elif _sizes(scale) not in ((), (1,)):
        granularity = Granularity.AXIS
    codes = type_of_codes(node)
    since = max(QDQ_SINCE.get(codes, 0), _OPSET_OF_BLOCKS if block else 0)
    return {
        "codes": codes,
        "scale": _scale_type(scale),
        "granularity": granularity,
        "block": block,
        "weight": is_constant(x),
        "offset": _may_be_set(zero_point),
        "readers": frozenset(_readers(node)),
        "since": 0 if domain else since,
    }


def type_of_codes(node: ir.Node) -> str:
    """Return the ONNX type of the codes of a QuantizeLinear or DequantizeLinear, or UINT8."""
    return (code_type(node) or ir.DataType.UINT8).name


def _scale_type(scale: ir.Value | None) -> str | None:
    if scale is None:
        return None
    source = scale.producer()
    if source is not None and source.op_type == "DequantizeLinear":
        return type_of_codes(source)
    dtype = element_type(scale)
    return None if dtype is None else dtype.name


def _sizes(value: ir.Value | None) -> tuple[object, ...]:
    """Return the shape of a value as the model states it; that of a scalar if it does not."""
    if value is None:
        return ()
    shape = value.shape
    if shape is None and (tensor := constant_tensor(value)) is not None:
        return tuple(tensor.shape)
    return () if shape is None else shape.dims


def _readers(node: ir.Node) -> Iterator[str]:
    for reader in node.outputs[0].consumers():
        yield reader.op_type
        if reader.op_type == "Transpose":
            yield from _readers(reader)


def _width(value: ir.Value | None) -> int:
    array = constant_expression(value)
    if array is None or not array.size or not np.isfinite(array).all():
        return 0
    return int(array.max())


def _may_be_set(zero_point: ir.Value | None) -> bool:
    if zero_point is None:
        return False
    array = constant_expression(zero_point)
    return array is None or bool((array != 0).any())


@dataclass(frozen=True)
class LoadRule:
    """What a runtime makes of some nodes; the conditions that are given must hold together.

    Attributes:
        loads: the verdict.
        reason: why, or what to mind; empty where there is nothing to say.
        source: names of the sources of the profile that it comes from.
        id: name in the profile; empty if nobody asks for the rule.
        domains, names, codes, scales, granularities, blocks, bits: what the node has one of.
        readers: operators one of which reads the output.
        weight, offset, copied, call: as in :class:`qgraph.targets.rules.NodeForm`.
        known, declared: the same.
    """

    loads: Loads
    reason: str = ""
    source: tuple[str, ...] = ()
    id: str = ""
    domains: frozenset[str] | None = None
    names: frozenset[str] | None = None
    codes: frozenset[str] | None = None
    scales: frozenset[str] | None = None
    granularities: frozenset[Granularity] | None = None
    blocks: frozenset[int] | None = None
    bits: frozenset[int] | None = None
    readers: frozenset[str] | None = None
    weight: bool | None = None
    offset: bool | None = None
    copied: bool | None = None
    call: bool | None = None
    known: bool | None = None
    declared: bool | None = None

    def fits(self, form: NodeForm) -> bool:
        """Return whether the rule speaks of such a node."""
        if self.names is not None and form.name not in self.names:
            return False  # of most rules, and asked first for speed
        if self.names is not None and form.name in _PAIR and form.domain not in _PAIR_DOMAINS:
            return False  # another operator of this name
        several = (
            (self.domains, form.domain),
            (self.codes, form.codes),
            (self.scales, form.scale),
            (self.granularities, form.granularity),
            (self.blocks, form.block),
            (self.bits, form.bits),
        )
        if self.readers is not None and self.readers.isdisjoint(form.readers):
            return False
        single = (
            (self.weight, form.weight),
            (self.offset, form.offset),
            (self.copied, form.copied),
            (self.call, form.call),
            (self.known, form.known),
            (self.declared, form.declared),
        )
        return all(wanted is None or actual in wanted for wanted, actual in several) and all(
            wanted is None or actual is wanted for wanted, actual in single
        )
