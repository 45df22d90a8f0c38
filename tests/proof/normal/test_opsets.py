"""One operator at two opsets is one function; where the meaning changed it is not."""

from __future__ import annotations

import pytest

from tests.proof.normal.conftest import is_one, pairs, parse

EQUAL, MISSES = pairs("opsets_equal.txt"), pairs("opsets_near_misses.txt")


@pytest.mark.parametrize("name", EQUAL)
def test_an_operator_at_two_opsets_is_proved(name):
    opset, ours, theirs = EQUAL[name]
    assert is_one(parse(ours, int(opset)), parse(theirs))
    assert is_one(parse(theirs), parse(ours, int(opset)))


@pytest.mark.parametrize("name", MISSES)
def test_another_meaning_is_not_proved(name):
    opset, ours, theirs = MISSES[name]
    assert not is_one(parse(ours, int(opset)), parse(theirs))
