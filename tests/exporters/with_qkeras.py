"""Exports of QKeras by tf2onnx.

``TF_USE_LEGACY_KERAS=1 python -m tests.exporters.with_qkeras FOLDER qkeras``
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf
import tf2onnx
import tf_keras as keras
from qkeras import QActivation, QConv2D, QDense, quantized_bits, quantized_relu

from tests.exporters.running import run

SHAPES = {"mlp": (64,), "cnn": (8, 8, 1)}


def _quantized(bits: int) -> Any:
    def export(name: str, path: Path) -> None:
        keras.utils.set_random_seed(1)

        def weights() -> dict[str, Any]:
            rounds = quantized_bits(bits, 0, alpha=1)
            return {"kernel_quantizer": rounds, "bias_quantizer": quantized_bits(8, 3)}

        data = keras.Input(SHAPES[name])
        y = QActivation(quantized_bits(8, 2))(data)
        y = QDense(32, **weights())(y) if name == "mlp" else QConv2D(8, 3, **weights())(y)
        y = QActivation(quantized_relu(bits, 2))(y)
        y = QDense(10, **weights())(keras.layers.Flatten()(y))
        signature = [tf.TensorSpec((1, *SHAPES[name]), tf.float32, name="x")]
        model = keras.Model(data, y)
        tf2onnx.convert.from_keras(model, signature, opset=17, output_path=str(path))

    return export


ALL = tuple(SHAPES)
EXPORTS = {"bits4": (_quantized(4), ALL), "bits8": (_quantized(8), ALL)}

if __name__ == "__main__":
    run(EXPORTS, ("QKeras", "tf2onnx", "tensorflow-cpu", "onnx"))
