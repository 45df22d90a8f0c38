"""Fixtures for everything that several test modules need."""

from __future__ import annotations

from pathlib import Path

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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with the argument ``model_name`` runs for every real model."""
    if "model_name" in metafunc.fixturenames:
        metafunc.parametrize("model_name", REAL_MODELS)
