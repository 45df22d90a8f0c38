"""Rules about parameters that do not compute what was intended (QG1)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qgraph.graph.scopes import input_of, inputs_of, node_name
from qgraph.inventory.layers import convolution_before
from qgraph.lint.facts import DECODE, QUANTIZE, ModelFacts, nodes_of_site
from qgraph.lint.layers import bias_facts, listed, misfit, ulps_between
from qgraph.lint.rule import Found, LintFix, LintLevel, rule
from qgraph.numerics import Array
from qgraph.quantizers.quantizer import Affine
from qgraph.targets.layer import LAYERS, ProductAxis
from qgraph.text import counted

ERROR, WARNING, INFO = LintLevel.ERROR, LintLevel.WARNING, LintLevel.INFO
_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)
_INT32 = float(1 << 31)
_MIDDLES = {"UINT8": 128, "INT8": 0, "UINT16": 32768, "INT16": 0, "UINT4": 8, "INT4": 0}
_EXACT_SUM = float(1 << 24)
_BIAS_FIX = LintFix("quantize-bias", "bounded")


@rule("QG101", "zero-scale", ERROR)
def zero_scale(facts: ModelFacts) -> Iterator[Found]:
    """A scale of a quantizer of data is zero."""
    for node, scale in facts.scaled:
        zeros = np.flatnonzero(np.asarray(scale).reshape(-1) == 0)
        if not zeros.size:
            continue
        is_weight = node.op_type == DECODE and facts.constant(node.inputs[0]) is not None
        where = f"{zeros.size} of {scale.size} scales are 0"
        text = "the channels are always 0" if is_weight else "every value is divided by zero"
        figures = {"zero_scales": int(zeros.size), "channels": listed(zeros)}
        yield Found((node,), f"{where}: {text}", figures, WARNING if is_weight else None)


@rule("QG102", "scale-not-finite", ERROR)
def scale_not_finite(facts: ModelFacts) -> Iterator[Found]:
    """A scale or a limit of a quantizer is NaN or infinite."""
    parts = [(node, [scale]) for node, scale in facts.scaled]
    for node in facts.fake_quantizes:
        limits = [facts.constant(value) for value in node.inputs[1:5]]
        parts.append((node, [limit for limit in limits if limit is not None]))
    for node, arrays in parts:
        wrong = sum(int(np.count_nonzero(~np.isfinite(_reals(array)))) for array in arrays)
        if wrong:
            text = f"{counted(wrong, 'number')} NaN or infinite"
            yield Found((node,), text, {"not_finite": wrong})


@rule("QG103", "subnormal-scale", WARNING)
def subnormal_scale(facts: ModelFacts) -> Iterator[Found]:
    """A scale is so small that runtimes may flush it to 0."""
    for node, scale in facts.scaled:
        size = np.abs(_reals(scale))
        small = np.flatnonzero((size > 0) & (size < _SMALLEST_NORMAL))
        if small.size:
            least = float(size.reshape(-1)[small].min())
            yield Found(
                (node,),
                f"{small.size} of {scale.size} scales are subnormal, the smallest is {least:.3g}",
                {"subnormal": int(small.size), "smallest": least, "channels": listed(small)},
            )


@rule("QG104", "negative-scale", WARNING)
def negative_scale(facts: ModelFacts) -> Iterator[Found]:
    """A scale of a quantizer of data is negative."""
    for node, scale in facts.scaled:
        count = int(np.count_nonzero(_reals(scale) < 0))
        is_weight = node.op_type == DECODE and facts.constant(node.inputs[0]) is not None
        if count and not is_weight:
            yield Found((node,), f"{count} of {scale.size} scales are negative", {"count": count})


@rule("QG105", "zero-point-beside-middle", WARNING)
def zero_point_beside_middle(facts: ModelFacts) -> Iterator[Found]:
    """A zero point is one below the middle."""
    for decoder in facts.decoders:
        middle = _MIDDLES.get(decoder.kind)
        if decoder.zero is None or middle is None or not decoder.zero.size:
            continue
        if (decoder.zero.astype(np.int64) != middle - 1).any():
            continue
        is_weight = facts.is_stored(decoder)
        encoder = facts.encoder_of(decoder)
        nodes = (decoder.node,) if encoder is None else (encoder.node, decoder.node)
        text = f"zero point {middle - 1} of {decoder.kind}, whose middle is {middle}"
        figures = {"zero_point": middle - 1, "middle": middle}
        yield Found(nodes, text, figures, None if is_weight else INFO)


@rule("QG106", "zero-not-in-range", WARNING)
def zero_not_in_range(facts: ModelFacts) -> Iterator[Found]:
    """The real zero lies outside the range of a quantizer."""
    for site in facts.sites:
        ends = _ends(site.quantizer)
        if site.weight is not None or ends is None:
            continue
        low, high = ends
        outside = int(np.count_nonzero((low > 0) | (high < 0)))
        if outside:
            yield Found(
                nodes_of_site(site),
                f"the range is {float(low.min()):g} to {float(high.max()):g}, so that 0 becomes "
                "another value: padding and Relu give values that are no codes",
                {"low": float(low.min()), "high": float(high.max())},
            )


@rule("QG107", "fractional-zero-point", WARNING)
def fractional_zero_point(facts: ModelFacts) -> Iterator[Found]:
    """A zero point lies between two codes."""
    for site in facts.sites:
        quantizer = site.quantizer
        if site.weight is not None or not isinstance(quantizer, Affine):
            continue
        zero = np.asarray(quantizer.to_real.zero_point, np.float64)
        with np.errstate(invalid="ignore"):
            distance = np.abs(zero - np.round(zero))
        if np.isfinite(distance).all() and (distance > 0).any():
            worst = float(distance.max())
            text = f"the real zero is {worst:.3g} steps away from the next code"
            yield Found(nodes_of_site(site), text, {"distance_steps": worst})


@rule("QG108", "wrong-axis", ERROR)
def wrong_axis(facts: ModelFacts) -> Iterator[Found]:
    """Weights of a layer have scales along the summed axis."""
    for layer in facts.layers:
        weights = layer.description.w
        if weights.axis is ProductAxis.INPUT and weights.granularity == "axis":
            decoder = facts.decoder_of(layer.node.inputs[1])
            nodes = (layer.node,) if decoder is None else (layer.node, decoder.node)
            text = f"the scales of the weights of {layer.node.op_type} differ along the inputs"
            shape = None if decoder is None else facts.shape(decoder.node.outputs[0])
            is_square = shape is not None and len(shape) > 1 and shape[0] == shape[1]
            more = "; both axes have one size, so that it goes unnoticed" if is_square else ""
            yield Found(nodes, f"{text} that are added up{more}", {"square": is_square})


@rule("QG109", "scales-do-not-fit", ERROR)
def scales_do_not_fit(facts: ModelFacts) -> Iterator[Found]:
    """The shape of the scales does not fit their axis."""
    for coder in facts.coders:
        text = misfit(coder, facts.shape(coder.node.inputs[0]))
        if text is not None and coder.scale is not None:
            axis = coder.node.attributes.get_int("axis", 1)
            yield Found((coder.node,), text, {"scales": int(coder.scale.size), "axis": axis})


@rule("QG110", "bias-overflow", ERROR)
def bias_overflow(facts: ModelFacts) -> Iterator[Found]:
    """A float bias does not fit in int32 at the scale it gets."""
    for bias in bias_facts(facts):
        if bias.decoder is None and bias.codes is not None:
            many = np.flatnonzero(np.abs(bias.codes) >= _INT32)
            if many.size:
                largest = float(np.abs(bias.codes).max())
                yield Found(
                    (bias.node,),
                    f"bias / (s_x s_w) is up to {largest:.3g} (channels: {many.size}), int32 ends "
                    "at 2.15e+09",
                    {"channels": listed(many), "largest_code": largest},
                )


@rule("QG111", "accumulator-overflow", ERROR)
def accumulator_overflow(facts: ModelFacts) -> Iterator[Found]:
    """A sum of products of codes can exceed int32."""
    for layer in bias_facts(facts, all_layers=True):
        reach = layer.largest_sums
        if reach is None:
            continue
        many = np.flatnonzero(reach >= _INT32)
        if many.size:
            yield Found(
                (layer.node,),
                f"sums reach {float(reach.max()):.3g} (channels: {many.size}) and wrap at 2.15e+09",
                {"largest_sum": float(reach.max()), "channels": listed(many)},
            )


@rule("QG112", "bias-scale", ERROR, fix=_BIAS_FIX)
def bias_scale(facts: ModelFacts) -> Iterator[Found]:
    """The scale of an int32 bias is not the product of the scales of the operands."""
    for bias in bias_facts(facts):
        if bias.decoder is None or bias.product is None or bias.decoder.scale is None:
            continue
        if bias.decoder.kind != "INT32":  # narrow biases are shifted by kernels of their own
            continue
        declared = bias.decoder.scale.reshape(-1).astype(np.float32)
        product = bias.product.reshape(-1)
        if declared.size != 1 and declared.size != product.size:
            continue
        apart = ulps_between(declared, product)
        error = float(np.abs(declared / product.astype(np.float64) - 1).max())
        if not float(apart.max()) > 1 or not np.isfinite(error):
            continue  # also where the product is no number that a scale can be
        worst = int(apart.max())
        yield Found(
            (bias.node, bias.decoder.node),
            f"the scale of the bias is off by {error:.3g} ({worst} ulp): kernels on codes add it "
            "at s_x s_w",
            {"relative_error": error, "ulps": worst},
            None if error > 0.01 else WARNING,
        )


@rule("QG113", "bias-zero-point", ERROR)
def bias_zero_point(facts: ModelFacts) -> Iterator[Found]:
    """An int32 bias has a zero point."""
    for bias in bias_facts(facts):
        if bias.decoder is not None and bias.decoder.zero is not None:
            count = int(np.count_nonzero(bias.decoder.zero))
            if count:
                text = "the zero point of the bias is not 0; kernels on codes ignore it"
                yield Found((bias.node, bias.decoder.node), text, {"count": count})


@rule("QG114", "lost-bias", ERROR)
def lost_bias(facts: ModelFacts) -> Iterator[Found]:
    """A channel whose weights have scale 0 has a bias."""
    for bias in bias_facts(facts):
        if bias.product is None or bias.reals is None:
            continue
        if bias.product.size not in (1, bias.reals.size):
            continue  # each scale of a ConvTranspose in groups is that of several channels
        product = np.broadcast_to(bias.product.reshape(-1), bias.reals.reshape(-1).shape)
        lost = np.flatnonzero((product == 0) & (bias.reals.reshape(-1) != 0))
        if lost.size:
            text = f"the bias is lost (channels: {lost.size}): no code stands for it at scale 0"
            yield Found((bias.node,), text, {"channels": listed(lost)})


@rule("QG115", "reversed-range", ERROR)
def reversed_range(facts: ModelFacts) -> Iterator[Found]:
    """The limits of a FakeQuantize are reversed or equal."""
    for node in facts.fake_quantizes:
        low, high = (facts.constant(value) for value in inputs_of(node, 3)[1:])
        if low is None or high is None:
            continue
        try:
            low, high = np.broadcast_arrays(low, high)
        except ValueError:
            continue
        with np.errstate(invalid="ignore"):
            count, equal = int(np.count_nonzero(low > high)), int(np.count_nonzero(low == high))
        if count:
            yield Found((node,), f"{count} ranges are reversed: low > high", {"reversed": count})
        elif equal:
            text = f"{equal} ranges are a single point: the result is one of two values"
            yield Found((node,), text, {"empty": equal}, WARNING)


@rule("QG116", "too-few-levels", ERROR)
def too_few_levels(facts: ModelFacts) -> Iterator[Found]:
    """A FakeQuantize has fewer than two levels."""
    for node in facts.fake_quantizes:
        stated = node.attributes.get("levels")
        levels = node.attributes.get_int("levels", 0) or 0
        # the caller of a function states what refers to an attribute of the function
        if levels < 2 and (stated is None or not stated.is_ref()):
            yield Found((node,), f"levels is {levels}, expected 2 or more", {"levels": levels})


@rule("QG117", "trunc-version", ERROR)
def trunc_version(facts: ModelFacts) -> Iterator[Found]:
    """A Trunc has inputs of another version than is imported."""
    for node in facts.of_qonnx("Trunc"):
        version = facts.original.opset_imports.get(node.domain)
        number = len(node.inputs)
        if version is not None and ((number == 6) != (version >= 2)):
            taken, missing = "out_scale is taken for the bit width", "an input is missing"
            effect = taken if number == 6 else missing
            text = f"{number} inputs under version {version} of {node.domain}: {effect}"
            yield Found((node,), text, {"inputs": number, "version": version})


@rule("QG118", "trunc-rounds", WARNING)
def trunc_rounds(facts: ModelFacts) -> Iterator[Found]:
    """A Trunc rounds to the nearest instead of truncating."""
    for node in facts.of_qonnx("Trunc"):
        mode = node.attributes.get_string("rounding_mode", "FLOOR") or "FLOOR"
        if mode.upper() not in ("FLOOR", "DOWN", "ROUND_TO_ZERO"):
            text = f"rounding_mode is {mode}: kernels that shift bits give the next lower code"
            yield Found((node,), text, {"rounding_mode": mode})


@rule("QG119", "fractional-bit-width", ERROR)
def fractional_bit_width(facts: ModelFacts) -> Iterator[Found]:
    """A bit width is not a whole number from 1 on."""
    for node in facts.of_qonnx("Quant", "IntQuant", "Trunc"):
        bits = facts.constant(input_of(node, 3))
        if bits is None or not bits.size:
            continue
        width = _reals(bits)
        is_whole = np.isfinite(width).all() and (width == np.round(width)).all()
        if not is_whole or (width < 1).any():
            value = float(width.reshape(-1)[0])
            yield Found((node,), f"the bit width is {value:g}", {"bits": value})


@rule("QG120", "integer-bit-width", WARNING)
def integer_bit_width(facts: ModelFacts) -> Iterator[Found]:
    """A bit width has an integer type that overflows."""
    for node in facts.of_qonnx("Quant", "IntQuant"):
        bits = facts.constant(input_of(node, 3))
        if bits is None or bits.dtype.kind not in "iu" or not bits.size:
            continue
        room = bits.dtype.itemsize * 8 - (bits.dtype.kind == "i")
        if int(bits.max()) >= room:
            text = f"2**{int(bits.max())} does not fit in {bits.dtype}: executors wrap around"
            yield Found((node,), text, {"type": str(bits.dtype), "bits": int(bits.max())})


@rule("QG121", "pair-disagrees", WARNING)
def pair_disagrees(facts: ModelFacts) -> Iterator[Found]:
    """QuantizeLinear and DequantizeLinear of a pair have different parameters."""
    for encoder, decoder in facts.pairs:
        if encoder.scale is None or decoder.scale is None or encoder.is_like(decoder):
            continue
        site = facts.site_of.get(decoder.node)
        meaning = None if site is None else site.quantizer
        if isinstance(meaning, Affine) and meaning.decoding is None:
            continue  # operators around the pair make up for the difference
        if (encoder.scale == 1).all() and convolution_before(encoder.node):
            continue  # the weights of the convolution contain the scale, as unit-scales writes them
        one, other = float(encoder.scale.flat[0]), float(decoder.scale.flat[0])
        if not np.isfinite([one, other]).all():
            continue  # a finding of its own
        what = "scales" if encoder.scale.tobytes() != decoder.scale.tobytes() else "zero points"
        yield Found(
            (encoder.node, decoder.node),
            f"{what} differ: values are multiplied by {other / one if one else 0:.6g} or shifted",
            {"ratio": other / one if one else None},
        )


@rule("QG122", "codes-as-numbers", WARNING)
def codes_as_numbers(facts: ModelFacts) -> Iterator[Found]:
    """Codes of a QuantizeLinear are used as numbers."""
    numeric = {"Cast", "Add", "Mul", "Sub", "Div", "Relu"} | LAYERS
    for node in facts.of(QUANTIZE):
        wrong = [n for n in facts.readers(node.outputs[0]) if n.op_type in numeric and not n.domain]
        if wrong:
            text = f"{wrong[0].op_type} reads the codes without scale and zero point: "
            text += "DequantizeLinear is missing"
            yield Found((node, wrong[0]), text, {"reader": node_name(wrong[0])})


@rule("QG123", "product-underflows", ERROR)
def product_underflows(facts: ModelFacts) -> Iterator[Found]:
    """The product of the scales of a layer underflows."""
    for layer in bias_facts(facts, all_layers=True):
        if layer.product is None or layer.exact_product is None:
            continue
        exact = layer.exact_product.reshape(-1)
        lost = np.flatnonzero((exact > 0) & (layer.product.reshape(-1) < _SMALLEST_NORMAL))
        if lost.size:
            least = float(exact[lost].min())
            text = f"s_x s_w is {least:.3g} (channels: {lost.size}), below what float32 keeps"
            yield Found((layer.node,), text, {"channels": listed(lost), "smallest": least})


@rule("QG124", "sum-not-exact", INFO)
def sum_not_exact(facts: ModelFacts) -> Iterator[Found]:
    """A sum of products of codes exceeds the exact integers of float32."""
    for layer in bias_facts(facts, all_layers=True):
        reach = layer.largest_sums
        if reach is not None and _EXACT_SUM < float(reach.max()) < _INT32:
            largest, many = float(reach.max()), int(np.count_nonzero(reach > _EXACT_SUM))
            text = f"sums reach {largest:.3g} (channels: {many}), float32 is exact to 2**24"
            yield Found((layer.node,), text, {"largest_sum": largest, "channels": many})


def _reals(array: Array) -> Array:
    return np.asarray(array).astype(np.float64)


def _ends(quantizer: object) -> tuple[Array, Array] | None:
    if isinstance(quantizer, Affine):
        zero, scale = (_reals(a) for a in (quantizer.to_real.zero_point, quantizer.to_real.scale))
        ends = (quantizer.lo - zero) * scale, (quantizer.hi - zero) * scale
        return np.minimum(*ends), np.maximum(*ends)
    low, high = (getattr(quantizer, name, None) for name in ("input_low", "input_high"))
    return None if low is None or high is None else (_reals(low), _reals(high))
