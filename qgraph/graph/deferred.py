"""Tensors whose bytes are computed while a model is saved, and the work that computes them.

A pass on a large model only plans work on large weights. A :class:`Job` reads a weight piece by
piece and computes one or several tensors, such as codes and scales. Its parts do not depend on the
model, so they can run in threads, in processes, or on other machines with the same files.
``carry_out`` runs them and tells what they write; :class:`ReadBack` compares the files with that.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from io import FileIO
from itertools import cycle, islice
from typing import Any, Protocol, Self
from weakref import WeakKeyDictionary, ref

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import ModelError
from qgraph.graph.streaming import FileRange, Sink, width_of
from qgraph.numerics import Array
from qgraph.numerics.formats import numpy_dtype, packed_size, unpack
from qgraph.records import dataclass, field

PART_BYTES = 1 << 26
"""Approximate number of bytes that a part of a job reads."""

MOST_TENSORS = 8
"""Maximum number of tensors of a job."""

_WAITING = 16
"""Maximum number of parts that are submitted at a time."""


@dataclass(frozen=True, eq=False)
class Part:
    """A piece of work, to be pickled and run anywhere.

    The bytes that two parts write do not overlap.

    Attributes:
        compute: ``compute(span, sinks)`` writes the tensors of the job to the sinks, by their
            indices, and returns the result for :meth:`Job.conclude`; it refers to no model.
        span: what this part works on, such as a range of elements.
        reads: number of bytes that it reads.
    """

    compute: Callable[[Any, Sequence[Sink]], Any]
    span: Any
    reads: int

    def __call__(self, sinks: Sequence[Sink]) -> Any:
        """Do the work; return what the job adds up."""
        return self.compute(self.span, sinks)


class Job(Protocol):
    """Work that computes tensors."""

    def parts(self) -> Sequence[Part]:
        """Return the work, cut into parts."""

    def conclude(self, results: Sequence[Any]) -> None:
        """Process the results of the parts, in their order.

        Raises:
            ModelError: the tensors are wrong.
        """


class MemorySink:
    """Bytes in memory."""

    def __init__(self, size: int) -> None:
        self.data = np.zeros(size, np.uint8)

    def write(self, at: int, data: Array) -> None:
        """Copy the bytes of ``data`` to place ``at``."""
        flat = data.reshape(-1).view(np.uint8)
        self.data[at : at + flat.size] = flat


class NoSink:
    """A sink that discards bytes."""

    def write(self, at: int, data: Array) -> None:
        """Do nothing."""


class DeferredTensor(ir.LazyTensor):
    """A tensor that a job will compute; ``place`` is its index among the tensors of the job."""

    def __init__(
        self, job: Job, index: int, dtype: ir.DataType, shape: Sequence[int], name: str = ""
    ) -> None:
        super().__init__(self._array, dtype, ir.Shape(shape), name=name)
        self.job = job
        self.place = index

    def tobytes(self) -> bytes:
        """Compute the tensor now and return its bytes, packed as in a file."""
        return self._compute().tobytes()

    def tofile(self, file: Any) -> None:
        """Compute the tensor now and write its bytes, packed."""
        file.write(self.tobytes())

    def __repr__(self) -> str:
        return f"DeferredTensor<{self.dtype},{self.shape}>(name={self.name!r})"

    def _array(self) -> ir.TensorProtocol:
        return tensor_of(self._compute(), self.dtype, self.shape.numpy(), self.name)

    def _compute(self) -> npt.NDArray[np.uint8]:
        held = _COMPUTED.get(self, lambda: None)()
        if held is not None:
            return held
        sink = MemorySink(packed_size(width_of(self.dtype.name), self.size))
        sinks: list[Sink] = [NoSink() for _ in range(MOST_TENSORS)]
        sinks[self.place] = sink
        self.job.conclude([part(sinks) for part in self.job.parts()])
        _COMPUTED[self] = ref(sink.data)
        _LAST[:] = [sink.data] if sink.data.nbytes <= _MOST_KEPT else []
        return sink.data


def deferred_form(array: Array) -> DeferredTensor | None:
    """Return a tensor, still to be computed, whose elements in memory ``array`` has; else None."""
    at = array.__array_interface__["data"][0]
    for tensor, held in _COMPUTED.items() if array.nbytes >= LARGE else ():
        data = held()
        if data is None or tensor.dtype.bitwidth < 8 or array.dtype != tensor.dtype.numpy():
            continue
        is_whole = data.nbytes == array.nbytes and array.flags.c_contiguous
        if is_whole and data.__array_interface__["data"][0] == at:
            return DeferredTensor(tensor.job, tensor.place, tensor.dtype, array.shape)
    return None


LARGE = 1 << 20
"""Least bytes of an array that is not kept in memory if it can be computed again."""

_MOST_KEPT = 1 << 26
_LAST: list[npt.NDArray[np.uint8]] = []
"""The bytes computed last: parts of a job and pieces of a survey read one tensor many times."""

_COMPUTED: WeakKeyDictionary[DeferredTensor, ref[npt.NDArray[np.uint8]]] = WeakKeyDictionary()
"""Bytes of tensors that were computed in memory and are still in use."""


def tensor_of(
    data: npt.NDArray[np.uint8], dtype: ir.DataType, shape: Sequence[int], name: str | None = None
) -> ir.TensorProtocol:
    """Return the tensor that has the packed bytes ``data``."""
    if dtype.bitwidth < 8:
        data = unpack(data, dtype.bitwidth, math.prod(shape))
    return ir.Tensor(data.view(numpy_dtype(dtype.name)).reshape(shape), dtype, name=name)


def carry_out(
    work: Iterable[tuple[Job, Sequence[Sink]]],
    executor: futures.Executor,
    tell: Callable[[int, Sequence[WrittenRun]], None],
) -> None:
    """Run all parts of jobs, given with the sinks of their tensors.

    Each job is concluded as soon as its last part is done. After a failure no further part is
    started, and running parts are awaited. ``tell`` is called after each part with the number of
    bytes that it has read, and the written runs.
    """
    running: dict[futures.Future[Any], tuple[Job, dict[int, Any], int, int, int]] = {}

    def started() -> Iterator[None]:
        for job, sinks in work:
            parts = list(job.parts())
            results: dict[int, Any] = {}
            for number, part in enumerate(parts):
                future = executor.submit(_recorded, part, sinks)
                running[future] = job, results, number, len(parts), part.reads
                yield

    starts = started()
    try:
        while True:
            for _ in islice(starts, _WAITING - len(running)):
                pass
            if not running:
                return
            done, _ = futures.wait(running, return_when=futures.FIRST_COMPLETED)
            for future in done:
                job, results, number, count, reads = running.pop(future)
                results[number], written = future.result()
                if len(results) == count:
                    job.conclude([results[index] for index in range(count)])
                tell(reads, written)
    except BaseException:
        for future in running:
            future.cancel()
        futures.wait(running)
        raise


def _recorded(part: Part, sinks: Sequence[Sink]) -> tuple[Any, list[WrittenRun]]:
    """Run a part in a worker; return its result and the written runs of bytes."""
    recorders = [Recorder(sink) if isinstance(sink, FileRange) else sink for sink in sinks]
    result = part(recorders)
    return result, [run for each in recorders if isinstance(each, Recorder) for run in each.runs]


_PIECE_BYTES = 1 << 20

_BLOCK = 1 << 17
"""Words that have factors of their own; further blocks of words multiply them."""

_STEP = 0x9E3779B97F4A7C15


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
        product = np.dot(words, factors[first : first + words.size])
        total += int(product) * pow(_STEP, block, 1 << 64)
    return total % 2**64


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
        offset, length = self._place.offset + at, len(content)
        total = checksum(content, offset)
        if self.runs and self.runs[-1].offset + self.runs[-1].length == offset:
            last = self.runs.pop()
            offset, length, total = last.offset, last.length + length, last.checksum + total
        self.runs.append(WrittenRun(self._place.path, offset, length, total % 2**64))


class ReadBack:
    """Reads new data files back while they are written, and compares them with what was written.

    A run of bytes is read when everything before it has been written, since SHA-256 needs the bytes
    of a file in their order. It is computed in a thread beside the work that writes.

    Args:
        sizes: of the files, in bytes, by their paths.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._files = {path: _Returning(path, size) for path, size in sizes.items()}
        self._reader = futures.ThreadPoolExecutor(1, thread_name_prefix="qgraph-read-back")
        self._hasher = futures.ThreadPoolExecutor(1, thread_name_prefix="qgraph-hash")
        self._reads: deque[futures.Future[None]] = deque()
        self._hashed: futures.Future[None] | None = None
        self._buffers = cycle(memoryview(bytearray(_PIECE_BYTES)) for _ in range(2))

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
            if file.waiting or file.end != file.size:
                rest = f"and from {file.waiting[0][0]} on" if file.waiting else f"of {file.size}"
                raise _fault(path, f"was written up to byte {file.end} {rest}")
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
    """A file of some ``size``; ``ready`` runs (offset, length, checksum) up to ``end`` are next."""

    path: str
    size: int
    end: int = 0
    ready: list[tuple[int, int, int]] = field(default_factory=list)
    waiting: list[tuple[int, int, int]] = field(default_factory=list)
    digest: Any = field(default_factory=hashlib.sha256)
    stream: FileIO | None = None


def _expect_size(path: str, size: int) -> None:
    if (length := os.stat(path).st_size) != size:
        raise _fault(path, f"has {length} bytes, expected {size}")


def _fault(path: str, what: str) -> ModelError:
    return ModelError(
        f"{path}: a new data file {what}; nothing was replaced. Look for a damaged disk, or choose "
        "another place."
    )
