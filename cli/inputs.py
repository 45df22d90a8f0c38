"""Options for the inputs on which models run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click

from qgraph.cli import options

T = TypeVar("T")


@dataclass(frozen=True)
class InputOptions:
    """Options for the inputs of models.

    Attributes:
        files: array files, by input name.
        bundle: an archive of arrays.
        random: how many random batches; None if not given.
        seed: of the random batches.
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


def _inputs(
    files: tuple[tuple[str, Path], ...],
    bundle: Path | None,
    random: int | None,
    seed: int | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    batch: int | None,
    probes: int = 0,
) -> InputOptions:
    of_random = {"--random": random, "--seed": seed, "--shape": shapes or None}
    chosen = [name for name, value in of_random.items() if value is not None]
    if (files or bundle) and chosen:
        raise click.UsageError(
            f"{chosen[0]} is for random inputs, but files are given too. Use only one of them."
        )
    arrays, sizes = _once("-i", files), _once("--shape", shapes)
    return InputOptions(arrays, bundle, random, seed or 0, sizes, batch, probes)


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
    click.option(
        "-i",
        "--input",
        "files",
        type=options.named_file,
        metavar="NAME=FILE",
        multiple=True,
        help="File with the array of one input (.npy); repeat for others.",
    ),
    options.file_option("--inputs", "bundle", text="File with the arrays of all inputs (.npz)."),
    click.option(
        "--random",
        type=options.WholeNumber(1, 1 << 30),
        metavar="N",
        help="Number of random batches [1].",
    ),
    click.option(
        "--seed",
        type=options.WholeNumber(min=0),
        metavar="S",
        help="Seed of the random batches [0].",
    ),
    options.shape_option("Shape of a random input, such as NAME:1,3,224,224."),
    options.number_option(
        "--batch", text="Rows of the arrays to run at once, if the batch size is dynamic [all]."
    ),
)


probes_option = click.option(
    "--probes",
    type=options.WholeNumber(min=0),
    default=0,
    metavar="N",
    help="Also run inputs next to up to N thresholds of each quantizer (30 runs each) [0].",
)
