"""Write sums of products of codes in one form if two models write them differently.

QLinearConv and similar operators add products of integers: codes minus their zero points. Conv and
MatMul between DequantizeLinear and QuantizeLinear do the same if the scales are powers of two,
because no operation rounds then. float32 represents all sums below 2**24 exactly, in any order of
additions. So all forms become one Conv or MatMul of integers:

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
from qgraph.graph.edit import Draft, Editor, Operand, Region
from qgraph.graph.opset.versions import require
from qgraph.graph.schema import OpKey
from qgraph.graph.slices import reached
from qgraph.ops.integer.decoded import is_of_decoded, is_product, read_decoded, read_wholes
from qgraph.ops.integer.definitions import exact_product
from qgraph.ops.integer.forms import are_powers_of_two, draft_exact
from qgraph.ops.integer.products import SIGNATURES, Product
from qgraph.ops.integer.sums import EXACT_IN_FLOAT32

_OPSET = 13
"""First opset in which all operators of these forms have their current definition."""

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
        drafts = []
        for node in model.graph:
            write = write_for(node)
            if write is not None:
                draft = editor.draft(Region(ir.Value(name=""), node.outputs[0], (node,)))
                drafts.append(draft.giving(write(draft)))
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
