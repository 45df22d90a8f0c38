"""The bound of one segment: the largest difference of the codes at its end."""

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
"""Number of thresholds in an interval shorter than a step, by kind, if more than one."""


@dataclass(frozen=True, eq=False)
class RoundedData:
    """A rounding of data, with the limits of its codes.

    Attributes:
        event: the rounding.
        low, high: limits to which its result is clipped.
        function: the rounded function; limits of data are part of ``ends`` instead.
        ends: the first and the last code that may occur.
        clips: the first and the last code within the limits.
        reach: the first and the last code without limits.
        codes: the codes as a function.
        origin: the rounding in the model, if these are its moved codes; else None.
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
        is_output: whether it ends at an output without a quantizer.
        reference_error, candidate_error: largest distance of executed and ideal values.
        shift: largest distance of the ideal values of both models.
        extra: difference of the limits of the codes.
        span: number of steps between the first and the last code; at an output, its range.
        largest: the largest magnitude of the reference at an output.
        kind: how the values are rounded.
        reason: why there is no bound.
        roundings: the compared roundings; None at an output, or without a counterpart.
        delta: code of the candidate minus corresponding code of the reference.
        counted: comparison on all whole numbers that the results depend on; None if not possible.
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
        """Whether it ends with whole numbers, whose step is 1."""
        return any(
            v is not None and v.dtype is not None and v.dtype.is_integer() for v in self.values
        )

    @property
    def deviation(self) -> Float64:
        """Largest distance of both executed results, before rounding."""
        return self.reference_error + self.candidate_error + self.shift

    @property
    def from_ideal(self) -> Float64:
        """Largest distance of the executed candidate from the ideal values of the reference."""
        return self.candidate_error + self.shift

    @property
    def tie_distance(self) -> Float64:
        """Codes differ only if the reference's ideal value is at most this far from a threshold."""
        return np.maximum(self.reference_error, self.from_ideal)

    def steps(self, *, ideal: bool = False) -> int:
        """Return the largest difference of the codes, in steps."""
        if self.counted is not None and not self.is_output and not ideal:
            return int(self.counted.largest)
        far = self.from_ideal if ideal else self.deviation
        jumps = np.floor(far) + _JUMPS.get(self.kind, 1)
        if self.kind == "Sign":
            jumps = np.ones(())
        # Codes n steps apart, with limits m steps apart, differ by at most max(n, m) steps.
        counts = np.maximum(np.where(far > 0, jumps, 0.0), self.extra)
        return int(min(np.max(counts), 2.0**31))
