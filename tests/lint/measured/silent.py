"""Figures of the rules about silent changes."""

from __future__ import annotations

import numpy as np
import onnx

import qgraph
from qgraph.transforms import KeepRoundings, SeparatePairs
from tests.lint.measured.harness import (
    DATA,
    LAYER,
    PAIR,
    F,
    codes,
    compiled,
    differ,
    farthest,
    fed,
    is_integer_in_ort,
    layer,
    measured,
    model,
    nodes_in_ort,
    normal,
    openvino,
    ort,
    plain_and_optimized,
    qgraph_run,
    rounded,
    slower_in_openvino,
    sqnr,
)  # fmt: skip


@measured("QG301")
def double_pairs() -> str:
    proto = layer(
        middle="m = QuantizeLinear (f, k, v) g = DequantizeLinear (m, k, v)", k=F(0.021), u=F(0.017)
    )
    apart, feeds = qgraph.load(proto), fed(proto)
    apart.apply(SeparatePairs())
    right, result = plain_and_optimized(proto, feeds)
    kept, limited = ort(proto, feeds, disable_double_qdq_remover="1"), ort(apart.to_proto(), feeds)
    return (
        f"Pairs with scales of .021 and .017 after {LAYER}: {differ(result, right)} results "
        f"changed in ONNX Runtime, by up to {farthest(result, right, 0.017)} codes; with the "
        f"session option {differ(kept, right)}, with `separate-pairs` {differ(limited, right)}."
    )


@measured("QG302")
def float_weights() -> str:
    text = f"""(float[1,64,28,28] x) => (float[1,64,28,28] y) {{ {PAIR}
        f = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (d, w)
        h = QuantizeLinear (f, u, z) y = DequantizeLinear (h, u, z) }}"""
    changes = []
    for spread in (1, 20):
        channels = np.geomspace(1, 1 / spread, 64).reshape(-1, 1, 1, 1)
        weights = (normal(64, 64, 3, 3, scale=0.04) * channels).astype(F)
        proto = model(text, **DATA, w=weights, u=F(0.03))
        feeds = fed(proto)
        right, result = plain_and_optimized(proto, feeds)
        changes.append(f"{differ(result, right)} codes, by up to {farthest(result, right, 0.03)}")
    return (
        f"ONNX Runtime changed {changes[0]}, of {LAYER} with equal channels; {changes[1]}, "
        "where channels differ in size up to 20 times."
    )


@measured("QG303")
def float_bias() -> str:
    changes, most = [], 0
    for bits in (8, 4, 2):
        top = 2 ** (bits - 1) - 1
        proto = layer(weights=codes(64, 64, 3, 3, low=-top, high=top), bias=normal(64))
        feeds = fed(proto)
        right, result = plain_and_optimized(proto, feeds)
        changes.append(f"{differ(result, right)} with {bits} bits")
        most = max(most, int(farthest(result, right, 0.03)))
    by = "each by 1" if most == 1 else f"by up to {most}"
    return f"Codes of {LAYER} that changed in ONNX Runtime, {by}: {', '.join(changes)}."


@measured("QG304")
def bias_scale_ignored() -> str:
    changes = []
    for op, factor, data in (("Gemm", 2, 0.03), ("Conv", 1.5, 0.03), ("Conv", 2, 0.0025)):
        small = np.full(64, 1 / 127 / 24, F)
        proto = layer(op, t=small, s=F(data), u=F(data))
        next(each for each in proto.graph.node if each.name == "layer").input.append("k")
        decoder = onnx.helper.make_node("DequantizeLinear", ["b", "p"], ["k"], axis=0)
        proto.graph.node.insert(0, decoder)
        product = (F(data) * small * F(factor)).astype(F)
        bias = codes(64, low=-100, high=100).astype(np.int32) * 10
        for name, value in (("b", bias), ("p", product)):
            proto.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
        feeds = fed(proto, scale=data / 0.03)
        right, result = plain_and_optimized(proto, feeds)
        how = "on codes" if is_integer_in_ort(proto) else "in float"
        changes.append(
            f"{op}, {factor:g} times the product of {data / 127 / 24:.1g}: "
            f"{differ(result, right)} codes, {how}"
        )
    return f"ONNX Runtime changed: {'; '.join(changes)}."


@measured("QG305")
def data_gets_quantized() -> str:
    proto = model(
        "(float[28,64] x) => (float[28,64] y) { e = DequantizeLinear (w, s) y = MatMul (x, e) }",
        w=codes(64, 64), s=F(0.001),
    )  # fmt: skip
    feeds = fed(proto)
    right, result = plain_and_optimized(proto, feeds)
    kept = ort(proto, feeds, qdq_matmulnbits_accuracy_level="1")
    return (
        f"{differ(result, right)} results of a MatMul with 64 x 64 INT8 weights changed "
        "in ONNX Runtime, by "
        f"up to {float(farthest(result, right)) / np.abs(right).max():.1%} of the "
        f"largest ({sqnr(right, result):.0f} dB); "
        f"with accuracy level 1 by up to {float(farthest(kept, right)) / np.abs(right).max():.1g}."
    )


@measured("QG306")
def average_rounds() -> str:
    text = f"""(float[1,64,28,28] x) => (float[1,64,27,27] y) {{ {PAIR}
        p = AveragePool <kernel_shape = [2, 2]> (d) e = DequantizeLinear (w, t)
        y = Conv (p, e) }}"""
    proto = model(text, **DATA, w=codes(64, 64, 1, 1), t=F(0.001))
    feeds = fed(proto)
    right, result = qgraph_run(proto, feeds), openvino(proto, feeds)
    return (
        f"{differ(result, right)} results of a Conv after a pool of 2 x 2 changed in OpenVINO, "
        f"by up to {float(farthest(result, right)) / np.abs(right).max():.1%} of the largest."
    )


@measured("QG307")
def residual_not_rounded() -> str:
    text = f"""(float[1,64,28,28] x) => (float[1,64,28,28] y) {{ {PAIR}
        e = DequantizeLinear (w, t) f = Conv (d, e) g = QuantizeLinear (f, u, z)
        h = DequantizeLinear (g, u, z) i = DequantizeLinear (v, t) j = Conv (d, i)
        k = QuantizeLinear (j, u, z) l = DequantizeLinear (k, u, z) a = Add (h, l)
        q = QuantizeLinear (a, r, z) y = DequantizeLinear (q, r, z) }}"""
    scales = {"t": F(0.001), "u": F(0.02137), "r": F(0.03119)}
    proto = model(text, **DATA, **scales, w=codes(64, 64, 1, 1), v=codes(64, 64, 1, 1, seed=2))
    return f"Results after an Add with a step of .03119 changed: {kept_roundings(proto)}."


@measured("QG308")
def sixteen_bits_removed() -> str:
    pair = PAIR.replace("(x,", "(r,")
    text = (
        f"(float[1,64,28,28] x) => (float[1,64,28,28] y) {{ r = Neg (x) {pair} y = Conv (d, w) }}"
    )
    done = kept_roundings(model(text, s=F(0.01), z=np.uint16(300), w=normal(64, 64, 1, 1) / 10))
    return f"Results of a float Conv after such a pair changed: {done}."


def kept_roundings(proto: onnx.ModelProto) -> str:
    """Say what ``keep-roundings`` changes in OpenVINO."""
    loaded, feeds = qgraph.load(proto), fed(proto)
    loaded.apply(KeepRoundings())
    kept, right = loaded.to_proto(), qgraph_run(proto, feeds)
    first, second = (
        f"{differ(result, right)}, by up to {farthest(result, right)}"
        for result in (openvino(proto, feeds), openvino(kept, feeds))
    )
    time = float(slower_in_openvino(kept, proto))
    return f"{first}; with `keep-roundings` {second}, in {time:.2f} of the time"


@measured("QG309")
def weights_quantized_anew() -> str:
    changes = []
    for zero in (100, 0):
        stored = codes(64, 64, low=-100, high=100).astype(np.int16) + zero
        kind = np.uint8 if zero else np.int8
        proto = layer(
            "MatMul", size=784, weights=stored.astype(kind), o=np.full(64, zero, kind),
            t=np.full(64, 1 / 800, F),
        )  # fmt: skip
        feeds = fed(proto)
        right, result = qgraph_run(proto, feeds), openvino(proto, feeds)
        changes.append(f"{differ(result, right)} codes, by up to {farthest(result, right, 0.03)}")
    return (
        f"OpenVINO changed {changes[0]}, of a MatMul with zero points of 100; without zero points "
        f"{changes[1]}."
    )


@measured("QG310")
def half_precision_division() -> str:
    text = "(float16[1000,4] x) => (uint8[1000,4] c) { c = QuantizeLinear (x, s, z) }"
    proto = model(text, s=np.float16(0.1), z=np.uint8(128))
    x = normal(1000, 4).astype(np.float16)
    half = np.clip(np.rint(x / np.float16(0.1)).astype(float) + 128, 0, 255)
    result = ort(proto, {"x": x}).astype(float)
    what = f"{differ(result, half)} codes of normal numbers, with a scale of 0.1, differed"
    return f"{what} in ONNX Runtime from a division in float16."


@measured("QG311")
def scale_of_batch() -> str:
    ends = "(float[N,64] x) => (uint8[N,64] c, float s, uint8 z)"
    text = f"{ends} {{ c, s, z = DynamicQuantizeLinear (x) }}"
    proto, x = model(text), normal(64, 64)
    together, rows = ort(proto, {"x": x}), range(64)
    alone = np.concatenate([ort(proto, {"x": x[i : i + 1]}) for i in rows])
    return (
        f"{differ(together, alone)} codes of 64 rows of normal numbers were others in "
        "a batch than alone."
    )


@measured("QG312")
def pairs_saturate() -> str:
    x, w = np.full((1, 64), 255, np.int64), codes(64, 64, low=100).astype(np.int64)
    sums = x @ w
    pairs = x[:, 0::2, None] * w[None, 0::2] + x[:, 1::2, None] * w[None, 1::2]
    limited = np.clip(pairs, -(2**15), 2**15 - 1).sum(axis=1)
    proto = layer(
        "MatMul",
        size=1,
        weights=w.astype(np.int8),
        result=False,
        t=F(1),
        s=F(1),
        z=np.uint8(0),
        o=np.int8(0),
    )
    result = ort(proto, {"x": x.astype(F)})
    return (
        "Computed, for 64 inputs of 255 and weights of 100 to 127: "
        f"{differ(limited, sums)} sums are wrong "
        f"with pairs in 16 bits, {limited.min() / sums[0, limited.argmin()]:.2f} of the right sum. "
        f"Run on this processor: {differ(result, sums.astype(F))}."
    )


@measured("QG313")
def narrow_float() -> str:
    text = """(float[28,512] x) => (float[28,64] y) {
        f = MatMul (x, w) c = QuantizeLinear (f, s, z) y = DequantizeLinear (c, s, z) }"""
    proto = model(text, w=normal(512, 64, scale=0.05), s=F(0.03), z=np.uint8(128))
    feeds = fed(proto)
    right = ort(proto, feeds, plain=True)
    kind = str(compiled(proto, narrow=True).get_property("INFERENCE_PRECISION_HINT"))
    narrow, wide = openvino(proto, feeds, narrow=True), openvino(proto, feeds)
    name = "bfloat16" if "bfloat16" in kind or "bf16" in kind else kind
    return (
        f"{differ(narrow, right)} codes after a MatMul of 512 inputs changed with "
        f"OpenVINO's defaults ({name} here), "
        f"by up to {farthest(narrow, right, 0.03)}; with f32 {differ(wide, right)}."
    )


@measured("QG314")
def ties_of_add() -> str:
    text = """(float[256,256] x, float[256,256] u) => (float[256,256] y) {
        c = QuantizeLinear (x, s, z) d = DequantizeLinear (c, s, z)
        e = QuantizeLinear (u, t, z) f = DequantizeLinear (e, t, z) a = Add (d, f)
        q = QuantizeLinear (a, r, z) y = DequantizeLinear (q, r, z) }"""
    changes = []
    for one, other, result in ((0.05, 0.03, 0.1), (0.0517, 0.0331, 0.1043)):
        proto = model(text, s=F(one), t=F(other), r=F(result), z=np.uint8(0))
        grid = np.meshgrid(np.arange(256, dtype=F) * F(one), np.arange(256, dtype=F) * F(other))
        feeds = {"x": grid[0], "u": grid[1]}
        right, result = qgraph_run(proto, feeds), ort(proto, feeds)
        assert "QLinearAdd" in nodes_in_ort(proto)
        changes.append(differ(result, right))
    return (
        f"With scales of .05, .03 and .1, ONNX Runtime gave {changes[0]} pairs of codes "
        f"another result; with .0517, .0331 and .1043 {changes[1]}."
    )


@measured("QG315")
def signed_codes_joined() -> str:
    text = """(float[1,64,28,28] x) => (float[1,64,28,28] y) {
        c = QuantizeLinear (x, s, z) d = DequantizeLinear (c, s, z) n = Neg (x)
        e = QuantizeLinear (n, s, z) f = DequantizeLinear (e, s, z) j = Concat <axis = 1> (d, f)
        k = DequantizeLinear (w, t) g = Conv <pads = [1, 1, 1, 1]> (j, k)
        q = QuantizeLinear (g, u, z) y = DequantizeLinear (q, u, z) }"""
    changes = []
    for zero in (np.int8(0), np.uint8(128)):
        proto = model(text, s=F(0.03), t=F(0.002), u=F(0.3), z=zero, w=codes(64, 128, 3, 3))
        feeds = fed(proto)
        right, result = qgraph_run(proto, feeds), openvino(proto, feeds)
        changes.append(f"{differ(result, right)} codes, by up to {farthest(result, right, 0.3)}")
    return (
        f"Behind a 3 x 3 Conv of two joined tensors of 64 channels OpenVINO changed {changes[0]}; "
        f"with UINT8 codes {changes[1]}."
    )


@measured("QG316")
def rows_of_codes_added() -> str:
    text = """(float[8,197,192] x) => (float[8,192] y) {
        c = QuantizeLinear (x, s, z) d = DequantizeLinear (c, s, z) l = Max (d, m)
        r = ReduceMean <keepdims = 0> (BEHIND, a) y = Relu (r) }"""
    changes = []
    for before in ("d", "l"):
        constants = {"s": F(0.03), "z": np.uint8(0), "m": F(0), "a": np.array([1])}
        proto = model(text.replace("BEHIND", before), **constants)
        feeds = fed(proto)
        right, result = qgraph_run(proto, feeds), openvino(proto, feeds)
        step = np.rint((result - right) / F(0.03))
        changes.append(differ(step, 0 * step))
    return (
        f"Of means over 197 rows of codes, for 8 samples, OpenVINO changed {changes[0]} by half a "
        f"step or more; with a Max in front {changes[1]}."
    )


@measured("QG317")
def windows_beyond_padding() -> str:
    text = "(float[1,2,7,8] x) => (float[1,2,H,W] y) { y = POOL <ceil_mode = 1, ATTRIBUTES> (x) }"
    means = "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], count_include_pad = 1"
    largest = "kernel_shape = [2, 2], strides = [2, 2], pads = [0, 0, 1, 1]"
    results = []
    for pool, attributes in (("AveragePool", means), ("MaxPool", largest)):
        proto = model(text.replace("POOL", pool).replace("ATTRIBUTES", attributes))
        feeds = fed(proto)
        results.append((ort(proto, feeds), openvino(proto, feeds)))
    changed = differ(*results[0])
    ours, theirs = (" x ".join(map(str, each.shape[2:])) for each in results[1])
    return (
        "Of the means of 3 x 3 windows with stride 2 over 7 x 8 elements with padding 1, OpenVINO "
        f"computes {changed} differently from ONNX Runtime. Of the largest elements of 2 x 2 "
        "windows over them, with padding 1 at the end, it returns "
        f"{theirs}, and ONNX Runtime {ours}."
    )


@measured("QG319")
def weights_read_turned() -> str:
    text = """(float[8,64] x) => (float[8,64] y) {
        t = Transpose <perm = [1, 0]> (v) a = MatMul (x, WEIGHTS) y = Gemm <transB = 1> (a, w) }"""
    weights = normal(64, 64)
    wrong = []
    for name in ("w", "t"):
        proto = model(text.replace("WEIGHTS", name), w=weights, v=weights.T.copy())
        feeds = fed(proto)
        right, result = qgraph_run(proto, feeds), openvino(proto, feeds)
        far = np.abs(result - right) > 0.01 * np.abs(right).max()
        wrong.append(f"{np.count_nonzero(far)} of {far.size}")
    return (
        "Of the results of two such products with 64 x 64 weights, one after the other, OpenVINO "
        f"changed {wrong[0]} by more than 1 % of the largest; with a matrix of its own {wrong[1]}."
    )


@measured("QG318", exact=True)
def unsigned_read_as_signed() -> str:
    data = np.maximum(normal(64, 28, 28), 0)
    step = data.max() / 255
    right, read = (rounded(data, step, 0, top) for top in (255, 127))
    changes = f"{differ(right, read)} values changed, by up to {farthest(right, read, step)} codes"
    return (
        "Computed for normal data after a Relu, whose largest value has code 255: "
        f"{changes}. TensorRT was not run."
    )


@measured("QG320")
def pool_pads_codes() -> str:
    text = f"""(float[1,64,28,28] x) => (float[1,64,28,28] y) {{ {PAIR}
        f = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1> (d)
        h = QuantizeLinear (f, s, z) y = DequantizeLinear (h, s, z) }}"""
    changes, far = [], ""
    for zero in (np.uint8(128), np.int8(0)):
        proto = model(text, **DATA | {"z": zero})
        feeds = fed(proto)
        right, result = ort(proto, feeds, plain=True), openvino(proto, feeds)
        changes.append(f"{differ(result, right)}")
        far = farthest(result, right, 0.03) if zero else far
    return (
        "Means of 3 x 3 windows over 28 x 28 elements with padding 1 that OpenVINO changed: with "
        f"zero point 128 {changes[0]}, by up to {far} codes; with INT8 and 0 {changes[1]}."
    )


@measured("QG321")
def rows_with_column_scales() -> str:
    changes = []
    for axis in (1, 0):
        text = f"""(int64[16] x) => (float[16,64] y) {{
            e = DequantizeLinear <axis = {axis}> (w, s) y = Gather (e, x) }}"""
        scales = np.linspace(0.01, 0.64, 64, dtype=F)
        proto = model(text, w=codes(64, 64), s=scales)
        feeds = {"x": np.arange(0, 64, 4)}
        right, result = ort(proto, feeds, plain=True), openvino(proto, feeds)
        changes.append(differ(result, right))
    return (
        "Of the elements of 16 rows of a 64 x 64 table with a scale for each column, OpenVINO "
        f"changed {changes[0]}; with a scale for each row {changes[1]}."
    )
