"""Turn errors into exit statuses and messages."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import NamedTuple

import click

from qgraph.cli.output import Talk
from qgraph.errors import EquivalenceError, OptionError, QGraphError, UndecidedError, unexpected

DIFFERENT, USAGE, UNUSABLE, UNDECIDED, INTERRUPTED, BROKEN_PIPE = 1, 2, 3, 4, 130, 141
"""Exit codes; the last two are those of a process ended by SIGINT or SIGPIPE."""


class Failure(NamedTuple):
    """Why a command ends without success.

    Attributes:
        status: the exit status.
        message: what is wrong, and what to do.
        notes: remarks on it.
    """

    status: int
    message: str
    notes: tuple[str, ...] = ()


def print_failure(error: Exception, talk: Talk) -> Failure:
    """Print an error, and return it with its exit status."""
    if talk.debug:
        traceback.print_exc()
    failure = _failure(error)
    talk.error(failure.message, *failure.notes)
    return failure


def _failure(error: Exception) -> Failure:
    if isinstance(error, click.ClickException):
        return Failure(USAGE, error.format_message())
    if isinstance(error, QGraphError):
        status = USAGE if isinstance(error, OptionError) else UNUSABLE
        if isinstance(error, EquivalenceError):
            status = UNDECIDED if isinstance(error, UndecidedError) else DIFFERENT
        return Failure(status, str(error), tuple(getattr(error, "__notes__", ())))
    if isinstance(error, MemoryError):
        message = "there is not enough memory for this. Use smaller inputs, or a machine with more."
    elif isinstance(error, OSError):
        what = f"{error.filename}: {error.strerror}" if error.filename else error
        message = f"{what}. Correct this and run the command again."
    else:
        message = (
            f"{_models(error)} could not be handled ({unexpected(error)}). If onnx.checker "
            "accepts "
            "it, this is a bug in qgraph; please report it with the model and the traceback that "
            "--debug shows."
        )
    return Failure(UNUSABLE, message)


def _models(error: Exception) -> str:
    """Return the paths of the command's models, from the arguments of its function."""
    trace = error.__traceback__
    while trace is not None:
        variables = trace.tb_frame.f_locals
        paths = map(variables.get, ("model", "reference", "candidate", "path"))
        names = [str(path) for path in paths if isinstance(path, Path)]
        if names:
            return " or ".join(dict.fromkeys(names))
        trace = trace.tb_next
    return "the input"
