"""Whether some nodes compute a function that never decreases, by the engine or on all codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import ExecutionError, OperatorError, UnsupportedError
from qgraph.execution.executor import kernel_for
from qgraph.execution.plan import NodeStep
from qgraph.matching.elementwise import check_parameters
from qgraph.matching.normal.elementwise import aligned_parameter
from qgraph.matching.normal.rewriter import Rewriter
from qgraph.numerics.values import is_nan
from qgraph.proof.cone import lower
from qgraph.proof.expression import Builder, Undecidable, text
from qgraph.proof.monotone import never_decreases

Array = npt.NDArray[Any]

_NARROW_BITS = 16
_MOST_CHANNELS = 1 << 12


@dataclass(frozen=True)
class Order:
    """What is known of a function that never decreases.

    Attributes:
        keeps_bits: whether equal numbers have equal bits among its results, and NaN cannot occur,
            so that exchanging it with a maximum changes no bit.
    """

    keeps_bits: bool


def order_of(
    graph: Rewriter,
    nodes: Sequence[ir.Node],
    x: ir.Value,
    y: ir.Value,
    axes: Sequence[int],
    rank: int,
) -> Order | None:
    """Return what is known of ``y`` as a function of ``x``; None where it may decrease.

    Args:
        graph: what is rewritten.
        nodes: make ``y`` of ``x`` and constants, operands first.
        x: the variable.
        y: the result.
        axes: of the data, along which parameters must not vary.
        rank: of the data.
    """
    channels = _channels(graph, nodes, axes, rank)
    if channels is None or x.dtype is None:
        return None
    try:
        for node in nodes:
            check_parameters(node, graph.known.array)
        if x.dtype is ir.DataType.FLOAT:
            return _by_engine(graph, nodes, x, y, channels)
        if x.dtype.bitwidth <= _NARROW_BITS and x.dtype is not ir.DataType.BOOL:
            return _by_values(graph, nodes, x, y, channels, axes)
    except (ExecutionError, OperatorError, Undecidable, UnsupportedError, ValueError):
        return None
    return None


def _channels(
    graph: Rewriter, nodes: Sequence[ir.Node], axes: Sequence[int], rank: int
) -> tuple[int, ...] | None:
    """Return the shape to which all parameters broadcast; None where they vary along ``axes``."""
    shape: tuple[int, ...] = (1,) * rank
    for node in nodes:
        for value in node.inputs:
            if value is None or not graph.known.has(value):
                continue
            array = graph.array(value)
            aligned = None if array is None else aligned_parameter(node, array, rank)
            if aligned is None or any(aligned.shape[axis] != 1 for axis in axes):
                return None
            try:
                shape = np.broadcast_shapes(shape, aligned.shape)
            except ValueError:
                return None
    return shape if np.prod(shape) <= _MOST_CHANNELS else None


def _by_engine(
    graph: Rewriter,
    nodes: Sequence[ir.Node],
    x: ir.Value,
    y: ir.Value,
    channels: tuple[int, ...],
) -> Order | None:
    root = lower(nodes, x, y, channels, Builder(), constants=graph.known.array)
    key = text([root])
    if key not in graph.monotone:
        graph.monotone[key] = never_decreases(root)
    # data may be NaN, and results zeros of either sign
    return Order(keeps_bits=False) if graph.monotone[key] else None


def _by_values(
    graph: Rewriter,
    nodes: Sequence[ir.Node],
    x: ir.Value,
    y: ir.Value,
    channels: tuple[int, ...],
    axes: Sequence[int],
) -> Order | None:
    """Compute all values of a type of few bits, in every channel."""
    data = _all_values(x.dtype)
    axes = axes or [axis for axis, size in enumerate(channels) if size == 1]
    if not axes:
        return None
    sizes = list(channels)
    sizes[axes[0]] = data.size
    along = [1] * len(sizes)
    along[axes[0]] = data.size
    known: dict[ir.Value, Any] = {x: np.array(np.broadcast_to(data.reshape(along), sizes))}
    with np.errstate(all="ignore"):
        for node in nodes:
            for value in node.inputs:
                if value is not None and value not in known:
                    known[value] = graph.known.array(value)
            NodeStep(node, kernel_for(node, graph.imports)).run(known, frozenset())
    results = np.asarray(known[y])
    if results.shape != tuple(sizes) or is_nan(results).any():
        return None
    numbers = np.moveaxis(results.astype(np.float64), axes[0], 0)
    given = data.astype(np.float64)
    rises = numbers[1:] >= numbers[:-1]
    ties = (given[1:] == given[:-1]).reshape(-1, *[1] * (numbers.ndim - 1))
    if not (rises & (~ties | (numbers[1:] == numbers[:-1]))).all():
        return None
    whole = x.dtype is not None and x.dtype.is_integer()
    minus_zero = (numbers == 0) & np.signbit(numbers)
    return Order(keeps_bits=whole and not minus_zero.any())


def _all_values(kind: ir.DataType | None) -> Array:
    """Return all values of a type of few bits in ascending order, NaN left out."""
    if kind is None:
        raise ValueError("the type is not known")
    dtype = np.dtype(kind.numpy())
    if kind.is_integer():
        bits = int(kind.bitwidth)
        low = -(1 << (bits - 1)) if kind.is_signed() else 0
        return np.arange(low, low + (1 << bits)).astype(dtype)
    patterns = np.arange(1 << int(kind.bitwidth), dtype=f"u{dtype.itemsize}").view(dtype)
    numbers = patterns[~is_nan(patterns)]
    return numbers[np.argsort(numbers.astype(np.float64), kind="stable")]
