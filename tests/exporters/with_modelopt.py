"""Exports of NVIDIA ModelOpt for ONNX and for torch.

``python -m tests.exporters.with_modelopt FOLDER modelopt``
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import modelopt.onnx.quantization as mq
import modelopt.torch.quantization as mtq
import numpy as np
import torch

from tests.exporters.networks import SHAPES, network, samples, write_float
from tests.exporters.running import run


def _onnx(mode: str, **options: Any) -> Any:
    def export(name: str, path: Path) -> None:
        source = path.with_suffix(".float.onnx")
        write_float(name, source)
        data = {"x": np.concatenate(samples(name))}
        mq.quantize(
            str(source),
            quantize_mode=mode,
            calibration_data=data,
            calibration_eps=["cpu"],
            output_path=str(path),
            **options,
        )
        source.unlink()

    return export


def _torch(config: str) -> Any:
    def export(name: str, path: Path) -> None:
        def calibrate(model: Any) -> None:
            for x in samples(name):
                model(torch.from_numpy(x))

        model = mtq.quantize(network(name), getattr(mtq, config), calibrate)
        torch.onnx.export(
            model, (torch.zeros(SHAPES[name]),), str(path), dynamo=False, opset_version=20
        )

    return export


EXPORTS = {
    "int8": (_onnx("int8"), ("cnn", "residual", "mlp")),
    "int8_float": (_onnx("int8", high_precision_dtype="fp32"), ("cnn", "depthwise")),
    "fp8": (_onnx("fp8"), ("cnn",)),
    "int4": (_onnx("int4", calibration_method="rtn_dq"), ("mlp",)),
    "torch_int8": (_torch("INT8_DEFAULT_CFG"), ("mlp", "cnn")),
    "torch_fp8": (_torch("FP8_DEFAULT_CFG"), ("mlp",)),
    "torch_nvfp4": (_torch("NVFP4_DEFAULT_CFG"), ("mlp",)),
}

if __name__ == "__main__":
    run(EXPORTS, ("nvidia-modelopt", "torch", "onnx"))
