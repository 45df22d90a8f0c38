"""``qgraph lock``: a description of a model's quantizers that is kept and compared."""

from __future__ import annotations

from pathlib import Path

import click

from qgraph.cli import options
from qgraph.cli.differences import show_differences
from qgraph.cli.output import Talk, show, show_paragraph
from qgraph.cli.targets import planned


@click.command(name="lock")
@click.argument("models", type=options.file_path, nargs=-1, required=True, metavar="MODEL...")
@click.option("-o", "--output", "out", type=options.file_path, metavar="FILE", help="Write here.")
@click.option(
    "--check", "lock", type=options.file_path, metavar="FILE", help="Compare MODEL with this file."
)
@click.option(
    "--check-beside", is_flag=True, help="Compare each MODEL with the file MODEL.lock beside it."
)
@options.keep_inputs_option
@options.talk_options
@click.pass_obj
def command(
    talk: Talk,
    models: tuple[Path, ...],
    out: Path | None,
    lock: Path | None,
    check_beside: bool,
    keep_inputs: bool,
) -> int:
    """Write down the quantizers of MODEL, or compare them.

    The text depends neither on the dialect nor on the machine: keep it beside the model, and review
    its changes. Without an option it is printed. With --check-beside, MODEL may be a lock file too
    and stands for its model, so that both may be named. -v lists what is the same too.

    Exit status: 0 written, or the same; 1 different.
    """
    from qgraph.files import write_text
    from qgraph.inventory.lockfile import check_lock, lock_of, lock_text, models_of

    if sum([out is not None, lock is not None, check_beside]) > 1:
        raise click.UsageError("-o, --check and --check-beside exclude each other. Use one.")
    if not check_beside and len(models) > 1:
        raise click.UsageError("There are several models; only --check-beside takes more than one.")
    if check_beside:
        status = 0
        for model in models_of(models):
            show_paragraph(str(model), "bold")
            found = check_lock(model, lock_of(model), keep_inputs=keep_inputs)
            show_differences(talk, found, is_brief=not talk.verbosity)
            status |= not found.is_same
        return int(status)
    (model,) = models
    if lock is not None:
        found = check_lock(model, lock, keep_inputs=keep_inputs)
        show_differences(talk, found, is_brief=not talk.verbosity)
        return int(not found.is_same)
    with planned([out], models=[model]) as outputs:
        text = lock_text(model, keep_inputs=keep_inputs)
        if out is None:
            show(text.rstrip())
            return 0
        write_text(out, text, outputs)
    talk.note(f"wrote {out}: {text.count('[[quantizer]]')} quantizers")
    return 0
