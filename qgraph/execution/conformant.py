"""Decide for which quantizer nodes and inputs ONNX Runtime follows the definitions of ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.graph.edit import HALF_TYPES
from qgraph.graph.scopes import inputs_of

MODERATE = 2.0**30
"""A magnitude far below the largest float, and far above usual inputs of networks."""

_NARROW = frozenset({ir.DataType.INT2, ir.DataType.UINT2, ir.DataType.INT4, ir.DataType.UINT4})


def is_moderate(array: Any) -> bool:
    """Return whether all numbers of the array ``given`` have a magnitude of at most ``MODERATE``.

    NaN and infinities are not moderate. Arrays of other types than float32 are not checked.
    """
    if not isinstance(array, np.ndarray) or array.dtype != np.float32:
        return isinstance(array, np.ndarray)
    # The sum of squares is NaN or infinite where an element is: one pass, and no copy.
    flat = array.reshape(-1)
    with np.errstate(all="ignore"):
        return bool(np.dot(flat, flat) <= MODERATE**2)


def is_conformant(node: ir.Node) -> bool:
    """Return whether ONNX Runtime is known to compute a node by its definition.

    It does not (ONNX Runtime 1.31, CPU):

    * QuantizeLinear to 2 or 4 bits, where ``|x / scale|`` reaches 2**31;
    * QuantizeLinear in blocks along another axis than the last, there likewise;
    * QuantizeLinear of float16, which it divides in float32;
    * QuantizeLinear or Cast to an 8-bit float without saturation, close to the overflow.
    """
    if node.op_type == "Cast" and node.domain == "":
        return not _overflows(node, ir.DataType(node.attributes.get_int("to", 1)))
    if node.op_type != "QuantizeLinear":
        return True
    x, scale, zero_point = inputs_of(node, 3)
    dtype = ir.DataType(node.attributes.get_int("output_dtype", 0))
    if zero_point is not None and zero_point.dtype is not None:
        dtype = zero_point.dtype
    inputs = {value.dtype for value in (x, scale) if value is not None}
    blocked = node.attributes.get_int("block_size", 0) > 0
    last = -1 if x is None or x.shape is None else len(x.shape) - 1
    return not (
        dtype in _NARROW
        or (blocked and node.attributes.get_int("axis", 1) not in (-1, last))
        or inputs & {*HALF_TYPES}
        or _overflows(node, dtype)
    )


def _overflows(node: ir.Node, target: ir.DataType) -> bool:
    """Return whether ``node`` lets values beyond an 8-bit float become infinite or NaN."""
    is_float8 = target.name.startswith("FLOAT8") and target is not ir.DataType.FLOAT8E8M0
    return is_float8 and node.attributes.get_int("saturate", 1) == 0
