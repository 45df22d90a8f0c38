"""Sums of products in one form, where two models write them differently.

**Products with constant weights.** MatMulNBits is the MatMul with the weights that its codes stand
for, and Gemm without factors is the MatMul with its matrix; both add a bias to the finished sum.
ONNX leaves open in which order any of them adds the products.

**Biases.** A Conv or ConvTranspose with a bias becomes the operator without it, then Add, where the
other model has an Add. ONNX does not say when a bias is added, and with how many roundings, so all
conclusions from this form have a condition: the bias is added last, with one rounding. Only float32
is written like this: in narrower types hardly any runtime rounds the sum before it adds the bias.

**Products of codes.** QLinearConv and the like sum products of codes less their zero points, which
are whole numbers. So do Conv and MatMul between DequantizeLinear and QuantizeLinear where scales
are powers of two: no operation rounds there. As long as sums stay below 2**24, float32 has all of
them, in whatever order they are added, so that all forms are one Conv or MatMul of whole numbers:

    q  = Cast (codes) - Cast (zero point)           of both factors
    acc = Clip (Round (Conv (q_x, q_w, Cast (bias))), -bound, bound)
    y   = QuantizeLinear (acc * (s_x * s_w / s_y), 1, z_y)      of QLinearConv
    y   = acc * (s_x * s_w)                                     of Conv between Q and DQ

Round and Clip change nothing: they state that the sums are whole and bounded. The sign of a zero
sum depends on where the additions start, so sums are written like this only where they become
codes, which have no sign of zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError, UnsupportedError
from qgraph.graph.constants import constant, constant_expression
from qgraph.graph.edit import Draft, Editor, Operand, Region
from qgraph.graph.opset.versions import require
from qgraph.graph.schema import OpKey
from qgraph.graph.scopes import nodes_of
from qgraph.graph.slices import reached
from qgraph.ops.integer.decoded import is_of_decoded, is_product, read_decoded, read_wholes
from qgraph.ops.integer.forms import are_powers_of_two, draft_exact
from qgraph.ops.integer.products import SIGNATURES, Product, Result, read_product
from qgraph.ops.integer.sums import EXACT_IN_FLOAT32
from qgraph.ops.kernels.mat_mul_n_bits import Weights, is_mat_mul_n_bits
from qgraph.proof.matching.known_values import KnownValues

_OPSET = 13
"""All operators of the forms of products of codes have their present form since this opset."""

_BROADCASTS = 7
"""Opset since which Add broadcasts as NumPy does."""

_SAME_FOR_ZEROS = frozenset({"Add", "Cast", "Clip", "Div", "Mul", "Relu", "Round", "Sub"})
"""Operators that map zeros of both signs to equal values if their other operands are constant."""

_Write = Callable[[Draft], Operand]


def has_packed_products(model: ir.Model) -> bool:
    """Return whether a model contains a MatMulNBits."""
    return any(is_mat_mul_n_bits(node) for node in model.graph)


def write_products(model: ir.Model) -> None:
    """Replace MatMulNBits and Gemm in the main graph of ``model``, in place, where possible."""
    for node in list(model.graph):
        if is_mat_mul_n_bits(node):
            _write_packed(node)
        elif node.domain == "" and node.op_type == "Gemm":
            _write_gemm(node)


def _write_packed(node: ir.Node) -> None:
    inputs = [*node.inputs, *[None] * (6 - len(node.inputs))]
    x, packed, bias = inputs[0], inputs[1:5], inputs[5]
    codes, scales, *others = parameters = [constant(value) for value in packed]
    if x is None or codes is None or scales is None or x.dtype not in (None, ir.DataType.FLOAT):
        return
    if any(array is None for array, v in zip(parameters, packed, strict=True) if v is not None):
        return
    if scales.dtype != np.float32:  # which is the type of the data and of the product too
        return
    try:
        weights = Weights.of(node)
    except UnsupportedError:
        return

    def values() -> ir.TensorProtocol:
        array = weights.values(codes, scales, *others)
        return ir.Tensor(np.ascontiguousarray(array.T))

    shape, kind = ir.Shape((weights.k, weights.n)), ir.TensorType(ir.DataType.FLOAT)
    name = f"{node.outputs[0].name}_weights"
    tensor = ir.LazyTensor(values, dtype=ir.DataType.FLOAT, shape=shape, name=name)
    value = ir.Value(name=name, type=kind, shape=shape, const_value=tensor)
    if isinstance(node.graph, ir.Graph):
        node.graph.register_initializer(value)
        _replace(node, ir.node("MatMul", [x, value]), bias)


def _write_gemm(node: ir.Node) -> None:
    get = node.attributes
    has_factors = get.get_float("alpha", 1.0) != 1 or get.get_float("beta", 1.0) != 1
    x, matrix, bias = [*node.inputs, None][:3]
    if has_factors or get.get_int("transA", 0) != 0 or x is None or matrix is None:
        return
    if get.get_int("transB", 0):
        transposed = ir.node("Transpose", [matrix], {"perm": [1, 0]})
        transposed.name = transposed.outputs[0].name = f"{node.outputs[0].name}_matrix"
        transposed.outputs[0].type = matrix.type
        node.prepend(transposed)
        matrix = transposed.outputs[0]
    _replace(node, ir.node("MatMul", [x, matrix]), bias)


def _replace(
    node: ir.Node, total: ir.Node, bias: ir.Value | None, terms: Sequence[ir.Node] = ()
) -> None:
    """Put a sum, and an Add if there is a bias, in the place of ``node``.

    Args:
        node: what is replaced.
        total: the sum without bias.
        bias: what is added.
        terms: new nodes that compute the bias.
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
    last = steps[-1].outputs[0]
    last.name = name
    graph.insert_before(node, [total, *terms, *steps[1:]])
    old.replace_all_uses_with(last, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def split_biases(models: Sequence[ir.Model]) -> frozenset[str]:
    """Write biases in one form in two models, in place; return the names of the results.

    Nothing is done unless one model adds to a sum what the other one has as its bias.
    """
    found = [list(filter(_may_have_bias, nodes_of(model.graph))) for model in models]
    forms = [[_bias(node) is not None for node in nodes] for nodes in found]
    mixed = any(map(any, forms)) and any(map(_is_added_to, (n for nodes in found for n in nodes)))
    if forms[0] == forms[1] or not mixed:
        return frozenset()
    if any(model.opset_imports.get("", 0) < _BROADCASTS for model in models):
        return frozenset()
    names = set()
    for model, nodes in zip(models, found, strict=True):
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
    return node.inputs[2] if len(node.inputs) > 2 else None


def _is_added_to(node: ir.Node) -> bool:
    """Return whether a sum has no bias, and another operator adds to it."""
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
    """Give constants that are added to a sum by channel the form that a bias gets."""
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
    """Return a constant ``[1, channels, 1, ...]`` that adds the same; None if there is none."""
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
    made = ir.node("Constant", [], {"value": ir.tensor(np.ascontiguousarray(spread))})
    made.name = made.outputs[0].name = f"{node.outputs[0].name}_{value.name}_terms"
    made.outputs[0].type, made.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(sizes)
    return [made]


def _reshaped(value: ir.Value, node: ir.Node) -> list[ir.Node]:
    """Return nodes that give a bias that is not constant the form of a constant one."""
    sizes = np.array([1, -1, *(1,) * (len(_weight_sizes(node)) - 2)], np.int64)
    shape = ir.node("Constant", [], {"value": ir.tensor(sizes)})
    turned = ir.node("Reshape", [value, shape.outputs[0]])
    for made, name in ((shape, "shape"), (turned, "terms")):
        made.name = made.outputs[0].name = f"{node.outputs[0].name}_{name}"
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


def with_common_sums(models: Sequence[ir.Model]) -> list[ir.Model] | None:
    """Return copies of models that sum products of codes in one way.

    Operators with unknown parameters, and those of inner graphs, are left alone.

    Returns:
        None where the models have the same operators for such sums, or where different operators on
        codes are left, so that they are not comparable in this way.
    """
    if not _differ(models, _is_on_codes):
        return None
    for forms in _FORMS, _OPERATORS:
        copies = [model.clone() for model in models]
        try:
            for copy in copies:
                _write_alike(copy, forms)
        except UnsupportedError:
            return None
        # Factors that are no codes in one of the models are compared as the numbers that they are.
        counted = (_sums_codes, _is_whole) if forms is _FORMS else (_is_on_codes,)
        if not any(_differ(copies, counts) for counts in counted):
            return copies
    return None


def _differ(models: Sequence[ir.Model], counts: Callable[[ir.Node], bool]) -> bool:
    """Return whether the models differ in the operators for which ``counts`` holds."""
    numbers = [Counter(node.op_type for node in model.graph if counts(node)) for model in models]
    return any(each != numbers[0] for each in numbers)


def _is_on_codes(node: ir.Node) -> bool:
    """Return whether a node is an operator that sums products of codes and adds no real ones."""
    signature = SIGNATURES.get(OpKey.of(node))
    return signature is not None and "added" not in signature.inputs


def _sums_codes(node: ir.Node) -> bool:
    return _is_on_codes(node) or (_is_float_product(node) and is_of_decoded(node))


def _is_whole(node: ir.Node) -> bool:
    return _is_float_product(node) and _read(read_wholes, node) is not None


_Forms = tuple[tuple[str, Callable[[ir.Node], _Write | None]], ...]
"""Names of forms of sums, and how they are written."""


def _write_alike(model: ir.Model, forms: _Forms) -> None:
    """Write sums of products of codes in the main graph of ``model`` in one way, in place.

    Raises:
        UnsupportedError: the opset of the model cannot be raised.
    """
    require(model, _OPSET)
    for label, write_for in forms:
        editor = Editor(model)
        drafts = []
        for node in model.graph:
            write = write_for(node)
            if write is not None:
                draft = editor.draft(Region(ir.Value(name=""), node.outputs[0], (node,)))
                drafts.append(draft.giving(write(draft)))
        editor.replace_all(drafts)
        # The matching takes equal names for a hint, which values of different forms must not give.
        for draft in drafts:
            for node in draft.nodes[:-1]:
                value = node.outputs[0]
                value.name = editor.fresh(f"{value.name}_{label}")


def _read(reader: Callable[[ir.Node], Product | None], node: ir.Node) -> Product | None:
    """Return what a node sums; None also if a parameter is not known or has another form."""
    try:
        return reader(node)
    except (OperatorError, ValueError):
        return None


def _of_operator(node: ir.Node) -> _Write | None:
    """Return how to write an operator on codes by its definition."""
    product = _read(read_product, node)
    if product is None or product.result is Result.REALS:
        return None
    if product.result is Result.SUMS and product.exact_type is not ir.DataType.FLOAT:
        return None  # it has the sums as int32, and is a standard operator
    if product.result is Result.CODES:
        multiplier = product.multiplier
        if multiplier is None or not (np.isfinite(multiplier) & (multiplier > 0)).all():
            return None
    if product.exact_type is None and product.transposed:
        return None
    return lambda draft: draft_exact(draft, product)


def _of_decoded(node: ir.Node) -> _Write | None:
    """Return how to write a product of decoded codes that is exact: sums, times both scales."""
    if not _is_float_product(node) or not _becomes_codes(node.outputs[0]):
        return None
    product = _read(read_decoded, node)
    if product is None or product.rounds_bias or product.alpha != 1:
        return None
    largest, scales = product.largest, [np.asarray(scale) for scale in product.scales]
    if largest is None or largest >= EXACT_IN_FLOAT32 or not all(map(are_powers_of_two, scales)):
        return None
    return lambda draft: draft_exact(draft, product)


def _of_wholes(node: ir.Node) -> _Write | None:
    """Return how to write a product of whole numbers: itself, and that it is whole and bounded."""
    product = _read(read_wholes, node) if _is_float_product(node) else None
    bound = None if product is None else product.largest
    if bound is None or bound >= EXACT_IN_FLOAT32 or not _becomes_codes(node.outputs[0]):
        return None
    limit = np.asarray(bound, np.float32)

    def write(draft: Draft) -> Operand:
        attributes = {name: a.value for name, a in node.attributes.items()}
        total = draft.node(node.op_type, node.inputs, attributes, dtype=ir.DataType.FLOAT)
        return draft.op.Clip(draft.op.Round(total), -limit, limit)

    return write


def _of_coding_operator(node: ir.Node) -> _Write | None:
    """Return how to write an operator whose result is integer codes, which have no -0."""
    product = _read(read_product, node)
    is_coding = product is not None and product.result is Result.CODES
    return _of_operator(node) if is_coding else None


_FORMS: _Forms = (("sum", _of_operator), ("unit", _of_decoded), ("whole", _of_wholes))
_OPERATORS: _Forms = (("sum", _of_coding_operator),)


def _is_float_product(node: ir.Node) -> bool:
    return is_product(node) and node.outputs[0].dtype is ir.DataType.FLOAT


def _becomes_codes(value: ir.Value) -> bool:
    """Return whether elementwise steps turn a value into codes, and nothing else uses it."""

    def following(step: ir.Value) -> Sequence[ir.Value]:
        uses = (use for use in step.uses() if not _encodes(*use) and _is_same_for_zeros(*use))
        return [node.outputs[0] for node, _ in uses]

    return all(
        step.uses()
        and not step.is_graph_output()
        and all(_encodes(*use) or _is_same_for_zeros(*use) for use in step.uses())
        for step in reached([value], following)
    )


def _encodes(node: ir.Node, index: int) -> bool:
    """Return whether a node computes codes from its operand at ``index``."""
    dtype = node.outputs[0].dtype
    encodes = node.domain == "" and index == 0 and node.op_type in ("Cast", "QuantizeLinear")
    return encodes and dtype is not None and dtype.is_integer()


def _is_same_for_zeros(node: ir.Node, index: int) -> bool:
    """Return whether a node maps zeros of both signs in one operand to equal values."""
    if node.domain or node.op_type not in _SAME_FOR_ZEROS or (index and node.op_type == "Div"):
        return False
    used = node.inputs[index]
    others = (operand for operand in node.inputs if operand is not used)
    return all(operand is None or constant_expression(operand) is not None for operand in others)
