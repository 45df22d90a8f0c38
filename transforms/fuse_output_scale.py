"""The pass ``fuse-output-scale``: fuse the scale of a quantizer into the weights before it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.graph.inference.walk import Facts, infer
from qgraph.graph.opset.versions import ceiling
from qgraph.model import Model
from qgraph.numerics import Float64
from qgraph.quantizers.compare import Comparer
from qgraph.quantizers.dialects.parts import clip
from qgraph.reasons import FAULTY_SCALE, NO_EQUAL_FORM, NOT_ABSORBED, explained
from qgraph.records import dataclass, field, replace
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.transforms.base import Transform, exact_option, opset_option, transform
from qgraph.transforms.drafts.choice import (
    Decision,
    carry_out,
    entry,
    opset_reason,
    readable,
    refused,
)
from qgraph.transforms.ranges.grids import (
    CodeGrid,
    FakeQuantize,
    codes_of,
    fake_quantizes,
    range_text,
    span_text,
    whole_zero_point,
)
from qgraph.transforms.weights.multiples import Multiples, MultiplesTracer
from qgraph.transforms.weights.output_scale import Scaling, Stuck, is_power, scaling, title

_ALONE = "; leave it, or write it without the operators before it with -p convert{to=onnx}"


@transform("fuse-output-scale", preserves=Exactness.VALUES)
class FuseOutputScale(Transform):
    """Fuse the scale of quantize-only FakeQuantize into the weights before it.

    For a FakeQuantize whose output is its codes, with ``s`` and ``z`` of its input range,

    1. ``FakeQuantize(f(x)) -> Clip(Round(f'(x)))`` with ``f'(x) = f(x) / s``: ``f'`` is ``f`` with
       the weights and the bias of the Conv, ConvTranspose, MatMul or Gemm multiplied by ``1 / s``,
       or the constants of a nearer BatchNormalization, Mul or Div. If weights come from a
       FakeQuantize or a DequantizeLinear, its output scale is multiplied.
    2. Operators ``g`` with ``g(v) * c = g(v * c)`` may lie between: Relu, LeakyRelu, Clip, Add of a
       constant or of another branch that can be scaled, pooling, and others.
    3. If rule 1 is not equal enough, the zero point is added before rounding, as FakeQuantize does:
       ``Clip(Round(f'(x) + z)) - z``. The codes differ near some ties.

    Two things can change. The rounding of the quantizer is compared for all float32 inputs. ``f'``
    is a multiple of ``f`` if all scales are powers of two, and the codes and constants from which
    ``f`` is computed show that no number leaves the normal range of float32. Otherwise nothing is
    claimed, and the site is unchanged unless ``exact`` is ``near``.
    """

    exact: Exactness = exact_option(
        "minimum level of equality to accept; near: also without a proof for the sums before the "
        "quantizer, such as for scales that are not powers of two"
    )
    opset: int | None = opset_option()

    def apply(self, model: Model, report: Report) -> None:
        """Fuse every quantizer that can be fused."""
        comparer = Comparer(model.ir)
        carry_out(model, lambda editor: self._plan(model, editor, comparer), report)

    def _plan(
        self, model: Model, editor: Editor, comparer: Comparer
    ) -> Iterator[_Fusion | SiteReport]:
        others: list[SiteReport] = []
        limit, facts = ceiling(model.ir, self.opset), infer(model.ir)
        tracer = MultiplesTracer(model.ir, facts)
        for fake in readable(fake_quantizes(model), others):
            if fake.site.weight is not None:
                others.append(entry(fake.node, SiteStatus.KEPT, "its input is constant"))
                continue
            try:
                planned = self._fuse(fake, editor, comparer, limit, facts, tracer)
            except Stuck as stuck:
                reason = stuck.reason if ";" in stuck.reason else stuck.reason + _ALONE
                planned = refused(fake.node, explained(reason, NOT_ABSORBED))
            if isinstance(planned, _Fusion):
                yield planned
            else:
                others.append(planned)
        yield from others

    def _fuse(
        self,
        fake: FakeQuantize,
        editor: Editor,
        comparer: Comparer,
        limit: int,
        facts: Facts,
        tracer: MultiplesTracer,
    ) -> _Fusion | SiteReport:
        codes = _codes(fake)
        moved = scaling(fake.site.x, fake.node, codes.factor, facts)
        why = _inequality(moved, tracer.numbers(fake.site.x), codes.factor)
        best: Exactness | None = None
        verdict, refusal = Verdict(), ""
        for offset in codes.offsets:
            probe = editor.draft(fake.site)
            scaled = probe.op.Mul(probe.x, codes.factor.astype(np.float32))
            step = comparer.compare(fake.site, _rounded(probe, scaled, codes, offset))
            draft = editor.draft(fake.site)
            draft = _rounded(draft, draft.x, codes, offset)
            if draft.opset > limit:
                raise Stuck(opset_reason("a form with Round and Clip", draft.opset, limit))
            level = None if step.exactness is None else min(step.exactness, _most(why))
            found, text = _verdict(step, moved, codes, why)
            if level is not None and level >= self.exact:
                figures = _figures(step, moved, codes)
                return _Fusion(fake.site, draft, found, text, figures, moved)
            if best is None or (level is not None and level >= best):
                best, verdict, refusal = level, found, text
        way = f"; exact={best} accepts that" if best not in (None, Exactness.DIFFERENT) else ""
        reason = NO_EQUAL_FORM(f"{refusal}; expected {self.exact}{way}")
        return Decision(fake.site, None, verdict, reason).report()


@dataclass(frozen=True)
class _Fusion(Decision):
    """A quantizer to replace, and the constants before it to scale."""

    scaling: Scaling = field(default_factory=Scaling)

    @property
    def stands(self) -> bool:
        scaled = all(node.graph is not None for node in self.scaling.constants)
        return self.site.stands and scaled

    def prepare(self, editor: Editor) -> None:
        self.scaling.settle(editor)


@dataclass(frozen=True)
class _QuantizeOnly:
    """Parameters of a quantize-only FakeQuantize.

    ``clip(round(x * factor + inner), 0, levels - 1) - outer``

    Attributes:
        factor: 1 / scale of its input range.
        inner: zero point of its input range, in unsigned codes.
        outer: zero point of its output range; the lowest code is ``-outer``.
    """

    factor: Float64
    inner: float
    outer: float
    levels: int

    @property
    def offsets(self) -> tuple[float, ...]:
        """The possible terms added before rounding: none, or the zero point, as in FakeQuantize."""
        return (0.0, self.inner) if self.inner else (0.0,)


def _codes(fake: FakeQuantize) -> _QuantizeOnly:
    """Return the parameters of a quantize-only FakeQuantize.

    Raises:
        Stuck: it is not a rounded multiple of the data.
    """
    ranged, levels = fake.ranged, fake.ranged.levels
    outer = codes_of(fake)
    if outer is None:
        raise Stuck(
            f"its output range {range_text(ranged.output_low, ranged.output_high)} is not a range "
            f"of codes; run -p split-fake-quantize first"
        )
    inner = whole_zero_point(ranged.input_low, ranged.input_high, levels)
    grid = CodeGrid.of(ranged.input_low, ranged.input_high, levels)
    if inner is None:
        raise Stuck(
            f"the zero point of its input range, {span_text(grid.zero_point)}, is not an integer; "
            f"run -p tune-ranges first"
        )
    for points in (inner, outer):
        if (points != points.reshape(-1)[0]).any():
            raise Stuck(
                f"its channels have several zero points, {span_text(points)}, expected one; run "
                "-p tune-ranges{mode=symmetric} first"
            )
    factor = 1 / grid.scale
    if (factor > np.finfo(np.float32).max).any():
        raise Stuck(
            FAULTY_SCALE(
                "its scale is too small for its reciprocal to be float32; correct its range"
            )
        )
    return _QuantizeOnly(factor, float(inner.reshape(-1)[0]), float(outer.reshape(-1)[0]), levels)


def _rounded(draft: Draft, x: Operand, codes: _QuantizeOnly, offset: float) -> Draft:
    """Complete a draft by Round and Clip; its data are already divided by the scale."""
    low = np.float32(offset - codes.inner)
    high = np.float32(low + codes.levels - 1)
    y = draft.op.Add(x, offset) if offset else x
    y = clip(draft, draft.op.Round(y), np.asarray(low), np.asarray(high))
    left = codes.outer - codes.inner + offset
    return draft.giving(draft.op.Sub(y, left) if left else y)


def _inequality(moved: Scaling, numbers: Multiples | None, factor: Float64) -> str | None:
    """Return why sums before the quantizer may be rounded elsewhere; None if they are not.

    Raises:
        Stuck: they may overflow.
    """
    least, most = float(factor.min()), float(factor.max())
    if numbers is not None and numbers.may_overflow(most):
        raise Stuck("sums before it might exceed the range of float32; correct its range")
    if not moved.exact:
        return "equal rounding of the sums before it is not proved"
    if numbers is None:
        return "the sums before it are not proved equal, because the range of their data is unknown"
    if numbers.may_underflow(least):
        return "the sums before it are not proved equal, because some may become subnormal"
    return None


def _most(why: str | None) -> Exactness:
    """Return the highest level that ``exact`` may require of a change."""
    return Exactness.VALUES if why is None else Exactness.NEAR


def _verdict(
    step: Verdict, moved: Scaling, codes: _QuantizeOnly, why: str | None
) -> tuple[Verdict, str]:
    """Return the verdict on quantizer and operators together, and its text."""
    where = ", ".join(map(title, moved.absorbers))
    text = f"1 / scale = {span_text(codes.factor)} goes into {where}"
    if step.exactness is None:
        return step, f"{text}; {step.reason}"
    count = step.differing_inputs
    text += f"; {count or 'no'} input{'' if count == 1 else 's'} of the quantizer alone differ"
    text += "s" if count == 1 else ""
    if why is not None:
        return replace(step, exactness=None, method=Method.NONE, reason=why), f"{text}; {why}"
    level = min(step.exactness, Exactness.VALUES)
    method = Method.CONGRUENCE if level is Exactness.VALUES else step.method
    text += "; powers of two commute with every rounding before it"
    return replace(step, exactness=level, method=method), text


def _figures(step: Verdict, moved: Scaling, codes: _QuantizeOnly) -> dict[str, float | int | str]:
    return {
        "scale_lowest": float((1 / codes.factor).min()),
        "scale_highest": float((1 / codes.factor).max()),
        "zero_point": codes.inner,
        "powers_of_two": str(is_power(codes.factor)).lower(),
        "quantizer_differing_inputs": step.differing_inputs,
        "absorbed_by": ", ".join(map(title, moved.absorbers)),
        "constants_scaled": sum(map(len, moved.constants.values())),
    }
