"""Proofs of whole models, at less effort."""

from __future__ import annotations

import pytest

from qgraph.proof.functions import enumeration

EVERY = 510
"""The blocks of both zeros are among those."""


@pytest.fixture(autouse=True)
def few_inputs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all inputs would be tried one by one, try some of all magnitudes.

    Tests marked ``slow`` or ``exhaustive`` try them all.
    """
    if not any(map(request.node.get_closest_marker, ("slow", "exhaustive"))):
        starts = enumeration._starts()[::EVERY]
        monkeypatch.setattr(enumeration, "_starts", lambda: starts)
