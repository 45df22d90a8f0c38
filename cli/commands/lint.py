"""``qgraph lint``: apply rules about quantized models."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qgraph.cli import options
from qgraph.cli.documents import show_document
from qgraph.cli.files import Views, planned, view_options
from qgraph.cli.inputs import InputOptions, input_options
from qgraph.cli.linting import FixOptions, LintOptions, fix_options, lint_options
from qgraph.cli.output import DIFFERENT, UNUSABLE, Talk, print_failure
from qgraph.cli.progress import ProgressBar
from qgraph.cli.several import found_models
from qgraph.errors import OptionError, QGraphError

if TYPE_CHECKING:
    from qgraph.lint.engine import LintReport
    from qgraph.model import Model


@click.command(name="lint")
@options.models_argument
@lint_options
@options.table_options("text", "github")
@options.report_option
@fix_options
@view_options("html", "sarif", "markdown", "junit")
@input_options
@options.talk_options
@click.pass_obj
def command(
    talk: Talk,
    models: tuple[Path, ...],
    lint: LintOptions,
    fixing: FixOptions,
    views: Views,
    inputs: InputOptions,
) -> int:
    """Find known traps in quantized models; MODEL may be a folder.

    Without --target, lint looks for faults that affect every runtime, and for silent changes that
    some runtime makes. With --target, it also lists the layers that this target runs in float, and
    the nodes that it cannot load. 'qgraph explain ID' describes a rule.

    Defaults are read from [tool.qgraph.lint] of pyproject.toml, or from [lint] of qgraph.toml, in
    the current folder or the nearest parent folder with one of these files.

    --fix applies the passes that findings name. Passes that keep every value are always applied,
    others if the prover shows that the result is equal, or bounded by the limit of --within.

    --format github prints annotations for a GitHub workflow.

    Exit status: 1 if there is a finding of severity warning or worse, see --fail-on; 3 if a model
    cannot be read.
    """
    from qgraph.lint.baseline import read_baseline, written_baseline
    from qgraph.lint.engine import report_of
    from qgraph.reporting.lint_view import github_annotations
    from qgraph.reporting.pages import page_of

    views.check()
    lint.check()
    paths = [model.path for model in found_models(models, talk)]
    fixing.check(paths)
    read = (lint.baseline, inputs.bundle, *inputs.files.values())
    targets = (lint.write_baseline, *views.paths)
    # Models that are replaced are guarded by what writes them.
    guarded = () if fixing.in_place else paths
    with planned(targets, models=guarded, files=read) as outputs:
        listed = None if lint.baseline is None else read_baseline(lint.baseline)
        results: list[LintReport] = []
        failed: dict[str, str] = {}
        with ProgressBar(talk) as bar:
            for number, path in enumerate(paths):
                bar.tell(f"reading {path.name}", number, len(paths))
                try:
                    result = _linted(talk, path, lint, inputs)
                    if fixing.is_wanted:
                        result = fixing.apply(talk, path, lint, outputs, listed)
                    elif listed is not None:
                        result = listed.without(result)
                    results.append(result)
                except OptionError:
                    raise
                except QGraphError as error:
                    if len(paths) == 1:
                        raise
                    failed[str(path)] = print_failure(error, talk).message
                gc.collect(1)
        document = report_of(results, lint.target, failed)
        views.write(document, None, outputs)
        if lint.write_baseline is not None:
            outputs.write_text(
                lint.write_baseline, written_baseline(results, lint.write_baseline.parent)
            )
        if talk.form == "github":
            # Lines that begin like a workflow command are shown otherwise, unless they are meant.
            sys.stdout.writelines(f"{line}\n" for line in github_annotations(document))
        else:
            show_document(talk, document, page_of, paths)
    if lint.write_baseline is not None:
        talk.note(f"wrote {lint.write_baseline}: pass it to --baseline to ignore these findings")
    if failed:
        return UNUSABLE
    return DIFFERENT if lint.fails(results) else 0


def _linted(talk: Talk, path: Path, lint: LintOptions, inputs: InputOptions) -> LintReport:
    from qgraph.lint.engine import lint as find
    from qgraph.model import load

    model = load(path)
    return find(
        model,
        lint.target,
        select=lint.select,
        ignore=lint.ignore,
        inputs=list(_batches(talk, model, inputs)),
    )


def _batches(talk: Talk, model: Model, inputs: InputOptions) -> Iterable[Any]:
    """Return the batches that the options describe; none if there are no options of inputs."""
    from qgraph.cli import arrays

    if not (inputs.files or inputs.bundle or inputs.random):
        return ()
    return arrays.batches(model, arrays.feeds(talk, inputs, model), inputs)
