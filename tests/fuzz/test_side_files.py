"""No damaged file beside a model ends a command in another way than with a message."""

from __future__ import annotations

import pytest

from tests.fuzz.side_files import prepare, runs


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(4))
def test_many_damaged_files(seed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare()
    assert not [run for run in runs(seed, 200) if run.fault is not None]
