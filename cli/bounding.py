"""The options of bounds, shared by commands."""

from __future__ import annotations

import click

from qgraph.bound import Against, Bounding
from qgraph.cli import options


def _bounding(
    within: tuple[str, ...],
    order: str,
    accumulate: str,
    ranges: tuple[str, ...],
    against: str = Against.EXECUTION,
) -> Bounding:
    return Bounding(within, against, order, accumulate, dict(map(named_range, ranges)))


def bounding_options(*, question: bool) -> options.Decorator:
    """Return a decorator that adds the options of bounds; the command gets them as ``request``.

    Args:
        question: also add ``--against``.
    """
    more = [_AGAINST] if question else []
    return options.gathered("request", _bounding, _WITHIN, *more, _ORDER, _ACCUMULATE, _RANGE)


_WITHIN = click.option(
    "--within",
    multiple=True,
    metavar="LIMIT",
    help="Maximum difference of results that are not equal: 1step, 0.05step, 0.1%, or for an "
    "output NAME:0.01, NAME:2ulp. Repeatable.",
)
_AGAINST = click.option(
    "--against",
    type=options.Word(list(map(str, Against))),
    default=str(Against.EXECUTION),
    show_default=True,
    help="Compare the executed CANDIDATE with the executed REFERENCE, or with REFERENCE in real "
    "numbers (ideal).",
)
_ORDER = click.option(
    "--order",
    metavar="any|chunk:N",
    default="any",
    show_default=True,
    help="Order of additions for which bounds hold; chunk:N: at most N terms in sequence.",
)
_ACCUMULATE = click.option(
    "--accumulate",
    type=options.Word(["own", "float32"]),
    default="own",
    show_default=True,
    help="Type in which sums of 16-bit floats are added.",
)
_RANGE = click.option(
    "--range",
    "ranges",
    multiple=True,
    metavar="NAME=LO:HI",
    help="Range of an input that is not quantized, for bounds. Repeatable.",
)


def named_range(text: str) -> tuple[str, tuple[float, float]]:
    """Return the name and the range of an input, ``NAME=LO:HI``."""
    name, _, ends = text.rpartition("=")
    parts = ends.split(":")
    try:
        low, high = map(float, parts)
    except ValueError:
        raise click.UsageError(
            f"--range {text}: expected NAME=LO:HI, two numbers such as x=-1:1."
        ) from None
    if not name:
        raise click.UsageError(f"--range {text}: expected the name of an input first, NAME=LO:HI.")
    return name, (low, high)
