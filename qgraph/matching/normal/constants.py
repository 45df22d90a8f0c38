"""Constant operands with as few dimensions as broadcasting needs.

    f(x, c)  with c of shape [1, ..., 1, n, ...]  ->  c of shape [n, ...]

Exact to the bit, as long as the data has the dimensions that ``c`` loses.
"""

from __future__ import annotations

import onnx_ir as ir

from qgraph.matching.normal.elementwise import data_of, is_along_axis, is_on_elements
from qgraph.matching.normal.rewriter import Rewriter
from qgraph.matching.normal.sizes import sizes_of


def trim_constants(graph: Rewriter, node: ir.Node) -> bool:
    """Remove leading dimensions of size 1 from the constants of a node, in place."""
    if not is_on_elements(node) or node.domain not in ("", "com.microsoft"):
        return False
    data = data_of(graph, node)
    if graph.known.has(node.outputs[0]) or not data:
        return False
    rank = max(len(sizes_of(value) or ()) for value in data)
    changed = False
    for place, value in enumerate(node.inputs):
        array = graph.array(value)
        if value is None or array is None or not 0 < array.ndim <= rank or array.shape[0] != 1:
            continue
        if is_along_axis(node) and array.size > 1:
            continue
        sizes = array.shape
        while sizes and sizes[0] == 1:
            sizes = sizes[1:]
        node.replace_input_with(place, graph.constant(array.reshape(sizes), str(value.name)))
        changed = True
    return changed
