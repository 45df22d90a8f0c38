"""The pass ``drop-rounding``: FakeQuantize as a straight line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.dialects.dialect import Refusal
from qgraph.dialects.qdq_nodes import clip
from qgraph.equivalence.compare import Comparer
from qgraph.exactness import Exactness, Method, Verdict, Witness
from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.model import Model
from qgraph.report import Outcome, Report, SiteReport
from qgraph.transforms.base import Transform, option, transform
from qgraph.transforms.ranges.grids import FakeQuantize, Float64, Grid, fake_quantizes, span_text
from qgraph.transforms.ranges.largest_change import Change, largest_change, side_by_side
from qgraph.transforms.spelling import Choice, entry, settle

Float32 = npt.NDArray[np.float32]

_SMALL = 0.01
"""An offset below this share of the output range is left out."""


@transform("drop-rounding")
class DropRounding(Transform):
    """Replace FakeQuantize by a straight line, Mul and Add: an approximation without rounding.

    For tensors that stay float. With ``a = (oh - ol) / (ih - il)`` and ``c = ol - il * a``,
    ``y = a * x + c``; ``y = a * x`` where ``abs(c / (oh - ol)) < 0.01`` in all channels, that is
    ``abs(ol / (oh - ol) - il / (ih - il)) < 0.01``.

    Within the input range the result is half a step from that of FakeQuantize at most, and ``c``
    more where it is left out; the report has the largest error over all float32 inputs of the
    range, found exactly, in real units and in steps, besides that bound, which real numbers have.
    Outside the range there is no bound, as FakeQuantize clamps and the line does not, unless
    ``clamp=true`` puts a Clip before it.
    """

    clamp: bool = option(
        False,
        help="clamp to the input range first; without it, values outside the range are not bounded",
    )
    nodes: str = option("*", help="names of the nodes to treat, as a pattern with * and ?")

    preserves: ClassVar[Exactness] = Exactness.DIFFERENT

    def apply(self, model: Model, report: Report) -> None:
        """Replace each FakeQuantize of data by its line."""
        editor, comparer = Editor(model.ir), Comparer(model.ir)
        lines: list[_Line] = []
        others: list[SiteReport] = []
        for found in fake_quantizes(model):
            root = found.root if isinstance(found, Refusal) else found.node
            if not fnmatchcase(root.name or root.outputs[0].name or "", self.nodes):
                continue
            if isinstance(found, Refusal):
                others.append(entry(found, Outcome.REFUSED, found.reason))
            elif found.site.weight is not None:
                reason = "its input is constant, so that its rounding takes no time"
                others.append(entry(found.site, Outcome.KEPT, reason))
            elif (found.ranged.output_low == found.ranged.output_high).any():
                reason = "its output range is a point: it has no steps and no line"
                others.append(entry(found.site, Outcome.REFUSED, reason))
            else:
                lines.append(_Line.of(found, clamp=self.clamp))
        drafts = [line.draft(editor) for line in lines]
        pairs = zip(lines, drafts, strict=True)
        verdicts = comparer.compare_all([(line.fake.site, draft) for line, draft in pairs])
        choices = [
            _choice(line, draft, verdict)
            for line, draft, verdict in zip(lines, drafts, verdicts, strict=True)
        ]
        settle(model, choices, editor, report)
        report.sites += others


@dataclass(frozen=True, eq=False)
class _Line:
    """``y = slope * x + offset``.

    Attributes:
        slope: output units per input unit.
        offset: None where it is left out.
        left_out: the largest of the offsets that are left out, in output units and in steps.
        clamped: whether x is clamped to the input range.
    """

    fake: FakeQuantize
    slope: Float32
    offset: Float32 | None
    left_out: tuple[float, float]
    clamped: bool

    @classmethod
    def of(cls, fake: FakeQuantize, *, clamp: bool) -> _Line:
        ranged = fake.ranged
        ends = (ranged.input_low, ranged.input_high, ranged.output_low, ranged.output_high)
        il, ih, ol, oh = (end.astype(np.float64) for end in ends)
        slope = (oh - ol) / (ih - il)
        offset: Float64 = ol - il * slope
        small = bool((np.abs(ol / (oh - ol) - il / (ih - il)) < _SMALL).all())
        step = Grid.of(ranged.output_low, ranged.output_high, ranged.levels).scale
        left_out = (0.0, 0.0)
        if small:
            left_out = float(np.abs(offset).max()), float(np.abs(offset / step).max())
        kept = None if small else offset.astype(np.float32)
        return cls(fake, slope.astype(np.float32), kept, left_out, clamp)

    def draft(self, editor: Editor) -> Draft:
        draft = editor.draft(self.fake.site)
        y: Operand = draft.x
        if self.clamped:
            y = clip(draft, y, self.fake.ranged.input_low, self.fake.ranged.input_high)
        if (self.slope != 1).any():
            y = draft.op.Mul(y, self.slope)
        if self.offset is not None:
            y = draft.op.Add(y, self.offset)
        if y is draft.x:
            y = draft.node("Identity", [y], dtype=ir.DataType.FLOAT)
        return draft.giving(y)

    def error(self) -> Change:
        """Return the largest difference from FakeQuantize within the input range."""
        ranged = self.fake.ranged
        offset = np.zeros_like(self.slope) if self.offset is None else self.offset
        ends = (ranged.input_low, ranged.input_high, ranged.output_low, ranged.output_high)
        table = side_by_side(*ends, self.slope, offset)

        def line(x: Float32, row: Float32) -> Float32:
            return np.asarray(x * row[4] + row[5])

        return largest_change(table, ranged.levels, line, inside=True)


def _choice(line: _Line, draft: Draft, verdict: Verdict) -> Choice:
    ranged = line.fake.ranged
    error = line.error()
    left, left_steps = line.left_out
    step = np.abs(Grid.of(ranged.output_low, ranged.output_high, ranged.levels).scale)
    formula = f"y = {span_text(line.slope)} * x"
    if line.offset is not None:
        formula += f" + {span_text(line.offset)}"
    bound = f"within the input range at most {error.size:.6g} off, {error.text()}, which is half a "
    bound += f"step and the offset of {left:.6g} that is left out" if left else "step"
    outside = "clamped outside" if line.clamped else "outside without bound"
    figures: dict[str, float | int | str] = {
        "slope_lowest": float(line.slope.min()),
        "slope_highest": float(line.slope.max()),
        "offset_left_out": left,
        "real_bound": float(step.max()) / 2 + left,
        "real_bound_steps": 0.5 + left_steps,
        "largest_error": error.size,
        "largest_error_steps": error.steps,
        "largest_error_input": error.input,
        "outside_the_range": "clamped" if line.clamped else "not bounded",
    }
    # What is no step function may be undecided; that it differs is known all the same.
    known = Verdict(Exactness.DIFFERENT, Method.NONE) if verdict.rung is None else verdict
    known = replace(known, witness=Witness(error.input, error.before, error.after))
    return Choice(line.fake.site, draft, known, f"{formula}: {bound}; {outside}", figures)
