"""The pass ``lower-microsoft``: quantizers of com.microsoft as those of the standard domain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import onnx_ir as ir

from qgraph.dialects.dialect import Refusal
from qgraph.errors import where
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.foreign.kernels import MICROSOFT
from qgraph.graph.edit import Draft, Operand
from qgraph.model import Model
from qgraph.ops.parameters import element_type
from qgraph.opsets.versions import QDQ_SINCE, ceiling
from qgraph.report import Report
from qgraph.transforms.base import Transform, option, transform
from qgraph.transforms.operand_shapes import inferred_operands
from qgraph.transforms.rebuilding import Found, Rebuild, rebuild

PAIR = ("QuantizeLinear", "DequantizeLinear")
SAME = Verdict(Exactness.BITS, Method.CONGRUENCE)
"""Both domains define the operators by the same formula."""

_OPSET_OF_AXES, _OPSET_OF_HALVES, _OPSET_OF_BLOCKS = 13, 19, 21


@transform("lower-microsoft")
class LowerMicrosoft(Transform):
    """Write QuantizeLinear and DequantizeLinear of com.microsoft in the standard domain.

    The opset is raised where codes of 16 or 4 bits, scales along an axis, or 16-bit floats need it.
    """

    opset: int | None = option(
        None, help="highest opset that may be used; default: 21, or the model's own if higher"
    )

    preserves: ClassVar[Exactness] = Exactness.BITS

    def apply(self, model: Model, report: Report) -> None:
        """Find the nodes, raise the opset once as far as needed, replace."""
        limit = ceiling(model.ir, self.opset)
        with inferred_operands(model, lambda node: node.op_type in PAIR):
            rebuild(model, list(self._found(model)), Exactness.BITS, report, limit=limit)

    def _found(self, model: Model) -> Iterator[Found]:
        for node in model.nodes(*(f"{MICROSOFT}::{name}" for name in PAIR)):
            if node.op_identifier() in model.ir.functions:
                continue
            codes = code_type(node)
            if codes is None or codes.name not in QDQ_SINCE:
                kind = "not known; run shape inference first" if codes is None else codes.name
                yield Refusal(node, f"{where(node)}: the type of its codes is {kind}")
                continue
            yield Rebuild(node, (node,), SAME, moved(node, ""), _opset(node, codes))


def moved(node: ir.Node, domain: str, zero_point: Operand | None = None) -> Any:
    """Return what drafts ``node`` in another domain, with a zero point if it has none."""
    attributes: dict[str, Any] = dict(node.attributes)
    if not domain and is_single(node):
        # Per tensor it has no meaning, and below opset 13 there is none.
        attributes.pop("axis", None)
    if domain:
        attributes.pop("output_dtype", None)

    def write(draft: Draft) -> Operand:
        operands: list[Operand | None] = list(node.inputs)
        if zero_point is not None:
            operands = [*operands[:2], zero_point]
        kind = node.outputs[0].dtype
        made = draft.node(node.op_type, operands, domain=domain, dtype=kind)
        producer = made.producer()
        if producer is not None:
            producer.attributes.update(attributes)
        return made

    return write


def code_type(node: ir.Node) -> ir.DataType | None:
    """Return the type of the codes of a QuantizeLinear or DequantizeLinear."""
    x, _, zero_point = [*node.inputs, None, None][:3]
    known = element_type(zero_point)
    if known is not None:
        return known
    if node.op_type == "DequantizeLinear":
        return coded_type(x)
    given = node.attributes.get("output_dtype")
    if given is not None and not given.is_ref() and given.as_int():
        return ir.DataType(given.as_int())
    return ir.DataType.UINT8 if zero_point is None else None


def coded_type(value: ir.Value | None) -> ir.DataType | None:
    """Return the type of a value, also where only the node that quantizes it tells."""
    known = element_type(value)
    node = None if value is None else value.producer()
    if known is not None or node is None:
        return known
    return code_type(node) if node.op_type == "QuantizeLinear" else None


def is_single(node: ir.Node) -> bool:
    """Return whether a node has one scale for the whole tensor, as far as is known."""
    scale = node.inputs[1]
    return scale is not None and scale.shape is not None and len(scale.shape) == 0


def _opset(node: ir.Node, codes: ir.DataType) -> int:
    needed = [QDQ_SINCE[codes.name]]
    if not is_single(node):
        needed.append(_OPSET_OF_AXES)
    data = node.inputs[0] if node.op_type == "QuantizeLinear" else None
    if ir.DataType.FLOAT16 in (element_type(node.inputs[1]), element_type(data)):
        needed.append(_OPSET_OF_HALVES)
    if "block_size" in node.attributes:
        needed.append(_OPSET_OF_BLOCKS)
    return max(needed)
