"""Store what is computed from constants: codes that are used directly, and weights of AMD Quark."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qgraph.errors import QGraphError
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.constants import constant_expression, constant_stream
from qgraph.graph.edit import Draft, Editor
from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.schema import versions_of
from qgraph.graph.scopes import remove_constant, remove_unused
from qgraph.model import Model
from qgraph.numerics import Array, Float32
from qgraph.ops.definitions.quantize_linear import dequantize_linear
from qgraph.ops.definitions.quark import BlockFormat, block_format
from qgraph.ops.dispatch import compute, evaluate
from qgraph.quantizers.dialects.dialect import Refusal
from qgraph.quantizers.sites import site_of
from qgraph.quantizers.weights.job import codes_of
from qgraph.reports import Report, SiteStatus
from qgraph.transforms.drafts.choice import entry
from qgraph.transforms.drafts.rebuilding import Rebuild, read_all, rebuild

_OPSET_OF_BLOCKS = 21


def fold_blocks(model: Model, exact: Exactness, limit: int, report: Report) -> None:
    """Store constant MXQuantizeDequantize and BFPQuantizeDequantize as codes and scales.

    The codes are the results of the operator, divided by the power of two of their block. The
    results are compared with what DequantizeLinear decodes.
    """
    nodes = [node for node in model.nodes() if block_format(node) and _data(node) is not None]
    imports = versions_of(model.ir.opset_imports)

    def read(node: ir.Node) -> Rebuild | Refusal | None:
        form, x = block_format(node), _data(node)
        return None if form is None or x is None else _folded(node, form, x, imports)

    rebuild(model, read_all(model, nodes, read), exact, report, limit=limit)


def _data(node: ir.Node) -> Array | None:
    return constant_expression(node.inputs[0])


def _folded(
    node: ir.Node, form: BlockFormat, x: Array, imports: dict[str, int]
) -> Rebuild | Refusal:
    if x.dtype != np.float32 or not np.isfinite(x).all() or x.size < 2:
        return Refusal(
            node,
            "its weight is not float32, or it has infinities, NaN or one element; leave it: "
            "-p lower-vendor-operators writes the operator in standard ones",
        )
    axis = form.axis % x.ndim
    data = node.inputs[0]
    y = compute(node, imports, {} if data is None else {data: x})
    scale = np.ldexp(form.unit, _exponents(x, axis, form.size))
    rows = np.repeat(scale, form.size, axis).take(range(x.shape[axis]), axis)
    codes = codes_of(y / rows, form.kind)
    attributes = {"axis": axis, "block_size": form.size}
    same = dequantize_linear(codes, scale, None, **attributes, output_dtype=ir.DataType.UNDEFINED)
    verdict = Verdict(_level(y, same), Method.CONSTANT, reason="the codes give other values")
    if verdict.exactness is not Exactness.DIFFERENT:
        zeros = int(np.count_nonzero(y.view(np.uint32) != same.view(np.uint32)))
        verdict = Verdict(verdict.exactness, Method.CONSTANT, zero_sign_inputs=zeros)

    def write(draft: Draft) -> ir.Value:
        operands = [draft.constant(codes, "codes"), draft.constant(scale, "scale")]
        return draft.node("DequantizeLinear", operands, attributes, dtype=ir.DataType.FLOAT)

    return Rebuild(node, (node,), verdict, write, max(_OPSET_OF_BLOCKS, QDQ_SINCE[form.kind]))


def _exponents(x: Array, axis: int, size: int) -> Array:
    """Return the exponent of the largest magnitude of each block, at least -127."""
    starts = np.arange(0, x.shape[axis], size)
    largest = np.maximum.reduceat(np.abs(x), starts, axis)
    exponents = np.where(largest > 0, np.frexp(largest)[1] - 1, -127)
    return np.maximum(exponents, -127)


def _level(y: Float32, same: Float32) -> Exactness:
    if np.array_equal(y.view(np.uint32), same.view(np.uint32)):
        return Exactness.BITS
    return Exactness.VALUES if np.array_equal(y, same) else Exactness.DIFFERENT


_STORED = Verdict(Exactness.BITS, Method.CONSTANT, reason="its codes are stored")


def fold_constant_codes(model: Model, report: Report) -> None:
    """Store the codes of a QuantizeLinear of a constant, if no DequantizeLinear decodes them."""
    editor = Editor(model.ir)
    for node in list(model.nodes("QuantizeLinear")):
        x, y = node.inputs[0], node.outputs[0]
        weight = constant_stream(x)
        is_lone = weight is not None and isinstance(site_of(node), Refusal)
        if x is None or weight is None or not is_lone or y.is_graph_output():
            continue
        try:
            codes = evaluate((node,), x, y, weight.array())
        except QGraphError:
            continue
        report.sites.append(entry(node, SiteStatus.CHANGED, verdict=_STORED))
        store(editor, y, codes)


def store(editor: Editor, y: ir.Value, array: Array) -> None:
    """Replace the result of a node by a constant, and remove nodes without users."""
    node, constant = y.producer(), ir.val("codes", const_value=ir.Tensor(array))
    if node is None:
        return
    y.replace_all_uses_with(editor.place(constant, node, node.graph, y.name or "quantized"))
    for unused in remove_unused([node]):
        remove_constant(unused)
