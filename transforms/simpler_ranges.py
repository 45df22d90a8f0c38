"""Passes that replace FakeQuantize by simpler operators.

``split-fake-quantize``  quantization and dequantization
``drop-rounding``        a linear function

``keep-roundings`` keeps runtimes from dropping the roundings of quantizers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain

import numpy as np
import onnx_ir as ir

from qgraph.errors import Choice
from qgraph.exactness import Exactness, Method, Verdict, Witness
from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.graph.opset.versions import ceiling, only_float_type
from qgraph.graph.scopes import producer_of
from qgraph.inventory.layers import quantized_layers
from qgraph.inventory.openvino_roundings import (
    padded_means,
    quantized_extremes,
    rounded_clips,
    rounded_means,
    rounded_shifts,
    stripped_decoders,
    stripped_fake_quantizes,
    unrounded_sums,
)
from qgraph.model import Model
from qgraph.numerics import Float32
from qgraph.quantizers.compare import Comparer
from qgraph.quantizers.dialects.dialect import Refusal, Site
from qgraph.quantizers.dialects.openvino import ENDS
from qgraph.quantizers.dialects.parts import clip
from qgraph.reasons import UNSUITED_RANGE
from qgraph.records import dataclass, replace
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.transforms.base import (
    Transform,
    escaped,
    exact_option,
    opset_option,
    option,
    selects,
    transform,
)
from qgraph.transforms.drafts.choice import (
    Decision,
    carry_out,
    choose,
    entry,
    label,
    readable,
    refused,
    settle,
)
from qgraph.transforms.drafts.rebuilding import carry_over, wrap_operand
from qgraph.transforms.ranges.grids import (
    CodeGrid,
    FakeQuantize,
    codes_of,
    fake_quantizes,
    largest_change,
    side_by_side,
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


@transform("split-fake-quantize", preserves=Exactness.VALUES)
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
    nodes: str = option("*", help="patterns of names of the FakeQuantize to split")

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
            if not selects(self.nodes, label(fake.node)):
                continue
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


@transform("keep-roundings", preserves=Exactness.VALUES)
class KeepRoundings(Transform):
    """Prevent a runtime from dropping the roundings of quantizers, or whole quantizers.

    1. ``Add(Q(Conv(x)), u) -> Add(Q(LeakyRelu<alpha=1>(Conv(x))), u)`` before another quantizer,
       also with Relu and Clip between Conv and ``Q``; likewise Sub and Sum.
    2. ``DequantizeLinear(c) -> DequantizeLinear(Identity(c))`` for codes ``c`` of 16 bits that a
       QuantizeLinear computes.
    3. A FakeQuantize with 65536 levels is split, as ``split-fake-quantize`` does.
    4. ``Clip(DequantizeLinear(c)) -> Clip(LeakyRelu<alpha=1>(DequantizeLinear(c)))`` for limits
       between two codes; likewise Min and Max in a row.
    5. ``AveragePool(x) -> AveragePool(LeakyRelu<alpha=1>(x))`` for decoded ``x``, if an operator
       follows that is computed on codes, such as Conv, MatMul, Mul, Clip or ReduceMean, or if the
       zero point is not 0 and padding counts.
    6. ``Conv(Sub(x, k)) -> Conv(LeakyRelu<alpha=1>(Sub(x, k)))`` for decoded ``x`` without a zero
       point and quantized weights; likewise Add and BatchNormalization.

    7. ``Q(ReduceMax(x)) -> Q(Max(ReduceMax(x), -inf))`` for ``x`` that are not codes; likewise
       ReduceMin and GlobalMaxPool, also with operators on each element before ``Q``.

    Operators that move, choose or scale codes may lie in between. None of this changes a value.
    Without the first one, OpenVINO clamps the result of the convolution, but rounds only the sum.
    Without the next two, it removes the quantizer. Without the last ones, it rounds limits, means
    and constants to codes, pads with code 0, and gives other codes for maxima.
    """

    def apply(self, model: Model, report: Report) -> None:
        """Insert a LeakyRelu or Max before, or an Identity inside, each of these operators."""
        editor = Editor(model.ir)
        layers = {layer.node for layer in quantized_layers(model.ir)}
        sums = list(unrounded_sums(model.ir.graph, layers))
        readers = [*chain.from_iterable(data.consumers() for e in sums for _, data in e.operands)]
        for nodes, write in ((readers, _relu), (stripped_decoders(model.ir.graph), _identity)):
            for node in list(nodes):
                wrap_operand(node, 0, write, editor, report)
        for node, index, _ in list(rounded_clips(model.ir.graph)):
            wrap_operand(node, index, _relu, editor, report)
        readers = [node for node, _ in rounded_means(model.ir.graph)]
        readers += [each.first for each in padded_means(model.ir.graph)]
        readers += [node for node, _ in rounded_shifts(model.ir.graph)]
        for node in dict.fromkeys(readers):
            wrap_operand(producer_of(node.inputs[0], "Pad") or node, 0, _relu, editor, report)
        for node, reader in list(quantized_extremes(model.ir.graph)):
            index = list(reader.inputs).index(node.outputs[0])
            dtype = node.outputs[0].dtype or only_float_type(model.ir) or ir.DataType.FLOAT
            wrap_operand(reader, index, partial(_max, dtype=dtype), editor, report)
        fakes = [escaped(label(node)) for node in stripped_fake_quantizes(model.ir.graph)]
        if fakes:
            SplitFakeQuantize(nodes="|".join(fakes)).apply(model, report)


def _relu(draft: Draft) -> ir.Value:
    return draft.node("LeakyRelu", [draft.x], {"alpha": 1.0}, dtype=draft.x.dtype)


def _max(draft: Draft, dtype: ir.DataType) -> ir.Value:
    lowest = draft.constant(np.asarray(-np.inf, dtype.numpy()), "lowest")
    return draft.node("Max", [draft.x, lowest], dtype=dtype)


def _identity(draft: Draft) -> ir.Value:
    return draft.node("Identity", [draft.x], dtype=draft.x.dtype)
