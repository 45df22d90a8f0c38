"""Names of files: which of them are one file, and which can be written.

Who may read a file, and how it gets to the disk.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import unicodedata
from contextlib import suppress
from pathlib import Path

from qgraph.errors import OptionError, QGraphError, shown
from qgraph.records import dataclass

_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG}

_LONGEST = 120
"""Bytes of an output's name that the names of its lock and scratch folder repeat."""


def is_same(path: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    """Return whether two paths name one file, or would if it were there.

    Existing files are compared by device and inode, so links, ``..``, bind mounts and the case of
    letters do not matter. Two names that do not exist yet, in one folder, are the same if they
    differ in case or Unicode form only: some file systems make one file of them.
    """
    return key_of(path) == key_of(other)


def key_of(path: str | os.PathLike[str]) -> tuple[int, int, str]:
    """Return a key that is equal for two paths exactly if :func:`is_same` holds for them."""
    try:
        real = os.path.realpath(path)
    except ValueError as error:
        raise OptionError(
            f"{shown(os.fspath(path))}: no file can have this name ({error}). Choose another name."
        ) from error
    name, status = "", _status(real)
    if status is None:
        name, status = _folded(real), _status(os.path.dirname(real))
    return (0, 0, real) if status is None else (status.st_dev, status.st_ino, name)


def expect_place(path: str | os.PathLike[str], *, follow_links: bool = True) -> Path:
    """Return the file that an output replaces, if there is room for one of this name.

    A symbolic link keeps pointing to the file that is replaced if ``follow_links``; otherwise the
    link itself is replaced.

    Raises:
        OptionError: the name stands for the standard output or error of this process.
        QGraphError: its folder is not there or cannot be written, or it is no regular file.
    """
    if "\0" in os.fspath(path):
        raise QGraphError(f"{path!r}: no file can have this name. Choose another one.")
    whole = Path(os.path.abspath(path))
    target = Path(os.path.realpath(path))
    if not follow_links:
        target = Path(os.path.realpath(whole.parent), whole.name)
    folder = target.parent
    around, status = _status(str(folder)), _status(str(target))
    if around is None or not stat.S_ISDIR(around.st_mode):
        raise QGraphError(
            f"{path}: cannot be written, {str(folder)!r} is not a folder. Create it first."
        )
    if _is_too_long(target):
        raise QGraphError(f"{path}: no file can have a name of this length. Choose a shorter one.")
    if _is_stream(whole) or (status is not None and not stat.S_ISREG(status.st_mode)):
        raise QGraphError(f"{path}: exists and is not a regular file. Choose another name.")
    if any(_is_open_as(target, descriptor) for descriptor in (1, 2)):
        raise OptionError(
            f"{path}: is the standard output or error of this command, expected a file of its own. "
            "Choose another name."
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise QGraphError(
            f"{path}: cannot be written, {str(folder)!r} is a folder without write permission. "
            "Change the permissions, or choose another folder."
        )
    return target


MOST_TEXT = 1 << 29
"""Bytes of the largest reports, certificates and lock files that are read."""


def bounded(path: Path, most: int) -> bytes:
    """Return the bytes of a file or pipe, which are fewer than ``most``.

    Raises:
        OSError: it cannot be read, is a device, which may have no end, or is larger.
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if stat.S_ISCHR(status.st_mode):
            raise OSError(errno.ENODEV, "is a device", str(path))
        # A pipe has no size.
        content = b"" if status.st_size >= most else file.read(-1 if status.st_size else most)
    if max(status.st_size, len(content)) >= most:
        raise OSError(errno.EFBIG, f"has {max(status.st_size, most)} bytes or more", str(path))
    return content


def short(name: str) -> str:
    """Return a short file name: a long name is cut, and a hash of it is added."""
    content = os.fsencode(name)
    if len(content) <= _LONGEST:
        return name
    return f"{os.fsdecode(content[:_LONGEST])}-{hashlib.sha256(content).hexdigest()[:16]}"


def _status(path: str) -> os.stat_result | None:
    """Return what the system knows of a file; None if there is none of this name.

    Raises:
        OSError: whether it is there cannot be found out.
    """
    try:
        return os.stat(path)
    except OSError as error:
        if error.errno not in _ABSENT:
            raise
        return None


def _is_too_long(path: Path) -> bool:
    try:
        path.lstat()
    except OSError as error:
        return error.errno == errno.ENAMETOOLONG
    return False


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", os.path.basename(path)).casefold()


def _is_stream(path: Path) -> bool:
    """Return whether a path names a device or an open file, such as /dev/stdout."""
    parts = path.parts[1:3]
    return parts[:1] == ("proc",) or (parts[:1] == ("dev",) and parts[1:] != ("shm",))


def _is_open_as(target: Path, descriptor: int) -> bool:
    try:
        status = os.fstat(descriptor)
        return stat.S_ISREG(status.st_mode) and os.path.samestat(status, os.stat(target))
    except OSError:
        return False


_ACCESS_LIST = "system.posix_acl_access"
_CANNOT_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}
"""Errors of file systems that cannot flush a folder to the disk."""


@dataclass(frozen=True)
class Access:
    """Mode, owner and access list of a file.

    The mode is None for that of a new file. The access list is as Linux stores it, if there is one.
    """

    mode: int | None = None
    owner: tuple[int, int] = (-1, -1)
    access_list: bytes | None = None

    @classmethod
    def of(cls, path: Path) -> Access:
        """Return the access of a file; that of a new one if the file is not there."""
        try:
            status = path.stat()
        except FileNotFoundError:
            return cls()
        access_list = None
        with suppress(OSError, AttributeError):
            access_list = os.getxattr(path, _ACCESS_LIST)
        return cls(stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid), access_list)

    def give(self, file: Path) -> None:
        """Let ``file`` have this access, as far as the system allows a change of owner."""
        if self.mode is None:
            return
        now = file.stat()
        for user, group in (self.owner, (-1, self.owner[1])):
            if (now.st_uid, now.st_gid) == self.owner:
                break
            with suppress(PermissionError):
                os.chown(file, user, group)
                break
        file.chmod(self.mode)
        if self.access_list is not None:
            with suppress(OSError):
                os.setxattr(file, _ACCESS_LIST, self.access_list)


def seal(file: Path, access: Access) -> None:
    """Give a file its access, and write it to the disk."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        access.give(file)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk, where the file system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return  # a folder may be written and not listed
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(descriptor)
