"""Progress and time limits of long computations.

Work that can take long calls :func:`step` as it goes on, and stops when :func:`is_over` says so::

    with time_limit(60):
        certificate = qgraph.prove(reference, candidate)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from qgraph.errors import OptionError, UndecidedError, require

Progress = Callable[[str, int, int], None]
"""Is told what is done, how many of its parts are finished, and how many there are."""


@dataclass(frozen=True)
class Watch:
    """What a computation tells, and how long it may take.

    Attributes:
        seconds: the limit.
        end: when it is reached, by ``time.monotonic``.
        progress: is told each step.
    """

    seconds: float = math.inf
    end: float = math.inf
    progress: Progress = lambda what, done, total: None

    @property
    def is_over(self) -> bool:
        """Whether the limit is reached."""
        return time.monotonic() >= self.end


_WATCH: ContextVar[Watch] = ContextVar("qgraph_watch", default=Watch())  # noqa: B039 - frozen


def watch() -> Watch:
    """Return what watches the computation; threads that it starts must be given it."""
    return _WATCH.get()


def step(what: str, done: int, total: int) -> None:
    """Tell how far a computation is.

    Args:
        what: in a few words.
        done: how many of its parts are finished.
        total: how many there are.
    """
    watch().progress(what, done, total)


def is_over() -> bool:
    """Return whether the computation must end."""
    return watch().is_over


def require_time(progress: str) -> None:
    """Raise if the computation must end, and cannot end with a part of its result.

    Args:
        progress: how far it is, such as ``2 of 7 passes were applied``.

    Raises:
        UndecidedError: the time limit is reached.
    """
    if is_over():
        limit = watch().seconds
        raise UndecidedError(f"{progress} in {limit:g} seconds, the time limit. Allow more time.")


def seconds_left(most: float) -> float:
    """Return the seconds until the computation must end, and ``most`` if there are more."""
    return max(0.0, min(most, watch().end - time.monotonic()))


@contextmanager
def watched(progress: Progress, seconds: float | None = None) -> Iterator[None]:
    """Watch the computations in the block.

    Args:
        progress: is told each step.
        seconds: limit of time; None for that of an enclosing block, or none.
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
def time_limit(seconds: float) -> Iterator[None]:
    """Limit the time of what is called in the block.

    A proof that reaches the limit ends soon after; what it did not decide is undecided, with the
    reason QG066. :func:`qgraph.why` and :func:`qgraph.reduce` return what they have by then. A
    check that has found no difference, and a conversion or deployment that is not complete, raise
    :class:`qgraph.errors.UndecidedError`; the model stays as it was.

    Args:
        seconds: the limit, a positive number.

    Raises:
        OptionError: it is no such number.
    """
    require(seconds, int | float, "a time limit", "a number of seconds")
    if not seconds > 0:
        raise OptionError(f"A time limit of {seconds} seconds is asked for, expected more than 0.")
    with watched(watch().progress, seconds):
        yield
