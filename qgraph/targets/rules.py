"""Why a runtime refuses nodes or runs layers in float: rules about nodes, conditions of kernels.

Each condition that a layer does not meet has a stable id such as ``QG201``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant_expression, constant_tensor, is_constant
from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.opset.rewrites import refused_pairs
from qgraph.graph.schema import MICROSOFT, code_type, element_type, is_standard
from qgraph.graph.scopes import all_nodes, inputs_of, node_name, nodes_of, owners
from qgraph.reasons import Cause
from qgraph.records import dataclass, field
from qgraph.targets.layer import Granularity, Loads

UNMET: Final[dict[str, Cause]] = {}
"""All conditions by id. Ids are never given to another condition."""


def _condition(number: int, name: str, meaning: str, remedy: str) -> Cause:
    cause = Cause(f"QG{number}", name, meaning, remedy)
    UNMET[cause.id] = cause
    return cause


NO_KERNEL = _condition(
    201, "no-kernel", "The target has no integer kernel for such a layer.",
    "Leave the layer in float, or write it in another operator.",
)  # fmt: skip
NOT_RECORDED = _condition(
    202, "not-recorded", "The profile of the target says nothing about such layers.",
    "Run such a layer in the runtime, and state the result in a profile of your own.",
)  # fmt: skip
TYPES = _condition(
    203, "types-of-codes", "No kernel accepts this combination of code types.",
    "deploy stores codes in a type that kernels accept, if they fit into it; -p repack and "
    "-p shift-zero-points do so separately. Otherwise quantize the network again with codes of a "
    "type that 'qgraph targets TARGET' lists. A kernel of INT8 without zero points, as in "
    "TensorRT, accepts signed codes of 8 bits, or unsigned codes of 7 bits.",
)  # fmt: skip
INDIRECT = _condition(
    204, "indirect-pair",
    "Codes of this type must go directly from a QuantizeLinear to a single DequantizeLinear.",
    "Use unsigned codes, remove the operators between, or give each reader its own pair.",
)  # fmt: skip
WRITTEN = _condition(
    205, "form-of-quantizer", "The target does not recognise the quantizer as it is written.",
    "Convert it to a plain pair of QuantizeLinear and DequantizeLinear.",
)  # fmt: skip
LEVELS = _condition(
    206, "levels", "The target does not accept this number of levels.",
    "Write it as QuantizeLinear, Clip and DequantizeLinear.",
)  # fmt: skip
GRANULARITY = _condition(
    207, "granularity", "The kernel accepts no scales of this granularity.",
    "Move scales of channels into the weights, or quantize with other scales.",
)  # fmt: skip
AXIS = _condition(
    208, "axis", "Scales of this operand may not differ along this axis.",
    "Quantize weights along the axis of output channels.",
)  # fmt: skip
BLOCKS = _condition(
    209, "blocks", "The kernel accepts no blocks of this size, or along this axis.",
    "Quantize with blocks that 'qgraph targets TARGET' lists for the kernel.",
)  # fmt: skip
ZERO_POINT = _condition(
    210, "zero-point", "The kernel accepts no such zero points.",
    "Make weights symmetric (-p symmetric-weights), or shift zero points (-p shift-zero-points), "
    "if the codes fit.",
)  # fmt: skip
ZERO_INPUT = _condition(
    211, "zero-point-input", "The zero point must be present, even if it is zero.",
    "Add a zero point of zero to the DequantizeLinear.",
)  # fmt: skip
SCALE = _condition(
    212, "scale", "The kernel does not accept such scales.",
    "Make them constant, positive, powers of two, or of another type, as the reason says.",
)  # fmt: skip
CONSTANT = _condition(
    213, "constant-codes", "The kernel accepts only constant codes, or only codes of data.",
    "Leave such a product in float.",
)  # fmt: skip
BEFORE = _condition(
    214, "before-layer", "An operator between quantizer and layer hides the codes.",
    "Move it before the quantizer, or onto the codes: -p move-quantizers, -p fold-constants.",
)  # fmt: skip
BIAS_TYPE = _condition(
    215, "bias-type", "The kernel does not accept a bias of this type.",
    "Store the bias as int32 codes: -p quantize-bias.",
)  # fmt: skip
BIAS_SCALE = _condition(
    216, "bias-scale", "The scale of the bias is not the product of the scales of the operands.",
    "Quantize the bias anew with that scale: -p quantize-bias.",
)  # fmt: skip
BEHIND = _condition(
    217, "behind-layer",
    "An operator between the layer and its quantizer prevents an integer kernel.",
    "Fold it into weights and bias (-p fold-batch-norm), or into the quantizer "
    "(-p merge-activation). For another operator, such as Sigmoid, quantize the network again "
    "with a quantizer before this operator.",
)  # fmt: skip
NO_QUANTIZER = _condition(
    218, "no-quantizer", "The kernel needs a quantizer after the layer.",
    "Quantize the result, or leave the layer in float.",
)  # fmt: skip
QUANTIZED = _condition(
    219, "quantized-result",
    "The result of this kernel is float, but a quantizer follows the layer.",
    "Remove this quantizer if the network allows it, or leave the layer in float.",
)  # fmt: skip
CONSUMERS = _condition(
    220, "several-readers", "Several operators read the result before it is quantized.",
    "Let all of them read the quantized result, if their quantizers are equal.",
)  # fmt: skip
GRAPH_OUTPUT = _condition(
    221, "graph-output", "The result is an output of the model before it is quantized.",
    "Make the dequantized result the output of the model.",
)  # fmt: skip
ATTRIBUTES = _condition(
    222, "attributes", "The kernel does not accept these attributes, groups or number of axes.",
    "Write the layer in a form that the kernel accepts: -p canonical-operators.",
)  # fmt: skip
PROCESSOR = _condition(
    223, "processor", "The profile lists the kernel for other processors only.",
    "Name the processor on which the model will run: --target NAME@PROCESSOR.",
)  # fmt: skip
SLOWER = _condition(
    224, "slower", "The integer form of the layer was measured to be slower than the float form.",
    "Nothing; or deploy with --tune, which measures both on your machine.",
)  # fmt: skip
PACKED = _condition(
    225, "packed", "The weights are stored in fewer bits than any integer kernel accepts.",
    "Deploy with --prefer speed, which stores them in a type that integer kernels accept.",
)  # fmt: skip
NOT_CODES = _condition(
    226, "operands-not-codes",
    "A kernel of the target computes such a layer, but in the result the quantizer of the data or "
    "of the weights is not a plain pair: there are other operators around it, so the runtime "
    "decodes the operand and computes in float.",
    "The refusals of passes after this reason say what could not be rewritten. Without any, "
    "'qgraph info' lists the quantizers of the result; use whole zero points and one scale for all "
    "data of a layer.",
)  # fmt: skip
SATURATES = _condition(
    239, "products-saturate",
    "The processor adds two neighbouring products in 16 bits, where larger sums saturate, so "
    "results of the integer kernel are wrong.",
    "Quantize weights to 7 bits, or run the model on a processor with VNNI and name it: "
    "--target NAME@x86-64.",
)  # fmt: skip
PREDICTION = _condition(
    227, "not-as-predicted",
    "The profile has a kernel for the layer, but the installed runtime executes it in float.",
    "Compare the version of the runtime with that of the profile ('qgraph targets NAME'), and "
    "state what it does in a profile of your own.",
)  # fmt: skip


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
