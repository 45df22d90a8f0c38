"""Products of codes, written in one way: sums of whole numbers, and what is made of them.

QLinearConv and its kin sum products of codes less their zero points, which are whole numbers. So do
Conv and MatMul between DequantizeLinear and QuantizeLinear where scales are powers of two: no
operation rounds there. As long as sums stay below 2**24, float32 has all of them, in whatever order
they are added, so that all forms are the same Conv or MatMul of whole numbers:

    q  = Cast (codes) - Cast (zero point)           of both factors
    acc = Clip (Round (Conv (q_x, q_w, Cast (bias))), -bound, bound)
    y   = QuantizeLinear (acc * (s_x * s_w / s_y), 1, z_y)      of QLinearConv
    y   = acc * (s_x * s_w)                                     of Conv between Q and DQ

Round and Clip change nothing: they tell those who look at what comes after that the sums are whole
and bounded.

What the sign of a zero sum is depends on where the additions start. Sums are written like this only
where codes are made of them, which do not tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import UnsupportedError
from qgraph.foreign.rescaling import EXACT_IN_FLOAT32
from qgraph.graph.edit import Draft, Editor, Region
from qgraph.graph.edit import Operand as Drafted
from qgraph.graph.folding import constant_expression
from qgraph.graph.schema import OpKey
from qgraph.matching.code_operators import is_on_codes, read_operator
from qgraph.matching.decoded_products import is_of_decoded, read_decoded
from qgraph.matching.whole_sums import CODES, Factor, Sum, cast, has_factors_alone
from qgraph.opsets.versions import require

Array = npt.NDArray[Any]

_OPSET = 13
"""All that is written here has its present form since then."""

_SAME_FOR_ZEROS = frozenset({"Add", "Cast", "Clip", "Div", "Mul", "Relu", "Round", "Sub"})
"""Operators that make equal values of zeros of both signs, if what else they take is constant."""

_Write = Callable[[Draft], Drafted]


def with_common_sums(models: Sequence[ir.Model]) -> list[ir.Model] | None:
    """Return copies of models that sum products of codes in one way.

    Operators whose parameters are not known are left alone, as are all others than those of the
    main graph.

    Returns:
        None where the models have the same operators for such sums, or where different ones are
        left, so that they are not comparable in this way.
    """
    if not _differ(models, is_on_codes):
        return None
    copies = [model.clone() for model in models]
    try:
        for copy in copies:
            _spell_out(copy)
    except UnsupportedError:
        return None
    left = any(_differ(copies, counts) for counts in (_sums_codes, _is_whole))
    return None if left else copies


def _differ(models: Sequence[ir.Model], counts: Callable[[ir.Node], bool]) -> bool:
    found = [Counter(node.op_type for node in model.graph if counts(node)) for model in models]
    return any(each != found[0] for each in found)


def _sums_codes(node: ir.Node) -> bool:
    return is_on_codes(node) or (_is_float_product(node) and is_of_decoded(node))


def _is_whole(node: ir.Node) -> bool:
    return _is_float_product(node) and _wholes(node) is not None


def _spell_out(model: ir.Model) -> None:
    """Write sums of products of codes in the main graph of ``model`` in one way, in place.

    Raises:
        UnsupportedError: the opset of the model cannot be raised.
    """
    require(model, _OPSET)
    for label, write_for in (("sum", _of_operator), ("unit", _of_decoded), ("whole", _of_wholes)):
        editor = Editor(model)
        drafts = []
        for node in model.graph:
            try:
                write = write_for(node)
            except ValueError:  # a parameter has another form than its operator takes
                continue
            if write is not None:
                draft = editor.draft(Region(ir.Value(name=""), node.outputs[0], (node,)))
                drafts.append(draft.giving(write(draft)))
        editor.replace_all(drafts)
        # what is written in two ways does not get one name, which would be taken for a hint
        for draft in drafts:
            for node in draft.nodes[:-1]:
                value = node.outputs[0]
                value.name = editor.fresh(f"{value.name}_{label}")


def _of_operator(node: ir.Node) -> _Write | None:
    """Return how to write an operator on codes by its definition."""
    found = read_operator(node)
    if found is None:
        return None
    total, multiplier, zero = found
    exact = total.exact_type
    if multiplier is None or zero is None:
        if exact is not ir.DataType.FLOAT:
            return None  # it has the sums as int32, and is a standard operator
        return lambda draft: cast(draft, total.draft(draft, exact), ir.DataType.INT32)
    unfit = exact is None and total.kind == "Gemm" and total.transposed
    if unfit or not (np.isfinite(multiplier) & (multiplier > 0)).all():
        return None

    def write(draft: Draft) -> Drafted:
        acc = total.draft_integers(draft) if exact is None else total.draft(draft, exact)
        acc = cast(draft, acc, ir.DataType.FLOAT)
        one = np.ones((), np.float32)
        code = ir.DataType.from_numpy(zero.dtype)
        return draft.node("QuantizeLinear", [draft.op.Mul(acc, multiplier), one, zero], dtype=code)

    return write


def _of_decoded(node: ir.Node) -> _Write | None:
    """Return how to write a product of decoded codes that is exact: sums, times both scales."""
    if not _is_float_product(node) or not _becomes_codes(node.outputs[0]):
        return None
    found = read_decoded(node)
    if found is None:
        return None
    total, unit = found
    return lambda draft: draft.op.Mul(total.draft(draft, ir.DataType.FLOAT), unit)


def _of_wholes(node: ir.Node) -> _Write | None:
    """Return how to write a product of whole numbers: itself, and that it is whole and bounded."""
    factors = _wholes(node) if _is_float_product(node) else None
    if factors is None or not _becomes_codes(node.outputs[0]):
        return None
    bound = Sum(node, node.op_type, *factors).bound
    added = node.inputs[2] if len(node.inputs) > 2 else None
    if added is not None and bound is not None:
        known = constant_expression(added)
        if known is None or not (known == np.rint(known)).all():
            return None
        bound += int(np.abs(known).max(initial=0))
    if bound is None or bound >= EXACT_IN_FLOAT32:
        return None
    limit = np.asarray(bound, np.float32)

    def write(draft: Draft) -> Drafted:
        attributes = {name: a.value for name, a in node.attributes.items()}
        total = draft.node(node.op_type, node.inputs, attributes, dtype=ir.DataType.FLOAT)
        return draft.op.Clip(draft.op.Round(total), -limit, limit)

    return write


def _wholes(node: ir.Node) -> tuple[Factor, Factor] | None:
    """Return the factors of a product of codes less their zero points, cast to float32."""
    if not has_factors_alone(node):
        return None
    found = []
    for value in node.inputs[:2]:
        made = None if value is None else value.producer()
        zero: Array | ir.Value | None = None
        if made is not None and OpKey.of(made) == OpKey("", "Sub"):
            whole, taken = made.inputs
            made = None if whole is None else whole.producer()
            zero = constant_expression(taken)
            if zero is None:
                cast = None if taken is None else taken.producer()
                zero = None if cast is None or cast.op_type != "Cast" else cast.inputs[0]
            if zero is None:
                return None
        if made is None or OpKey.of(made) != OpKey("", "Cast"):
            return None
        codes = made.inputs[0]
        if codes is None or codes.dtype not in CODES:
            return None
        kind = codes.dtype.numpy()
        if isinstance(zero, ir.Value) and zero.dtype != codes.dtype:
            return None
        if isinstance(zero, np.ndarray):
            with np.errstate(all="ignore"):
                if not np.array_equal(zero.astype(kind), zero):
                    return None
            zero = zero.astype(kind)
        found.append(Factor(codes, np.zeros((), kind) if zero is None else zero))
    return found[0], found[1]


def _is_float_product(node: ir.Node) -> bool:
    known = node.domain == "" and node.op_type in ("Conv", "Gemm", "MatMul")
    return known and node.outputs[0].dtype is ir.DataType.FLOAT


def _becomes_codes(value: ir.Value) -> bool:
    """Return whether nothing but codes is made of a value, by steps on single elements."""
    pending, seen = [value], {value}
    while pending:
        step = pending.pop()
        if step.is_graph_output() or not step.uses():
            return False
        for node, place in step.uses():
            if node.domain:
                return False
            made = node.outputs[0].dtype
            encodes = place == 0 and node.op_type in ("Cast", "QuantizeLinear")
            if encodes and made is not None and made.is_integer():
                continue
            others = (operand for operand in node.inputs if operand is not step)
            plain = node.op_type in _SAME_FOR_ZEROS and (place == 0 or node.op_type != "Div")
            if not plain or any(o is not None and constant_expression(o) is None for o in others):
                return False
            if node.outputs[0] not in seen:
                seen.add(node.outputs[0])
                pending.append(node.outputs[0])
    return True
