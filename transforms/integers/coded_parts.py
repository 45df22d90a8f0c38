"""What operators on codes absorb: a bias of real numbers, and clamping that saturation does."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.graph.folding import constant_expression

Array = npt.NDArray[Any]

_LARGEST = 2**31 - 1


def bias_codes(total: ir.Node, bias: Array, unit: Array) -> tuple[Array, bool]:
    """Return a bias as int32 codes in units of both scales, and whether it is the same.

    Args:
        total: the node that adds it.
        bias: real numbers, ``[channels]``.
        unit: product of both scales, one or ``[channels, 1, ..]``.

    Raises:
        OperatorError: the codes leave int32, or there are several biases for a channel.
    """
    flat = bias.reshape(-1)
    units = unit.reshape(-1)
    if bias.shape[-1:] not in ((), (flat.size,)) or units.size not in (1, flat.size):
        raise OperatorError(
            f"{where(total)}: its bias has shape {list(bias.shape)}, expected one number for each "
            "channel"
        )
    with np.errstate(all="ignore"):
        codes = np.rint(flat.astype(np.float64) / units)
        if not (np.abs(codes) <= _LARGEST).all():
            raise OperatorError(
                f"{where(total)}: its bias is {flat[np.abs(codes).argmax()]:g}, which is too large "
                "for int32 codes in units of the product of both scales"
            )
        whole = codes.astype(np.int32)
        again = whole.astype(np.float32) * units
    return whole, bool((again == flat).all())


def check_saturation(clamp: ir.Node, scale: Array, zero_point: Array) -> None:
    """Refuse a Relu or Clip that does more than the QuantizeLinear after it.

    Rounding is monotone: if the lower bound has the lowest code, whatever is below gets it anyway.

    Raises:
        OperatorError: a bound lies inside the range of the codes, or is known at run time only.
    """
    limits = np.iinfo(zero_point.dtype)
    low, high = _bounds(clamp) if clamp.op_type == "Clip" else (np.float32(0), None)
    zero = int(zero_point)
    with np.errstate(all="ignore"):
        if low is not None and not np.rint(low / scale) + zero <= limits.min:
            raise OperatorError(f"{where(clamp)}: its lower bound {low:g} has no lowest code")
        if high is not None and not np.rint(high / scale) + zero >= limits.max:
            raise OperatorError(f"{where(clamp)}: its upper bound {high:g} has no highest code")


def _bounds(clamp: ir.Node) -> tuple[Any, Any]:
    found = []
    for place, name in ((1, "min"), (2, "max")):
        value = clamp.inputs[place] if place < len(clamp.inputs) else None
        array = constant_expression(value)
        if value is not None and (array is None or array.size != 1):
            raise OperatorError(f"{where(clamp)}: its bound {name} is known at run time only")
        old = clamp.attributes.get_float(name)
        found.append(old if array is None else array.reshape(())[()])
    return found[0], found[1]
