"""Signals that end a process, turned into an exception so that nothing is left behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")


class Interrupted(BaseException):
    """A signal asks the process to end.

    Attributes:
        number: of the signal.
        name: of the signal.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = signal.Signals(number).name
        super().__init__(self.name)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise :class:`Interrupted` in the block when a signal asks the process to end.

    A signal that the caller ignores, as ``nohup`` does, stays ignored. After the first signal the
    others are ignored, so that the removal of scratch folders is not interrupted. Outside the main
    thread nothing changes: Python handles signals there only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    for name in _NAMES:
        number = getattr(signal, name, None)  # some systems lack some of them
        usual = (signal.SIG_DFL, signal.default_int_handler)
        if number is not None and signal.getsignal(number) in usual:
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
