"""Select and order the passes that write a model in a form that a target's kernels accept."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from qgraph.exactness import Exactness
from qgraph.targets.profile import Profile
from qgraph.transforms.base import Transform, escaped
from qgraph.transforms.canonical_operators import CanonicalForm, CanonicalOperators
from qgraph.transforms.convert import ConvertDialect, FoldWeights
from qgraph.transforms.deployment import wants
from qgraph.transforms.deployment.wants import BiasForm
from qgraph.transforms.float_sums import FloatSums
from qgraph.transforms.fold_batch_norm import FoldBatchNorm
from qgraph.transforms.fold_constants import FoldConstants
from qgraph.transforms.integer_operators import LowerIntegerOperators, SumForm
from qgraph.transforms.lower_pointwise import LowerPointwise
from qgraph.transforms.merge_activation import ActivationForm, MergeActivation
from qgraph.transforms.move_channel_scales import MoveChannelScales
from qgraph.transforms.move_quantizers import MoveQuantizers
from qgraph.transforms.plain_pairs import PairDialect, PlainPairs
from qgraph.transforms.quantize_bias import QuantizeBias
from qgraph.transforms.repack import CodeTarget, Repack
from qgraph.transforms.shift_zero_points import ShiftZeroPoints
from qgraph.transforms.split_gemm import SplitGemm
from qgraph.transforms.split_leaky_relu import SplitLeakyRelu
from qgraph.transforms.split_zero_points import SplitZeroPoints
from qgraph.transforms.symmetric_weights import SymmetricWeights
from qgraph.transforms.widen_codes import WidenCodes
from qgraph.transforms.widen_floats import WidenFloats

HIGHEST_OPSET = 21
"""Highest opset that the forms in this module need."""


def steps_for(
    profile: Profile,
    *,
    nodes: str = "*",
    values: str = "*",
    coded: str = "*",
    packed: Collection[str] | None = None,
) -> list[Transform]:
    """Return the passes for a target, in the order in which they are applied.

    Constants are computed first, since the rules of the other passes only match stored codes.
    Weight codes are widened before biases become int32, whose scale is that of the products.

    Args:
        profile: of the target.
        nodes: patterns of names of the layers into which factors and biases may be merged.
        values: patterns of names of the results of quantizers to write in plain form.
        coded: patterns of names of the products whose weights get the type that kernels accept.
        packed: None to store weights in the types that kernels accept. Otherwise weights keep the
            type that FoldWeights chooses, and the named layers keep their biases.
    """
    opset = wants.highest_opset(profile, HIGHEST_OPSET)
    if not wants.takes(profile, "DequantizeLinear"):
        return list(_quants(profile, values))
    steps = [*_plain(profile, opset, values), *_shaped(profile, opset, nodes)]
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


def conversion_for(profile: Profile) -> list[Transform]:
    """Return the passes that write quantizers in the dialect of a target, equal in value."""
    opset = wants.highest_opset(profile, HIGHEST_OPSET)
    if not wants.takes(profile, "DequantizeLinear"):
        return [as_pairs(), ConvertDialect(to="qonnx")]
    qdq = ConvertDialect(to="qdq", exact=Exactness.VALUES, opset=opset)
    return [as_pairs(), qdq, FoldWeights(opset=opset)]


def _plain(profile: Profile, opset: int, values: str) -> Iterator[Transform]:
    """Yield passes that write quantizers in plain form and weights as stored codes."""
    yield as_pairs()
    # Before conversion, since a bias would join the float operators around a quantizer.
    yield PlainPairs(values=values, opset=opset)
    yield from conversion_for(profile)[1:]
    if wants.needs_float32(profile):
        yield WidenFloats()
    yield PlainPairs(values=values, opset=opset)
    yield FoldConstants(recurrent=wants.needs_recurrent_numbers(profile))
    yield SymmetricWeights(opset=opset)


def _quants(profile: Profile, values: str) -> Iterator[Transform]:
    """Yield passes that write each quantizer as one Quant, and remove those without effect."""
    yield as_pairs()
    yield MoveQuantizers()
    yield ConvertDialect(to="qonnx")
    has_points = wants.takes_zero_points(profile, weights=False)
    yield PlainPairs(dialect=PairDialect.QONNX, values=values, zero_points=has_points)
    if not any("Gemm" in kernel.operators for kernel in wants.kernels(profile)):
        yield SplitGemm()


def _shaped(profile: Profile, opset: int, nodes: str) -> Iterator[Transform]:
    """Yield passes that leave only layers between quantizers, in types that kernels accept."""
    repack = Repack(
        to=CodeTarget.INT8, activations=False, operators="Conv*|Gemm|MatMul", opset=opset
    )
    if not wants.kernels(profile):
        yield repack
        return
    yield CanonicalOperators()
    yield MoveQuantizers(units=True, operators="Pad|Resize")
    yield FoldBatchNorm(nodes=nodes, opset=opset, negative=wants.negative_factors(profile))
    yield CanonicalOperators()
    yield MoveChannelScales()
    yield MergeActivation(opset=opset)
    if wants.takes_float_products(profile):
        yield LowerPointwise(nodes=nodes)
    if wants.takes_units_only(profile):
        yield MoveQuantizers(units=True, dedicated=True)
    elif wants.takes_moved_codes(profile) and not wants.symmetric_factors(profile):
        yield MoveQuantizers()
    yield CanonicalOperators()
    yield repack
    yield ShiftZeroPoints(
        activations=wants.data_type(profile),
        weights=wants.weight_type(profile),
        symmetric=not wants.has_slow_signed(profile),
        products=wants.symmetric_factors(profile),
        centre=not wants.takes_zero_points(profile, weights=False),
    )
    if not wants.takes_zero_points(profile, weights=True):
        yield SplitZeroPoints(nodes=nodes, opset=opset)
    if wants.limits(profile) is not ActivationForm.CODES:
        yield MergeActivation(form=wants.limits(profile), opset=opset)
    match wants.biases(profile):
        case BiasForm.CODES:
            yield WidenCodes(opset=opset)
            yield QuantizeBias(nodes=nodes, opset=opset)
        case BiasForm.FLOATS:
            yield FoldConstants(biases=True)
    if wants.splits_leaky_relu(profile):
        yield SplitLeakyRelu(nodes=nodes, opset=opset)
    yield CanonicalOperators(forms=CanonicalForm.POINTS)
    if wants.misreads_row_sums(profile):
        yield FloatSums()
