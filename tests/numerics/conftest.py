"""Inputs that matter, and the reader of the golden vectors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

Float32 = npt.NDArray[np.float32]
Case = tuple[dict[str, Any], Float32, Float32]


def with_neighbours(values: npt.ArrayLike) -> Float32:
    """Each value, the float32 numbers beside it, and all of them negated."""
    x = np.asarray(values, np.float32)
    with np.errstate(over="ignore"):
        beside = np.nextafter(x, np.float32(0)), np.nextafter(x, np.float32(np.inf))
    x = np.concatenate([x, *beside])
    return np.concatenate([x, -x])


@pytest.fixture(scope="session")
def finite() -> Float32:
    """Every binade with its middle and their neighbours, both zeros, extremes, random patterns."""
    powers = np.ldexp(np.float32(1), np.arange(-149, 128))
    edges = with_neighbours(np.concatenate([powers, 1.5 * powers[1:], [np.finfo(np.float32).max]]))
    patterns = np.random.default_rng(1).integers(0, 1 << 32, 20_000, dtype=np.uint32)
    x = np.concatenate([edges, np.float32([0.0, -0.0]), patterns.view(np.float32)])
    return x[np.isfinite(x)]


@pytest.fixture(scope="session")
def specials() -> Float32:
    """Infinities, and NaN of both signs, quiet and signalling."""
    bits = [0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001]
    return np.array(bits, np.uint32).view(np.float32)


@pytest.fixture
def golden_cases(golden: Path) -> Callable[[str], Iterator[Case]]:
    """Reader of a golden file: parameters, inputs and expected outputs of each case."""

    def read(name: str) -> Iterator[Case]:
        with np.load(golden / name) as data:
            lines = bytes(data["params"]).decode().splitlines()
            for i, line in enumerate(lines):
                params = json.loads(line)
                x = data["x"][data["xo"][i] : data["xo"][i + 1]].reshape(params["xs"])
                y = data["y"][data["yo"][i] : data["yo"][i + 1]].reshape(params["ys"])
                yield params, x, y

    return read
