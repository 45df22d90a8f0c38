"""Bytes that are written into new files, and read back to be compared.

:class:`Recorder` notes checksums of the bytes in memory when they are written; :class:`ReadBack`
compares the files with them and computes their SHA-256.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import itertools
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from qgraph.errors import ModelError
from qgraph.graph.streaming import FileRange
from qgraph.numerics import Array
from qgraph.records import dataclass, field

_PIECE_BYTES = 1 << 20

_BLOCK = 1 << 17
"""Words that have factors of their own; further blocks of words multiply them."""

_STEP = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def checksum(content: memoryview | bytes, at: int) -> int:
    """Return the checksum of bytes from the place ``at`` of a file on.

    With the file's words ``w`` of 64 bits it is ``sum(w[i] * factor[i])`` modulo 2**64, so the
    checksum of neighbouring runs is the sum of theirs, modulo 2**64. All factors are odd: another
    value of any one word always changes it. It is several times faster than a CRC.
    """
    data = np.frombuffer(content, np.uint8)
    total, factors = 0, _factors()
    while data.size:
        block, place = divmod(at, 8 * _BLOCK)
        part = data[: 8 * _BLOCK - place]
        data, at = data[part.size :], at + part.size
        first, before = divmod(place, 8)
        if before or part.size % 8:
            padded = np.zeros(-(-(before + part.size) // 8) * 8, np.uint8)
            padded[before : before + part.size] = part
            part = padded
        words = part.view(np.uint64)
        product = int(np.dot(words, factors[first : first + words.size]))
        total += product * pow(_STEP, block, 1 << 64)
    return total & _MASK


@functools.cache
def _factors() -> npt.NDArray[np.uint64]:
    return np.random.default_rng(0).integers(0, 1 << 63, _BLOCK, np.uint64) * 2 + 1


@dataclass(frozen=True)
class WrittenRun:
    """Bytes that were written one after the other.

    Attributes:
        path: of the file.
        offset: of the first byte.
        length: in bytes.
        checksum: of the bytes in memory when they were written.
    """

    path: str
    offset: int
    length: int
    checksum: int


class Recorder:
    """A sink that writes into a file, and records the written runs."""

    def __init__(self, place: FileRange) -> None:
        self._place = place
        self.runs: list[WrittenRun] = []

    def write(self, at: int, data: Array) -> None:
        """Put the bytes of the contiguous array ``data`` at place ``at``."""
        content = data.reshape(-1).view(np.uint8).data
        if not content:
            return
        self._place.write(at, data)
        offset = self._place.offset + at
        total = checksum(content, offset)
        last = self.runs[-1] if self.runs else None
        if last is not None and last.offset + last.length == offset:
            self.runs[-1] = WrittenRun(
                last.path, last.offset, last.length + len(content), (last.checksum + total) % 2**64
            )
        else:
            self.runs.append(WrittenRun(self._place.path, offset, len(content), total))


class ReadBack:
    """Reads new data files back while they are written, and compares them with what was written.

    A run of bytes is read when everything before it has been written, since SHA-256 needs the bytes
    of a file in their order. It is computed in a thread beside the work that writes.

    Args:
        sizes: of the files, in bytes, by their paths.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._files = {path: _Returning(path, size) for path, size in sizes.items()}
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="qgraph-read-back")
        self._hasher = ThreadPoolExecutor(1, thread_name_prefix="qgraph-hash")
        self._reads: deque[Future[None]] = deque()
        self._hashed: Future[None] | None = None
        self._buffers = itertools.cycle(memoryview(bytearray(_PIECE_BYTES)) for _ in range(2))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.shutdown(cancel_futures=True)
        self._hasher.shutdown(cancel_futures=True)
        for file in self._files.values():
            if file.stream is not None:
                file.stream.close()

    def take(self, runs: Iterable[WrittenRun]) -> None:
        """Take runs that have been written, in any order."""
        for run in runs:
            file = self._files[run.path]
            heapq.heappush(file.waiting, (run.offset, run.length, run.checksum))
            while file.waiting and file.waiting[0][0] == file.end:
                file.ready.append(heapq.heappop(file.waiting))
                file.end += file.ready[-1][1]
            if file.ready and file.end - file.ready[0][0] >= _PIECE_BYTES:
                self._submit(file)

    def digests(self) -> dict[str, str]:
        """Read the rest, and return the SHA-256 of each file by its path.

        Raises:
            ModelError: a file has another size, a gap, or other bytes.
            OSError: it cannot be read.
        """
        for file in self._files.values():
            self._submit(file)
        for read in self._reads:
            read.result()
        if self._hashed is not None:
            self._hashed.result()
        for path, file in self._files.items():
            if file.waiting:
                start = file.waiting[0][0]
                raise _fault(path, f"was written up to byte {file.end} and from {start} on")
            if file.end != file.size:
                raise _fault(path, f"was written up to byte {file.end} of {file.size}")
            _expect_size(path, file.size)
        return {path: file.digest.hexdigest() for path, file in self._files.items()}

    def _submit(self, file: _Returning) -> None:
        self._reads.append(self._reader.submit(self._read, file, file.ready))
        file.ready = []

    def _read(self, file: _Returning, runs: Sequence[tuple[int, int, int]]) -> None:
        stream = file.stream = file.stream or FileIO(file.path)
        for start, length, expected in runs:
            total, at, end = 0, start, start + length
            while at < end:
                buffer = next(self._buffers)
                content = buffer[: stream.readinto(buffer[: end - at])]
                if not content:
                    _expect_size(file.path, file.size)
                    raise _fault(file.path, f"ends at byte {at}")
                if self._hashed is not None:
                    self._hashed.result()
                self._hashed = self._hasher.submit(file.digest.update, content)
                total += checksum(content, at)
                at += len(content)
            if total % 2**64 != expected:
                raise _fault(file.path, f"has other bytes from {start} on than were written")
            if end == file.size:
                stream.close()


@dataclass
class _Returning:
    """A file of some ``size`` that is read back; ``ready`` runs are to be read next, up to ``end``.

    Runs are offsets, lengths and checksums.
    """

    path: str
    size: int
    end: int = 0
    ready: list[tuple[int, int, int]] = field(default_factory=list)
    waiting: list[tuple[int, int, int]] = field(default_factory=list)
    digest: Any = field(default_factory=hashlib.sha256)
    stream: FileIO | None = None


def _expect_size(path: str, size: int) -> None:
    length = os.stat(path).st_size
    if length != size:
        raise _fault(path, f"has {length} bytes, expected {size}")


def _fault(path: str, what: str) -> ModelError:
    return ModelError(
        f"{path}: a new data file {what}; nothing was replaced. Look for a damaged disk, or choose "
        "another place."
    )
