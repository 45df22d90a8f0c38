"""Tensors whose bytes are computed while a model is saved, and the work that computes them.

A pass on a large model only plans work on large weights. A :class:`Job` reads a weight piece by
piece and computes one or several tensors, such as codes and scales. Its parts do not depend on the
model, so they can run in threads, in processes, or on other machines with the same files.
``carry_out`` runs them and tells what they write.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from itertools import islice
from typing import Any, Protocol
from weakref import WeakKeyDictionary, ref

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.graph.streaming import FileRange, Sink, width_of
from qgraph.graph.written import Recorder, WrittenRun
from qgraph.numerics import Array
from qgraph.numerics.formats import numpy_dtype, packed_size, unpack
from qgraph.records import dataclass

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
    executor: Executor,
    tell: Callable[[int, Sequence[WrittenRun]], None],
) -> None:
    """Run all parts of jobs, given with the sinks of their tensors.

    Each job is concluded as soon as its last part is done. After a failure no further part is
    started, and running parts are awaited. ``tell`` is called after each part with the number of
    bytes that it has read, and the written runs.
    """
    waiting = deque((job, sinks, list(job.parts())) for job, sinks in work)
    running: dict[Future[Any], tuple[Job, dict[int, Any], int, int, int]] = {}

    def started() -> Iterator[None]:
        while waiting:
            job, sinks, parts = waiting.popleft()
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
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                job, results, number, count, reads = running.pop(future)
                results[number], written = future.result()
                if len(results) == count:
                    job.conclude([results[index] for index in range(count)])
                tell(reads, written)
    except BaseException:
        for future in running:
            future.cancel()
        wait(running)
        raise


def _recorded(part: Part, sinks: Sequence[Sink]) -> tuple[Any, list[WrittenRun]]:
    """Run a part in a worker; return its result and the written runs of bytes."""
    recorders = [Recorder(sink) if isinstance(sink, FileRange) else sink for sink in sinks]
    result = part(recorders)
    return result, [run for each in recorders if isinstance(each, Recorder) for run in each.runs]
