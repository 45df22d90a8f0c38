"""Rules about silent changes by runtimes (QG3)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import onnx_ir as ir

from qgraph.graph.inference.windows import rounded_up
from qgraph.graph.opset.rewrites import unsigned_copies
from qgraph.graph.scopes import input_of, producer_of
from qgraph.inventory import openvino_roundings as roundings
from qgraph.inventory.openvino_convolutions import misread_convolutions
from qgraph.inventory.openvino_traps import (
    chained_products,
    row_scaled_products,
    row_sums,
    scaled_normalizations,
    turned_products,
)
from qgraph.lint.facts import DECODE, ModelFacts
from qgraph.lint.kernels import coarse_softmax, cut_off_products, tied_sums
from qgraph.lint.layers import (
    attribute,
    concat_before,
    is_codes_for_runtime,
    pairs_around,
    quantizer_after,
    rounded_biases,
)
from qgraph.lint.rule import Found, LintFix, LintLevel, rule
from qgraph.targets.engine import KernelMatch

ERROR, WARNING, INFO = LintLevel.ERROR, LintLevel.WARNING, LintLevel.INFO
_ORT, _OPENVINO = ("onnxruntime*",), ("openvino*",)
_NARROW = ("INT2", "UINT2", "INT4", "UINT4", "INT8", "UINT8")
_ANEW, _KEEPS = LintFix("quantize-bias", "bounded"), LintFix("keep-roundings", "values")
_AS_FLOATS = LintFix("float-softmax", "bits")
_WIDE_CODES = LintFix("repack{to=int16,scales=false,activations=false,opset=21}", "values")
_POINTS = LintFix("canonical-operators{forms=points}", "bits")
_FLOAT_SUMS = LintFix("float-sums", "bits")
_FLOAT8 = ("FLOAT8E4M3FN", "FLOAT8E5M2")
_EIGHT_BITS = ("UINT8", "INT8")


@rule("QG301", "double-pairs", WARNING, fix=LintFix("separate-pairs", "bits"), targets=_ORT)
def double_pairs(facts: ModelFacts) -> Iterator[Found]:
    """ONNX Runtime merges two pairs with different parameters into one with a new scale."""
    for encoder in facts.encoders:
        nodes = pairs_around(facts, encoder.node)
        one = facts.coder(nodes[1]) if nodes else None
        if one is None or one.is_like(encoder) or one.kind != encoder.kind:
            continue
        decoder = facts.decoder_of(encoder.node.inputs[0])
        is_plain = decoder is not None and decoder.scale is not None and decoder.scale.size == 1
        text = "two pairs with different parameters follow each other"
        yield Found(nodes, text, is_fixable=is_plain)


@rule("QG302", "float-weights", WARNING, targets=_ORT)
def float_weights(facts: ModelFacts) -> Iterator[Found]:
    """ONNX Runtime quantizes float weights between quantized data and a quantizer to INT8."""
    for node in facts.of("Conv", "ConvTranspose", "Gemm"):
        weights = facts.constant(input_of(node, 1))
        if weights is None or weights.dtype.kind != "f" or not weights.size:
            continue
        if facts.decoder_of(node.inputs[0]) is None or quantizer_after(facts, node) is None:
            continue
        step = float(np.abs(weights).max()) / 127
        text = f"float weights become INT8 with one scale of {step:.3g}"
        yield Found((node,), text, {"step": step, "elements": int(weights.size)})


@rule("QG303", "float-bias", INFO, fix=_ANEW, targets=_ORT)
def float_bias(facts: ModelFacts) -> Iterator[Found]:
    """ONNX Runtime rounds a float bias between quantizers to int32."""
    for bias in rounded_biases(facts):
        with np.errstate(all="ignore"):
            error = np.abs(bias.codes - np.round(bias.codes)) * bias.product
        scale = facts.coder(bias.behind).scale
        figures = {"largest_error": float(error.max())}
        text = f"the bias moves by up to {figures['largest_error']:.3g}"
        if scale is not None and scale.size == 1 and float(scale.flat[0]):
            figures["steps"] = figures["largest_error"] / float(scale.flat[0])
            text += f", {figures['steps']:.2g} steps of the result"
        if error.max() > 0:
            yield Found((bias.node,), text, figures)


@rule("QG304", "bias-scale-ignored", ERROR, fix=_ANEW, needs_target=True)
def bias_scale_ignored(facts: ModelFacts) -> Iterator[Found]:
    """The kernel of the target adds the bias at another scale than the model declares."""
    for layer, answer in facts.answers:
        bias = layer.description.bias
        if bias is None or not bias.scale_error or bias.scale_error <= 1e-6:
            continue
        if not isinstance(answer, KernelMatch):
            continue
        rule_of_bias = answer.kernel.bias
        ignores = rule_of_bias.scale == "ignored"
        is_near = rule_of_bias.within or rule_of_bias.gap
        if ignores or (rule_of_bias.scale == "product" and is_near):
            text = f"the declared scale of the bias is off by {bias.scale_error:.3g} and not used"
            level = None if bias.scale_error > 1e-3 else WARNING
            figures = {"relative_error": bias.scale_error, "kernel": answer.kernel.id}
            yield Found((layer.node,), text, figures, level)


@rule("QG305", "data-gets-quantized", WARNING, targets=_ORT)
def data_gets_quantized(facts: ModelFacts) -> Iterator[Found]:
    """ONNX Runtime quantizes float data of a MatMul whose weights alone are codes."""
    for node in facts.of("MatMul", "Gemm"):
        weights = facts.decoder_of(node.inputs[1])
        if weights is None or not facts.is_stored(weights) or weights.kind not in _NARROW:
            continue
        is_plain = node.op_type == "MatMul" or not node.attributes.get_int("transB", 0)
        if not is_plain or is_codes_for_runtime(node.inputs[0]):
            continue
        if weights.block and (weights.block < 16 or weights.block & (weights.block - 1)):
            continue
        hides = facts.decoder_of(node.inputs[0]) is not None
        why = "an operator between hides the codes of the data" if hides else "the data is float"
        text = f"weights of {weights.kind}, and {why}: MatMulNBits rounds it to 8 bits in blocks"
        figures = {"weights": weights.kind, "block": weights.block}
        yield Found((node, weights.node), text, figures)


@rule("QG306", "average-rounds", WARNING, fix=_KEEPS, targets=_OPENVINO)
def average_rounds(facts: ModelFacts) -> Iterator[Found]:
    """OpenVINO rounds the mean of an AveragePool to codes before it is quantized."""
    for node, reader in roundings.rounded_means(facts.of("AveragePool")):
        text = f"the mean is rounded to codes before {reader.op_type}: up to half a step"
        yield Found((node, reader), text, {"error_steps": 0.5})


@rule("QG307", "residual-not-rounded", WARNING, fix=_KEEPS, targets=_OPENVINO)
def residual_not_rounded(facts: ModelFacts) -> Iterator[Found]:
    """OpenVINO drops the rounding of a quantized convolution before an Add."""
    layers = {layer.node for layer in facts.layers}
    for each in roundings.unrounded_sums(facts.of(*roundings.RESIDUAL_SUMS), layers):
        nodes = [encoder for encoder, _ in each.operands]
        one = "the result of a convolution is clamped, not rounded, before it is added"
        two = "both operands are quantized convolutions: one of them is clamped, not rounded"
        yield Found((each.node, *nodes), two if len(nodes) > 1 else one)


@rule("QG308", "sixteen-bits-removed", WARNING, fix=_KEEPS, targets=_OPENVINO)
def sixteen_bits_removed(facts: ModelFacts) -> Iterator[Found]:
    """OpenVINO removes pairs of 16 bits around data."""
    for decoder in roundings.stripped_decoders(facts.of(DECODE)):
        encoder = producer_of(decoder.inputs[0])
        if encoder is not None:
            kind = facts.coder(encoder).kind
            text = f"the pair of {kind} is removed: data is neither clamped nor rounded"
            yield Found((encoder, decoder), text, {"type": kind})
    for node in roundings.stripped_fake_quantizes(facts.fake_quantizes):
        yield Found((node,), "65536 levels are removed: data is neither clamped nor rounded")


@rule("QG309", "weights-quantized-anew", WARNING, targets=_OPENVINO)
def weights_quantized_anew(facts: ModelFacts) -> Iterator[Found]:
    """OpenVINO computes a product on float data if its weights have zero points."""
    for layer in facts.layers:
        weights = facts.decoder_of(layer.node.inputs[1])
        if layer.node.op_type not in ("MatMul", "Gemm") or weights is None or weights.zero is None:
            continue
        if facts.is_stored(weights) and weights.zero.any():
            text = "weights with zero points: the product is not that of the codes"
            yield Found((layer.node, weights.node), text, {"measured_flips": 0.08})


@rule("QG310", "half-precision-division", WARNING)
def half_precision_division(facts: ModelFacts) -> Iterator[Found]:
    """QuantizeLinear of float16 data divides in float16 or float32, depending on the runtime."""
    for encoder in facts.encoders:
        node = encoder.node
        is_half = facts.dtype(node.inputs[0]) is ir.DataType.FLOAT16
        if is_half and not node.attributes.get_int("precision", 0):
            text = "float16 data: codes near ties depend on the precision of the division"
            yield Found((node,), text, {"measured_flips": 0.026})


@rule("QG311", "scale-of-batch", INFO)
def scale_of_batch(facts: ModelFacts) -> Iterator[Found]:
    """A scale is computed from the whole batch, so rows depend on each other."""
    for node in facts.of("DynamicQuantizeLinear"):
        shape = facts.shape(node.inputs[0])
        if shape and shape[0] != 1 and len(shape) > 1:
            text = "the scale is that of the whole batch: a row gets other codes in another batch"
            yield Found((node,), text)


@rule("QG312", "pairs-saturate", INFO, targets=("onnxruntime-cpu", "openvino-cpu"))
def pairs_saturate(facts: ModelFacts) -> Iterator[Found]:
    """Sums of products of codes saturate on processors without VNNI, or weights are halved."""
    for is_here, nodes, text, figures in cut_off_products(facts):
        yield Found(tuple(nodes), text, figures, WARNING if is_here else None)


@rule("QG313", "narrow-float", INFO, targets=_OPENVINO, needs_target=True)
def narrow_float(facts: ModelFacts) -> Iterator[Found]:
    """OpenVINO computes float layers in bfloat16 if the processor supports it."""
    quantized = {layer.node for layer in facts.layers}
    number = sum(node not in quantized for node in facts.products)
    if number or facts.encoders or facts.sites:
        text = "set INFERENCE_PRECISION_HINT=f32, or the input is cast before its first quantizer"
        yield Found((), text, {"float_layers": number})


@rule("QG314", "ties-of-add", INFO, targets=_ORT)
def ties_of_add(facts: ModelFacts) -> Iterator[Found]:
    """A quantized Add has exact ties, which ONNX Runtime rounds to the other code."""
    for node, ratios in tied_sums(facts):
        text = f"scales are {ratios[0]:g} and {ratios[1]:g} times that of the sum: ties occur"
        yield Found((node,), text, {"ratios": ratios})


@rule("QG315", "signed-codes-joined", ERROR, targets=_OPENVINO)
def signed_codes_joined(facts: ModelFacts) -> Iterator[Found]:
    """OpenVINO reads INT8 codes between a Concat and a convolution as UINT8."""
    for layer in facts.of("Conv"):
        if not facts.is_quantized(layer.inputs[1]):
            continue
        decoder = facts.decoder_of(layer.inputs[0])
        encoder = None if decoder is None else facts.encoder_of(decoder)
        data = layer.inputs[0] if encoder is None else encoder.node.inputs[0]
        join = concat_before(facts, data)
        if join is None:
            continue
        codes = [decoder] if encoder is not None else map(facts.decoder_of, join.inputs)
        if any(coder is not None and coder.kind == "INT8" for coder in codes):
            yield Found((join, layer), "INT8 codes that Conv reads as UINT8: nearly all are wrong")


@rule("QG316", "rows-of-codes-added", ERROR, fix=_FLOAT_SUMS, targets=_OPENVINO)
def rows_of_codes_added(facts: ModelFacts) -> Iterator[Found]:
    """OpenVINO adds codes over the middle of three axes wrongly, except for the first matrix."""
    for each in row_sums(facts.of("GlobalAveragePool", "ReduceMean", "ReduceSum"), facts.shape):
        text = f"{each.node.op_type} over rows of codes: all matrices but the first may be wrong"
        yield Found((each.decoder, each.node), text)


@rule("QG317", "windows-beyond-padding", WARNING, targets=_OPENVINO)
def windows_beyond_padding(facts: ModelFacts) -> Iterator[Found]:
    """OpenVINO computes the last windows that ceil_mode adds differently from ONNX."""
    for node in facts.of("AveragePool", "MaxPool"):
        get = partial(attribute, node)
        axes = rounded_up(get, facts.shape(node.inputs[0])) or []
        if any(not isinstance(axis.size, int) for axis in axes):
            continue
        if node.op_type == "MaxPool":
            if any(axis.may_start_in_padding for axis in axes):
                yield Found((node,), "the last windows begin in the padding: the result is larger")
        elif get("count_include_pad", 0) and any(axis.padding for axis in axes):
            beyond = [a for a in axes if a.may_overhang and not a.may_start_in_padding]
            if beyond:
                yield Found((node,), "the last windows reach beyond the padding: other divisors")


@rule("QG318", "unsigned-read-as-signed", WARNING, targets=("tensorrt",), needs_target=True)
def unsigned_read_as_signed(facts: ModelFacts) -> Iterator[Found]:
    """TensorRT reads UINT8 codes of data as INT8, which ends at 127."""
    for encoder, decoder in facts.pairs:
        has_offset = encoder.zero.any() if encoder.zero is not None else encoder.has_zero
        if encoder.kind != "UINT8" or encoder.scale is None or has_offset:
            continue  # QG601: other zero points are refused
        step = float(encoder.scale.max())
        text = f"codes above 127 become 127: data above {127 * step:.4g} of {255 * step:.4g}"
        figures = {"largest_read": 127 * step, "largest": 255 * step}
        yield Found((encoder.node, decoder.node), f"{text} is clipped", figures)


@rule(
    "QG319",
    "weights-read-turned",
    ERROR,
    fix=LintFix("separate-weights", "bits"),
    targets=_OPENVINO,
)
def weights_read_turned(facts: ModelFacts) -> Iterator[Found]:
    """OpenVINO transposes a square matrix for all products or none, if they share it."""
    for plain, turned in turned_products(facts.nodes):
        text = "one of these products reads their square weights transposed: one of them is wrong"
        yield Found((*turned, *plain), text)


@rule("QG320", "pool-pads-codes", ERROR, fix=_KEEPS, targets=_OPENVINO)
def pool_pads_codes(facts: ModelFacts) -> Iterator[Found]:
    """OpenVINO pads an AveragePool with code 0, which is not the real zero."""
    for each in roundings.padded_means(facts.of("AveragePool")):
        text = f"its padding becomes code 0, and real zero is code {each.zero_point}"
        text += f": the padding is off by {each.error:.4g}"
        figures = {"zero_point": each.zero_point, "error": each.error}
        yield Found((each.node, each.decoder), text, figures)


@rule("QG321", "rows-with-column-scales", ERROR, targets=_OPENVINO)
def rows_with_column_scales(facts: ModelFacts) -> Iterator[Found]:
    """OpenVINO takes the scales of columns for those of rows in a Gather."""
    for node in facts.of("Gather"):
        maker = producer_of(node.inputs[0])
        if maker is None or maker.op_type != DECODE:
            continue
        decoder, shape = facts.coder(maker), facts.shape(maker.inputs[0])
        if decoder.axis is None or not shape or not facts.is_stored(decoder):
            continue
        if not decoder.block and decoder.axis % len(shape):
            number = 0 if decoder.scale is None else int(decoder.scale.size)
            text = f"the codes have scales along axis {decoder.axis % len(shape)}, not axis 0"
            yield Found((node, maker), f"{text}: rows get wrong scales", {"scales": number})


@rule("QG322", "rounded-to-float16-first", WARNING, targets=_OPENVINO)
def rounded_to_float16_first(facts: ModelFacts) -> Iterator[Found]:
    """OpenVINO rounds data to float16 before it rounds them to FP8."""
    for encoder in facts.encoders:
        if encoder.kind in _FLOAT8 and facts.constant(encoder.node.inputs[0]) is None:
            text = f"data next to a tie become the other neighbour in {encoder.kind}"
            yield Found((encoder.node,), text, {"type": encoder.kind})


@rule("QG323", "limits-between-codes", WARNING, fix=_KEEPS, targets=_OPENVINO)
def limits_between_codes(facts: ModelFacts) -> Iterator[Found]:
    """OpenVINO rounds the limits of a Clip of decoded codes to codes."""
    for node, _, decoder in roundings.rounded_clips(facts.of("Clip", "Max", "Min")):
        yield Found((node, decoder), "the limits become whole codes: up to a step off")


@rule("QG324", "softmax-of-fewer-steps", WARNING, fix=_AS_FLOATS, targets=_ORT)
def softmax_of_fewer_steps(facts: ModelFacts) -> Iterator[Found]:
    """ONNX Runtime computes a quantized Softmax as if 1 were a whole number of steps."""
    for nodes, text, figures in coarse_softmax(facts):
        yield Found(tuple(nodes), text, figures)


@rule("QG325", "row-scales", ERROR, fix=_WIDE_CODES, targets=_OPENVINO)
def row_scales(facts: ModelFacts) -> Iterator[Found]:
    """OpenVINO computes products wrongly whose stored weights have a scale for each row."""
    for node in row_scaled_products(facts.nodes):
        text = "its weights have a scale for each row, not each column: results are wrong"
        yield Found((node,), text)


@rule("QG326", "pairs-without-zero-point", ERROR, fix=_POINTS, targets=_ORT)
def pairs_without_zero_point(facts: ModelFacts) -> Iterator[Found]:
    """ONNX Runtime copies pairs without a zero point as UINT8, whatever type their codes have."""
    for node in unsigned_copies(facts.model):
        kind = facts.coder(node).kind
        text = f"no zero point, and data movement follows: {kind} codes are read as UINT8"
        yield Found((node,), text, {"type": kind})


@rule("QG327", "misread-convolution", ERROR, targets=_OPENVINO)
def misread_convolution(facts: ModelFacts) -> Iterator[Found]:
    """OpenVINO computes a convolution of this shape wrongly, or has no kernel for its codes."""
    for layer, reason in misread_convolutions(facts.layers, facts.shape):
        yield Found((layer.node,), reason)


@rule("QG328", "normalized-codes", WARNING, fix=_FLOAT_SUMS, targets=_OPENVINO)
def normalized_codes(facts: ModelFacts) -> Iterator[Found]:
    """OpenVINO adds epsilon to the variance of codes, not of the numbers that they stand for."""
    for node, _ in scaled_normalizations(facts.nodes):
        text = f"{node.op_type} of codes without a zero point: epsilon has another weight"
        yield Found((node,), text)


@rule("QG329", "chained-products", ERROR, targets=_OPENVINO)
def chained(facts: ModelFacts) -> Iterator[Found]:
    """OpenVINO makes one kernel of two products of few rows, which reads beyond its data."""
    for layer in chained_products(facts.layers, facts.shape):
        yield Found((layer.node,), "with the product before, it reads beyond its data")


@rule("QG330", "constants-between-codes", WARNING, fix=_KEEPS, targets=_OPENVINO)
def constants_between_codes(facts: ModelFacts) -> Iterator[Found]:
    """OpenVINO rounds zero points, and constants added to codes, before a convolution."""
    for node, decoder in roundings.rounded_shifts(facts.of("Conv")):
        text = "the zero point of its data, or what is added to them, becomes a whole code"
        yield Found((node, decoder), f"{text}: up to half a step off", {"error_steps": 0.5})


@rule("QG331", "quantized-extremes", ERROR, fix=_KEEPS, targets=_OPENVINO)
def quantized_extremes(facts: ModelFacts) -> Iterator[Found]:
    """OpenVINO makes one kernel of a maximum and its quantizer, which gives other codes."""
    extremes = facts.of("GlobalMaxPool", "ReduceMax", "ReduceMin")
    for node, reader in roundings.quantized_extremes(extremes):
        text = f"{node.op_type} and its quantizer become one kernel, which gives other codes"
        yield Found((node, reader), text)
