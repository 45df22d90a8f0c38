"""Applying passes to a model file: what convert, fold and transform do."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import onnx_ir as ir

from qgraph import __version__
from qgraph.errors import OptionError
from qgraph.files import is_same, json_text, replacing
from qgraph.graph.tensors import slots
from qgraph.model import Model, load
from qgraph.report import SCHEMA, Report
from qgraph.storage import datafiles
from qgraph.storage import files as storage

StrPath = str | os.PathLike[str]

Progress = Callable[[str, int, int], None]
"""Is told what is being done, how many bytes of it are done, and of how many (0: not known)."""

_COUNTS_BYTES = 160
"""More than the counts of a weight take in a report."""


def rewrite(
    source: StrPath,
    out: StrPath,
    *steps: ir.passes.PassBase,
    report: StrPath | None = None,
    command: str = "transform",
    keep_inputs: bool = False,
    in_place: bool = False,
    prove: bool = False,
    external_data: bool | None = None,
    shard_bytes: int | None = None,
    safetensors: bool = False,
    size_threshold: int | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Report:
    """Apply passes to a model file and write the result; nothing is written if anything fails.

    Args:
        source: the model file.
        out: where the result goes; an existing file is replaced.
        steps: the passes, see :meth:`qgraph.Model.apply`.
        report: where a JSON report goes.
        command: how the report names what was done.
        keep_inputs: see :meth:`qgraph.Model.apply`.
        in_place: allow ``out`` to be ``source``.
        prove: write only what is proved equal in value for every input.
        external_data: whether weights go to files of their own; see :meth:`qgraph.Model.save`.
        shard_bytes: upper limit of one such file.
        safetensors: make them safetensors files.
        size_threshold: tensors of fewer bytes stay in the model file; None for the usual 1024.
        executor: runs the work on big weights, in processes or on other machines.
        progress: is told of reading, of the passes, and of writing, then in bytes.

    Raises:
        OptionError: a file that is read would be overwritten, or two files have one name.
        EquivalenceError: ``prove`` is set and the result differs, or cannot be decided
            (UndecidedError).
        QGraphError: the model is not usable, a pass fails, or a file cannot be written.
    """
    tell = progress or _silent
    source, out = Path(source), Path(out)
    if not in_place and is_same(source, out):
        raise OptionError(
            f"{out}: is the model that is read, expected another file. Choose another name, or "
            "allow that the model is replaced with --in-place (in_place=True in Python)."
        )
    storage.check_target(out)
    tell(f"reading {source.name}", 0, 0)
    model = load(source)
    _refuse_data_files(model, out)
    if report is not None:
        _refuse_data_files(model, Path(report))
        if is_same(source, Path(report)) or is_same(out, Path(report)):
            raise OptionError(f"{report}: is a model of this command too. Name another file.")
    with nullcontext() if report is None else replacing(report) as file:
        before = None if file is None else dict(vars(model.identity()))
        tell(", ".join(getattr(step, "name", type(step).__name__) for step in steps), 0, 0)
        original = model.ir
        found = model.apply(*steps, keep_inputs=keep_inputs)
        if prove:
            tell("proving", 0, 0)
            # The provers, and networkx with them, are loaded only where they are needed.
            from qgraph.certification import certify

            certificate = certify.prove(original, model, keep_inputs=keep_inputs, hashes=False)
            certificate.raise_if_not_proved()
        if file is not None:
            # The report takes its place on the disk before the model is replaced.
            file.write(_document(command, before, _output(out, model, "0" * 64), found))
            # Counts that are known only after the weights were written need room as well.
            file.write(b" " * (_COUNTS_BYTES * len(found.sites)))
            file.flush()
        tell(f"writing {out.name}", 0, 0)
        model.save(
            out,
            external_data=external_data,
            shard_bytes=shard_bytes,
            safetensors=safetensors,
            size_threshold=datafiles.THRESHOLD if size_threshold is None else size_threshold,
            executor=executor,
            progress=lambda done, total: tell(f"writing {out.name}", done, total),
        )
        if file is not None:
            file.seek(0)
            after = _output(out, load(out), storage.sha256(out))
            file.write(_document(command, before, after, found))
            file.truncate()
    return found


def _document(command: str, source: object, out: object, report: Report) -> bytes:
    document = {"qgraph": __version__, "schema": SCHEMA, "command": command}
    return json_text(document | {"input": source, "output": out} | report.to_json()).encode()


def _output(path: Path, model: Model, digest: str) -> dict[str, Any]:
    opset = model.ir.opset_imports.get("")
    version = model.ir.ir_version
    return {"path": str(path), "sha256": digest, "opset": opset, "ir_version": version}


def _silent(_what: str, _done: int, _total: int) -> None:
    pass


def _refuse_data_files(model: Model, path: Path) -> None:
    """Refuse to write over a file that holds weights of the model that is read."""
    tensors = (slot.tensor for slot in slots(model.ir))
    for file in {tensor.path for tensor in tensors if isinstance(tensor, ir.ExternalTensor)}:
        if is_same(Path(file), path):
            raise OptionError(
                f"{path}: holds weights of the model that is read, expected another file. "
                "Choose another name."
            )
