"""What a comparison found, and the box by box collection of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from qgraph.exactness import Witness
from qgraph.proof.keys import Float32, Keys, from_keys, to_keys

Channels = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_KEY_BITS = 33
"""Bits that hold the key of any float32 number, and its sign."""


@dataclass(frozen=True)
class Runs:
    """Stretches of inputs on which the values differ, in the order of channels and inputs.

    Attributes:
        channel: ``[n]`` the first channel with these constants.
        lo, hi: ``[n]`` keys of the first and the last input.
        reference, candidate: ``[n]`` the two values; where they vary within a stretch, the two
            bounds that lie farthest apart.
    """

    channel: Channels
    lo: Keys
    hi: Keys
    reference: Float32
    candidate: Float32

    def __len__(self) -> int:
        return len(self.lo)


@dataclass(frozen=True)
class Finding:
    """How two expressions compare.

    Counts sum over all channels. When undecided, they cover what was settled until then.

    Attributes:
        channels: number of elements that the constants broadcast to.
        boxes: how many boxes were evaluated.
        differing: finite inputs whose outputs differ in value; -0 equals +0, and NaN equals NaN.
        zero_sign: finite inputs whose outputs are zeros that differ in sign, or may, because ONNX
            leaves the sign open (Min, Max and Relu of both zeros).
        infinity_differs, infinity_sign_differs: the same for the inputs -Inf and +Inf.
        nan_differs: whether NaN inputs give different outputs, zero sign included.
        witness: an input to show: the widest difference of value, else at infinity, of zero sign,
            at NaN.
        witness_channel: where the witness is.
        runs: all inputs of ``differing``; of each set of channels with equal constants, the first.
            Where all inputs were tried, some of them.
        at_infinity: the infinities of ``infinity_differs``, in the same form.
        by_channel: channel and number of differing inputs, of the channels that ``runs`` names.
        undecided: why there is no result; None if there is.
        given_up: whether that is only because it would have taken too long.
        enumerated: whether all inputs were tried, one by one.
        largest_ulps: where they were, the largest number of floats from one value to the other;
            None if nothing differs, or NaN is one of them.
    """

    channels: int
    boxes: int
    differing: int
    zero_sign: int
    infinity_differs: bool
    infinity_sign_differs: bool
    nan_differs: bool
    witness: Witness | None
    witness_channel: int | None
    runs: Runs
    at_infinity: Runs
    by_channel: tuple[tuple[int, int], ...] = ()
    undecided: str | None = None
    given_up: bool = False
    enumerated: bool = False
    largest_ulps: int | None = None


_Columns: TypeAlias = tuple[Channels, Keys, Keys, Float32, Float32]


class Notes(Protocol):
    """What takes down where two expressions differ: see :class:`Collector`."""

    def differ(
        self, kind: Channels, lo: Keys, hi: Keys, reference: Float32, candidate: Float32
    ) -> None:
        """See :class:`Collector`."""

    def differ_in_zero_sign(
        self, kind: Channels, lo: Keys, hi: Keys, reference: Float32, candidate: Float32
    ) -> None:
        """See :class:`Collector`."""

    def differ_at_infinity(
        self, kind: Channels, x: Float32, reference: Float32, candidate: Float32, *, where: Mask
    ) -> None:
        """See :class:`Collector`."""

    def differ_in_zero_sign_at_infinity(
        self, kind: Channels, x: Float32, reference: Float32, candidate: Float32, *, where: Mask
    ) -> None:
        """See :class:`Collector`."""

    def differ_at_nan(
        self, kind: Channels, x: Float32, reference: Float32, candidate: Float32, *, where: Mask
    ) -> None:
        """See :class:`Collector`."""

    def differing(self, kinds: int) -> Mask:
        """See :class:`Collector`."""


class Collector:
    """Adds up what boxes show.

    Args:
        channels: number of channels.
        first: ``[kinds]`` the first channel of each kind.
        count: ``[kinds]`` how many channels each kind stands for.
    """

    def __init__(self, channels: int, first: Channels, count: Channels) -> None:
        self._channels = channels
        self._first = first
        self._count = count
        self._runs: list[_Columns] = []
        self._at_infinity: list[_Columns] = []
        self._witnesses: dict[str, tuple[int, Witness]] = {}
        self._unlisted = np.zeros(len(first), np.int64)
        self._zero_sign = 0
        self._infinity_sign_differs = False
        self._nan_differs = False

    def differ(
        self, kind: Channels, lo: Keys, hi: Keys, reference: Float32, candidate: Float32
    ) -> None:
        """Note boxes ``[n]`` on which the values differ throughout."""
        if len(kind):
            self._runs.append((kind, lo, hi, reference, candidate))

    def differ_elsewhere(self, kind: int, differing: int, zero_sign: int) -> None:
        """Note how many more inputs differ, in value and in the sign of zero, than are noted."""
        self._unlisted[kind] += differing
        self._zero_sign += zero_sign * int(self._count[kind])

    def differ_in_zero_sign(
        self, kind: Channels, lo: Keys, hi: Keys, reference: Float32, candidate: Float32
    ) -> None:
        """Note boxes ``[n]`` on which both results are zeros, whose signs differ or may differ."""
        if len(kind):
            self._zero_sign += int(((hi - lo + 1) * self._count[kind]).sum())
            self._show("zero", kind, from_keys(lo[:1]), reference, candidate)

    def differ_at_infinity(
        self, kind: Channels, x: Float32, reference: Float32, candidate: Float32, *, where: Mask
    ) -> None:
        """Note infinities ``[n]`` where the values differ, or are unspecified."""
        if where.any():
            keys = to_keys(x[where])
            found = kind[where], keys, keys, reference[where], candidate[where]
            self._at_infinity.append(found)
            self._show("infinity", kind[where], x[where], *found[3:])

    def differ_in_zero_sign_at_infinity(
        self, kind: Channels, x: Float32, reference: Float32, candidate: Float32, *, where: Mask
    ) -> None:
        """Note infinities ``[n]`` where both results are zeros of different signs."""
        if where.any():
            self._infinity_sign_differs = True
            self._show("zero", kind[where], x[where], reference[where], candidate[where])

    def differ_at_nan(
        self, kind: Channels, x: Float32, reference: Float32, candidate: Float32, *, where: Mask
    ) -> None:
        """Note NaN inputs ``[n]`` where the results differ in any way."""
        if where.any():
            self._nan_differs = True
            self._show("nan", kind[where], x[where], reference[where], candidate[where])

    def differing(self, kinds: int) -> Mask:
        """Return for each of ``kinds`` kinds whether no more than a difference has to be known.

        A difference in value of one channel, at infinity also, is one of them all.
        """
        return np.full(kinds, bool(self._runs or self._at_infinity))

    def _show(
        self, what: str, kind: Channels, x: Float32, reference: Float32, candidate: Float32
    ) -> None:
        """Keep the first of some inputs as a witness of ``what``, unless there is one."""
        if what not in self._witnesses:
            witness = Witness(float(x[0]), float(reference[0]), float(candidate[0]))
            self._witnesses[what] = int(self._first[kind[0]]), witness

    def finding(self, boxes: int, *, undecided: str | None = None) -> Finding:
        """Return all that was noted in ``boxes`` boxes."""
        kind, runs = self._merged(self._runs)
        if len(runs):
            with np.errstate(all="ignore"):
                gap = np.abs(runs.reference.astype(np.float64) - runs.candidate)
            widest = int(np.argmax(np.where(np.isnan(gap), np.inf, gap)))
            x = from_keys(runs.lo[widest:])
            self._show("value", kind[widest:], x, runs.reference[widest:], runs.candidate[widest:])
        shown = (self._witnesses.get(what) for what in ("value", "infinity", "zero", "nan"))
        channel, witness = next((w for w in shown if w is not None), (None, None))
        of_kind = self._unlisted.copy()
        np.add.at(of_kind, kind, runs.hi - runs.lo + 1)
        return Finding(
            channels=self._channels,
            boxes=boxes,
            differing=int((of_kind * self._count).sum()),
            zero_sign=self._zero_sign,
            infinity_differs=bool(self._at_infinity),
            infinity_sign_differs=self._infinity_sign_differs,
            nan_differs=self._nan_differs,
            witness=witness,
            witness_channel=channel,
            runs=runs,
            at_infinity=self._merged(self._at_infinity)[1],
            by_channel=tuple(
                (int(self._first[k]), int(of_kind[k])) for k in np.flatnonzero(of_kind)
            ),
            undecided=undecided,
        )

    def _merged(self, noted: list[_Columns]) -> tuple[Channels, Runs]:
        """Return the kinds, and the differing boxes joined where neighbours have equal values."""
        keys, floats = np.zeros(0, np.int64), np.zeros(0, np.float32)
        columns = zip((keys, keys, keys, floats, floats), *noted, strict=True)
        kind, lo, hi, reference, candidate = (np.concatenate(column) for column in columns)
        order = np.argsort((kind << _KEY_BITS) + lo, kind="stable")
        kind, lo, hi, reference, candidate = (
            array[order] for array in (kind, lo, hi, reference, candidate)
        )
        starts = np.ones(len(lo), np.bool_)
        if len(lo):
            starts[1:] = (kind[1:] != kind[:-1]) | (lo[1:] != hi[:-1] + 1)
            for values in (reference, candidate):
                bits = values.view(np.int32)
                starts[1:] |= bits[1:] != bits[:-1]
        ends = np.roll(starts, -1)
        kind = kind[starts]
        runs = Runs(self._first[kind], lo[starts], hi[ends], reference[starts], candidate[starts])
        return kind, runs
