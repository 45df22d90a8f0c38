"""Exports of TensorFlow by tf2onnx: fake quantization, and a TFLite file.

``python -m tests.exporters.with_tf FOLDER tf``
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf2onnx

from tests.exporters.networks import SHAPES, samples
from tests.exporters.running import run

CHANNELS_LAST = {"mlp": (1, 64), "cnn": (1, 8, 8, 1), "depthwise": (1, 8, 8, 4)}


def _function(name: str, *, quantized: bool, bits: int = 8) -> Any:
    random = np.random.default_rng(3)

    def weight(*shape: int) -> Any:
        return tf.constant(random.normal(size=shape).astype(np.float32) / 3)

    shapes = {"mlp": [(64, 32), (32, 10)], "cnn": [(3, 3, 1, 8), (128, 10)]}
    shapes["depthwise"] = [(3, 3, 4, 2), (512, 10)]
    first, second = (weight(*shape) for shape in shapes[name])

    def fake(x: Any, low: float, high: float) -> Any:
        if not quantized:
            return x
        return tf.quantization.fake_quant_with_min_max_vars(x, low, high, bits, bits < 8)

    @tf.function(input_signature=[tf.TensorSpec(CHANNELS_LAST[name], tf.float32, name="x")])
    def compute(x: Any) -> Any:
        x = fake(x, -4.0, 4.0)
        if name == "mlp":
            x = tf.matmul(x, fake(first, -1.5, 1.5))
        elif name == "cnn":
            x = tf.nn.conv2d(x, fake(first, -1.5, 1.5), 2, "SAME")
        else:
            x = tf.nn.depthwise_conv2d(x, fake(first, -1.5, 1.5), [1, 1, 1, 1], "SAME")
        x = fake(tf.nn.relu(x), 0.0, 6.0)
        x = tf.reshape(x, (1, -1))
        return fake(tf.matmul(x, fake(second, -1.5, 1.5)), -8.0, 8.0)

    return compute


def _fake_quant(bits: int) -> Any:
    def export(name: str, path: Path) -> None:
        signature = [tf.TensorSpec(CHANNELS_LAST[name], tf.float32, name="x")]
        compute = _function(name, quantized=True, bits=bits)
        tf2onnx.convert.from_function(compute, signature, opset=17, output_path=str(path))

    return export


def _lite(name: str, path: Path) -> None:
    compute = _function(name, quantized=False)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([compute.get_concrete_function()])
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    shape = CHANNELS_LAST[name]
    converter.representative_dataset = lambda: ([x.reshape(shape)] for x in samples(name))
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    source = path.with_suffix(".tflite")
    source.write_bytes(converter.convert())
    tf2onnx.convert.from_tflite(str(source), opset=17, output_path=str(path))
    source.unlink()


ALL = tuple(name for name in CHANNELS_LAST if name in SHAPES)
EXPORTS = {
    "fake_quant": (_fake_quant(8), ALL),
    "fake_quant4": (_fake_quant(4), ALL),
    "tflite_int8": (_lite, ALL),
}

if __name__ == "__main__":
    run(EXPORTS, ("tf2onnx", "tensorflow-cpu", "onnx"))
