"""The bound of one segment: how far the codes of two models lie apart at its end."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Float64
from qgraph.ops.approximation import zero
from qgraph.proof.bounds.combination import Combination
from qgraph.proof.bounds.counted import Counted
from qgraph.proof.bounds.events import Event
from qgraph.reasons import ExplainedReason

_JUMPS = {"Up": 2, "": 2}
"""Thresholds in an interval shorter than a step, where there may be more than one."""


@dataclass(frozen=True, eq=False)
class RoundedData:
    """A rounding of data whose codes are used.

    Attributes:
        event: the rounding.
        low, high: ends to which its result is clipped.
        function: what is rounded, where limits of data are part of ``ends``.
        ends: the first and the last code that may occur.
        clips: the first and the last code that limits leave.
        reach: the first and the last code without limits.
        codes: the function that the codes are.
        origin: the rounding of the model whose codes are moved to get these; None for its own.
    """

    event: Event
    low: Float64
    high: Float64
    function: Combination
    ends: tuple[Float64, Float64]
    clips: tuple[Float64, Float64]
    reach: tuple[Float64, Float64]
    codes: Combination = field(default_factory=Combination)
    origin: RoundedData | None = None


@dataclass(frozen=True, eq=False)
class Segment:
    """The bound of one segment. Arrays are by channel, in steps or, at an output, in real units.

    Attributes:
        reference, candidate: nodes that end it; None where there is no counterpart.
        is_output: whether it ends at an output that is not rounded.
        reference_error, candidate_error: largest distance of what is executed and what is meant.
        shift: largest distance of what both models mean.
        extra: what the ends of the codes lie apart.
        span: number of steps between the first and the last code; at an output, its range.
        largest: the largest magnitude of the reference at an output.
        kind: how the values are rounded.
        reason: why there is no bound.
        roundings: what is compared; None at an output, or without a counterpart.
        delta: what the code of the candidate is more than that of the reference.
        counted: where results differ, of all whole numbers that they are computed from; None if
            this is not known.
    """

    reference: ir.Node | None
    candidate: ir.Node | None
    values: tuple[ir.Value | None, ir.Value | None]
    is_output: bool = False
    reference_error: Float64 = field(default_factory=zero)
    candidate_error: Float64 = field(default_factory=zero)
    shift: Float64 = field(default_factory=zero)
    extra: Float64 = field(default_factory=zero)
    span: Float64 = field(default_factory=zero)
    largest: Float64 = field(default_factory=zero)
    kind: str = "Round"
    reason: ExplainedReason | None = None
    roundings: tuple[RoundedData, RoundedData] | None = None
    delta: Float64 = field(default_factory=zero)
    counted: Counted | None = None

    @property
    def is_equal(self) -> bool:
        """Whether the ends are equal for equal starts."""
        if self.counted is not None:
            return not self.counted.differing
        return not (self.deviation.any() or self.extra.any())

    @property
    def is_integer(self) -> bool:
        """Whether it ends with whole numbers, which are 1 step apart."""
        return any(
            v is not None and v.dtype is not None and v.dtype.is_integer() for v in self.values
        )

    @property
    def deviation(self) -> Float64:
        """Largest distance of both results as executed, before rounding."""
        return self.reference_error + self.candidate_error + self.shift

    @property
    def from_ideal(self) -> Float64:
        """Largest distance of the executed candidate from what the reference means."""
        return self.candidate_error + self.shift

    @property
    def tie_distance(self) -> Float64:
        """Codes differ only where the reference's ideal is so close to a threshold."""
        return np.maximum(self.reference_error, self.from_ideal)

    def steps(self, *, ideal: bool = False) -> int:
        """Return the largest number of steps between the codes."""
        if self.counted is not None and not self.is_output and not ideal:
            return int(self.counted.largest)
        far = self.from_ideal if ideal else self.deviation
        jumps = np.floor(far) + _JUMPS.get(self.kind, 1)
        if self.kind == "Sign":
            jumps = np.ones(())
        counts = np.where(far > 0, jumps, 0.0) + self.extra
        return int(min(np.max(counts), 2.0**31))
