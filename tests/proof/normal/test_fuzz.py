"""Random pairs that are equal are proved, and pairs that differ where they are run are not."""

from __future__ import annotations

import numpy as np
import pytest

import qgraph
from qgraph.errors import QGraphError
from tests.proof.normal.conftest import is_one, parse
from tests.proof.normal.fuzz import random_pair
from tests.proof.normal.test_pairs import run
from tests.verify.checking import verify

EQUAL, MISSES = 60, 60


@pytest.mark.cases(fast=0, slow=10)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(EQUAL))
def test_moved_functions_are_proved(seed):
    texts = random_pair(np.random.default_rng(seed), mistake=False)
    ours, theirs = map(parse, texts)
    np.testing.assert_array_equal(run(ours, seed), run(theirs, seed))
    assert is_one(ours, theirs), texts
    if seed < 10:
        found = qgraph.prove(ours, theirs, evidence=True)
        assert verify(found.to_json(), ours, theirs) == "proved"


@pytest.mark.cases(fast=0, slow=30)
@pytest.mark.parametrize("seed", range(MISSES))
def test_what_differs_is_not_proved(seed):
    texts = random_pair(np.random.default_rng(seed), mistake=True)
    ours, theirs = map(parse, texts)
    try:
        results = run(ours, seed), run(theirs, seed)
    except Exception:  # the mistake made a model that cannot run
        return
    differ = results[0].shape != results[1].shape or (results[0] != results[1]).any()
    try:
        assert not (differ and is_one(ours, theirs)), texts
    except QGraphError:
        return
