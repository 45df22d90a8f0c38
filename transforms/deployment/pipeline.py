"""Which passes bring a model into the form that the kernels of a target take, in which order."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase

from qgraph.exactness import Exactness
from qgraph.targets.kernels import OperandRule
from qgraph.targets.layer import ZeroPoint
from qgraph.targets.profile import Profile
from qgraph.targets.rules import Loads
from qgraph.transforms.base import Transform, escaped
from qgraph.transforms.canonical_operators import CanonicalForm, CanonicalOperators
from qgraph.transforms.convert import ConvertDialect, FoldWeights
from qgraph.transforms.fold_batch_norm import FoldBatchNorm
from qgraph.transforms.fold_constants import FoldConstants
from qgraph.transforms.integer_operators import LowerIntegerOperators, SumForm
from qgraph.transforms.merge_activation import MergeActivation
from qgraph.transforms.move_channel_scales import MoveChannelScales
from qgraph.transforms.move_quantizers import MoveQuantizers
from qgraph.transforms.plain_pairs import PlainPairs
from qgraph.transforms.quantize_bias import QuantizeBias
from qgraph.transforms.repack import CodeTarget, Repack
from qgraph.transforms.shift_zero_points import CodeSign, ShiftZeroPoints
from qgraph.transforms.split_zero_points import SplitZeroPoints
from qgraph.transforms.symmetric_weights import SymmetricWeights
from qgraph.transforms.widen_codes import WidenCodes
from qgraph.transforms.widen_floats import WidenFloats

HIGHEST_OPSET = 21
"""Nothing in the forms below needs a higher one."""

_LIMITED_CODES = "QuantizeLinear+Clip+DequantizeLinear"


def steps_for(
    profile: Profile,
    *,
    nodes: str = "*",
    coded: str = "*",
    packed: Collection[str] | None = None,
) -> list[Transform]:
    """Return the passes for a target, in the order in which they are applied.

    Constants are computed first, since the rules of the other passes see stored codes only. Weight
    codes are widened before biases become int32, whose scale is that of the products.

    Args:
        profile: what is known of the target.
        nodes: patterns of names of the layers into which factors and biases may go.
        coded: patterns of names of the products whose weights get the type that kernels take.
        packed: names of layers whose biases stay as they are; weights then keep the type that
            FoldWeights gives them. None for types that kernels take.
    """
    highest = profile.versions.opsets
    opset = HIGHEST_OPSET if highest is None else min(HIGHEST_OPSET, highest[1])
    if not _takes(profile, "DequantizeLinear"):
        return [ConvertDialect(to="qonnx")]
    steps = [*_plain(opset, needs_float32=_needs_float32(profile)), *_shaped(profile, opset, nodes)]
    if packed is None:
        return [
            replace(step, nodes=coded) if isinstance(step, Repack | WidenCodes) else step
            for step in steps
        ]
    biased = "|".join((nodes, *(f"!{escaped(name)}" for name in packed)))
    return [
        replace(step, nodes=biased) if isinstance(step, QuantizeBias) else step
        for step in steps
        if not isinstance(step, Repack | WidenCodes)
    ]


def as_pairs() -> LowerIntegerOperators:
    """Return the pass that writes operators on codes as layers between quantizers."""
    return LowerIntegerOperators(form=SumForm.QDQ, exact=Exactness.NEAR)


def _plain(opset: int, *, needs_float32: bool) -> Iterator[Transform]:
    """Yield what gives each quantizer the plain form, and each weight stored codes."""
    yield as_pairs()
    yield ConvertDialect(to="qdq", exact=Exactness.VALUES, opset=opset)
    yield FoldWeights(opset=opset)
    if needs_float32:
        yield WidenFloats()
    yield PlainPairs(opset=opset)
    yield FoldConstants()
    yield SymmetricWeights(opset=opset)


def _shaped(profile: Profile, opset: int, nodes: str) -> Iterator[Transform]:
    """Yield what leaves only a layer between two quantizers, in types that kernels take."""
    yield CanonicalOperators()
    yield FoldBatchNorm(nodes=nodes, opset=opset)
    yield CanonicalOperators()
    yield MoveChannelScales()
    if _takes(profile, _LIMITED_CODES):
        yield MergeActivation(opset=opset)
    yield MoveQuantizers()
    yield Repack(to=CodeTarget.INT8, activations=False, operators="Conv*|Gemm|MatMul", opset=opset)
    yield ShiftZeroPoints(activations=_data_type(profile), weights=_weight_type(profile))
    if not _takes_zero_points(profile):
        yield SplitZeroPoints(nodes=nodes, opset=opset)
    yield WidenCodes(opset=opset)
    yield QuantizeBias(nodes=nodes, opset=opset)
    yield CanonicalOperators(forms=CanonicalForm.POINTS)


def _operands(profile: Profile) -> Iterator[OperandRule]:
    for kernel in profile.kernel:
        yield from (kernel.x, kernel.y)


def _takes(profile: Profile, written: str) -> bool:
    """Return whether a kernel takes quantizers of a form, or nothing is known of forms."""
    known = [form for rule in _operands(profile) for form in rule.written or ()]
    return not known or any(fnmatchcase(written, form) or written in form for form in known)


def _needs_float32(profile: Profile) -> bool:
    """Return whether kernels are known to take no scales of 16 bits."""
    known = {name for rule in _operands(profile) for name in rule.scale_types or ()}
    return bool(known) and known.isdisjoint({"FLOAT16", "BFLOAT16"})


def _takes_zero_points(profile: Profile) -> bool:
    """Return whether kernels take constant weights with zero points, or nothing is known of it."""
    rules = [k.w for k in profile.kernel if k.exists is Loads.YES and k.w.constant != "no"]
    known = {zero for rule in rules for zero in rule.zero or ()}
    return not known or not known <= {ZeroPoint.NONE, ZeroPoint.ZERO}


def _data_type(profile: Profile) -> CodeSign:
    """Return the type of codes of data that kernels take under the fewest conditions."""
    free = {name for kernel in profile.kernel for r in kernel.types if not r.direct for name in r.x}
    if "INT8" in free:
        return CodeSign.KEEP if "UINT8" in free else CodeSign.INT8
    return CodeSign.UINT8 if "UINT8" in free else CodeSign.KEEP


def _weight_type(profile: Profile) -> CodeSign:
    types = {name for kernel in profile.kernel for rule in kernel.types for name in rule.w}
    return CodeSign.INT8 if "INT8" in types else CodeSign.KEEP
