"""Figures of the rules about size."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.lint.measured.harness import (
    F,
    codes,
    layer,
    measured,
    model,
    normal,
    rounded,
    size,
    slower,
    sqnr,
)  # fmt: skip

PRODUCT = "(float[28,512] x) => (float[28,512] y) { NODES y = MatMul (x, e) }"
DECODED = PRODUCT.replace("NODES", "e = DequantizeLinear (w, s)")
WHAT = "512 x 512 weights"


@measured("QG501")
def unpacked() -> str:
    stored = codes(512, 512, low=-7, high=7)
    text = PRODUCT.replace("NODES", "c = QuantizeLinear (w, s, z) e = DequantizeLinear (c, s, z)")
    floats = model(text, w=(stored * F(0.01)).astype(F), s=F(0.01), z=np.int8(0))
    small, packed = (
        model(DECODED, w=stored, s=F(0.01)),
        model(DECODED, w=stored.astype(ml_dtypes.int4), s=F(0.01)),
    )
    return (
        f"{WHAT}: {size(floats):,} bytes as floats, {size(small):,} as INT8, "
        f"{size(packed):,} as INT4. A run in "
        f"ONNX Runtime took {slower(floats, small)} times the time with INT8 codes."
    )


@measured("QG502", exact=True)
def wide() -> str:
    stored = codes(512, 512, low=-7, high=7)
    one, other = (
        model(DECODED, w=stored, s=F(0.01)),
        model(DECODED, w=stored.astype(ml_dtypes.int4), s=F(0.01)),
    )
    return (
        f"{WHAT} with codes from -7 to 7 take {size(one):,} bytes as INT8 and "
        f"{size(other):,} as INT4."
    )


@measured("QG503", exact=True)
def unused() -> str:
    weights = normal(512, 512)
    top = float(np.abs(weights).max())
    ratios = [sqnr(weights, rounded(weights, top / codes_, -8, 7)) for codes_ in (7, 5, 3)]
    return (
        f"Normal weights in INT4: {ratios[0]:.1f} dB of signal to error with all codes "
        f"from -7 to 7, {ratios[1]:.1f} dB "
        f"with -5 to 5, {ratios[2]:.1f} dB with -3 to 3."
    )


@measured("QG504", exact=True)
def duplicate() -> str:
    text = "(float[28,512] x) => (float[28,512] y) { a = MatMul (x, w) y = MatMul (a, v) }"
    weights = normal(512, 512)
    one, other = (
        model(text, w=weights, v=weights),
        model(text.replace("(a, v)", "(a, w)"), w=weights),
    )
    return (
        f"A model with {WHAT} in float twice: {size(one):,} bytes, {size(other):,} with one copy."
    )


@measured("QG505")
def zero_channels() -> str:
    stored = codes(64, 64, 3, 3)
    stored[32:] = 0
    return (
        "A 3 x 3 Conv of 64 channels, half of them 0, took "
        f"{slower(layer(weights=stored), layer())} times the time of one without zeros in "
        "ONNX Runtime: nothing is skipped."
    )


@measured("QG506", exact=True)
def equal() -> str:
    text = PRODUCT.replace("NODES", "e = DequantizeLinear <axis = 0, block_size = 32> (w, s)")
    stored = codes(512, 512, low=-7, high=7).astype(ml_dtypes.int4)
    one, other = (
        model(text, w=stored, s=np.full((16, 512), 0.01, F)),
        model(DECODED, w=stored, s=F(0.01)),
    )
    return (
        f"{WHAT} in INT4 with equal scales in blocks of 32: {size(one):,} bytes, with "
        f"one scale {size(other):,}."
    )


@measured("QG507")
def double() -> str:
    text = "(FLOAT[28,512] x) => (FLOAT[28,512] y) { y = MatMul (x, w) }"
    weights = normal(512, 512)
    one, other = (
        model(text.replace("FLOAT", "double"), w=weights.astype(np.float64)),
        model(text.replace("FLOAT", "float"), w=weights),
    )
    return (
        f"A product with {WHAT}: {size(one):,} bytes and {slower(one, other)} times "
        f"the time in ONNX Runtime, in float32 {size(other):,} bytes."
    )
