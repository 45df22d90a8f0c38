"""Old names and keywords still work, and say what takes their place."""

from __future__ import annotations

import importlib

import pytest

from qgraph.deprecated import RENAMED


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [(module, old, new) for module, names in RENAMED.items() for old, new in names.items()],
)
def test_old_names_give_what_has_another_name_now(module: str, old: str, new: str) -> None:
    home = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=f"{old} is now called {new}"):
        found = getattr(home, old)
    assert found is getattr(home, new)


def test_names_that_never_were_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        importlib.import_module("qgraph.reports").Nonsense  # noqa: B018 - the attribute is asked for
