"""Running the command line in the process of the test, on small models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.cli.main import main


class Outcome(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def talk(self) -> str:
        """What is on stderr besides the advice on what to do next."""
        lines = self.err.splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("next: "))

    @property
    def error(self) -> str:
        """The one line that tells what is wrong; no traceback goes with it."""
        assert "Traceback" not in self.err
        (line,) = [line for line in self.err.splitlines() if line.startswith("error: ")]
        return line


Qgraph = Callable[..., Outcome]


@pytest.fixture
def qgraph(capsys: pytest.CaptureFixture[str]) -> Qgraph:
    """``qgraph("convert", path, "-o", out)``: what the command returns and prints."""

    def run(*arguments: object) -> Outcome:
        status = main([str(argument) for argument in arguments])
        return Outcome(status, *capsys.readouterr())

    return run


QUANT = """
    <ir_version: 10, opset_import: ["": 20, "qonnx.custom_op.general": 2]>
    net (float[N,4] x) => (float[N,3] y)
    <float[3,4] w = {0.5, -1, 1.5, 2, 0, 1, 2.5, -2, -0.5, 3, 1, 0.5}, float s = {0.5},
     float z = {0}, float b = {4}> {
        [act] a = qonnx.custom_op.general.Quant
            <signed = 1, narrow = 0, rounding_mode = "ROUND"> (x, s, z, b)
        [weight] q = qonnx.custom_op.general.Quant
            <signed = 1, narrow = 1, rounding_mode = "ROUND"> (w, s, z, b)
        t = Transpose <perm = [1, 0]> (q)
        y = MatMul (a, t)
    }"""
"""A linear layer with two quantizers, ``act`` of the data and ``weight`` of the weight."""


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """``write(text, w=array)``: the file of a model given as text.

    Arrays take the place of initializers, for numbers that the text cannot say.
    """

    def save(text: str, name: str = "model.onnx", **initializers: np.ndarray) -> Path:
        model = ir.from_onnx_text(text)
        for key, array in initializers.items():
            model.graph.initializers[key].const_value = ir.tensor(array, name=key)
        ir.save(model, tmp_path / name)
        return tmp_path / name

    return save


@pytest.fixture
def model(write: Write) -> Path:
    """The file of a small model with two quantizers."""
    return write(QUANT)


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[], set[str]]:
    """``folder()``: the names of all files in the folder of the test, hidden ones included."""
    return lambda: {entry.name for entry in tmp_path.iterdir()}


@pytest.fixture
def read_json() -> Callable[[Path], Any]:
    """``read_json(path)``: the content of a JSON file, which has no NaN and no infinity."""

    def refuse(constant: str) -> float:
        raise ValueError(constant)

    return lambda path: json.loads(path.read_text(), parse_constant=refuse)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """``terminal(width)``: from now on, stdout and stderr are a terminal of so many columns."""

    def pretend(width: int) -> None:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)

    return pretend
