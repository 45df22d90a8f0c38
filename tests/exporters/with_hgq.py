"""Exports of HGQ2, a quantizer for Keras, by Keras' own ONNX export.

``KERAS_BACKEND=torch python -m tests.exporters.with_hgq FOLDER hgq``
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
from hgq.config import QuantizerConfigScope
from hgq.layers import QConv2D, QDense

from tests.exporters.networks import samples
from tests.exporters.running import run


def _model(name: str) -> Any:
    keras.utils.set_random_seed(1)
    if name == "mlp":
        layers = [QDense(32, activation="relu"), QDense(10)]
        shape: tuple[int, ...] = (64,)
    else:
        layers = [QConv2D(8, 3, activation="relu"), keras.layers.Flatten(), QDense(10)]
        shape = (8, 8, 1)
    model = keras.Sequential([keras.Input(shape, batch_size=1), *layers])
    model(np.concatenate([x.reshape(1, *shape) for x in samples(name)][:1]))
    return model


def _export(name: str, path: Path) -> None:
    _model(name).export(str(path), format="onnx", verbose=False)


def _saturated(rounding: str) -> Any:
    def export(name: str, path: Path) -> None:
        with QuantizerConfigScope(place="all", overflow_mode="SAT", round_mode=rounding):
            model = _model(name)
        model.export(str(path), format="onnx", verbose=False)

    return export


ALL = ("mlp", "cnn")
EXPORTS = {
    "wrap": (_export, ALL),
    "saturated": (_saturated("RND"), ALL),
    "saturated_even": (_saturated("RND_CONV"), ALL),
    "saturated_floor": (_saturated("TRN"), ALL),
}

if __name__ == "__main__":
    run(EXPORTS, ("HGQ2", "keras", "onnx"))
