"""How two expressions compare at single inputs, whatever ONNX leaves open."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qgraph.proof.finding import Channels, Mask, Notes
from qgraph.proof.keys import Float32
from qgraph.proof.program import Program


class Outcome(NamedTuple):
    """How single inputs ``[n]`` compare, whatever signs Min, Max and Relu give to zeros.

    Attributes:
        reference, candidate: the two values; the candidate's with the other choice of signs.
        differ: where the values differ.
        zero_sign: where both are zeros whose signs differ, or may differ.
        unknown: where ONNX leaves a value open.
    """

    reference: Float32
    candidate: Float32
    differ: Mask
    zero_sign: Mask
    unknown: Mask

    @classmethod
    def of(cls, program: Program, x: Float32, kind: Channels) -> Outcome:
        """Compare at inputs ``x`` ``[n]`` in the channels ``kind``."""
        a, b = program.points(x, kind, zero=False)
        others = program.points(x, kind, zero=True)
        unknown = a.undefined | b.undefined
        differ = ~_same(a.values, b.values)
        sign = np.zeros(len(x), np.bool_)
        for one, other in zip((a, b), others, strict=True):
            unknown = unknown | ~_same(one.values, other.values)
            for zeros in (one, other):
                sign |= np.signbit(zeros.values) != np.signbit(a.values)
        sign &= ~differ & (a.values == 0)
        return cls(a.values, others[1].values, differ & ~unknown, sign & ~unknown, unknown)


def compare_special_inputs(program: Program, found: Notes) -> None:
    """Note how both infinities and NaN of both signs compare, in every kind of channel."""
    special = np.array([np.inf, -np.inf, np.nan, -np.nan], np.float32)
    count = len(program.first)
    x, kinds = np.repeat(special, count), np.tile(np.arange(count, dtype=np.int64), 4)
    outcome = Outcome.of(program, x, kinds)
    results = outcome.reference, outcome.candidate
    differ, sign, nan = outcome.differ | outcome.unknown, outcome.zero_sign, np.isnan(x)
    found.differ_at_nan(kinds, x, *results, where=(differ | sign) & nan)
    found.differ_at_infinity(kinds, x, *results, where=differ & ~nan)
    found.differ_in_zero_sign_at_infinity(kinds, x, *results, where=sign & ~nan)


def _same(a: Float32, b: Float32) -> Mask:
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))
