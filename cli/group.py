"""The command ``qgraph``: finds commands by file name, and turns errors into exit codes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from functools import cached_property

import click

from qgraph.cli import commands
from qgraph.cli.options import talk_options
from qgraph.cli.output import BROKEN_PIPE, INTERRUPTED, UNUSABLE, USAGE, Talk, print_failure
from qgraph.cli.process import SIGNALLED, Interrupted, guarded_streams, interruptible
from qgraph.errors import QGraphError, closest
from qgraph.registry import modules_of
from qgraph.version import __version__


class Commands(click.Group):
    """A group whose commands are the modules of ``qgraph.cli.commands``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return self._names

    @cached_property
    def _names(self) -> list[str]:
        return modules_of(commands)

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
            near = closest(args[0], self.list_commands(ctx))
            hint = f"Did you mean {near!r}?" if near else "See 'qgraph --help'."
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

    Exit status: 0 success, 1 not equal or findings, 2 wrong usage, 3 unusable model or input,
    4 undecided.
    """  # noqa: D301 - click wants the character itself


def run(argv: Sequence[str] | None) -> int:
    """Run the command line and return its exit status; ``argv`` is that of the process if None."""
    with guarded_streams() as results:
        status = 0
        try:
            with interruptible() as raised:
                status = _run(argv, raised)
            results.flush()
        except Interrupted as signal:
            Talk().error(f"interrupted by {signal.name}")
            return SIGNALLED + signal.number
        except QGraphError as error:
            if status != UNUSABLE:
                Talk().error(str(error))
            return UNUSABLE
        return BROKEN_PIPE if results.is_gone and status == 0 else status


def _run(argv: Sequence[str] | None, raised: Sequence[Interrupted]) -> int:
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
        talk.error(_advised(error))
        return USAGE
    except BrokenPipeError:
        return BROKEN_PIPE
    except Exception as error:
        if raised:  # a library has turned the interruption into this error
            raise raised[-1] from error
        return print_failure(error, talk).status
    return int(status or 0)


def _advised(error: click.ClickException) -> str:
    """Return the message of an error; that of a missing option says what the option is for."""
    text = error.format_message()
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Option):
        names, what = " / ".join(error.param.opts), str(error.param.help)
        path = "" if error.ctx is None else f" See '{error.ctx.command_path} --help'."
        return f"The option {names} {error.param.metavar} is missing: {what}{path}"
    return text
