"""The command ``qgraph``: finds commands by file name, and turns errors into exit codes."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import click

from qgraph.cli import commands
from qgraph.cli.options import talk_options
from qgraph.cli.output import Talk
from qgraph.cli.process import Interrupted, guarded_streams, interruptible, tune
from qgraph.errors import EquivalenceError, OptionError, QGraphError, UndecidedError, unexpected
from qgraph.version import __version__

DIFFERENT, USAGE, UNUSABLE, UNDECIDED, INTERRUPTED, BROKEN_PIPE = 1, 2, 3, 4, 130, 141
"""Exit codes; the last two are those of a process ended by SIGINT or SIGPIPE."""

SIGNALLED = 128
"""Added to the number of a signal that ends the process."""


class Commands(click.Group):
    """A group whose commands are the modules of ``qgraph.cli.commands``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted(module.name for module in pkgutil.iter_modules(commands.__path__))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the command ``name``; None if there is no such file."""
        if name not in self.list_commands(ctx):
            return None
        command: click.Command = importlib.import_module(f"qgraph.cli.commands.{name}").command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the help if there are no arguments."""
        if not args and not ctx.resilient_parsing:
            sys.stderr.write(f"{ctx.get_help()}\n")
            ctx.exit(USAGE)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command named by the first argument; the error names the closest command."""
        if args[0] not in self.list_commands(ctx) and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f"Did you mean {near[0]!r}?" if near else "See 'qgraph --help'."
            raise click.UsageError(f"There is no command {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, name="qgraph", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="qgraph %(version)s")
@talk_options
def cli() -> None:
    """Rewrite quantized ONNX models, and prove that they stay equal.

    \b
    qgraph info model.onnx
    qgraph convert model.onnx -o out.onnx --to qdq
    qgraph check model.onnx out.onnx
    qgraph prove model.onnx out.onnx

    Exit status: 0 good, 1 not equal, 2 wrong usage, 3 unusable model or input, 4 undecided.
    """  # noqa: D301 - click wants the character itself


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Args:
        argv: the arguments after the program's name; those of the process if None.
    """
    if argv is None:
        tune()
    with guarded_streams() as results:
        status = 0
        try:
            with interruptible():
                status = _run(argv)
            results.flush()
        except Interrupted as signal:
            Talk().error(f"interrupted by {signal.name}")
            return SIGNALLED + signal.number
        except QGraphError as error:
            if status != UNUSABLE:
                Talk().error(str(error))
            return UNUSABLE
        return BROKEN_PIPE if results.is_gone and status == 0 else status


def _run(argv: Sequence[str] | None) -> int:
    talk = Talk()
    try:
        with talk.listening():
            status = cli.main(
                None if argv is None else list(argv), "qgraph", standalone_mode=False, obj=talk
            )
    except (click.Abort, KeyboardInterrupt):
        talk.error("interrupted")
        return INTERRUPTED
    except click.ClickException as error:
        if isinstance(error, click.UsageError) and error.ctx is not None:
            sys.stderr.write(f"{error.ctx.get_usage()}\n")
        talk.error(error.format_message())
        return USAGE
    except BrokenPipeError:
        return BROKEN_PIPE
    except Exception as error:
        return _failed(error, talk)
    return int(status or 0)


def _failed(error: Exception, talk: Talk) -> int:
    if talk.debug:
        traceback.print_exc()
    if isinstance(error, QGraphError):
        talk.error(str(error), *getattr(error, "__notes__", ()))
        if isinstance(error, UndecidedError):
            return UNDECIDED
        if isinstance(error, EquivalenceError):
            return DIFFERENT
        return USAGE if isinstance(error, OptionError) else UNUSABLE
    if isinstance(error, MemoryError):
        talk.error("there is not enough memory for this model. Use a machine with more.")
    elif isinstance(error, OSError):
        talk.error(f"{error}. Correct this and run the command again.")
    else:
        talk.error(
            f"{_models(error)} could not be handled ({unexpected(error)}). If onnx.checker accepts "
            "it, this is a bug in qgraph; please report it with the model and the traceback that "
            "--debug shows."
        )
    return UNUSABLE


def _models(error: Exception) -> str:
    """Return the paths of the models that the command was given, as its function has them."""
    trace = error.__traceback__
    while trace is not None:
        known = trace.tb_frame.f_locals
        paths = map(known.get, ("model", "reference", "candidate"))
        names = [str(path) for path in paths if isinstance(path, Path)]
        if names:
            return " or ".join(names)
        trace = trace.tb_next
    return "the input"


if __name__ == "__main__":
    sys.exit(main())
