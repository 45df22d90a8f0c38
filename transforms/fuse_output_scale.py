"""The pass ``fuse-output-scale``: the scale of a quantizer goes into the weights before it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from qgraph.dialects.dialect import Refusal
from qgraph.dialects.qdq_nodes import clip
from qgraph.equivalence.compare import Comparer
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.model import Model
from qgraph.opsets.versions import ceiling
from qgraph.report import Outcome, Report, SiteReport
from qgraph.transforms.base import Transform, option, transform
from qgraph.transforms.ranges.grids import (
    FakeQuantize,
    Float64,
    Grid,
    codes_of,
    fake_quantizes,
    range_text,
    span_text,
    whole_zero_point,
)
from qgraph.transforms.scales.output_scale import scaling
from qgraph.transforms.scales.scaled_constants import Scaling, Stuck, is_power, title
from qgraph.transforms.spelling import (
    Choice,
    check_level,
    entry,
    raise_opset,
    settle,
)

Float32 = npt.NDArray[np.float32]


@transform("fuse-output-scale")
class FuseOutputScale(Transform):
    """Move the scale of quantize-only FakeQuantize nodes into the weights of what precedes them.

    A FakeQuantize whose output is its codes becomes ``Round`` and ``Clip``: its input is divided by
    the scale already. For that, the weights and the bias of the Conv, ConvTranspose, MatMul or Gemm
    before it are multiplied by ``1 / scale``, or the constants of a BatchNormalization, Mul or Div
    that lies nearer. In between there may be
    operators that commute with a positive factor: Relu, LeakyRelu, Clip, Add of a constant or of
    another branch that can be scaled, pooling, and others. Of weights behind a FakeQuantize or a
    DequantizeLinear, the output scale is multiplied.

    Nothing is added before rounding, nor subtracted after it if the zero points of input and output
    are equal: 0 in unsigned codes, or half of the levels, which is 0 in signed ones. FakeQuantize
    however rounds with its zero point added, which gives another code near some ties; where that is
    not equal enough, the zero point is added.

    Two things can change. The rounding of the quantizer is compared for all float32 inputs. That
    the operators before it give a multiple of what they gave is certain if all scales are powers of
    two, which commute with each rounding as long as nothing leaves the normal range of float32. For
    other scales it is not proved: such sites are ``near`` at best, and left alone unless that is
    accepted.
    """

    exact: Exactness = option(
        Exactness.VALUES,
        help="lowest rung of equality that is accepted; near accepts scales that are no powers of "
        "two, for which the sums before the quantizer are not proved",
    )
    opset: int | None = option(
        None, help="highest opset that may be used; default: 21, or the model's own if higher"
    )

    preserves: ClassVar[Exactness] = Exactness.VALUES

    def check_options(self) -> None:
        """Raise an OptionError for options that do not go together."""
        check_level(self.exact)

    def apply(self, model: Model, report: Report) -> None:
        """Fuse every quantizer for which it is possible."""
        editor, comparer = Editor(model.ir), Comparer(model.ir)
        fusions, others = self._plan(model, editor, comparer)
        before = model.ir.opset_imports.get("")
        raise_opset(model, [fusion.choice for fusion in fusions], report)
        if model.ir.opset_imports.get("") != before:
            # Another opset may have rewritten any of the nodes whose constants are scaled.
            fusions, others = self._plan(model, editor, comparer)
        editor.learn()
        for fusion in fusions:
            fusion.scaling.settle(editor)
        settle(model, [fusion.choice for fusion in fusions], editor, report)
        report.sites += others

    def _plan(
        self, model: Model, editor: Editor, comparer: Comparer
    ) -> tuple[list[_Fusion], list[SiteReport]]:
        fusions: list[_Fusion] = []
        others: list[SiteReport] = []
        limit = ceiling(model.ir, self.opset)
        for found in fake_quantizes(model):
            if isinstance(found, Refusal):
                others.append(entry(found, Outcome.REFUSED, found.reason))
                continue
            if found.site.weight is not None:
                others.append(entry(found.site, Outcome.KEPT, "its input is constant"))
                continue
            planned = self._fuse(found, editor, comparer, limit)
            if isinstance(planned, _Fusion):
                fusions.append(planned)
            else:
                others.append(planned)
        return fusions, others

    def _fuse(
        self, fake: FakeQuantize, editor: Editor, comparer: Comparer, limit: int
    ) -> _Fusion | SiteReport:
        codes = _codes(fake)
        if isinstance(codes, str):
            return entry(fake.site, Outcome.REFUSED, codes)
        try:
            moved = scaling(fake.site.x, fake.node, codes.factor)
        except Stuck as stuck:
            return entry(fake.site, Outcome.REFUSED, stuck.reason)
        best: Verdict | None = None
        for offset in codes.offsets:
            probe = editor.draft(fake.site)
            scaled = probe.op.Mul(probe.x, codes.factor.astype(np.float32))
            step = comparer.compare(fake.site, _rounded(probe, scaled, codes, offset))
            draft = editor.draft(fake.site)
            draft = _rounded(draft, draft.x, codes, offset)
            if draft.opset > limit:
                reason = f"Round and Clip need opset {draft.opset}, above {limit}; allow it"
                return entry(fake.site, Outcome.REFUSED, reason)
            verdict, told = _verdict(step, moved, codes)
            if verdict.reaches(self.exact):
                choice = Choice(fake.site, draft, verdict, told, _figures(step, moved, codes))
                return _Fusion(choice, moved)
            if best is None or best.rung is None or verdict.reaches(best.rung):
                best, refusal = verdict, told
        reason = f"{refusal}; {self.exact} was asked for"
        refused = Choice(fake.site, None, best, reason)
        return refused.report()


@dataclass(frozen=True)
class _Fusion:
    """A quantizer to be replaced, and the constants to be scaled before."""

    choice: Choice
    scaling: Scaling


@dataclass(frozen=True)
class _Codes:
    """What a quantize-only FakeQuantize does.

    ``clip(round(x * factor + inner), 0, levels - 1) - outer``

    Attributes:
        factor: 1 / scale of its input range.
        inner: zero point of its input range, in unsigned codes.
        outer: zero point of its output range; the lowest code is ``-outer``.
        levels: how many codes there are.
    """

    factor: Float64
    inner: float
    outer: float
    levels: int

    @property
    def offsets(self) -> tuple[float, ...]:
        """What may be added before rounding: nothing, or the zero point, as FakeQuantize does."""
        return (0.0, self.inner) if self.inner else (0.0,)


def _codes(fake: FakeQuantize) -> _Codes | str:
    """Return what a FakeQuantize does if that is a rounded multiple, or why it is not."""
    ranged, levels = fake.ranged, fake.ranged.levels
    outer = codes_of(fake)
    if outer is None:
        return (
            f"its output range {range_text(ranged.output_low, ranged.output_high)} is not that of "
            "codes; run split-fake-quantize first"
        )
    inner = whole_zero_point(ranged.input_low, ranged.input_high, levels)
    grid = Grid.of(ranged.input_low, ranged.input_high, levels)
    if inner is None:
        return (
            f"the zero point of its input range, {span_text(grid.zero_point)}, is not whole; run "
            "tune-ranges first"
        )
    for points in (inner, outer):
        if (points != points.reshape(-1)[0]).any():
            return f"its channels have several zero points, {span_text(points)}, expected one"
    factor = 1 / grid.scale
    if (factor > np.finfo(np.float32).max).any():
        return "its scale is too small for its reciprocal to be a float32 number"
    return _Codes(factor, float(inner.reshape(-1)[0]), float(outer.reshape(-1)[0]), levels)


def _rounded(draft: Draft, x: Operand, codes: _Codes, offset: float) -> Draft:
    """Finish a draft with Round and Clip of what is a multiple of the scale already."""
    low = np.float32(offset - codes.inner)
    high = np.float32(low + codes.levels - 1)
    y = draft.op.Add(x, offset) if offset else x
    y = clip(draft, draft.op.Round(y), np.asarray(low), np.asarray(high))
    left = codes.outer - codes.inner + offset
    return draft.giving(draft.op.Sub(y, left) if left else y)


def _verdict(step: Verdict, moved: Scaling, codes: _Codes) -> tuple[Verdict, str]:
    """Return the verdict on quantizer and operators together, and how it came about."""
    where = ", ".join(map(title, moved.absorbers))
    told = f"1 / scale = {span_text(codes.factor)} goes into {where}"
    if step.rung is None:
        return step, f"{told}; {step.reason}"
    count = step.differing_inputs
    told += f"; of the quantizer alone {count or 'no'} input{'' if count == 1 else 's'} differ"
    told += "s" if count == 1 else ""
    if moved.exact:
        told += (
            "; powers of two commute with every rounding before it, while nothing overflows or "
            "becomes subnormal"
        )
        rung = min(step.rung, Exactness.VALUES)
        method = Method.CONGRUENCE if rung is Exactness.VALUES else step.method
    else:
        told += "; that the sums before it round alike is not proved"
        rung, method = min(step.rung, Exactness.NEAR), Method.NONE
    return replace(step, rung=rung, method=method), told


def _figures(step: Verdict, moved: Scaling, codes: _Codes) -> dict[str, float | int | str]:
    return {
        "scale_lowest": float((1 / codes.factor).min()),
        "scale_highest": float((1 / codes.factor).max()),
        "zero_point": codes.inner,
        "powers_of_two": str(is_power(codes.factor)).lower(),
        "quantizer_differing_inputs": step.differing_inputs,
        "absorbed_by": ", ".join(map(title, moved.absorbers)),
        "constants_scaled": sum(map(len, moved.constants.values())),
    }
