"""Replace operators by other operators if two models use different ones.

**Operators that are defined as a graph of standard operators** are replaced by this graph.

**Products with constant weights.** MatMulNBits becomes a MatMul with its decoded weights, and Gemm
without factors becomes a MatMul. Both add a bias to the finished sum. ONNX does not define in which
order any of them adds the products. MatMulNBits of 16-bit floats computes in float32, and rounds
the sum including its bias once.

**Biases.** A Conv or ConvTranspose with a bias becomes the operator without it, then Add, where the
other model has an Add. ONNX does not define when a bias is added, and with how many roundings. So
every proof in this form has a condition: the bias is added last, with one rounding. Only float32 is
changed: in narrower types hardly any runtime rounds the sum before it adds the bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import onnx_ir as ir

from qgraph.errors import UnsupportedError
from qgraph.graph.constants import constant_elements
from qgraph.graph.inference.rules import Unknown, given, require
from qgraph.graph.schema import OpKey
from qgraph.graph.scopes import input_of, inputs_of, nodes_of
from qgraph.ops.composite import composite_of, differing, write_out
from qgraph.ops.kernels.mat_mul_n_bits import Weights, is_mat_mul_n_bits
from qgraph.ops.known_values import KnownValues
from qgraph.proof.matching.packed_rows import PackedRows

_REALS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

_BROADCASTS = 7
"""Opset since which Add broadcasts as NumPy does."""


def unfold(models: Sequence[ir.Model]) -> bool:
    """Replace operators that are defined as graphs, if the models differ in them; return if any.

    The values of the models have types and shapes. Operators that occur in all models are kept:
    equal operands give equal results. Nodes that the definition of their operator does not cover
    are kept too.
    """
    keys = differing(models, composite_of)
    for model in models:
        write_out(model, [node for node in nodes_of(model.graph) if OpKey.of(node) in keys])
    return bool(keys)


def has_packed_products(model: ir.Model) -> bool:
    """Return whether a model contains a MatMulNBits."""
    return any(is_mat_mul_n_bits(node) for node in model.graph)


def write_products(model: ir.Model) -> None:
    """Replace MatMulNBits and Gemm in the main graph of ``model``, in place, where possible."""
    for node in list(model.graph):
        with suppress(Unknown):
            if is_mat_mul_n_bits(node):
                _write_packed(node)
            elif node.domain == "" and node.op_type == "Gemm":
                _write_gemm(node)


def _write_packed(node: ir.Node) -> None:
    x, *packed, bias = inputs_of(node, 6)
    streams = [None if value is None else given(constant_elements(value)) for value in packed]
    x, codes, scales, (points, groups) = given(x), *map(given, streams[:2]), streams[2:]
    dtype = ir.DataType[scales.kind]  # data and product have the same type
    require(dtype in _REALS and x.dtype in (None, dtype))
    zero = None if points is None else points.array()
    order = None if groups is None else groups.array()
    name = f"{node.outputs[0].name}_weights"
    try:
        weights = Weights.of(node)
        weights.check(codes, scales)
    except (UnsupportedError, ValueError) as error:
        raise Unknown from error

    def values() -> ir.TensorProtocol:
        array = weights.values(codes.array(), scales.array(), zero, order)
        return ir.Tensor(np.ascontiguousarray(array.T))

    shape, real = ir.Shape((weights.k, weights.n)), ir.TensorType(ir.DataType.FLOAT)
    tensor: ir.LazyTensor = PackedRows(weights, codes, scales, zero, name)
    if order is not None and not weights.is_sorted(order):
        tensor = ir.LazyTensor(values, dtype=ir.DataType.FLOAT, shape=shape, name=name)
    value = ir.Value(name=name, type=real, shape=shape, const_value=tensor)
    if isinstance(node.graph, ir.Graph):
        node.graph.register_initializer(value)
        is_narrow = dtype is not ir.DataType.FLOAT
        if is_narrow:
            x, bias = _widened(x, node), None if bias is None else _widened(bias, node)
        _replace(node, ir.node("MatMul", [x, value]), bias, narrowed=dtype if is_narrow else None)


def _widened(value: ir.Value, node: ir.Node) -> ir.Value:
    cast = ir.node("Cast", [value], {"to": ir.DataType.FLOAT.value})
    (wide,) = cast.outputs
    cast.name = wide.name = f"{node.outputs[0].name}_{value.name}_wide"
    wide.type, wide.shape = ir.TensorType(ir.DataType.FLOAT), value.shape
    node.prepend(cast)
    return wide


def _write_gemm(node: ir.Node) -> None:
    get = node.attributes
    x, matrix, bias = inputs_of(node, 3)
    x, matrix = given(x), given(matrix)
    require(get.get_float("alpha", 1.0) == 1 and get.get_float("beta", 1.0) == 1)
    require(get.get_int("transA", 0) == 0)
    if get.get_int("transB", 0):
        transposed = ir.node("Transpose", [matrix], {"perm": [1, 0]})
        transposed.name = transposed.outputs[0].name = f"{node.outputs[0].name}_matrix"
        transposed.outputs[0].type = matrix.type
        node.prepend(transposed)
        matrix = transposed.outputs[0]
    _replace(node, ir.node("MatMul", [x, matrix]), bias)


def _replace(
    node: ir.Node,
    total: ir.Node,
    bias: ir.Value | None,
    terms: Sequence[ir.Node] = (),
    narrowed: ir.DataType | None = None,
) -> None:
    """Replace ``node`` by a sum, and an Add if there is a bias, which ``terms`` compute.

    The finished sum, in float32, is rounded to the type ``narrowed``, if there is one.
    """
    old, graph = node.outputs[0], node.graph
    if not isinstance(graph, ir.Graph):
        return
    name, old.name = old.name, f"{old.name}_replaced"
    total.name = node.name
    steps = [total]
    if bias is not None:
        total.outputs[0].name = f"{name}_sum"
        steps.append(ir.node("Add", [total.outputs[0], bias], name=f"{node.name}_bias"))
    for step in steps:
        step.outputs[0].type, step.outputs[0].shape = old.type, old.shape
    if narrowed is not None:
        for step in steps:
            step.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        wide = steps[-1].outputs[0]
        wide.name = f"{name}_wide"
        steps.append(ir.node("Cast", [wide], {"to": narrowed.value}, name=f"{node.name}_narrowed"))
        steps[-1].outputs[0].type, steps[-1].outputs[0].shape = old.type, old.shape
    last = steps[-1].outputs[0]
    last.name = name
    graph.insert_before(node, [total, *terms, *steps[1:]])
    old.replace_all_uses_with(last, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def split_biases(models: Sequence[ir.Model]) -> frozenset[str]:
    """Split biases off in two models, in place, and return the names of the results.

    Nothing is changed unless one model has an Add after a sum and the other has a bias instead.
    """
    products = [list(filter(_may_have_bias, nodes_of(model.graph))) for model in models]
    forms = [[_bias(node) is not None for node in nodes] for nodes in products]
    mixed = any(map(any, forms)) and any(
        map(_is_added_to, (n for nodes in products for n in nodes))
    )
    if forms[0] == forms[1] or not mixed:
        return frozenset()
    if any(model.opset_imports.get("", 0) < _BROADCASTS for model in models):
        return frozenset()
    names = set()
    for model, nodes in zip(models, products, strict=True):
        known = KnownValues(model.opset_imports)
        known.enter(nodes_of(model.graph))
        for node in nodes:
            bias = _bias(node)
            if bias is None:
                _align(node, known)
            elif len(_weight_sizes(node)) > 2 and node.outputs[0].dtype is ir.DataType.FLOAT:
                names.add(_split(node, bias, known))
    return frozenset(names)


def _may_have_bias(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in ("Conv", "ConvTranspose")


def _bias(node: ir.Node) -> ir.Value | None:
    return input_of(node, 2)


def _is_added_to(node: ir.Node) -> bool:
    users = node.outputs[0].consumers()
    return _bias(node) is None and any((u.domain, u.op_type) == ("", "Add") for u in users)


def _split(node: ir.Node, bias: ir.Value, known: KnownValues) -> str:
    """Replace a sum with a bias; return the name of its result."""
    name = str(node.outputs[0].name)
    total = ir.Node("", node.op_type, node.inputs[:2], node.attributes.values())
    terms = _in_form(bias, node, known) or _reshaped(bias, node)
    _replace(node, total, terms[-1].outputs[0], terms)
    return name


def _align(node: ir.Node, known: KnownValues) -> None:
    """Reshape constants that are added to a sum to the shape of a split bias."""
    value = node.outputs[0]
    for user in list(value.consumers()):
        if (user.domain, user.op_type) != ("", "Add") or not isinstance(user.graph, ir.Graph):
            continue
        for index, operand in enumerate(user.inputs):
            terms = None if operand is None or operand is value else _in_form(operand, node, known)
            if terms is not None:
                user.graph.insert_before(user, terms)
                user.replace_input_with(index, terms[-1].outputs[0])


def _in_form(value: ir.Value, node: ir.Node, known: KnownValues) -> list[ir.Node] | None:
    """Return a new ``[1, channels, 1, ...]`` with the same sums; None if there is none."""
    array, rank, channels = known.array(value), len(_weight_sizes(node)), _channels(node)
    if array is None or array.dtype != np.float32 or array.size not in (1, channels):
        return None
    if value is _bias(node):
        is_by_channel = array.ndim == 1
    else:
        is_by_channel = array.ndim in (rank - 1, rank) and array.shape[1 - rank] == channels
    if not channels or array.ndim > rank or not (is_by_channel or array.size == 1):
        return None
    sizes = (1, channels, *(1,) * (rank - 2))
    spread = np.broadcast_to(array.reshape(-1), channels).reshape(sizes)
    new = ir.node("Constant", [], {"value": ir.tensor(np.ascontiguousarray(spread))})
    new.name = new.outputs[0].name = f"{node.outputs[0].name}_{value.name}_terms"
    new.outputs[0].type, new.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(sizes)
    return [new]


def _reshaped(value: ir.Value, node: ir.Node) -> list[ir.Node]:
    """Return nodes that reshape a bias that is not constant like a constant one."""
    sizes = np.array([1, -1, *(1,) * (len(_weight_sizes(node)) - 2)], np.int64)
    shape = ir.node("Constant", [], {"value": ir.tensor(sizes)})
    turned = ir.node("Reshape", [value, shape.outputs[0]])
    for new, name in ((shape, "shape"), (turned, "terms")):
        new.name = new.outputs[0].name = f"{node.outputs[0].name}_{name}"
    return [shape, turned]


def _channels(node: ir.Node) -> int:
    """Return the number of channels of a sum; 0 if unknown."""
    sizes, is_transposed = _weight_sizes(node), node.op_type == "ConvTranspose"
    size = sizes[is_transposed] if len(sizes) > 2 else 0
    group = node.attributes.get_int("group", 1) if is_transposed else 1
    return size * group if isinstance(size, int) else 0


def _weight_sizes(node: ir.Node) -> Sequence[int | ir.SymbolicDim]:
    weight = node.inputs[1]
    return () if weight is None or weight.shape is None else weight.shape.dims
