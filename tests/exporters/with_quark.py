"""Exports of AMD Quark for ONNX.

``python -m tests.exporters.with_quark FOLDER quark``
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnxruntime.quantization import CalibrationDataReader
from quark.onnx import ModelQuantizer
from quark.onnx.quantization.config import Config, get_default_config

from tests.exporters.networks import samples, write_float
from tests.exporters.running import run


class Reader(CalibrationDataReader):
    """Gives the inputs of a network."""

    def __init__(self, name: str) -> None:
        self.data = iter(samples(name))

    def get_next(self) -> Any:
        """Return the next input."""
        x = next(self.data, None)
        return None if x is None else {"x": x}


def _export(scheme: str) -> Any:
    def export(name: str, path: Path) -> None:
        source = path.with_suffix(".float.onnx")
        write_float(name, source)
        config = Config(global_quant_config=get_default_config(scheme))
        ModelQuantizer(config).quantize_model(str(source), str(path), Reader(name))
        source.unlink()

    return export


EXPORTS = {
    "xint8": (_export("XINT8"), ("cnn", "residual", "mlp")),
    "a8w8": (_export("A8W8"), ("cnn",)),
    "a16w8": (_export("A16W8"), ("cnn",)),
    "bf16": (_export("BF16"), ("mlp",)),
    "bfp16": (_export("BFP16"), ("mlp",)),
    "mxfp4": (_export("MXFP4E2M1"), ("cnn",)),
    "mxint8": (_export("MXINT8"), ("cnn",)),
    "mx9": (_export("MX9"), ("cnn",)),
    "s16s8": (_export("S16S8_ASWS"), ("residual",)),
    "matmul_nbits": (_export("MATMUL_NBITS"), ("transformer",)),
    "int8_transformer": (_export("INT8_TRANSFORMER_DEFAULT"), ("transformer",)),
}

if __name__ == "__main__":
    run(EXPORTS, ("amd-quark", "onnxruntime", "onnx"))
