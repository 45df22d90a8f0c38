"""What some inputs show of two functions that could not be compared on all of them.

A difference that is found shows that two functions differ; that none is found shows nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.exactness import Exactness, Witness
from qgraph.proof.expression import CONSTANT, Expr, Undecidable, in_order, known
from qgraph.proof.finding import Finding
from qgraph.proof.keys import HIGHEST, LOWEST, Float32, from_keys, to_keys
from qgraph.proof.outcome import Outcome
from qgraph.proof.program import Program

_RANDOM = 4096
_MOST = 1 << 21
"""Inputs and channels that are tried, taken together."""
_NEAR = 2
_CONSTANTS = 256


@dataclass(frozen=True)
class Sample:
    """One input, and what it shows.

    Attributes:
        at_most: the highest rung that it leaves: values where zeros differ in sign or NaN has
            another result, else different.
        witness, channel: the input.
    """

    at_most: Exactness
    witness: Witness
    channel: int


def sample(finding: Finding, reference: Expr, candidate: Expr) -> Sample | None:
    """Return what shows that two functions are not equal, if anything does.

    Args:
        finding: what was found until the comparison was given up.
        reference: one function.
        candidate: the other one.
    """
    shown = _of_finding(finding)
    if shown is not None and shown.at_most is Exactness.DIFFERENT:
        return shown
    try:
        program = Program(reference, candidate)
    except Undecidable:
        return shown
    x = special_inputs(reference, candidate)
    kinds = program.first[: max(1, _MOST // len(x))]
    with np.errstate(all="ignore"):
        outcome = Outcome.of(
            program,
            np.tile(x, len(kinds)),
            np.repeat(np.arange(len(kinds), dtype=np.int64), len(x)),
        )
    # what an operator makes of NaN is set apart
    number = np.tile(~np.isnan(x), len(kinds))
    for rung, mask in (
        (Exactness.DIFFERENT, outcome.differ & number),
        (Exactness.VALUES, outcome.zero_sign | (outcome.differ & ~number)),
    ):
        if rung is Exactness.VALUES and shown is not None:
            return shown
        if mask.any():
            place = int(np.argmax(mask))
            results = outcome.reference[place], outcome.candidate[place]
            witness = Witness(float(x[place % len(x)]), *map(float, results))
            return Sample(rung, witness, int(kinds[place // len(x)]))
    return shown


def _of_finding(finding: Finding) -> Sample | None:
    if finding.witness is None:
        return None
    unequal = finding.differing or finding.infinity_differs
    rung = Exactness.DIFFERENT if unequal else Exactness.VALUES
    return Sample(rung, finding.witness, finding.witness_channel or 0)


def special_inputs(*functions: Expr) -> Float32:
    """Return inputs that are likely to show a difference of some functions, without repetition.

    They are zeros, infinities, NaN, powers of two, constants of the functions with their products
    and quotients, all with their neighbours, small multiples of a quarter, and random floats.
    """
    constants = [known(e) for e in in_order(functions) if e.op == CONSTANT]
    numbers = [np.unique(c)[:_CONSTANTS] for c in constants if c.dtype == np.float32]
    given: npt.NDArray[Any] = np.concatenate([*numbers, np.ones(1, np.float32)])[:_CONSTANTS]
    some = given[: math.isqrt(_CONSTANTS)]
    powers = np.float32(2) ** np.arange(-149, 128, dtype=np.float32)
    with np.errstate(all="ignore"):
        seeds = np.concatenate(
            [
                powers,
                given,
                np.multiply.outer(some, some).reshape(-1),
                np.divide.outer(some, some).reshape(-1),
                np.arange(0, 64, 0.25, dtype=np.float32),
                np.array([0, from_keys(HIGHEST)], np.float32),
            ]
        )
    seeds = seeds[np.isfinite(seeds)]
    keys = to_keys(np.concatenate([seeds, -seeds]))
    around = (keys[:, None] + np.arange(-_NEAR, _NEAR + 1)).reshape(-1)
    around = np.unique(np.clip(around, LOWEST, HIGHEST))
    random = np.random.default_rng(0).integers(LOWEST, HIGHEST + 1, _RANDOM)
    inner = from_keys(np.concatenate([around, random]))
    ends = np.array([np.inf, -np.inf, np.nan, -np.nan], np.float32)
    return np.asarray(np.concatenate([inner, ends]))
