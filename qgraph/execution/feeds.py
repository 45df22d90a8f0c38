"""Whether the arrays that a caller feeds fit the inputs of a graph."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import ExecutionError

MODERATE = 2.0**30
"""A magnitude far below the largest float, and far above what networks are fed."""


def is_moderate(given: Any) -> bool:
    """Return whether ``given`` is an array of numbers of a magnitude up to ``MODERATE``.

    NaN and infinities are none. Arrays of other types than float32 are not looked at.
    """
    if not isinstance(given, np.ndarray):
        return False
    if given.dtype != np.float32:
        return True
    # The sum of squares is NaN or infinite where an element is: one pass, and no copy.
    flat = given.reshape(-1)
    with np.errstate(all="ignore"):
        return bool(np.dot(flat, flat) <= MODERATE**2)


def check_feeds(
    graph: ir.Graph, inputs: Mapping[str, npt.ArrayLike | Sequence[Any]]
) -> dict[ir.Value, Any]:
    """Return what is fed to each input of ``graph``, as arrays.

    Arrays have to have the type and the static dimensions of the input exactly; Python numbers
    and lists are converted when that changes no kind of number. Initializers that are listed as
    inputs may be fed, too; sequences and optionals are passed on unchecked.

    Raises:
        ExecutionError: a name is unknown, a needed input is missing, or an array does not fit.
    """
    known = {value.name: value for value in graph.inputs}
    for name in inputs:
        if name not in known:
            raise ExecutionError(_unknown(graph, name))
    fed = {}
    for value in graph.inputs:
        name = str(value.name)
        if name in inputs:
            fed[value] = _fit(graph, value, inputs[name])
        elif not value.is_initializer():
            raise ExecutionError(
                f"Input {describe(value)} of graph {graph.name!r} is not fed; given are "
                f"{sorted(inputs) or 'no inputs'}. Feed an array under this name."
            )
    return fed


def describe(value: ir.Value) -> str:
    """Return name, type and shape of a value for a message: ``'x' (FLOAT[N,1,8,8])``."""
    dtype = value.dtype.name if value.dtype else "of unknown type"
    dims = "[?]" if value.shape is None else f"[{','.join(map(str, value.shape.dims))}]"
    return f"{value.name!r} ({dtype}{dims})"


def static(dim: int | ir.SymbolicDim | None) -> int | None:
    """Return the size of a dimension, None when it is dynamic; some exporters write -1 for that."""
    return dim if isinstance(dim, int) and dim >= 0 else None


def _unknown(graph: ir.Graph, name: str) -> str:
    names = [str(value.name) for value in graph.inputs]
    needed = [describe(value) for value in graph.inputs if not value.is_initializer()]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else "Feed these names."
    expected = ", ".join(needed) or "none"
    return f"Graph {graph.name!r} has no input {name!r}, expected {expected}. {hint}"


def _fit(graph: ir.Graph, value: ir.Value, given: Any) -> Any:
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        return given
    expected = f"Input {describe(value)} of graph {graph.name!r} is fed"
    wanted = None if value.dtype is None else value.dtype.numpy()
    array = np.asarray(given)
    if value.dtype == ir.DataType.STRING and array.dtype.kind in "UT":
        array = array.astype(object)
    if wanted is not None and array.dtype != wanted:
        # Arrays are taken as they are: a silent change of their type would hide a mistake.
        if hasattr(given, "dtype") or not np.can_cast(array.dtype, wanted, "same_kind"):
            raise ExecutionError(
                f"{expected} an array of {array.dtype}. Convert it to {wanted} first, as by "
                f"x.astype({str(wanted)!r})."
            )
        array = array.astype(wanted)
    if value.shape is None:
        return array
    sizes = [static(dim) for dim in value.shape.dims]
    fits = len(sizes) == array.ndim and all(
        size is None or size == n for size, n in zip(sizes, array.shape, strict=True)
    )
    if not fits:
        raise ExecutionError(
            f"{expected} an array of shape {list(array.shape)}. Give it the shape of the input; "
            "its dimensions without a number are free."
        )
    return array
