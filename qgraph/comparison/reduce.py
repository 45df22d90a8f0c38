"""Reduce two models to the smallest part that still shows their difference."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from qgraph.comparison.check import Inputs, check
from qgraph.comparison.divergence import correspondence, excerpt, frontier, values_of
from qgraph.comparison.metrics import OutputComparison, compare
from qgraph.comparison.report import CheckReport
from qgraph.effort import is_over
from qgraph.errors import QGraphError, UndecidedError, plain_message
from qgraph.execution.executor import Backend
from qgraph.execution.prepare import prepare
from qgraph.graph.interface import interface, names
from qgraph.model import Model, Source, load
from qgraph.numerics import Array
from qgraph.records import dataclass
from qgraph.storage import files as storage
from qgraph.storage.archive import Arrays, write_arrays
from qgraph.storage.outputs import Outputs, joined
from qgraph.version import grouped

REFERENCE, CANDIDATE, INPUTS = "reference.onnx", "candidate.onnx", "inputs.npz"
"""Names of the files of a reduction."""


@dataclass(frozen=True)
class Reduction:
    """Two small models that differ, and the input that shows it.

    Attributes:
        reference, candidate: the parts of both models.
        inputs: by the names of the inputs of both.
        tensor: the tensor of the reference that the parts compute.
        node, op: the node that computes it in the reference.
        compared: difference of the outputs of the parts.
        nodes: numbers of nodes of the parts.
        nodes_before: numbers of nodes of the models.
        report: report on the whole models.
    """

    reference: ir.Model
    candidate: ir.Model
    inputs: Mapping[str, Array]
    tensor: str
    node: str
    op: str
    compared: OutputComparison
    nodes: tuple[int, int]
    nodes_before: tuple[int, int]
    report: CheckReport

    def __repr__(self) -> str:
        sizes = " and ".join(map(str, self.nodes))
        return f"<Reduction: {self.tensor!r}, parts of {sizes} nodes>"

    def save(self, folder: str | os.PathLike[str], outputs: Outputs | None = None) -> list[Path]:
        """Write both models and the input to a folder, together or not at all; return the files.

        They appear with a set of ``outputs``, or at once. Raises QGraphError if a file cannot be
        written.
        """
        target = Path(folder)
        files = [target / name for name in (REFERENCE, CANDIDATE, INPUTS)]
        with joined(outputs) as together:
            try:
                together.make_folder(target)
            except OSError as error:
                raise QGraphError(
                    f"{target}: cannot be created ({plain_message(error)}), expected a folder. "
                    "Choose another name."
                ) from error
            storage.save(self.reference, files[0], outputs=together)
            storage.save(self.candidate, files[1], outputs=together)
            write_arrays(files[2], self.inputs, together)
        return files


@grouped(inputs=Inputs)
def reduce(
    reference: Source,
    candidate: Source,
    inputs: Inputs | Arrays | None = None,
    *,
    backend: str = Backend.AUTO,
) -> Reduction:
    """Reduce two models to the part in which they begin to differ.

    The models are run on inputs as :func:`qgraph.comparison.check.check` does. The nodes that
    compute the first differing tensor from equal tensors are cut out of both models, and run on
    these tensors. If the parts do not differ, they are extended to earlier tensors, by bisection.
    Then a single sample that shows the difference is searched.

    Args:
        reference: a path or a model.
        candidate: a path or a model.
        inputs: see :func:`qgraph.comparison.check.check`.
        backend: "auto", "numpy" or "ort".

    Raises:
        UndecidedError: no difference was found on these inputs.
        ModelError: a model is not usable, or their numbers of inputs or outputs differ.
        OptionError: an option is wrong.
        UnsupportedError: an operator has no kernel in the backend, or the backend is missing.
        ExecutionError: a model cannot be run on the inputs.
    """
    models = load(reference), load(candidate)
    report = check(*models, inputs, backend=backend)
    if report.example is None:
        raise UndecidedError(
            f"The outputs are equal on the {report.batches} "
            f"{'batch' if report.batches == 1 else 'batches'} of inputs, expected a difference to "
            "reduce. Give inputs that show one, or try more: random=N, probes=N (--random, "
            "--probes).",
            report=report,
        )
    return _Reducer(models[0], models[1], report, backend).reduce()


class _Reducer:
    """Both models without overridable initializers, and the tensors where they can be cut."""

    def __init__(
        self, reference: Model, candidate: Model, report: CheckReport, backend: str
    ) -> None:
        self._models = reference.clone(), candidate.clone()
        for model in self._models:
            model.freeze_inputs()
        self._report = report
        self._backend = backend
        ours, theirs = self._models
        paired = interface(ours.ir.graph, theirs.ir.graph)
        self._inputs, outputs = names(paired.inputs), names(paired.outputs)
        first = report.first_divergence
        if first is not None:
            self._output = first.reference, first.candidate
        else:
            wrong = next(each.name for each in report.outputs if not each.equal)
            self._output = wrong, outputs[wrong]
        self._cuts = self._places(outputs)
        self._values: dict[str, Array] = {}

    def reduce(self) -> Reduction:
        """Return the smallest part that shows the difference."""
        self._measure()
        low, high = 0, len(self._cuts)
        best = self._try(high)
        if best is None:
            best = self._try(0)
            while best is not None and high - low > 1 and not is_over():
                middle = (low + high) // 2
                reduction = self._try(middle)
                if reduction is None:
                    high = middle
                else:
                    low, best = middle, reduction
        if best is None:
            raise UndecidedError(
                f"The difference of tensor {self._output[0]!r} disappears when it is computed "
                f"alone from the inputs of the models. Use backend 'numpy', which computes each "
                f"node separately.",
                report=self._report,
            )
        return self._with_one_row(best)

    def _places(self, outputs: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return the pairs of equal tensors that depend on inputs, in the order of the graph."""
        equal = {tensor.reference for tensor in self._report.tensors if tensor.compared.equal}
        names = [[str(value.name) for value in model.ir.graph.inputs] for model in self._models]
        changing = [
            prepare(model.ir, Backend.NUMPY).depending_on(own)
            for model, own in zip(self._models, names, strict=True)
        ]
        return [
            (match.reference, match.candidate)
            for match in correspondence(*self._models, outputs)
            if match.reference in equal
            and match.reference in changing[0]
            and match.candidate in changing[1]
            and match.reference != self._output[0]
            and match.candidate != self._output[1]
        ]

    def _measure(self) -> None:
        wanted = [name for n in (len(self._cuts), 0) for name, _ in self._entries(n)]
        self._values = self._run_taps(list(dict.fromkeys(wanted)))

    def _run_taps(self, names: Sequence[str]) -> dict[str, Array]:
        example = dict(self._report.example or {})
        arrays = {name: np.asarray(array) for name, array in example.items()}
        missing = [name for name in names if name not in arrays]
        if missing:
            arrays |= prepare(self._models[0].ir, self._backend).run(example, taps=missing)
        return arrays

    def _entries(self, number: int) -> list[tuple[str, list[str]]]:
        """Return names where a part begins, if ``number`` pairs of equal values may be used."""
        pairs = [*self._inputs.items(), *self._cuts[:number]]
        ends: list[list[str]] = []
        for side, model in enumerate(self._models):
            graph = model.ir.graph
            values = {str(v.name): v for v in values_of(graph)}
            allowed = {values[pair[side]] for pair in pairs}
            output = values[self._output[side]]
            ends.append([str(v.name) for v in frontier(graph, output, allowed)])
        partners = dict(pairs)
        origins = {theirs: ours for ours, theirs in reversed(pairs)}
        needed: dict[str, list[str]] = {name: [] for name in ends[0]}
        for theirs in ends[1]:
            ours = next((name for name in ends[0] if partners.get(name) == theirs), origins[theirs])
            needed.setdefault(ours, []).append(theirs)
        return list(needed.items())

    def _try(self, number: int) -> Reduction | None:
        """Return the parts that begin at the given cuts if they differ."""
        entries = self._entries(number)
        if any(name not in self._values for name, _ in entries):
            self._values |= self._run_taps([name for name, _ in entries])
        values = {str(v.name): v for v in values_of(self._models[0].ir.graph)}
        used = {
            str(v.name)
            for v in frontier(
                self._models[0].ir.graph,
                values[self._output[0]],
                {values[name] for name, _ in entries},
            )
        }
        parts = []
        ours = [(name, name) for name, _ in entries if name in used]
        theirs = [(other, name) for name, others in entries for other in others[:1]]
        for model, renamed, output in zip(self._models, (ours, theirs), self._output, strict=True):
            absent = [name for name, _ in entries if name not in {new for _, new in renamed}]
            part = excerpt(model, renamed, (output, self._output[0]), absent)
            order = {name: index for index, (name, _) in enumerate(entries)}
            inputs = sorted(part.graph.inputs, key=lambda value: order[str(value.name)])
            part.graph.inputs.clear()
            part.graph.inputs.extend(inputs)
            parts.append(part)
        feeds = {name: self._values[name] for name, _ in entries}
        return self._compared((parts[0], parts[1]), feeds)

    def _compared(
        self, parts: tuple[ir.Model, ir.Model], feeds: Mapping[str, Array]
    ) -> Reduction | None:
        """Return a reduction if two parts differ on the inputs."""
        for part in parts:
            for value in part.graph.inputs:
                array = feeds[str(value.name)]
                value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
                value.shape = ir.Shape(array.shape)
        try:
            results = [
                prepare(part, self._backend).run(feeds)[str(part.graph.outputs[0].name)]
                for part in parts
            ]
        except QGraphError:
            return None
        compared = compare(self._output[0], [results[0]], [results[1]])
        if compared.equal:
            return None
        for part, result in zip(parts, results, strict=True):
            if isinstance(result, np.ndarray):
                value = part.graph.outputs[0]
                value.type = ir.TensorType(ir.DataType.from_numpy(result.dtype))
                value.shape = ir.Shape(result.shape)
        first = self._report.first_divergence
        return Reduction(
            *parts,
            dict(feeds),
            self._output[0],
            "" if first is None else first.node,
            "" if first is None else first.op,
            compared,
            _counts(parts),
            _counts((self._models[0].ir, self._models[1].ir)),
            self._report,
        )

    def _with_one_row(self, reduction: Reduction) -> Reduction:
        """Return the reduction to the first sample that shows the difference, along axis 0."""
        sizes = {len(array) if array.ndim else 0 for array in reduction.inputs.values()}
        if len(sizes) != 1 or (count := sizes.pop()) < 2:
            return reduction
        low, high = 0, count
        best = reduction
        while high - low > 1 and not is_over():
            middle = (low + high) // 2
            for start, stop in ((low, middle), (middle, high)):
                feeds = {name: array[start:stop] for name, array in reduction.inputs.items()}
                parts = reduction.reference.clone(), reduction.candidate.clone()
                smaller = self._compared(parts, feeds)
                if smaller is not None:
                    best, low, high = smaller, start, stop
                    break
            else:
                return best
        return best


def _counts(parts: tuple[ir.Model, ir.Model]) -> tuple[int, int]:
    return len(parts[0].graph), len(parts[1].graph)
