"""NaN that a model computes from its constants, whatever its inputs are.

A quantizer with an infinite scale, as exporters write it for a mask of minus infinity, makes NaN of
every finite number: ``x / inf`` is 0, and ``0 * inf`` is NaN. A NaN in a small constant does the
same, an infinite factor does it of 0, and a Softmax of elements that are all masked by minus
infinity. A proof must not assume that no NaN reaches regions behind them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from qgraph.certificate import RegionVerdict
from qgraph.exactness import ProofVerdict
from qgraph.graph.constants import constant, constant_tensor
from qgraph.graph.scopes import node_name
from qgraph.graph.slices import reached
from qgraph.numerics import Float64
from qgraph.reasons import CONSTANT_NAN

_MOST_ELEMENTS = 1 << 12
"""Maximum number of elements of a constant that is examined."""

_SCALED = frozenset({"DequantizeLinear", "Quant", "QuantizeLinear"})
"""Operators whose second operand is a scale."""

_MULTIPLIED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Mul"})
"""Operators that multiply their first two operands."""


def without_nans(regions: Sequence[RegionVerdict], nodes: Iterable[ir.Node]) -> list[RegionVerdict]:
    """Leave proved regions undecided if a NaN of constants reaches them and is not kept.

    ``nodes`` are those of the reference.
    """

    def is_lossy(region: RegionVerdict) -> bool:
        is_proved = region.verdict is ProofVerdict.PROVED
        return region.nan_differs and is_proved and bool(region.entries)

    if not any(map(is_lossy, regions)):
        return list(regions)
    causes = {str(value.name): cause for value, cause in _nans_of_constants(nodes).items()}
    left = []
    for region in regions:
        if is_lossy(region) and (cause := causes.get(region.entries[0][0])):
            reason = CONSTANT_NAN(f"NaN reaches it: {cause}")
            region = replace(region, verdict=ProofVerdict.UNDECIDED, exactness=None, reason=reason)
        left.append(region)
    return left


def _nans_of_constants(nodes: Iterable[ir.Node]) -> dict[ir.Value, str]:
    """Return the values that a NaN of constants may reach, each with the cause.

    Integers, such as the codes of a QuantizeLinear, end the way of a NaN. Constants with more
    elements than scales and masks usually have are not examined.
    """
    causes: dict[ir.Value, str] = {}
    for node, cause in _sources(nodes):
        causes |= dict.fromkeys(_floats([node]), cause)
    for value, following in reached(list(causes), _following).items():
        for each in following:
            causes.setdefault(each, causes[value])
    return causes


def _following(value: ir.Value) -> list[ir.Value]:
    return _floats(node for node, _ in value.uses())


def _floats(nodes: Iterable[ir.Node]) -> list[ir.Value]:
    results = [value for node in nodes for value in node.outputs]
    return [v for v in results if v.dtype is None or v.dtype.is_floating_point()]


def _sources(nodes: Iterable[ir.Node]) -> Iterator[tuple[ir.Node, str]]:
    special: dict[ir.Value, tuple[bool, bool]] = {}
    for node in nodes:
        if node.op_type in ("LogSoftmax", "Softmax") and (mask := _full_mask(node)):
            yield (
                node,
                f"mask {mask.name!r} leaves no element to {node.op_type} {node_name(node)!r}",
            )
        for index, value in enumerate(node.inputs):
            if value is None:
                continue
            if value not in special:
                special[value] = _special(value)
            has_nan, has_infinity = special[value]
            if has_nan:
                yield node, f"constant {value.name!r} has a NaN"
            elif has_infinity and index == 1 and node.op_type in _SCALED:
                yield node, f"the scale of {node.op_type} {node_name(node)!r} is infinite"
            elif has_infinity and index and node.op_type == "FakeQuantize":
                yield node, f"a limit of {node.op_type} {node_name(node)!r} is infinite"
            elif has_infinity and index < 2 and node.op_type in _MULTIPLIED:
                yield node, f"a factor of {node.op_type} {node_name(node)!r} is infinite"


def _full_mask(node: ir.Node) -> ir.Value | None:
    """Return the constant that is added before a Softmax if it masks a whole last axis."""
    masked = node.inputs[0].producer() if node.inputs[0] is not None else None
    if masked is None or masked.op_type != "Add":
        return None
    for value in masked.inputs:
        array = None if value is None else _examined(value)
        if array is not None and array.ndim and np.isneginf(array).all(axis=-1).any():
            return value
    return None


def _special(value: ir.Value) -> tuple[bool, bool]:
    """Return whether a small constant has a NaN, and an infinity."""
    array = _examined(value)
    if array is None:
        return False, False
    return bool(np.isnan(array).any()), bool(np.isinf(array).any())


def _examined(value: ir.Value) -> Float64 | None:
    """Return a small constant of real numbers."""
    tensor = constant_tensor(value)
    if tensor is None or not tensor.dtype.is_floating_point():
        return None
    if math.prod(tensor.shape.numpy()) > _MOST_ELEMENTS:
        return None
    return np.asarray(constant(value), np.float64)
