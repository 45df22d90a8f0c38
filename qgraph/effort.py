"""Progress and time limits of long computations.

Long computations call :func:`step` to report progress, and stop if :func:`is_over` returns True::

    with time_limit(60):
        certificate = qgraph.prove(reference, candidate)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from qgraph.errors import OptionError, UndecidedError, require
from qgraph.records import dataclass

Progress = Callable[[str, int, int], None]
"""Called with the current step, the number of its finished parts, and the number of all parts."""


LOADING_SECONDS = 300
"""After so long, a runtime is taken not to return: some passes of OpenVINO take twice as long for
each If inside another."""


@dataclass(frozen=True)
class Watch:
    """Progress callback and time limit of a computation, in seconds and by ``time.monotonic``."""

    seconds: float = math.inf
    end: float = math.inf
    progress: Progress = lambda what, done, total: None

    @property
    def is_over(self) -> bool:
        """Whether the limit is reached."""
        return time.monotonic() >= self.end


_WATCH: ContextVar[Watch] = ContextVar("qgraph_watch", default=Watch())  # noqa: B039 - frozen


def watch() -> Watch:
    """Return the current watch; pass it to threads that the computation starts."""
    return _WATCH.get()


def step(what: str, done: int, total: int) -> None:
    """Report the progress of a computation: the step, and how many of its parts are finished."""
    watch().progress(what, done, total)


def is_over() -> bool:
    """Return whether the time limit of the computation is reached."""
    return watch().is_over


def require_time(progress: str) -> None:
    """Raise if the time limit is reached, for computations without partial results.

    Raises:
        UndecidedError: with the ``progress``, such as ``2 of 7 passes were applied``.
    """
    if is_over():
        limit = watch().seconds
        raise UndecidedError(f"{progress} in {limit:g} seconds, the time limit. Allow more time.")


def seconds_left(most: float) -> float:
    """Return the seconds until the time limit, at most ``most``."""
    return max(0.0, min(most, watch().end - time.monotonic()))


@contextmanager
def watched(progress: Progress, seconds: float | None = None) -> Iterator[None]:
    """Set progress callback and time limit of the computations in the block.

    Without ``seconds``, the limit is that of an enclosing block, or none.
    """
    outer = watch()
    limit, end = outer.seconds, outer.end
    if seconds is not None and time.monotonic() + seconds < end:
        limit, end = seconds, time.monotonic() + seconds
    token = _WATCH.set(Watch(limit, end, progress))
    try:
        yield
    finally:
        _WATCH.reset(token)


@contextmanager
def part_of(total: int, first: int, last: int) -> Iterator[None]:
    """Report the steps of the block as those from ``first`` to ``last`` of ``total``."""
    outer = watch().progress

    def progress(what: str, done: int, of: int) -> None:
        outer(what, first * of + (last - first) * done, total * of)

    with watched(progress):
        yield


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Limit the time of calls in the block, in seconds.

    At the limit, a proof stops; remaining regions are undecided, with the reason QG066.
    :func:`qgraph.why` and :func:`qgraph.reduce` return partial results. A check that has found no
    difference, and a conversion or deployment that is not complete, raise
    :class:`qgraph.errors.UndecidedError`; the model is not changed.

    Raises:
        OptionError: the limit is not a positive number.
    """
    require(seconds, int | float, "a time limit", "a number of seconds")
    if not seconds > 0:
        raise OptionError(f"A time limit of {seconds} seconds is asked for, expected more than 0.")
    with watched(watch().progress, seconds):
        yield
