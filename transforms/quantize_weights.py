"""The pass ``quantize-weights``: float weights become codes, and the report says what is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from qgraph.choices import Choice, member
from qgraph.errors import OptionError
from qgraph.exactness import Exactness
from qgraph.graph.edit import Editor
from qgraph.model import Model
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.opsets import versions as opset
from qgraph.report import Outcome, Report, SiteReport
from qgraph.transforms.base import Transform, option, transform
from qgraph.transforms.weights.float_weights import (
    Axes,
    FloatWeight,
    Places,
    UseKind,
    Wanted,
    float_weights,
    label,
)
from qgraph.transforms.weights.weight_plan import WeightPlan, untouched
from qgraph.weights.weight_groups import Groups
from qgraph.weights.weight_quantization import E4M3, E8M0, Scheme, Search

_MX_BLOCK, _NV_BLOCK = 32, 16


class WeightFormat(Choice):
    """What weights become."""

    INT8 = "int8"
    UINT8 = "uint8"
    INT4 = "int4"
    UINT4 = "uint4"
    INT2 = "int2"
    UINT2 = "uint2"
    FP8 = "fp8"
    FP8_E5M2 = "fp8-e5m2"
    FP6_E2M3 = "fp6-e2m3"
    FP6_E3M2 = "fp6-e3m2"
    FP4 = "fp4"
    MXFP8 = "mxfp8"
    MXFP6 = "mxfp6"
    MXFP4 = "mxfp4"
    NVFP4 = "nvfp4"


class Granularity(Choice):
    """Which weights share a scale."""

    TENSOR = "tensor"
    AXIS = "axis"
    BLOCK = "block"


_CODES: Mapping[WeightFormat, str] = {
    WeightFormat.FP8: "FLOAT8E4M3FN",
    WeightFormat.FP8_E5M2: "FLOAT8E5M2",
    WeightFormat.FP6_E2M3: "FLOAT6E2M3",
    WeightFormat.FP6_E3M2: "FLOAT6E3M2",
    WeightFormat.FP4: "FLOAT4E2M1",
    WeightFormat.MXFP8: "FLOAT8E4M3FN",
    WeightFormat.MXFP6: "FLOAT6E2M3",
    WeightFormat.MXFP4: "FLOAT4E2M1",
    WeightFormat.NVFP4: "FLOAT4E2M1",
}

_OWN_BLOCKS = {
    WeightFormat.MXFP8: _MX_BLOCK,
    WeightFormat.MXFP6: _MX_BLOCK,
    WeightFormat.MXFP4: _MX_BLOCK,
    WeightFormat.NVFP4: _NV_BLOCK,
}
"""Formats whose blocks have one size by definition."""


@transform("quantize-weights")
class QuantizeWeights(Transform):
    """Store float weights as codes of few bits behind a DequantizeLinear; values change."""

    format: WeightFormat = option(
        WeightFormat.INT8, help="type of the codes, for mx and nv with their block scales"
    )
    granularity: Granularity | None = option(
        None, help="what has a scale of its own; default: block up to 6 bits, else axis"
    )
    block_size: int | None = option(
        None, help="weights per block; default: 32, for nvfp4 16; mx and nv formats have no other"
    )
    symmetric: bool | None = option(
        None, help="no zero point (unsigned: the middle code); default: true unless unsigned"
    )
    scale: Search = option(
        Search.MINMAX, help="minmax: nothing is clipped; mse: least squared error"
    )
    types: str = option(
        "MatMul|Gemm|Conv|ConvTranspose|Gather", help="operators whose weights are quantized"
    )
    nodes: str = option("*", help="patterns of names of nodes that are asked for: *attn*|*mlp*")
    exclude: str | None = option(None, help="patterns of names of nodes that are left out")
    min_elements: int = option(1024, help="smaller weights stay as they are")
    opset: int | None = option(
        None, help="highest opset that may be used; default: 21, or the model's own if higher"
    )

    preserves: ClassVar[Exactness] = Exactness.DIFFERENT

    def check_options(self) -> None:
        """Raise an OptionError for options that do not go together."""
        self._check_blocks()
        whole = isinstance(FORMATS[self._codes], IntFormat)
        if self.symmetric is False and not whole:
            raise OptionError(
                f"symmetric=false with format={self.format}, which has no zero point; expected an "
                "integer format. Leave symmetric out."
            )
        if self.min_elements < 0:
            raise OptionError(f"min_elements is {self.min_elements}, expected 0 or more.")
        kinds = [member(UseKind, name, "types") for name in _alternatives(self.types)]
        object.__setattr__(self, "types", "|".join(kinds))

    def _check_blocks(self) -> None:
        own = _OWN_BLOCKS.get(self.format)
        if own is not None and self.granularity not in (None, Granularity.BLOCK):
            raise OptionError(
                f"granularity={self.granularity} with format={self.format}, whose scales belong "
                f"to blocks of {own}; expected block. Leave it out, or take another format."
            )
        if self.block_size is None:
            return
        if own not in (None, self.block_size):
            raise OptionError(
                f"block_size={self.block_size} with format={self.format}, whose blocks have {own} "
                "elements. Leave block_size out, or take another format."
            )
        if self.block_size < 2:
            raise OptionError(f"block_size is {self.block_size}, expected 2 or more.")
        if self._granularity is not Granularity.BLOCK:
            raise OptionError(
                f"block_size={self.block_size} with scales per {self._granularity}, expected "
                "granularity=block. Add that, or leave block_size out."
            )

    def apply(self, model: Model, report: Report) -> None:
        """Plan codes for each weight, raise the opset once, and put DequantizeLinear in place."""
        plans, others = self._plan(model)
        needed = max((plan.opset for plan in plans), default=0)
        before = model.ir.opset_imports.get("", 0)
        if plans and opset.require(model.ir, needed):
            report.notes.append(f"opset raised from {before} to {needed}")
            plans, others = self._plan(model)
        editor, places = Editor(model.ir), Places(model)
        report.sites += [plan.carry_out(editor, places) for plan in plans] + others
        opset.declare_domains(model.ir)

    def _plan(self, model: Model) -> tuple[list[WeightPlan], list[SiteReport]]:
        limit = opset.ceiling(model.ir, self.opset)
        wanted = Wanted(
            [UseKind(name) for name in _alternatives(self.types)],
            _alternatives(self.nodes),
            _alternatives(self.exclude or ""),
        )
        plans, others = [], []
        for weight in float_weights(model, wanted):
            reason, outcome = self._obstacle(weight), Outcome.REFUSED
            if weight.tensor.size < max(self.min_elements, 1):
                reason, outcome = f"fewer than {self.min_elements} elements", Outcome.KEPT
            plan = None if reason else self._plan_of(weight)
            if plan is not None and plan.opset > limit:
                reason = (
                    f"{self.format} needs opset {plan.opset}, above {limit}; allow opset "
                    f"{plan.opset}"
                )
            if plan is not None and reason is None:
                reason = plan.prepare()
            if plan is not None and reason is None:
                plans.append(plan)
            else:
                others.append(untouched(weight, outcome, reason))
        return plans, others

    def _obstacle(self, weight: FloatWeight) -> str | None:
        if not weight.uses:
            return "its weight is used in a way that has no channels"
        if weight.others:
            named = ", ".join(dict.fromkeys(weight.others))
            return (
                f"its weight is also used by {named}, for which the float values would stay; "
                "ask for those too if nodes or types left them out, or exclude this node"
            )
        ways = {_laid(use.axes, self._granularity) for use in weight.uses}
        if len(ways) > 1:
            named = ", ".join(label(use.node) for use in weight.uses)
            return (
                f"its weight has other channels in each of {named}; with granularity=tensor one "
                "scale serves all"
            )
        return None

    def _plan_of(self, weight: FloatWeight) -> WeightPlan:
        axes, shape = weight.uses[0].axes, weight.shape
        size = self.block_size or _OWN_BLOCKS.get(self.format, _MX_BLOCK)
        way = self._granularity
        channel, reduced = axes.channel, axes.reduced
        if way is Granularity.BLOCK and (
            reduced is None or (shape[reduced] <= size and (len(shape) == 2 or channel == 0))
        ):
            # Blocks would be whole channels.
            way = Granularity.AXIS
        if way is Granularity.AXIS and channel is None:
            way = Granularity.TENSOR
        result = weight.tensor.dtype.name
        scheme = Scheme(self._codes, self._is_symmetric, self.scale, self._scales(result), result)
        if way is Granularity.BLOCK and reduced is not None:
            size = min(size, shape[reduced])
            groups = Groups.blocks(shape, reduced, size)
            sizes = tuple(groups.count if i == reduced else n for i, n in enumerate(shape))
            plan = WeightPlan(weight, scheme, groups, sizes, reduced, size)
        elif way is Granularity.AXIS and channel is not None:
            groups = Groups.channels(shape, channel)
            plan = WeightPlan(weight, scheme, groups, (shape[channel],), channel, 0)
        else:
            plan = WeightPlan(weight, scheme, Groups.tensor(shape), (), None, 0)
        return plan

    @property
    def _codes(self) -> str:
        return _CODES.get(self.format, self.format.upper())

    @property
    def _granularity(self) -> Granularity:
        if self.granularity is not None:
            return self.granularity
        narrow = FORMATS[self._codes].bits < 8 or self.format in _OWN_BLOCKS
        return Granularity.BLOCK if narrow else Granularity.AXIS

    @property
    def _is_symmetric(self) -> bool:
        if self.symmetric is not None:
            return self.symmetric
        form = FORMATS[self._codes]
        return not isinstance(form, IntFormat) or form.signed

    def _scales(self, result: str) -> str:
        if self.format is WeightFormat.NVFP4:
            return E4M3
        return E8M0 if self.format in _OWN_BLOCKS else result


def _laid(axes: Axes, way: Granularity) -> object:
    """Return what two uses of a weight must have in common."""
    return {
        Granularity.TENSOR: None,
        Granularity.AXIS: axes.channel,
        Granularity.BLOCK: (axes.reduced, axes.channel),
    }[way]


def _alternatives(text: str) -> list[str]:
    return [part.strip() for part in text.split("|") if part.strip()]
