"""The pass ``drop-rounding``: replace FakeQuantize by a linear function."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness, Method, Verdict, Witness
from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.model import Model
from qgraph.numerics import Float32
from qgraph.quantizers.compare import Comparer
from qgraph.quantizers.dialects.dialect import Refusal
from qgraph.quantizers.dialects.parts import clip
from qgraph.reasons import UNSUITED_RANGE
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.transforms.base import Transform, option, selects, transform
from qgraph.transforms.drafts.choice import Decision, entry, label, readable, refused, settle
from qgraph.transforms.ranges.grids import (
    CodeGrid,
    FakeQuantize,
    fake_quantizes,
    largest_change,
    side_by_side,
    span_text,
)

_SMALL = 0.01
"""An offset below this fraction of the output range is omitted."""


@transform("drop-rounding")
class DropRounding(Transform):
    """Replace FakeQuantize by Mul and Add, without rounding.

    For tensors that stay float. With ``a = (oh - ol) / (ih - il)`` and ``c = ol - il * a``:

    1. ``FakeQuantize(x, il, ih, ol, oh) -> a * x + c``;
    2. ``-> a * x`` if ``abs(c / (oh - ol)) < 0.01`` in all channels, that is
       ``abs(ol / (oh - ol) - il / (ih - il)) < 0.01``.

    Within the input range the error is at most half a step, plus ``abs(c)`` in rule 2. These bounds
    hold for real numbers; the report adds the largest error over all float32 inputs of the range,
    in real units and in steps. Outside the range there is no bound, since FakeQuantize clamps and
    the line does not, unless ``clamp=true`` puts a Clip before it.
    """

    clamp: bool = option(
        False, help="clamp to the input range first; default: no bound on values outside the range"
    )
    nodes: str = option("*", help="node names to replace, such as *relu*|!*/relu_3")

    preserves: ClassVar[Exactness] = Exactness.DIFFERENT

    def apply(self, model: Model, report: Report) -> None:
        """Replace each FakeQuantize of data by its linear function."""
        editor = Editor(model.ir)
        lines: list[_Line] = []
        others: list[SiteReport] = []
        for fake in readable(filter(self._has, fake_quantizes(model)), others):
            if fake.site.weight is not None:
                reason = "its input is constant, so its rounding costs no time at run time"
                others.append(entry(fake.node, SiteStatus.KEPT, reason))
            elif (fake.ranged.output_low == fake.ranged.output_high).any():
                reason = (
                    "its output range is a point, so there is no linear function to use; correct it"
                )
                others.append(refused(fake.node, UNSUITED_RANGE(reason)))
            else:
                lines.append(_Line.of(fake, editor, clamp=self.clamp))
        verdicts = Comparer(model.ir).compare_all([(line.fake.site, line.draft) for line in lines])
        decisions = [line.decide(v) for line, v in zip(lines, verdicts, strict=True)]
        settle(model, decisions, editor, report)
        report.sites += others

    def _has(self, quantizer: FakeQuantize | Refusal) -> bool:
        node = quantizer.root if isinstance(quantizer, Refusal) else quantizer.node
        return selects(self.nodes, label(node))


@dataclass(frozen=True, eq=False)
class _Line:
    """``y = slope * x + offset``.

    Attributes:
        slope: output units per input unit.
        offset: None if it is left out.
        left_out: the largest of the offsets that are left out, in output units and in steps.
        clamped: whether x is clamped to the input range.
    """

    fake: FakeQuantize
    slope: Float32
    offset: Float32 | None
    left_out: tuple[float, float]
    clamped: bool
    draft: Draft

    @classmethod
    def of(cls, fake: FakeQuantize, editor: Editor, *, clamp: bool) -> _Line:
        il, ih, ol, oh = (end.astype(np.float64) for end in fake.ends)
        exact_slope = (oh - ol) / (ih - il)
        exact_offset = ol - il * exact_slope
        offset: Float32 | None = exact_offset.astype(np.float32)
        left_out = (0.0, 0.0)
        if (np.abs(ol / (oh - ol) - il / (ih - il)) < _SMALL).all():
            step = CodeGrid.of(*fake.ends[2:], fake.ranged.levels).scale
            offset = None
            size = np.abs(exact_offset)
            left_out = float(size.max()), float((size / np.abs(step)).max())
        draft = editor.draft(fake.site)
        y: Operand = clip(draft, draft.x, *fake.ends[:2]) if clamp else draft.x
        slope = exact_slope.astype(np.float32)
        y = draft.op.Mul(y, slope) if (slope != 1).any() else y
        y = draft.op.Add(y, offset) if offset is not None else y
        y = draft.node("Identity", [y], dtype=ir.DataType.FLOAT) if y is draft.x else y
        return cls(fake, slope, offset, left_out, clamp, draft.giving(y))

    def decide(self, verdict: Verdict) -> Decision:
        """Return the decision for the linear function, with its largest error in the range."""
        offset = np.zeros_like(self.slope) if self.offset is None else self.offset
        table = side_by_side(*self.fake.ends, self.slope, offset)
        levels = self.fake.ranged.levels

        def line(x: Float32, row: Float32) -> Float32:
            return np.asarray(x * row[4] + row[5])

        error = largest_change(table, levels, line, inside=True)
        left, left_steps = self.left_out
        step = np.abs(CodeGrid.of(*self.fake.ends[2:], levels).scale)
        formula = f"y = {span_text(self.slope)} * x"
        formula += "" if self.offset is None else f" + {span_text(self.offset)}"
        bound = f"error at most {error.size:.6g} within the input range, {error.text()}: half a "
        bound += f"step, and the offset {left:.6g} that is omitted" if left else "step"
        outside = "inputs outside are clamped" if self.clamped else "no bound outside"
        figures: dict[str, float | int | str] = {
            "slope_lowest": float(self.slope.min()),
            "slope_highest": float(self.slope.max()),
            "offset_left_out": left,
            "real_bound": float(step.max()) / 2 + left,
            "real_bound_steps": 0.5 + left_steps,
            "largest_error": error.size,
            "largest_error_steps": error.steps,
            "largest_error_input": error.input,
            "outside_the_range": "clamped" if self.clamped else "not bounded",
        }
        # The comparison may be undecided; a linear and a step function differ in any case.
        if verdict.exactness is None:
            verdict = Verdict(Exactness.DIFFERENT, Method.NONE)
        verdict = replace(verdict, witness=Witness(error.input, error.before, error.after))
        text = f"{formula}: {bound}; {outside}"
        return Decision(self.fake.site, self.draft, verdict, text, figures)
