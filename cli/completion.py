"""Shell completion of dialects, passes, targets, ids and node names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import click

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _offering(names: Callable[[click.Context], Iterable[str]]) -> Complete:
    """Return a completion callback for names; it offers nothing if listing them fails."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        try:
            return sorted(name for name in names(ctx) if name.startswith(incomplete))
        except Exception:  # a message would end up among the words of the user
            return []

    return complete


def _dialects(_: click.Context) -> Iterable[str]:
    from qgraph.quantizers.dialects.dialect import DIALECTS

    return DIALECTS.names()


def _passes(_: click.Context) -> Iterable[str]:
    from qgraph.transforms import TRANSFORMS

    return TRANSFORMS.names()


def _targets(_: click.Context) -> Iterable[str]:
    from qgraph.targets.reader import target_names

    return target_names()


def _ids(_: click.Context) -> Iterable[str]:
    from qgraph.lint.rule import RULES
    from qgraph.reasons import CAUSES
    from qgraph.targets.unmet import UNMET

    return [*CAUSES, *UNMET, *RULES.names()]


def _nodes(ctx: click.Context) -> Iterable[str]:
    from qgraph.model import load

    # An option that still lacks its value keeps click from reading the arguments before it.
    path = next(word for word in ctx.args if not word.startswith("-"))
    return [node.name for node in load(Path(path)).nodes() if node.name]


dialects, passes, targets = map(_offering, (_dialects, _passes, _targets))
ids, nodes = map(_offering, (_ids, _nodes))
