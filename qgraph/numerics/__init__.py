"""Number formats and their arithmetic on NumPy arrays, without graphs and ONNX."""

from typing import Any, TypeVar

import numpy as np

Scalar = TypeVar("Scalar", bound=np.generic)

ArrayOf = np.ndarray[tuple[Any, ...], np.dtype[Scalar]]
"""What ``numpy.typing`` calls NDArray; importing that takes a quarter of the time of NumPy."""

Array = ArrayOf[Any]
Float32 = ArrayOf[np.float32]
Float64 = ArrayOf[np.float64]
Int32 = ArrayOf[np.int32]
Mask = ArrayOf[np.bool_]
