"""MatMulNBits: products with weights that are stored as blocks of narrow codes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qgraph.errors import UnsupportedError
from qgraph.graph.schema import MICROSOFT, OpKey
from qgraph.ops.approximation import FLOAT32
from qgraph.ops.kernels.mat_mul_n_bits import ROUNDS_DATA, Weights
from qgraph.ops.taps import RIGHT
from qgraph.proof.bounds.events import Operand
from qgraph.proof.bounds.quantity import Quantity, of_constant, stored
from qgraph.proof.bounds.rule import NodeCall, bound_rule
from qgraph.proof.rules.products import sum_in

_DECODING = 2
"""Roundings of a term if blocks are scaled after they are added."""


@bound_rule(OpKey(MICROSOFT, "MatMulNBits"))
def mat_mul_n_bits(call: NodeCall) -> Operand:
    """``a @ w.T + bias``, where w are decoded codes."""
    if call.whole("accuracy_level") == ROUNDS_DATA:
        raise call.refusal("accuracy level 4 rounds the data to 8 bits")
    weights, x = _weights(call), call.quantity(0)
    total = sum_in(call, x, weights, RIGHT, call.constant(5), _DECODING)
    arithmetic = call.tracer.arithmetic
    if arithmetic.unit == FLOAT32.unit:
        return total
    # Runtimes decode to float32, or to the type of the data.
    narrow = stored(weights, arithmetic.name).numbers
    moved = np.abs(narrow - weights.numbers).sum(axis=1) * (1 + 2.0**-40)
    return replace(total, absolute=total.absolute + moved * float(np.max(x.reach)))


def _weights(call: NodeCall) -> Quantity:
    """Return the decoded weights ``[n, k]``: codes less zero points, times scales."""
    arrays = [call.array(call.value(index)) for index in range(1, 5)]
    for index, array in enumerate(arrays, 1):
        if call.value(index) is not None and array is None:
            raise call.refusal("weights that are not constant")
    codes, scales, points, groups = arrays
    if codes is None or scales is None:
        raise call.refusal("weights are missing")
    try:
        layout = Weights.of(call.node)
        ones = np.ones(scales.shape, np.float32)
        whole = layout.values(codes, ones, points, groups).astype(np.float64)
        value = layout.values(codes, scales, points, groups).astype(np.float64)
        steps = layout.scales(scales).astype(np.float64)
        blocks = np.arange(layout.k) // layout.size if groups is None else layout.groups(groups)
    except (UnsupportedError, ValueError) as error:
        raise call.refusal(str(error)) from error
    spread = steps[:, blocks]
    return of_constant(value, whole * spread, (spread, whole))
