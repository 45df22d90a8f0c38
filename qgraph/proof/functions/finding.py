"""Results of comparing two expressions: collected from boxes, or found at single inputs."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from qgraph.exactness import Exactness, Witness
from qgraph.numerics import Float32, Mask
from qgraph.numerics.float32 import HIGHEST, LOWEST, Keys, from_keys, to_keys
from qgraph.proof.functions.expression import CONSTANT, Expr, in_order, known
from qgraph.proof.functions.program import Channels, PairProgram, PointResults
from qgraph.proof.functions.search import BoxBatch
from qgraph.reasons import Undecidable
from qgraph.records import dataclass, replace

_KEY_BITS = 33
"""Number of bits for the key of any float32 number and its sign."""


@dataclass(frozen=True)
class Runs:
    """Intervals of inputs on which the values differ, in the order of channels and inputs.

    Attributes:
        channel: ``[n]`` the first channel with these constants.
        lo, hi: ``[n]`` keys of the first and the last input.
        reference, candidate: ``[n]`` the two values; if they vary within an interval, the two
            bounds with the largest distance.
    """

    channel: Channels
    lo: Keys
    hi: Keys
    reference: Float32
    candidate: Float32

    def __len__(self) -> int:
        return len(self.lo)


_Columns: TypeAlias = tuple[Channels, Keys, Keys, Float32, Float32]

_NOTHING: _Columns = (*(np.zeros(0, np.int64),) * 3, *(np.zeros(0, np.float32),) * 2)

NO_RUNS = Runs(*_NOTHING)


@dataclass(frozen=True)
class PairFinding:
    """The result of comparing two expressions.

    Counts are sums over all channels. If undecided, they cover the inputs settled until then.

    Attributes:
        channels: number of elements that the constants broadcast to.
        boxes: number of evaluated boxes.
        differing: finite inputs whose outputs differ in value; -0 equals +0, and NaN equals NaN.
        zero_sign: finite inputs whose outputs are zeros that differ in sign, or may, because ONNX
            leaves the sign open (Min, Max and Relu of both zeros).
        infinity_differs, infinity_sign_differs: the same for the inputs -Inf and +Inf.
        nan_differs: whether NaN inputs give different outputs, zero sign included.
        witness: the input with the largest difference in value; if there is none, an input that
            differs at infinity, in the sign of zero, or at NaN.
        witness_channel: channel of the witness.
        runs: all inputs of ``differing``, for the first channel of each set of channels with equal
            constants. If all inputs were tried one by one, only some of them.
        at_infinity: the infinities of ``infinity_differs``, in the same form.
        by_channel: channel and number of differing inputs, for the channels of ``runs``.
        alike: for each of these channels, the number of channels with its constants.
        undecided: why there is no result; None if there is one.
        given_up: whether the only reason is that the comparison takes too long.
        enumerated: whether all inputs were tried one by one.
        largest_ulps: if so, the largest number of floats between two values; None if nothing
            differs, or a value is NaN.
    """

    channels: int
    boxes: int = 0
    differing: int = 0
    zero_sign: int = 0
    infinity_differs: bool = False
    infinity_sign_differs: bool = False
    nan_differs: bool = False
    witness: Witness | None = None
    witness_channel: int | None = None
    runs: Runs = NO_RUNS
    at_infinity: Runs = NO_RUNS
    by_channel: tuple[tuple[int, int], ...] = ()
    alike: tuple[int, ...] = ()
    undecided: str | None = None
    given_up: bool = False
    enumerated: bool = False
    largest_ulps: int | None = None

    def without_runs(self) -> PairFinding:
        """Return the finding without the list of differing inputs, which may be millions."""
        has_runs = len(self.runs) or len(self.at_infinity)
        return replace(self, runs=NO_RUNS, at_infinity=NO_RUNS) if has_runs else self


class Collector:
    """Collects the differences of boxes.

    If ``separate``, each kind of channels is a separate pair of functions.
    """

    def __init__(self, program: PairProgram, *, separate: bool = False) -> None:
        self._program = program
        self._separate = separate
        kinds = len(program.first)
        self._noted: dict[str, list[_Columns]] = {
            what: [_NOTHING] for what in ("value", "infinity", "zero", "nan")
        }
        self._unlisted = np.zeros(kinds, np.int64)
        self._zero_sign = np.zeros(kinds, np.int64)
        self._infinity_sign = np.zeros(kinds, np.bool_)
        self._differing = np.zeros(kinds, np.bool_)

    def note(self, what: str, boxes: BoxBatch, a: Float32, b: Float32, where: Mask) -> None:
        """Record boxes ``[n]`` whose results ``a`` and ``b`` ``[n]`` differ, as a mask tells.

        ``what`` is "value" and "infinity" if the values differ everywhere in a box, "zero" if both
        are zeros whose signs differ or may differ, "nan" for NaN inputs whose results differ.
        """
        if not where.any():
            return
        kind, lo, hi, _ = boxes.at(where)
        columns = kind, lo, hi, a[where], b[where]
        if what in ("value", "infinity"):
            self._differing[kind] = True
        elif what == "zero":
            finite = (lo >= LOWEST) & (hi <= HIGHEST)
            np.add.at(self._zero_sign, kind, (hi - lo + 1) * finite)
            self._infinity_sign[kind[~finite]] = True
        if what in ("zero", "nan"):  # one witness of each kind is enough
            chosen = np.sort(np.unique(kind, return_index=True)[1])
            columns = kind[chosen], lo[chosen], hi[chosen], columns[3][chosen], columns[4][chosen]
        self._noted[what].append(columns)

    def add(self, kind: int, differing: int, zero_sign: int) -> None:
        """Add numbers of inputs that differ in value, or in the sign of zero."""
        self._unlisted[kind] += differing
        self._zero_sign[kind] += zero_sign

    def finished(self) -> Mask:
        """Return, for each kind of channels, whether a difference in value was recorded."""
        everywhere = np.full(len(self._differing), self._differing.any())
        return self._differing if self._separate else everywhere

    def findings(self, boxes: int, *, undecided: str | None = None) -> list[PairFinding]:
        """Return the finding for each pair of functions, after ``boxes`` boxes; call it once."""
        noted: dict[str, Any] = {what: _joined(self._noted.pop(what)) for what in [*self._noted]}
        for what in ("value", "infinity"):
            noted[what] = _merged(noted[what])
        differing = self._unlisted.copy()
        kind, lo, hi, *_ = noted["value"]
        np.add.at(differing, kind, hi - lo + 1)
        kinds = len(self._program.first)
        if not self._separate:
            return [self._finding(noted, differing, slice(0, kinds), boxes, undecided)]
        apart = {what: _apart(columns, kinds) for what, columns in noted.items()}
        return [
            self._finding(
                {what: each[k] for what, each in apart.items()},
                differing,
                slice(k, k + 1),
                boxes,
                undecided,
            )
            for k in range(kinds)
        ]

    def _finding(
        self,
        noted: dict[str, _Columns],
        differing: npt.NDArray[np.int64],
        own: slice,
        boxes: int,
        undecided: str | None,
    ) -> PairFinding:
        """Return the finding of some kinds of channels, from what was noted about them."""
        first, count = self._program.first[own], self._program.count[own]
        channels, differing = self._program.channels, differing[own]
        if self._separate:
            first, count, channels = np.zeros_like(first), np.ones_like(count), 1
        parts = {
            what: Runs(first[kind - own.start], lo, hi, a, b) if len(kind) else NO_RUNS
            for what, (kind, lo, hi, a, b) in noted.items()
        }
        runs = parts["value"]
        shown = next(((what, part) for what, part in parts.items() if len(part)), None)
        witness, channel = None, None
        if shown is not None:
            what, part = shown
            i = _widest(runs) if what == "value" else 0
            x = float(from_keys(part.lo[i : i + 1])[0])
            witness = Witness(x, float(part.reference[i]), float(part.candidate[i]))
            channel = int(part.channel[i])
        varying = np.flatnonzero(differing)
        return PairFinding(
            channels=channels,
            boxes=boxes,
            differing=int(differing @ count),
            zero_sign=int(self._zero_sign[own] @ count),
            infinity_differs=bool(len(parts["infinity"])),
            infinity_sign_differs=bool(self._infinity_sign[own].any()),
            nan_differs=bool(len(parts["nan"])),
            witness=witness,
            witness_channel=channel,
            runs=runs,
            at_infinity=parts["infinity"],
            by_channel=tuple((int(first[k]), int(differing[k])) for k in varying),
            alike=tuple(map(int, count[varying])),
            undecided=undecided,
        )


def _widest(runs: Runs) -> int:
    """Return the index of the run with the largest difference; NaN is the largest."""
    with np.errstate(all="ignore"):
        gap = np.abs(runs.reference.astype(np.float64) - runs.candidate)
    return int(np.argmax(np.where(np.isnan(gap), np.inf, gap)))


def _apart(columns: _Columns, kinds: int) -> list[_Columns]:
    order = np.argsort(columns[0], kind="stable")
    kind, lo, hi = (column[order] for column in columns[:3])
    a, b = (column[order] for column in columns[3:])
    ends = np.searchsorted(kind, np.arange(kinds + 1)).tolist()
    return [
        (kind[i:j], lo[i:j], hi[i:j], a[i:j], b[i:j]) if i < j else _NOTHING
        for i, j in pairwise(ends)
    ]


def _joined(noted: list[_Columns]) -> list[Any]:
    return [np.concatenate(column) for column in zip(*noted, strict=True)]


def _merged(columns: list[Any]) -> _Columns:
    """Return boxes in order; neighbours with values equal bit for bit are joined.

    There may be millions of boxes, so each column is replaced in the list.
    """
    order = np.argsort((columns[0] << _KEY_BITS) + columns[1])  # no two boxes overlap
    for index in range(len(columns)):
        columns[index] = columns[index][order]
    kind, lo, hi, a, b = columns
    starts = np.ones(len(lo), np.bool_)
    starts[1:] = (kind[1:] != kind[:-1]) | (lo[1:] != hi[:-1] + 1)
    for values in (a, b):
        bits = values.view(np.int32)
        starts[1:] |= bits[1:] != bits[:-1]
    return kind[starts], lo[starts], hi[np.roll(starts, -1)], a[starts], b[starts]


def compare_special_inputs(program: PairProgram, collector: Collector) -> tuple[PointResults, Keys]:
    """Record the differences at both infinities and at NaN, in every kind of channel.

    An infinity at which ONNX defines only one of the results counts as a difference.

    Returns: the results, unknown at infinities at which it defines neither, and the keys.
    """
    special = np.array([np.inf, -np.inf, np.nan, -np.nan], np.float32)
    count = len(program.first)
    x, kinds = np.repeat(special, count), np.tile(np.arange(count, dtype=np.int64), 4)
    with np.errstate(all="ignore"):
        points = PointResults.of(program, x, kinds)
        neither = points.unknown
        if neither.any():
            neither = program.is_undefined(x, kinds)
    nan, keys = np.isnan(x), to_keys(x)
    neither = neither & ~nan
    boxes, results = BoxBatch(kinds, keys, keys, np.zeros(len(x), np.uint8)), points[:2]
    at_all = points.differ | points.unknown | points.zero_sign
    collector.note("nan", boxes, *results, at_all & nan)
    collector.note("infinity", boxes, *results, (points.differ | points.unknown) & ~nan & ~neither)
    collector.note("zero", boxes, *results, points.zero_sign & ~nan)
    return points._replace(unknown=neither), keys


_RANDOM = 4096
_MOST = 1 << 21
"""Maximum number of inputs to try, over all channels."""
_NEAR = 2
_CONSTANTS = 256


@dataclass(frozen=True)
class Sample:
    """One input on which two functions differ, and its channel.

    ``at_most`` is the highest level that is still possible: values if only the signs of zeros or
    the results of NaN differ, else different.
    """

    at_most: Exactness
    witness: Witness
    channel: int


def sample(finding: PairFinding, reference: Expr, candidate: Expr) -> Sample | None:
    """Return an input on which two functions differ; None if none was found.

    None does not mean that the functions are equal. The finding is that of a comparison that was
    stopped.
    """
    shown = None
    if finding.witness is not None:
        unequal = finding.differing or finding.infinity_differs
        level = Exactness.DIFFERENT if unequal else Exactness.VALUES
        shown = Sample(level, finding.witness, finding.witness_channel or 0)
        if unequal:
            return shown
    try:
        program = PairProgram(reference, candidate)
    except Undecidable:
        return shown
    x = special_inputs(reference, candidate)
    kinds = program.first[: max(1, _MOST // len(x))]
    index = np.repeat(np.arange(len(kinds), dtype=np.int64), len(x))
    with np.errstate(all="ignore"):
        points = PointResults.of(program, np.tile(x, len(kinds)), index)
    number = np.tile(
        ~np.isnan(x), len(kinds)
    )  # differences at NaN inputs are not differences in value
    masks = {
        Exactness.DIFFERENT: points.differ & number,
        Exactness.VALUES: points.zero_sign | (points.differ & ~number),
    }
    for level, mask in masks.items():
        if mask.any() and (shown is None or level is Exactness.DIFFERENT):
            i = int(np.argmax(mask))
            results = float(points.reference[i]), float(points.candidate[i])
            return Sample(level, Witness(float(x[i % len(x)]), *results), int(kinds[i // len(x)]))
    return shown


def special_inputs(*functions: Expr) -> Float32:
    """Return distinct inputs that are likely to show a difference between functions.

    They are zeros, infinities, NaN, powers of two, constants of the functions, products and
    quotients of these constants, the neighbours of all these, small multiples of a quarter, and
    random floats.
    """
    constants = [known(e) for e in in_order(functions) if e.op == CONSTANT]
    numbers = [np.unique(c)[:_CONSTANTS] for c in constants if c.dtype == np.float32]
    points: npt.NDArray[Any] = np.concatenate([*numbers, np.ones(1, np.float32)])[:_CONSTANTS]
    some = points[: math.isqrt(_CONSTANTS)]
    powers = np.float32(2) ** np.arange(-149, 128, dtype=np.float32)
    with np.errstate(all="ignore"):
        seeds = np.concatenate(
            [
                powers,
                points,
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
