"""The pass ``raise-microsoft``: quantizers with codes of 16 and 4 bits below opset 21."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qgraph.dialects.dialect import Refusal
from qgraph.errors import where
from qgraph.exactness import Exactness
from qgraph.foreign.kernels import MICROSOFT
from qgraph.graph.folding import constant_expression
from qgraph.model import Model
from qgraph.opsets.versions import QDQ_SINCE, ceiling
from qgraph.report import Report
from qgraph.transforms.base import Transform, option, transform
from qgraph.transforms.lower_microsoft import PAIR, SAME, code_type, moved
from qgraph.transforms.operand_shapes import inferred_operands
from qgraph.transforms.rebuilding import Found, Kept, Rebuild, rebuild
from qgraph.transforms.versions import lower_opset

_THEIRS = ("INT8", "UINT8", "INT16", "UINT16", "INT4", "UINT4", "INT32")
_YOUNG = 21
_LATER = ("block_size", "saturate", "precision")


@transform("raise-microsoft")
class RaiseMicrosoft(Transform):
    """Write QuantizeLinear and DequantizeLinear with codes of 16 and 4 bits in com.microsoft.

    ONNX Runtime has them there below opset 21, which introduced these codes in the standard domain.
    Codes of 8 bits stay, unless ``all`` is given. With ``opset`` the model is lowered to that
    version afterwards, if all nodes exist there with the meaning and the types that they have.
    """

    opset: int | None = option(None, help="version to lower the standard operators to afterwards")
    all: bool = option(False, help="also write codes of 8 bits in com.microsoft")

    preserves: ClassVar[Exactness] = Exactness.BITS

    def apply(self, model: Model, report: Report) -> None:
        """Replace the nodes, then lower the opset."""
        now = model.ir.opset_imports.get("", 0)
        with inferred_operands(model, lambda node: node.op_type in PAIR):
            rebuild(model, list(self._found(model)), Exactness.BITS, report, limit=now)
        if self.opset is not None:
            report.notes += lower_opset(model.ir, ceiling(model.ir, self.opset))

    def _found(self, model: Model) -> Iterator[Found]:
        for node in model.nodes(*PAIR):
            if node.domain or node.op_identifier() in model.ir.functions:
                continue
            yield self._moved(node)

    def _moved(self, node: ir.Node) -> Found:
        codes = code_type(node)
        if codes is None:
            return Refusal(
                node, f"{where(node)}: the type of its codes is not known; run shape inference"
            )
        if codes.name not in _THEIRS:
            return Refusal(node, f"{where(node)}: com.microsoft has no codes of type {codes.name}")
        if not self.all and QDQ_SINCE[codes.name] < _YOUNG:
            return Kept(node, f"codes of type {codes.name} are standard below opset {_YOUNG}")
        later = [name for name in _LATER if _is_set(node, name)]
        if later:
            return Refusal(node, f"{where(node)}: com.microsoft has no attribute {later[0]!r}")
        absent = len(node.inputs) < 3 or node.inputs[2] is None
        zero = None
        if absent and node.op_type == "QuantizeLinear" and codes is not ir.DataType.UINT8:
            scale = constant_expression(node.inputs[1])
            if scale is None:
                return Refusal(
                    node,
                    f"{where(node)}: its output_dtype takes a zero point there, whose shape "
                    "is that of its scale, known at run time only",
                )
            zero = np.zeros(scale.shape, codes.numpy())
        return Rebuild(node, (node,), SAME, moved(node, MICROSOFT, zero))


def _is_set(node: ir.Node, name: str) -> bool:
    attribute = node.attributes.get(name)
    default = 1 if name == "saturate" else 0
    return attribute is not None and (attribute.is_ref() or attribute.as_int() != default)
