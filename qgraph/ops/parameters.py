"""Reading the inputs of a kernel: dtypes, shapes and values that its definition requires."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.graph.constants import constant

Array = npt.NDArray[Any]

_FLOATS = (np.float32, np.float16, np.float64, ml_dtypes.bfloat16)


def real_data(x: npt.ArrayLike) -> Array:
    """Return ``x`` as an array of a floating-point type.

    Raises: ValueError for another type.
    """
    data = np.asarray(x)
    if data.dtype not in _FLOATS:
        raise ValueError(
            f"its data is {data.dtype}, expected float32, float16, bfloat16 or float64; "
            "put a Cast in front of it"
        )
    return data


def broadcast(x: Array, **parameters: Array) -> tuple[int, ...]:
    """Return the common shape of the data and its parameters.

    Raises: ValueError naming the parameter that does not fit.
    """
    try:
        return np.broadcast(x, *parameters.values()).shape
    except ValueError:
        return _broadcast_each(x, parameters)


def _broadcast_each(x: Array, parameters: dict[str, Array]) -> tuple[int, ...]:
    shape = x.shape
    for name, value in parameters.items():
        try:
            shape = np.broadcast_shapes(shape, value.shape)
        except ValueError as error:
            raise ValueError(
                f"{name} has shape {list(value.shape)}, which does not broadcast to data of shape "
                f"{list(x.shape)}; expected sizes that are 1 or equal to those of the data, "
                "counted from the last axis. Reshape it"
            ) from error
    return shape


def whole(name: str, value: npt.ArrayLike, lo: int, hi: int | None = None) -> npt.NDArray[Any]:
    """Return ``value`` in float32 after checking that it holds whole numbers in ``lo`` .. ``hi``.

    Raises: ValueError naming the first one that is not.
    """
    numbers = np.asarray(value).astype(np.float32)
    top = np.inf if hi is None else hi
    if numbers.size == 1 and (number := float(numbers.item())).is_integer() and lo <= number <= top:
        return numbers
    wrong = ~((numbers >= lo) & (numbers <= top) & (numbers == np.rint(numbers)))
    wrong |= np.isinf(numbers)
    if wrong.any():
        limits = f"from {lo} to {hi}" if hi is not None else f"of at least {lo}"
        raise ValueError(
            f"{name} is {numbers[wrong].flat[0]:g}, expected a whole number {limits}. "
            "Correct the model's exporter"
        )
    return numbers


def power_of_two(exponent: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return ``2 ** exponent`` of whole numbers, exactly; NumPy's exp2 is not at 127."""
    return np.ldexp(np.float32(1), exponent.astype(np.int32))


def element_type(value: ir.Value | None) -> ir.DataType | None:
    """Return the element type of a value where the graph or its constant tells it."""
    if value is None:
        return None
    if value.dtype is not None:
        return value.dtype
    if value.const_value is not None:
        return value.const_value.dtype
    known = constant(value)
    return None if known is None else ir.DataType.from_numpy(known.dtype)


def require_float32(name: str, kind: ir.DataType | None) -> None:
    """Refuse a type in which a definition, written in float32, would not be true.

    An unknown type passes: it comes from a graph without types.

    Raises: ValueError.
    """
    if kind not in (None, ir.DataType.UNDEFINED, ir.DataType.FLOAT):
        raise ValueError(
            f"its {name} is {kind.name}, but definitions are written in FLOAT. "
            "Convert the model to float32 first, or leave this node out"
        )
