"""Tensors whose bytes are computed while a model is saved, and the work that computes them.

A pass over a big model only plans. What it plans is a :class:`Job`: it reads a weight piece by
piece and gives one tensor or several, such as codes and scales. A job is cut into parts that know
nothing of the model, so that they run in threads, in processes, or on other machines that see the
same files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.numerics.formats import numpy_dtype
from qgraph.numerics.packing import packed_size, unpack
from qgraph.tensors.records import Recorder, Run
from qgraph.tensors.streaming import FileRange, Sink, width_of

Array = npt.NDArray[Any]

PART_BYTES = 1 << 26
"""About how many bytes one part of a job reads."""

MOST_TENSORS = 8
"""A job gives no more than so many tensors."""

_WAITING = 16
"""Parts that are handed out before others are done."""


class Part(Protocol):
    """A piece of work, to be pickled and run anywhere."""

    @property
    def reads(self) -> int:
        """How many bytes it reads."""

    def __call__(self, sinks: Sequence[Sink]) -> Any:
        """Write the tensors of the job to the sinks, by their places.

        Returns: what the job should know.

        The bytes that two parts write do not overlap.
        """


class Job(Protocol):
    """Work that gives tensors."""

    def parts(self) -> Sequence[Part]:
        """Return the work, cut into parts."""

    def conclude(self, results: Sequence[Any]) -> None:
        """Take what the parts have returned, in their order.

        Raises:
            ModelError: the tensors are not what was promised.
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
    """Nobody wants these bytes."""

    def write(self, at: int, data: Array) -> None:
        """Do nothing."""


class DeferredTensor(ir.LazyTensor):
    """A tensor that a job will give; until then it has a type and a shape only.

    Attributes:
        job: what computes it.
        place: which of the job's tensors it is, from 0.
    """

    def __init__(
        self, job: Job, place: int, dtype: ir.DataType, shape: Sequence[int], name: str = ""
    ) -> None:
        super().__init__(self._array, dtype, ir.Shape(shape), name=name)
        self.job = job
        self.place = place

    def tobytes(self) -> bytes:
        """Compute the tensor now and return its bytes, packed as in a file."""
        return self._compute().tobytes()

    def tofile(self, file: Any) -> None:
        """Compute the tensor now and write its bytes, packed."""
        file.write(self.tobytes())

    def __repr__(self) -> str:
        return f"DeferredTensor<{self.dtype},{self.shape}>(name={self.name!r})"

    def _array(self) -> ir.TensorProtocol:
        data, bits = self._compute(), self.dtype.bitwidth
        if bits < 8:
            data = unpack(data, bits, self.size)
        array = data.view(numpy_dtype(self.dtype.name)).reshape(self.shape.numpy())
        return ir.Tensor(array, self.dtype, name=self.name)

    def _compute(self) -> npt.NDArray[np.uint8]:
        sink = MemorySink(packed_size(width_of(self.dtype.name), self.size))
        sinks: list[Sink] = [NoSink() for _ in range(MOST_TENSORS)]
        sinks[self.place] = sink
        self.job.conclude([part(sinks) for part in self.job.parts()])
        return sink.data


def carry_out(
    work: Iterable[tuple[Job, Sequence[Sink]]],
    executor: Executor,
    tell: Callable[[int], None],
) -> list[Run]:
    """Run all parts of all jobs; each job is concluded as soon as its last part is done.

    After a failure no further part is begun, and those that run are waited for.

    Args:
        work: jobs, and where the bytes of their tensors go.
        executor: runs the parts.
        tell: is told how many bytes a part has read, after it.

    Returns:
        What was written into files.
    """
    runs: list[Run] = []
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


def _recorded(part: Part, sinks: Sequence[Sink]) -> tuple[Any, list[Run]]:
    """Run a part where it was sent to; return its result and what it wrote into files."""
    recorders = [Recorder(sink) if isinstance(sink, FileRange) else sink for sink in sinks]
    result = part(recorders)
    return result, [run for each in recorders if isinstance(each, Recorder) for run in each.runs]


class _Open:
    """A job of which some parts are not done yet."""

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
