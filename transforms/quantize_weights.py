"""The pass ``quantize-weights``: quantize float weights and report the error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from qgraph.errors import Choice, OptionError, member
from qgraph.graph.edit import Editor
from qgraph.graph.opset import versions as opset
from qgraph.model import Model
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.quantizers.weights.job import Groups
from qgraph.quantizers.weights.scheme import E4M3, E8M0, ScaleSearch, Scheme
from qgraph.reasons import UNSUITED_WEIGHT, USED_ELSEWHERE, ExplainedReason
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.transforms.base import Transform, opset_option, option, selects, transform
from qgraph.transforms.drafts.choice import entry, label, opset_reason, raised, refused
from qgraph.transforms.weights.float_weights import (
    FloatWeight,
    Places,
    UseKind,
    WeightPlan,
    WeightUse,
    float_weights,
)

_MX_BLOCK, _NV_BLOCK = 32, 16


class WeightFormat(Choice):
    """Format of the quantized weights."""

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


class WeightGranularity(Choice):
    """Granularity of the scales of weights."""

    TENSOR = "tensor"
    AXIS = "axis"
    BLOCK = "block"


CODE_TYPES: Mapping[str, str] = {
    "fp8": "FLOAT8E4M3FN",
    "fp8-e5m2": "FLOAT8E5M2",
    "fp6-e2m3": "FLOAT6E2M3",
    "fp6-e3m2": "FLOAT6E3M2",
    "fp4": "FLOAT4E2M1",
    "mxfp8": "FLOAT8E4M3FN",
    "mxfp6": "FLOAT6E2M3",
    "mxfp4": "FLOAT4E2M1",
    "nvfp4": "FLOAT4E2M1",
}
"""ONNX types of codes by format; integer types have the same name."""

_OWN_BLOCKS = {
    WeightFormat.MXFP8: _MX_BLOCK,
    WeightFormat.MXFP6: _MX_BLOCK,
    WeightFormat.MXFP4: _MX_BLOCK,
    WeightFormat.NVFP4: _NV_BLOCK,
}
"""Formats whose blocks have one size by definition."""


@transform("quantize-weights")
class QuantizeWeights(Transform):
    """Quantize float weights to codes of few bits; this changes values.

    1. ``w -> DequantizeLinear(codes, s, z)`` with ``codes = clip(round(w / s) + z)`` for each
       weight that ``types``, ``nodes`` and ``exclude`` select. ``s`` and ``z`` are shared per
       tensor, per channel, or per block along the axis over which products are summed.
    2. ``scale=minmax``: ``s`` covers the least and the largest weight. ``scale=mse``: ``s`` has
       the least squared error.
    3. mx formats have E8M0 scales for blocks of 32, nvfp4 has E4M3 scales for blocks of 16 and one
       float32 scale for the tensor.

    The report has the signal-to-noise ratio, the largest error and the clipped elements of each
    weight.
    """

    format: WeightFormat = option(
        WeightFormat.INT8, help="type of the codes; mx and nv formats include their block scales"
    )
    granularity: WeightGranularity | None = option(
        None, help="granularity of the scale; default: block for up to 6 bits, else axis"
    )
    block_size: int | None = option(
        None, help="weights per block; default: 32, or 16 for nvfp4; fixed for mx and nv formats"
    )
    symmetric: bool | None = option(
        None, help="no zero point (unsigned: the middle code); default: true unless unsigned"
    )
    scale: ScaleSearch = option(
        ScaleSearch.MINMAX, help="minmax: clip nothing; mse: least squared error"
    )
    types: str = option(
        "MatMul|Gemm|Conv|ConvTranspose|Gather", help="operators whose weights are quantized"
    )
    nodes: str = option("*", help="patterns of node names to quantize, such as *attn*|*mlp*")
    exclude: str | None = option(None, help="patterns of node names to leave out")
    min_elements: int = option(1024, help="leave smaller weights unchanged")
    opset: int | None = opset_option()

    def check_options(self) -> None:
        """Raise an OptionError if options contradict each other."""
        self._check_blocks()
        whole = isinstance(FORMATS[self._codes], IntFormat)
        if self.symmetric is False and not whole:
            raise OptionError(
                f"symmetric=false with format={self.format}, which has no zero point; expected an "
                "integer format. Leave symmetric out."
            )
        if self.min_elements < 0:
            raise OptionError(f"min_elements is {self.min_elements}, expected 0 or more.")
        names = filter(None, map(str.strip, self.types.split("|")))
        kinds = [member(UseKind, name, "types") for name in names]
        object.__setattr__(self, "types", "|".join(kinds))

    def _check_blocks(self) -> None:
        own = _OWN_BLOCKS.get(self.format)
        if own is not None and self.granularity not in (None, WeightGranularity.BLOCK):
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
        if self._granularity is not WeightGranularity.BLOCK:
            raise OptionError(
                f"block_size={self.block_size} with scales per {self._granularity}, expected "
                "granularity=block. Add that, or leave block_size out."
            )

    def apply(self, model: Model, report: Report) -> None:
        """Plan codes for each weight, raise the opset once, and insert DequantizeLinear."""
        plans, others = raised(model, lambda: self._plan(model), report)
        editor, places = Editor(model.ir), Places(model)
        report.sites += [plan.carry_out(editor, places) for plan in plans] + others
        opset.declare_domains(model.ir)

    def _plan(self, model: Model) -> Iterator[WeightPlan | SiteReport]:
        limit = opset.ceiling(model.ir, self.opset)
        for weight in float_weights(model, self._wants):
            if weight.tensor.size < max(self.min_elements, 1):
                reason = f"fewer than {self.min_elements} elements"
                yield entry(weight.first_node, SiteStatus.KEPT, reason)
                continue
            plan = self._plan_of(weight, limit)
            yield plan if isinstance(plan, WeightPlan) else refused(weight.first_node, plan)

    def _wants(self, node: ir.Node) -> bool:
        name = label(node)
        is_wanted = not node.domain and node.op_type in self.types.split("|")
        is_excluded = bool(self.exclude) and selects(str(self.exclude), name)
        return is_wanted and selects(self.nodes, name) and not is_excluded

    def _obstacle(self, weight: FloatWeight) -> ExplainedReason | None:
        if not weight.uses:
            return UNSUITED_WEIGHT(
                "its weight is used by operators without channels; exclude the node"
            )
        if weight.others:
            names = ", ".join(dict.fromkeys(weight.others))
            return USED_ELSEWHERE(
                f"its weight is also used by {names}, which would keep the float values; include "
                f"those nodes too (options nodes and types), or exclude this node"
            )
        ways = {_shared_axes(use, self._granularity) for use in weight.uses}
        if len(ways) > 1:
            names = ", ".join(label(use.node) for use in weight.uses)
            return UNSUITED_WEIGHT(
                f"its weight has other channels in each of {names}; with granularity=tensor one "
                "scale serves all"
            )
        return None

    def _plan_of(self, weight: FloatWeight, limit: int) -> WeightPlan | ExplainedReason:
        """Return how a weight is stored, or why it cannot be."""
        obstacle = self._obstacle(weight)
        if obstacle is not None:
            return obstacle
        plan = self._laid_out(weight)
        if plan.opset > limit:
            return opset_reason(str(self.format), plan.opset, limit)
        return plan.prepare() or plan

    def _laid_out(self, weight: FloatWeight) -> WeightPlan:
        use, shape = weight.uses[0], weight.shape
        size = self.block_size or _OWN_BLOCKS.get(self.format, _MX_BLOCK)
        way = self._granularity
        channel, reduced = use.channel, use.reduced
        if way is WeightGranularity.BLOCK and (
            reduced is None or (shape[reduced] <= size and (len(shape) == 2 or channel == 0))
        ):
            # Blocks would be whole channels.
            way = WeightGranularity.AXIS
        if way is WeightGranularity.AXIS and channel is None:
            way = WeightGranularity.TENSOR
        result = weight.tensor.dtype.name
        scheme = Scheme(self._codes, self._is_symmetric, self.scale, self._scales(result), result)
        if way is WeightGranularity.BLOCK and reduced is not None:
            size = min(size, shape[reduced])
            groups = Groups.blocks(shape, reduced, size)
            sizes = tuple(groups.count if i == reduced else n for i, n in enumerate(shape))
            return WeightPlan(weight, scheme, groups, sizes, reduced, size)
        if way is WeightGranularity.AXIS and channel is not None:
            groups = Groups.channels(shape, channel)
            return WeightPlan(weight, scheme, groups, (shape[channel],), channel, 0)
        return WeightPlan(weight, scheme, Groups.tensor(shape), (), None, 0)

    @property
    def _codes(self) -> str:
        return CODE_TYPES.get(self.format, self.format.upper())

    @property
    def _granularity(self) -> WeightGranularity:
        if self.granularity is not None:
            return self.granularity
        narrow = FORMATS[self._codes].bits < 8 or self.format in _OWN_BLOCKS
        return WeightGranularity.BLOCK if narrow else WeightGranularity.AXIS

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


def _shared_axes(use: WeightUse, way: WeightGranularity) -> object:
    return {
        WeightGranularity.TENSOR: None,
        WeightGranularity.AXIS: use.channel,
        WeightGranularity.BLOCK: (use.reduced, use.channel),
    }[way]
