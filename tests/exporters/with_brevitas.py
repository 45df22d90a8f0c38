"""Exports of Brevitas.

``python -m tests.exporters.with_brevitas FOLDER brevitas``
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import brevitas.nn as qnn
import torch
from brevitas import quant
from brevitas.export import export_onnx_qcdq, export_qonnx
from brevitas.graph.calibrate import calibration_mode
from torch import nn

from tests.exporters.networks import SHAPES, samples
from tests.exporters.running import run


class Residual(nn.Module):
    """A convolution, and its sum with the result of another one."""

    def __init__(self, conv: Any, relu: Any, identity: Any) -> None:
        super().__init__()
        self.data, self.stem, self.first = identity(), conv(4, 8, 3, padding=1), relu()
        self.second, self.sum, self.last = conv(8, 8, 3, padding=1), identity(), relu()

    def forward(self, x: Any) -> Any:
        """Return the features."""
        x = self.first(self.stem(self.data(x)))
        return self.last(self.sum(x) + self.sum(self.second(x))).flatten(1)


def _network(name: str, bits: int, weight: Any, act: Any, signed: Any) -> nn.Module:
    torch.manual_seed(1)
    options: dict[str, Any] = {"weight_quant": weight}
    if bits:
        options["weight_bit_width"] = bits

    def linear(i: int, o: int) -> nn.Module:
        return qnn.QuantLinear(i, o, bias=True, **options)

    def conv(i: int, o: int, k: int, **more: Any) -> nn.Module:
        return qnn.QuantConv2d(i, o, k, bias=True, **options, **more)

    widths = {"bit_width": bits} if bits else {}

    def relu() -> nn.Module:
        return qnn.QuantReLU(act_quant=act, **widths)

    def identity() -> nn.Module:
        return qnn.QuantIdentity(act_quant=signed, **widths)

    if name == "residual":
        return nn.Sequential(Residual(conv, relu, identity), linear(512, 10))
    layers: dict[str, list[nn.Module]] = {
        "mlp": [identity(), linear(64, 32), relu(), linear(32, 10)],
        "cnn": [
            *(identity(), conv(1, 8, 3, padding=1), nn.BatchNorm2d(8), relu(), nn.MaxPool2d(2)),
            *(conv(8, 16, 3), relu(), nn.Flatten(), linear(64, 10)),
        ],
        "depthwise": [
            *(identity(), conv(4, 8, 1), relu(), conv(8, 8, 3, padding=1, groups=8), relu()),
            *(nn.Flatten(), linear(512, 10)),
        ],
    }
    return nn.Sequential(*layers[name])


def _export(write: Any, bits: int, weight: Any, act: Any, signed: Any) -> Any:
    def export(name: str, path: Path) -> None:
        network = _network(name, bits, weight, act, signed)
        network.train()
        with torch.no_grad():
            for x in samples(name, 4):
                network(torch.from_numpy(x))
        network.eval()
        with torch.no_grad(), calibration_mode(network):
            network(torch.from_numpy(samples(name)[0]))
        options = {} if write is export_qonnx else {"dynamo": False}
        write(network, args=torch.zeros(SHAPES[name]), export_path=str(path), **options)

    return export


INT8 = (quant.Int8WeightPerTensorFloat, quant.Uint8ActPerTensorFloat, quant.Int8ActPerTensorFloat)
CHANNEL = (quant.Int8WeightPerChannelFloat, *INT8[1:])
SHIFTED = (
    quant.ShiftedUint8WeightPerChannelFloat,
    quant.ShiftedUint8ActPerTensorFloat,
    quant.ShiftedUint8ActPerTensorFloat,
)
POWER = (
    quant.Int8WeightPerTensorFixedPoint,
    quant.Uint8ActPerTensorFixedPoint,
    quant.Int8ActPerTensorFixedPoint,
)
BINARY = (
    quant.SignedBinaryWeightPerTensorConst,
    quant.SignedBinaryActPerTensorConst,
    quant.SignedBinaryActPerTensorConst,
)
ALL = ("mlp", "cnn", "depthwise", "residual")

EXPORTS = {
    "qonnx_w8a8": (_export(export_qonnx, 8, *INT8), ALL),
    "qonnx_w4a4": (_export(export_qonnx, 4, *CHANNEL), ("cnn", "mlp")),
    "qonnx_asym": (_export(export_qonnx, 8, *SHIFTED), ("cnn",)),
    "qonnx_po2": (_export(export_qonnx, 8, *POWER), ("cnn",)),
    "qonnx_binary": (_export(export_qonnx, 0, *BINARY), ("mlp",)),
    "qcdq_w8a8": (_export(export_onnx_qcdq, 8, *INT8), ALL),
    "qcdq_w4a4": (_export(export_onnx_qcdq, 4, *CHANNEL), ("cnn", "mlp")),
}

if __name__ == "__main__":
    run(EXPORTS, ("brevitas", "torch", "onnx"))
