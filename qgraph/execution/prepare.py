"""Prepare a model for runs, and run it on a dataset batch by batch."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import ExecutionError, OptionError, member
from qgraph.execution.executor import AloneNodes, Backend, Executor
from qgraph.execution.inputs import describe, make_inputs
from qgraph.execution.runtime import RuntimeExecutor, Standardize
from qgraph.graph.scopes import Body, owners
from qgraph.graph.sizes import static
from qgraph.graph.tensors import FileRows

_NODE = attrgetter("inputs", "op_type", "domain", "attributes.data")
_TENSOR = attrgetter("const_value")


def prepare(
    model: ir.Model,
    backend: str = Backend.AUTO,
    *,
    standardize: Standardize | None = None,
    shares_memory: bool = False,
) -> Executor:
    """Return an executor of ``model`` for any number of runs.

    Args:
        model: must not change while it is run.
        backend: see :class:`Backend`.
        standardize: makes an equal model of standard operators, which ONNX Runtime runs faster;
            see :class:`qgraph.execution.runtime.RuntimeExecutor`. Do not standardize models that
            are compared: ONNX Runtime adds products with constant weights in another order than
            products with computed ones.
        shares_memory: take the memory of ONNX Runtime from one place with others that share it,
            where many models are held at once. Otherwise each of its sessions keeps its own.

    Raises:
        OptionError: there is no such backend.
        UnsupportedError: a node has no implementation, or ONNX Runtime is asked for and missing.
    """
    chosen = member(Backend, backend, "backend")
    installed = importlib.util.find_spec("onnxruntime") is not None
    if chosen is Backend.NUMPY or (chosen is Backend.AUTO and not installed):
        alone = AloneNodes()
        executor = Executor(model, alone)
        alone.tell()
        return executor
    return RuntimeExecutor(model, standardize, shares_memory=shares_memory)


class Prepared:
    """Executors of one model, by backend; they are made again only if the model has changed.

    A model may be edited between two runs in many ways, so each time its parts are compared with
    those that were planned: a few microseconds for a small model. Threads may share it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._model: ir.Model | None = None
        self._owners: list[Body] = []
        self._graphs: list[ir.Graph] = []
        self._parts: list[object] = []
        self._executors: dict[str, Executor] = {}

    def executor(
        self, model: ir.Model, backend: str, standardize: Standardize, *, unseen: bool = False
    ) -> Executor:
        """Return an executor of ``model`` as it is now; see :func:`prepare`.

        ``standardize`` is always the same function. ``unseen`` says that nobody can have edited the
        model since the last call.
        """
        chosen = member(Backend, backend, "backend")
        with self._lock:
            if not (unseen and model is self._model) and self._changed(model):
                self._note(model)
            if chosen not in self._executors:
                self._executors[chosen] = prepare(model, chosen, standardize=standardize)
            return self._executors[chosen]

    def _note(self, model: ir.Model) -> None:
        self._model = model
        self._owners = list(owners(model))
        self._graphs = [graph for owner in self._owners for graph in _graphs(owner)]
        # Attributes are held in a copy of their dictionary, everything else by itself.
        self._parts = [
            (*part[:-1], dict(part[-1])) if isinstance(part, tuple) else part
            for part in _parts(self._graphs)
        ]
        self._executors.clear()

    def _changed(self, model: ir.Model) -> bool:
        if not self._graphs or self._owners != list(owners(model)):
            return True
        # A subgraph that comes or goes is seen by the attribute that has it.
        return self._parts != _parts(self._graphs)


def _graphs(owner: Body) -> list[ir.Graph]:
    graph = owner if isinstance(owner, ir.Graph) else owner.graph
    return [graph, *owner.subgraphs()]


def _parts(graphs: list[ir.Graph]) -> list[object]:
    parts: list[object] = []
    for graph in graphs:
        nodes, values = list(graph), graph.initializers.values()
        for objects in (graph.inputs, graph.outputs, nodes, values):
            parts.extend(objects)
        parts.extend(map(_NODE, nodes))
        parts.extend(map(_TENSOR, values))
    return parts


Receiver = Callable[[str, Any], None]
"""Takes the name of a tensor and its value, which it must not keep."""


class RandomBatches:
    """Seeded random inputs of a model, each of a number of batches made when it is run."""

    def __init__(
        self,
        inputs: Sequence[ir.Value],
        number: int = 1,
        seed: int = 0,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self._inputs, self._number = inputs, number
        self._seed, self._shapes = seed, shapes

    def __len__(self) -> int:
        return self._number

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self._number):
            yield make_inputs(self._inputs, seed=self._seed, number=number, shapes=self._shapes)


class Batches:
    """The inputs of each run, in order; arrays are views of the dataset, or read from its file.

    An input is cut where it has more rows, entries along the first axis, than the model fixes, or
    where the model leaves their number open and ``size`` is given. All others are fed to every
    batch as they are.

    Args:
        graph: of the model.
        inputs: an array for each input.
        size: rows of a batch where the model leaves their number open; the last batch may have
            less. None runs all at once there.

    Raises:
        OptionError: a size is given, but the model fixes another one.
        ExecutionError: inputs have different numbers of batches, or the last one is not full.
    """

    def __init__(
        self, graph: ir.Graph, inputs: Mapping[str, npt.ArrayLike], size: int | None = None
    ) -> None:
        self._inputs = dict(inputs)
        self._steps: dict[str, int] = {}
        self._rows: dict[bool, tuple[str, int]] = {}
        self._count = 1
        takes_size = False
        for value in graph.inputs:
            array = self._inputs.get(str(value.name))
            if not isinstance(array, np.ndarray | FileRows) or not value.shape:
                continue
            if array.ndim != len(value.shape):
                continue
            fixed = static(value.shape.dims[0])
            takes_size |= fixed in (None, size)
            if fixed is not None and len(array) > fixed:
                self._cut_full(value, len(array), fixed)
            elif fixed is None and size is not None:
                self._cut(value, len(array), size, is_open=True)
        if size is not None and not takes_size:
            fed = ", ".join(describe(value) for value in graph.inputs) or "none"
            raise OptionError(
                f"Batches of {size} are asked for, but the model fixes the first dimension of its "
                f"inputs: {fed}. Leave the batch size out."
            )

    def __len__(self) -> int:
        """Return how many batches there are; 1 where nothing is cut."""
        return self._count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the inputs of each run."""
        for number in range(self._count):
            yield {name: self._part(name, number) for name in self._inputs}

    def _part(self, name: str, number: int) -> Any:
        step, whole = self._steps.get(name), self._inputs[name]
        if isinstance(whole, FileRows):
            if step is None:
                return np.asarray(whole)
            return whole.rows(number * step, (number + 1) * step)
        return whole if step is None else np.asarray(whole)[number * step : (number + 1) * step]

    def _cut_full(self, value: ir.Value, rows: int, step: int) -> None:
        if step == 0 or rows % step:
            raise ExecutionError(
                f"Input {describe(value)} is fed {rows} rows, expected a multiple of the {step} "
                "that the model takes at once. Leave some out, or export it with an open batch."
            )
        self._cut(value, rows, step, is_open=False)

    def _cut(self, value: ir.Value, rows: int, step: int, *, is_open: bool) -> None:
        count = max(-(-rows // step), 1)
        first, expected = self._rows.setdefault(is_open, (str(value.name), rows))
        uneven = is_open and rows != expected and max(rows, expected) > step
        if uneven or (self._steps and count != self._count):
            other = (
                f"{expected} as of {first!r}" if uneven else f"{self._count} batches as of others"
            )
            raise ExecutionError(
                f"Input {describe(value)} is fed {rows} rows, which are {count} batches, expected "
                f"{other}. Feed as many rows of each, or leave the batch size out."
            )
        self._steps[str(value.name)], self._count = step, count


def run_batches(
    executor: Executor,
    batches: Iterable[Mapping[str, Any]],
    receive: Receiver,
    *,
    taps: Sequence[str] = (),
    progress: Callable[[int], None] | None = None,
) -> None:
    """Run all batches, and hand over name and value of every output and tap as soon as it is known.

    Nothing is held. What depends on no input is handed over in the first run only. ``progress`` is
    called with the number of finished batches.
    """
    wanted: Sequence[str] = taps
    for number, inputs in enumerate(batches):
        if progress is not None:
            progress(number)
        if number == 1:
            changing = executor.depending_on(inputs.keys())
            wanted = [name for name in taps if name in changing]
        for name, value in executor.run(inputs, taps=wanted, observe=receive).items():
            if name not in taps:
                receive(name, value)
