"""Matrix products of two tensors of data.

The result is an atom of both operands. Their factors are its coefficient, so the atom does not
change if scales are merged into other nodes.
"""

from __future__ import annotations

import numpy as np

from qgraph.numerics import Float64
from qgraph.ops.approximation import SLACK, granules, product, rounded, sum_of
from qgraph.ops.sums_of_products import added_up
from qgraph.proof.bounds.combination import Combination
from qgraph.proof.bounds.quantity import Quantity
from qgraph.proof.bounds.rule import NodeCall, shape_of

_ONE = np.ones(())


def product_of_data(
    call: NodeCall,
    a: Quantity,
    b: Quantity,
    *,
    factor: Float64 = _ONE,
    bias: Quantity | None = None,
    more: int = 0,
    is_integer: bool = False,
) -> Quantity:
    """Return ``factor * a @ b + bias``, with one bound for all elements of the product.

    Args:
        call: the node.
        a: its first operand.
        b: its second operand.
        factor: factor of the product.
        bias: one more term.
        more: roundings of each term besides those of its product and of additions.
        is_integer: whether integers are added, without rounding.

    Raises:
        Undecidable: the number of terms is not known.
    """
    axis = -2 if call.whole("transA") else -1
    size, count = shape_of(call.value(0))[axis], call.most([axis])
    a, b = (_alike(each) for each in (a, b))
    (one, x), (other, y) = a.meant.factored, b.meant.factored
    key = size, call.rank(1) == 1  # a vector is a column, also where it broadcasts to rows
    ends = _ends(x, y, count)
    if count != size:
        ends = np.minimum(ends[0], 0.0), np.maximum(ends[1], 0.0)
    atom = call.tracer.atoms.make("matmul", key, (x, y), ends, slope=float(count))
    meant = Combination.of(atom).times(one * other * factor)
    low, high = meant.range
    error = product(a.largest, b.error) + product(b.largest, a.error) + product(a.error, b.error)
    unit = None if a.unit is None or b.unit is None else a.unit * b.unit
    if unit is not None:
        unit = unit * granules(factor)
    exact = Quantity(meant, low, high, count * error * np.abs(factor), unit=unit)
    if is_integer:
        return exact
    counts, reach = float(count), count * product(a.reach, b.reach) * np.abs(factor)
    if bias is not None:
        exact, counts, reach = sum_of(exact, bias), counts + 1, reach + bias.reach
    total = added_up(exact, np.asarray(counts), reach, call.sums, more=more)
    if call.sums.unit >= call.tracer.arithmetic.unit:
        return total
    return rounded(total, call.tracer.arithmetic)


def _alike(x: Quantity) -> Quantity:
    """Return data with one range and one error for all its elements."""
    unit = None if x.granule is None else np.asarray(x.granule.min())
    ends = np.asarray(x.low.min()), np.asarray(x.high.max())
    return Quantity(x.meant, *ends, np.asarray(np.max(x.error)), unit=unit)


def _ends(x: Combination, y: Combination, count: int) -> tuple[Float64, Float64]:
    """Return bounds of sums of products, rounded outwards."""
    (a, b), (c, d) = ((each.range[0].min(), each.range[1].max()) for each in (x, y))
    ends = [count * float(product(np.asarray(i), np.asarray(j))) for i in (a, b) for j in (c, d)]
    low, high = min(ends), max(ends)
    slack = SLACK * max(abs(low), abs(high))
    return np.asarray(low - slack), np.asarray(high + slack)
