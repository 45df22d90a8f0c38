"""Number formats and their arithmetic on NumPy arrays, without graphs and ONNX."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
