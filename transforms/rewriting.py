"""Apply passes to a model file, for convert, fold and transform."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent import futures
from pathlib import Path
from typing import Any

import onnx_ir as ir

from qgraph.errors import OptionError, meant, shown
from qgraph.model import Model, load
from qgraph.quantizers.sites import readable_sites
from qgraph.records import guarded
from qgraph.reports import Report
from qgraph.storage import datafiles, files as storage
from qgraph.storage.outputs import HOLDS_OLD_WEIGHTS, HOLDS_WEIGHTS, Outputs, StrPath, joined
from qgraph.storage.places import is_same
from qgraph.storage.reading import files_of
from qgraph.text import json_text
from qgraph.transforms.base import Transform, options_of, selects
from qgraph.transforms.drafts.choice import label
from qgraph.version import grouped, head

Progress = Callable[[str, int, int], None]
"""Called with the current step, the bytes done, and the bytes in all (0 if unknown)."""


@guarded(frozen=True, eq=False)
class Writing:
    """How a model file is written.

    Attributes:
        in_place: allow the result to replace the input model.
        external_data: whether weights are written to separate files; see :meth:`qgraph.Model.save`.
        shard_bytes: upper limit of one such file.
        safetensors: make them safetensors files.
        size_threshold: tensors of fewer bytes stay in the model file; None for the usual 1024.
        executor: runs the work on large weights, in processes or on other machines.
        progress: called for reading, for the passes, and for writing, then with bytes.
        outputs: the set of outputs with which model and report appear; None to write them at once.
    """

    in_place: bool = False
    external_data: bool | None = None
    shard_bytes: int | None = None
    safetensors: bool = False
    size_threshold: int | None = None
    executor: futures.Executor | None = None
    progress: Progress | None = None
    outputs: Outputs | None = None


@grouped(writing=Writing)
def rewrite(
    source: StrPath,
    out: StrPath,
    *steps: ir.passes.PassBase,
    report: StrPath | None = None,
    command: str = "transform",
    keep_inputs: bool = False,
    prove: bool = False,
    writing: Writing | None = None,
) -> Report:
    """Apply passes to a model file and write the result; nothing is written if anything fails.

    Args:
        source: the model file.
        out: path of the result; an existing file is replaced.
        steps: the passes, see :meth:`qgraph.Model.apply`.
        report: path of the JSON report; None for no report.
        command: name of the command in the report.
        keep_inputs: see :meth:`qgraph.Model.apply`.
        prove: write the result only if it is proved equal in value for every input.
        writing: how the result is written; None: as a new file, by the rules of its size.

    Raises:
        OptionError: a file that is read would be overwritten, or two files have one name.
        EquivalenceError: ``prove`` is set and the result differs, or cannot be decided
            (UndecidedError).
        QGraphError: the model is not usable, a pass fails, or a file cannot be written.
    """
    writing = writing or Writing()
    tell = writing.progress or (lambda _what, _done, _total: None)
    source, out = Path(source), Path(out)
    replaces_source = is_same(source, out)
    if replaces_source and not writing.in_place:
        raise OptionError(
            f"{out}: is the input model, expected another file. Choose another name, or replace "
            f"the model with --in-place (Writing(in_place=True) in Python)."
        )
    storage.check_target(out)
    with joined(writing.outputs) as together:
        own, *data = files_of(source)
        together.protect([] if replaces_source else [own])
        together.protect(data, HOLDS_WEIGHTS, stays=not replaces_source)
        together.protect(files_of(out)[1:], HOLDS_OLD_WEIGHTS, stays=False)
        output = together.reserve(out, follow_links=False)
        if report is not None:
            together.reserve(report)
        tell(f"reading {source.name}", 0, 0)
        model = load(source)
        before = None if report is None else dict(vars(model.identity()))
        tell(", ".join(getattr(step, "name", type(step).__name__) for step in steps), 0, 0)
        bounded = {step.name for step in steps if isinstance(step, Transform) and step.bounded}
        original = model.ir
        result = model.apply(*steps, keep_inputs=keep_inputs, atomic=prove or bool(bounded))
        result.command = command
        if not result.modified:
            expect_names(model, steps)
        if bounded:
            from qgraph.proof.bounds.changed_sites import bound_sites

            tell("bounding", 0, 0)
            bound_sites(original, model.ir, result, bounded)
        if prove:
            tell("proving", 0, 0)
            # The provers, and networkx with them, are loaded only where they are needed.
            from qgraph.execution import demonstration
            from qgraph.proof.certify import certify

            proof = certify(original, model.ir, keep_inputs=keep_inputs, runs=demonstration)
            proof.certificate.raise_if_not_proved()
        tell(f"writing {out.name}", 0, 0)
        threshold = writing.size_threshold
        model.save(
            out,
            external_data=writing.external_data,
            shard_bytes=writing.shard_bytes,
            safetensors=writing.safetensors,
            size_threshold=datafiles.THRESHOLD if threshold is None else threshold,
            executor=writing.executor,
            progress=lambda done, total: tell(f"writing {out.name}", done, total),
            outputs=together,
        )
        if report is not None:
            files = {"input": before, "output": described(out, output.file)}
            together.write_text(report, json_text(head(command) | files | result.to_json()))
    return result


def expect_names(model: Model, steps: Iterable[ir.passes.PassBase]) -> None:
    """Check that the patterns in the options of passes fit names in a model.

    Raises:
        OptionError: one fits none.
    """
    nodes = list(model.nodes())
    known: dict[str, tuple[str, Callable[[], Iterable[str]]]] = {
        "nodes": ("node", lambda: map(label, nodes)),
        "layers": ("node", lambda: map(label, nodes)),
        "operators": ("operator", lambda: (node.op_type for node in nodes)),
        "values": (
            "result of a quantizer",
            lambda: (str(site.y.name) for site in readable_sites(model.ir)),
        ),
    }
    for step in steps:
        for each in options_of(type(step)) if isinstance(step, Transform) else ():
            patterns = getattr(step, each.name)
            if each.name not in known or patterns == each.value:
                continue
            what, names_of = known[each.name]
            names = list(names_of())
            if not any(selects(patterns, name) for name in names):
                example = f" such as {names[0]!r}" if names else ""
                raise OptionError(
                    f"{each.name} is {shown(patterns)}, and no {what} has such a name, expected "
                    f"the name of one{example}; * and ? stand for any characters."
                    f"{meant(patterns, names)}"
                )


def described(path: Path, file: Path) -> dict[str, Any]:
    """Describe a model that was written to a temporary file."""
    loaded = load(file)
    digest, model = loaded.identity().sha256, loaded.ir
    opset = model.opset_imports.get("")
    return {"path": str(path), "sha256": digest, "opset": opset, "ir_version": model.ir_version}
