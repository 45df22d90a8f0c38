"""One writer per output: a lock that ends with its process.

The lock is held on an open file beside the output (``flock``), so it ends with the process that
holds it, however that ends. The file names the process. A leftover file does no harm.

Folders beside an output that hold what is not whole yet.

They lie beside the output because a file can take another's place at once only within one file
system. The name holds the host and the process; a lock in the folder lasts as long as the process.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import platform
import re
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path

from qgraph.errors import QGraphError
from qgraph.storage.places import short

try:
    import fcntl
except ImportError:  # no such locks on this system
    fcntl = None  # type: ignore[assignment]

_MARK = b"qgraph "
_LONGEST = 400
"""Bytes that the file of a lock holds at most."""

_NO_LOCKS = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL}
"""Errors of file systems without locks."""

_PATIENCE_SECONDS = 0.2

logger = logging.getLogger(__name__)


class Lock:
    """The right to write one output, ``target``, a path without links.

    Attributes:
        path: the file that is locked.
        is_held: whether this object holds the lock; False where the file system has no locks.
    """

    def __init__(self, target: Path) -> None:
        self.path = target.with_name(f".{short(target.name)}.qgraph-lock")
        self._target = target
        self._descriptor: int | None = None
        self._is_own_file = False
        self.is_held = False

    def acquire(self) -> None:
        """Take the lock; where the file system has none, warn and go on without.

        Raises:
            QGraphError: another process holds it, or the file of the lock is something else.
            OSError: the file of the lock cannot be made.
        """
        while not self._is_current():
            self._close()
            self._descriptor, self._is_own_file = _open(self.path)
            try:
                _expect_lock_file(self.path, self._descriptor)
                self.is_held = lock(self._descriptor)
            except BlockingIOError:
                holder = _holder(self._descriptor)
                self._close()
                raise QGraphError(
                    f"{self._target}: is being written by {holder}, expected one writer at a "
                    "time. Wait until that process ends, or choose another name."
                ) from None
            # The holder before may have removed the file; without locks it stays.
            if not self.is_held:
                logger.warning(
                    "%s: this file system has no locks; make sure that no other process writes "
                    "this file now",
                    self._target,
                )
                break
        self._sign()

    def release(self) -> None:
        """Give the lock back and remove its file."""
        for _ in range(2):  # a signal or an error must not leave the file
            try:
                if (self.is_held or self._is_own_file) and self._is_current():
                    self.path.unlink(missing_ok=True)
                break
            except OSError:
                continue
        self._close()

    def _sign(self) -> None:
        text = _MARK + f"{os.getpid()} {platform.node()}\n".encode()
        # Another user's left-over file can be locked, but not written.
        with suppress(OSError):
            if self._descriptor is not None:
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, text[:_LONGEST], 0)

    def _is_current(self) -> bool:
        if self._descriptor is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.lstat(self.path))
        except FileNotFoundError:
            return False

    def _close(self) -> None:
        self.is_held = False
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)


def lock(descriptor: int) -> bool:
    """Lock an open file until it is closed; return False where the file system has no locks.

    Raises:
        BlockingIOError: another open file holds the lock.
        OSError: it cannot be locked.
    """
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


def _open(path: Path) -> tuple[int, bool]:
    """Open the file of a lock; return its descriptor, and whether it is new."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        with suppress(FileExistsError):
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644), True
        try:
            return os.open(path, flags), False
        except FileNotFoundError:
            continue  # its holder has just removed it
        except PermissionError:
            # Left by another user; a file that can be read can be locked.
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), False
        except OSError as error:
            if error.errno not in {errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO}:
                raise
            raise _not_a_lock(path) from error


def _expect_lock_file(path: Path, descriptor: int) -> None:
    status = os.fstat(descriptor)
    content = os.pread(descriptor, len(_MARK), 0) if stat.S_ISREG(status.st_mode) else b"no"
    if content not in (b"", _MARK) or status.st_size > _LONGEST or status.st_nlink > 1:
        raise _not_a_lock(path)


def _not_a_lock(path: Path) -> QGraphError:
    return QGraphError(
        f"{path}: exists and is not a lock file of qgraph, which needs this name. Move it away."
    )


def _holder(descriptor: int) -> str:
    """Return which process holds a lock, as its file says it."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        words = os.pread(descriptor, _LONGEST, 0).decode(errors="replace").split()
        if len(words) == 3 and words[1].isdigit():
            number, host = int(words[1]), words[2]
            if host != platform.node() or _is_alive(number):
                return f"process {number} on {host}"
        # The holder has not signed it yet.
        if time.monotonic() > end:
            return "another process, which has not signed its lock"
        time.sleep(0.01)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


_LOCK = ".qgraph-lock"


class Scratch:
    """A folder for the files of one output, a path without links, which only this user can read."""

    def __init__(self, target: Path) -> None:
        self._target = target
        token = os.urandom(4).hex()
        self.path = target.with_name(f"{_prefix(target)}{os.getpid()}-{token}.qgraph")
        self._descriptor: int | None = None

    def make(self, *, is_locked: bool) -> None:
        """Create the folder, and remove those that processes of this host have left.

        ``is_locked`` says whether this process holds the lock of the output, so that no other one
        is about to use an empty folder.
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
    host = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
    return f".{short(target.name)}.{host}-"


def _remove(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            for name in os.listdir(descriptor):
                os.unlink(name, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        folder.rmdir()
    except FileNotFoundError:
        pass
    except BaseException as error:
        # A folder in it, a signal or an error must not leave half of it.
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
