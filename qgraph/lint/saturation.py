"""Find pairs of products of UINT8 and INT8 that exceed 16 bits on processors without VNNI.

They multiply four codes of data by four weights, and add neighbours with saturation to -32768 and
32767 before anything else (vpmaddubsw). Neighbours are elements 2i and 2i + 1 along the axis that
is added up; those of a Conv are channels at one position, as kernels with channels last have them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qgraph.lint.facts import ModelFacts
from qgraph.lint.seen import Saturation
from qgraph.numerics import Array

_LIMITS = -32768, 32767
_MOST_ROWS = 64
"""Number of rows of data that are tried for each pair: those with the largest codes."""

_MOST_WEIGHTS = 1 << 22


def saturation_of(facts: ModelFacts, node: ir.Node, x: Array, batch: int) -> Saturation | None:
    """Return the saturation of a layer on codes of data; None if none was found.

    Args:
        facts: about the model.
        node: the layer; its weights are constant codes.
        x: codes of its data.
        batch: number of the batch.
    """
    decoder = facts.decoder_of(node.inputs[1])
    codes = None if decoder is None else facts.stored(decoder)
    if codes is None or codes.size > _MOST_WEIGHTS:
        return None
    operands = _rows(node, x, codes.array())
    if operands is None:
        return None
    data, weights = operands
    worst: Saturation | None = None
    channels: set[int] = set()
    for first in range(0, data.shape[1] - 1, 2):
        pair = data[:, first : first + 2]
        chosen = np.argsort(-(pair[:, 0] + pair[:, 1]), kind="stable")[:_MOST_ROWS]
        sums = np.tensordot(pair[chosen], weights[first : first + 2], (1, 0))
        sums = sums.reshape(chosen.size, -1, weights.shape[-1])
        wrong = (sums < _LIMITS[0]) | (sums > _LIMITS[1])
        if not wrong.any():
            continue
        channels.update(np.flatnonzero(wrong.any((0, 1))).tolist())
        row, tap, channel = np.unravel_index(np.abs(sums).argmax(), sums.shape)
        total = int(sums[row, tap, channel])
        if worst is None or abs(total) > abs(worst.total):
            w = weights[first : first + 2].reshape(2, -1, weights.shape[-1])[:, tap, channel]
            x0, x1 = (int(code) for code in pair[chosen[row]])
            pairs = (x0, x1), (int(w[0]), int(w[1]))
            worst = Saturation(0, int(channel), batch, int(chosen[row]), first, *pairs, total)
    if worst is None:
        return None
    return Saturation(**{**vars(worst), "channels": len(channels)})


def _rows(node: ir.Node, x: Array, weights: Array) -> tuple[Array, Array] | None:
    """Return data ``[rows, summed]`` and weights ``[summed, places, channels]``, or None."""
    x, weights = x.astype(np.int64), weights.astype(np.int64)
    if node.op_type == "Conv":
        groups: int = node.attributes.get_int("group", 1)
        if groups != 1 or x.ndim < 3:
            return None
        rows = np.moveaxis(x, 1, -1).reshape(-1, x.shape[1])
        return rows, np.moveaxis(weights.reshape(*weights.shape[:2], -1), 0, -1)
    flips: list[int] = [node.attributes.get_int(name, 0) for name in ("transA", "transB")]
    if weights.ndim != 2 or flips[0]:
        return None
    if flips[1]:
        weights = weights.T
    return x.reshape(-1, x.shape[-1]), weights[:, None, :]
