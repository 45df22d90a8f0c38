"""``qgraph deploy``: rewrite a model so that its target executes it in integers."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qgraph.cli import options
from qgraph.cli.documents import show_document
from qgraph.cli.files import Views, planned, view_options
from qgraph.cli.inputs import InputOptions, range_option, within_option
from qgraph.cli.output import ProgressBar, Talk, show_paragraph
from qgraph.cli.several import output_folder, several_models

if TYPE_CHECKING:
    from qgraph.bound import Limit
    from qgraph.model import Model
    from qgraph.transforms.deployment.report import Deployment


@click.command(name="deploy")
@several_models
@output_folder
@options.output_option
@click.option(
    "--target",
    required=True,
    metavar="TARGET",
    shell_complete=options.offering("targets"),
    help="Name of a profile, see 'qgraph targets', or a path such as ./mychip.toml. "
    "NAME@PROCESSOR selects a processor [that of this machine, if the runtime is installed].",
)
@within_option(
    "Maximum distance of a segment from MODEL in real numbers: 1step, 0.05step, 0.1%, or for "
    "an output NAME:0.01, NAME:2ulp. Repeatable [1step]."
)
@range_option
@options.repeated(
    "--keep",
    metavar="PATTERN",
    text="Names of layers, with * and ?, into which no factors and biases are merged. Repeatable.",
    shell_complete=options.offering("nodes"),
)
@options.word_option(
    "--prefer",
    ["speed", "size"],
    "speed: use integer kernels, except for forms that the profile marks as slower; size: "
    "keep weights of 4 bits or fewer packed.",
    "speed",
)
@options.flag(
    "--tune",
    text="Measure both forms of each distinct layer on this machine, and use the faster one.",
)
@options.shape_option("Shape of an input for --tune and --measure, such as NAME:1,128.")
@options.file_option(
    "--inputs", text="Arrays of all inputs (.npz) for comparing MODEL with the result."
)
@click.option(
    "--labels",
    metavar="FILE|NAME",
    help="Labels of the rows of --inputs: a file (.npy), or a name in --inputs.",
)
@options.flag("--require-all", text="Exit with 1, and write nothing, if a layer stays in float.")
@click.option(
    "--explain",
    metavar="LAYER",
    shell_complete=options.offering("nodes"),
    help="Explain why a layer has its kernel, or none.",
)
@options.flag("--measure", text="Time the result, MODEL, and the network in float.")
@options.flag("--dry-run", text="Show what would be done; write no model.")
@options.report_option
@options.timeout_option
@options.table_options()
@options.file_option("--certificate", text="Write the certificate (JSON).")
@view_options("html", "markdown")
@options.talk_options
@click.pass_obj
def command(
    talk: Talk,
    model: Path,
    out: Path | None,
    target: str,
    within: tuple[Limit, ...],
    ranges: tuple[tuple[str, tuple[float, float]], ...],
    keep: tuple[str, ...],
    prefer: str,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    tune: bool,
    inputs: Path | None,
    labels: str | None,
    require_all: bool,
    explain: str | None,
    measure: bool,
    dry_run: bool,
    certificate: Path | None,
    views: Views,
) -> int:
    """Rewrite MODEL so that TARGET runs it in integers.

    Quantized layers are written in a form that integer kernels of TARGET accept. Every rewrite is
    proved equal, or bounded: given equal codes at the start of a segment, the codes at its end
    differ from those of MODEL, computed in real numbers, by at most the limit. A rewrite whose
    bound exceeds the limit is not done. Each layer is listed with its kernel, or with the reason
    why it has none.

    Exit status: 0 written, even if layers stay in float. Nothing is written with 1 (--require-all
    is given and a layer stays in float, or --inputs violate a bound) and 4 (--timeout is reached).
    """
    from qgraph.bound import Bounding
    from qgraph.comparison.check import Inputs
    from qgraph.model import load
    from qgraph.reporting.pages import page_of
    from qgraph.targets.reader import profile_of
    from qgraph.text import json_text
    from qgraph.transforms.deployment.deploy import deploy
    from qgraph.transforms.deployment.report import advice, proof_command
    from qgraph.transforms.rewriting import described

    views.check()
    if tune and prefer == "size":
        raise click.UsageError(
            "--tune optimizes for speed, and --prefer size for size. Use one of them."
        )
    if (measure or tune) and profile_of(target).executed is None:
        option = "--measure" if measure else "--tune"
        raise click.UsageError(f"{target} cannot be run here. Omit {option}.")
    sizes = dict(shapes)
    data = InputOptions({}, inputs, None, 0, {}, None)
    if out is None and not (dry_run or explain):
        raise click.UsageError("-o OUT, the model to write, is missing. Add it, or --dry-run.")
    written = None if dry_run or explain else out
    targets = (written, certificate, *views.paths)
    read = (inputs, data.labels_file(labels))
    with planned(targets, models=[model], files=read) as outputs:
        with ProgressBar(talk) as bar:
            bar.tell(f"reading {model.name}", 0, 0)
            loaded = load(model)
            identity = loaded.identity()
            reference = loaded.clone()
            feeds = data.feeds(talk, loaded, besides=labels)
            bar.tell(f"deploying {model.name}", 0, 0)
            with data.labelled(labels) as right:
                deployment = deploy(
                    loaded,
                    target,
                    within=Bounding(within or "1step", ranges=dict(ranges)),
                    keep=keep,
                    require_all=require_all,
                    prefer="tuned" if tune else prefer,
                    inputs=Inputs(feeds, shapes=sizes),
                    labels=right,
                )
            if measure:
                bar.tell("timing", 0, 0)
                deployment = _timed(deployment, reference, loaded, sizes)
            if written is not None:
                bar.tell(f"writing {written.name}", 0, 0)
                loaded.save(written, outputs=outputs)
            document = deployment.to_json()
            document["input"] = dict(vars(identity))
            document |= {"output": None, "prove": None, "lint": None}
            if written is not None:
                document["output"] = described(written, outputs.written(written))
                request = deployment.certificate.bounding
                document["prove"] = proof_command(request, str(model), str(written))
                document["lint"] = shlex.join(["qgraph", "lint", str(written), "--target", target])
            document["next"] = advice(document)
            views.write(document, None, outputs)
            if certificate is not None:
                proof = deployment.certificate.to_json()
                if document["output"] is not None:
                    proof["candidate"] = {n: document["output"][n] for n in ("path", "sha256")}
                outputs.write_text(certificate, json_text(proof))
        if explain is not None:
            for line in deployment.explained(explain):
                show_paragraph(line)
            talk.note(f"next: {document['next']}")
            return 0
        show_document(talk, document, page_of, (model,))
        if written is not None:
            talk.note(f"wrote {written}")
    return 0


def _timed(
    deployment: Deployment, reference: Model, result: Model, shapes: dict[str, tuple[int, ...]]
) -> Deployment:
    """Return a deployment with the times of the result, of the network in float, and of the input.

    If the runtime does not accept the input, its quantizers are converted first. What it does not
    run at all is noted.
    """
    from qgraph.comparison.bench import Timing, beside_float
    from qgraph.errors import ExecutionError
    from qgraph.transforms.convert import ConvertDialect, FoldWeights
    from qgraph.transforms.deployment.attempts import float_network

    options = dict(deployment.session_options)
    timing = Timing(deployment.runtime or "", shapes=shapes, options=options)
    converted = reference.clone()
    converted.apply(ConvertDialect(to="qdq"), FoldWeights())
    try:
        times = beside_float(float_network(reference), result, [reference, converted], timing)
    except ExecutionError as error:
        why = f"not timed; another --shape may help: {error}"
        return replace(deployment, notes=[*deployment.notes, why])
    return replace(deployment, measured=times)
