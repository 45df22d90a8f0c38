"""Folders beside an output that hold what is not whole yet.

They lie beside the output because a file can take another's place at once only within one file
system. The name holds the host and the process; a lock in the folder lasts as long as the process.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import socket
from contextlib import suppress
from pathlib import Path

from qgraph.outputs.locks import lock
from qgraph.outputs.places import short

_LOCK = ".qgraph-lock"


class Scratch:
    """A folder for the files of one output, which only this user can read.

    Args:
        target: the output, without links.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        token = secrets.token_hex(4)
        self.path = target.with_name(f"{_prefix(target)}{os.getpid()}-{token}.qgraph")
        self._descriptor: int | None = None

    def make(self, *, is_locked: bool) -> None:
        """Create the folder, and remove those that processes of this host have left.

        Args:
            is_locked: whether this process holds the lock of the output, so that no other one is
                about to use an empty folder.
        """
        _remove_stale(self._target, is_locked)
        self.path.mkdir(0o700)
        self._descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        lock(self._descriptor)

    def remove(self) -> None:
        """Remove the folder and all that is in it."""
        _remove(self.path)
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)


def _prefix(target: Path) -> str:
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
    return f".{short(target.name)}.{host}-"


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass
    except BaseException as error:
        # A signal or an error must not leave half of it.
        shutil.rmtree(folder, ignore_errors=True)
        if not isinstance(error, OSError):
            raise


def _remove_stale(target: Path, is_locked: bool) -> None:
    pattern = re.compile(re.escape(_prefix(target)) + r"\d+-[0-9a-f]{8}\.qgraph")
    with suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if pattern.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                _remove_if_stale(Path(entry.path), is_locked)


def _remove_if_stale(folder: Path, is_locked: bool) -> None:
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        # Its process ended before it had a lock.
        if is_locked:
            with suppress(OSError):
                folder.rmdir()
        return
    try:
        with suppress(OSError):
            if lock(descriptor):
                _remove(folder)
    finally:
        os.close(descriptor)
