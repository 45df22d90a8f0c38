"""Lowering and raising of QLinearAdd and QLinearMul of com.microsoft."""

from __future__ import annotations

import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.edit import Draft, Operand
from qgraph.graph.schema import MICROSOFT
from qgraph.ops.integer.decoded import decoder, parameters, result_parameters
from qgraph.ops.integer.forms import compare_tables
from qgraph.ops.integer.pairs import OPERATIONS, Pair, read_pair
from qgraph.ops.integer.sums import Factor
from qgraph.transforms.drafts.rebuilding import Rebuild
from qgraph.transforms.integers.products import only_source

_OPSET = 10


def lower_pair(node: ir.Node, *, reals: bool) -> Rebuild | None:
    """Return the lowering of a node, exact or with real numbers; None for other operators.

    Raises:
        OperatorError: a parameter is not constant.
    """
    pair = read_pair(node)
    if pair is None:
        return None
    if reals:
        verdict = compare_tables(pair.table_of_reals(), pair.table(), "pairs of codes")
        return Rebuild(node, (node,), verdict, pair.draft_reals, _OPSET)
    if pair.operation == "Add":
        verdict = compare_tables(pair.table_of_exact(), pair.table(), "pairs of codes")
    else:
        verdict = Verdict(Exactness.BITS, Method.CONGRUENCE)
    return Rebuild(node, (node,), verdict, pair.draft_exact, _OPSET)


def raise_pair(encode: ir.Node) -> Rebuild | None:
    """Return the raising of an Add or Mul before a QuantizeLinear; None if there is none.

    All pairs of codes are tried.

    Raises:
        OperatorError: its codes or scales are not those of the operators of com.microsoft.
    """
    total = only_source(encode.inputs[0], encode)
    if total is None or total.op_type not in OPERATIONS.values():
        return None
    nodes = [decoder(value) for value in total.inputs]
    decoders = [node for node in nodes if node is not None and node.inputs[0] is not None]
    if len(decoders) < 2:
        return None
    encodings = [*map(parameters, decoders), result_parameters(encode)]
    if any(scale.size > 1 for scale, _ in encodings) or len({z.dtype for _, z in encodings}) > 1:
        raise OperatorError(
            f"{where(total)}: its scales differ along an axis or its codes are of several types, "
            f"expected one of each for QLinear{total.op_type}"
        )
    factors = [
        Factor(node.inputs[0], zero.dtype, zero, scale)
        for node, (scale, zero) in zip(decoders, encodings[:2], strict=True)
        if node.inputs[0] is not None
    ]
    pair = Pair(total.op_type, factors[0], factors[1], *encodings[2])
    verdict = compare_tables(pair.table(), pair.table_of_reals(), "pairs of codes")

    def write(draft: Draft) -> Operand:
        operands = [x for each in factors for x in (each.codes, each.scale, each.zero_point)]
        dtype = encode.outputs[0].dtype
        return draft.node(pair.name, [*operands, *encodings[2]], domain=MICROSOFT, dtype=dtype)

    return Rebuild(total, (total, encode), verdict, write, _OPSET)
