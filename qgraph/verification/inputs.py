"""Trying all finite float32 inputs one by one, for functions that are no step functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qgraph.verification.bounds import numbers
from qgraph.verification.box_check import HIGHEST, LOWEST, Functions

_CHUNK = 1 << 16
_MOST_KINDS = 16


@dataclass(frozen=True)
class Counted:
    """What all inputs show.

    Attributes:
        differing: how many differ, by the first channel of each kind that has some.
        total: how many differ in all channels.
        zero_sign: how many give zeros whose signs differ, or may, in all channels.
        apart: the largest number of floats from one value to the other; None where one is NaN.
    """

    differing: dict[int, int]
    total: int
    zero_sign: int
    apart: int | None


def count(both: Functions) -> Counted | None:
    """Return what all inputs show; None if ONNX leaves a result open, or there are too many.

    It takes a minute or more for each kind of channels.
    """
    kinds = both.kinds()
    if len(kinds) > _MOST_KINDS:
        return None
    differing: dict[int, int] = {}
    total = zero_sign = apart = 0
    has_nan = False
    for kind, channels in kinds.items():
        for start in range(LOWEST, HIGHEST + 1, _CHUNK):
            x = numbers(np.arange(start, min(start + _CHUNK, HIGHEST + 1)))
            found = both.at(np.full(len(x), kind), x)
            if found.left_open.any():
                return None
            zero_sign += int(np.count_nonzero(found.signs)) * channels
            if found.differ.any():
                number = int(np.count_nonzero(found.differ))
                differing[kind] = differing.get(kind, 0) + number
                total += number * channels
                a, b = found.reference[found.differ], found.candidate[found.differ]
                has_nan |= bool(np.isnan(a).any() or np.isnan(b).any())
                apart = max(apart, int(np.abs(_places(a) - _places(b)).max()))
    return Counted(differing, total, zero_sign, None if has_nan else apart)


def _places(x: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Return how many floats lie between zero and each number, negative below zero."""
    size = np.abs(x).astype(np.float32).view(np.uint32).astype(np.int64)
    return np.asarray(np.where(np.signbit(x), -size, size))
