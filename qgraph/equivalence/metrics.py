"""How far two arrays of numbers are apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

_WORST_SQNR = -999.0
"""Stands for minus infinity in decibels, which JSON cannot say."""

_BITS: dict[np.dtype[Any], type[np.signedinteger[Any]]] = {
    np.dtype(np.float16): np.int16,
    np.dtype(ml_dtypes.bfloat16): np.int16,
    np.dtype(np.float32): np.int32,
    np.dtype(np.float64): np.int64,
}


@dataclass(frozen=True)
class OutputComparison:
    """How far one output of two models is apart. Values count: -0 equals +0, NaN equals NaN.

    Attributes:
        name: name of the output in the reference.
        elements: how many values were compared, over all batches.
        mismatches: how many of them differ.
        max_abs: largest absolute difference; infinite where only one side is NaN or infinite.
        max_ulp: largest difference counted in floats of the output's type, or in integers.
        max_steps: largest difference in steps of the quantizer that produces the output; None
            where that is not known and the outputs differ.
        sqnr_db: ``10 log10(sum(reference ** 2) / sum((reference - candidate) ** 2))``, at least
            -999; None if all values are equal.
        cosine: cosine of the angle between both sides, over finite values; 1 if all are equal.
        note: why the outputs could not be compared value by value.
    """

    name: str
    elements: int
    mismatches: int
    max_abs: float = 0.0
    max_ulp: int = 0
    max_steps: float | None = 0.0
    sqnr_db: float | None = None
    cosine: float = 1.0
    note: str | None = None

    @property
    def equal(self) -> bool:
        """Whether every value is the same."""
        return self.note is None and self.mismatches == 0

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the JSON report; what is not finite becomes null."""
        return {
            "name": self.name,
            "elements": self.elements,
            "mismatches": self.mismatches,
            "max_abs": _finite(self.max_abs),
            "max_ulp": self.max_ulp,
            "max_steps": _finite(self.max_steps),
            "sqnr_db": self.sqnr_db,
            "cosine": self.cosine,
        }


def compare(
    name: str,
    reference: Sequence[Any],
    candidate: Sequence[Any],
    steps: Sequence[npt.NDArray[np.float32]] | None = None,
) -> OutputComparison:
    """Compare an output over several batches.

    Args:
        name: of the output.
        reference: its value for each batch.
        candidate: its value for each batch.
        steps: for each batch the step of the output, which broadcasts to it; None if unknown.
    """
    elements = sum(np.size(x) for x in reference)
    pairs = list(zip(reference, candidate, strict=True))
    for x, y in pairs:
        note = _incomparable(x, y)
        if note is not None:
            return OutputComparison(
                name, elements, elements, math.inf, 0, None, _WORST_SQNR, 0.0, note
            )
    x, y = (np.concatenate([np.ravel(a) for a in side]) for side in zip(*pairs, strict=True))
    differs = ~same(x, y)
    mismatches = int(np.count_nonzero(differs))
    if mismatches == 0 or x.dtype.kind not in "biufV":
        known = None if mismatches else 0.0
        return OutputComparison(name, elements, mismatches, max_steps=known)
    a, b = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(all="ignore"):
        apart = np.where(differs, np.abs(a - b), 0.0)
        apart[np.isnan(apart)] = np.inf
        worst_steps = None
        if steps is not None:
            shaped = zip(steps, reference, strict=True)
            unit = np.concatenate([np.broadcast_to(s, array.shape).ravel() for s, array in shaped])
            worst_steps = float(np.max(apart[differs] / np.abs(unit[differs].astype(np.float64))))
        return OutputComparison(
            name,
            elements,
            mismatches,
            float(apart.max()),
            _ulps(x[differs], y[differs]),
            worst_steps,
            _sqnr(a, apart),
            _cosine(a, b),
        )


def same(x: Array, y: Array) -> npt.NDArray[np.bool_]:
    """Return where both hold the same value: -0 equals +0, NaN equals NaN."""
    equal: npt.NDArray[np.bool_] = np.asarray(x == y)
    if _is_float(x.dtype):
        equal |= np.isnan(x) & np.isnan(y)
    return equal


def within(reference: Sequence[Any], candidate: Sequence[Any], *, atol: float, rtol: float) -> bool:
    """Return whether ``|reference - candidate| <= atol + rtol * |reference|`` holds everywhere."""
    for x, y in zip(reference, candidate, strict=True):
        if _incomparable(x, y) is not None:
            return False
        if x.dtype.kind not in "biufV":
            if not bool(np.all(same(x, y))):
                return False
            continue
        a, b = x.astype(np.float64), y.astype(np.float64)
        with np.errstate(all="ignore"):
            close = np.isfinite(a) & (np.abs(a - b) <= atol + rtol * np.abs(a))
        if not bool(np.all(close | same(x, y))):
            return False
    return True


def _incomparable(x: Any, y: Any) -> str | None:
    if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray)):
        return f"{type(x).__name__} against {type(y).__name__}; only tensors are compared"
    if x.dtype != y.dtype:
        return f"type {x.dtype} against {y.dtype}"
    if x.shape != y.shape:
        return f"shape {list(x.shape)} against {list(y.shape)}"
    return None


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "fV" and ir.DataType.from_numpy(dtype).is_floating_point()


def _ulps(x: Array, y: Array) -> int:
    if not _is_float(x.dtype):
        first, second = (side.astype(np.int64) for side in (x, y))
    else:
        first, second = (_ordered(side) for side in (x, y))
    high, low = np.maximum(first, second), np.minimum(first, second)
    # Modulo 2**64 the difference of two int64 is right when taken as unsigned.
    return int((high.view(np.uint64) - low.view(np.uint64)).max())


def _ordered(x: Array) -> npt.NDArray[np.int64]:
    """Return integers that count floats from 0 upward and downward; NaN comes after infinity."""
    if x.dtype not in _BITS:
        x = x.astype(np.float32)
    bits = x.view(_BITS[x.dtype])
    top = np.asarray(np.inf).astype(x.dtype).view(bits.dtype)
    keys = np.where(bits < 0, np.iinfo(bits.dtype).min - bits, bits).astype(np.int64)
    return np.where(np.isnan(x), np.int64(top) + 1, keys)


def _sqnr(reference: Float64, apart: Float64) -> float:
    signal, noise = (np.sum(np.square(x[np.isfinite(x)])) for x in (reference, apart))
    if not np.isfinite(apart).all() or signal == 0:
        return _WORST_SQNR
    return max(_WORST_SQNR, float(10 * np.log10(signal / noise)))


def _cosine(a: Float64, b: Float64) -> float:
    finite = np.isfinite(a) & np.isfinite(b)
    a, b = a[finite], b[finite]
    length = np.sqrt(np.sum(a * a)) * np.sqrt(np.sum(b * b))
    return float(np.sum(a * b) / length) if length > 0 else 0.0


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
