"""Exports of torchao by way of the dynamo exporter of torch.

``python -m tests.exporters.with_torchao FOLDER torchao``
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torchao.quantization as ao

from tests.exporters.networks import SHAPES, network, samples
from tests.exporters.running import run


def _export(make: Any, *, optimize: bool = False) -> Any:
    def export(name: str, path: Path) -> None:
        model = network(name)
        ao.quantize_(model, make())
        with torch.no_grad():
            torch.onnx.export(
                model,
                (torch.zeros(SHAPES[name]),),
                str(path),
                dynamo=True,
                optimize=optimize,
                external_data=False,
            )

    return export


def _fake(name: str, path: Path) -> None:
    from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver, disable_observer

    model = network(name)
    layers = []
    for layer in model:  # type: ignore[attr-defined]
        layers.append(layer)
        if isinstance(layer, torch.nn.ReLU | torch.nn.ReLU6):
            layers.append(FakeQuantize.with_args(observer=MovingAverageMinMaxObserver)())
    model = torch.nn.Sequential(*layers)
    model(torch.randn(SHAPES[name]))
    model.apply(disable_observer)
    torch.onnx.export(model, (torch.zeros(SHAPES[name]),), str(path), dynamo=False)


def _two_steps(name: str, path: Path) -> None:
    """Export by way of the quantizers of torch.export (pt2e)."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    data = (torch.zeros(SHAPES[name]),)
    model = prepare_pt2e(torch.export.export(network(name), data).module(), quantizer)
    for x in samples(name):
        model(torch.from_numpy(x))
    torch.onnx.export(
        convert_pt2e(model), data, str(path), dynamo=True, optimize=False, external_data=False
    )


EXPORTS = {
    "int8_weights": (_export(ao.Int8WeightOnlyConfig), ("mlp", "cnn", "transformer")),
    "int8_weights_optimized": (_export(ao.Int8WeightOnlyConfig, optimize=True), ("mlp", "cnn")),
    "int4_weights": (_export(lambda: ao.Int4WeightOnlyConfig(group_size=32)), ("mlp",)),
    "intx_weights": (_export(lambda: ao.IntxWeightOnlyConfig()), ("mlp",)),
    "int8_dynamic": (_export(ao.Int8DynamicActivationInt8WeightConfig), ("mlp",)),
    "float8_weights": (_export(ao.Float8WeightOnlyConfig), ("mlp",)),
    "pt2e": (_two_steps, ("cnn", "residual", "transformer")),
    "torch_fake_quantize": (_fake, ("mlp", "cnn", "depthwise")),
}

if __name__ == "__main__":
    run(EXPORTS, ("torchao", "torch", "onnx"))
