"""Whether operators meet zeros of both signs, of which ONNX leaves open which one they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

_PICKS = frozenset({"Clip", "Max", "Min", "Relu"})


def meets_both_zeros(node: ir.Node, known: Mapping[ir.Value, Any]) -> bool:
    """Return whether a node takes one of two zeros of different signs.

    Args:
        node: any node.
        known: its operands.
    """
    if node.domain != "" or node.op_type not in _PICKS:
        return False
    arrays = [np.asarray(known[value]) for value in node.inputs if value is not None]
    if any(array.dtype.kind in "iub" for array in arrays):
        return False
    if node.op_type == "Relu":
        arrays.append(np.zeros((), arrays[0].dtype))
    zeros = [array == 0 for array in arrays]
    signs = [np.signbit(array.astype(np.float32)) for array in arrays]
    minus = [np.asarray(zero & sign).any() for zero, sign in zip(zeros, signs, strict=True)]
    plus = [np.asarray(zero & ~sign).any() for zero, sign in zip(zeros, signs, strict=True)]
    return any(
        (minus[one] and plus[other]) or (plus[one] and minus[other])
        for one in range(len(arrays))
        for other in range(one)
    )
