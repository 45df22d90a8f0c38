"""Tensors whose bytes are computed while a model is saved, and the work that computes them.

A pass on a large model only plans work on large weights. A :class:`Job` reads a weight piece by
piece and computes one or several tensors, such as codes and scales. Its parts do not depend on the
model, so they can run in threads, in processes, or on other machines with the same files.
``carry_out`` runs them and records what they write, and ``expect_written`` compares the files with
that.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary, ref

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import ModelError
from qgraph.graph.streaming import FileRange, Sink, width_of
from qgraph.numerics import Array
from qgraph.numerics.formats import numpy_dtype, packed_size, unpack

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


PART_BYTES = 1 << 26
"""Approximate number of bytes that a part of a job reads."""

MOST_TENSORS = 8
"""Maximum number of tensors of a job."""

_PIECE_BYTES = 1 << 20

_WAITING = 16
"""Maximum number of parts that are submitted at a time."""


class Part(Protocol):
    """A piece of work, to be pickled and run anywhere."""

    @property
    def reads(self) -> int:
        """Number of bytes that it reads."""

    def __call__(self, sinks: Sequence[Sink]) -> Any:
        """Write the tensors of the job to the sinks, by their indices.

        Returns: the result for :meth:`Job.conclude`.

        The bytes that two parts write do not overlap.
        """


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
    work: Iterable[tuple[Job, Sequence[Sink]]], executor: Executor, tell: Callable[[int], None]
) -> list[WrittenRun]:
    """Run all parts of jobs, given with the sinks of their tensors; return the written runs.

    Each job is concluded as soon as its last part is done. After a failure no further part is
    started, and running parts are awaited. ``tell`` is called after each part with the number of
    bytes that it has read.
    """
    runs: list[WrittenRun] = []
    waiting = deque((job, sinks, list(job.parts())) for job, sinks in work)
    running: dict[Future[Any], tuple[_Open, int, int]] = {}
    current: _Open | None = None
    try:
        while waiting or running or current is not None:
            while len(running) < _WAITING and (current is not None or waiting):
                if current is None:
                    current = _Open(*waiting.popleft())
                number, part = current.next()
                future = executor.submit(_recorded, part, current.sinks)
                running[future] = (current, number, part.reads)
                if current.is_handed_out:
                    current = None
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                job, number, reads = running.pop(future)
                result, written = future.result()
                runs += written
                job.take(number, result)
                tell(reads)
    except BaseException:
        for future in running:
            future.cancel()
        wait(running)
        raise
    return runs


def _recorded(part: Part, sinks: Sequence[Sink]) -> tuple[Any, list[WrittenRun]]:
    """Run a part in a worker; return its result and the written runs of bytes."""
    recorders = [Recorder(sink) if isinstance(sink, FileRange) else sink for sink in sinks]
    result = part(recorders)
    return result, [run for each in recorders if isinstance(each, Recorder) for run in each.runs]


class _Open:
    """A job with unfinished parts."""

    def __init__(self, job: Job, sinks: Sequence[Sink], parts: Sequence[Part]) -> None:
        self.sinks = sinks
        self._job, self._parts = job, parts
        self._results: dict[int, Any] = {}
        self._next = 0

    @property
    def is_handed_out(self) -> bool:
        return self._next == len(self._parts)

    def next(self) -> tuple[int, Part]:
        self._next += 1
        return self._next - 1, self._parts[self._next - 1]

    def take(self, number: int, result: Any) -> None:
        self._results[number] = result
        if len(self._results) == len(self._parts):
            self._job.conclude([self._results[i] for i in range(len(self._parts))])


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


def expect_written(path: str | os.PathLike[str], size: int, runs: Iterable[WrittenRun]) -> str:
    """Read a file of some ``size`` back, compare it with the written runs, and return its SHA-256.

    Raises:
        ModelError: the file has another size, a gap, or other bytes.
        OSError: it cannot be read.
    """
    digest, at = hashlib.sha256(), 0
    buffers = itertools.cycle(memoryview(bytearray(_PIECE_BYTES)) for _ in range(2))
    # Both digests are computed at the same time.
    with open(path, "rb", buffering=0) as file, ThreadPoolExecutor(1) as hashing:
        pending: Future[None] | None = None
        length = os.fstat(file.fileno()).st_size
        if length != size:
            raise _fault(path, f"has {length} bytes, expected {size}")
        for run in _sorted(runs):
            if run.offset != at:
                raise _fault(path, f"was written up to byte {at} and from {run.offset} on")
            total, end = 0, at + run.length
            while at < end:
                buffer = next(buffers)
                content = buffer[: file.readinto(buffer[: end - at])]
                if not content:
                    raise _fault(path, f"ends {end - at} bytes early")
                if pending is not None:
                    pending.result()
                pending = hashing.submit(digest.update, content)
                total += checksum(content, at)
                at += len(content)
            if total % 2**64 != run.checksum:
                raise _fault(path, f"has other bytes from {run.offset} on than were written")
    if at != size:
        raise _fault(path, f"was written up to byte {at} of {size}")
    return digest.hexdigest()


def _sorted(runs: Iterable[WrittenRun]) -> Sequence[WrittenRun]:
    return sorted(runs, key=lambda run: run.offset)


def _fault(path: str | os.PathLike[str], what: str) -> ModelError:
    return ModelError(
        f"{path}: a new data file {what}; nothing was replaced. Look for a damaged disk, or choose "
        "another place."
    )
