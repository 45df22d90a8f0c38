"""The pass ``split-fake-quantize``: codes first, real values afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qgraph import choices
from qgraph.dialects.dialect import Refusal, Site
from qgraph.equivalence.compare import Comparer
from qgraph.exactness import Exactness
from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.model import Model
from qgraph.opsets.versions import ceiling
from qgraph.report import Outcome, Report, SiteReport
from qgraph.transforms.base import Transform, option, transform
from qgraph.transforms.ranges.grids import (
    NAMES,
    FakeQuantize,
    Grid,
    carry_over,
    codes_of,
    fake_quantizes,
    span_text,
)
from qgraph.transforms.spelling import (
    Choice,
    check_level,
    choose,
    entry,
    raise_opset,
    settle,
)

_NEARLY = 2.0**-10
"""So near to a whole number, in steps, a zero point is taken for it first."""


class Codes(choices.Choice):
    """From where codes count."""

    AUTO = "auto"
    """Signed where zero is then the code 0, else unsigned."""

    UNSIGNED = "unsigned"
    """From 0."""

    SIGNED = "signed"
    """From minus half of the levels."""


@transform("split-fake-quantize")
class SplitFakeQuantize(Transform):
    """Split each FakeQuantize into one whose output is the codes, and what decodes them.

    ``FakeQuantize(il, ih, ol, oh)`` becomes ``FakeQuantize(il, ih, 0, levels - 1)``, or the same
    with signed codes, followed by ``Sub(zero point)`` and ``Mul(scale)``, where scale and zero
    point are those of the output range. That rounds otherwise than FakeQuantize does, so that for
    most scales some outputs are ulps off (level ``codes``). Where that is not equal enough, the
    codes are decoded as FakeQuantize does it: ``Div(levels - 1)``, ``Mul(oh - ol)``, ``Add(ol)``.

    A ``Round`` follows the FakeQuantize if its float operations do not hit whole numbers.
    """

    exact: Exactness = option(
        Exactness.VALUES,
        help="lowest rung of equality that is accepted; codes gives Sub and Mul everywhere that "
        "only ulps differ",
    )
    codes: Codes = option(Codes.AUTO, help="signed codes, unsigned ones, or as zero asks for")
    opset: int | None = option(
        None, help="highest opset that may be used; default: 21, or the model's own if higher"
    )

    preserves: ClassVar[Exactness] = Exactness.VALUES

    def check_options(self) -> None:
        """Raise an OptionError for options that do not go together."""
        check_level(self.exact)

    def apply(self, model: Model, report: Report) -> None:
        """Split what is not split yet."""
        editor, comparer = Editor(model.ir), Comparer(model.ir)
        choices, others = self._choose(model, editor, comparer)
        raise_opset(model, choices, report)
        if not all(choice.site.stands for choice in choices):
            choices, others = self._choose(model, editor, comparer)
        settle(model, choices, editor, report)
        for choice in choices:
            if choice.draft is not None:
                carry_over(choice.site.root, choice.draft.nodes[0])
        report.sites += others

    def _choose(
        self, model: Model, editor: Editor, comparer: Comparer
    ) -> tuple[list[Choice], list[SiteReport]]:
        offers: list[tuple[Site, Iterator[Draft]]] = []
        grids: list[Grid] = []
        others: list[SiteReport] = []
        for found in fake_quantizes(model):
            if isinstance(found, Refusal):
                others.append(entry(found, Outcome.REFUSED, found.reason))
            elif (zero_point := codes_of(found)) is not None:
                reason = f"its output is codes already, with zero point {span_text(zero_point)}"
                others.append(entry(found.site, Outcome.KEPT, reason))
            elif (found.ranged.output_low == found.ranged.output_high).any():
                reason = "its output range is a point, so that its codes have no scale"
                others.append(entry(found.site, Outcome.REFUSED, reason))
            else:
                low, high = found.ranged.output_low, found.ranged.output_high
                grids.append(Grid.of(low, high, found.ranged.levels))
                offers.append((found.site, self._drafts(found, grids[-1], editor)))
        choices = choose(offers, self.exact, ceiling(model.ir, self.opset), comparer)
        return [_explained(c, g) for c, g in zip(choices, grids, strict=True)], others

    def _drafts(self, fake: FakeQuantize, grid: Grid, editor: Editor) -> Iterator[Draft]:
        """Yield Sub and Mul, with a whole zero point first, then FakeQuantize's own decoding."""
        ranged, zero_point = fake.ranged, grid.zero_point
        nearest = np.rint(zero_point)
        signed = self.codes is Codes.SIGNED or (
            self.codes is Codes.AUTO and bool((nearest == fake.signed_offset).all())
        )
        offset = fake.signed_offset if signed else 0
        zero_points = [zero_point]
        if not (nearest == zero_point).all() and (np.abs(nearest - zero_point) <= _NEARLY).all():
            zero_points.insert(0, nearest)
        for point in zero_points:
            draft = editor.draft(fake.site)
            y = _codes(fake, draft, offset)
            point = (point - offset).astype(np.float32)
            y = draft.op.Sub(y, point) if point.any() else y
            yield draft.giving(draft.op.Mul(y, grid.scale.astype(np.float32)))
        with np.errstate(over="ignore"):
            span = ranged.output_high - ranged.output_low
        for splits_top in (False, True):
            draft = editor.draft(fake.site)
            y = _codes(fake, draft, offset)
            y = draft.op.Add(y, float(offset)) if offset else y
            y = draft.op.Mul(draft.op.Div(y, float(ranged.levels - 1)), span)
            y = draft.op.Add(y, ranged.output_low) if ranged.output_low.any() else y
            if splits_top:
                # Where span + low is not high, the values above the range are a level of their own.
                above = draft.op.Greater(draft.x, ranged.input_high)
                y = draft.op.Where(above, ranged.output_high, y)
            yield draft.giving(y)


def _codes(fake: FakeQuantize, draft: Draft, offset: int) -> Operand:
    """Append a FakeQuantize whose output is its codes less ``offset``."""
    ranged, node = fake.ranged, fake.node
    ends = (np.asarray(end, np.float32) for end in (-offset, ranged.levels - 1 - offset))
    limits = zip((ranged.input_low, ranged.input_high, *ends), NAMES, strict=True)
    operands = [draft.constant(limit, name) for limit, name in limits]
    codes: Operand = draft.node(
        node.op_type,
        [draft.x, *operands],
        fake.attributes,
        domain=node.domain,
        dtype=ir.DataType.FLOAT,
    )
    top = np.float32(ranged.levels - 1)
    level = np.arange(ranged.levels, dtype=np.float32)
    if not np.array_equal(level / top * top, level):
        codes = draft.op.Round(codes)
    return codes


def _explained(choice: Choice, grid: Grid) -> Choice:
    """Give a chosen draft the figures of its decoding."""
    if choice.draft is None:
        return choice
    text = f"scale {span_text(grid.scale)}, zero point of unsigned codes "
    figures: dict[str, float | int | str] = {"channels": grid.scale.size}
    for name, values in (("scale", grid.scale), ("zero_point", grid.zero_point)):
        figures[f"{name}_lowest"] = float(values.min())
        figures[f"{name}_highest"] = float(values.max())
    return replace(choice, reason=text + span_text(grid.zero_point), figures=figures)
