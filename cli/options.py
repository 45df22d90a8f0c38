"""Options shared by several commands, and the types of their values."""

from __future__ import annotations

import errno
import functools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import click

from qgraph.cli.output import Talk
from qgraph.cli.process import load_modules
from qgraph.errors import OptionError, meant, word
from qgraph.exactness import Exactness

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

LEVELS = [str(level) for level in Exactness if level is not Exactness.DIFFERENT]


def gathered(name: str, build: Callable[..., Any], *decorators: Decorator) -> Decorator:
    """Return a decorator that adds options, and passes their values to the command as one argument.

    ``build``, a function or a record, returns this argument, called ``name``. Its parameters have
    types, and are named like the options; options that the command does not have are not passed.
    """
    parameters = build.__annotations__  # importing inspect takes longer than qgraph.cli.options

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(**values: Any) -> Any:
            own = {key: values.pop(key) for key in parameters if key in values}
            return function(**values, **{name: build(**own)})

        command: Callable[..., Any] = call
        for add in reversed(decorators):
            command = add(command)
        return command

    return decorate


class Word(click.Choice[str]):
    """A value that is one of some words, in any case."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(words, case_sensitive=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the word as listed; for an unknown word, the error names the closest one."""
        try:
            return word(self.choices, value, "the value")
        except OptionError:
            choices = ", ".join(map(repr, self.choices))
            self.fail(f"{value!r} is not one of {choices}.{meant(value, self.choices)}", param, ctx)


def file_path(text: str) -> Path:
    """Return a path; ``-`` and the empty string are rejected."""
    if not text:
        raise click.BadParameter("'' is not a file. Name one.")
    if text == "-":
        raise click.BadParameter("'-' is not a file here. Name one; './-' is one called '-'.")
    try:
        os.lstat(text)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise click.BadParameter(
                "the name of the file is too long. Give a shorter one."
            ) from error
    return Path(text)


STDOUT = Path("/dev/stdout")
"""Name of the standard output as the file of a report."""


def report_path(text: str) -> Path:
    """Return a path of a report; ``-`` is the standard output."""
    return STDOUT if text == "-" else file_path(text)


def named_file(text: str) -> tuple[str, Path]:
    """Return name and path of ``NAME=FILE``."""
    name, equals, file = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"{text!r} is not of the form NAME=FILE.npy.")
    return name, file_path(file)


def named_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Return name and sizes of ``NAME:1,3,224,224``; names may contain colons themselves."""
    name, colon, dims = text.rpartition(":")
    sizes = [size.strip() for size in dims.split(",")] if dims.strip() else []
    if not (name and colon) or not all(size.isascii() and size.isdigit() for size in sizes):
        raise click.BadParameter(f"{text!r} is not of the form NAME:1,3,224,224.")
    return name, tuple(map(int, sizes))


def byte_size(text: str) -> int:
    """Return the number of bytes in ``2GB``, ``512MiB`` or a number without unit."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", text.strip(), re.IGNORECASE)
    size = 0
    if match is not None:
        power = "KMGT".find(match[2].upper()) + 1 if match[2] else 0
        size = int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    if size <= 0:
        raise click.BadParameter(f"{text!r} is not a positive size, such as 2GB or 512MiB.")
    return size


def limit(text: str) -> tuple[str | None, float]:
    """Return name and number of ``NAME:NUMBER``, or None and number of ``NUMBER``."""
    name, colon, number = text.rpartition(":")
    try:
        return name or None, float(number if name or not colon else text)
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is neither a number nor of the form NAME:1e-4."
        ) from error


def file_option(*names: str, text: str, metavar: str = "FILE", required: bool = False) -> Decorator:
    """Return an option that is a file; ``text`` is its help."""
    return click.option(*names, type=file_path, metavar=metavar, required=required, help=text)


class Seconds(click.types.FloatParamType):
    """A time."""

    name = "number"


class WholeNumber(click.IntRange):
    """A whole number of a range."""

    name = "whole number"


def flag(*names: str, text: str) -> Decorator:
    """Return an option without a value; ``text`` is its help."""
    return click.option(*names, is_flag=True, help=text)


def word_option(name: str, words: Sequence[str], text: str, default: str | None) -> Decorator:
    """Return an option that is one of some words; ``text`` is its help."""
    is_shown = default is not None
    return click.option(name, type=Word(words), default=default, show_default=is_shown, help=text)


def repeated(*names: str, metavar: str, text: str, **more: Any) -> Decorator:
    """Return an option that may occur several times; ``text`` is its help."""
    return click.option(*names, metavar=metavar, multiple=True, help=text, **more)


def number_option(
    name: str, text: str, *, least: int = 1, default: int | None = None, metavar: str = "N"
) -> Decorator:
    """Return an option that is a whole number of at least ``least``; ``text`` is its help."""
    return click.option(
        name,
        type=WholeNumber(min=least),
        metavar=metavar,
        default=default,
        show_default=default is not None,
        help=text,
    )


def talk_options(function: F) -> F:
    """Add ``-v``, ``-q``, ``--debug`` and ``--plugin``, which are accepted anywhere on the line."""
    hidden: dict[str, Any] = {"expose_value": False, "is_eager": True, "callback": _keep}
    for option in (
        click.option(
            "--plugin",
            "plugins",
            multiple=True,
            metavar="MODULE",
            help="Import MODULE, which adds passes, operators, dialects, targets or rules. "
            "Repeatable.",
            **hidden,
        ),
        click.option("--debug", is_flag=True, help="Show tracebacks.", **hidden),
        click.option(
            "-q", "--quiet", is_flag=True, help="Print only results and errors.", **hidden
        ),
        click.option(
            "-v", "--verbose", "verbosity", count=True, help="Print more; -vv: even more.", **hidden
        ),
    ):
        function = option(function)
    return function


def table_options(*more: str) -> Callable[[F], F]:
    """Return a decorator that adds ``--format``, ``--json`` and ``--wide``.

    ``more`` are further words of ``--format``.
    """
    words = ["table", "json", "csv", *more]
    hidden: dict[str, Any] = {"expose_value": False, "callback": _keep}

    def add(function: F) -> F:
        for option in (
            click.option("--wide", is_flag=True, help="Print tables at full width.", **hidden),
            click.option(
                "--json", "as_json", is_flag=True, help="Short for --format json.", **hidden
            ),
            click.option(
                "--format",
                "form",
                type=Word(words),
                help="Output format [table].",
                **hidden,
            ),
        ):
            function = option(function)
        return function

    return add


report_option = click.option(
    "--report", type=report_path, metavar="FILE", help="Write a JSON report; - prints it."
)


def _seconds(ctx: click.Context, param: click.Parameter, value: float | None) -> None:
    talk = ctx.ensure_object(Talk)
    if value is not None:
        if not 0 < value < float("inf"):
            raise click.BadParameter(f"{value:g} is not a time, expected seconds above 0.")
        talk.timeout = value


timeout_option = click.option(
    "--timeout",
    type=Seconds(),
    metavar="SECONDS",
    expose_value=False,
    callback=_seconds,
    help="Stop after about SECONDS, with exit status 4 if the result is not complete.",
)


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    talk = ctx.ensure_object(Talk)
    match param.name:
        case "plugins":
            talk.plugins += tuple(value)
            load_modules(value)
        case "verbosity":
            talk.verbosity += value
        case "quiet":
            talk.quiet |= bool(value)
        case "debug":
            talk.debug |= bool(value)
        case "wide":
            talk.wide |= bool(value)
        case "as_json" | "form" if value:
            form = {True: "json", "text": "table"}.get(value, value)
            if talk.form not in ("table", form):
                other = talk.form if form == "json" else form
                raise click.UsageError(
                    f"--json is short for --format json, but there is --format {other}. "
                    "Use one of them."
                )
            talk.form = form


model_argument = click.argument("model", type=file_path)
models_argument = click.argument(
    "models", type=file_path, nargs=-1, required=True, metavar="MODEL..."
)
output_option = file_option("-o", "--output", "out", text="Model to write.", metavar="OUT")

backend_option = word_option(
    "--backend",
    ["auto", "numpy", "ort"],
    "Backend that runs the models; auto: ONNX Runtime if it is installed, else numpy.",
    "auto",
)


def shape_option(text: str) -> Decorator:
    """Return the option for shapes of inputs; the command gets them as ``shapes``."""
    return repeated("--shape", "shapes", metavar="NAME:DIMS", text=text, type=named_shape)


labels_option = click.option(
    "--labels",
    metavar="FILE|NAME",
    help="Labels of the rows of the inputs: a file (.npy), or a name in --inputs.",
)
metric_option = click.option(
    "--metric",
    metavar="NAME",
    default="top1",
    show_default=True,
    help="Accuracy metric: top1, or module:function with arguments (outputs, labels).",
)
"""Options for the accuracy: labels, and the metric."""


keep_inputs_option = flag(
    "--keep-inputs",
    text="Keep initializers that are also graph inputs as inputs [treat them as constants].",
)


exact_option = word_option(
    "--exact", LEVELS, "Minimum level of equality to accept.", str(Exactness.VALUES)
)

opset_option = number_option(
    "--opset", text="Highest opset to use [21, or that of MODEL if it is higher]."
)


def limit_option(name: str, text: str) -> Decorator:
    """Return the option of a tolerance; the command gets it as pairs of name and number."""
    return repeated(name, metavar="[NAME:]NUMBER", text=text, type=limit)


Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def offering(kind: str) -> Complete:
    """Return the shell completion of dialects, passes, targets, ids, rules, nodes or tensors."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        try:
            offered = (name for name in _names(kind, ctx) if name.startswith(incomplete))
            return sorted(filter(str.isprintable, offered))  # shells read one name a line
        except Exception:  # a message would end up among the words of the user
            return []

    return complete


def _names(kind: str, ctx: click.Context) -> Iterable[str]:
    if kind == "dialects":
        from qgraph.quantizers.dialects.dialect import DIALECTS

        return DIALECTS.names()
    if kind == "passes":
        from qgraph.transforms import TRANSFORMS

        return TRANSFORMS.names()
    if kind == "targets":
        from qgraph.targets.reader import target_names

        return target_names()
    if kind in ("ids", "rules"):
        from qgraph.lint.rule import RULES
        from qgraph.reasons import CAUSES
        from qgraph.targets.rules import UNMET

        return [*RULES.names(), *(() if kind == "rules" else (*CAUSES, *UNMET))]
    from qgraph.model import load

    # An option that still lacks its value keeps click from reading the arguments before it.
    model = load(Path(next(word for word in ctx.args if not word.startswith("-"))))
    if kind == "nodes":
        return [node.name for node in model.nodes() if node.name]
    values = chain(model.ir.graph.inputs, *(node.outputs for node in model.ir.graph))
    return [value.name for value in values if value.name]
