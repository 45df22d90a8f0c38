"""Fixtures for everything that several test modules need."""

from __future__ import annotations

import os

# One thread for each worker; the libraries read this when they are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of golden vectors and real models, which is not part of the repository."""
    if not SHARED.is_dir():
        pytest.skip("the folder of golden vectors and models beside the repository is absent")
    return SHARED


@pytest.fixture(scope="session")
def golden(shared: Path) -> Path:
    return shared / "golden"


@pytest.fixture(scope="session")
def models(shared: Path) -> Path:
    return shared / "models"


REAL_MODELS = [
    "TFC_1W2A",
    "brev_cnn_asym8",
    "brev_cnn_fp8e4m3",
    "brev_cnn_w4a4",
    "brev_cnn_w4a4_dynamo",
    "brev_cnn_w4a4_qcdq",
    "brev_cnn_w4a4_trunc",
    "brev_mlp_fp4",
    "brev_mlp_w1a2_bipolar",
    "brevmx_mlp_mxfp4w",
    "kwsmlp_w3a3",
    "nncf_cnn_int8_sym",
    "nncf_cnn_w4a4",
    "nncf_mlp_int8_mixed",
    "nncfonnx_cnn_qdq_sym",
    "qkeras_jettagging",
]


@pytest.fixture(scope="session")
def real_models(models: Path) -> dict[str, Path]:
    """The files of all real models, by name."""
    return {name: models / f"{name}.onnx" for name in REAL_MODELS}


_FLIPPED_ROWS = 0.05
_FLIPPED_CHANGE = 0.1


def _assert_same_rows(found: npt.NDArray[Any], expected: npt.NDArray[Any], *, atol: float) -> None:
    """Compare what a quantized network makes of each sample, whatever order its sums are added in.

    An order of additions may carry a sum over a tie of the next quantizer. That changes a code, so
    the outputs of that sample differ by more than roundings: in one row of twenty at most, and by a
    tenth of the largest output at most.
    """
    assert found.shape == expected.shape
    apart = np.abs(found - expected).reshape(len(expected), -1).max(axis=1)
    flipped = int(np.count_nonzero(~(apart <= atol)))
    assert flipped <= _FLIPPED_ROWS * len(expected), f"{flipped} rows differ by up to {apart.max()}"
    assert apart.max() <= max(atol, _FLIPPED_CHANGE * float(np.abs(expected).max()))


@pytest.fixture(scope="session")
def assert_same_rows() -> Callable[..., None]:
    """``assert_same_rows(found, expected, atol=...)``: see :func:`_assert_same_rows`."""
    return _assert_same_rows


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with the argument ``model_name`` runs for every real model."""
    if "model_name" in metafunc.fixturenames:
        metafunc.parametrize("model_name", REAL_MODELS)
