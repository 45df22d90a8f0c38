"""What the command line does to its process: streams, signals, modules of plugins."""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TextIO

from qgraph.errors import OptionError, QGraphError
from qgraph.text import without_commands


def find_modules(names: Sequence[str]) -> None:
    """Let modules of the current folder be imported, as Python itself does for a script."""
    if names and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def load_modules(names: Sequence[str]) -> None:
    """Import modules of plugins; those in the current folder are found too.

    Raises:
        OptionError: one cannot be imported.
    """
    find_modules(names)
    for name in names:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # a plugin may raise any exception
            raise OptionError(
                f"The plugin {name!r} cannot be imported ({type(error).__name__}: {error}), "
                "expected the name of a Python module, such as my_passes for ./my_passes.py. "
                "Correct the name, or the module."
            ) from error


class Guarded:
    """A text stream; output is discarded after its reader has closed it.

    The other attributes of the wrapped stream are accessible too. ``name`` is its name in messages;
    None to ignore all errors of the stream.

    Attributes:
        is_gone: whether the reader has closed the stream.
        failure: why something could not be written.
    """

    def __init__(self, stream: TextIO, name: str | None) -> None:
        self._stream = stream
        self._name = name
        self._is_mute = False
        self._is_blank = True
        self.is_gone = False
        self.failure: QGraphError | None = None

    def write(self, text: str) -> int:
        """Write text.

        Raises:
            QGraphError: writing fails, and not because the reader has closed the stream.
        """
        # click writes empty bytes and an empty text to find out what kind of stream it is.
        if not isinstance(text, str):
            raise TypeError(f"{type(text).__name__} was passed to write(), expected text")
        if text and not self._is_mute:
            with self._watched():
                self._stream.write(without_commands(text, at_line_start=self._is_blank))
            *before, rest = re.split(r"[\r\n]", text)
            self._is_blank = not rest.strip() and (self._is_blank or bool(before))
        return len(text)

    def flush(self) -> None:
        """Flush the stream; raises like :meth:`write`, also for earlier writes."""
        if not self._is_mute:
            with self._watched():
                self._stream.flush()
        if self.failure is not None:
            raise self.failure

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            self.is_gone = True
            self._mute()
        except (OSError, ValueError) as error:
            self._mute()
            if self._name is not None and not isinstance(error, UnicodeError):
                self.failure = QGraphError(
                    f"{self._name}: cannot be written ({error}); no file was written either. Free "
                    f"some space, or redirect the output."
                )
                raise self.failure from error

    def _mute(self) -> None:
        """Discard what is still buffered: it would raise again when the process ends."""
        self._is_mute = True
        with suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)


@contextmanager
def guarded_streams() -> Iterator[Guarded]:
    """Guard the standard streams in the block; yield the stream for results.

    A stream that was closed before the start behaves like the null device. Its descriptor is
    reserved first, so that output of libraries to this descriptor does not go into a file that is
    opened later.
    """
    _take_descriptors()
    before = sys.stdout, sys.stderr
    out, err = (
        stream if stream is not None else open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        for stream in before
    )
    # Names in models may contain characters that the terminal's encoding lacks.
    for stream in (out, err):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    results = Guarded(out, "standard output")
    sys.stdout, sys.stderr = results, Guarded(err, None)
    try:
        yield results
    finally:
        sys.stdout, sys.stderr = before


def _take_descriptors() -> None:
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free number is given.
            os.open(os.devnull, os.O_RDWR)


SIGNALLED = 128
"""Added to the number of a signal that ends the process."""

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")


class Interrupted(BaseException):
    """Raised when a signal, given by number and name, asks the process to end."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = signal.Signals(number).name
        super().__init__(self.name)


@contextmanager
def interruptible() -> Iterator[list[Interrupted]]:
    """Raise :class:`Interrupted` in the block when a signal asks the process to end.

    A signal that the caller ignores, as ``nohup`` does, stays ignored. While the exception passes,
    further signals are ignored, so that the removal of scratch folders is not interrupted. Yields
    the list of raised exceptions, since libraries may catch one, as when they are imported. Outside
    the main thread this function has no effect, because Python handles signals only in the main
    thread.
    """
    raised: list[Interrupted] = []
    if threading.current_thread() is not threading.main_thread():
        yield raised
        return
    before: dict[int, Any] = {}

    def stop(number: int, _frame: FrameType | None) -> None:
        error = sys.exc_info()[1]
        while error is not None:
            if error in raised:
                return
            error = error.__context__
        raised.append(Interrupted(number))
        raise raised[-1]

    for name in _NAMES:
        number = getattr(signal, name, None)  # some systems lack some of them
        usual = (signal.SIG_DFL, signal.default_int_handler)
        if number is not None and signal.getsignal(number) in usual:
            before[number] = signal.signal(number, stop)
    try:
        yield raised
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
