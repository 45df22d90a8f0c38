"""Reports for people and code scanners: the options ``--html`` and ``--sarif``."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qgraph.cli import options
from qgraph.errors import OptionError
from qgraph.files import is_same

if TYPE_CHECKING:
    from qgraph.model import Model, Source

_BATCHES = 4
"""Codes of activations are counted in so many batches."""


@dataclass(frozen=True)
class Views:
    """Files that show a report.

    Attributes:
        html: a page.
        sarif: a log of findings.
    """

    html: Path | None
    sarif: Path | None

    @property
    def are_wanted(self) -> bool:
        """Whether there is one to write."""
        return self.html is not None or self.sarif is not None

    def check(self, *others: Path | None) -> None:
        """See that the files can be written, before any work is done.

        Args:
            others: files that the command reads or writes.

        Raises:
            OptionError: one would be overwritten, or the libraries that draw are not installed.
        """
        for path in (self.html, self.sarif):
            options.refuse_overwriting(path, *others)
        if self.html is not None and self.sarif is not None and is_same(self.html, self.sarif):
            raise OptionError(
                f"{self.html}: is named twice, expected one file for each report. Choose another "
                "name."
            )
        if self.html is not None:
            from qgraph.reporting.extras import require_drawing

            require_drawing("--html")

    def write(
        self,
        document: Mapping[str, Any],
        models: tuple[Source, Source] | None,
        batches: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Write the files.

        Args:
            document: the JSON report, with the files that it is about.
            models: reference and candidate, or input and output, to draw steps and codes of; None
                where they are not there.
            batches: inputs of the first one.
        """
        from qgraph.files import write_text

        if self.sarif is not None:
            from qgraph.reporting.sarif import sarif_log

            write_text(self.sarif, sarif_log(document))
        if self.html is not None:
            from qgraph.reporting.illustrations import illustrated
            from qgraph.reporting.page import html_page

            whole = document if models is None else illustrated(document, *models, batches)
            write_text(self.html, html_page(whole))


def view_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--html`` and ``--sarif``, which the command gets as ``views``."""

    @click.option(
        "--html",
        type=options.file_path,
        metavar="FILE",
        help="Write a page with tables and pictures (needs qgraph[report]).",
    )
    @click.option(
        "--sarif", type=options.file_path, metavar="FILE", help="Write the findings as SARIF 2.1.0."
    )
    @functools.wraps(function)
    def command(html: Path | None, sarif: Path | None, **others: Any) -> Any:
        return function(views=Views(html, sarif), **others)

    return command


def some_batches(
    model: Model,
    given: Mapping[str, Any] | None,
    inputs: options.Inputs,
    rows: int | None,
) -> list[Mapping[str, Any]]:
    """Return the first batches of those that a command runs a model on, to count codes in.

    Args:
        model: the model.
        given: arrays from files; None for random ones.
        inputs: what random ones are to be like.
        rows: of a batch of the given arrays; None for what the model takes.
    """
    from qgraph.batches import Batches
    from qgraph.equivalence.inputs import make_inputs

    if given is not None:
        return list(itertools.islice(Batches(model.ir.graph, given, rows), _BATCHES))
    return [
        make_inputs(model, seed=inputs.seed, number=number, shapes=inputs.shapes)
        for number in range(min(inputs.random or 1, _BATCHES))
    ]
