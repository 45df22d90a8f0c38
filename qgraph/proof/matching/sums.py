"""Write sums of products in one form if two models write them differently.

**Biases.** A Conv or ConvTranspose with a bias becomes the operator without it, then Add, where the
other model has an Add. ONNX does not define when a bias is added, and with how many roundings. So
every proof in this form has a condition: the bias is added last, with one rounding. Only float32 is
changed: in narrower types hardly any runtime rounds the sum before it adds the bias.

**Sums of codes.** QLinearConv and similar operators add products of integers: codes minus their
zero points. Conv and MatMul between DequantizeLinear and QuantizeLinear do the same if the scales
are powers of two, because no operation rounds then. float32 represents all sums below 2**24
exactly, in any order of additions. So all forms become one Conv or MatMul of integers:

    q  = Cast (codes) - Cast (zero point)           of both factors
    acc = Clip (Round (Conv (q_x, q_w, Cast (bias))), -bound, bound)
    y   = QuantizeLinear (acc * (s_x * s_w / s_y), 1, z_y)      of QLinearConv
    y   = acc * (s_x * s_w)                                     of Conv between Q and DQ

Round and Clip change nothing: they state that the sums are integers and bounded. The sign of a
zero sum depends on the order of additions. So sums are written in this form only if they become
codes, which have no -0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError, UnsupportedError
from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.graph.opset.versions import require
from qgraph.graph.schema import OpKey
from qgraph.graph.scopes import input_of, nodes_of
from qgraph.graph.slices import reached
from qgraph.ops.composite import drafted
from qgraph.ops.integer.decoded import is_of_decoded, is_product, read_decoded, read_wholes
from qgraph.ops.integer.definitions import exact_product
from qgraph.ops.integer.forms import are_powers_of_two, draft_exact
from qgraph.ops.integer.products import SIGNATURES, Product
from qgraph.ops.integer.sums import EXACT_IN_FLOAT32
from qgraph.ops.known_values import KnownValues

_OPSET = 13
"""First opset in which all operators of these forms have their current definition."""

_BROADCASTS = 7
"""Opset since which Add broadcasts as NumPy does."""

_SAME_FOR_ZEROS = frozenset({"Add", "Cast", "Clip", "Div", "Mul", "Relu", "Round", "Sub"})
"""Operators that map -0 and +0 to equal values if their other operands are constant."""

_Write = Callable[[Draft], Operand]


def with_common_sums(
    models: Sequence[ir.Model], *, open_sums: bool
) -> tuple[list[ir.Model] | None, bool]:
    """Return copies of models in which sums of products of codes have one form.

    Operators with unknown parameters, and operators in subgraphs, are left unchanged. If
    ``open_sums``, sums need not be known to be integers and bounded, if factors are not codes in
    one of the models. Regions that begin with such sums may then differ at numbers that do not
    occur.

    Returns:
        The copies, and whether they have open sums. None instead of the copies if the models have
        the same operators for such sums, or if different operators on codes would remain.
    """
    if not _differ(models, _is_on_codes):
        return None, False
    for forms in (_FORMS, _FORMS[:1])[: 1 + open_sums]:
        copies = [model.clone() for model in models]
        try:
            for copy in copies:
                _write_alike(copy, forms)
        except UnsupportedError:
            return None, False
        # Factors that are not codes in one of the models are compared as real numbers.
        counted = (_sums_codes, _is_whole) if forms is _FORMS else (_is_on_codes,)
        if not any(_differ(copies, counts) for counts in counted):
            return copies, forms is not _FORMS
    return None, False


def _differ(models: Sequence[ir.Model], counts: Callable[[ir.Node], bool]) -> bool:
    numbers = [Counter(node.op_type for node in model.graph if counts(node)) for model in models]
    return any(each != numbers[0] for each in numbers)


def _is_on_codes(node: ir.Node) -> bool:
    signature = SIGNATURES.get(OpKey.of(node))
    return signature is not None and "added" not in signature.inputs


def _sums_codes(node: ir.Node) -> bool:
    return _is_on_codes(node) or (_is_float_product(node) and is_of_decoded(node))


def _is_whole(node: ir.Node) -> bool:
    return _is_float_product(node) and _read(read_wholes, node) is not None


_Forms = tuple[tuple[str, Callable[[ir.Node], _Write | None]], ...]
"""Writers of the forms of sums, by name."""


def _write_alike(model: ir.Model, forms: _Forms) -> None:
    """Write sums of products of codes in the main graph of ``model`` in one form, in place."""
    require(model, _OPSET)
    for label, write_for in forms:
        editor = Editor(model)
        writers = [(node, write) for node in model.graph if (write := write_for(node))]
        drafts = [drafted(editor, node, write) for node, write in writers]
        editor.replace_all(drafts)
        # Equal names are hints for the matching, which values of different forms must not give.
        for draft in drafts:
            for node in draft.nodes[:-1]:
                value = node.outputs[0]
                value.name = editor.fresh(f"{value.name}_{label}")


def _read(reader: Callable[[ir.Node], Product | None], node: ir.Node) -> Product | None:
    """Return the product of a node; None if a parameter is unknown or has another form."""
    try:
        return reader(node)
    except (OperatorError, ValueError):
        return None


def _of_operator(node: ir.Node) -> _Write | None:
    product = _read(exact_product, node)
    return None if product is None else lambda draft: draft_exact(draft, product)


def _of_decoded(node: ir.Node) -> _Write | None:
    """Return the writer of an exact product of decoded codes: the sums times both scales."""
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
    """Return the writer of a product of integers: the product, then Round and Clip."""
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


_FORMS: _Forms = (("sum", _of_operator), ("unit", _of_decoded), ("whole", _of_wholes))


def _is_float_product(node: ir.Node) -> bool:
    return is_product(node) and node.outputs[0].dtype is ir.DataType.FLOAT


def _becomes_codes(value: ir.Value) -> bool:
    """Return whether a value is only used by elementwise operators that end in codes."""

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
    """Return whether a node maps -0 and +0 in one operand to equal values."""
    if node.domain or node.op_type not in _SAME_FOR_ZEROS or (index and node.op_type == "Div"):
        return False
    used = node.inputs[index]
    others = (operand for operand in node.inputs if operand is not used)
    return all(operand is None or constant_expression(operand) is not None for operand in others)


def replace_sum(
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
    replace_sum(node, total, terms[-1].outputs[0], terms)
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
