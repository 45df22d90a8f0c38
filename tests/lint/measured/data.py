"""Figures of the rules that look at data."""

from __future__ import annotations

import numpy as np

from tests.lint.measured.harness import (
    PAIR,
    F,
    codes,
    differ,
    farthest,
    fed,
    measured,
    model,
    normal,
    openvino,
    ort,
    plain_and_optimized,
    qgraph_run,
    rounded,
    sqnr,
)

X = normal(100_000)


@measured("QG801", exact=True)
def clips() -> str:
    ratios = []
    for share in (0.0, 0.01, 0.1):
        top = float(np.quantile(np.abs(X), 1 - share))
        ratios.append(f"{sqnr(X, rounded(X, top / 127)):.0f} dB with {share:.0%} clipped")
    return f"Signal to error of normal data in 8 bits: {', '.join(ratios)}."


@measured("QG802", exact=True)
def wide() -> str:
    top = float(np.abs(X).max())
    ratios = [
        f"{sqnr(X, rounded(X, times * top / 127)):.0f} dB {what}"
        for times, what in (
            (1, "with a range that fits"),
            (2, "where it is twice too wide"),
            (16, "16 times"),
        )
    ]
    return f"Signal to error of normal data in 8 bits: {', '.join(ratios)}."


@measured("QG803", exact=True)
def dead() -> str:
    x = normal(1000, 64)
    y = np.maximum(x + np.where(np.arange(64) < 8, -10, 0), 0)
    same = np.count_nonzero((y == y[0]).all(axis=0))
    return (
        f"Computed: with a bias of -10 in 8 of 64 channels, {same} of 64 are 0 after "
        "a Relu for all of 1,000 rows."
    )


@measured("QG804", exact=True)
def saturated() -> str:
    top = float(np.abs(X).max())
    lost = np.count_nonzero(X < 0) / X.size
    return (
        f"Normal data with a zero point at the lowest code: {lost:.0%} of the values "
        f"become 0, and {sqnr(X, rounded(X, top / 255, 0, 255)):.1f} dB of signal to "
        f"error are left of {sqnr(X, rounded(X, top / 127)):.0f}."
    )


@measured("QG805", exact=True)
def unused() -> str:
    pixels = np.random.default_rng(0).integers(0, 17, 100_000).astype(F)
    fine, fit = rounded(pixels, 16 / 255, 0, 255), rounded(pixels, 1, 0, 16)
    return (
        f"Pixels with 17 levels: {np.count_nonzero(fine != pixels):,} of "
        f"{pixels.size:,} change in 256 codes over their range, "
        f"{np.count_nonzero(fit != pixels)} in 17 codes with a scale of 1."
    )


@measured("QG806", exact=True)
def saturate() -> str:
    generator = np.random.default_rng(0)
    x, w = generator.integers(0, 256, (1000, 64)), generator.integers(-127, 128, (64, 64))
    pairs = x[:, 0::2, None] * w[None, 0::2] + x[:, 1::2, None] * w[None, 1::2]
    limited = np.clip(pairs, -(2**15), 2**15 - 1).sum(axis=1)
    return (
        f"Computed for uniform codes and weights, 64 inputs: {differ(limited, x @ w)} "
        "sums are wrong with pairs in 16 bits, by up to "
        f"{np.abs(limited - x @ w).max():,} of {np.abs(x @ w).max():,}."
    )


@measured("QG807", exact=True)
def constant() -> str:
    return (
        f"Normal data in steps of 100: {np.unique(rounded(X, 100)).size} value is left "
        f"of {np.unique(X).size:,}."
    )


@measured("QG808")
def not_finite() -> str:
    proto = model(
        "(float[3] x) => (int8[3] c) { c = QuantizeLinear (x, s, z) }", s=F(0.1), z=np.int8(0)
    )
    results = ort(proto, {"x": np.array([np.nan, np.inf, -np.inf], F)})
    return f"ONNX Runtime gives NaN, +Inf and -Inf the INT8 codes {', '.join(map(str, results))}."


@measured("QG809", exact=True)
def ties() -> str:
    x, scale = (np.arange(-1000, 1000) * F(0.15)).astype(F), F(0.3)
    one, other = np.rint(x / scale), np.rint(x * (F(1) / scale))
    return (
        f"Multiples of .15 at a scale of .3: {differ(one, other)} codes differ between "
        "x / s and x * (1 / s)."
    )


@measured("QG322")
def rounded_twice() -> str:
    changes = []
    for kind, name in ((17, "E4M3FN"), (19, "E5M2")):
        text = f"""(float[100000] x) => (float[100000] y) {{
            c = QuantizeLinear <output_dtype = {kind}> (x, s) y = DequantizeLinear (c, s) }}"""
        proto = model(text, s=F(0.013))
        right, result = qgraph_run(proto, {"x": X}), openvino(proto, {"x": X})
        changes.append(f"{differ(result, right)} with {name}")
    return f"Normal numbers that OpenVINO rounded to the other neighbour: {', '.join(changes)}."


@measured("QG323")
def limits() -> str:
    text = """(float[100000] x) => (float[100000] y) {
        c = QuantizeLinear (x, s, z) d = DequantizeLinear (c, s, z) y = Clip (d, low, high) }"""
    proto = model(text, s=F(0.0218), z=np.uint8(128), low=F(-0.5), high=F(1))
    right, result = qgraph_run(proto, {"x": X}), openvino(proto, {"x": X})
    return (
        f"Normal numbers in steps of .0218, limited to -0.5 and 1: {differ(result, right)} results "
        f"differ, by up to {np.abs(result - right).max():.3g}."
    )


@measured("QG324")
def probabilities() -> str:
    text = """(float[6250, 16] x) => (uint8[6250, 16] c) {
        b = QuantizeLinear (x, s, z) d = DequantizeLinear (b, s, z) p = Softmax (d)
        c = QuantizeLinear (p, t, z) }"""
    changes = []
    for steps in (256, 255, 127.5):
        proto = model(text, s=F(0.02), t=F(1 / steps), z=np.uint8(0))
        feeds = {"x": np.abs(X).reshape(-1, 16)}
        changes.append(f"{differ(ort(proto, feeds), qgraph_run(proto, feeds))} at 1/{steps:g}")
    return f"UINT8 codes of a Softmax of 16 numbers that differ: {', '.join(changes)}."


@measured("QG325")
def row_scales() -> str:
    changes = []
    for axis in (0, 1):
        text = f"""(float[1,64] x) => (float[1,64] y) {{
            e = DequantizeLinear <axis = {axis}> (w, t) y = MatMul (x, e) }}"""
        proto = model(text, w=codes(64, 64), t=np.linspace(0.001, 0.01, 64, dtype=F))
        feeds = fed(proto)
        right, result = qgraph_run(proto, feeds), openvino(proto, feeds)
        near = np.abs(result - right) <= 0.02 * np.abs(right).max()
        changes.append(differ(np.where(near, right, result), right))
    return (
        "Results of a MatMul of one row and 64 x 64 INT8 codes that OpenVINO changed by more than "
        f"2 % of the largest: {changes[0]} with a scale for each row, {changes[1]} with one for "
        "each column."
    )


@measured("QG326")
def copied() -> str:
    changes = []
    for point in ("", ", z"):
        text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[64,64] x) => (float[64,64] y) {{
            c = QuantizeLinear (x, s, z) d = DequantizeLinear (c, s{point})
            t = Transpose <perm = [1, 0]> (d) y = Sigmoid (t) }}"""
        proto = model(text, s=F(0.03), z=np.int8(0))
        right, result = plain_and_optimized(proto, fed(proto))
        changes.append(differ(result, right))
    return (
        "Results after a Transpose of INT8 codes that ONNX Runtime changed: "
        f"{changes[0]}; with a zero point of 0 {changes[1]}."
    )


@measured("QG327")
def joined_zero_points() -> str:
    text = """(float[8,6,14,14] x) => (float[8,12,14,14] y) {
        a = QuantizeLinear (x, s, z) d = DequantizeLinear (a, s, z)
        b = QuantizeLinear (x, s, o) e = DequantizeLinear (b, s, o)
        g = Concat <axis = 1> (d, e) v = DequantizeLinear (w, t)
        c = Conv <group = 4, pads = [1, 1, 1, 1]> (g, v)
        h = QuantizeLinear (c, u, z) y = DequantizeLinear (h, u, z) }"""
    scales = {"s": F(0.02), "t": F(0.004), "u": F(0.05)}
    points = {"z": np.uint8(128), "o": np.uint8(100)}
    proto = model(text, **scales, **points, w=codes(12, 3, 3, 3))
    feeds = fed(proto)
    right, result = qgraph_run(proto, feeds), openvino(proto, feeds)
    return (
        "Of 4 groups of 3 channels, after a Concat of data with zero points of 128 and 100, "
        f"OpenVINO changed {differ(result, right)} codes, by up to {farthest(result, right, 0.05)}."
    )


@measured("QG328")
def normalized() -> str:
    text = """(float[3000,33] x) => (float[3000,33] y) {
        c = QuantizeLinear (x, s, o) d = DequantizeLinear (c, s, o) l = Max (d, m)
        n = LayerNormalization (BEFORE, g)
        q = QuantizeLinear (n, t, z) y = DequantizeLinear (q, t, z) }"""
    numbers = np.random.default_rng(0).integers(0, 3, (3000, 33)).astype(F) * F(0.03)
    changes = []
    for before in ("d", "l"):
        scales = {"s": F(0.03), "t": F(0.02), "m": F(0), "g": np.ones(33, F)}
        points = {"o": np.uint8(0), "z": np.uint8(128)}
        proto = model(text.replace("BEFORE", before), **scales, **points)
        changes.append(differ(openvino(proto, {"x": numbers}), qgraph_run(proto, {"x": numbers})))
    return (
        "Of rows of 33 codes from 0 to 2 with a scale of .03, normalized with an epsilon of 1e-5 "
        f"and quantized in steps of .02, OpenVINO changed {changes[0]} codes; with a Max in front "
        f"{changes[1]}."
    )


@measured("QG329")
def chained() -> str:
    text = """(float[8,256] x) => (float[8,256] y) { c = QuantizeLinear (x, s, z)
        d = DequantizeLinear (c, s, z) a = DequantizeLinear (w, t) m = MatMul (d, a)
        e = QuantizeLinear (m, u, z) f = DequantizeLinear (e, u, z) k = MatMul (f, a)
        h = QuantizeLinear (k, u, z) y = DequantizeLinear (h, u, z) }"""
    scales = {"s": F(0.02), "t": F(0.001), "u": F(0.03), "z": np.uint8(128)}
    proto = model(text, **scales, w=codes(256, 256))
    feeds = fed(proto)
    right, result = qgraph_run(proto, feeds), openvino(proto, feeds)
    return (
        f"Of two products of 8 rows and 256 columns, OpenVINO changed {differ(result, right)} "
        f"codes, by up to {farthest(result, right, 0.03)}."
    )


@measured("QG330")
def rounded_constants() -> str:
    moved = []
    before = (
        "d = org.openvinotoolkit.FakeQuantize <levels = 16> (x, l, h, l, h) a = Identity (d)",
        f"{PAIR} a = Sub (d, k)",
        f"{PAIR} b = Sub (d, k) a = LeakyRelu <alpha = 1.0> (b)",
    )
    for data in before:
        text = f"""(float[1,16,28,28] x) => (float[1,16,28,28] y) {{ {data}
            e = DequantizeLinear (w, t) y = Conv <pads = [1, 1, 1, 1]> (a, e) }}"""
        numbers = {"t": F(0.01), "w": codes(16, 16, 3, 3)}
        numbers |= (
            {"l": F(-0.1), "h": F(3.1)}
            if "Fake" in data
            else {"s": F(0.2), "z": np.uint8(0), "k": F(0.5)}
        )
        proto = model(text, **numbers)
        feeds = fed(proto)
        right, result = qgraph_run(proto, feeds), openvino(proto, feeds)
        moved.append(f"{float(farthest(result, right)) / np.abs(right).max():.1%}")
    return (
        "Results of a 3 x 3 Conv of codes in steps of about .2 moved in OpenVINO: with 16 levels "
        f"from -0.1 to 3.1 by up to {moved[0]} of the largest, with UINT8 less .5 by up to "
        f"{moved[1]}, and with a LeakyRelu in between by {moved[2]}."
    )


@measured("QG331")
def quantized_extremes() -> str:
    shares = []
    for name in ("ReduceMax", "ReduceMin"):
        wrong, worst = 0, 0.0
        for zero in (3, 128, 200):
            text = f"""(float[1,64,14,14] x) => (float[1,64,1,1] y) {{ a = Neg (x)
                b = {name} (a, i) q = QuantizeLinear (b, s, z) y = DequantizeLinear (q, s, z) }}"""
            axes = np.array([2, 3])
            proto = model(text, s=F(0.0273), z=np.uint8(zero), i=axes)
            feeds = fed(proto)
            right, result = qgraph_run(proto, feeds), openvino(proto, feeds)
            wrong += int((np.abs(result - right) > 0.01).sum())
            worst = max(worst, float(np.abs(result - right).max()) / 0.0273)
        shares.append(f"{name} {wrong} of 192, by up to {worst:.0f} steps")
    return (
        "Results of 64 channels of 14 x 14 floats with zero points 3, 128 and 200 that OpenVINO "
        f"changed: {shares[0]}; {shares[1]}."
    )
