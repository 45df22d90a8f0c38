"""Train a network on the digits, quantize it with NNCF and export it with FakeQuantize nodes.

    pip install -r requirements-train.txt
    python train_nncf.py    # writes digits_nncf.onnx and digits_test.npz, half a minute

Quantizers are symmetric, per output channel for weights and per tensor for activations. All have 8
bits, except the weights between the first and the last layer, which get 4 and a few epochs of
training to adapt. NNCF compiles an extension at its first use, for which it needs a C++ compiler.
"""

from __future__ import annotations

import logging

import nncf
import torch
from digits import FOLDER, Split, accuracy, load_split, make_deterministic, save_test_set, train
from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters, OverflowFix
from nncf.torch.function_hook.wrapper import get_hook_storage
from nncf.torch.quantization.layers import SymmetricQuantizer
from torch import Tensor, nn

_log = logging.getLogger(__name__)

OUTPUT = "digits_nncf.onnx"
BITS = 4
INNER_WEIGHTS = ("pre_hooks.down/", "pre_hooks.branch/")
CALIBRATION_IMAGES = 300


def conv_block(
    inputs: int,
    outputs: int,
    kernel: int,
    activation: nn.Module,
    *,
    stride: int = 1,
    groups: int = 1,
) -> nn.Sequential:
    """Return a convolution with its normalization and activation."""
    return nn.Sequential(
        nn.Conv2d(
            inputs,
            outputs,
            kernel,
            stride=stride,
            padding=kernel // 2,
            groups=groups,
            bias=False,
        ),
        nn.BatchNorm2d(outputs),
        activation,
    )


class DigitsNet(nn.Module):
    """Four convolutions with a shortcut, 6,384 weights: ``[n, 1, 8, 8]`` to scores ``[n, 10]``."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_block(1, 16, 3, nn.ReLU())
        self.down = conv_block(16, 32, 3, nn.LeakyReLU(0.1), stride=2)
        self.branch = nn.Sequential(
            conv_block(32, 32, 3, nn.ReLU(), groups=32),
            conv_block(32, 32, 1, nn.Identity()),
        )
        self.classifier = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return one score per digit."""
        features = self.down(self.stem(x))
        features = torch.relu(features + self.branch(features))
        scores: Tensor = self.classifier(features.mean(dim=(2, 3)))
        return scores


def quantize(network: nn.Module, calibration: Split) -> nn.Module:
    """Insert 8-bit quantizers whose ranges come from the calibration images."""
    return nncf.quantize(
        network,
        nncf.Dataset([image[None] for image in calibration.x[:CALIBRATION_IMAGES]]),
        preset=nncf.QuantizationPreset.PERFORMANCE,
        # The fix doubles the range of some weights, which puts the largest on rounding ties.
        advanced_parameters=AdvancedQuantizationParameters(overflow_fix=OverflowFix.DISABLE),
    )


def narrow_inner_weights(network: nn.Module) -> None:
    """Reduce the weight quantizers between the first and the last layer to 4 bits.

    ``nncf.quantize`` refuses widths other than 8 for its target devices, the quantizers do not.
    """
    for name, hook in get_hook_storage(network).named_hooks():
        if isinstance(hook, SymmetricQuantizer) and name.startswith(INNER_WEIGHTS):
            hook.num_bits = BITS
            hook.set_levels()


def main() -> None:
    """Train, quantize, adapt, report the held-out accuracies, export."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    make_deterministic()
    training, held_out = load_split()
    save_test_set(held_out)

    network: nn.Module = DigitsNet()
    train(network, training, epochs=30, learning_rate=5e-3)
    _log.info("held-out accuracy %.4f as float32", accuracy(network, held_out))

    network = quantize(network, training)
    narrow_inner_weights(network)
    train(network, training, epochs=10, learning_rate=1e-3)
    _log.info("held-out accuracy %.4f quantized", accuracy(network, held_out))

    torch.onnx.export(
        network,
        (torch.zeros(1, 1, 8, 8),),
        str(FOLDER / OUTPUT),
        input_names=["x"],
        output_names=["scores"],
        dynamic_axes={"x": {0: "n"}, "scores": {0: "n"}},
        dynamo=False,
    )


if __name__ == "__main__":
    main()
