"""NaN that a model computes from its constants, whatever its inputs are.

A quantizer with an infinite scale, as exporters write it for a mask of minus infinity, makes NaN of
every finite number: ``x / inf`` is 0, and ``0 * inf`` is NaN. A NaN in a small constant does the
same. A proof must not assume that no NaN reaches regions behind them.
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
from qgraph.reasons import CONSTANT_NAN

_MOST_ELEMENTS = 1 << 12
"""Maximum number of elements of a constant that is examined."""

_SCALED = frozenset({"DequantizeLinear", "Quant", "QuantizeLinear"})
"""Operators whose second operand is a scale."""


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


def _special(value: ir.Value) -> tuple[bool, bool]:
    """Return whether a small constant has a NaN, and an infinity."""
    tensor = constant_tensor(value)
    if tensor is None or not tensor.dtype.is_floating_point():
        return False, False
    if math.prod(tensor.shape.numpy()) > _MOST_ELEMENTS:
        return False, False
    array = np.asarray(constant(value), np.float64)
    return bool(np.isnan(array).any()), bool(np.isinf(array).any())
