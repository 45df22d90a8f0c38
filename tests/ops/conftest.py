"""Golden cases, and definitions evaluated on arrays."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qgraph.numerics.primitives import NUMPY

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """One case of a golden file: parameters, input, and what the oracle made of it."""

    parameters: dict[str, Any]
    x: Float32
    y: Float32

    def __getitem__(self, name: str) -> Any:
        return self.parameters[name]

    def array(self, name: str) -> Float32:
        return np.asarray(self.parameters[name], np.float32)

    def check(self, result: npt.NDArray[Any]) -> None:
        """Compare as the case says: by bits, by value, or within a step."""
        assert result.shape == self.y.shape, self.parameters
        assert result.dtype == np.float32
        match self["cmp"]:
            case "bits":
                wrong = bits(result) != bits(self.y)
            case "value":
                wrong = ~((result == self.y) | (np.isnan(result) & np.isnan(self.y)))
            case "one_step":
                wrong = ~(np.abs(result - self.y) < 1.01 * self["step"])
        assert not wrong.any(), (
            self.parameters,
            self.x[wrong][:3],
            result[wrong][:3],
            self.y[wrong][:3],
        )


def bits(values: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Bit patterns, all NaN alike."""
    values = np.asarray(values, np.float32)
    return np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32))


class NumpyOps:
    """Traces a definition straight into numbers."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*operands: Any, **attributes: Any) -> Any:
            arrays = [
                np.asarray(o, bool if isinstance(o, bool) else np.float32)
                if isinstance(o, bool | int | float)
                else o
                for o in operands
            ]
            return np.asarray(NUMPY[name](*arrays, **attributes))

        return call


@pytest.fixture
def defined() -> Callable[..., Float32]:
    """Evaluate ``define(op, *arrays, **arguments)``."""

    def evaluate(define: Callable[..., Any], *arrays: Any, **arguments: Any) -> Float32:
        with np.errstate(all="ignore"):
            result: Float32 = np.asarray(define(NumpyOps(), *arrays, **arguments))
        return result

    return evaluate


@pytest.fixture
def same_bits() -> Callable[..., None]:
    """Assert that two float32 arrays hold the same bits, NaN apart."""

    def check(left: Float32, right: Float32, x: Float32) -> None:
        assert left.shape == right.shape
        wrong = bits(left) != bits(right)
        data = np.broadcast_to(x, left.shape)
        assert not wrong.any(), (data[wrong][:5], left[wrong][:5], right[wrong][:5])

    return check


@pytest.fixture
def cases(golden: Path) -> Callable[[str], list[Case]]:
    """Read all cases of a golden file; their number is that of the manifest."""

    def read(name: str) -> list[Case]:
        with np.load(golden / name) as file:
            arrays = {key: file[key] for key in file.files}
        lines = bytes(arrays["params"]).decode().splitlines()
        found = []
        for i, line in enumerate(lines):
            parameters = json.loads(line)
            x = arrays["x"][arrays["xo"][i] : arrays["xo"][i + 1]].reshape(parameters["xs"])
            y = arrays["y"][arrays["yo"][i] : arrays["yo"][i + 1]].reshape(parameters["ys"])
            found.append(Case(parameters, x, y))
        expected = json.loads((golden / "manifest.json").read_text())["files"][name]
        assert len(found) == expected["cases"]
        assert sum(case.x.size for case in found) == expected["values"]
        return found

    return read


def hostile(scale: float = 1.0, zero: float = 0.0, count: int = 40) -> Float32:
    """Return ties of the grid with their neighbours, and all special values."""
    s = np.float32(scale)
    ties = (np.arange(-count, count + 1, dtype=np.float32) / np.float32(2) - np.float32(zero)) * s
    powers = np.ldexp(np.float32(1), np.arange(-149, 128)).astype(np.float32)
    special = np.array(
        [0.0, np.inf, np.nan, np.finfo(np.float32).max, 0.49999997, 8388609, 2**31, 1e10],
        np.float32,
    )
    positive = np.concatenate([ties, powers, special, powers * s, special * s])
    with np.errstate(over="ignore"):
        near = [np.nextafter(positive, np.float32(side)) for side in (np.inf, -np.inf)]
    values = np.concatenate([positive, *near])
    return np.concatenate([values, -values])


@pytest.fixture
def hostile_inputs() -> Callable[..., Float32]:
    """The inputs on which two quantizers differ if they differ at all; see :func:`hostile`."""

    def make(scale: float = 1.0, zero: float = 0.0) -> Float32:
        with np.errstate(all="ignore"):
            return hostile(scale, zero)

    return make
