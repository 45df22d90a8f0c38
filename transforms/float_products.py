"""The pass ``float-products``: make a runtime multiply data as floats."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.edit import Editor, Operand, Region
from qgraph.graph.opset.versions import only_float_type
from qgraph.inventory.layers import quantized_einsums, quantized_layers
from qgraph.model import Model
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.movement import unmoved
from qgraph.quantizers.quantizer import Affine, Floating, Ranged
from qgraph.quantizers.sites import readable_sites
from qgraph.reasons import FAULTY_SCALE
from qgraph.reports import Report
from qgraph.transforms.base import Transform, option, selects, transform
from qgraph.transforms.drafts.choice import label, refused
from qgraph.transforms.drafts.rebuilding import replace_node

_SAME = Verdict(Exactness.BITS, Method.CONSTANT)
_INFINITE = FAULTY_SCALE(
    "results of the quantizer of its operand may be infinite, and a Max would change them; "
    "export finite scales"
)


@transform("float-products")
class FloatProducts(Transform):
    """Prevent a runtime from multiplying two operands of data as codes.

    1. ``MatMul(x, y) -> MatMul(x, Max(y, lowest))``, where quantizers compute ``x`` and ``y`` from
       data, and ``lowest`` is the lowest finite number of the type; likewise Gemm.
    2. ``Einsum(x, y) -> Einsum(x, Max(y, lowest))`` likewise, also if ``y`` are weights.
    3. ``data=true``: ``Conv(x, w, b) -> Conv(Max(x, lowest), w, b)`` for layers with quantized
       weights ``w``, instead.

    The Max changes nothing, since all results of the quantizers are finite; others are refused.
    Without it, OpenVINO multiplies the codes, and processors without VNNI cut off large sums of
    such products.
    """

    nodes: str = option("*", help="names of operators, such as *attention*|!*MatMul_1")
    data: bool = option(False, help="whether layers with weights get a Max before their data")

    preserves: ClassVar[Exactness] = Exactness.BITS

    def apply(self, model: Model, report: Report) -> None:
        """Insert a Max before the second operand of each product, and report it."""
        editor = Editor(model.ir)
        einsums = [] if self.data else quantized_einsums(model.ir)
        finite = {site.y for site in readable_sites(model.ir) if _is_finite(site)}
        for node in [*_products(model, has_weights=self.data), *einsums]:
            if len(node.inputs) < 2 or not selects(self.nodes, label(node)):
                continue
            operands: list[Operand | None] = list(node.inputs)
            index = 0 if self.data else 1
            y = node.inputs[index]
            if y is None:
                continue
            if unmoved(y) not in finite:
                report.sites.append(refused(node, _INFINITE))
                continue
            dtype = y.dtype or only_float_type(model.ir) or ir.DataType.FLOAT
            lowest = np.asarray(dtype.min, dtype.numpy())
            draft = editor.draft(Region(y, node.outputs[0], (node,)))
            limited = draft.node("Max", [draft.x, draft.constant(lowest, "lowest")], dtype=dtype)
            operands[index] = limited
            draft.giving(draft.copy(node, operands))
            replace_node(node, draft, _SAME, report, heirs=(node.op_type,))


def _is_finite(site: Site) -> bool:
    """Return whether the parameters show that no result of a quantizer is infinite."""
    with np.errstate(all="ignore"):
        match site.quantizer:
            case Affine(lo=lo, hi=hi, to_real=real):
                ends = [(code - real.zero_point) * real.scale for code in (lo, hi)]
            case Ranged(output_low=low, output_high=high):
                ends = [low, high, high - low]
            case Floating(scale=scale, format=kind, saturating=True):
                ends = [np.float32(kind.max_value) * scale]
            case _:
                return False
        dtype = (site.y.dtype or ir.DataType.FLOAT).numpy()
        return all(bool(np.isfinite(end.astype(dtype)).all()) for end in ends)


def _products(model: Model, *, has_weights: bool) -> list[ir.Node]:
    """Return the products of data and weights, or of two operands of data."""
    return [
        layer.node
        for layer in quantized_layers(model.ir)
        if not layer.description.x.is_constant and layer.description.w.is_constant is has_weights
    ]
