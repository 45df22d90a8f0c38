"""Standard streams that may be closed, full, or lose their reader."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from qgraph.errors import QGraphError


class Guarded:
    """A text stream; what is written after its reader went away is dropped.

    Args:
        stream: the stream, whose other attributes this one has too.
        name: for messages; None if no error of the stream is to matter.

    Attributes:
        is_gone: whether the reader went away.
        failure: why something could not be written.
    """

    def __init__(self, stream: TextIO, name: str | None) -> None:
        self._stream = stream
        self._name = name
        self._is_mute = False
        self.is_gone = False
        self.failure: QGraphError | None = None

    def write(self, text: str) -> int:
        """Write text.

        Raises:
            QGraphError: it cannot be written, for another reason than a reader that went away.
        """
        # click writes empty bytes and an empty text to find out what kind of stream it is.
        if not isinstance(text, str):
            raise TypeError(f"{type(text).__name__} is written, expected text")
        if text and not self._is_mute:
            with self._watched():
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Hand over what was written; errors as for :meth:`write`, also those of before."""
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
                    "some space, or send it elsewhere."
                )
                raise self.failure from error

    def _mute(self) -> None:
        """Let what is still buffered go nowhere: it would raise again when the process ends."""
        self._is_mute = True
        with suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)


@contextmanager
def guarded_streams() -> Iterator[Guarded]:
    """Guard the standard streams in the block; give the one for results.

    A stream that was closed before the start behaves like the null device. Its descriptor is taken
    first, so that no file that is opened later gets what libraries write there.
    """
    _take_descriptors()
    before = sys.stdout, sys.stderr
    out, err = (
        stream if stream is not None else open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        for stream in before
    )
    # Names in models may have characters that the terminal's encoding lacks.
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
