"""Rounding to whole numbers: the modes of the quantization operators.

Each is a sequence of float32 operations in a fixed order.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from qgraph.errors import Choice

Floating = TypeVar("Floating", bound=np.floating)


class Rounding(Choice):
    """How a real number becomes an integer; the names are those of QONNX."""

    ROUND = "ROUND"
    CEIL = "CEIL"
    FLOOR = "FLOOR"
    UP = "UP"
    DOWN = "DOWN"
    HALF_UP = "HALF_UP"
    HALF_DOWN = "HALF_DOWN"

    @classmethod
    def parse(cls, text: str) -> Rounding:
        """Return the mode that ``text`` names, in any case; files contain two synonyms.

        Raises: ValueError naming the known modes.
        """
        name = text.upper()
        name = _SYNONYMS.get(name, name)
        if name not in cls.__members__:
            known = ", ".join([*cls.__members__, *_SYNONYMS])
            msg = f"rounding mode {text!r} is not known; expected one of {known}, in any case"
            raise ValueError(msg)
        return cls[name]


_SYNONYMS = {"HALF_EVEN": "ROUND", "ROUND_TO_ZERO": "DOWN"}


def round_to_integer(
    y: npt.NDArray[Floating], mode: Rounding | str, out: npt.NDArray[Floating] | None = None
) -> npt.NDArray[Floating]:
    """Whole numbers near ``y``, in the dtype of ``y``.

    ROUND      nearest, ties to even
    CEIL       towards +inf
    FLOOR      towards -inf
    UP         sign(y) * ceil(|y|)
    DOWN       truncate
    HALF_UP    sign(y) * floor(|y| + 0.5)
    HALF_DOWN  sign(y) * ceil(|y| - 0.5)

    Every written operation rounds once, so the last two inherit the rounding of the addition:
    HALF_UP(0.49999997) is 1, and odd values between 2**23 and 2**24 move by one. NaN and infinities
    pass. UP and HALF_UP turn -0 into +0.

    Args:
        y: ``[*shape]`` values in steps of the grid.
        mode: the rounding mode.
        out: where to put the result; may be ``y`` itself.

    Returns: ``[*shape]``, ``out`` if given.
    Source: QONNX Quant page and its executor.
    """
    if not isinstance(mode, Rounding):
        mode = Rounding.parse(mode)
    if out is None:
        out = np.empty_like(y)
    match mode:
        case Rounding.ROUND:
            np.rint(y, out=out)
        case Rounding.CEIL:
            np.ceil(y, out=out)
        case Rounding.FLOOR:
            np.floor(y, out=out)
        case Rounding.DOWN:
            np.trunc(y, out=out)
        case Rounding.UP | Rounding.HALF_UP | Rounding.HALF_DOWN:
            _round_magnitude(y, mode, out)
    return out


def _round_magnitude(y: npt.NDArray[Floating], mode: Rounding, out: npt.NDArray[Floating]) -> None:
    sign = np.sign(y)  # before out, which may be y, is written
    np.abs(y, out=out)
    match mode:
        case Rounding.HALF_UP:
            out += 0.5
            np.floor(out, out=out)
        case Rounding.HALF_DOWN:
            out -= 0.5
            np.ceil(out, out=out)
        case _:
            np.ceil(out, out=out)
    out *= sign
