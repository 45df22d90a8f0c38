"""Figures of the rules about hygiene."""

from __future__ import annotations

import numpy as np
import onnx

from tests.lint.measured.harness import (
    F,
    codes,
    example,
    layer,
    measured,
    model,
    normal,
    readers,
    session,
    size,
    slower,
    slower_in_openvino,
    sqnr,
    taken,
    where,
)  # fmt: skip

LAYER = "a 3 x 3 Conv of 64 channels"
THIS = "A" + LAYER[1:]


@measured("QG701")
def double_quantizer() -> str:
    odd = layer(middle="m = QuantizeLinear (f, u, v) g = DequantizeLinear (m, u, v)")
    return (
        f"{THIS} with two equal quantizers after it took {slower(odd, layer())} times the "
        "time of one in ONNX Runtime, "
        f"{slower_in_openvino(odd, layer())} in OpenVINO ({where(odd)})."
    )


@measured("QG702")
def duplicate_quantizer() -> str:
    text = """(float[1,64,28,28] x) => (float[1,64,28,28] y, float[1,64,28,28] o) {
        c = QuantizeLinear (x, s, z) d = DequantizeLinear (c, s, z) e = DequantizeLinear (w, t)
        f = Conv (d, e)
        h = QuantizeLinear (f, s, z) y = DequantizeLinear (h, s, z) k = QuantizeLinear (f, s, z)
        o = DequantizeLinear (KIND, s, z) }"""
    named = {"s": F(0.03), "z": np.uint8(128), "w": codes(64, 64, 1, 1), "t": F(3e-4)}
    odd = model(text.replace("KIND", "k"), **named)
    plain = model(text.replace("k = QuantizeLinear (f, s, z)", "").replace("KIND", "h"), **named)
    return (
        f"A 1 x 1 Conv of 64 channels took {slower(odd, plain)} times the time of one "
        "quantizer in ONNX Runtime, "
        f"{slower_in_openvino(odd, plain)} in OpenVINO ({where(odd)})."
    )


@measured("QG703")
def unused_result() -> str:
    text = "(float[28,512] x) => (float[28,512] y) { WHAT y = Relu (x) }"
    odd = model(text.replace("WHAT", "a = MatMul (x, w)"), w=normal(512, 512))
    plain = model(text.replace("WHAT", ""))
    return (
        f"A MatMul of 512 x 512 that nothing reads, beside a Relu: {size(odd):,} bytes "
        f"instead of {size(plain):,}, and "
        f"{slower(odd, plain)} times the time in ONNX Runtime, "
        f"{slower_in_openvino(odd, plain)} in OpenVINO."
    )


@measured("QG704")
def constants_as_inputs() -> str:
    import copy

    plain = layer()
    odd = copy.deepcopy(plain)
    for each in plain.graph.initializer:
        value = onnx.helper.make_tensor_value_info(each.name, each.data_type, list(each.dims))
        odd.graph.input.append(value)
    return (
        f"{THIS} took {slower(odd, plain)} times the time in ONNX Runtime with its "
        f"weights and scales among the inputs ({where(odd)})."
    )


@measured("QG705")
def redundant() -> str:
    odd = layer(middle="g = Relu (f)", v=np.uint8(0))
    return (
        f"{THIS} took {slower(odd, layer(v=np.uint8(0)))} times the time without the "
        "Relu in ONNX Runtime, "
        f"{slower_in_openvino(odd, layer(v=np.uint8(0)))} in OpenVINO."
    )


@measured("QG706")
def idle() -> str:
    odd, cast = layer(middle="g = Identity (f)"), layer(middle="g = Cast <to = 1> (f)")
    return (
        f"{THIS} ran with an Identity before its quantizer: {where(odd)}; with a Cast: "
        f"{where(cast)}."
    )


@measured("QG707")
def names() -> str:
    return readers(example("QG707"))


@measured("QG709")
def unused_input() -> str:
    proto = example("QG709")
    found = taken(lambda: session(proto).run(None, {"x": normal(2, 4)}))
    return (
        f"ONNX Runtime {'runs' if found else 'refuses to run'} the example without the "
        "input that no node reads."
    )


@measured("QG711")
def unused_import() -> str:
    proto = example("QG711")
    odd = onnx.ModelProto.FromString(proto.SerializeToString())
    odd.opset_import[1].domain = "some.vendor"
    return f"An import of ai.onnx.ml: {readers(proto)} Of an unknown domain: {readers(odd)}"


@measured("QG712")
def computed() -> str:
    text = """(float[1,64,28,28] x) => (float[1,64,28,28] y) {
        s = KIND c = QuantizeLinear (x, s, z) d = DequantizeLinear (c, s, z)
        e = DequantizeLinear (w, t) f = Conv (d, e)
        h = QuantizeLinear (f, u, z) y = DequantizeLinear (h, u, z) }"""
    named = {
        "z": np.uint8(128),
        "w": codes(64, 64, 1, 1),
        "t": F(3e-4),
        "u": F(0.03),
        "p": np.array([0.03, 0.02], F),
    }
    proto = model(text.replace("KIND", "ReduceMax <keepdims = 0> (p)"), **named)
    return f"A 1 x 1 Conv of 64 channels whose scale is a ReduceMax of constants: {where(proto)}."


@measured("QG714", exact=True)
def signed_codes() -> str:
    x = np.maximum(normal(100_000), 0)
    top = float(x.max())
    told = []
    for bits in (8, 4):
        signed, unsigned = (
            np.clip(np.rint(x / (top / n)), 0, n) * (top / n)
            for n in (2 ** (bits - 1) - 1, 2**bits - 1)
        )
        told.append(
            f"{sqnr(x, signed):.1f} dB signed and {sqnr(x, unsigned):.1f} dB unsigned "
            f"with {bits} bits"
        )
    return f"Signal to error of normal data after a Relu: {', '.join(told)}."


@measured("QG715", exact=True)
def unreachable() -> str:
    x = np.clip(normal(100_000), -1, 1)
    told = [sqnr(x, np.clip(np.rint(x / (top / 7)), -8, 7) * (top / 7)) for top in (1, 2)]
    return (
        f"Normal data clipped to -1 to 1, in 4 bits: {told[0]:.1f} dB of signal to "
        f"error where codes end at 1, {told[1]:.1f} dB where they end at 2."
    )
