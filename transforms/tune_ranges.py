"""The pass ``tune-ranges``: FakeQuantize ranges moved until zero is one of their levels."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from qgraph.dialects.dialect import Refusal, Site
from qgraph.equivalence.compare import Comparer
from qgraph.errors import OptionError
from qgraph.exactness import Exactness, Verdict, Witness
from qgraph.graph.edit import Draft, Editor
from qgraph.model import Model
from qgraph.ops.evaluate import evaluate
from qgraph.proof import expression
from qgraph.proof.ladder import ONE_STEP, SAME_LEVEL
from qgraph.quantizer import Ranged
from qgraph.report import Outcome, Report, SiteReport
from qgraph.transforms.base import Transform, option, transform
from qgraph.transforms.ranges.grids import (
    NAMES,
    FakeQuantize,
    Grid,
    carry_over,
    fake_quantizes,
    range_text,
    span_text,
    whole_zero_point,
)
from qgraph.transforms.ranges.largest_change import (
    Change,
    fake_quantize_expression,
    largest_change,
    side_by_side,
)
from qgraph.transforms.ranges.whole_ranges import Mode, Scales, whole_range
from qgraph.transforms.spelling import Choice, entry, settle

Float32 = npt.NDArray[np.float32]
_Range = tuple[Float32, Float32]


@transform("tune-ranges")
class TuneRanges(Transform):
    """Move the ends of FakeQuantize ranges a little, so that zero points are whole numbers.

    With ``S = (high - low) / (levels - 1)`` the zero point is ``-low / S``. Input and output range
    are moved together where they are equal, else each for itself. This changes what the model
    computes: the report has for each site how many of all float32 inputs give another output, the
    largest change in steps, which is exact, and an input that shows it.

    The scales of up to 256 levels get 24 bits less those of a code, so that all levels are exact
    multiples of them. Whether ``convert`` then finds a pair of QuantizeLinear and DequantizeLinear
    that equals the new FakeQuantize in value depends on its scale: it does for a zero point of 0
    and a power of two. Other scales differ by ulps, other zero points near ties.
    """

    mode: Mode = option(
        Mode.AUTO,
        help="symmetric: zero at the middle code, 0 in signed codes; asymmetric: at the nearest "
        "code; auto: symmetric for ranges from -a to a",
    )
    scale: Scales = option(
        Scales.ANY, help="power-of-two makes ranges wider, for plain pairs and shifts"
    )
    accept: float = option(
        ONE_STEP,
        help="largest change of an output, in steps, that is accepted; up to 1.5 it is that of one "
        "flipped rounding",
    )

    preserves: ClassVar[Exactness] = Exactness.DIFFERENT

    def check_options(self) -> None:
        """Raise an OptionError for options that do not go together."""
        if not self.accept >= 0:
            raise OptionError(
                f"accept={self.accept} is no bound, expected a number of steps from 0. "
                "Leave it out for the default, or raise it."
            )

    def apply(self, model: Model, report: Report) -> None:
        """Tune what is not whole yet, and report each site with what it changes."""
        editor, comparer = Editor(model.ir), Comparer(model.ir)
        tuned: list[_Tuned] = []
        others: list[SiteReport] = []
        for found in fake_quantizes(model):
            if isinstance(found, Refusal):
                others.append(entry(found, Outcome.REFUSED, found.reason))
                continue
            attempt = self._tune(found, editor)
            if isinstance(attempt, SiteReport):
                others.append(attempt)
            else:
                tuned.append(attempt)
        verdicts = comparer.compare_all([(t.fake.site, t.draft) for t in tuned])
        choices = [self._judge(t, v) for t, v in zip(tuned, verdicts, strict=True)]
        settle(model, choices, editor, report)
        for choice in choices:
            if choice.draft is not None:
                carry_over(choice.site.root, choice.draft.nodes[-1])
        report.sites += others

    def _tune(self, fake: FakeQuantize, editor: Editor) -> _Tuned | SiteReport:
        """Return a site with tuned ranges, or the report of one that is kept or refused."""
        ranged, levels = fake.ranged, fake.ranged.levels
        ends, outer = _ends(ranged)[:2], _ends(ranged)[2:]
        if levels == 2 and self.mode is Mode.SYMMETRIC:
            reason = "two levels leave none above a zero in the middle; use mode=asymmetric"
            return entry(fake.site, Outcome.REFUSED, reason)
        inner_after = self._whole(*ends, levels)
        outer_after = inner_after if _same(ends, outer) else self._whole_output(*outer, levels)
        if inner_after is None and outer_after is None:
            known = span_text(np.rint(Grid.of(*ends, levels).zero_point))
            return entry(fake.site, Outcome.KEPT, f"its zero point is {known} already")
        if inner_after is not None and not _is_done(*inner_after, levels):
            reason = (
                f"no float32 range of {levels} whole steps is near {range_text(*ends)}; scale the "
                "data to another order of magnitude"
            )
            return entry(fake.site, Outcome.REFUSED, reason)
        result = Ranged(*(inner_after or ends), *(outer_after or outer), levels)
        draft = editor.draft(fake.site)
        limits = zip(_ends(result), NAMES, strict=True)
        operands = [draft.constant(end, name) for end, name in limits]
        node = fake.node
        made = draft.node(node.op_type, [draft.x, *operands], fake.attributes, domain=node.domain)
        return _Tuned(fake, result, draft.giving(made))

    def _whole(self, low: Float32, high: Float32, levels: int) -> _Range | None:
        """Return the ends that a range gets, None if it can stay."""
        zero_point = whole_zero_point(low, high, levels)
        done = zero_point is not None
        if zero_point is not None and self.mode is Mode.SYMMETRIC:
            done = bool((zero_point == levels // 2).all())
        if done and self.scale is Scales.POWER_OF_TWO:
            done = bool((np.frexp(Grid.of(low, high, levels).scale)[0] == 0.5).all())
        return None if done else whole_range(low, high, levels, self.mode, self.scale)

    def _whole_output(self, low: Float32, high: Float32, levels: int) -> _Range | None:
        """Do the same for an output range, which may also be reversed; a point stays."""
        if (low < high).all():
            return self._whole(low, high, levels)
        found = self._whole(-low, -high, levels) if (low > high).all() else None
        return None if found is None else (-found[0], -found[1])

    def _judge(self, tuned: _Tuned, verdict: Verdict) -> Choice:
        site = tuned.fake.site
        if verdict.rung is None:
            return Choice(site, None, verdict, verdict.reason)
        change = tuned.change()
        verdict = replace(verdict, witness=Witness(change.input, change.before, change.after))
        figures = tuned.figures(change)
        told = f"at most {change.text()}"
        if change.steps > self.accept * (1 + SAME_LEVEL):
            enough = math.ceil(change.steps * 10) / 10 if change.steps < math.inf else "inf"
            reason = (
                f"{tuned.text()} would move outputs by {told}, above accept={self.accept:g}; "
                f"accept={enough} allows it"
            )
            return Choice(site, None, verdict, reason, figures)
        return Choice(site, tuned.draft, verdict, f"{tuned.text()}; {told}", figures)


@dataclass(frozen=True, eq=False)
class _Tuned:
    """A site, its ranges after tuning, and the node that has them."""

    fake: FakeQuantize
    ranged: Ranged
    draft: Draft

    @property
    def _parameters(self) -> Float32:
        return side_by_side(*_ends(self.fake.ranged), *_ends(self.ranged))

    def change(self) -> Change:
        """Return the largest change of an output: of the weights, or over all inputs."""
        site, levels = self.fake.site, self.ranged.levels
        if site.weight is not None:
            return _change_of_values(site, self.draft, self.fake.ranged)

        def after(x: Float32, row: Float32) -> Float32:
            return expression.evaluate(fake_quantize_expression(row[4:8], levels), x)

        return largest_change(self._parameters, levels, after, others=2)

    def figures(self, change: Change) -> dict[str, float | int | str]:
        """Return the figures of the channel that changes most."""
        row = self._parameters[change.channel]
        known: dict[str, float | int | str] = {"channels": len(self._parameters)}
        for when, ends in (("before", row[:4]), ("after", row[4:])):
            for place, side in ((0, "input"), (2, "output")):
                grid = Grid.of(ends[place], ends[place + 1], self.ranged.levels)
                known[f"{side}_scale_{when}"] = float(grid.scale)
                if np.isfinite(grid.zero_point):
                    known[f"{side}_zero_point_{when}"] = float(grid.zero_point)
        known["largest_change_steps"] = change.steps
        known["largest_change"] = change.size
        known["largest_change_input"] = change.input
        known["largest_change_over"] = (
            "all float32 inputs"
            if self.fake.site.weight is None
            else "the elements of the constant"
        )
        return known

    def text(self) -> str:
        """Say what was moved, and how far."""
        before, after = _ends(self.fake.ranged), _ends(self.ranged)
        moved = [
            (name, old, new)
            for name, old, new in (
                ("input ", before[:2], after[:2]),
                ("output ", before[2:], after[2:]),
            )
            if not _same(old, new)
        ]
        if _same(before[:2], before[2:]):
            moved = [("", *moved[0][1:])]
        return "; ".join(self._moved_text(*move) for move in moved)

    def _moved_text(self, name: str, before: _Range, after: _Range) -> str:
        points = (Grid.of(*ends, self.ranged.levels).zero_point for ends in (before, after))
        return (
            f"{name}zero point {' -> '.join(map(span_text, points))}, "
            f"range {range_text(*before)} -> {range_text(*after)}"
        )


def _ends(ranged: Ranged) -> tuple[Float32, Float32, Float32, Float32]:
    return ranged.input_low, ranged.input_high, ranged.output_low, ranged.output_high


def _is_done(low: Float32, high: Float32, levels: int) -> bool:
    """Return whether tuning has led to a range of whole steps that float32 has."""
    finite = np.isfinite(low).all() and np.isfinite(high).all()
    return bool(finite and (low < high).all() and whole_zero_point(low, high, levels) is not None)


def _same(one: _Range, other: _Range) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def _change_of_values(site: Site, draft: Draft, ranged: Ranged) -> Change:
    """Return the largest change of an element of a constant."""
    weight, before = np.asarray(site.weight), np.asarray(site.values)
    after = evaluate(draft.nodes, draft.x, draft.y, weight)
    ends = _ends(ranged)
    shape = np.broadcast_shapes(*(end.shape for end in ends))
    channels = np.broadcast_to(np.arange(math.prod(shape)).reshape(shape), weight.shape).reshape(-1)
    step = np.abs(Grid.of(*ends[2:], ranged.levels).scale)
    size = np.abs(before.astype(np.float64) - after)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.where(size == 0, 0.0, size / step).reshape(-1)
    place = int(np.argmax(steps))
    values = (float(array.reshape(-1)[place]) for array in (weight, before, after))
    return Change(float(steps[place]), float(size.max()), int(channels[place]), *values)
