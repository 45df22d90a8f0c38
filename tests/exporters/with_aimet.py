"""Exports of AIMET for ONNX.

``python -m tests.exporters.with_aimet FOLDER aimet``
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aimet_onnx
import onnx
from aimet_onnx.quantsim import QuantizationSimModel

from tests.exporters.networks import samples, write_float
from tests.exporters.running import run


def _export(weights: Any, data: Any) -> Any:
    def export(name: str, path: Path) -> None:
        source = path.with_suffix(".float")
        write_float(name, source)
        sim = QuantizationSimModel(onnx.load(source), param_type=weights, activation_type=data)
        sim.compute_encodings([{"x": x} for x in samples(name)])
        onnx.save(sim.to_onnx_qdq(), path)
        source.unlink()

    return export


EXPORTS = {
    "w8a8": (_export(aimet_onnx.int8, aimet_onnx.int8), ("mlp", "cnn", "residual")),
    "w8a16": (_export(aimet_onnx.int8, aimet_onnx.int16), ("cnn",)),
    "w4a8": (_export(aimet_onnx.int4, aimet_onnx.int8), ("mlp",)),
}

if __name__ == "__main__":
    run(EXPORTS, ("aimet-onnx", "onnx"))
