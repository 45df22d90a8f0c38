"""Where that limits data, or replaces the first or last level of a quantizer by a constant.

Definitions clamp by ``Where(x > high, high, x)``, which keeps the sign of zero.

By definition, FakeQuantize gives the end of its output range for data beyond its input range. Often
the formula for the data within misses this end by an ulp, so exact forms select it::

    codes = QuantizeLinear((x - low) / (high - low) * 255)     255 for x >= high
    inside = codes / 255 * (top - bottom) + bottom             one number for x >= high
    y = Where(x > high, top, inside)

Interval arithmetic shows that ``inside`` is a single number for all selected ``x``. So ``y`` is
``inside``, with an error that is larger by the distance of the two constants.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from qgraph.graph.scopes import producer_of
from qgraph.graph.sizes import fixed_sizes
from qgraph.graph.slices import between, sources
from qgraph.numerics import Array, Float64
from qgraph.proof.bounds.evaluate import traced
from qgraph.proof.bounds.quantity import Operand
from qgraph.proof.bounds.rule import NodeCall, bound_rule
from qgraph.proof.functions.expression import Builder
from qgraph.proof.functions.interval import Interval, settled
from qgraph.proof.functions.lowering import Template, lower
from qgraph.proof.functions.program import PairProgram
from qgraph.reasons import Undecidable
from qgraph.records import dataclass, replace

_LARGER = "Greater", "GreaterOrEqual"
_SMALLER = "Less", "LessOrEqual"

_MOST_VALUES = 32
"""Maximum number of values from the data to the selected result."""

_WIDER = 2.0**-18
"""Part by which limits are moved: runtimes may multiply by a reciprocal instead of dividing."""


@dataclass(frozen=True, eq=False)
class _Selection:
    """A Where of a constant and of data, by a comparison with a limit.

    Attributes:
        x: the compared data.
        limit: the constant with which it is compared.
        is_above: whether the constant is selected above the limit, not below.
        replacing: the selected constant.
        index: the input of the Where that is selected otherwise.
    """

    x: ir.Value
    limit: Array
    is_above: bool
    replacing: Array
    index: int


@bound_rule("Where")
def where(call: NodeCall) -> Operand:
    """Return the limited data, or the data whose replaced part is constant."""
    selection = _selection_of(call)
    if selection is not None and _is_clamp(call, selection):
        limit = call.tracer.Min if selection.is_above else call.tracer.Max
        return limit(call.operand(selection.index), selection.limit)
    apart = None if selection is None else _distance(call, selection)
    if selection is None or apart is None:
        return traced(call)
    y = call.quantity(selection.index)
    return replace(y, absolute=y.absolute + apart, unit=None, operation=None)


def _is_clamp(call: NodeCall, selection: _Selection) -> bool:
    is_compared = call.value(selection.index) is selection.x
    return is_compared and np.array_equal(selection.limit, selection.replacing)


def _selection_of(call: NodeCall) -> _Selection | None:
    """Return the parts of a Where; None for other conditions and types."""
    test = producer_of(call.value(0), *_LARGER, *_SMALLER)
    if test is None:
        return None
    is_above, (x, limit) = test.op_type in _LARGER, test.inputs
    if call.array(x) is not None:
        is_above, x, limit = not is_above, limit, x
    limits, branches = call.array(limit), [call.array(call.value(index)) for index in (1, 2)]
    if x is None or limits is None or x.dtype != ir.DataType.FLOAT:
        return None
    index = 2 if branches[1] is None else 1
    replacing = branches[2 - index]
    if replacing is None:
        return None
    return _Selection(x, limits, is_above == (index == 2), replacing, index)


def _distance(call: NodeCall, selection: _Selection) -> Float64 | None:
    """Return how far the selected constant is from the number that it replaces.

    Returns None if it is not shown that it replaces a single number in each channel.
    """
    y, x = call.value(selection.index), selection.x
    nodes = None if y is None else _nodes(call, y, x)
    if y is None or not nodes:
        return None
    builder, margin = Builder(), np.abs(selection.limit) * np.float32(_WIDER)
    try:
        if selection.is_above:
            beyond = builder.Max(builder.input, selection.limit - margin)
        else:
            beyond = builder.Min(builder.input, selection.limit + margin)
        inside = lower(nodes, x, y, fixed_sizes(x) or (), builder, constants=call.array)
        selected = Template.of(inside, [builder.input]).over(builder, [beyond])
        program = PairProgram(selected, builder.constant(selection.replacing))
        kinds = np.arange(len(program.count))
        every = np.full(kinds.shape, np.inf, np.float32)
        with np.errstate(all="ignore"):
            replaced, constant = program.intervals(Interval(-every, every), kinds)
    except Undecidable:
        return None
    masks = [mask for mask in (replaced.bad, constant.bad) if mask is not None]
    if not settled(replaced).all() or any(mask.any() for mask in masks):
        return None
    numbers = replaced.lo.astype(np.float64), constant.lo.astype(np.float64)
    apart = np.asarray(np.max(np.abs(numbers[0] - numbers[1])))
    return apart if np.isfinite(apart) else None


def _nodes(call: NodeCall, y: ir.Value, x: ir.Value) -> Sequence[ir.Node] | None:
    """Return the nodes that compute ``y`` from ``x`` and constants; None if there are others."""

    def step(value: ir.Value) -> list[ir.Value]:
        return [source for source in sources(value) if call.array(source) is None]

    return between(y, [x], step, most=_MOST_VALUES)
