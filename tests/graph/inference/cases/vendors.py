"""Quantizers of AMD Quark, TensorRT and QONNX that are graphs of standard operators."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.graph.inference.generator import MICROSOFT, Case, Operand, Rng, data, dims
from tests.graph.inference.makers import I8, I64, U8, F, Maker, makes, scalar


@makes("GatherBlockQuantized", domain=MICROSOFT)
def gather(name: str, rng: Rng) -> Case:
    rows, bits = int(rng.integers(1, 5)), int(rng.choice([2, 4, 8]))
    operands = [
        data(rng, [rows, 4 * bits], U8, constant=True),
        Operand(rng.integers(0, rows, dims(rng, 2)).astype(I64)),
        Operand(np.ones([rows, 2], F), constant=True),
    ]
    return Case(name, operands, {"bits": bits, "block_size": 16}, domain=MICROSOFT)


for _domain in ("qonnx.custom_op.general", "finn.custom_op.general", "finn"):

    def _thresholds(name: str, rng: Rng, domain: str = _domain) -> Case:
        shape = [*dims(rng, 2, low=1), 3, 4][-int(rng.integers(2, 5)) :]
        steps = Operand(np.sort(rng.normal(size=[1, 3])).astype(F), constant=True)
        return Case(name, [data(rng, shape), steps], {"out_dtype": "UINT2"}, domain=domain)

    makes("MultiThreshold", domain=_domain)(_thresholds)

    def _windows(name: str, rng: Rng, domain: str = _domain) -> Case:
        x, kernel = data(rng, rng.integers(4, 7, 4).tolist()), rng.integers(1, 4, 2).tolist()
        attributes = {"kernel_size": kernel, "stride": [1, 2], "pad_amount": [0, 1, 1, 0]}
        return Case(name, [x], attributes, domain=domain)

    makes("Im2Col", domain=_domain)(_windows)

    def _average(name: str, rng: Rng, domain: str = _domain) -> Case:
        layout = str(rng.choice(["NCHW", "NHWC"]))
        numbers = {"kernel": 2, "stride": int(rng.integers(1, 3)), "ibits": 4, "obits": 4}
        x = data(rng, rng.integers(3, 6, 4).tolist())
        return Case(name, [x], numbers | {"data_layout": layout}, domain=domain)

    makes("QuantAvgPool2d", domain=_domain)(_average)


def blocks(domain: str) -> Maker:
    def make(name: str, rng: Rng) -> Case:
        shape = [int(rng.integers(1, 3)), int(rng.integers(1, 40))]
        return Case(name, [data(rng, shape)], {"axis": 1}, domain=domain)

    return make


def linear(domain: str, codes: bool, point: bool, dtype: type) -> Maker:
    """How to draw a node of one scale, whose data is numbers or codes."""

    def make(name: str, rng: Rng) -> Case:
        x = data(rng, dims(rng, 2, low=1), F)
        if codes:
            x = Operand(x.array.astype(dtype), constant=True)
        more = [scalar(0, dtype)] if point else []
        return Case(name, [x, scalar(0.5), *more], domain=domain)

    return make


for _domain, _names in (
    ("com.amd.quark", ("MXQuantizeDequantize", "BFPQuantizeDequantize", "Extended")),
    ("com.vai.quantize", ("MXFixNeuron", "BFPFixNeuron", "Vitis")),
):
    makes(*_names[:2], domain=_domain)(blocks(_domain))
    makes(f"{_names[2]}QuantizeLinear", domain=_domain)(linear(_domain, False, True, I8))
    makes(f"{_names[2]}DequantizeLinear", domain=_domain)(linear(_domain, True, True, I8))

makes("TRT_FP8QuantizeLinear", domain="trt")(linear("trt", False, False, F))
_fp8 = ml_dtypes.float8_e4m3fn
makes("TRT_FP8DequantizeLinear", domain="trt")(linear("trt", True, False, _fp8))
for _domain in ("trt", ""):
    _codes = linear(_domain, True, False, ml_dtypes.int4)
    makes("TRT_INT4DequantizeLinear", domain=_domain)(_codes)
    makes("TRT_INT4QuantizeLinear", domain=_domain)(linear(_domain, False, False, F))
makes("DequantizeLinear", domain="trt")(linear("trt", True, False, ml_dtypes.int4))


@makes("TRT_FP4QDQ", domain="trt")
def nvfp4(name: str, rng: Rng) -> Case:
    return Case(name, [data(rng, [2, 32])], {"block_size": 16}, domain="trt")


@makes("FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel")
def fake_quant(name: str, rng: Rng) -> Case:
    shape = dims(rng, 3, low=1)
    ends = [np.full(shape[-1:] if "Per" in name else (), end, F) for end in (-2, 3)]
    operands = [Operand(end, constant=True) for end in ends]
    return Case(name, [data(rng, shape), *operands], {"num_bits": 4})
