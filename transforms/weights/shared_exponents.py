"""Store weights with shared exponents of blocks, as AMD Quark quantizes them, as codes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft
from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.schema import versions_of
from qgraph.model import Model
from qgraph.numerics import Array, Float32
from qgraph.ops.definitions.quantize_linear import dequantize_linear
from qgraph.ops.definitions.quark_blocks import BlockFormat, block_format
from qgraph.ops.dispatch import compute
from qgraph.quantizers.dialects.dialect import Refusal
from qgraph.quantizers.weights.job import codes_of
from qgraph.reports import Report
from qgraph.transforms.drafts.rebuilding import Rebuild, read_all, rebuild

_OPSET_OF_BLOCKS = 21


def fold_blocks(model: Model, exact: Exactness, limit: int, report: Report) -> None:
    """Store constant MXQuantizeDequantize and BFPQuantizeDequantize as codes and scales.

    The codes are the results of the operator, divided by the power of two of their block. The
    results are compared with what DequantizeLinear decodes.

    Args:
        model: is changed.
        exact: minimum level of equality.
        limit: highest opset to use.
        report: gets an entry for each operator.
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
