"""Figures of the rules about speed."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.lint.measured.harness import (
    DATA,
    LAYER,
    PAIR,
    F,
    codes,
    fed,
    float_layer,
    layer,
    measured,
    model,
    nodes_in_ort,
    normal,
    ort,
    slower,
    slower_in_openvino,
    taken,
    where,
)  # fmt: skip

THIS = "A" + LAYER[1:]


def against(one, other, what: str = "the time of the plain form") -> str:  # type: ignore[no-untyped-def]
    """Say how long a form takes in both runtimes."""
    return (
        f"{slower(one, other)} times {what} in ONNX Runtime, "
        f"{slower_in_openvino(one, other)} times in "
        "OpenVINO"
    )


@measured("QG401")
def float_layer_of_codes() -> str:
    odd = layer(middle="g = Sigmoid (f)")
    real = float_layer()
    return (
        f"{THIS} with a Sigmoid after it, which ONNX Runtime runs in float, took "
        f"{slower(odd, real)} times "
        f"the time of the Conv without quantizers; with the quantizer directly after it "
        f"{slower(layer(), real)}."
    )


@measured("QG402")
def slower_form() -> str:
    deep = codes(64, 1, 3, 3)
    zeros = np.arange(64).astype(np.uint8)
    unsigned = layer(
        weights=(codes(64, 64, 3, 3).astype(int) + 128).astype(np.uint8),
        o=np.full(64, 128, np.uint8),
    )
    odd = layer(groups=64, weights=(deep.astype(int) + 128).astype(np.uint8), o=zeros)
    plain = layer(groups=64, weights=deep)
    return (
        f"In ONNX Runtime UINT8 weights took {slower(unsigned, layer())} times the time "
        f"of INT8 weights ({LAYER}); for depthwise weights with different zero points it was "
        f"{slower(odd, plain)} times."
    )


@measured("QG403")
def batch_norm() -> str:
    ones = {"k": np.full(64, 1.5, F), "m": np.zeros(64, F)}
    odd, real = layer(middle="g = BatchNormalization (f, k, m, m, k)", **ones), float_layer()
    return (
        f"{THIS}: in ONNX Runtime {slower(odd, real)} times the time of the Conv without "
        f"quantizers, {slower(layer(), real)} times once it is folded; in OpenVINO "
        f"{slower_in_openvino(odd, real)} and "
        f"{slower_in_openvino(layer(), real)} times."
    )


@measured("QG404")
def scaling() -> str:
    odd = layer(middle="g = Mul (f, k)", k=np.full((64, 1, 1), 1.5, F))
    return f"{THIS} with a Mul after it took {against(odd, layer())}."


@measured("QG405")
def activation() -> str:
    odd = layer(middle="g = Relu (f)", v=np.uint8(64))
    plain = layer(middle="g = Relu (f)", v=np.uint8(0))
    return (
        f"{THIS} with a Relu and a zero point of 64 took "
        f"{against(odd, plain, 'the time with a zero point of 0')}."
    )


@measured("QG406")
def wrapped() -> str:
    text = """(float[1,64,28,28] x) => (float[1,64,28,28] y) {
        a = Div (x, s) c = QuantizeLinear (a, i, z) b = DequantizeLinear (c, i, z) d = Mul (b, s)
        e = DequantizeLinear <axis = 0> (w, t)
        f = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (d, e)
        h = QuantizeLinear (f, u, z) y = DequantizeLinear (h, u, z) }"""
    odd = model(text, **DATA, i=F(1), w=codes(64, 64, 3, 3), t=np.full(64, 3e-4, F), u=F(0.03))
    return f"{THIS} took {against(odd, layer())} ({where(odd)})."


@measured("QG407")
def packed() -> str:
    stored = codes(64, 64, 3, 3, low=-7, high=7)
    odd = layer(weights=stored.astype(ml_dtypes.int4), o=np.zeros(64, ml_dtypes.int4))
    return (
        f"{THIS} took "
        f"{against(odd, layer(weights=stored), 'the time of the same codes in INT8')} "
        f"({where(odd)})."
    )


@measured("QG408")
def unsigned() -> str:
    shifted = (codes(64, 64, 3, 3).astype(int) + 128).astype(np.uint8)
    odd = layer(weights=shifted, o=np.full(64, 128, np.uint8))
    return (
        f"{THIS} took {against(odd, layer(), 'the time of the same weights in INT8')} "
        f"({where(odd)})."
    )


@measured("QG409")
def zero_points() -> str:
    odd = layer(o=np.full(64, 3, np.int8))
    return (
        f"{THIS} with zero points of 3 took "
        f"{against(odd, layer(), 'the time without')} ({where(odd)})."
    )


@measured("QG410")
def by_channel() -> str:
    text = """(float[1,64,28,28] x) => (float[1,64,28,28] y) {
        c = QuantizeLinear <axis = 1> (x, s, z) d = DequantizeLinear <axis = 1> (c, s, z)
        e = DequantizeLinear <axis = 0> (w, t, o)
        f = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 64> (d, e)
        h = QuantizeLinear (f, u, v) y = DequantizeLinear (h, u, v) }"""
    deep = codes(64, 1, 3, 3)
    odd, unsigned = (
        model(
            text, s=np.linspace(0.02, 0.04, 64, dtype=F), z=np.full(64, zero), w=deep,
            t=np.full(64, 3e-3, F), o=np.zeros(64, np.int8), u=F(0.03), v=zero,
        )
        for zero in (np.int8(0), np.uint8(128))
    )  # fmt: skip
    runs = "runs" if taken(lambda: ort(unsigned, fed(unsigned))) else "fails while it runs"
    plain = layer(groups=64, weights=deep)
    return (
        "A 3 x 3 depthwise Conv of 64 channels took "
        f"{against(odd, plain, 'the time with one scale')} "
        f"({where(odd)}); with UINT8 data it {runs} in ONNX Runtime."
    )


@measured("QG411")
def result() -> str:
    odd = layer(result=False)
    times = against(odd, layer(), "the time of one with a quantizer after it")
    return f"{THIS} took {times} ({where(odd)})."


@measured("QG412")
def unequal() -> str:
    text = """(float[1,32,28,28] x) => (float[1,64,28,28] y) {
        a = QuantizeLinear (x, s, z) b = DequantizeLinear (a, s, z)
        k = QuantizeLinear (x, p, z) l = DequantizeLinear (k, p, z) d = Concat <axis = 1> (b, l)
        e = DequantizeLinear <axis = 0> (w, t)
        f = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (d, e)
        h = QuantizeLinear (f, u, z) y = DequantizeLinear (h, u, z) }"""
    named = DATA | {"w": codes(64, 64, 3, 3), "t": np.full(64, 3e-4, F), "u": F(0.03)}
    odd, plain = model(text, p=F(0.02), **named), model(text, p=F(0.03), **named)
    return (
        f"{THIS} after a Concat took "
        f"{against(odd, plain, 'the time with equal scales')} ({where(odd)})."
    )


@measured("QG413")
def chain() -> str:
    odd = layer(before="k = Clip (w, lo, hi)", lo=np.int8(-8), hi=np.int8(7))
    return (
        f"{THIS} with a Clip on its codes took "
        f"{against(odd, layer(), 'the time without')} ({where(odd)})."
    )


@measured("QG414")
def inside_unit() -> str:
    odd = layer(
        middle="m = QuantizeLinear (f, u, v) l = DequantizeLinear (m, u, v) g = Relu (l)", u=F(0.03)
    )
    return (
        f"{THIS} with a quantizer before and after its Relu took "
        f"{against(odd, layer(middle='g = Relu (f)', v=np.uint8(0)), 'the time with one')}."
    )


@measured("QG415")
def float_branch() -> str:
    text = """(uint8[1,64,28,28] c, SECOND[1,64,28,28] u) => (uint8[1,64,28,28] q) {
        d = DequantizeLinear (c, s, z) BETWEEN a = Add (d, g) q = QuantizeLinear (a, s, z) }"""
    floats = text.replace("SECOND", "float").replace("BETWEEN", "").replace("(d, g)", "(d, u)")
    codes_ = text.replace("SECOND", "uint8").replace("BETWEEN", "g = DequantizeLinear (u, s, z)")
    odd, plain = model(floats, **DATA), model(codes_, **DATA)
    return (
        "An Add of 64 x 28 x 28 codes and as many floats took "
        f"{against(odd, plain, 'the time of two operands of codes')}."
    )


def flattened(op: str):  # type: ignore[no-untyped-def]
    """Return a product after an operator that joins axes."""
    text = f"""(float[28,64,4,4] x) => (float[28,64] y) {{ {PAIR} g = {op}
        e = DequantizeLinear (w, t, o) f = MatMul (g, e)
        h = QuantizeLinear (f, u, z) y = DequantizeLinear (h, u, z) }}"""
    named = DATA | {"w": codes(1024, 64), "t": F(3e-4), "o": np.int8(0), "u": F(0.03)}
    return model(text, **named, **({"k": np.array([0, -1])} if "k" in op else {}))


@measured("QG416")
def flatten() -> str:
    odd, plain = flattened("Flatten (d)"), flattened("Reshape (d, k)")
    return (
        "A MatMul of 1,024 inputs after a Flatten took "
        f"{against(odd, plain, 'the time after a Reshape')} ({where(odd)})."
    )


@measured("QG417")
def product_and_sum() -> str:
    text = f"""(float[28,256] x) => (float[28,256] y) {{ {PAIR}
        e = DequantizeLinear (w, t, o) LAST }}"""
    named = DATA | {"w": codes(256, 256), "t": F(3e-4), "o": np.int8(0)}
    odd = model(text.replace("LAST", "f = MatMul (d, e) y = Add (f, b)"), b=normal(256), **named)
    folded = text.replace("LAST", "k = DequantizeLinear (b, p) y = Gemm (d, e, k)")
    plain = model(folded, b=codes(256).astype(np.int32), p=F(0.03) * F(3e-4), **named)
    return (
        "A last layer of 256 x 256 took "
        f"{against(odd, plain, 'the time of a Gemm with an int32 bias')}."
    )


@measured("QG418")
def mean_of_map() -> str:
    text = """(uint8[1,256,14,14] c) => (uint8[1,256,1,1] q) {
        d = DequantizeLinear (c, s, z) a = CALL q = QuantizeLinear (a, s, z) }"""
    odd = model(text.replace("CALL", "ReduceMean (d, k)"), k=np.array([2, 3]), **DATA)
    plain = model(text.replace("CALL", "GlobalAveragePool (d)"), **DATA)
    return (
        "The mean of 256 maps of 14 x 14 took "
        f"{against(odd, plain, 'the time of GlobalAveragePool')}."
    )


@measured("QG419")
def integer_conv() -> str:
    text = """(float[1,64,28,28] x) => (float[1,64,28,28] y) {
        c, s, z = DynamicQuantizeLinear (x)
        f = ConvInteger <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (c, w, z, o)
        a = Cast <to = 1> (f) m = Mul (s, t) y = Mul (a, m) }"""
    odd = model(text, w=codes(64, 64, 3, 3), o=np.int8(0), t=F(3e-4))
    return (
        f"{THIS}, as ConvInteger with dynamic scales, took {slower(odd, float_layer())} "
        "times the time of the float Conv in ONNX Runtime, and "
        f"{slower(layer(), float_layer())} times with static scales."
    )


def in_blocks(block: int, axis: int = 0):  # type: ignore[no-untyped-def]
    """Return a product with INT4 weights in blocks."""
    text = (
        "(float[1,512] x) => (float[1,512] y) "
        f"{{ e = DequantizeLinear <axis = {axis}, block_size = {block}> (w, t) y = MatMul (x, e) }}"
    )
    shape = (512 // block, 512) if axis == 0 else (512, 512 // block)
    stored = codes(512, 512, low=-7, high=7).astype(ml_dtypes.int4)
    return model(text, w=stored, t=np.abs(normal(*shape, scale=0.01)))


@measured("QG420")
def small_blocks() -> str:
    real = model("(float[1,512] x) => (float[1,512] y) { y = MatMul (x, w) }", w=normal(512, 512))
    odd, plain = in_blocks(8), in_blocks(32)
    return (
        f"A product of 512 x 512 INT4 weights took {slower(odd, real)} times the time "
        f"of float in ONNX Runtime with blocks of 8, {slower(plain, real)} with blocks "
        "of 32."
    )


@measured("QG421")
def hard_swish() -> str:
    text = """(uint8[1,64,28,28] c) => (uint8[1,64,28,28] q) {
        d = DequantizeLinear (c, s, z) h = HardSigmoid <alpha = 0.16666667> (d) MORE
        q = QuantizeLinear (m, s, z) }"""
    parts = "a = QuantizeLinear (h, t, o) b = DequantizeLinear (a, t, o) m = Mul (d, b)"
    odd = model(text.replace("MORE", parts), t=F(1 / 255), o=np.uint8(0), **DATA)
    plain = model(text.replace("MORE", "m = Mul (d, h)"), **DATA)
    return (
        "HardSwish of 64 x 28 x 28 codes took "
        f"{against(odd, plain, 'the time with its parts in float')}."
    )


@measured("QG422")
def along_outputs() -> str:
    odd, plain = in_blocks(32, axis=1), in_blocks(32)
    return (
        "A product of 512 x 512 INT4 weights in blocks of 32 took "
        f"{slower(odd, plain)} times the time of blocks along the summed axis in ONNX Runtime, "
        f"{'with' if 'MatMulNBits' in nodes_in_ort(odd) else 'without'} MatMulNBits."
    )
