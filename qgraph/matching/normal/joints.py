"""Concat and Pad around functions of single elements.

    Concat(f(a), f(b))   -> f(Concat(a, b))        the same parameters, constant along the axis
    f(Pad(x, v))         -> Pad(f(x), f(v))        f with parameters that are single numbers

Exact to the bit: every element of both sides is one element of the data, or the padding, to which
``f`` was applied once. ``f(v)`` is computed by the kernel of ``f``, whose result IEEE 754
determines; where it is a zero whose sign Min, Max or Relu leave open, values are kept only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import ExecutionError, OperatorError, UnsupportedError
from qgraph.execution.executor import kernel_for
from qgraph.execution.plan import NodeStep
from qgraph.matching.elementwise import is_elementwise
from qgraph.matching.normal.elementwise import aligned_parameter, data_of, is_on_elements
from qgraph.matching.normal.maxima import common_function
from qgraph.matching.normal.rewriter import Rewriter
from qgraph.matching.normal.sizes import sizes_of

Array = npt.NDArray[Any]


def hoist_concat(graph: Rewriter, node: ir.Node) -> bool:
    """Concatenate data of one function instead of its results."""
    if node.domain or node.op_type != "Concat" or "axis" not in node.attributes:
        return False
    parts = [value for value in node.inputs if value is not None]
    inner = [part.producer() for part in parts]
    if len(parts) < 2 or any(n is None or graph.known.has(n.outputs[0]) for n in inner):
        return False
    makers = [maker for maker in inner if maker is not None]
    found = common_function(graph, makers)
    sizes = sizes_of(node.outputs[0])
    if found is None or sizes is None:
        return False
    axis = node.attributes["axis"].as_int() % len(sizes)
    for value in makers[0].inputs[1:]:
        array = graph.array(value)
        if value is None:
            continue
        aligned = None if array is None else aligned_parameter(makers[0], array, len(sizes))
        if aligned is None or aligned.shape[axis] != 1:
            return False
    joined = graph.node(node, "Concat", found, {"axis": axis}, dtype=found[0].dtype, sizes=sizes)
    first = makers[0]
    result = graph.node(
        node,
        first.op_type,
        [joined, *first.inputs[1:]],
        list(first.attributes.values()),
        domain=first.domain,
        of=first,
        dtype=first.outputs[0].dtype,
        sizes=sizes,
    )
    return graph.replace(node.outputs[0], result)


def sink_pad(graph: Rewriter, node: ir.Node) -> bool:
    """Pad the results of a function instead of its data."""
    if not is_on_elements(node) or not is_elementwise(node) or graph.known.has(node.outputs[0]):
        return False
    data = data_of(graph, node)
    if len(data) != 1 or node.inputs[0] is not data[0] or node.inputs.count(data[0]) != 1:
        return False
    pad = data[0].producer()
    if pad is None or (pad.domain, pad.op_type) != ("", "Pad") or pad.inputs[0] is None:
        return False
    if pad.attributes.get_string("mode", "constant") != "constant" or "pads" in pad.attributes:
        return False
    x = pad.inputs[0]
    operands = [*pad.inputs[1:], None, None, None][:3]
    constants = [graph.array(value) for value in operands]
    known = all((a is None) == (v is None) for a, v in zip(constants, operands, strict=True))
    if not known or x.dtype is None or constants[0] is None:
        return False
    value = constants[1] if constants[1] is not None else np.zeros((), x.dtype.numpy())
    arrays = [None if v is None else graph.array(v) for v in node.inputs[1:]]
    if value.size != 1 or any(a is None or a.size != 1 for a in arrays):
        return False
    result = _computed(graph, node, value.reshape(()))
    if result is None or result.size != 1:
        return False
    if (result == 0).all() and node.op_type in ("Clip", "Max", "Min", "Relu"):
        if not graph.may_lose_zero_sign(node.outputs[0]):
            return False
        graph.lose_zero_sign()
    inner = graph.node(
        node,
        node.op_type,
        [x, *node.inputs[1:]],
        list(node.attributes.values()),
        domain=node.domain,
        dtype=node.outputs[0].dtype,
        sizes=sizes_of(x),
    )
    filler = graph.constant(result.reshape(()), "pad_value")
    outer = graph.node(
        node,
        "Pad",
        [inner, operands[0], filler, *operands[2:]],
        list(pad.attributes.values()),
        of=pad,
        dtype=node.outputs[0].dtype,
        sizes=sizes_of(node.outputs[0]),
    )
    return graph.replace(node.outputs[0], outer)


def _computed(graph: Rewriter, node: ir.Node, value: Array) -> Array | None:
    """Return what a node makes of one number; None where that is not determined."""
    if node.op_type == "Pow" or np.isnan(value.astype(np.float64)).any():
        return None
    data = node.inputs[0]
    if data is None:
        return None
    # parameters along an axis are single numbers, so that one dimension is enough
    known: dict[ir.Value, Any] = {data: value.reshape((1,) * max(len(sizes_of(data) or ()), 2))}
    for other in node.inputs[1:]:
        if other is not None:
            known[other] = graph.array(other)
    try:
        with np.errstate(all="ignore"):
            NodeStep(node, kernel_for(node, graph.imports)).run(known, frozenset())
    except (ExecutionError, OperatorError, UnsupportedError, ValueError):
        return None
    return np.asarray(known[node.outputs[0]])
