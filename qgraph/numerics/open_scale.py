"""A scale without a value: what is written with it holds for every scale."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt


class ScaleReadError(Exception):
    """The value of an open scale was asked for."""


def _read(*_: Any, **__: Any) -> NoReturn:
    raise ScaleReadError


class OpenScale:
    """A float32 number with a type and a shape, whose value is not known.

    It takes the place of the array of a scale. Whatever depends on the value raises
    :class:`ScaleReadError`: arithmetic, comparisons, and conversion to an array or a number.
    """

    dtype: npt.DTypeLike = np.dtype(np.float32)
    shape: tuple[int, ...] = ()
    ndim, size = 0, 1

    def reshape(self, *shape: Any) -> OpenScale:
        """Return itself, as the only shape is that of a scalar."""
        return self if shape == ((),) else _read()

    def astype(self, dtype: npt.DTypeLike, **_: Any) -> OpenScale:
        """Return itself, as the only type is float32."""
        return self if np.dtype(dtype) == self.dtype else _read()

    __hash__ = object.__hash__
    __array__ = __array_ufunc__ = __array_function__ = _read
    __bool__ = __float__ = __int__ = __index__ = __len__ = __iter__ = __getitem__ = _read
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _read
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _read
    __truediv__ = __rtruediv__ = __neg__ = __abs__ = __pow__ = _read

    def __getattr__(self, name: str) -> NoReturn:
        raise ScaleReadError
