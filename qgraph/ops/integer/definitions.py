"""Operators on codes as graphs of standard operators, for proofs of models that have both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from qgraph.conditions import SUMS_OF_CODES, WHOLE_SUMS, Condition
from qgraph.errors import OperatorError, where
from qgraph.graph.edit import Draft, Operand
from qgraph.graph.schema import MICROSOFT, OpKey
from qgraph.graph.scopes import inputs_of, nodes_of
from qgraph.ops.composite import differing, write_out
from qgraph.ops.integer.forms import draft_codes, draft_exact
from qgraph.ops.integer.pairs import OPERATIONS, read_pair
from qgraph.ops.integer.products import (
    SIGNATURES,
    Product,
    Result,
    read_encoding,
    read_product,
    read_single,
)
from qgraph.ops.integer.sums import EXACT_IN_FLOAT32
from qgraph.ops.integer.tables import averages_all

_REAL = ir.DataType.FLOAT
_OPSET = 13
"""Definitions use the forms that operators have since this opset."""

_AVERAGES = {OpKey(MICROSOFT, f"QLinear{name}") for name in ("AveragePool", "GlobalAveragePool")}


def is_defined(node: ir.Node) -> bool:
    """Return whether there is a definition of the operator of a node."""
    key = OpKey.of(node)
    return key in SIGNATURES or key in OPERATIONS or key in _AVERAGES


def define(models: Sequence[ir.Model]) -> frozenset[OpKey]:
    """Replace operators on codes by their definitions, in place, if the models differ in them.

    Nodes that the definition does not describe stay.

    Args:
        models: the models; their values have types and shapes.

    Returns:
        The operators in which the models differ.
    """
    keys = differing(models, is_defined)
    for model in models:
        nodes = [node for node in nodes_of(model.graph) if OpKey.of(node) in keys]
        write_out(model, nodes, write)
    return keys


def conditions(operators: Iterable[OpKey]) -> list[Condition]:
    """Return the conditions under which operators are equal to their definitions."""
    keys = set(operators)
    operators_of = {WHOLE_SUMS: SIGNATURES.keys(), SUMS_OF_CODES: _AVERAGES}
    return [condition for condition, those in operators_of.items() if not keys.isdisjoint(those)]


def write(draft: Draft, node: ir.Node) -> Operand:
    """Write the definition of a node, which has the same bits, and return the result.

    Raises:
        OperatorError: there is none, or a parameter or a size is unknown.
    """
    draft.needs(_OPSET)
    try:
        product, pair = read_product(node), read_pair(node)
        if product is not None and _is_exact(product):
            return draft_exact(draft, product)
        if pair is not None and np.array_equal(pair.table_of_exact(), pair.table()):
            return pair.draft_exact(draft)
        if OpKey.of(node) in _AVERAGES:
            return read_average(node)[1](draft)
    except ValueError as error:
        raise OperatorError(f"{where(node)}: {error}") from error
    raise OperatorError(f"{where(node)}: no graph of standard operators has the same bits")


def _is_exact(product: Product) -> bool:
    """Return whether the definition of a product replaces it by other operators."""
    if product.result is Result.SUMS and product.exact_type is not _REAL:
        return False  # its result is the sums as int32, and it is a standard operator
    if product.result is Result.CODES:
        multiplier = product.multiplier
        if multiplier is None or not (np.isfinite(multiplier) & (multiplier > 0)).all():
            return False
    is_real = product.result is Result.REALS
    return not is_real and not (product.exact_type is None and product.transposed)


def read_average(node: ir.Node) -> tuple[int, Callable[[Draft], Operand]]:
    """Return how many elements a node averages, all of each image, and what drafts its definition.

    That is ``m * sum (x - z_x)`` with ``m = s_x / (s_y * n)``.

    Raises:
        OperatorError: a parameter or the number is unknown, or there are several windows.
    """
    codes, s_x, z_x, s_y, z_y = inputs_of(node, 5)
    x = read_single(node, codes, s_x, z_x, z_y)
    step, zero = read_encoding(node, s_y, z_y, x.dtype)
    if x.codes.shape is None:
        raise OperatorError(
            f"{where(node)}: the shape of its input is unknown; run shape inference."
        )
    rank, is_last = len(x.codes.shape), node.attributes.get_int("channels_last", 0)
    axes = list(range(1, rank - 1) if is_last else range(2, rank))
    sizes = [x.codes.shape[axis] for axis in axes]
    numbers = [size for size in sizes if isinstance(size, int)]
    count = math.prod(numbers)
    if len(numbers) < len(sizes) or not 0 < count * 255 < EXACT_IN_FLOAT32:
        raise OperatorError(
            f"{where(node)}: it sums over {sizes} elements, expected a known number of elements "
            f"whose sums stay below 2**24. Run shape inference with fixed sizes first."
        )
    if node.op_type == "QLinearAveragePool" and (is_last or not averages_all(node, numbers)):
        raise OperatorError(f"{where(node)}: it has several windows")

    def draft_average(draft: Draft) -> Operand:
        operands = [x.draft_difference(draft, _REAL), draft.constant(np.array(axes), "axes")]
        total = draft.node("ReduceSum", operands, {"keepdims": 1}, dtype=_REAL)
        multiplier = x.stored_parameters[0] / (step * np.float32(count))
        return draft_codes(draft, draft.op.Mul(total, multiplier), zero)

    return count, draft_average
