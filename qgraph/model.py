"""``Model``: load a model, apply passes (all or none), run it and save it."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import onnx
import onnx_ir
import onnx_ir as ir

from qgraph.effort import require_time
from qgraph.errors import OptionError, QGraphError, require, unexpected
from qgraph.graph.constants import constant, freeze_inputs
from qgraph.graph.opset.versions import declare_domains
from qgraph.graph.scopes import check_names, check_origins, nodes_of, owners
from qgraph.graph.structure import check_structure
from qgraph.graph.tensors import slots
from qgraph.reports import Report, SiteStatus
from qgraph.storage import datafiles, files as storage
from qgraph.storage.origin import Origin, hash_in_memory
from qgraph.storage.outputs import HOLDS_WEIGHTS, Outputs, joined
from qgraph.storage.places import is_same
from qgraph.storage.reading import files_of
from qgraph.text import Displayed, counted

if TYPE_CHECKING:
    from qgraph.certificate import Identity
    from qgraph.execution.prepare import Prepared
    from qgraph.storage.archive import Arrays


_warn_once = functools.cache(logging.getLogger(__name__).warning)

_OF_SIZES = frozenset({"Cast", "ConstantOfShape", "Expand", "Shape", "Size"})
"""Operators without which no parameter is known before the model runs, unless it is constant."""

_PASS = "an object of qgraph.transforms; qgraph.transform takes names of passes"


class Model(Displayed):
    """A thin wrapper of an onnx_ir model.

    Attributes:
        path: the file from which it was loaded, or to which it was saved last; None if there is
            none.
    """

    def __init__(
        self,
        ir_model: ir.Model,
        path: Path | None = None,
        *,
        lent: bool = True,
        origin: Origin | None = None,
    ) -> None:
        require(ir_model, ir.Model, "the model", "an onnx_ir.Model; qgraph.load reads all others")
        self._ir = ir_model
        self._origin = origin
        self._place = None if path is None else Path(os.path.abspath(path))
        # Whoever has seen the graph may edit it between two runs; as long as nobody has, the plan
        # of the last run holds without another look.
        self._lent = lent
        self.path = path
        self._prepared: Prepared | None = None
        # Weights may leave their files (folded weights are recomputed); the request for data files
        # stays.
        self._external_data = any(isinstance(s.tensor, ir.ExternalTensor) for s in slots(ir_model))

    @property
    def summary(self) -> str:
        """Its file, number of nodes, and opset."""
        source = "in memory" if self.path is None else str(self.path)
        count = sum(len(owner) for owner in owners(self._ir))
        return f"{source}, {counted(count, 'node')}, opset {self._ir.opset_imports.get('', 'none')}"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a pickled copy, without its file and caches."""
        return vars(self) | {"_origin": None, "_lent": True, "_prepared": None}

    @property
    def ir(self) -> ir.Model:
        """The model itself; it may be edited."""
        self._lent = True
        return self._ir

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        external_data: bool | None = None,
        shard_bytes: int | None = None,
        safetensors: bool = False,
        size_threshold: int = datafiles.THRESHOLD,
        executor: futures.Executor | None = None,
        progress: datafiles.Progress | None = None,
        outputs: Outputs | None = None,
    ) -> None:
        """Write the model; see :func:`qgraph.storage.files.save`.

        The file from which the model was loaded, and its data files, are not changed, unless
        ``path`` is that file.

        Raises:
            ModelError: the file cannot be written; an old file is then unchanged.
        """
        require(path, str | os.PathLike, "path", "the path of a file to write")
        if external_data is None and self._external_data:
            external_data = True
        with joined(outputs) as together:
            if self.path is not None and not is_same(self.path, path):
                own, *data = files_of(self.path)
                together.protect([own])
                together.protect(data, HOLDS_WEIGHTS)
            storage.save(
                self._ir,
                path,
                external_data=external_data,
                shard_bytes=shard_bytes,
                safetensors=safetensors,
                size_threshold=size_threshold,
                executor=executor,
                progress=progress,
                outputs=together,
            )
        # The file is compared with the model when its identity is requested.
        self.path, self._place = Path(path), Path(os.path.abspath(path))
        self._origin, self._lent = None, True

    def to_proto(self) -> onnx.ModelProto:
        """Return a new ``onnx.ModelProto`` of the model with all its weights.

        Raises:
            ModelError: it would be 2 GiB or larger; save the model with external data instead.
        """
        return storage.to_proto(self._ir)

    def identity(self) -> Identity:
        """Return the file and the hash of the model; no path for a model in memory.

        A model that was changed since it was loaded or saved has no path, and the hash of the model
        in memory: see :func:`qgraph.storage.origin.hash_in_memory`.

        Raises:
            ModelError: the model is too large for a message, or its weights cannot be read.
        """
        from qgraph.certificate import Identity

        origin, digest = self._origin, None
        if origin is not None and not self._lent:
            digest = origin.sha256()
        elif self._place is not None and (origin is None or origin.has_same_data()):
            digest = storage.hash_in_file(self._ir, self._place)
        if digest is None or self.path is None:
            return Identity(None, hash_in_memory(self._ir))
        return Identity(str(self.path), digest)

    def clone(self) -> Model:
        """Return a copy that can be changed independently; both share the weights."""
        copy = Model(self._ir.clone(), self.path, lent=self._lent, origin=self._origin)
        copy._place = self._place
        copy._external_data = self._external_data
        return copy

    def replace(self, other: Model) -> None:
        """Take over the graph and the weights of another model; keep the path."""
        self._ir, self._prepared = other.ir, None
        self._lent = True

    def nodes(self, *operators: str) -> Iterator[onnx_ir.Node]:
        """Yield the nodes of the main graph, its subgraphs and the functions.

        The nodes are listed first, so the graph may be changed during the iteration.

        Args:
            operators: if given, only nodes of these: ``Name`` in any domain, or ``domain::Name``.
        """
        has_domains = any("::" in each for each in operators)
        for owner in owners(self.ir):
            yield from [
                node
                for node in nodes_of(owner)
                if not operators
                or node.op_type in operators
                or (has_domains and f"{node.domain}::{node.op_type}" in operators)
            ]

    def constant(self, value: onnx_ir.Value | None) -> npt.NDArray[Any] | None:
        """Return the constant of ``value``; see :func:`qgraph.graph.constants.constant`."""
        require(value, onnx_ir.Value | None, "value", "an onnx_ir.Value, such as node.inputs[1]")
        return constant(value)

    @property
    def inputs(self) -> list[onnx_ir.Value]:
        """The graph inputs that must be fed: inputs without an initializer."""
        return [value for value in self.ir.graph.inputs if not value.is_initializer()]

    @property
    def outputs(self) -> list[onnx_ir.Value]:
        """The graph outputs."""
        return list(self.ir.graph.outputs)

    def freeze_inputs(self) -> int:
        """Make initializers among the graph inputs constants; return their number."""
        self._prepared = None
        self._lent = True
        return freeze_inputs(self._ir)

    def apply(
        self, *steps: onnx_ir.passes.PassBase, keep_inputs: bool = False, atomic: bool = True
    ) -> Report:
        """Run passes one after the other; if one fails, the model is not changed.

        First, domains that nodes use are imported, initializers are removed from the graph inputs,
        and parameters that depend only on static dimensions, casts or Expand become constants.

        Args:
            steps: passes of qgraph or of onnx_ir; only the former report sites.
            keep_inputs: do not treat initializers that are also graph inputs as constants.
            atomic: whether the passes run on a copy. If not, the model is unusable after a failed
                pass.

        Raises:
            QGraphError: a pass failed; an exception of another library's pass is its cause.
            UndecidedError: the time limit was reached.
        """
        for step in steps:
            require(step, onnx_ir.passes.PassBase, "a pass", _PASS)
        storage.sort_nodes(self._ir)
        report = Report(weight_bytes_before=storage.weight_bytes(self._ir))
        draft = self._ir.clone() if atomic else self._ir
        added = declare_domains(draft)
        if added:
            report.notes.append(f"declared operator sets: {', '.join(added)}")
        if not keep_inputs:
            report.frozen_inputs = freeze_inputs(draft)
        if any(node.op_type in _OF_SIZES for node in nodes_of(draft.graph)):
            from qgraph.ops.static_parameters import freeze_static_parameters

            if settled := freeze_static_parameters(draft):
                report.notes.append(
                    f"parameters that follow from static dimensions, casts or Expand: {settled}"
                )
        for number, step in enumerate(steps, 1):
            draft = _run_step(step, draft, report)
            report.settle()  # counts read nodes that the next pass may change
            changed, visited = report.count(SiteStatus.CHANGED), len(report.sites)
            done = f"{changed} of {visited} quantizers and nodes were changed, and "
            require_time(f"{done * bool(visited)}{number} of {len(steps)} passes were run")
        _warn_of_opset(steps, draft, report)
        if atomic:  # saving checks them, too
            check_names(draft)
        report.weight_bytes_after = storage.weight_bytes(draft)
        self._ir = draft
        self._lent = True  # to the passes
        return report

    def run(
        self, inputs: Arrays, *, backend: str = "auto", taps: Sequence[str] = ()
    ) -> dict[str, npt.NDArray[Any]]:
        """Compute the outputs, and the values named in ``taps``.

        Prepared data are cached until the model changes, so repeated runs are fast.

        Args:
            inputs: arrays by the names of the graph inputs, or the path of an archive (.npz) with
                them; an array may be the path of a file (.npy). Other arrays are ignored.
            backend: "auto", "numpy" or "ort"; auto is ONNX Runtime if it is installed.
            taps: names of further values to return.

        Raises:
            OptionError: there is no such backend.
            UnsupportedError: an operator has no kernel in the backend, or the backend is missing.
            ExecutionError: an input is missing or does not fit, or a node fails.
        """
        from qgraph.execution.prepare import Prepared
        from qgraph.quantizers.standardize import standardize
        from qgraph.storage.archive import arrays_by_name

        arrays = arrays_by_name(inputs)
        require(taps, list | tuple, "taps", "a list of names of tensors")
        if self._prepared is None:
            self._prepared = Prepared()
        unseen = not self._lent
        executor = self._prepared.executor(self._ir, backend, standardize, unseen=unseen)
        return executor.run(arrays, taps=taps)


def _warn_of_opset(
    steps: Sequence[onnx_ir.passes.PassBase], model: onnx_ir.Model, report: Report
) -> None:
    """Warn if the result has a higher opset than passes were given, unless they report it."""
    asked = [opset for step in steps if (opset := getattr(step, "opset", None)) is not None]
    present = model.opset_imports.get("", 0)
    if asked and max(asked) < present and not report.notes:
        _warn_once(
            f"opset={max(asked)} limits what is written, and does not lower the model's opset "
            f"{present}; for ONNX Runtime -p raise-microsoft{{opset={max(asked)}}} does, where all "
            "nodes exist there"
        )


Source = str | os.PathLike[str] | onnx.ModelProto | ir.Model | Model
"""Sources from which a model can be loaded."""


def load(source: Source) -> Model:
    """Return the model of a file, an ``onnx.ModelProto`` or an ``onnx_ir.Model``.

    A ``Model`` is returned itself. Weights in files are read when they are needed. Nodes are sorted
    if they are not in topological order.

    Raises:
        ModelError: the source is no usable model.
        OptionError: the source has another type.
    """
    if isinstance(source, Model):
        if source._lent:
            storage.sort_nodes(source._ir)
        return source
    if isinstance(source, ir.Model):
        check_structure(source)
        check_origins(source)
        storage.sort_nodes(source)
        return Model(source)
    if isinstance(source, onnx.ModelProto):
        own = onnx.ModelProto()
        own.CopyFrom(source)
        return Model(storage.from_proto(own), lent=False)
    if not isinstance(source, str | os.PathLike):
        raise OptionError(
            f"The model is {type(source).__name__}, expected a path, an onnx.ModelProto, an "
            "onnx_ir.Model or a qgraph.Model. Bytes are read by onnx.load_model_from_string."
        )
    model, origin = storage.read(source)
    return Model(model, Path(source), lent=False, origin=origin)


def _run_step(step: ir.passes.PassBase, model: ir.Model, report: Report) -> ir.Model:
    name = getattr(step, "name", "") or type(step).__name__
    try:
        result = step(model)
    except Exception as error:
        # onnx_ir's pass managers and conditions wrap errors in their own errors.
        cause: BaseException = error
        while not isinstance(cause, QGraphError) and cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, QGraphError):
            cause.add_note(f"in pass {name}; the model is as it was")
            if cause is error:
                raise
            raise cause from cause.__cause__
        raise QGraphError(
            f"Pass {name} could not handle the model ({unexpected(cause)}), which is unchanged. "
            "Leave the pass out. If onnx.checker accepts the model, report this to the authors of "
            "the pass, with the model."
        ) from error
    part = getattr(result, "report", None)
    if isinstance(part, Report):
        report.extend(part)
    return result.model
