"""Export a network whose pool drops low bits with Brevitas, as QONNX and as QCDQ, which disagree.

    pip install -r requirements-train.txt
    python export_truncation.py    # writes the folder truncation, half a minute

Both exports of one network should mean the same. The pool adds up codes and keeps the high bits of
the sum (Trunc), by FLOOR in one network and by ROUND in the other; the QCDQ export writes it as one
QuantizeLinear of the average, which is neither. Nothing is trained: weights are random, scales
come from random images. ``images.npz`` has images and what the networks make of them in PyTorch.
"""

from __future__ import annotations

import logging
from pathlib import Path

import brevitas.nn as qnn
import numpy as np
import torch
from brevitas.export import export_onnx_qcdq, export_qonnx
from brevitas.quant import (
    Int8WeightPerChannelFloat,
    RoundTo8bit,
    TruncTo8bit,
    Uint8ActPerTensorFloat,
)
from digits import FOLDER, make_deterministic
from torch import Tensor, nn

_log = logging.getLogger(__name__)

OUTPUT = FOLDER / "truncation"
DROPPING = {"floor": TruncTo8bit, "round": RoundTo8bit}
EXPORTS = {"qonnx": export_qonnx, "qcdq": export_onnx_qcdq}
BITS = 4
CHANNELS = 8
CLASSES = 10


class PoolNet(nn.Module):
    """A convolution, a pool that drops low bits, a classifier: ``[n, 1, 8, 8]`` to ``[n, 10]``."""

    def __init__(self, dropping: str) -> None:
        super().__init__()
        self.pixels = qnn.QuantIdentity(
            act_quant=Uint8ActPerTensorFloat, bit_width=8, return_quant_tensor=True
        )
        self.conv = qnn.QuantConv2d(
            1,
            CHANNELS,
            3,
            bias=False,
            weight_quant=Int8WeightPerChannelFloat,
            weight_bit_width=BITS,
        )
        self.norm = nn.BatchNorm2d(CHANNELS)
        self.activation = qnn.QuantReLU(
            act_quant=Uint8ActPerTensorFloat, bit_width=BITS, return_quant_tensor=True
        )
        # 36 codes of at most 15 add up to 10 bits, of which 4 are kept: codes are divided by 64.
        self.pool = qnn.TruncAvgPool2d(6, trunc_quant=DROPPING[dropping], bit_width=BITS)
        self.classifier = qnn.QuantLinear(
            CHANNELS,
            CLASSES,
            bias=True,
            weight_quant=Int8WeightPerChannelFloat,
            weight_bit_width=BITS,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return one score per class."""
        x = self.pool(self.activation(self.norm(self.conv(self.pixels(x)))))
        scores: Tensor = self.classifier(x.view(x.shape[0], CHANNELS))
        return scores


def make_network(dropping: str) -> PoolNet:
    """Return the network with scales and means taken from random images, in eval mode."""
    make_deterministic()
    network = PoolNet(dropping).train()
    with torch.no_grad():
        for _ in range(20):
            network(torch.rand(32, 1, 8, 8))
    return network.eval()


def main(folder: Path = OUTPUT) -> None:
    """Export both networks in both forms, and write what PyTorch computes."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    folder.mkdir(exist_ok=True)
    make_deterministic()
    # Contrast grows from image to image, so that every level of the pool occurs.
    x = torch.rand(64, 1, 8, 8) * torch.linspace(0, 2, 64).reshape(-1, 1, 1, 1)
    arrays = {"x": x.numpy()}
    for dropping in DROPPING:
        network = make_network(dropping)
        with torch.no_grad():
            arrays[dropping] = network(x).numpy()
        for form, export in EXPORTS.items():
            path = folder / f"{dropping}_{form}.onnx"
            export(
                network,
                args=torch.zeros(1, 1, 8, 8),
                export_path=str(path),
                input_names=["x"],
                output_names=["scores"],
                dynamic_axes={"x": {0: "n"}, "scores": {0: "n"}},
                opset_version=17,
                dynamo=False,
            )
            _log.info("%s: %d bytes", path.name, path.stat().st_size)
    np.savez_compressed(folder / "images.npz", **arrays)


if __name__ == "__main__":
    main()
