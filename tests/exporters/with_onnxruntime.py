"""Exports of the quantizers of ONNX Runtime.

``python -m tests.exporters.with_onnxruntime FOLDER onnxruntime``
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnxruntime import quantization as q
from onnxruntime.quantization import matmul_bnb4_quantizer, matmul_nbits_quantizer

from tests.exporters.networks import SHAPES, samples, write_float
from tests.exporters.running import run

ALL = tuple(SHAPES)


class Reader(q.CalibrationDataReader):
    """Gives the inputs of a network."""

    def __init__(self, name: str) -> None:
        self.data = iter(samples(name))

    def get_next(self) -> Any:
        """Return the next input."""
        x = next(self.data, None)
        return None if x is None else {"x": x}


def _float(name: str, path: Path, opset: int = 17) -> Path:
    source = path.with_suffix(".float")
    write_float(name, source, opset)
    return source


def _static(**options: Any) -> Any:
    def export(name: str, path: Path) -> None:
        opset = options.get("opset", 17)
        source = _float(name, path, opset)
        others = {key: value for key, value in options.items() if key != "opset"}
        q.quantize_static(str(source), str(path), Reader(name), **others)
        source.unlink()

    return export


def _dynamic(**options: Any) -> Any:
    def export(name: str, path: Path) -> None:
        source = _float(name, path)
        q.quantize_dynamic(str(source), str(path), **options)
        source.unlink()

    return export


def _blocks(form: Any, bits: int = 4, **options: Any) -> Any:
    def export(name: str, path: Path) -> None:
        source = _float(name, path, 17 if form is q.QuantFormat.QOperator else 20)
        config = matmul_nbits_quantizer.DefaultWeightOnlyQuantConfig(
            block_size=16, quant_format=form, bits=bits, **options
        )
        quantizer = matmul_nbits_quantizer.MatMulNBitsQuantizer(
            onnx.load(source), algo_config=config
        )
        quantizer.process()
        onnx.save(quantizer.model.model, path)
        source.unlink()

    return export


def _bnb4(name: str, path: Path) -> None:
    source = _float(name, path)
    quantizer = matmul_bnb4_quantizer.MatMulBnb4Quantizer(onnx.load(source), 1, 16)
    quantizer.process()
    onnx.save(quantizer.model.model, path)
    source.unlink()


QDQ, OPERATOR = q.QuantFormat.QDQ, q.QuantFormat.QOperator
S8, U8, S16, S4 = (getattr(q.QuantType, f"Q{name}") for name in ("Int8", "UInt8", "Int16", "Int4"))

EXPORTS = {
    "qdq_u8s8": (
        _static(quant_format=QDQ, per_channel=True, activation_type=U8, weight_type=S8),
        ALL,
    ),
    "qdq_s8": (_static(quant_format=QDQ, activation_type=S8, weight_type=S8), ("cnn", "mlp")),
    "qdq_a16w4": (
        _static(quant_format=QDQ, activation_type=S16, weight_type=S4, opset=20),
        ("mlp",),
    ),
    "qop_u8": (_static(quant_format=OPERATOR, activation_type=U8, weight_type=U8), ALL),
    "qop_s8": (_static(quant_format=OPERATOR, activation_type=S8, weight_type=S8), ("residual",)),
    "qdq_float8": (
        _static(
            quant_format=QDQ,
            activation_type=q.QuantType.QFLOAT8E4M3FN,
            weight_type=q.QuantType.QFLOAT8E4M3FN,
            calibrate_method=q.CalibrationMethod.Distribution,
            opset=19,
        ),
        ("cnn",),
    ),
    "dynamic": (_dynamic(), ("mlp", "cnn", "transformer", "language")),
    "dynamic_s8": (_dynamic(weight_type=S8, per_channel=True, reduce_range=True), ("language",)),
    "nbits4": (_blocks(OPERATOR), ("transformer", "language")),
    "nbits4_rounded": (_blocks(OPERATOR, accuracy_level=4), ("language",)),
    "nbits8_asym": (_blocks(OPERATOR, 8, is_symmetric=False), ("language",)),
    "nbits4_qdq": (_blocks(QDQ), ("transformer",)),
    "bnb4": (_bnb4, ("transformer",)),
}

if __name__ == "__main__":
    run(EXPORTS, ("onnxruntime", "onnx"))
