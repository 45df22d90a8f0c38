"""Who may read a file, and how it gets to the disk."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_ACCESS_LIST = "system.posix_acl_access"
_CANNOT_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}
"""What a file system says that cannot write a folder to the disk by itself."""


@dataclass(frozen=True)
class Access:
    """Mode, owner and access list of a file.

    Attributes:
        mode: permissions; None for those that a new file has.
        owner: user and group.
        access_list: as Linux stores it; None if there is none.
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
