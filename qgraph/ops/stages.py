"""A quantizer's kernel in three stages: where data lies among the levels, which level, its value.

Most levels are shared by many elements. Who wants to know what becomes of each level need not look
at each element.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from qgraph.ops import chunks

Array = npt.NDArray[Any]

MOST_LEVELS = 1 << 16
"""More levels than these are not listed."""


class Stages(Protocol):
    """The float operations of a quantizer, in place; one after the other they are its kernel."""

    @property
    def arrays(self) -> tuple[Array, ...]:
        """Parameters of all stages; they broadcast to the data."""

    @property
    def by_upper_half(self) -> bool:
        """Whether a level follows from the upper half of the bits of its place, rounded to odd.

        See :mod:`qgraph.numerics.lookup`; no parameter that varies plays a part. Otherwise levels
        are whole numbers.
        """

    def place(self, y: Array, x: Array, *arrays: Array) -> None:
        """Write where ``x`` lies, in units of the levels, neither rounded nor clipped."""

    def level(self, y: Array, *arrays: Array) -> None:
        """Replace places by levels."""

    def value(self, y: Array, *arrays: Array) -> None:
        """Replace levels by real values."""

    def levels(self) -> Array | None:
        """Return all levels that a place which is a number may become, ``[n]``.

        None if they cannot be listed.
        """


def fill(stages: Stages, shape: tuple[int, ...], x: Array) -> Array:
    """Return the values of ``x``, ``[*shape]`` in its dtype."""

    def work(y: Array, x: Array, *arrays: Array) -> None:
        stages.place(y, x, *arrays)
        stages.level(y, *arrays)
        stages.value(y, *arrays)

    return chunks.fill(work, np.empty(shape, x.dtype), x, *stages.arrays)
