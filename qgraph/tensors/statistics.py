"""Statistics of tensors that come by in parts: nothing is kept of them but numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.tensors.archive import common

Array = npt.NDArray[Any]


@dataclass
class TensorStatistics:
    """What is known of a tensor from the parts seen so far; NaN is counted and else left out.

    Attributes:
        name: of the tensor.
        dtype: numpy's name of its type; empty as long as nothing was seen.
        shape: of all parts joined along the first axis; None where they cannot be.
        elements, nan: how many there are, and how many of them are NaN.
        min, max: ends of the values; None where there is no number.
    """

    name: str
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    elements: int = 0
    nan: int = 0
    min: float | None = None
    max: float | None = None
    _sum: float = 0.0

    @property
    def mean(self) -> float | None:
        """Mean of all that is a number, added in double precision; None where there is none."""
        return None if self.min is None else self._sum / (self.elements - self.nan)

    def add(self, array: Array) -> None:
        """Take a part into account."""
        self.shape = array.shape if not self.dtype else _joined(self.shape, array.shape)
        self.dtype = str(array.dtype)
        self.elements += array.size
        numbers = common(array)
        if numbers.dtype.kind not in "biuf":
            return
        if numbers.dtype.kind == "f":
            wrong = np.isnan(numbers)
            count = int(np.count_nonzero(wrong))
            self.nan += count
            numbers = numbers[~wrong] if count else numbers
        if not numbers.size:
            return
        low, high = float(numbers.min()), float(numbers.max())
        self.min = low if self.min is None else min(self.min, low)
        self.max = high if self.max is None else max(self.max, high)
        with np.errstate(invalid="ignore", over="ignore"):  # infinities of both signs
            self._sum += float(numbers.sum(dtype=np.float64))

    def to_json(self) -> dict[str, Any]:
        """Return what ``qgraph run --json`` prints of a tensor."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": None if self.shape is None else list(self.shape),
            "elements": self.elements,
            "nan": self.nan,
            "min": self.min,
            "max": self.max,
            "mean": self.mean,
        }


def _joined(whole: tuple[int, ...] | None, part: tuple[int, ...]) -> tuple[int, ...] | None:
    if whole is None or whole[1:] != part[1:]:
        return None
    return ((whole[0] if whole else 1) + (part[0] if part else 1), *part[1:])
