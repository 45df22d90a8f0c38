"""Exports of NNCF, of its torch and its ONNX backend.

``python -m tests.exporters.with_nncf FOLDER nncf``
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nncf
import onnx
import torch

from tests.exporters.networks import SHAPES, network, samples, write_float
from tests.exporters.running import run

ALL = tuple(SHAPES)


class Wrapped(torch.nn.Module):
    """A network that is no Sequential, which NNCF cannot add its storage to."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.network = network(name)

    def forward(self, x: Any) -> Any:
        """Return the scores."""
        return self.network(x)


def _fake_quantize(**options: Any) -> Any:
    def export(name: str, path: Path) -> None:
        data = nncf.Dataset([torch.from_numpy(x) for x in samples(name)])
        model = nncf.quantize(Wrapped(name), data, subset_size=8, **options)
        torch.onnx.export(model, (torch.zeros(SHAPES[name]),), str(path), dynamo=False)

    return export


def _compressed_torch(mode: Any, **options: Any) -> Any:
    def export(name: str, path: Path) -> None:
        x = torch.zeros(SHAPES[name])
        data = nncf.Dataset([torch.from_numpy(each) for each in samples(name)])
        model = nncf.compress_weights(Wrapped(name), mode=mode, dataset=data, **options)
        torch.onnx.export(model, (x,), str(path), dynamo=True, optimize=False, external_data=False)

    return export


def _onnx(name: str, path: Path) -> None:
    source = path.with_suffix(".float")
    write_float(name, source)
    data = nncf.Dataset([{"x": x} for x in samples(name)])
    onnx.save(nncf.quantize(onnx.load(source), data, subset_size=8), path)
    source.unlink()


def _compressed_onnx(mode: Any, opset: int, **options: Any) -> Any:
    def export(name: str, path: Path) -> None:
        source = path.with_suffix(".float")
        write_float(name, source, 20)
        model = onnx.load(source)
        model.opset_import[0].version = opset
        model.ir_version = max(model.ir_version, 10)
        onnx.save(nncf.compress_weights(model, mode=mode, **options), path)
        source.unlink()

    return export


MODES = nncf.CompressWeightsMode
EXPORTS = {
    "torch_int8": (_fake_quantize(), ALL),
    "torch_mixed": (_fake_quantize(preset=nncf.QuantizationPreset.MIXED), ("cnn",)),
    "torch_compress_int8": (_compressed_torch(MODES.INT8_ASYM), ("mlp", "transformer")),
    "torch_compress_int4": (
        _compressed_torch(MODES.INT4_SYM, group_size=16, ratio=1, all_layers=True),
        ("mlp",),
    ),
    "onnx_int8": (_onnx, ALL),
    "onnx_compress_int8": (_compressed_onnx(MODES.INT8_ASYM, 20), ("transformer",)),
    "onnx_compress_int4": (
        _compressed_onnx(MODES.INT4_ASYM, 21, group_size=16, ratio=1, all_layers=True),
        ("transformer",),
    ),
}

if __name__ == "__main__":
    run(EXPORTS, ("nncf", "torch", "onnx"))
