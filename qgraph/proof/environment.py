"""Whether the thread computes as IEEE 754 says; a proof means nothing where it does not."""

from __future__ import annotations

import numpy as np

from qgraph.errors import UnsupportedError

# 2**-100 * 2**-40, 2**-126 / 2, 2**-149 + 2**-149, 1 + 2**-24, (1 + 2**-23) + 2**-24, as bits:
# a conversion from decimal would already lose the subnormal ones where they are flushed
_FACTORS = np.array([0x0D800000, 0x2B800000], np.uint32)
_QUOTIENT = np.array([0x00800000, 0x40000000], np.uint32)
_SUMMANDS = np.array([[1, 0x3F800000, 0x3F800001], [1, 0x33800000, 0x33800000]], np.uint32)
_EXPECTED = np.array([0x00000200, 0x00400000, 2, 0x3F800000, 0x3F800002], np.uint32)


def check_float_environment() -> None:
    """See that this thread rounds to nearest even and keeps subnormal numbers.

    A runtime that was told to treat subnormal numbers as zero does so for the whole thread.

    Raises:
        UnsupportedError: it does not.
    """
    if not probe_float_environment():
        raise UnsupportedError(
            "The float arithmetic of this thread: subnormal numbers are flushed to zero, or "
            "results are not rounded to nearest even. IEEE 754 arithmetic was expected, without "
            "which nothing can be proved. Run runtimes whose sessions treat subnormal numbers as "
            "zero in another process."
        )


def probe_float_environment() -> bool:
    """Return whether a few products, quotients and sums come out as IEEE 754 says."""
    factors, quotient, summands = (a.view(np.float32) for a in (_FACTORS, _QUOTIENT, _SUMMANDS))
    with np.errstate(all="ignore"):
        computed = [
            factors[:1] * factors[1:],
            quotient[:1] / quotient[1:],
            summands[0] + summands[1],
        ]
    return bool((np.concatenate(computed).view(np.uint32) == _EXPECTED).all())
