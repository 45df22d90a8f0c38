"""Inputs on which models run: options of commands, and arrays in files that the user names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qgraph.bound import Against, Bounding, Limit
from qgraph.cli import options
from qgraph.cli.output import Talk
from qgraph.errors import ExecutionError, OptionError
from qgraph.records import dataclass

if TYPE_CHECKING:
    from qgraph.comparison.check import Inputs
    from qgraph.execution.prepare import Batches, RandomBatches
    from qgraph.graph.tensors import FileRows
    from qgraph.model import Model
    from qgraph.numerics import Array


T = TypeVar("T")


@dataclass(frozen=True)
class InputOptions:
    """Options for the inputs of models.

    Attributes:
        files: array files, by input name.
        bundle: an archive of arrays.
        random: how many random batches; None if not given.
        shapes: of the random inputs, by name.
        batch: rows of arrays from files to run at once; None for all.
        probes: number of thresholds of each quantizer to probe.
    """

    files: dict[str, Path]
    bundle: Path | None
    random: int | None
    seed: int
    shapes: dict[str, tuple[int, ...]]
    batch: int | None
    probes: int = 0

    @property
    def words(self) -> list[str]:
        """The options as words of a command line."""
        words = [word for name, file in self.files.items() for word in ("-i", f"{name}={file}")]
        for name, sizes in self.shapes.items():
            words += ["--shape", f"{name}:{','.join(map(str, sizes))}"]
        numbers = {
            "--inputs": self.bundle,
            "--random": self.random,
            "--seed": self.seed or None,
            "--batch": self.batch,
            "--probes": self.probes or None,
        }
        for option, value in numbers.items():
            words += [] if value is None else [option, str(value)]
        return words

    def feeds(
        self, talk: Talk, model: Model, *, besides: str | None = None
    ) -> dict[str, Array | FileRows] | None:
        """Return the arrays in the input files by input name; None if the inputs are random.

        Other arrays in an archive are ignored with a note, except for the one named ``besides``.

        Raises:
            ExecutionError: a file does not contain such an array.
        """
        from qgraph.storage.archive import read_archive, read_array

        if not self.files and self.bundle is None:
            return None
        arrays: dict[str, Array | FileRows] = {}
        if self.bundle is not None:
            names = {value.name for value in model.ir.graph.inputs}
            bundle = read_archive(self.bundle, names)
            arrays = {name: array for name, array in bundle.items() if array is not None}
            if spare := [name for name in bundle if name not in names and name != besides]:
                talk.note(
                    f"{self.bundle}: arrays that are no inputs of the model are ignored: "
                    f"{', '.join(spare)}"
                )
        for name, path in self.files.items():
            arrays[name] = read_array(path)
        return arrays

    def batches(self, model: Model, arrays: Mapping[str, Any] | None) -> Batches | RandomBatches:
        """Return the batches on which a command runs a model: arrays from files, or random ones."""
        from qgraph.execution.prepare import Batches, RandomBatches

        if arrays is None:
            return RandomBatches(model.inputs, self.random or 1, self.seed, self.shapes)
        return Batches(model.ir.graph, arrays, self.batch)

    def checked(self, feeds: Any) -> Inputs:
        """Return the inputs of a check: arrays from files, random inputs and probes."""
        from qgraph.comparison.check import Inputs

        return Inputs(feeds, self.random, self.seed, self.shapes, self.batch, self.probes)

    @contextmanager
    def labelled(self, option: str | None) -> Iterator[Array | None]:
        """Yield the labels that ``--labels`` names; None if it is not given.

        Raises:
            ExecutionError: there are none; or they do not fit the outputs, as the block shows.
        """
        from qgraph.comparison.tolerance import LabelsError

        try:
            yield None if option is None else self._labels(option)
        except LabelsError as error:
            file = self.labels_file(option)
            source = f"{self.bundle}: array {option!r}" if file is None else file
            raise ExecutionError(f"{source}: {error}") from error

    def _labels(self, option: str) -> Array:
        """Return labels from a file, or an array of the archive of the inputs."""
        import numpy as np

        from qgraph.storage.archive import read_archive, read_array

        path = self.labels_file(option)
        if path is not None:
            return np.asarray(read_array(path))
        bundle = {} if self.bundle is None else read_archive(self.bundle, {option})
        if option not in bundle:
            raise ExecutionError(
                f"{self.bundle}: has no array {option!r} with labels, expected a name among "
                f"{', '.join(bundle) or 'none'}, or a file. Correct the name."
            )
        return np.asarray(bundle[option])

    def labels_file(self, option: str | None) -> Path | None:
        """Return the file of the labels; None if they are in the archive of the inputs."""
        if option is not None and not self.files and self.bundle is None:
            raise click.UsageError("--labels needs --inputs, the data of the labels. Add it.")
        if option is None or (self.bundle is not None and not Path(option).is_file()):
            return None
        return Path(option)


def _inputs(
    files: tuple[tuple[str, Path], ...],
    bundle: Path | None,
    random: int | None,
    seed: int | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    batch: int | None,
    probes: int | None = None,
) -> InputOptions:
    of_random = {"--random": random, "--seed": seed, "--shape": shapes or None}
    chosen = [name for name, value in of_random.items() if value is not None]
    if (files or bundle) and chosen:
        raise click.UsageError(
            f"{chosen[0]} is for random inputs, but files are given too. Use only one of them."
        )
    arrays, sizes = _once("-i", files), _once("--shape", shapes)
    return InputOptions(arrays, bundle, random, seed or 0, sizes, batch, probes or 0)


def _once(option: str, pairs: tuple[tuple[str, T], ...]) -> dict[str, T]:
    """Return the values of an option by their names, each of which may occur once."""
    named: dict[str, T] = {}
    for name, value in pairs:
        if name in named:
            raise click.UsageError(f"{option} names {name!r} twice, expected once.")
        named[name] = value
    return named


input_options = options.gathered(
    "inputs",
    _inputs,
    options.repeated(
        *("-i", "--input", "files"),
        metavar="NAME=FILE",
        text="File with the array of one input (.npy); repeat for others.",
        type=options.named_file,
    ),
    options.file_option("--inputs", "bundle", text="File with the arrays of all inputs (.npz)."),
    click.option(
        "--random",
        type=options.WholeNumber(1, 1 << 30),
        metavar="N",
        help="Number of random batches [1].",
    ),
    options.number_option("--seed", "Seed of the random batches [0].", least=0, metavar="S"),
    options.shape_option("Shape of a random input, such as NAME:1,3,224,224."),
    options.number_option(
        "--batch", text="Rows of the arrays to run at once, if the batch size is dynamic [all]."
    ),
)


probes_option = options.number_option(
    "--probes",
    "Also run inputs next to up to N thresholds of each quantizer; each threshold takes up to 30 "
    "runs [0].",
    least=0,
)


def _bounding(
    within: tuple[Limit, ...],
    order: str,
    accumulate: str,
    ranges: tuple[tuple[str, tuple[float, float]], ...],
    against: str = Against.EXECUTION,
) -> Bounding:
    return Bounding(within, against, order, accumulate, dict(ranges))


def bounding_options(*, question: bool) -> options.Decorator:
    """Return a decorator that adds the options of bounds; the command gets them as ``request``.

    ``--against`` is added if there is the ``question``.
    """
    more = [_AGAINST] if question else []
    return options.gathered("request", _bounding, _WITHIN, *more, _ORDER, _ACCUMULATE, range_option)


def _usage(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return a parser of an option's value whose error is one of usage, so that it names it."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except OptionError as error:
            raise click.BadParameter(str(error)) from error

    return parsed


def within_option(text: str) -> options.Decorator:
    """Return the option ``--within`` for limits; ``text`` is its help."""
    return options.repeated("--within", metavar="LIMIT", text=text, type=_usage(Limit.parse))


_WITHIN = within_option(
    "Maximum difference of results that are not equal: 1step, 0.05step, 0.1%, or for an "
    "output NAME:0.01, NAME:2ulp. Repeatable."
)
_AGAINST = options.word_option(
    "--against",
    list(map(str, Against)),
    "Compare the executed CANDIDATE with the executed REFERENCE, or with REFERENCE in real "
    "numbers (ideal).",
    str(Against.EXECUTION),
)
_ORDER = click.option(
    "--order",
    metavar="any|chunk:N",
    type=_usage(lambda text: Bounding(order=text).order),
    default="any",
    show_default=True,
    help="Order of additions for which bounds hold; chunk:N: at most N terms in sequence.",
)
_ACCUMULATE = options.word_option(
    "--accumulate", ["own", "float32"], "Type in which sums of 16-bit floats are added.", "own"
)


def named_range(text: str) -> tuple[str, tuple[float, float]]:
    """Return the name and the range of an input, ``NAME=LO:HI``."""
    name, _, ends = text.rpartition("=")
    parts = ends.split(":")
    try:
        low, high = map(float, parts)
    except ValueError:
        raise click.UsageError(
            f"--range {text}: expected NAME=LO:HI, two numbers such as x=-1:1."
        ) from None
    if not name:
        raise click.UsageError(f"--range {text}: expected the name of an input first, NAME=LO:HI.")
    return name, (low, high)


range_option = options.repeated(
    "--range",
    "ranges",
    metavar="NAME=LO:HI",
    text="Range of an input that is not quantized, for bounds. Repeatable.",
    type=named_range,
)
