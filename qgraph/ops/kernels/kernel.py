"""The type of kernels of operators, and the type in which they add."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

Kernel = Callable[..., Sequence[Any]]
"""Positional input arrays, None for an absent optional one, to the outputs."""


def sum_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which values of ``dtype`` are summed."""
    halves = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
    return np.dtype(np.float32) if dtype in halves else dtype
