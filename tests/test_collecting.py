"""The garbage collector is as it was, whatever happens."""

from __future__ import annotations

import gc

import pytest

from qgraph.collecting import seldom


def test_the_threshold_is_raised_and_restored():
    before = gc.get_threshold()
    with seldom():
        assert gc.get_threshold()[0] >= 200_000
    assert gc.get_threshold() == before
    with pytest.raises(KeyError), seldom():
        raise KeyError
    assert gc.get_threshold() == before


def test_a_collector_that_was_switched_off_stays_off():
    before = gc.get_threshold()
    gc.disable()
    try:
        with seldom():
            assert not gc.isenabled()
            assert gc.get_threshold() == before
    finally:
        gc.enable()
