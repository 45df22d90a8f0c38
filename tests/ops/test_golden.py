"""Every value of every golden case, which other implementations computed."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir

from qgraph.numerics.formats import numpy_dtype
from qgraph.numerics.rounding import Rounding
from qgraph.ops.definitions.cast_clip import cast, clip
from qgraph.ops.definitions.fake_quantize import fake_quantize
from qgraph.ops.definitions.float_quant import float_quant
from qgraph.ops.definitions.quant import bipolar_quant, quant
from qgraph.ops.definitions.quantize_linear import dequantize_linear, quantize_linear
from qgraph.ops.definitions.trunc import trunc, trunc_2

UNDEFINED = ir.DataType.UNDEFINED


def run_quant(case):
    return quant(
        case.x,
        *(case.array(name) for name in ("s", "z", "bw")),
        signed=bool(case["signed"]),
        narrow=bool(case["narrow"]),
        rounding_mode=Rounding.parse(case["mode"]),
    )


def test_quant(cases):
    for case in cases("quant.npz"):
        case.check(run_quant(case))


def test_rounding_table(cases):
    for case in cases("rounding_table.npz"):
        case.check(run_quant(case))


def test_bipolar(cases):
    for case in cases("bipolar.npz"):
        case.check(bipolar_quant(case.x, case.array("s")))


def test_trunc_version_1(cases):
    for case in cases("trunc_v1.npz"):
        inputs = [case.array(name) for name in ("s", "z", "ib", "ob")]
        mode = Rounding.parse(case["mode"])
        case.check(trunc(case.x, *inputs, rounding_mode=mode, signed=True, narrow=False))


def test_trunc_version_2(cases):
    for case in cases("trunc_v2.npz"):
        inputs = [case.array(name) for name in ("s", "z", "ib", "os", "ob")]
        case.check(
            trunc_2(
                case.x,
                *inputs,
                rounding_mode=Rounding.parse(case["mode"]),
                signed=bool(case["signed"]),
                narrow=bool(case["narrow"]),
            )
        )


def test_float_quant(cases):
    for case in cases("floatquant.npz"):
        case.check(
            float_quant(
                case.x,
                *(case.array(name) for name in ("s", "e", "m", "bias", "max_val")),
                has_inf=bool(case["has_inf"]),
                has_nan=bool(case["has_nan"]),
                has_subnormal=True,
                saturation=bool(case["saturation"]),
                rounding_mode=Rounding.parse(case["mode"]),
            )
        )


def test_fake_quantize(cases):
    for file in ("fakequantize.npz", "fakequantize_cpu.npz"):
        for case in cases(file):
            ranges = [case.array(name) for name in ("il", "ih", "ol", "oh")]
            case.check(
                fake_quantize(case.x, *ranges, levels=case["levels"], auto_broadcast="numpy")
            )


def test_integer_pairs(cases):
    for case in cases("qdq_int.npz"):
        s, dtype = case.array("s"), numpy_dtype(case["type"])
        z = np.asarray(case["z"], np.int32).astype(dtype)
        axis, size = case.parameters.get("axis", 1), case.parameters.get("block_size", 0)
        q = quantize_linear(
            case.x,
            s,
            z,
            axis=axis,
            saturate=True,
            block_size=size,
            output_dtype=UNDEFINED,
            precision=UNDEFINED,
        )
        assert q.dtype == dtype
        if case["clip"] is not None:
            low, high = (np.asarray(bound, dtype) for bound in case["clip"])
            q = clip(q, low, high, min=-np.inf, max=np.inf)
        case.check(dequantize_linear(q, s, z, axis=axis, block_size=size, output_dtype=UNDEFINED))


def test_float8_pairs(cases):
    for case in cases("qdq_fp8.npz"):
        s, dtype = case.array("s"), numpy_dtype(case["type"])
        q = quantize_linear(
            case.x,
            s,
            np.zeros(s.shape, dtype),
            axis=1,
            saturate=bool(case["saturate"]),
            block_size=0,
            output_dtype=UNDEFINED,
            precision=UNDEFINED,
        )
        assert q.dtype == dtype
        case.check(dequantize_linear(q, s, None, axis=1, block_size=0, output_dtype=UNDEFINED))


def test_casts(cases):
    for case in cases("cast_minifloat.npz"):
        to = ir.DataType[case["type"]]
        codes = cast(case.x, to=to, saturate=bool(case["saturate"]), round_mode="up")
        case.check(cast(codes, to=ir.DataType.FLOAT, saturate=True, round_mode="up"))


def test_float4_table():
    """The table of the ONNX float4 page, special values and ties."""
    x = np.array(
        [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 7, np.inf, -np.inf, np.nan, -np.nan, 0.0, -0.0],
        np.float32,
    )
    y = [0, 1, 1, 2, 2, 4, 4, 6, 6, -6, 6, 6, 0, 0]
    codes = cast(x, to=ir.DataType.FLOAT4E2M1, saturate=True, round_mode="up")
    assert codes.dtype == ml_dtypes.float4_e2m1fn
    assert codes.astype(np.float32).tolist() == y
    assert np.signbit(codes.astype(np.float32)).nonzero()[0].tolist() == [9, 13]
