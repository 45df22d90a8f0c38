"""What happens before and after the rounding of a quantizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.recognition.steps import Arithmetic, Bound, End, Step

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

SAME_SCALE = 1e-5


ZERO, ONE = np.zeros((), np.float32), np.ones((), np.float32)


LOWEST, HIGHEST = np.asarray(-np.inf, np.float32), np.asarray(np.inf, np.float32)


@dataclass
class Inward:
    """What happens before the rounding: ``round(clamp(x / scale + offset))``.

    Clamps of the data are ``real``, of codes ``codes``; ``range`` is where ``ends`` leave it alone.
    """

    scale: Array | None = None
    is_reciprocal: bool = False
    offset: Array = field(default_factory=lambda: ZERO)
    real: list[Array] = field(default_factory=lambda: [LOWEST, HIGHEST])
    codes: list[Array] = field(default_factory=lambda: [LOWEST, HIGHEST])
    range: list[Array] = field(default_factory=lambda: [LOWEST, HIGHEST])
    ends: list[End] = field(default_factory=list)

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Inward | None:
        """Return what ``steps`` do; None if they do anything else."""
        found = cls()
        return found if all(found._take(step) for step in steps) else None

    def _take(self, step: Step) -> bool:
        match step:
            case Arithmetic("Div" | "Mul" as name, value) if self.scale is None:
                self.is_reciprocal = name == "Mul"
                self.scale = ONE / value if self.is_reciprocal else value
            case Arithmetic("Add" | "Sub" as name, value):
                if self.scale is None:
                    self.scale = ONE
                move = value if name == "Add" else -value
                self.offset = self.offset + move
                self.codes = [end + move for end in self.codes]
            case Bound(name, value):
                ends = self.real if self.scale is None else self.codes
                narrow(ends, name, value)
            case End(threshold=value, above=above) if self.scale is None:
                self.ends.append(step)
                narrow(self.range, "Min" if above else "Max", value)
            case _:
                return False
        return True


@dataclass
class Outward:
    """What happens after the rounding: ``(clamp(q + added) - taken) * scale``.

    ``real`` is a clamp of the result. ``top`` and ``low`` belong to ``q / top * scale + low``.
    """

    codes: list[Array] = field(default_factory=lambda: [LOWEST, HIGHEST])
    real: list[Array] = field(default_factory=lambda: [LOWEST, HIGHEST])
    added: Array = field(default_factory=lambda: ZERO)
    taken: Array = field(default_factory=lambda: ZERO)
    scale: Array | None = None
    top: Array | None = None
    low: Array = field(default_factory=lambda: ZERO)

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Outward | None:
        """Return what ``steps`` do; None if they do anything else."""
        found = cls()
        return found if all(found._take(step) for step in steps) else None

    def _take(self, step: Step) -> bool:
        match step:
            case Bound(name, value) if self.scale is None and self.top is None:
                narrow(self.codes, name, value - self.added + self.taken)
            case Bound(name, value) if self.top is None:
                narrow(self.real, name, value)
            case Arithmetic("Add", value) if self.scale is not None:
                if self.top is None:
                    return False
                self.low = self.low + value
            case Arithmetic("Add", value) if self.top is None:
                self.added = self.added + value
            case Arithmetic("Sub", value) if self.scale is None and self.top is None:
                self.taken = self.taken + value
            case Arithmetic("Div", value) if self.scale is None and self.top is None:
                self.top = value
            case Arithmetic("Mul", value) if self.scale is None:
                self.scale = value
            case _:
                return False
        return True


def narrow(ends: list[Array], name: str, value: Array) -> None:
    """Let a clamp narrow ``ends``."""
    if name == "Max":
        ends[0] = np.maximum(ends[0], value)
    else:
        ends[1] = np.minimum(ends[1], value)


def both(codes: list[Array], others: list[Array]) -> list[Array]:
    """Return the narrower of two clamps."""
    return [np.maximum(codes[0], others[0]), np.minimum(codes[1], others[1])]


def is_step(step: Step, name: str) -> bool:
    """Return whether a step is the arithmetic called ``name``."""
    return isinstance(step, Arithmetic) and step.name == name


def is_bounded(ends: Sequence[Array]) -> bool:
    """Return whether any of ``ends`` is a number."""
    return any(np.isfinite(end).any() for end in ends)


def same(a: Array, b: Array) -> bool:
    """Return whether arrays are equal."""
    return bool((np.asarray(a) == b).all())


def close(a: Array, b: Array, share: float) -> bool:
    """Return whether ``a`` is ``b`` up to a ``share`` of it."""
    return bool((np.abs(a - b) <= share * np.abs(b)).all())


def number(value: Array) -> float | None:
    """Return the number that all elements are, or None."""
    first = value.reshape(-1)[0]
    return float(first) if (value == first).all() else None


def float32(value: Array) -> Float32:
    """Return an array in float32."""
    return np.asarray(value, np.float32)
