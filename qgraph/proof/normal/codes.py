"""Write operators of com.microsoft on codes by their definitions.

    QLinearMul(a, b)
        -> QuantizeLinear((Cast(a) - z_a) * (Cast(b) - z_b) * m + z_y, 1, 0)
           with m = s_a * s_b / s_y
    QLinearAdd(a, b)
        -> QuantizeLinear(fma(a, r_a, fma(b, r_b, z_y - (z_a * r_a + z_b * r_b))), 1, 0)
           with r = s / s_y, where each fma(x, r, t) is Cast(Cast(x) * r + Cast(t)) by float64
    QLinearGlobalAveragePool(x)
        -> QuantizeLinear(ReduceSum(Cast(x) - z_x) * m, 1, z_y)
           with m = s_x / (s_y * n), where the sums of n codes stay below 2**24
    QLinearAveragePool(x)
        -> QuantizeLinear((w_1 + w_2 + ...) / n / s_y + z_y, 1, 0)
           where w_k has the k-th element of each window of DequantizeLinear(x, s_x, z_x)
    QLinearConcat, QLinearWhere
        -> the operator on the results of DequantizeLinear, then QuantizeLinear

Equal bit for bit: products and sums of codes minus their zero points are integers below 2**24,
which float32 represents exactly, in any order of additions. The later operations are those of the
kernel, one by one and in its order. float64 may round a fused sum twice; so a QLinearAdd is written
only if both forms have the same result for every pair of codes.

An operator that occurs equally often in both models is kept: equal operands give equal results.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from qgraph.conditions import SUMS_OF_CODES
from qgraph.graph.schema import MICROSOFT, OpKey
from qgraph.graph.scopes import inputs_of, nodes_of
from qgraph.numerics import Array
from qgraph.numerics.float32 import multiply_add
from qgraph.ops.integer.codes import fused_in_double, ratio, saturated
from qgraph.ops.integer.kernels import code_kernel
from qgraph.ops.integer.sums import CODES, EXACT_IN_FLOAT32
from qgraph.ops.integer.tables import averages_all, counts
from qgraph.ops.kernels.standard import Windows
from qgraph.proof.normal.rewriter import Rewriter, sizes_of

_REAL, _WIDE = ir.DataType.FLOAT, ir.DataType.DOUBLE
_LARGEST = 255
_OPSET = 13
"""First opset in which the operators of the definitions have their current form."""
_MOST = 64
"""Maximum number of elements of a window that are added one by one."""

_ONE = np.float32(1)


def shared_operators(models: Iterable[ir.Model]) -> frozenset[OpKey]:
    """Return the operators of com.microsoft that occur equally often in all models."""
    counts = [
        Counter(OpKey.of(node) for node in nodes_of(model.graph) if node.domain == MICROSOFT)
        for model in models
    ]
    return frozenset(key for key in counts[0] if len({each[key] for each in counts}) == 1)


def write_code_product(graph: Rewriter, node: ir.Node) -> bool:
    """Write a QLinearMul as its definition."""
    a, s_a, z_a, b, s_b, z_b, s_y, z_y = inputs_of(node, 8)
    read = _read(graph, [(a, s_a, z_a), (b, s_b, z_b)], s_y, z_y)
    if read is None:
        return False
    (x, y), (of_x, of_y, of_result), (first, second, last) = read
    m = ratio(of_x, of_y, of_result)
    if not np.isfinite(m):
        return False
    factors = [_whole(graph, node, x, first), _whole(graph, node, y, second)]
    total = graph.like(node, "Mul", factors, _REAL)
    return _encode_shifted(
        graph, node, graph.like(node, "Mul", [total, np.float32(m)], _REAL), last
    )


def write_code_sum(graph: Rewriter, node: ir.Node) -> bool:
    """Write a QLinearAdd as its definition, if the float64 form has the same results."""
    a, s_a, z_a, b, s_b, z_b, s_y, z_y = inputs_of(node, 8)
    read = _read(graph, [(a, s_a, z_a), (b, s_b, z_b)], s_y, z_y)
    if read is None:
        return False
    (x, y), scales, zeros = read
    first, second = (each / scales[2] for each in scales[:2])
    own, other, last = (zero.astype(np.float32) for zero in zeros)
    fixed = last - multiply_add(own, first, other * second)
    if not np.isfinite([first, second, fixed]).all():
        return False
    every = np.arange(_LARGEST + 1).astype(np.uint8).view(zeros[2].dtype)
    arrays = every[:, None], scales[0], zeros[0], every, scales[1], zeros[1], scales[2], zeros[2]
    result = fused_in_double(every[:, None], first, fused_in_double(every, second, fixed))
    if not np.array_equal(code_kernel(node)(*arrays)[0], saturated(result, zeros[2])):
        return False
    right = _write_fused(
        graph, node, y, second, graph.constant(np.asarray(fixed, np.float64), "fixed")
    )
    wide = graph.node(
        node, "Cast", [right], {"to": _WIDE.value}, dtype=_WIDE, sizes=sizes_of(right)
    )
    total = _write_fused(graph, node, x, first, wide, of=node.outputs[0])
    return _encode(graph, node, total, np.zeros((), zeros[2].dtype))


def _write_fused(
    graph: Rewriter,
    node: ir.Node,
    codes: ir.Value,
    factor: Array,
    added: ir.Value,
    of: ir.Value | None = None,
) -> ir.Value:
    """Return ``codes * factor + added`` by float64, of the sizes of ``of`` or of the codes."""
    own, sizes = sizes_of(codes), sizes_of(codes if of is None else of)
    wide = graph.node(node, "Cast", [codes], {"to": _WIDE.value}, dtype=_WIDE, sizes=own)
    number = graph.constant(np.asarray(factor, np.float64), "ratio")
    product = graph.node(node, "Mul", [wide, number], dtype=_WIDE, sizes=own)
    total = graph.node(node, "Add", [product, added], dtype=_WIDE, sizes=sizes)
    return graph.node(node, "Cast", [total], {"to": _REAL.value}, dtype=_REAL, sizes=sizes)


def write_code_average(graph: Rewriter, node: ir.Node) -> bool:
    """Write a QLinearGlobalAveragePool as its definition."""
    sizes = None if node.inputs[0] is None else sizes_of(node.inputs[0])
    if sizes is None:
        return False
    last = node.attributes.get_int("channels_last", 0)
    return _write_average(
        graph, node, list(range(1, len(sizes) - 1) if last else range(2, len(sizes)))
    )


def _write_average(graph: Rewriter, node: ir.Node, axes: Sequence[int]) -> bool:
    """Write an average over whole axes."""
    x, s_x, z_x, s_y, z_y = inputs_of(node, 5)
    read = _read(graph, [(x, s_x, z_x)], s_y, z_y)
    sizes = None if x is None else sizes_of(x)
    if read is None or sizes is None:
        return False
    (codes,), (scale, step), (zero, end) = read
    numbers = [size for axis in axes if isinstance(size := sizes[axis], int)]
    count = math.prod(numbers)
    if len(numbers) < len(axes) or not 0 < count * _LARGEST < EXACT_IN_FLOAT32:
        return False
    with np.errstate(all="ignore"):
        m = scale / (step * np.float32(count))
    if not np.isfinite(m):
        return False
    result = tuple(1 if axis in axes else size for axis, size in enumerate(sizes))
    operands = [
        _whole(graph, node, codes, zero),
        graph.constant(np.asarray(axes, np.int64), "axes"),
    ]
    total = graph.node(node, "ReduceSum", operands, {"keepdims": 1}, dtype=_REAL, sizes=result)
    graph.conditions.add(SUMS_OF_CODES)
    return _encode(graph, node, graph.like(node, "Mul", [total, np.float32(m)], _REAL), end)


def write_code_windows(graph: Rewriter, node: ir.Node) -> bool:
    """Write a QLinearAveragePool as its definition."""
    x, s_x, z_x, s_y, z_y = inputs_of(node, 5)
    read = _read(graph, [(x, s_x, z_x)], s_y, z_y)
    sizes = None if x is None else sizes_of(x)
    kernel = node.attributes.get_ints("kernel_shape", [])
    if read is None or sizes is None or node.attributes.get_int("channels_last", 0) != 0:
        return False
    (codes,), (scale, step), (zero, end) = read
    spatial = [size for size in sizes[2:] if isinstance(size, int)]
    if not len(spatial) == len(kernel) == len(sizes) - 2 or math.prod(kernel) > _MOST:
        return False
    if averages_all(node, spatial):
        return _write_average(graph, node, range(2, len(sizes)))
    with np.errstate(all="ignore"):
        if not np.isfinite(scale * np.float32(_LARGEST * _MOST)):
            return False
    windows = Windows.of(node, spatial, kernel)
    image = _decode(graph, node, codes, scale, zero)
    if any(windows.before) or any(windows.after):
        pads = np.array([0, 0, *windows.before, 0, 0, *windows.after], np.int64)
        padded = *sizes[:2], *map(sum, zip(windows.before, spatial, windows.after, strict=True))
        inputs = [image, graph.constant(pads, "pads")]
        image = graph.node(node, "Pad", inputs, dtype=_REAL, sizes=padded)
    first, *others = (_part(graph, node, image, windows, tap) for tap in np.ndindex(windows.kernel))
    total = first
    for part in others:
        total = graph.like(node, "Add", [total, part], _REAL)
    count = np.asarray(counts(node, windows, spatial), np.float32)
    by = count.reshape(-1)[0] if (count == count.reshape(-1)[0]).all() else count
    for number in (by, step):
        total = graph.like(node, "Div", [total, graph.constant(np.asarray(number), "by")], _REAL)
    return _encode_shifted(graph, node, total, end)


def _part(
    graph: Rewriter, node: ir.Node, image: ir.Value, windows: Windows, tap: Sequence[int]
) -> ir.Value:
    """Return the element at one position of each window."""
    starts = np.multiply(tap, windows.dilations)
    ends = starts + np.multiply(windows.strides, np.subtract(windows.out, 1)) + 1
    axes = np.arange(2, 2 + len(tap))
    bounds = [starts, ends, axes, np.asarray(windows.strides)]
    inputs = [image, *(graph.constant(each.astype(np.int64), "bounds") for each in bounds)]
    return graph.node(node, "Slice", inputs, dtype=_REAL, sizes=sizes_of(node.outputs[0]))


def write_code_parts(graph: Rewriter, node: ir.Node) -> bool:
    """Write a QLinearConcat or QLinearWhere as its definition."""
    if node.op_type == "QLinearConcat":
        result, rest, kept = node.inputs[:2], node.inputs[2:], []
    else:
        result, rest, kept = node.inputs[7:9], node.inputs[1:7], list(node.inputs[:1])
    triples = [(rest[i], rest[i + 1], rest[i + 2]) for i in range(0, len(rest) - 2, 3)]
    read = _read(graph, triples, *result) if len(result) == 2 and len(rest) % 3 == 0 else None
    if read is None:
        return False
    codes, (*scales, step), (*zeros, end) = read
    parts = zip(codes, scales, zeros, strict=True)
    operands = [*kept, *(_decode(graph, node, *part) for part in parts)]
    name = node.op_type.removeprefix("QLinear")
    joined = graph.node(
        node, name, operands, node.attributes.values(), dtype=_REAL, sizes=sizes_of(node.outputs[0])
    )
    encoding = graph.constant(step, "scale"), graph.constant(end, "zero_point")
    return graph.replace(node.outputs[0], graph.like(node, "QuantizeLinear", [joined, *encoding]))


_Tensor = tuple[ir.Value | None, ir.Value | None, ir.Value | None]
"""Codes with their scale and zero point."""


def _read(
    graph: Rewriter,
    tensors: Sequence[_Tensor],
    scale: ir.Value | None,
    zero: ir.Value | None,
) -> tuple[list[ir.Value], list[Array], list[Array]] | None:
    """Return codes, and the scales and zero points of them and of the result, as single numbers.

    None is returned unless all codes are of one type, all parameters are constant single numbers,
    and all scales are positive and finite.
    """
    codes = [x for x, *_ in tensors if x is not None and x.dtype in CODES]
    types = {x.dtype for x in codes}
    if graph.imports.get("", 1) < _OPSET or len(codes) < len(tensors) or len(types) != 1:
        return None
    dtype = np.dtype((types.pop() or _REAL).numpy())
    arrays = [graph.array(value) for value in (*(s for _, s, _ in tensors), scale)]
    arrays += [
        np.zeros((), dtype) if value is None else graph.array(value)
        for value in (*(z for *_, z in tensors), zero)
    ]
    numbers: list[Array] = [a.reshape(()) for a in arrays if a is not None and a.size == 1]
    if len(numbers) < len(arrays):
        return None
    scales, zeros = numbers[: len(tensors) + 1], numbers[len(tensors) + 1 :]
    if any(each.dtype != np.float32 or not 0 < each < np.inf for each in scales):
        return None
    if any(each.dtype != dtype for each in zeros):
        return None
    return codes, scales, zeros


def _whole(graph: Rewriter, node: ir.Node, codes: ir.Value, zero: Array) -> ir.Value:
    """Return codes minus their zero point as float32."""
    to, sizes = {"to": _REAL.value}, sizes_of(codes)
    cast = graph.node(node, "Cast", [codes], to, dtype=_REAL, sizes=sizes)
    if not zero:
        return cast
    shift = graph.constant(zero.astype(np.float32).reshape(()), "zero_point")
    return graph.node(node, "Sub", [cast, shift], dtype=_REAL, sizes=sizes)


def _decode(graph: Rewriter, node: ir.Node, codes: ir.Value, scale: Array, zero: Array) -> ir.Value:
    """Return the dequantized codes."""
    inputs = [codes, graph.constant(scale, "scale"), graph.constant(zero, "zero_point")]
    return graph.node(node, "DequantizeLinear", inputs, dtype=_REAL, sizes=sizes_of(codes))


def _encode_shifted(graph: Rewriter, node: ir.Node, total: ir.Value, zero: Array) -> bool:
    """Replace a node by the codes of ``total``, to which the zero point is added first."""
    if zero:
        total = graph.like(node, "Add", [total, np.float32(zero)], _REAL)
    return _encode(graph, node, total, np.zeros((), zero.dtype))


def _encode(graph: Rewriter, node: ir.Node, total: ir.Value, zero: Array) -> bool:
    """Replace a node by the QuantizeLinear with scale 1 of ``total``."""
    codes = graph.like(node, "QuantizeLinear", [total, _ONE, zero.dtype.type(zero.item())])
    return graph.replace(node.outputs[0], codes)


DEFINITIONS = {
    "QLinearAdd": write_code_sum,
    "QLinearAveragePool": write_code_windows,
    "QLinearConcat": write_code_parts,
    "QLinearGlobalAveragePool": write_code_average,
    "QLinearMul": write_code_product,
    "QLinearWhere": write_code_parts,
}
