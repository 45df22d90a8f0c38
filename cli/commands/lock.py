"""``qgraph lock``: a description of a model's quantizers that is kept and compared."""

from __future__ import annotations

from pathlib import Path

import click

from qgraph.cli import options
from qgraph.cli.commands.diff import show_differences
from qgraph.cli.files import planned
from qgraph.cli.output import Talk, show, show_paragraph


@click.command(name="lock")
@click.argument("models", type=options.file_path, nargs=-1, required=True, metavar="MODEL...")
@click.option(
    "-o",
    "--output",
    "out",
    type=options.file_path,
    metavar="FILE",
    help="Lock file to write [print it].",
)
@click.option(
    "--check",
    "lock",
    type=options.file_path,
    metavar="FILE",
    help="Compare MODEL with this lock file.",
)
@click.option(
    "--check-beside",
    is_flag=True,
    help="Compare each MODEL with the lock file MODEL.lock next to it.",
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
    """Write a lock file of the quantizers of MODEL, or check one.

    A lock file is text that depends neither on the dialect nor on the machine: commit it with the
    model, and review its changes. With --check-beside, pass either the model or its lock file; the
    other is found next to it. -v also lists what is the same.

    Exit status: 0 written or the same, 1 different.
    """
    from qgraph.inventory.lockfile import check_lock, lock_of, lock_text, models_of
    from qgraph.model import load

    if sum([out is not None, lock is not None, check_beside]) > 1:
        raise click.UsageError("-o, --check and --check-beside exclude each other. Use one.")
    if not check_beside and len(models) > 1:
        raise click.UsageError("There are several models; only --check-beside takes more than one.")
    if check_beside or lock is not None:
        status = 0
        for model in models_of(models) if check_beside else models:
            if check_beside:
                show_paragraph(str(model), is_bold=True)
            changes = check_lock(load(model).ir, lock or lock_of(model), keep_inputs=keep_inputs)
            show_differences(talk, changes, is_brief=not talk.verbosity)
            status |= not changes.is_same
        return int(status)
    (model,) = models
    with planned([out], models=[model]) as outputs:
        text = lock_text(load(model).ir, keep_inputs=keep_inputs)
        if out is None:
            show(text.rstrip())
            return 0
        outputs.write_text(out, text)
    talk.note(f"wrote {out}: {text.count('[[quantizer]]')} quantizers")
    return 0
