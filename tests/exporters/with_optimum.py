"""Exports of Optimum Quanto by way of the dynamo exporter of torch.

``python -m tests.exporters.with_optimum FOLDER optimum``
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from optimum.quanto import freeze, qint4, qint8, quantize

from tests.exporters.networks import SHAPES, network
from tests.exporters.running import run


def _export(weights: Any) -> Any:
    def export(name: str, path: Path) -> None:
        model = network(name)
        quantize(model, weights=weights)
        freeze(model)
        torch.onnx.export(
            model, (torch.zeros(SHAPES[name]),), str(path), dynamo=True, external_data=False
        )

    return export


EXPORTS = {"int8": (_export(qint8), ("mlp", "cnn")), "int4": (_export(qint4), ("mlp",))}

if __name__ == "__main__":
    run(EXPORTS, ("optimum-quanto", "torch", "onnx"))
