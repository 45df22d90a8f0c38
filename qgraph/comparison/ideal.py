"""Compute ideal values on data: the operators in real arithmetic, computed in float64.

Constants are the same as for bounds: executed codes, and everything else in real arithmetic. So
results equal the ideal values of the bounds, up to float64 rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from qgraph.comparison.definitions import Definitions
from qgraph.errors import QGraphError
from qgraph.graph.schema import OpKey
from qgraph.numerics import Array, Float64
from qgraph.numerics.primitives import NUMPY
from qgraph.ops.dispatch import kernel_for
from qgraph.ops.integer.pairs import read_pair
from qgraph.ops.integer.products import SIGNATURES, Result, read_product
from qgraph.ops.integer.sums import Factor, Parameter
from qgraph.ops.operator import operator_of
from qgraph.proof.bounds.evaluate import Evaluation
from qgraph.reasons import NO_BOUND, NOT_COMPUTED, Undecidable


def ideal(
    nodes: Sequence[ir.Node],
    known: dict[ir.Value, Array],
    wanted: ir.Value,
    definitions: Definitions,
    *,
    of_codes: bool = False,
) -> Float64:
    """Return the results of nodes in real arithmetic.

    Args:
        nodes: in topological order.
        known: the values at which they begin; changed.
        wanted: the value to return.
        definitions: the definitions of the model of the nodes.
        of_codes: return the numbers that an operator on codes rounds to this value.

    Raises:
        Undecidable: a node has neither a definition nor a kernel for float64.
    """
    for node in nodes:
        if all(value not in known for value in node.inputs):
            continue
        try:
            if of_codes and wanted in node.outputs:
                return _steps(node, known, definitions.evaluation)
            results = _results(node, known, definitions)
        except (QGraphError, ValueError, TypeError, IndexError, NotImplementedError) as error:
            raise Undecidable(NOT_COMPUTED(f"{node.op_type}: {error}")) from error
        known |= zip(node.outputs, results, strict=False)
    if wanted not in known:
        raise Undecidable(NOT_COMPUTED(f"{wanted.name!r} does not depend on the inputs"))
    return np.asarray(known[wanted], np.float64)


def _results(
    node: ir.Node, known: Mapping[ir.Value, Array], definitions: Definitions
) -> Sequence[Array]:
    is_primitive = not node.domain and node.op_type in NUMPY and node.op_type != "Gather"
    if operator_of(node) is not None or is_primitive:
        data = {value: known[value] for value in filter(None, node.inputs) if value in known}
        return [definitions.result(node, data)]
    side = definitions.evaluation
    is_integer = OpKey.of(node) in SIGNATURES
    operands = [None if v is None else _operand(v, known, side, is_integer) for v in node.inputs]
    with np.errstate(all="ignore"):
        return [np.asarray(y) for y in kernel_for(node, side.imports)(*operands)]


def _steps(node: ir.Node, known: Mapping[ir.Value, Array], side: Evaluation) -> Float64:
    """Return the numbers that an operator on codes rounds, in steps."""

    def real(value: Parameter | None) -> Float64:
        operand = _operand(value, known, side, True) if isinstance(value, ir.Value) else value
        return np.asarray(0 if operand is None else operand, np.float64)

    def shifted(factor: Factor) -> Float64:
        return real(factor.codes) - real(factor.zero_point)

    product, pair = read_product(node), read_pair(node)
    if pair is not None:
        parts = [shifted(each) * real(each.scale) for each in (pair.a, pair.b)]
        return NUMPY[pair.operation](*parts) / real(pair.scale) + real(pair.zero)
    if product is None or product.result is not Result.CODES:
        raise Undecidable(NO_BOUND(f"{node.op_type} does not show what it rounds"))
    sums = ir.node(product.kind, [product.a.codes, product.b.codes], product.attributes)
    total = kernel_for(sums, side.imports)(shifted(product.a), shifted(product.b))[0]
    bias = real(product.bias)
    total = total + (bias.reshape(-1, *[1] * (total.ndim - 2)) if product.kind == "Conv" else bias)
    total = (total + _HALF) % (2 * _HALF) - _HALF  # int32 wraps around
    unit = product.unit(lambda a, b: real(a) * real(b))
    return np.asarray(total * unit / real(product.encoding[0]))


_HALF = 2.0**31


def _operand(
    value: ir.Value, known: Mapping[ir.Value, Array], side: Evaluation, is_integer: bool
) -> Array:
    if value not in known and (value.dtype is None or not value.dtype.is_floating_point()):
        stored = side.executed(value)
        if stored is not None and stored.dtype.kind != "f":
            return stored
    array = known[value] if value in known else side.meant(value)
    if is_integer and value.dtype is not None and value.dtype.is_integer():
        return array.astype(value.dtype.numpy())
    return array
