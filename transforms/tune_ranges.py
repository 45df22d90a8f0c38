"""The pass ``tune-ranges``: move FakeQuantize ranges so that zero is one of their levels."""

from __future__ import annotations

import math

import numpy as np

from qgraph.errors import Choice, OptionError
from qgraph.exactness import Verdict, Witness
from qgraph.graph.edit import Draft, Editor
from qgraph.model import Model
from qgraph.numerics import Float32, Float64
from qgraph.ops.dispatch import evaluate
from qgraph.proof.functions import expression
from qgraph.proof.functions.level import ONE_STEP, SAME_LEVEL
from qgraph.quantizers.compare import Comparer
from qgraph.quantizers.dialects.openvino import ENDS
from qgraph.quantizers.quantizer import Ranged
from qgraph.reasons import ABOVE_LIMIT, UNSUITED_RANGE
from qgraph.records import dataclass, replace
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.transforms.base import Transform, option, transform
from qgraph.transforms.drafts.choice import Decision, Figure, entry, readable, refused, settle
from qgraph.transforms.drafts.rebuilding import carry_over
from qgraph.transforms.ranges.grids import (
    CodeGrid,
    FakeQuantize,
    LargestChange,
    ends_of,
    fake_quantize_expression,
    fake_quantizes,
    largest_change,
    range_text,
    side_by_side,
    span_text,
    whole_zero_point,
)

_Range = tuple[Float32, Float32]


class Mode(Choice):
    """Position of the zero point."""

    AUTO = "auto"
    """``symmetric`` if both limits are equally far from zero, else ``asymmetric``."""

    SYMMETRIC = "symmetric"
    """The middle code, ``levels // 2``, which is 0 in signed codes."""

    ASYMMETRIC = "asymmetric"
    """The nearest whole code."""


class TunedScales(Choice):
    """Allowed scales."""

    ANY = "any"
    """Any; for up to 256 levels, rounded to few bits, so that all multiples are exact."""

    POWER_OF_TWO = "power-of-two"
    """Powers of two only."""


@transform("tune-ranges")
class TuneRanges(Transform):
    """Move FakeQuantize ranges slightly so that zero points are integers.

    With ``n = levels - 1``, ``s = (high - low) / n`` and ``z = -low / s``, a range becomes

    1. asymmetric: ``[-round(z) * s, (n - round(z)) * s]``;
    2. symmetric: ``z = floor(levels / 2)`` and the smallest ``s`` that covers both ends.

    ``s`` is rounded to ``24 - bits(n)`` bits for up to 256 levels, so that all levels are exact
    multiples, or with ``scale=power-of-two`` up to a power of two. Input and output range are moved
    together if they are equal, otherwise separately.

    This changes what the model computes. The report has for each site how many of all float32
    inputs give another output, the largest change in steps, which is exact, and an input that shows
    it. Whether ``convert`` then finds a QDQ pair that is equal in value depends on the scale: it
    does for a zero point of 0 and a power of two. Other scales differ by ulps, other zero points
    near ties.
    """

    mode: Mode = option(
        Mode.AUTO,
        help="symmetric: zero at the middle code, 0 in signed codes; asymmetric: at the nearest "
        "code; auto: symmetric for ranges from -a to a",
    )
    scale: TunedScales = option(
        TunedScales.ANY, help="any, or power-of-two: wider ranges with power-of-two scales"
    )
    accept: float = option(
        ONE_STEP,
        help="largest change of an output to accept, in steps; one flipped rounding is up to 1.5",
    )

    def check_options(self) -> None:
        """Raise an OptionError if options contradict each other."""
        if not self.accept >= 0:
            raise OptionError(
                f"accept={self.accept} is not a bound, expected a number of steps, 0 or more. "
                f"Omit it for the default, or raise it."
            )

    def apply(self, model: Model, report: Report) -> None:
        """Tune every range without an integer zero point, and report each site with its change."""
        editor, others = Editor(model.ir), list[SiteReport]()
        tuned: list[_Tuned] = []
        for fake in readable(fake_quantizes(model), others):
            attempt = self._tune(fake, editor)
            if isinstance(attempt, SiteReport):
                others.append(attempt)
            else:
                tuned.append(attempt)
        verdicts = Comparer(model.ir).compare_all([(t.fake.site, t.draft) for t in tuned])
        decisions = [self._judge(t, v) for t, v in zip(tuned, verdicts, strict=True)]
        settle(model, decisions, editor, report)
        for decision in decisions:
            if decision.draft is not None:
                carry_over(decision.site.root, decision.draft.nodes[-1])
        report.sites += others

    def _tune(self, fake: FakeQuantize, editor: Editor) -> _Tuned | SiteReport:
        """Return a site with tuned ranges, or the report entry of a kept or refused one."""
        node, levels = fake.node, fake.ranged.levels
        inner, outer = fake.ends[:2], fake.ends[2:]
        if levels == 2 and self.mode is Mode.SYMMETRIC:
            reason = "two levels have none above a zero in the middle; use mode=asymmetric"
            return refused(node, UNSUITED_RANGE(reason))
        inner_after = self._whole(*inner, levels)
        outer_after = inner_after if _same(inner, outer) else self._whole_output(*outer, levels)
        if inner_after is None and outer_after is None:
            zero_point = span_text(np.rint(CodeGrid.of(*inner, levels).zero_point))
            return entry(node, SiteStatus.KEPT, f"its zero point is already {zero_point}")
        if inner_after is not None and not _is_done(*inner_after, levels):
            reason = f"no float32 range with an integer zero point and {levels} levels is near "
            reason += f"{range_text(*inner)}; scale the data to another order of magnitude"
            return refused(node, UNSUITED_RANGE(reason))
        ranged = Ranged(*(inner_after or inner), *(outer_after or outer), levels)
        draft = editor.draft(fake.site)
        limits = zip(ends_of(ranged), ENDS, strict=True)
        operands = [draft.x, *(draft.constant(end, name) for end, name in limits)]
        y = draft.node(node.op_type, operands, fake.attributes, domain=node.domain)
        return _Tuned(fake, ranged, draft.giving(y))

    def _whole(self, low: Float32, high: Float32, levels: int) -> _Range | None:
        """Return the new limits of a range; None if it need not change."""
        zero_point = whole_zero_point(low, high, levels)
        done = zero_point is not None
        if zero_point is not None and self.mode is Mode.SYMMETRIC:
            done = bool((zero_point == levels // 2).all())
        if done and self.scale is TunedScales.POWER_OF_TWO:
            done = bool((np.frexp(CodeGrid.of(low, high, levels).scale)[0] == 0.5).all())
        return None if done else whole_range(low, high, levels, self.mode, self.scale)

    def _whole_output(self, low: Float32, high: Float32, levels: int) -> _Range | None:
        """Return the new limits of an output range, which may be reversed; keep a point."""
        if (low < high).all():
            return self._whole(low, high, levels)
        negated = self._whole(-low, -high, levels) if (low > high).all() else None
        return None if negated is None else (-negated[0], -negated[1])

    def _judge(self, tuned: _Tuned, verdict: Verdict) -> Decision:
        site = tuned.fake.site
        if verdict.exactness is None:
            return Decision(site, None, verdict, verdict.reason)
        change = tuned.change()
        verdict = replace(verdict, witness=Witness(change.input, change.before, change.after))
        figures = tuned.figures(change)
        size = f"at most {change.text()}"
        if change.steps > self.accept * (1 + SAME_LEVEL):
            enough = math.ceil(change.steps * 10) / 10 if change.steps < math.inf else "inf"
            reason = (
                f"{tuned.text()} would move outputs by {size}, above accept={self.accept:g}; "
                f"accept={enough} allows it"
            )
            return Decision(site, None, verdict, ABOVE_LIMIT(reason), figures)
        return Decision(site, tuned.draft, verdict, f"{tuned.text()}; {size}", figures)


@dataclass(frozen=True, eq=False)
class _Tuned:
    """A site, its ranges after tuning, and the new node."""

    fake: FakeQuantize
    ranged: Ranged
    draft: Draft

    @property
    def _parameters(self) -> Float32:
        return side_by_side(*self.fake.ends, *ends_of(self.ranged))

    def change(self) -> LargestChange:
        """Return the largest change of an output: of the weights, or over all inputs."""
        levels = self.ranged.levels
        if self.fake.site.weight is not None:
            return self._change_of_constant()

        def after(x: Float32, row: Float32) -> Float32:
            return expression.evaluate(fake_quantize_expression(row[4:8], levels), x)

        return largest_change(self._parameters, levels, after, others=2)

    def _change_of_constant(self) -> LargestChange:
        site, draft, ends = self.fake.site, self.draft, self.fake.ends
        weight, before = np.asarray(site.weight), np.asarray(site.values)
        after = evaluate(draft.nodes, draft.x, draft.y, weight)
        shape = np.broadcast_shapes(*(end.shape for end in ends))
        channels = np.broadcast_to(np.arange(math.prod(shape)).reshape(shape), weight.shape)
        size = np.abs(before.astype(np.float64) - after)
        with np.errstate(divide="ignore", invalid="ignore"):
            step = np.abs(CodeGrid.of(*ends[2:], self.ranged.levels).scale)
            steps = np.where(size == 0, 0.0, size / step)
        at = int(np.argmax(steps))
        values = (float(array.flat[at]) for array in (weight, before, after))
        return LargestChange(
            float(steps.flat[at]), float(size.max()), int(channels.flat[at]), *values
        )

    def figures(self, change: LargestChange) -> dict[str, Figure]:
        """Return range and zero point, before and after, of the channel with the largest change."""
        row = self._parameters[change.channel]
        figures: dict[str, Figure] = {"channels": len(self._parameters)}
        for when, ends in (("before", row[:4]), ("after", row[4:])):
            for first, side in ((0, "input"), (2, "output")):
                grid = CodeGrid.of(ends[first], ends[first + 1], self.ranged.levels)
                figures[f"{side}_scale_{when}"] = float(grid.scale)
                if np.isfinite(grid.zero_point):
                    figures[f"{side}_zero_point_{when}"] = float(grid.zero_point)
        is_data = self.fake.site.weight is None
        over = "all float32 inputs" if is_data else "the elements of the constant"
        return figures | {
            "largest_change_steps": change.steps,
            "largest_change": change.size,
            "largest_change_input": change.input,
            "largest_change_over": over,
        }

    def text(self) -> str:
        """Return zero point and range, before and after, as text."""
        before, after = self.fake.ends, ends_of(self.ranged)
        pairs = ("input ", before[:2], after[:2]), ("output ", before[2:], after[2:])
        if _same(before[:2], before[2:]):
            pairs = (("", *pairs[0][1:]),) * 2
        texts = [self._moved(*pair) for pair in pairs if not _same(*pair[1:])]
        return "; ".join(dict.fromkeys(texts))

    def _moved(self, name: str, before: _Range, after: _Range) -> str:
        points = (CodeGrid.of(*ends, self.ranged.levels).zero_point for ends in (before, after))
        return (
            f"{name}zero point {' -> '.join(map(span_text, points))}, "
            f"range {range_text(*before)} -> {range_text(*after)}"
        )


def _is_done(low: Float32, high: Float32, levels: int) -> bool:
    """Return whether tuning has reached a float32 range with an integer zero point."""
    finite = np.isfinite(low).all() and np.isfinite(high).all()
    return bool(finite and (low < high).all() and whole_zero_point(low, high, levels) is not None)


def _same(one: _Range, other: _Range) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


_SIGNIFICAND = 24
_KEPT = 8
"""Rounding a scale moves the far end of its range by less than 2**-8 steps."""

_MIDDLE = 0.25
"""A range counts as symmetric if its zero point is within this distance of the middle, in steps."""


def whole_range(
    low: Float32, high: Float32, levels: int, mode: Mode, scales: TunedScales
) -> _Range:
    """Return the ends of the closest range to ``[low, high]`` with an integer zero point.

    With n = levels - 1, scale s = (high - low) / n and zero point z = round(-low / s):

        asymmetric  [-z*s, (n - z)*s], which moves both ends by the same, at most half a step; no
                    smaller move of the wider moved end exists. Where z is an end itself, the other
                    end stays.
        symmetric   z = levels // 2, and s just large enough for both ends. For low = -high that is
                    low = -high / (1 - 2 / levels) if the number of levels, at least 3, is even;
                    nothing moves if it is odd.

    The range is first extended to zero. The scale is then rounded, to so few bits that its
    multiples are exact, or up to a power of two, which makes the range wider.
    """
    top = levels - 1
    below = np.maximum(-low.astype(np.float64), 0.0)
    above = np.maximum(high.astype(np.float64), 0.0)
    below, above = np.broadcast_arrays(below, above)
    if mode is Mode.SYMMETRIC or (mode is Mode.AUTO and _is_symmetric(low, high, levels)):
        zero_point = np.full(below.shape, float(levels // 2))
        scale = np.maximum(below / zero_point, above / (top - zero_point))
    else:
        scale = (below + above) / top
        zero_point = np.rint(below / scale)
        scale = np.where(zero_point == 0, above / top, scale)
        scale = np.where(zero_point == top, below / top, scale)
    if scales is TunedScales.POWER_OF_TWO:
        scale = _power_of_two_above(scale)
        if not (zero_point == levels // 2).all():
            zero_point = np.rint(below / scale)
    else:
        scale = _rounded(scale, top.bit_length())
    with np.errstate(over="ignore", under="ignore"):
        ends = -zero_point * scale, (top - zero_point) * scale
        return ends[0].astype(np.float32) + np.float32(0), ends[1].astype(np.float32)


def _is_symmetric(low: Float32, high: Float32, levels: int) -> bool:
    """Return whether zero lies within a quarter of a step of the middle, in all channels."""
    middle = (levels - 1) / 2
    zero_point = CodeGrid.of(low, high, levels).zero_point
    return levels > 2 and bool((np.abs(zero_point - middle) <= _MIDDLE).all())


def _power_of_two_above(scale: Float64) -> Float64:
    mantissa, exponent = np.frexp(scale)
    return np.asarray(np.ldexp(1.0, np.where(mantissa == 0.5, exponent - 1, exponent)))


def _rounded(scale: Float64, code_bits: int) -> Float64:
    """Return the nearest scales whose products with codes are exact, if precise enough."""
    bits = max(_SIGNIFICAND - code_bits, min(_SIGNIFICAND, code_bits + _KEPT))
    mantissa, exponent = np.frexp(scale)
    whole = np.rint(np.ldexp(mantissa, bits))
    return np.asarray(np.ldexp(whole, exponent - bits))
