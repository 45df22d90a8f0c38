"""The order of float32 bit patterns: one integer key per number, so that boxes can be halved.

key = bits             for a clear sign bit
key = bits ^ 0x7fffffff (as a signed integer) otherwise

-Inf .. +Inf is contiguous; -0 is -1 and +0 is 0, so that keys order the zeros too. How many numbers
lie between two others is a difference of keys.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]

NEGATIVE_INFINITY = -2139095041
LOWEST = -2139095040
"""Key of the most negative finite number."""
NEGATIVE_ZERO = -1
POSITIVE_ZERO = 0
HIGHEST = 2139095039
"""Key of the largest finite number."""
POSITIVE_INFINITY = 2139095040

_MAGNITUDE = np.int32(0x7FFFFFFF)
_SIGN = np.int32(31)


def to_keys(x: npt.ArrayLike) -> Keys:
    """Return the keys ``[*shape]`` of float32 numbers; NaN gives keys outside the infinities."""
    bits = np.atleast_1d(np.asarray(x, np.float32)).view(np.int32)
    return ((bits >> _SIGN & _MAGNITUDE) ^ bits).astype(np.int64).reshape(np.shape(x))


def from_keys(keys: npt.ArrayLike) -> Float32:
    """Return the float32 numbers ``[*shape]`` of keys."""
    bits = np.atleast_1d(np.asarray(keys)).astype(np.int32)
    return ((bits >> _SIGN & _MAGNITUDE) ^ bits).view(np.float32).reshape(np.shape(keys))
