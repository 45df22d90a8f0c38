"""``qgraph lock``: write a lock file of a model's quantizers, or compare with one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from qgraph.cli import options
from qgraph.cli.commands.diff import show_differences
from qgraph.cli.documents import advise
from qgraph.cli.files import planned
from qgraph.cli.output import Talk, print_failure, show, show_paragraph
from qgraph.cli.several import found_models
from qgraph.cli.tasks import gravest
from qgraph.errors import QGraphError
from qgraph.text import counted


@click.command(name="lock")
@options.models_argument
@options.file_option("-o", "--output", "out", text="Lock file to write [print it].")
@options.file_option("--check", "lock", text="Compare MODEL with this lock file.")
@options.flag("--check-beside", text="Compare each MODEL with the lock file MODEL.lock next to it.")
@options.flag("--write-beside", text="Write MODEL.lock next to each MODEL.")
@options.keep_inputs_option
@options.talk_options
@click.pass_obj
def command(
    talk: Talk,
    models: tuple[Path, ...],
    out: Path | None,
    lock: Path | None,
    check_beside: bool,
    write_beside: bool,
    keep_inputs: bool,
) -> int:
    """Write a lock file of the quantizers of MODEL, or check one.

    A lock file is text that depends neither on the dialect nor on the machine: commit it with the
    model, and review its changes. -v also lists equal quantizers.

    With --check-beside and --write-beside, MODEL may also be a folder (for all models in it) or a
    lock file (for the model next to it). A model that fails does not stop the others.

    Exit status: 0 written or the same, 1 different.
    """
    from qgraph.inventory.lockfile import lock_text, models_of
    from qgraph.model import load

    beside = check_beside or write_beside
    if sum([out is not None, lock is not None, check_beside, write_beside]) > 1:
        raise click.UsageError(
            "-o, --check, --check-beside and --write-beside exclude each other. Use one."
        )
    if not beside and len(models) > 1:
        raise click.UsageError(
            "There are several models; only --check-beside and --write-beside accept more than one."
        )
    if beside:
        handle = _write if write_beside else _check_titled
        named = [each.path for each in found_models(models_of(models), talk)]
        return gravest([_status(handle, talk, model, keep_inputs) for model in named])
    (model,) = models
    if lock is not None:
        return _check(talk, model, lock, keep_inputs)
    if out is not None:
        return _write(talk, model, keep_inputs, out)
    show(lock_text(load(model).ir, keep_inputs=keep_inputs).rstrip())
    advise(talk, {}, (model,))
    return 0


def _status(handle: Callable[[Talk, Path, bool], int], talk: Talk, model: Path, keep: bool) -> int:
    """Return the exit status for one of several models."""
    try:
        return handle(talk, model, keep)
    except QGraphError as error:
        return print_failure(error, talk).status


def _check_titled(talk: Talk, model: Path, keep_inputs: bool) -> int:
    from qgraph.inventory.lockfile import lock_of

    show_paragraph(str(model), is_bold=True)
    return _check(talk, model, lock_of(model), keep_inputs)


def _check(talk: Talk, model: Path, lock: Path, keep_inputs: bool) -> int:
    from qgraph.inventory.lockfile import check_lock
    from qgraph.model import load

    changes = check_lock(load(model).ir, lock, keep_inputs=keep_inputs)
    show_differences(talk, changes, is_brief=not talk.verbosity)
    advise(talk, {}, (model,))
    return int(not changes.is_same)


def _write(talk: Talk, model: Path, keep_inputs: bool, out: Path | None = None) -> int:
    from qgraph.inventory.lockfile import lock_of, lock_text
    from qgraph.model import load

    lock = lock_of(model) if out is None else out
    with planned([lock], models=[model]) as outputs:
        text = lock_text(load(model).ir, keep_inputs=keep_inputs)
        outputs.write_text(lock, text)
    talk.note(f"wrote {lock}: {counted(text.count('[[quantizer]]'), 'quantizer')}")
    advise(talk, {}, (model, lock))
    return 0
