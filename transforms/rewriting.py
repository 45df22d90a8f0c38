"""Applying passes to a model file: what convert, fold and transform do."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import onnx_ir as ir

from qgraph import __version__, storage
from qgraph.errors import OptionError
from qgraph.files import is_same, json_text, replacing
from qgraph.model import Model, load
from qgraph.report import SCHEMA, Report
from qgraph.tensors import slots

StrPath = str | os.PathLike[str]

Progress = Callable[[str, int, int], None]
"""Is told what is being done, how many parts of it are done, and of how many (0: not known)."""


def rewrite(
    source: StrPath,
    out: StrPath,
    *steps: ir.passes.PassBase,
    report: StrPath | None = None,
    command: str = "transform",
    keep_inputs: bool = False,
    in_place: bool = False,
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
        progress: is told of reading, of the passes, and of writing.

    Raises:
        OptionError: a file that is read would be overwritten, or two files have one name.
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
        before = None if file is None else {"path": str(source), "sha256": storage.sha256(source)}
        tell(", ".join(getattr(step, "name", type(step).__name__) for step in steps), 0, 0)
        found = model.apply(*steps, keep_inputs=keep_inputs)
        if file is not None:
            # The report takes its place on the disk before the model is replaced.
            file.write(_document(command, before, _output(out, model, "0" * 64), found))
            file.flush()
        tell(f"writing {out.name}", 0, 0)
        model.save(out, progress=lambda done, total: tell(f"writing {out.name}", done, total))
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
