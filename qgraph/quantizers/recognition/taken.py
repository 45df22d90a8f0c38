"""The combined effect of steps before and after a rounding: scales, offsets, limits, minifloats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from qgraph.numerics import Array, Float32
from qgraph.numerics.formats import Minifloat
from qgraph.numerics.minifloat import MINIFLOATS
from qgraph.numerics.rounding import Rounding
from qgraph.quantizers.quantizer import Floating
from qgraph.quantizers.recognition.steps import (
    HIGHEST,
    LOWEST,
    ONE,
    SAME_SCALE,
    ZERO,
    ArithmeticStep,
    Encoded,
    End,
    Limited,
    NoForm,
    NoMatch,
    Overflow,
    Snapped,
    Step,
    require,
    same,
)
from qgraph.records import dataclass, field


class _StepsTaken:
    """Accumulates the effect of steps, one after the other."""

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Self:
        """Return the parameters of ``steps``; NoMatch if a step has another effect."""
        result = cls()
        for step in steps:
            result._take(step)
        return result

    def _take(self, step: Step) -> None:
        raise NotImplementedError


@dataclass
class BeforeRounding(_StepsTaken):
    """The steps before the rounding: ``round(clamp(x / scale + offset))``.

    Attributes:
        scale: None if nothing divides.
        is_reciprocal: whether the data is multiplied by ``1 / scale``.
        real, codes: bounds of the data, and of the codes.
        range: bounds between which ``ends`` do not apply.
        ends: values for data outside of them.
    """

    scale: Array | None = None
    is_reciprocal: bool = False
    offset: Array = field(default_factory=lambda: ZERO)
    real: list[Array] = field(default_factory=lambda: [LOWEST, HIGHEST])
    codes: list[Array] = field(default_factory=lambda: [LOWEST, HIGHEST])
    range: list[Array] = field(default_factory=lambda: [LOWEST, HIGHEST])
    ends: list[End] = field(default_factory=list)

    @property
    def divisor(self) -> Array:
        """The scale, 1 if nothing divides."""
        return ONE if self.scale is None else self.scale

    def _take(self, step: Step) -> None:
        match step:
            case ArithmeticStep("Div" | "Mul" as name, value) if self.scale is None:
                self.is_reciprocal = name == "Mul"
                self.scale = ONE / value if self.is_reciprocal else value
            case ArithmeticStep("Add" | "Sub" as name, value):
                self.scale = self.divisor
                move = value if name == "Add" else -value
                self.offset = self.offset + move
                self.codes = [end + move for end in self.codes]
            case Limited(name, value):
                narrow(self.real if self.scale is None else self.codes, name, value)
            case End(threshold=value, above=above) if self.scale is None:
                self.ends.append(step)
                narrow(self.range, "Min" if above else "Max", value)
            case _:
                raise NoForm


@dataclass
class AfterRounding(_StepsTaken):
    """The steps after the rounding: ``(clamp(q + added) - taken) * scale``.

    Attributes:
        codes, real: bounds of the codes, and of the result.
        added, taken: see above.
        scale: None if nothing multiplies.
        top, low: those of ``q / top * scale + low``; ``top`` is None for another formula.
    """

    codes: list[Array] = field(default_factory=lambda: [LOWEST, HIGHEST])
    real: list[Array] = field(default_factory=lambda: [LOWEST, HIGHEST])
    added: Array = field(default_factory=lambda: ZERO)
    taken: Array = field(default_factory=lambda: ZERO)
    scale: Array | None = None
    top: Array | None = None
    low: Array = field(default_factory=lambda: ZERO)

    @property
    def factor(self) -> Array:
        """The scale, 1 if nothing multiplies."""
        return ONE if self.scale is None else self.scale

    @property
    def zero_point(self) -> Array:
        """The total number that is subtracted from the rounded numbers."""
        return self.taken - self.added

    def _take(self, step: Step) -> None:
        has_scale, has_top = self.scale is not None, self.top is not None
        match step:
            case Limited(name, value) if not has_top and not has_scale:
                narrow(self.codes, name, value - self.added + self.taken)
            case Limited(name, value) if not has_top:
                narrow(self.real, name, value)
            case ArithmeticStep("Add", value) if has_scale and has_top:
                self.low = self.low + value
            case ArithmeticStep("Add", value) if not has_scale and not has_top:
                self.added = self.added + value
            case ArithmeticStep("Sub", value) if not has_scale and not has_top:
                self.taken = self.taken + value
            case ArithmeticStep("Div", value) if not has_scale and not has_top:
                self.top = value
            case ArithmeticStep("Mul", value) if not has_scale:
                self.scale = value
            case _:
                raise NoForm


def narrow(ends: list[Array], name: str, value: Array) -> None:
    """Narrow ``ends`` by a clamp."""
    if name == "Max":
        ends[0] = np.maximum(ends[0], value)
    else:
        ends[1] = np.minimum(ends[1], value)


def both(codes: list[Array], others: list[Array]) -> list[Array]:
    """Return the narrower of two clamps."""
    return [np.maximum(codes[0], others[0]), np.minimum(codes[1], others[1])]


def is_step(step: Step, name: str) -> bool:
    """Return whether a step is the arithmetic called ``name``."""
    return isinstance(step, ArithmeticStep) and step.name == name


def index_of(steps: Sequence[Step], name: str) -> int:
    """Return the index of the first arithmetic called ``name``, the number of steps without one."""
    return next((i for i, step in enumerate(steps) if is_step(step, name)), len(steps))


def constant_of(step: Step) -> Array:
    """Return the constant of an arithmetic step; NoMatch if it is another step."""
    if not isinstance(step, ArithmeticStep):
        raise NoMatch
    return step.value


def is_bounded(ends: Sequence[Array]) -> bool:
    """Return whether any of ``ends`` is a number."""
    return any(np.isfinite(end).any() for end in ends)


def close(a: Array, b: Array, share: float) -> bool:
    """Return whether ``a`` equals ``b`` up to a relative error ``share``."""
    return bool((np.abs(a - b) <= share * np.abs(b)).all())


def number(value: Array) -> float | None:
    """Return the number that all elements equal, or None."""
    first = value.reshape(-1)[0]
    return float(first) if (value == first).all() else None


def float32(value: Array) -> Float32:
    """Return an array in float32."""
    return np.asarray(value, np.float32)


def summand(low: Array, width: Array) -> Array:
    """Return the ``high`` closest to ``low + width`` for which ``high - low`` is ``width``."""
    high = np.asarray(low + width, np.float32)
    for other in (np.nextafter(high, HIGHEST), np.nextafter(high, LOWEST)):
        high = np.where((high - low != width) & (other - low == width), other, high)
    return high


def scale_of(before: BeforeRounding, out_scale: Array) -> Array:
    """Return the scale; a product with its reciprocal is off by a rounding error."""
    divisor = before.divisor
    with np.errstate(all="ignore"):
        numbers = [np.asarray(each, np.float32) for each in (ONE / divisor, out_scale)]
        is_half = all(same(each.astype(np.float16), each) for each in numbers)
    is_near = before.is_reciprocal and close(divisor, out_scale, 2**-10 if is_half else SAME_SCALE)
    return out_scale if is_near else divisor


def floating(plain: Sequence[Step]) -> Floating:
    """Read ``x / scale`` snapped to the grid of a minifloat, times the scale."""
    (index, *others) = [i for i, s in enumerate(plain) if isinstance(s, Snapped | Encoded)]
    before, core, outer = BeforeRounding.of(plain[:index]), plain[index], plain[index + 1 :]
    require(not others and not before.offset.any() and not before.ends)
    limit = _symmetric(before.codes)
    if is_bounded(before.real):
        require(same(before.real[0], -before.real[1]))
        limit = np.minimum(limit, _symmetric(before.real) / np.abs(before.divisor))
    saturates, ends = True, [LOWEST, HIGHEST]
    out_scale: Array | None = None
    for step in outer:
        match step:
            case Limited(name, value) if out_scale is None:
                narrow(ends, name, value)
            case Overflow(value) if out_scale is None:
                saturates, limit = False, np.minimum(limit, value)
            case ArithmeticStep("Mul", value) if out_scale is None:
                out_scale = value
            case _:
                raise NoMatch
    require(same(ends[0], -ends[1]))
    limit = np.minimum(limit, ends[1])
    out_scale = ONE if out_scale is None else out_scale
    scale = scale_of(before, out_scale)
    require(same(scale, out_scale))
    if isinstance(core, Encoded):
        form = _clamped(core.kind, limit)
        return Floating(float32(scale), form, Rounding.ROUND, core.saturates)
    top = number(limit)
    if top is None or not np.isfinite(top) or not isinstance(core, Snapped):
        raise NoMatch
    return Floating(float32(scale), _format(core, top), core.mode, saturates)


def _clamped(form: Minifloat, limit: Array) -> Minifloat:
    """Return a format whose largest value is at most ``limit``, which lies on its grid."""
    if not np.isfinite(limit).any():
        return form
    # Bounds of the data are multiples of the scale up to a rounding error.
    near = float(form.snap(limit.reshape(-1)[0]))
    require(close(limit, np.asarray(near), SAME_SCALE))
    if near == form.max_value:
        return form
    return Minifloat(form.exponent_bits, form.mantissa_bits, form.bias, near)


def _format(core: Snapped, top: float) -> Minifloat:
    """Return a format with the grid of ``core`` and the largest value ``top``."""
    mantissa, bias = core.mantissa_bits, 1 - core.min_exponent
    for minifloat in MINIFLOATS.values():
        if (minifloat.mantissa_bits, minifloat.bias, minifloat.max_value) == (mantissa, bias, top):
            return minifloat
    exponent = 1
    while (2.0 - 2.0**-mantissa) * 2.0 ** (2.0**exponent - 1 - bias) < top and exponent < 8:
        exponent += 1
    return Minifloat(exponent, mantissa, bias, top)


def _symmetric(ends: list[Array]) -> Float32:
    return float32(np.maximum(np.abs(ends[0]), np.abs(ends[1])))
