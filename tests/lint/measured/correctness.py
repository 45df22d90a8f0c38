"""Figures of the rules about correctness."""

from __future__ import annotations

import numpy as np
import onnx

from tests.lint.measured.harness import (
    LAYER,
    Array,
    F,
    codes,
    differ,
    farthest,
    fed,
    layer,
    measured,
    model,
    normal,
    openvino,
    ort,
    plain_and_optimized,
    qgraph_run,
    slower,
    slower_in_openvino,
    where,
)  # fmt: skip

PAIR = (
    "(float[N,4] x) => (float[N,4] y) "
    "{ c = QuantizeLinear (x, s, z) y = DequantizeLinear (c, s, z) }"
)
FAKE = (
    "(float[1000,4] x) => (float[1000,4] y) { "
    "y = org.openvinotoolkit.FakeQuantize <levels = 256> (x, lo, hi, a, b) }"
)
GEMM = """(float[8,8] x) => (float[8,8] y) {
    c = QuantizeLinear (x, s, z) d = DequantizeLinear (c, s, z) e = DequantizeLinear (w, s, o)
    k = DequantizeLinear (b, u, p) f = Gemm (d, e, k)
    q = QuantizeLinear (f, v, z) y = DequantizeLinear (q, v, z) }"""
TRUNC = """(float[1000,4] x) => (float[1000,4] y) {
    y = qonnx.custom_op.general.Trunc <rounding_mode = "MODE", signed = 1, narrow = 0> (INPUTS) }"""
X = normal(1000, 4)


def small_gemm(**constants: object) -> onnx.ModelProto:
    """Return a Gemm of 8 channels with an int32 bias."""
    named = {
        "s": F(0.05), "z": np.uint8(128), "o": np.int8(0), "w": codes(8, 8, low=-20, high=20),
        "b": codes(8, low=-100, high=100).astype(np.int32), "p": np.int32(0),
        "u": F(0.05) * F(0.05), "v": F(0.1),
    }  # fmt: skip
    return model(GEMM, **(named | constants))


@measured("QG101")
def zero_scale() -> str:
    proto = model(PAIR.replace("y)", "y, uint8[N,4] c)"), s=F(0), z=np.uint8(128))
    proto.graph.output.reverse()
    result = np.unique(ort(proto, {"x": X}))
    return (
        f"ONNX Runtime gave {X.size:,} normal numbers the codes "
        f"{' and '.join(map(str, result))} only."
    )


@measured("QG102")
def scale_not_finite() -> str:
    proto = model(PAIR, s=F(np.nan), z=np.uint8(128))
    count = np.count_nonzero(np.isnan(ort(proto, {"x": X})))
    return f"With a scale of NaN, {count:,} of {X.size:,} results of ONNX Runtime were NaN."


@measured("QG103")
def subnormal_scale() -> str:
    proto = model(PAIR, s=F(1e-40), z=np.uint8(128))
    feeds = {"x": normal(1000, 4, scale=1e-39)}
    right = qgraph_run(proto, feeds)
    return (
        f"With a scale of 1e-40, {differ(ort(proto, feeds), right)} results of ONNX "
        "Runtime differed "
        f"from the definition, and {differ(openvino(proto, feeds), right)} of OpenVINO, "
        "which gave 0."
    )


@measured("QG104")
def negative_scale() -> str:
    models = layer(s=F(-0.03)), layer(u=F(-0.03), middle="g = Relu (f)")
    feeds = fed(models[0])
    counts = []
    for proto in models:
        right, result = plain_and_optimized(proto, feeds)
        counts.append((differ(result, right), differ(openvino(proto, feeds), right)))
    return (
        f"Results of {LAYER} that differed from those without optimizations: negative scale of the "
        f"data, ONNX Runtime {counts[0][0]}, OpenVINO {counts[0][1]}; of the result after a Relu, "
        f"{counts[1][0]} and {counts[1][1]}."
    )


@measured("QG105")
def zero_point_beside_middle() -> str:
    stored = codes(64, 64, 3, 3)
    beside = (stored.astype(np.int16) + 127).clip(0, 255).astype(np.uint8)
    one = layer(weights=beside, o=np.full(64, 127, np.uint8))
    other = layer(weights=stored)
    return (
        f"{LAYER[0].upper()}{LAYER[1:]} with zero points of 127 took "
        f"{slower(one, other)} times the time "
        f"of INT8 in ONNX Runtime, {slower_in_openvino(one, other)} in OpenVINO ({where(one)})."
    )


@measured("QG106")
def zero_not_in_range() -> str:
    text = """(float[1,64,28,28] x) => (float[1,64,28,28] y) {
        d = org.openvinotoolkit.FakeQuantize <levels = 256> (x, lo, hi, lo, hi)
        e = DequantizeLinear <axis = 0> (w, t)
        f = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (d, e)
        y = org.openvinotoolkit.FakeQuantize <levels = 256> (f, a, b, a, b) }"""
    named = {
        "hi": F(12),
        "w": codes(64, 64, 3, 3),
        "t": np.full(64, 1e-4, F),
        "a": F(-9),
        "b": F(9),
    }
    one, other = (model(text, lo=F(low), **named) for low in (0.5, 0.0))
    return (
        f"OpenVINO took {slower_in_openvino(one, other)} times the time for {LAYER} "
        "where the range "
        "began at 0.5 instead of 0."
    )


@measured("QG107", exact=True)
def fractional_zero_point() -> str:
    import qgraph

    text = """(float[N,4] x) => (float[N,4] y) {
        y = qonnx.custom_op.general.Quant <signed = 0, narrow = 0, rounding_mode = "ROUND">
        (x, s, z, b) }"""
    counts, zero = [], 0.0
    for point in (7.5, 7.0):
        proto = model(text, s=F(0.1), z=F(point), b=F(8))
        written = qgraph.load(proto)
        qgraph.convert(written, to="qdq")
        counts.append(sum(1 for _ in written.ir.graph))
        zero = max(zero, abs(float(qgraph_run(proto, {"x": np.zeros((1, 4), F)})[0, 0])) / 0.1)
    return (
        f"With a zero point of 7.5, 0 becomes {zero:.2g} steps, and the quantizer has {counts[0]} "
        f"nodes in Q/DQ; with 7 it has {counts[1]}."
    )


@measured("QG108")
def wrong_axis() -> str:
    proto = layer(t=np.linspace(1e-4, 4e-4, 64, dtype=F))
    next(node for node in proto.graph.node if node.name == "e").attribute[0].i = 1
    feeds = fed(proto)
    right, result = plain_and_optimized(proto, feeds)
    return (
        f"{differ(result, right)} results of {LAYER} were wrong in ONNX Runtime, by up to "
        f"{farthest(result, right, 0.03)} codes; OpenVINO ran it in float."
    )


@measured("QG110")
def bias_overflow() -> str:
    proto = layer(bias=np.full(64, 1000, F), t=np.full(64, 1e-6, F), s=F(0.01), u=F(10))
    feeds = fed(proto)
    (right, result), other = plain_and_optimized(proto, feeds), openvino(proto, feeds)
    return (
        f"With s_x s_w = 1e-8 and a bias of 1000, {differ(result, right)} results of "
        "ONNX Runtime were "
        f"wrong, by up to {farthest(result, right, 10)} codes; of OpenVINO {differ(other, right)}."
    )


@measured("QG111")
def accumulator_overflow() -> str:
    proto = small_gemm(
        z=np.uint8(0), w=np.abs(codes(8, 8)), b=np.full(8, 2**31 - 100, np.int32), v=F(1e5)
    )
    feeds = {"x": np.abs(normal(8, 8, scale=5))}
    (right, result), other = plain_and_optimized(proto, feeds), openvino(proto, feeds)
    return (
        f"With a bias of 2^31 - 100, {differ(result, right)} results of a Gemm were wrong in ONNX "
        f"Runtime, by up to {farthest(result, right, 1e5)} codes; in OpenVINO "
        f"{differ(other, right)}."
    )


@measured("QG112")
def bias_scale() -> str:
    proto = small_gemm(u=F(0.05) * F(0.05) * F(2))
    feeds = fed(proto, scale=2)
    (right, result), other = plain_and_optimized(proto, feeds), openvino(proto, feeds)
    return (
        f"With twice the scale, {differ(result, right)} results of a Gemm changed in "
        "ONNX Runtime, by up "
        f"to {farthest(result, right, 0.1)} codes; in OpenVINO {differ(other, right)}."
    )


@measured("QG113")
def bias_zero_point() -> str:
    proto = small_gemm(p=np.int32(100))
    feeds = fed(proto, scale=2)
    right, result = qgraph_run(proto, feeds), ort(proto, feeds)
    return (
        f"With a zero point of 100, {differ(result, right)} results of a Gemm were wrong in ONNX "
        f"Runtime, by up to {farthest(result, right, 0.1)} codes."
    )


@measured("QG114")
def lost_bias() -> str:
    scales = np.full(64, 2e-4, F)
    scales[3] = 0
    proto = layer(t=scales, bias=normal(64))
    feeds = fed(proto)
    (right, result), other = plain_and_optimized(proto, feeds), openvino(proto, feeds)
    return (
        f"{differ(result[:, 3], right[:, 3])} results of the channel were wrong in ONNX "
        "Runtime; of all results of "
        f"OpenVINO {differ(other, right)}."
    )


@measured("QG115")
def reversed_range() -> str:
    counts = []
    for low, high in ((1, -1), (0.5, 0.5)):
        proto = model(FAKE, lo=F(low), hi=F(high), a=F(0), b=F(1))
        result, right = openvino(proto, {"x": X}), qgraph_run(proto, {"x": X})
        values = ", ".join(f"{each:g}" for each in np.unique(result)[:3])
        counts.append(f"{differ(result, right)} (it gives {values})")
    return (
        "Results of OpenVINO that differ from the definition: with the range 1 to -1 "
        f"{counts[0]}, with "
        f"0.5 to 0.5 {counts[1]}."
    )


@measured("QG117", exact=True)
def trunc_version() -> str:
    named = {"s": F(0.1), "z": F(0), "i": F(8), "u": F(2), "o": F(4)}
    text, feeds = TRUNC.replace("MODE", "FLOOR"), {"x": data_on_steps()}
    right = qgraph_run(model(text.replace("INPUTS", "x, s, z, i, u, o"), **named), feeds)
    old = text.replace(", signed = 1, narrow = 0", "").replace("INPUTS", "x, s, z, i, u")
    proto = model(old, **{k: v for k, v in named.items() if k != "o"})
    next(each for each in proto.opset_import if each.domain.startswith("qonnx")).version = 1
    return (
        "An out_scale of 2 read as 2 bits changes "
        f"{differ(qgraph_run(proto, feeds), right)} results."
    )


def data_on_steps() -> Array:
    """Return numbers that are INT8 codes of scale 0.1."""
    return np.asarray(codes(1000, 4) * F(0.1), F)


@measured("QG118", exact=True)
def trunc_rounds() -> str:
    named = {"s": F(0.1), "z": F(0), "i": F(8), "u": F(1.6), "o": F(4)}
    text, feeds = TRUNC.replace("INPUTS", "x, s, z, i, u, o"), {"x": data_on_steps()}
    one, other = (
        qgraph_run(model(text.replace("MODE", mode), **named), feeds) for mode in ("ROUND", "FLOOR")
    )
    return f"From 8 bits to 4, ROUND and FLOOR give {differ(one, other)} other codes, each by 1."


@measured("QG119", exact=True)
def fractional_bit_width() -> str:
    limit = 2**1.5 - 1
    result = np.clip(np.rint(X / 0.5), -(2**1.5), limit)
    count = np.count_nonzero(result != np.rint(result))
    return (
        f"By the formula, with 2.5 bits and a scale of 0.5, {count:,} of {X.size:,} "
        "normal numbers get "
        f"codes such as {limit:.3f}."
    )


@measured("QG120", exact=True)
def integer_bit_width() -> str:
    power = np.asarray(2, np.int8) ** np.asarray(8, np.int8)
    result = np.clip(np.rint(X / F(0.1)), 0, np.maximum(0, power))
    return (
        f"NumPy's 2 ** 8 in int8 is {power}, so that {np.count_nonzero(result == 0):,} "
        f"of {X.size:,} codes are 0."
    )


@measured("QG121")
def pair_disagrees() -> str:
    proto = layer(
        result=False,
        middle="h = QuantizeLinear (f, u, v) g = DequantizeLinear (h, n, v)",
        n=F(0.06),
    )
    feeds = fed(proto)
    right = ort(proto, feeds, plain=True)
    as_one = layer()
    read = ort(as_one, feeds, plain=True)
    return (
        f"{differ(ort(proto, feeds), right)} results of ONNX Runtime and "
        f"{differ(openvino(proto, feeds), right)} "
        "of OpenVINO differed from the model as written; with the first scale for "
        f"both, {differ(read, right)} do."
    )


@measured("QG122", exact=True)
def codes_as_numbers() -> str:
    text = "(float[N,4] x) => (float[N,4] y) { c = QuantizeLinear (x, s, z) y = Cast <to = 1> (c) }"
    named = {"s": F(0.1), "z": np.uint8(128)}
    result, right = (qgraph_run(model(each, **named), {"x": X}) for each in (text, PAIR))
    return (
        f"A Cast instead of decoding is off by up to {farthest(result, right)} at a "
        "scale of 0.1 and a zero point of 128."
    )


@measured("QG123")
def product_underflows() -> str:
    text = """(float[64,64] x) => (float[64,64] y) {
        c = QuantizeLinear (x, s, z) d = DequantizeLinear (c, s, z) e = DequantizeLinear (w, t, o)
        f = MatMul (d, e) q = QuantizeLinear (f, v, z) y = DequantizeLinear (q, v, z) }"""
    counts = []
    for scale, result in ((1e-22, 1e-39), (1e-25, 1e-42)):
        proto = model(
            text,
            s=F(1e-20),
            z=np.uint8(128),
            o=np.int8(0),
            w=codes(64, 64),
            t=F(scale),
            v=F(result),
        )
        feeds = {"x": normal(64, 64, scale=1e-18)}
        right = qgraph_run(proto, feeds)
        result, other = ort(proto, feeds), openvino(proto, feeds)
        counts.append(f"ONNX Runtime {differ(result, right)}, OpenVINO {differ(other, right)}")
    return f"Wrong results of a MatMul with s_x s_w = 1e-42: {counts[0]}; with 1e-45: {counts[1]}."


@measured("QG124")
def sum_not_exact() -> str:
    text = """(float[16,4096] x) => (float[16,64] y) {
        c = QuantizeLinear (x, s, z) d = DequantizeLinear (c, s, z) e = DequantizeLinear (w, t, o)
        y = MatMul (d, e) }"""
    stored, data = codes(4096, 64, low=60), np.full((16, 4096), 255, F)
    data -= np.abs(normal(16, 4096, scale=20)).round()
    proto = model(text, s=F(1), z=np.uint8(0), o=np.int8(0), w=stored, t=F(1))
    result, right = ort(proto, {"x": data}).astype(float), data.astype(float) @ stored.astype(float)
    ulp = np.max(np.abs(result - right) / np.spacing(right.astype(F)))
    return (
        f"{differ(result, right)} sums of 4,096 products, up to "
        f"{right.max() / 2**24:.1f} times 2^24, were "
        f"rounded by ONNX Runtime, by up to {ulp:.2g} ulp."
    )
