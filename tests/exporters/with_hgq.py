"""Exports of HGQ2, a quantizer for Keras, by Keras' own ONNX export.

``KERAS_BACKEND=torch python -m tests.exporters.with_hgq FOLDER hgq``
"""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
from hgq.layers import QConv2D, QDense

from tests.exporters.networks import samples
from tests.exporters.running import run


def _export(name: str, path: Path) -> None:
    keras.utils.set_random_seed(1)
    if name == "mlp":
        layers = [QDense(32, activation="relu"), QDense(10)]
        shape: tuple[int, ...] = (64,)
    else:
        layers = [QConv2D(8, 3, activation="relu"), keras.layers.Flatten(), QDense(10)]
        shape = (8, 8, 1)
    model = keras.Sequential([keras.Input(shape, batch_size=1), *layers])
    model(np.concatenate([x.reshape(1, *shape) for x in samples(name)][:1]))
    model.export(str(path), format="onnx", verbose=False)


EXPORTS = {"keras_export": (_export, ("mlp", "cnn"))}

if __name__ == "__main__":
    run(EXPORTS, ("HGQ2", "keras", "onnx"))
