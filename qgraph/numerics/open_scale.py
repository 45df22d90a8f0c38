"""A scale without a value: forms that are written with it hold for every scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from qgraph.numerics import Array, Float32


class ScaleReadError(Exception):
    """The value of an open scale was needed."""


def _read(*_: Any, **__: Any) -> NoReturn:
    raise ScaleReadError


class OpenScale:
    """A float32 number whose value is not known: a scale other than 1, or a product with one.

    It takes the place of the array of a scale. Its type and shape are known, and that a scale is
    not 1. Products and extremes with float32 numbers are open, too: ``compute`` gives them from the
    scale. Whatever else depends on the value raises :class:`ScaleReadError`: other arithmetic,
    comparisons, and conversion to an array or a number.
    """

    dtype: npt.DTypeLike = np.dtype(np.float32)
    shape: tuple[int, ...] = ()
    ndim, size = 0, 1

    def __init__(self, compute: Callable[[Float32], Array] | None = None) -> None:
        self._compute = compute

    @property
    def is_scale(self) -> bool:
        """Whether it is the scale itself."""
        return self._compute is None

    def at(self, scale: Float32) -> Array:
        """Return the number for a scale."""
        return scale if self._compute is None else self._compute(scale)

    def reshape(self, *shape: Any) -> OpenScale:
        """Return itself, as the only shape is that of a scalar."""
        return self if shape == ((),) else _read()

    def astype(self, dtype: npt.DTypeLike, **_: Any) -> OpenScale:
        """Return itself, as the only type is float32."""
        return self if np.dtype(dtype) == self.dtype else _read()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **others: Any) -> Any:
        if method != "__call__" or others or ufunc not in _LEFT_OPEN:
            raise ScaleReadError
        for operand in inputs:
            is_number = isinstance(operand, np.ndarray | np.generic) and operand.shape == ()
            if not isinstance(operand, OpenScale) and not (is_number and operand.dtype == _FLOAT):
                raise ScaleReadError

        def compute(scale: Float32) -> Array:
            known = (each.at(scale) if isinstance(each, OpenScale) else each for each in inputs)
            with np.errstate(all="ignore"):
                return np.asarray(ufunc(*known))

        return OpenScale(compute)

    def __ne__(self, other: object) -> Any:
        if self.is_scale and isinstance(other, int) and other == 1:
            return np.True_
        raise ScaleReadError

    def __mul__(self, other: object) -> Any:
        return np.multiply(self, other)  # type: ignore[call-overload]

    def __rmul__(self, other: object) -> Any:
        return np.multiply(other, self)  # type: ignore[call-overload]

    __hash__ = object.__hash__
    __array__ = __array_function__ = _read
    __bool__ = __float__ = __int__ = __index__ = __len__ = __iter__ = __getitem__ = _read
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = _read
    __add__ = __radd__ = __sub__ = __rsub__ = _read
    __truediv__ = __rtruediv__ = __neg__ = __abs__ = __pow__ = _read

    def __getattr__(self, name: str) -> NoReturn:
        raise ScaleReadError


_FLOAT = np.dtype(np.float32)
_LEFT_OPEN = frozenset({np.multiply, np.minimum, np.maximum})
"""Operations whose result is open, and is computed when the scale is known."""
