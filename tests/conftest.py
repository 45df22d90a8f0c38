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
