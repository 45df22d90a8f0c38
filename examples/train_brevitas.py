"""Train a 4-bit network on the digits with Brevitas and export it as QONNX.

    pip install -r requirements-train.txt
    python train_brevitas.py    # writes digits_brevitas.onnx and digits_test.npz, half a minute

Weights are signed, narrow and scaled per output channel, activations unsigned and scaled per
tensor; both have 4 bits, the image and the classifier's weights 8.
"""

from __future__ import annotations

import logging

import brevitas.nn as qnn
import torch
from brevitas.export import export_qonnx
from brevitas.quant import Int8WeightPerChannelFloat, Uint8ActPerTensorFloat
from digits import FOLDER, accuracy, load_split, make_deterministic, save_test_set, train
from torch import Tensor, nn

_log = logging.getLogger(__name__)

OUTPUT = "digits_brevitas.onnx"
BITS = 4
# 255 steps of 1/256: pixels are multiples of 1/16, so none of them lies on a rounding tie.
PIXEL_MAX = 255 / 256


def conv_block(inputs: int, outputs: int, kernel: int, *, groups: int = 1) -> nn.Sequential:
    """Return a quantized convolution of unchanged image size, its normalization and activation."""
    return nn.Sequential(
        qnn.QuantConv2d(
            inputs,
            outputs,
            kernel,
            padding=kernel // 2,
            groups=groups,
            bias=False,
            weight_quant=Int8WeightPerChannelFloat,
            weight_bit_width=BITS,
        ),
        nn.BatchNorm2d(outputs),
        qnn.QuantReLU(act_quant=Uint8ActPerTensorFloat, bit_width=BITS),
    )


class DigitsNet(nn.Module):
    """Four convolutions (one depthwise), 7,728 weights: ``[n, 1, 8, 8]`` to scores ``[n, 10]``."""

    def __init__(self) -> None:
        super().__init__()
        self.pixels = qnn.QuantIdentity(
            act_quant=Uint8ActPerTensorFloat,
            bit_width=8,
            scaling_impl_type="const",
            min_val=0.0,
            max_val=PIXEL_MAX,
        )
        self.features = nn.Sequential(
            conv_block(1, 16, 3),
            conv_block(16, 32, 3),
            nn.MaxPool2d(2),
            conv_block(32, 32, 3, groups=32),
            conv_block(32, 64, 1),
            nn.AvgPool2d(4),
        )
        self.classifier = qnn.QuantLinear(
            64, 10, bias=True, weight_quant=Int8WeightPerChannelFloat, weight_bit_width=8
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return one score per digit."""
        scores: Tensor = self.classifier(self.features(self.pixels(x)).flatten(1))
        return scores


def main() -> None:
    """Train, report the held-out accuracy, export."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    make_deterministic()
    training, held_out = load_split()
    save_test_set(held_out)

    network = DigitsNet()
    train(network, training, epochs=40, learning_rate=5e-3)
    _log.info("held-out accuracy %.4f", accuracy(network, held_out))

    export_qonnx(
        network,
        args=torch.zeros(1, 1, 8, 8),
        export_path=str(FOLDER / OUTPUT),
        input_names=["x"],
        output_names=["scores"],
        dynamic_axes={"x": {0: "n"}, "scores": {0: "n"}},
        dynamo=False,
    )


if __name__ == "__main__":
    main()
