"""Each page has figures, and each figure a measurement that gives it; or there is a reason."""

from __future__ import annotations

import re

import pytest

from qgraph.lint.rule import RULES, explained, page_of_rule
from tests.lint.measured.__main__ import registered
from tests.lint.measured.harness import EXACT

WITHOUT: dict[str, str] = {}
"""Rules without a figure, and why none is possible."""

FIGURES = "**Measured.** "
MEASURED = registered()
A_FIGURE = re.compile(
    r"\d[\d,.]*[ %](?:of \d{2}|times the time|dB|of all)|took \d|by up to \d+ \w", re.IGNORECASE
)


def figures(rule: str) -> str | None:
    found = [each for each in page_of_rule(RULES.find(rule)).paragraphs if each.startswith(FIGURES)]
    return found[0].removeprefix(FIGURES) if found else None


def test_each_rule_has_figures_and_what_measures_them() -> None:
    ids = {rule.id for rule in RULES}
    assert {each for each in ids if figures(each)} == set(MEASURED)
    assert ids - set(MEASURED) == set(WITHOUT)


@pytest.mark.parametrize("rule", sorted(EXACT))
def test_figures_that_need_no_runtime_are_those_of_the_page(rule: str) -> None:
    assert " ".join(MEASURED[rule]().split()) == figures(rule)


def test_a_page_with_figures_says_where_they_come_from() -> None:
    for rule in RULES:
        told = "\n".join(explained(rule))
        assert (f"python -m tests.lint.measured {rule.id}" in told) == (rule.id in MEASURED)
        for paragraph in page_of_rule(rule).paragraphs:
            if paragraph.startswith("**Why it matters.**"):
                assert not A_FIGURE.search(paragraph), (rule.id, A_FIGURE.search(paragraph))
