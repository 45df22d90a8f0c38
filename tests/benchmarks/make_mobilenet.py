"""Write a MobileNet-v1 as Brevitas would export it: 4-bit weights and activations, 224x224, QONNX.

    python make_mobilenet.py OUT.onnx [--width 1.0] [--bits 4] [--trunc] [--seed 0]

27 convolutions and 4.2 million weights at width 1. Weights are random (He), signed, narrow and
scaled per output channel; activations are unsigned and scaled per tensor. The image and the weights
of the first and the last layer have 8 bits. Normalizations and activation scales follow the
statistics of random images, so no layer saturates or dies and the scores depend on the image. The
last bits of these statistics, hence of the file, may differ between machines.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

FloatArray = npt.NDArray[np.float32]

IMAGE = 224
CLASSES = 1000
BITS = 4
OUTER_BITS = 8
QONNX_DOMAIN = "qonnx.custom_op.general"
OPSETS = {"": 20, QONNX_DOMAIN: 2}
IR_VERSION = 9
# (output channels at width 1, stride) of the 13 pairs of a depthwise and a pointwise convolution.
PAIRS = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)]
PAIRS += [(512, 1)] * 5 + [(1024, 2), (1024, 1)]

# Statistics come from fewer pixels than the network is made for: half the side, a batch of two.
CALIBRATION_SHAPE = (2, 3, 128, 128)
# Steps of 1/32 let 8 signed bits span [-4, 4), that of an image normalized to unit variance.
IMAGE_SCALE = 2.0**-5


def fake_quantize(x: FloatArray, scale: FloatArray, low: int, high: int) -> FloatArray:
    """Return ``clip(round_half_even(x / scale), low, high) * scale``."""
    codes: FloatArray = np.clip(np.rint(x / scale), low, high)
    return codes * scale


def convolve(x: FloatArray, w: FloatArray, *, stride: int, groups: int) -> FloatArray:
    """Convolve ``[n, c, h, w]`` with ``[o, c / groups, k, k]``, groups 1 or ``o``, zero padded."""
    kernel = w.shape[2]
    pad = kernel // 2
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    height, width = (-(-size // stride) for size in x.shape[2:])
    y = np.zeros((x.shape[0], w.shape[0], height, width), np.float32)
    for row in range(kernel):
        for column in range(kernel):
            window = padded[
                :,
                :,
                row : row + stride * (height - 1) + 1 : stride,
                column : column + stride * (width - 1) + 1 : stride,
            ]
            if groups == 1:
                y += np.einsum("oc,nchw->nohw", w[:, :, row, column], window, optimize=True)
            else:
                y += w[:, 0, row, column][:, None, None] * window
    return y


def random_images(rng: np.random.Generator) -> FloatArray:
    """Return images of unit variance: a coarse pattern with fine noise upon it."""
    n, channels, height, width = CALIBRATION_SHAPE
    coarse = rng.normal(size=(n, channels, height // 16, width // 16))
    images = np.kron(coarse, np.ones((16, 16))) + rng.normal(size=CALIBRATION_SHAPE)
    return np.asarray(images / np.sqrt(2), np.float32)


@dataclass
class Builder:
    """Appends layers to a graph and carries the calibration images through them."""

    rng: np.random.Generator
    value: ir.Value
    activations: FloatArray
    bits: int = BITS
    nodes: list[ir.Node] = field(default_factory=list)
    initializers: list[ir.Value] = field(default_factory=list)
    scalars: dict[float, ir.Value] = field(default_factory=dict)

    def constant(self, name: str, array: FloatArray) -> ir.Value:
        """Add an initializer."""
        value = ir.Value(
            name=name,
            shape=ir.Shape(array.shape),
            type=ir.TensorType(ir.DataType.FLOAT),
            const_value=ir.tensor(array, name=name),
        )
        self.initializers.append(value)
        return value

    def scalar(self, number: float) -> ir.Value:
        """Return the scalar initializer all quantizers share, as bit widths and zero points are."""
        if number not in self.scalars:
            name = f"scalar_{len(self.scalars)}"
            self.scalars[number] = self.constant(name, np.array(number, np.float32))
        return self.scalars[number]

    def append(
        self,
        op_type: str,
        inputs: list[ir.Value],
        name: str,
        shape: tuple[int, ...],
        *,
        domain: str = "",
        **attributes: float | str | list[int],
    ) -> ir.Value:
        """Add a node and return its float32 output of the given shape."""
        output = ir.Value(
            name=f"{name}_output_0", shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT)
        )
        self.nodes.append(
            ir.node(op_type, inputs, attributes, domain=domain, outputs=[output], name=name)
        )
        return output

    def quantize(
        self, x: ir.Value, scale: FloatArray, bits: int, name: str, *, signed: bool, narrow: bool
    ) -> ir.Value:
        """Add a Quant with zero point 0."""
        return self.append(
            "Quant",
            [x, self.constant(f"{name}_scale", scale), self.scalar(0.0), self.scalar(bits)],
            name,
            _shape(x),
            domain=QONNX_DOMAIN,
            signed=int(signed),
            narrow=int(narrow),
            rounding_mode="ROUND",
        )

    def quantized_weight(
        self, shape: tuple[int, ...], bits: int, name: str
    ) -> tuple[ir.Value, FloatArray]:
        """Add a random weight and its Quant; the largest of each channel gets the top code."""
        fan_in = int(np.prod(shape[1:]))
        weight = self.rng.normal(0, np.sqrt(2 / fan_in), shape).astype(np.float32)
        top = 2 ** (bits - 1) - 1
        per_channel = tuple(range(1, len(shape)))
        scale = np.abs(weight).max(axis=per_channel, keepdims=True) / np.float32(top)
        value = self.quantize(
            self.constant(f"{name}.weight", weight),
            scale,
            bits,
            f"{name}.weight_quant",
            signed=True,
            narrow=True,
        )
        return value, fake_quantize(weight, scale, -top, top)

    def image_quantizer(self) -> None:
        """Quantize the image to 8 signed bits."""
        scale = np.array(IMAGE_SCALE, np.float32)
        self.value = self.quantize(
            self.value, scale, OUTER_BITS, "image_quant", signed=True, narrow=False
        )
        self.activations = fake_quantize(self.activations, scale, -128, 127)

    def conv_block(
        self, outputs: int, kernel: int, name: str, *, stride: int, depthwise: bool, bits: int
    ) -> None:
        """Add convolution, normalization, Relu and activation quantizer."""
        inputs = self.activations.shape[1]
        groups = inputs if depthwise else 1
        weight, weight_array = self.quantized_weight(
            (outputs, inputs // groups, kernel, kernel), bits, f"{name}.conv"
        )
        side = -(-_shape(self.value)[-1] // stride)
        shape = (1, outputs, side, side)
        y = self.append(
            "Conv",
            [self.value, weight],
            f"{name}.conv",
            shape,
            dilations=[1, 1],
            group=groups,
            kernel_shape=[kernel, kernel],
            pads=[kernel // 2] * 4,
            strides=[stride, stride],
        )
        z = convolve(self.activations, weight_array, stride=stride, groups=groups)
        y, z = self._normalize(y, z, name)
        y = self.append("Relu", [y], f"{name}.relu", shape)
        z = np.maximum(z, 0)
        top = 2**self.bits - 1
        scale = np.array(np.quantile(z, 0.999) / top, np.float32)
        self.value = self.quantize(
            y, scale, self.bits, f"{name}.act_quant", signed=False, narrow=False
        )
        self.activations = fake_quantize(z, scale, 0, top)

    def _normalize(self, y: ir.Value, z: FloatArray, name: str) -> tuple[ir.Value, FloatArray]:
        """Add a BatchNormalization that maps the calibration statistics to about unit variance."""
        channels = z.shape[1]
        gamma = self.rng.uniform(0.7, 1.3, (channels,)).astype(np.float32)
        beta = self.rng.normal(0.1, 0.3, (channels,)).astype(np.float32)
        mean: FloatArray = z.mean(axis=(0, 2, 3))
        variance: FloatArray = z.var(axis=(0, 2, 3))
        named = {"weight": gamma, "bias": beta, "running_mean": mean, "running_var": variance}
        parameters = [self.constant(f"{name}.bn.{key}", value) for key, value in named.items()]
        epsilon = 1e-5
        out = self.append(
            "BatchNormalization",
            [y, *parameters],
            f"{name}.bn",
            _shape(y),
            epsilon=epsilon,
            momentum=0.9,
        )
        factor: FloatArray = np.asarray(gamma / np.sqrt(variance + epsilon), np.float32)
        offset: FloatArray = beta - mean * factor
        return out, z * factor[:, None, None] + offset[:, None, None]

    def pool(self, *, trunc: bool) -> None:
        """Average each channel; optionally drop the low bits of the sum, as TruncAvgPool2d does."""
        side = _shape(self.value)[-1]
        shape = (1, self.activations.shape[1], 1, 1)
        scale = self.nodes[-1].inputs[1]
        self.value = self.append(
            "AveragePool",
            [self.value],
            "pool",
            shape,
            ceil_mode=0,
            count_include_pad=1,
            kernel_shape=[side, side],
            pads=[0] * 4,
            strides=[side, side],
        )
        if not trunc:
            return
        assert scale is not None
        assert scale.const_value is not None
        sum_bits = int(np.ceil(np.log2((2**self.bits - 1) * side * side)))
        mean_scale = np.array(scale.const_value.numpy() / (side * side), np.float32)
        self.value = self.append(
            "Trunc",
            [
                self.value,
                self.constant("pool_scale", mean_scale),
                self.scalar(0.0),
                self.scalar(sum_bits),
                scale,
                self.scalar(self.bits),
            ],
            "pool_trunc",
            shape,
            domain=QONNX_DOMAIN,
            signed=0,
            narrow=0,
            rounding_mode="floor",
        )

    def classifier(self) -> None:
        """Add the fully connected layer of 8-bit weights and a bias."""
        features = self.activations.shape[1]
        flat = self.append("Flatten", [self.value], "flatten", (1, features), axis=1)
        weight, _ = self.quantized_weight((CLASSES, features), OUTER_BITS, "output")
        bias = self.rng.normal(0, 0.1, CLASSES).astype(np.float32)
        self.value = self.append(
            "Gemm",
            [flat, weight, self.constant("output.bias", bias)],
            "output",
            (1, CLASSES),
            alpha=1.0,
            beta=1.0,
            transB=1,
        )


def _shape(value: ir.Value) -> tuple[int, ...]:
    assert value.shape is not None
    return value.shape.numpy()


def make_mobilenet(
    width: float = 1.0, *, trunc: bool = False, seed: int = 0, bits: int = BITS
) -> ir.Model:
    """Return MobileNet-v1, ``image [1, 3, 224, 224]`` to ``scores [1, 1000]``.

    Args:
        width: factor on all channel counts, which are rounded to multiples of 8.
        trunc: end the pooling with a Trunc.
        seed: of weights, normalizations and calibration images.
        bits: of weights and activations between the first and the last layer.
    """
    rng = np.random.default_rng(seed)
    image = ir.Value(
        name="image", shape=ir.Shape((1, 3, IMAGE, IMAGE)), type=ir.TensorType(ir.DataType.FLOAT)
    )
    builder = Builder(rng, image, random_images(rng), bits)
    builder.image_quantizer()

    def channels(count: int) -> int:
        return max(8, round(count * width / 8) * 8)

    builder.conv_block(channels(32), 3, "init_block", stride=2, depthwise=False, bits=OUTER_BITS)
    inputs = channels(32)
    for i, (outputs, stride) in enumerate(PAIRS):
        name = f"block_{i}"
        builder.conv_block(inputs, 3, f"{name}.dw", stride=stride, depthwise=True, bits=bits)
        inputs = channels(outputs)
        builder.conv_block(inputs, 1, f"{name}.pw", stride=1, depthwise=False, bits=bits)
    builder.pool(trunc=trunc)
    builder.classifier()

    graph = ir.Graph(
        [image],
        [builder.value],
        nodes=builder.nodes,
        initializers=builder.initializers,
        opset_imports=OPSETS,
        name=f"mobilenet_v1_{bits}w{bits}a",
    )
    return ir.Model(graph, ir_version=IR_VERSION, producer_name="make_mobilenet")


def main() -> None:
    """Write the model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--width", type=float, default=1.0, help="factor on the channel counts")
    parser.add_argument("--bits", type=int, default=BITS, help="of weights and activations")
    parser.add_argument("--trunc", action="store_true", help="pool with a Trunc, as Brevitas does")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    model = make_mobilenet(options.width, trunc=options.trunc, seed=options.seed, bits=options.bits)
    ir.save(model, options.output)


if __name__ == "__main__":
    main()
