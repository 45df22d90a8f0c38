"""Checksums of runs of bytes in a file."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

_BLOCK = 1 << 17
"""Words that have factors of their own; further blocks of words multiply them."""

_STEP = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def checksum(content: memoryview | bytes, at: int) -> int:
    """Return the checksum of bytes from the place ``at`` of a file on.

    With the file's words ``w`` of 64 bits it is ``sum(w[i] * factor[i])`` modulo 2**64, so the
    checksum of neighbouring runs is the sum of theirs, modulo 2**64. All factors are odd: another
    value of any one word always changes it. It is several times faster than a CRC.
    """
    data = np.frombuffer(content, np.uint8)
    total, factors = 0, _factors()
    while data.size:
        block, place = divmod(at, 8 * _BLOCK)
        part = data[: 8 * _BLOCK - place]
        data, at = data[part.size :], at + part.size
        first, before = divmod(place, 8)
        if before or part.size % 8:
            padded = np.zeros(-(-(before + part.size) // 8) * 8, np.uint8)
            padded[before : before + part.size] = part
            part = padded
        words = part.view(np.uint64)
        product = int(np.dot(words, factors[first : first + words.size]))
        total += product * pow(_STEP, block, 1 << 64)
    return total & _MASK


@functools.cache
def _factors() -> npt.NDArray[np.uint64]:
    return np.random.default_rng(0).integers(0, 1 << 63, _BLOCK, np.uint64) * 2 + 1
