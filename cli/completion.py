"""Shell completion of dialects, passes, targets, ids, nodes and tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from qgraph.model import Model

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _offering(names: Callable[[click.Context], Iterable[str]]) -> Complete:
    """Return a completion callback for names; it offers nothing if listing them fails."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        try:
            offered = (name for name in names(ctx) if name.startswith(incomplete))
            return sorted(filter(str.isprintable, offered))  # shells read one name a line
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


def _rules(_: click.Context) -> Iterable[str]:
    from qgraph.lint.rule import RULES

    return RULES.names()


def _model(ctx: click.Context) -> Model:
    from qgraph.model import load

    # An option that still lacks its value keeps click from reading the arguments before it.
    return load(Path(next(word for word in ctx.args if not word.startswith("-"))))


def _nodes(ctx: click.Context) -> Iterable[str]:
    return [node.name for node in _model(ctx).nodes() if node.name]


def _tensors(ctx: click.Context) -> Iterable[str]:
    graph = _model(ctx).ir.graph
    values = chain(graph.inputs, *(node.outputs for node in graph))
    return [value.name for value in values if value.name]


dialects, passes, targets = map(_offering, (_dialects, _passes, _targets))
ids, rules, nodes, tensors = map(_offering, (_ids, _rules, _nodes, _tensors))
