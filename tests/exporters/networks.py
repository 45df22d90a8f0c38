"""Small networks with random weights, and their data, that every exporter is given.

``python -m tests.exporters.networks FOLDER`` writes them as float ONNX files.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

SHAPES = {
    "mlp": (1, 64),
    "cnn": (1, 1, 8, 8),
    "depthwise": (1, 4, 8, 8),
    "residual": (1, 4, 8, 8),
    "transformer": (1, 8, 32),
}
"""Shape of the input of each network that takes numbers."""

TOKENS = {"language": (1, 8)}
"""Shape of the input of each network that takes whole numbers below 64."""


class Residual(nn.Module):
    """Two convolutions with a sum of their input, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, 8, 3, padding=1)
        self.first = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.head = nn.Linear(8 * 64, 10)

    def forward(self, x: Any) -> Any:
        """Return the scores."""
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.second(self.first(x)))
        return self.head(x.flatten(1))


class Transformer(nn.Module):
    """One block: attention of two heads, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(32), nn.LayerNorm(32)])
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down, self.head = nn.Linear(32, 64), nn.Linear(64, 32), nn.Linear(256, 10)

    def forward(self, x: Any) -> Any:
        """Return the scores."""
        parts = self.qkv(self.norms[0](x)).reshape(1, 8, 3, 2, 16).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(parts[0] @ parts[1].transpose(-1, -2) / 4.0, dim=-1)
        x = x + self.out((weights @ parts[2]).transpose(1, 2).reshape(1, 8, 32))
        x = x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))
        return self.head(x.flatten(1))


class Language(nn.Module):
    """An embedding, a gated block and the scores of all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(64, 32), nn.LayerNorm(32)
        self.up, self.gate = nn.Linear(32, 64, bias=False), nn.Linear(32, 64, bias=False)
        self.down, self.head = nn.Linear(64, 32, bias=False), nn.Linear(32, 64, bias=False)

    def forward(self, tokens: Any) -> Any:
        """Return the scores."""
        x = self.tokens(tokens)
        h = self.norm(x)
        x = x + self.down(torch.sigmoid(self.gate(h)) * self.up(h))
        return self.head(x)


def network(name: str) -> nn.Module:
    """Return a network whose weights are always the same."""
    torch.manual_seed(sorted(SHAPES).index(name) if name in SHAPES else len(SHAPES))
    made: dict[str, nn.Module] = {
        "mlp": nn.Sequential(
            nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)
        ),
        "cnn": nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()),
            nn.Linear(64, 10),
        ),
        "depthwise": nn.Sequential(
            *(nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8), nn.ReLU6()),
            *(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8), nn.ReLU6()),
            *(nn.Conv2d(8, 16, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)),
        ),
        "residual": Residual(),
        "transformer": Transformer(),
        "language": Language(),
    }
    return made[name].eval()


def samples(name: str, number: int = 8) -> list[np.ndarray[Any, Any]]:
    """Return inputs to calibrate with."""
    random = np.random.default_rng(0)
    if name in TOKENS:
        return [random.integers(0, 64, TOKENS[name]) for _ in range(number)]
    return [random.normal(size=SHAPES[name]).astype(np.float32) for _ in range(number)]


def write_float(name: str, path: Path, opset: int = 17) -> None:
    """Write a network as a float ONNX file."""
    data = torch.from_numpy(samples(name)[0])
    torch.onnx.export(
        network(name),
        (data,),
        str(path),
        dynamo=False,
        opset_version=opset,
        input_names=["x"],
        output_names=["y"],
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for each in (*SHAPES, *TOKENS):
        folder.mkdir(parents=True, exist_ok=True)
        write_float(each, folder / f"{each}.onnx")
