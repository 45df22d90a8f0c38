"""Decide whether a difference in a value reaches an output.

Values that differ may become equal further on: a Relu or a quantizer maps many numbers to one, a
bias may move all sums beyond the limit of a Clip, and ``Sub(y, y)`` is zero for every ``y``. So a
difference certainly reaches an output only through operators that move elements. After other
operators, a run has to show it.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from qgraph.graph.slices import ancestors, reached
from qgraph.ops.known_values import KnownValues
from qgraph.proof.matching.operators import KEEP_ALL, is_move


def is_moved_to(
    value: ir.Value, known: KnownValues, outputs: Collection[ir.Value], *, everywhere: bool
) -> bool:
    """Return whether each difference in ``value`` reaches one of ``outputs`` unchanged.

    Args:
        value: a value of a model, or a constant.
        known: the constants of the model.
        outputs: the outputs to examine.
        everywhere: whether all elements of the value differ in the same way. If not, operators that
            take some elements only may leave out those that differ.
    """
    if _is_empty(value):
        return False

    def following(step: ir.Value) -> list[ir.Value]:
        results: list[ir.Value] = []
        for node, index in step.uses():
            if known.has(node.outputs[0]) and not known.has(value):
                continue
            moves = index == 0 and is_move(node) and (everywhere or node.op_type in KEEP_ALL)
            if moves or (node.domain, node.op_type) == ("", "Concat"):
                results += [v for v in node.outputs if _has_elements(v, node)]
        return results

    moved = reached([value], following)
    return any(output in moved for output in outputs)


def later_operators(value: ir.Value, outputs: Collection[ir.Value]) -> list[str]:
    """Return the operators between a value and outputs that do not only move elements, by type."""
    after = reached([value], lambda v: [y for node, _ in v.uses() for y in node.outputs])
    nodes = [v.producer() for v in ancestors(outputs) if v is not value and v in after]
    return sorted({node.op_type for node in nodes if node is not None and not is_move(node)})


def _has_elements(value: ir.Value, node: ir.Node) -> bool:
    """Return whether the result of a node has elements, if symbolic dimensions are above 0."""
    if value.shape is None:
        return node.op_type in KEEP_ALL
    is_known = all(isinstance(size, int) or size.value for size in value.shape.dims)
    return not _is_empty(value) and (node.op_type in KEEP_ALL or is_known)


def _is_empty(value: ir.Value) -> bool:
    return value.shape is not None and 0 in value.shape.dims
