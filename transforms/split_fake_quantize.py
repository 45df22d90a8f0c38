"""The pass ``split-fake-quantize``: write FakeQuantize as quantization and dequantization."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qgraph.errors import Choice
from qgraph.exactness import Exactness
from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.graph.opset.versions import ceiling
from qgraph.model import Model
from qgraph.quantizers.compare import Comparer
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.dialects.openvino import ENDS
from qgraph.reasons import UNSUITED_RANGE
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.transforms.base import Transform, exact_option, opset_option, option, transform
from qgraph.transforms.drafts.choice import Decision, carry_out, choose, entry, readable, refused
from qgraph.transforms.drafts.rebuilding import carry_over
from qgraph.transforms.ranges.grids import (
    CodeGrid,
    FakeQuantize,
    codes_of,
    fake_quantizes,
    span_text,
)

_NEARLY = 2.0**-10
"""A zero point within this distance of an integer, in steps, is first tried as that integer."""


class CodeOrigin(Choice):
    """Numbering of codes."""

    AUTO = "auto"
    """Signed if zero gets the code 0, else unsigned."""

    UNSIGNED = "unsigned"
    """Codes from 0."""

    SIGNED = "signed"
    """Codes from minus half of the levels."""


@transform("split-fake-quantize")
class SplitFakeQuantize(Transform):
    """Split each FakeQuantize into quantization and dequantization.

    With ``n = levels - 1``, ``s = (oh - ol) / n`` and ``z = -ol / s``, the first of these that
    reaches ``exact`` replaces ``FakeQuantize(x, il, ih, ol, oh)``:

    1. ``(q - z) * s`` with ``q = FakeQuantize(x, il, ih, 0, n)``. FakeQuantize rounds differently,
       so for most scales some outputs differ by ulps (level ``codes``).
    2. ``q / n * (oh - ol) + ol``, as FakeQuantize decodes.

    Signed codes are ``q - floor(levels / 2)``. A Round follows the FakeQuantize if its float
    operations do not give whole numbers.
    """

    exact: Exactness = exact_option(
        "minimum level of equality to accept; codes: write Sub and Mul if values differ by ulps "
        "only"
    )
    codes: CodeOrigin = option(
        CodeOrigin.AUTO, help="unsigned or signed codes; auto: signed if zero gets the code 0"
    )
    opset: int | None = opset_option()

    preserves: ClassVar[Exactness] = Exactness.VALUES

    def apply(self, model: Model, report: Report) -> None:
        """Split every FakeQuantize that is not split already."""
        comparer = Comparer(model.ir)
        for decision in carry_out(
            model, lambda editor: self._choose(model, editor, comparer), report
        ):
            if decision.draft is not None:
                carry_over(decision.site.root, decision.draft.nodes[0])

    def _choose(
        self, model: Model, editor: Editor, comparer: Comparer
    ) -> list[Decision | SiteReport]:
        offers: list[tuple[Site, Iterator[Draft]]] = []
        grids: list[CodeGrid] = []
        others: list[SiteReport] = []
        for fake in readable(fake_quantizes(model), others):
            zero_point = codes_of(fake)
            if zero_point is not None:
                reason = f"its output is already codes, with zero point {span_text(zero_point)}"
                others.append(entry(fake.node, SiteStatus.KEPT, reason))
            elif (fake.ranged.output_low == fake.ranged.output_high).any():
                reason = "its output range is a point, so its codes have no scale"
                others.append(refused(fake.node, UNSUITED_RANGE(reason)))
            else:
                grids.append(CodeGrid.of(*fake.ends[2:], fake.ranged.levels))
                offers.append((fake.site, self._drafts(fake, grids[-1], editor)))
        decisions = choose(offers, self.exact, ceiling(model.ir, self.opset), comparer)
        return [*map(_explained, decisions, grids), *others]

    def _drafts(self, fake: FakeQuantize, grid: CodeGrid, editor: Editor) -> Iterator[Draft]:
        """Yield Sub and Mul, with a whole zero point first, then FakeQuantize's own decoding."""
        _, input_high, output_low, output_high = fake.ends
        nearest = np.rint(grid.zero_point)
        signed = self.codes is CodeOrigin.SIGNED or (
            self.codes is CodeOrigin.AUTO and bool((nearest == fake.signed_offset).all())
        )
        offset = fake.signed_offset if signed else 0
        distance = np.abs(nearest - grid.zero_point)
        zero_points = [nearest] if distance.any() and (distance <= _NEARLY).all() else []
        for point in [*zero_points, grid.zero_point]:
            draft = editor.draft(fake.site)
            y = _codes(fake, draft, offset)
            point = (point - offset).astype(np.float32)
            y = draft.op.Sub(y, point) if point.any() else y
            yield draft.giving(draft.op.Mul(y, grid.scale.astype(np.float32)))
        with np.errstate(over="ignore"):
            span = output_high - output_low
        for splits_top in (False, True):
            draft = editor.draft(fake.site)
            y = _codes(fake, draft, offset)
            y = draft.op.Add(y, float(offset)) if offset else y
            y = draft.op.Mul(draft.op.Div(y, float(fake.ranged.levels - 1)), span)
            y = draft.op.Add(y, output_low) if output_low.any() else y
            if splits_top:
                # If span + low is not high, the values above the range are a level of their own.
                above = draft.op.Greater(draft.x, input_high)
                y = draft.op.Where(above, output_high, y)
            yield draft.giving(y)


def _codes(fake: FakeQuantize, draft: Draft, offset: int) -> Operand:
    """Append a FakeQuantize whose output is its codes minus ``offset``."""
    node, top = fake.node, fake.ranged.levels - 1
    ends = (np.asarray(end, np.float32) for end in (-offset, top - offset))
    limits = zip((*fake.ends[:2], *ends), ENDS, strict=True)
    codes: Operand = draft.node(
        node.op_type,
        [draft.x, *(draft.constant(limit, name) for limit, name in limits)],
        fake.attributes,
        domain=node.domain,
        dtype=ir.DataType.FLOAT,
    )
    level = np.arange(fake.ranged.levels, dtype=np.float32)
    is_whole = np.array_equal(level / np.float32(top) * np.float32(top), level)
    return codes if is_whole else draft.op.Round(codes)


def _explained(decision: Decision, grid: CodeGrid) -> Decision:
    """Return the decision, with scale and zero point in its remark."""
    if decision.draft is None:
        return decision
    text = f"scale {span_text(grid.scale)}, zero point of unsigned codes "
    figures: dict[str, float | int | str] = {"channels": grid.scale.size}
    for name, values in (("scale", grid.scale), ("zero_point", grid.zero_point)):
        figures[f"{name}_lowest"] = float(values.min())
        figures[f"{name}_highest"] = float(values.max())
    return replace(decision, reason=text + span_text(grid.zero_point), figures=figures)
