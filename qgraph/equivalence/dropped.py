"""A model without some of its quantizers of data, as runtimes that leave them out compute it."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from qgraph.graph.constants import constant
from qgraph.graph.folding import constant_expression
from qgraph.model import Model


def without_quantizers(model: Model, bits: int | None) -> tuple[Model, int]:
    """Return a copy without QuantizeLinear and DequantizeLinear of data, and how many there were.

    Args:
        model: the model.
        bits: the width of codes that are left out; None for all.
    """
    copy = model.clone()
    number = 0
    for node in list(copy.ir.graph):
        data = node.inputs[0] if node.inputs else None
        if node.domain != "" or node.op_type != "QuantizeLinear" or data is None:
            continue
        if constant_expression(data) is not None or bits not in (None, _width(node)):
            continue
        for pair in _readers(node.outputs[0]):
            if pair.outputs[0].is_graph_output():
                # an output keeps its name; what else reads it does without the quantizer
                uses = list(pair.outputs[0].uses())
                for reader, place in uses:
                    reader.replace_input_with(place, data)
                number += bool(uses)
                continue
            pair.outputs[0].replace_all_uses_with(data)
            number += 1
    return copy, number


def _readers(codes: ir.Value) -> Iterator[ir.Node]:
    for node in codes.consumers():
        if node.op_type == "DequantizeLinear" and node.inputs[0] is codes:
            yield node
        elif node.op_type in ("Clip", "Identity") and node.inputs[0] is codes:
            yield from _readers(node.outputs[0])


def _width(node: ir.Node) -> int | None:
    codes = node.outputs[0].dtype
    if codes is not None:
        return codes.bitwidth
    zero = constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if zero is not None:
        return ir.DataType.from_numpy(zero.dtype).bitwidth
    kind = node.attributes.get_int("output_dtype", ir.DataType.UINT8.value)
    return ir.DataType(kind or ir.DataType.UINT8.value).bitwidth
