"""What a draft may replace, how it writes nodes, and the sizes of weights stored as codes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Array, Mask
from qgraph.numerics.formats import FORMATS, Minifloat
from qgraph.numerics.primitives import NUMPY
from qgraph.numerics.values import OpenScale
from qgraph.records import dataclass, field
from qgraph.text import fields_json


@dataclass(frozen=True, eq=False)
class Region:
    """Nodes that compute ``y`` from ``x`` and constants, in topological order."""

    x: ir.Value
    y: ir.Value
    nodes: tuple[ir.Node, ...]

    @property
    def stands(self) -> bool:
        """Whether all nodes are still in the graph."""
        return all(node.graph is not None for node in self.nodes)

    @property
    def types(self) -> tuple[ir.DataType | None, ir.DataType | None, tuple[object, ...] | None]:
        """Types of its input and output, and the shape of its input."""
        shape = None if self.x.shape is None else self.x.shape.dims
        return self.x.dtype, self.y.dtype, shape

    @property
    def entry(self) -> tuple[ir.Node, int] | None:
        """Node and operand index at which its input is read."""
        entries = ((n, i) for n in self.nodes for i, v in enumerate(n.inputs) if v is self.x)
        return next(entries, None)


Operand = ir.Value | Array

PREDICATES = ("Equal", "Greater", "GreaterOrEqual", "IsNaN", "Less", "LessOrEqual", "Not")
"""Operators whose output is of type bool."""


class Nodes(Protocol):
    """Takes nodes; computes in the 16-bit type ``half``, or in float32 if it is None."""

    half: ir.DataType | None

    def node(
        self,
        name: str,
        operands: Sequence[Operand | None],
        attributes: dict[str, Any] | None = None,
        *,
        dtype: ir.DataType | None = None,
    ) -> ir.Value:
        """Append a node and return its output."""


class Tracer:
    """The ``op`` of a draft: one method for each standard operator."""

    def __init__(self, draft: Nodes) -> None:
        self._draft = draft

    def __getattr__(self, name: str) -> Callable[..., Operand]:
        def call(*operands: Operand | float, **attributes: Any) -> Operand:
            return self._call(name, [_operand(o) for o in operands], attributes)

        return call

    def _call(self, name: str, operands: list[Operand], attributes: dict[str, Any]) -> Operand:
        if not any(isinstance(operand, ir.Value) for operand in operands):
            with np.errstate(all="ignore"):
                return np.asarray(NUMPY[name](*operands, **attributes))
        if name == "Where" and isinstance(operands[0], np.ndarray):
            for chosen, condition in ((operands[1], True), (operands[2], False)):
                if (operands[0] == condition).all():
                    return chosen
        first = operands[0]
        if name == "Cast" and isinstance(first, ir.Value) and first.dtype == attributes["to"]:
            return first
        dtype = ir.DataType.BOOL if name in PREDICATES else ir.DataType.FLOAT
        dtype = ir.DataType(attributes.get("to", dtype))
        return self._draft.node(name, operands, attributes, dtype=dtype)


def _operand(operand: Operand | float) -> Operand:
    if isinstance(operand, ir.Value | np.ndarray | OpenScale):
        return operand
    return np.asarray(operand, bool if isinstance(operand, bool) else np.float32)


@dataclass
class Tally:
    """Counts over elements of a weight.

    Attributes:
        unchanged: number of elements with the value that the quantizer computed, -0 equal to +0.
        clipped: number of elements outside the range of the codes.
        used: for each code of the type, by its bits, whether it occurs; empty for 32 bits.
    """

    elements: int = 0
    unchanged: int = 0
    clipped: int = 0
    used: Mask = field(default_factory=lambda: np.zeros(0, bool))

    def add(self, other: Tally) -> None:
        """Add the counts of another part."""
        self.elements += other.elements
        self.unchanged += other.unchanged
        self.clipped += other.clipped
        self.used = other.used | self.used if self.used.size else other.used


@dataclass
class SizeSummary:
    """One weight stored as codes.

    Attributes:
        type, scale_type: ONNX types of the codes, and of the scales as stored.
        bytes_before, bytes_after: of the stored float values; of codes, scales and zero points.
        scale_low, scale_high: the smallest and the largest scale.
        count: computes the tally when it is first needed; None if saving the model sets it.
    """

    tensor: str
    type: str
    scale_type: str
    bytes_before: int
    bytes_after: int
    scale_low: float
    scale_high: float
    count: Callable[[], Tally] | None = field(default=None, repr=False, compare=False)
    _tally: Tally | None = field(default=None, repr=False, compare=False)

    @property
    def codes_available(self) -> int:
        """Number of codes that ``type`` has, without NaN and infinities."""
        form = FORMATS[self.type]
        return form.count if isinstance(form, Minifloat) else 1 << form.bits

    @property
    def tally(self) -> Tally | None:
        """The counts; None until the weight has been read."""
        if self._tally is None and self.count is not None:
            self._tally, self.count = self.count(), None
        return self._tally

    def close(self, tally: Tally) -> None:
        """Set the counts that were made while the weight was written."""
        self._tally = tally

    def to_json(self) -> dict[str, Any]:
        """Return the row for a report; counts are None for a weight that was not written yet."""
        tally = self.tally
        counted: dict[str, Any] = dict.fromkeys(("elements", "unchanged", "clipped", "codes_used"))
        if tally is not None:
            counted = {
                "elements": tally.elements,
                "unchanged": tally.unchanged,
                "clipped": tally.clipped,
                "codes_used": int(np.count_nonzero(tally.used)) if tally.used.size else None,
            }
        names = "tensor", "type", "scale_type", "bytes_before", "bytes_after", "codes_available"
        return fields_json(self, *names, "scale_low", "scale_high") | counted
