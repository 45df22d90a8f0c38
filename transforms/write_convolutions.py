"""The pass ``write-convolutions``: matrix products with a scale for each column as convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Verdict
from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Editor, Region
from qgraph.graph.inference.rules import UNKNOWN, Fact
from qgraph.graph.inference.walk import infer
from qgraph.graph.scopes import inputs_of, producer_of
from qgraph.model import Model
from qgraph.numerics import Array
from qgraph.records import dataclass
from qgraph.reports import Report
from qgraph.transforms.base import Transform, transform
from qgraph.transforms.drafts.rebuilding import replace_node

_BOUND = "sums may be rounded in another order; bound the difference with 'qgraph prove --within'"
_Q = "QuantizeLinear"
_BETWEEN = ("Clip", "Relu")
"""Operators between a layer and its quantizer."""
_CODES = frozenset(
    ir.DataType[name] for name in ("INT8", "UINT8", "INT4", "UINT4", "INT2", "UINT2")
)


@transform("write-convolutions", bounded=True)
class WriteConvolutions(Transform):
    """Write matrix products whose weights have a scale for each column as convolutions.

    1. ``Q(Gemm(x, w, b)) -> Q(Reshape(DQ(Q(Conv(Reshape(x), w', b)))))`` for decoded matrices ``x``
       and stored codes ``w``; ``Q`` and ``DQ`` are a quantizer with one scale. ``w'`` are the
       transposed codes, of one place. Likewise MatMul, with a Relu or Clip before ``Q``, and with
       a Clip of codes behind it.

    Some targets accept a scale for each channel for the weights of Conv only. Factors ``alpha`` and
    ``beta``, transposed data, one scale for all weights, and scales of rows or blocks are left
    unchanged. The exact sums do not change; their rounding may.
    """

    def apply(self, model: Model, report: Report) -> None:
        """Rewrite each product that the rule matches, and report it."""
        editor, facts = Editor(model.ir), dict(infer(model.ir))
        for node in list(model.nodes("Gemm", "MatMul")):
            x, columns, behind = node.inputs[0], _columns(node, facts), _behind(node)
            if x is None or columns is None or not behind or facts.get(x, UNKNOWN).rank != 2:
                continue
            if not _is_decoded(x):
                continue
            draft = editor.draft(Region(x, behind[-1].outputs[0], (node, *behind)))
            draft = _convolution(draft, node, columns, behind)
            replace_node(node, draft, Verdict(), report, reason=_BOUND, heirs=("Conv",))


@dataclass(frozen=True, eq=False)
class _Columns:
    """Weights of a product.

    Attributes:
        decoder: the DequantizeLinear.
        codes: ``[columns, rows]`` its codes.
    """

    decoder: ir.Node
    codes: Array


def _columns(node: ir.Node, facts: Mapping[ir.Value, Fact]) -> _Columns | None:
    """Return the weights of a plain product; None if they have no scale for each column."""
    get, bias = node.attributes.get_float, inputs_of(node, 3)[2]
    is_plain = get("alpha", 1.0) == get("beta", 1.0) == 1 and not node.attributes.get_int(
        "transA", 0
    )
    decoder = producer_of(node.inputs[1], "DequantizeLinear")
    if node.domain or not is_plain or decoder is None:
        return None
    stored, scales, points = inputs_of(decoder, 3)
    codes, scale = constant_expression(stored), constant_expression(scales)
    if (
        codes is None
        or scale is None
        or codes.ndim != 2
        or stored is None
        or stored.dtype not in _CODES
    ):
        return None
    is_turned = bool(node.attributes.get_int("transB", 0))
    axis = decoder.attributes.get_int("axis", 1) % 2
    is_of_columns = axis == 1 - is_turned and scale.shape == (codes.shape[axis],)
    is_blocked = decoder.attributes.get_int("block_size", 0)
    point = None if points is None else constant_expression(points)
    if not is_of_columns or scale.size < 2 or is_blocked or (points is not None and point is None):
        return None
    if bias is not None and facts.get(bias, UNKNOWN).shape != scale.shape:
        return None
    return _Columns(decoder, codes if is_turned else codes.T)


def _convolution(
    draft: Draft, node: ir.Node, columns: _Columns, behind: Sequence[ir.Node]
) -> Draft:
    dtype, (_, _, bias) = node.outputs[0].dtype, inputs_of(node, 3)
    codes = np.ascontiguousarray(columns.codes)[:, :, None, None]
    operands = [draft.constant(codes, "codes"), *columns.decoder.inputs[1:]]
    weights = draft.copy(columns.decoder, operands, {"axis": 0})
    data = _reshaped(draft, draft.x, (0, -1, 1, 1), dtype)
    factors = [data, weights] if bias is None else [data, weights, bias]
    result = draft.node("Conv", factors, dtype=dtype)
    for each in behind:
        result = draft.copy(each, [result, *each.inputs[1:]])
    (encode,) = (each for each in behind if each.op_type == _Q)
    result = draft.node("DequantizeLinear", [result, *encode.inputs[1:]], dtype=dtype)
    result = _reshaped(draft, result, (0, -1), dtype)
    return draft.giving(draft.copy(encode, [result, *encode.inputs[1:]]))


def _reshaped(
    draft: Draft, value: ir.Value, sizes: tuple[int, ...], dtype: ir.DataType | None
) -> ir.Value:
    shape = draft.constant(np.array(sizes, np.int64), "shape")
    return draft.node("Reshape", [value, shape], dtype=dtype)


def _is_decoded(value: ir.Value) -> bool:
    """Return whether data are decoded codes, possibly reshaped."""
    while (node := producer_of(value, "Flatten", "Reshape")) and node.inputs[0] is not None:
        value = node.inputs[0]
    return producer_of(value, "DequantizeLinear") is not None


def _behind(node: ir.Node) -> list[ir.Node]:
    """Return the nodes from a result to its codes; empty if no quantizer alone reads it.

    Codes of fewer bits are limited by a Clip.
    """
    nodes: list[ir.Node] = []
    value, is_coded = node.outputs[0], False
    while len(value.uses()) == 1 and not value.is_graph_output():
        ((user, _),) = value.uses()
        if user.domain or user.op_type not in (("Clip",) if is_coded else (*_BETWEEN, _Q)):
            break
        nodes.append(user)
        if user.op_type == _Q:
            scale, is_coded = constant_expression(user.inputs[1]), True
            if scale is None or scale.ndim or len(user.inputs) < len(("x", "scale", "zero")):
                return []
        value = user.outputs[0]
    return nodes if is_coded else []
