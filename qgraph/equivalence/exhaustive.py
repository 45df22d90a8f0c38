"""Comparing a draft with its nodes on all values of a 16-bit floating type, one after the other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.dialects.dialect import Site
from qgraph.errors import OperatorError, UnsupportedError
from qgraph.exactness import Exactness, Method, Verdict, Witness
from qgraph.graph.edit import HALF_TYPES, Draft
from qgraph.graph.folding import array_of
from qgraph.numerics.formats import numpy_dtype
from qgraph.numerics.values import Comparison, compare_values, is_nan
from qgraph.ops.evaluate import evaluate
from qgraph.proof.cone import parameter_array
from qgraph.proof.expression import Undecidable

Array = npt.NDArray[Any]

_INPUTS = 1 << 16
_AT_ONCE = 1 << 22
"""Elements that are computed at once."""
_MOST_CHANNELS = 1 << 12


def enumerate_inputs(site: Site, draft: Draft, dtype: ir.DataType) -> Verdict:
    """Return how equal a draft is to its site on all 65,536 values of ``dtype``, in every channel.

    Both sides are computed by the kernels of their operators, in the type of the data.
    """
    try:
        shape = _channels(site, draft)
        free = [axis for axis, size in enumerate(shape) if size == 1]
        if not free or math.prod(shape) > _MOST_CHANNELS:
            return _undecided(f"its parameters of shape {list(shape)} leave no axis for all inputs")
        values = np.arange(_INPUTS, dtype=np.uint16).view(numpy_dtype(dtype.name))
        length = max(_AT_ONCE // math.prod(shape), 1)
        with np.errstate(invalid="ignore"):  # signalling NaN
            found = [
                _compare(site, draft, _laid(values[start : start + length], shape, free[0]))
                for start in range(0, _INPUTS, length)
            ]
    except (OperatorError, UnsupportedError, Undecidable) as error:
        return _undecided(str(error))
    return _verdict(found)


def is_half(dtype: ir.DataType | None) -> bool:
    """Return whether a type has few enough values to try them all."""
    return dtype in HALF_TYPES


def _channels(site: Site, draft: Draft) -> tuple[int, ...]:
    """Return the joint shape of all parameters, in the rank of the data."""
    shapes = [(1,) * max(len(site.shape), 1)]
    for region, x in ((site, site.x), (draft, draft.x)):
        made = {x, *(output for node in region.nodes for output in node.outputs)}
        for node in region.nodes:
            shapes += [
                parameter_array(node, value, site.shape).shape
                for value in node.inputs
                if value is not None and value not in made and array_of(value) is not None
            ]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise Undecidable(f"the shapes of the parameters do not fit: {error}") from error


def _laid(values: Array, shape: tuple[int, ...], axis: int) -> Array:
    sizes = [1] * len(shape)
    sizes[axis] = len(values)
    whole = [*shape]
    whole[axis] = len(values)
    return np.ascontiguousarray(np.broadcast_to(values.reshape(sizes), whole))


def _compare(site: Site, draft: Draft, x: Array) -> tuple[Comparison, bool, Witness | None]:
    """Compare at ``x``: at numbers, and whether anything differs at NaN."""
    reference = evaluate(site.nodes, site.x, site.y, x)
    candidate = evaluate(draft.nodes, draft.x, draft.y, x)
    if (reference.shape, reference.dtype) != (candidate.shape, candidate.dtype):
        kinds = [f"{side.dtype}{list(side.shape)}" for side in (reference, candidate)]
        raise Undecidable(f"the results are {kinds[0]} and {kinds[1]}")
    numbers = ~is_nan(x)
    at, one, other = x[numbers], reference[numbers], candidate[numbers]
    found = compare_values(one, other)
    nan_differs = compare_values(reference[~numbers], candidate[~numbers]).differing > 0
    witness = None
    if found.place is not None:
        witness = Witness(*(float(side[found.place]) for side in (at, one, other)))
    return found, nan_differs, witness


def _verdict(found: list[tuple[Comparison, bool, Witness | None]]) -> Verdict:
    nan_differs = any(nan for _, nan, _ in found)
    rung = min(part.rung for part, _, _ in found)
    if nan_differs and rung is Exactness.BITS:
        rung = Exactness.VALUES
    worst = [witness for part, _, witness in found if part.rung is rung and witness is not None]
    return Verdict(
        rung,
        Method.EXHAUSTIVE,
        sum(part.differing for part, _, _ in found),
        sum(part.zero_sign for part, _, _ in found),
        worst[0] if worst else None,
        "NaN is not kept" if nan_differs else None,
    )


def _undecided(reason: str) -> Verdict:
    return Verdict(None, Method.NONE, reason=reason)
