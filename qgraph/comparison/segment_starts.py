"""Starts of a segment of two models, and codes there for which their results differ much.

A start is codes, or an input of the models. The codes follow from the signs of the difference of
the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from qgraph.bound import SeenCodes
from qgraph.comparison.bound_runs import BoundRuns, SegmentRun
from qgraph.comparison.cut_model import QuantizedPoint
from qgraph.numerics import Float64
from qgraph.proof.bounds.combination import Atom, Combination
from qgraph.proof.bounds.distances import joined
from qgraph.proof.bounds.roundings import RoundedData
from qgraph.records import dataclass

Shape = tuple[int, ...]

_SHARES = (1.0, 0.5, 0.25)
"""Distances of the codes from the middle of their range, as shares of half the range."""


@dataclass(frozen=True, eq=False)
class Pattern:
    """Codes at one start of a segment: one number, except at some elements.

    Attributes:
        atom: the atom of the codes; None for all starts.
        share: position of all codes between the middle (0) and the limits (-1 and 1) of their
            range; None for mixed codes.
        elements: indices of elements, ``[count, axes]``.
        codes: the codes of these elements.
    """

    atom: Atom | None
    share: float | None = 0.0
    elements: tuple[Shape, ...] = ()
    codes: tuple[float, ...] = ()


EXTREMES = tuple(Pattern(None, share) for share in (0.0, 1.0, -1.0, None))


@dataclass(frozen=True, eq=False)
class _Sums:
    """The sums of products in two functions, by row: ``factor * weights * codes + offset``."""

    atom: Atom
    attributes: tuple[tuple[object, ...], int]
    weights: tuple[Float64, Float64]
    offsets: tuple[Float64, Float64]


def adverse_codes(
    one: RoundedData, other: RoundedData, shape_of: Callable[[Atom], Shape | None]
) -> Iterator[Pattern]:
    """Yield codes for which the values before rounding differ much between the two models.

    Nothing is yielded unless the segment is one sum of products of codes. The two functions are
    those that both models round. ``shape_of`` returns the shape of the codes of an atom; None if it
    is not known.
    """
    sums = _sums_of(joined(one.function), joined(other.function))
    shape = None if sums is None else shape_of(sums.atom)
    if sums is None or shape is None:
        return
    first, second = (weights.reshape(len(weights), -1) for weights in sums.weights)
    apart = second - first
    low, high = (np.asarray(end).reshape(-1)[0] for end in (sums.atom.low, sums.atom.high))
    middle = np.clip(0.0, low, high)
    shift = np.ravel(sums.offsets[1] - sums.offsets[0])
    for sign in (1.0, -1.0):
        chosen = np.where(sign * apart > 0, high, np.where(apart == 0, middle, low))
        row = int(np.argmax(sign * ((apart * chosen).sum(axis=1) + shift)))
        reached = first[row] @ (chosen[row] - middle)
        base = np.ravel(sums.offsets[0])[row if sums.offsets[0].size > 1 else 0]
        base += first[row].sum() * middle
        ends = [np.ravel(end)[row if np.size(end) > 1 else 0] for end in one.executed]
        # not so far that both are clipped
        room = (ends[1] if reached > 0 else ends[0]) - np.sign(reached) - base
        most = 1.0 if not reached else float(np.clip(room / reached, 0.0, 1.0))
        for share in dict.fromkeys([most, *(most * each for each in _SHARES[1:])]):
            codes = np.rint(middle + share * (chosen[row] - middle))
            yield _at(sums, shape, row, codes.reshape(sums.weights[0].shape[1:]))


def _sums_of(one: Combination, other: Combination) -> _Sums | None:
    if len(one.terms) != 1 or len(other.terms) != 1:
        return None
    (c, a), (d, b) = one.terms[0], other.terms[0]
    inner = [atom.arguments[0] for atom in (a, b) if atom.kind == "sum" and atom.arguments]
    if len(inner) != 2 or a.attributes != b.attributes or any(len(x.terms) != 1 for x in inner):
        return None
    ((e, codes),), ((f, others),) = (x.terms for x in inner)
    weights = a.numbers[0], b.numbers[0]
    is_one = codes is others and codes.kind in ("codes", "integers", "input")
    if not is_one or weights[0].shape != weights[1].shape or not (e.size == f.size == 1):
        return None
    rows = (-1, *(1,) * (weights[0].ndim - 1))
    factors = (c * e.reshape(()), d * f.reshape(()))
    if any(factor.size not in (1, len(weights[0])) for factor in factors):
        return None
    scaled = [factor.reshape(rows) * w for factor, w in zip(factors, weights, strict=True)]
    if not isinstance(a.attributes, tuple):
        return None
    return _Sums(codes, a.attributes, (scaled[0], scaled[1]), (one.offset, other.offset))


def _at(sums: _Sums, shape: Shape, row: int, codes: Float64) -> Pattern:
    """Place codes ``[taps, *places]`` at the elements that one element of the result reads."""
    geometry, trailing = sums.attributes
    taps, places = len(codes), codes.shape[1:]
    elements, values = [], []
    if geometry[0] != "Conv" or not places:
        lead = (0,) * (len(shape) - 1 - trailing)
        rest = (0,) * trailing
        elements = [(*lead, tap, *rest) for tap in range(min(taps, shape[-1 - trailing]))]
        return Pattern(sums.atom, 0.0, tuple(elements), tuple(codes.reshape(taps).tolist()))
    _, strides, dilations, pads, _, groups, *_ = geometry
    starts = _middle(shape[2:], places, (strides, dilations, pads))  # type: ignore[arg-type]
    rows = len(sums.weights[0]) // int(str(groups))
    for index in np.ndindex(codes.shape):
        spots = zip(starts, index[1:], dilations, strict=True)  # type: ignore[call-overload]
        place = tuple(start + k * step for start, k, step in spots)
        if all(0 <= at < size for at, size in zip(place, shape[2:], strict=True)):
            elements.append((0, row // rows * taps + index[0], *place))
            values.append(float(codes[index]))
    return Pattern(sums.atom, 0.0, tuple(elements), tuple(values))


def _middle(sizes: Shape, kernel: Shape, geometry: Sequence[Shape]) -> list[int]:
    """Return the start of the window of the middle element of a result."""
    starts = []
    strides, dilations, pads = geometry
    for axis, (size, length) in enumerate(zip(sizes, kernel, strict=True)):
        reach = dilations[axis] * (length - 1) + 1
        count = (size + pads[axis] + pads[len(sizes) + axis] - reach) // strides[axis] + 1
        starts.append(count // 2 * strides[axis] - pads[axis])
    return starts


_MOST_BITS = 16
"""Maximum bits of integer inputs; wider ones are indices or sizes with few valid values."""


@dataclass(frozen=True, eq=False)
class SegmentStart:
    """Codes or an input at which a segment starts.

    Attributes:
        name: name of the value in the reference.
        key: their atom or input name; see :func:`key_of`.
        low, high: the first and the last code that are possible for all elements of both models.
        points: the roundings that compute them; None for an input.
        delta: codes of the candidate minus codes of the reference.
    """

    name: str
    key: Hashable
    shape: Shape
    dtype: ir.DataType
    low: float
    high: float
    points: tuple[QuantizedPoint, QuantizedPoint] | None = None
    delta: Float64 | float = 0.0

    @property
    def has_codes(self) -> bool:
        """Whether these are whole numbers."""
        return self.points is not None or not self.dtype.is_floating_point()

    def fill(self, share: float) -> float:
        """Return the code at a share of the distance from the middle to a limit."""
        middle = min(max(0.0, self.low), self.high)
        far = middle + abs(share) * ((self.high if share > 0 else self.low) - middle)
        return float(round(far)) if self.has_codes else far

    def codes(self, pattern: Pattern) -> SeenCodes:
        """Return the codes of a pattern."""
        if pattern.share is None:
            levels = int(self.high - self.low) + 1 if self.has_codes else 0
            return SeenCodes(self.name, self.low, levels=levels)
        fill = self.fill(pattern.share)
        if pattern.atom is None or key_of(pattern.atom) != self.key:
            return SeenCodes(self.name, fill)
        codes = np.clip(pattern.codes, self.low, self.high).tolist()
        return SeenCodes(self.name, fill, pattern.elements, tuple(codes))


def key_of(atom: Atom) -> Hashable:
    """Return an atom of codes, or the name of an input."""
    return atom.attributes if atom.kind in ("input", "integers") else atom


def starts_of(runs: BoundRuns, step: SegmentRun) -> list[SegmentStart]:
    """Return the starts of a segment; raise KeyError if one, or its limits, are not known."""
    if step.parts is None:
        return []
    ours, theirs = step.parts
    pairs = {s.points[0].node: s for s in runs.steps if s.points is not None}
    starts = [_input(value, runs.ranges) for value in ours.inputs]
    for cut, node in ours.starts.items():
        source = pairs[node]
        if source.points is None or source.segment.roundings is None:
            raise KeyError(node.name)
        one, other = source.segment.roundings
        delta, ((_, atom),) = source.segment.delta, one.codes.terms
        low = float(np.max(np.maximum(one.ends[0], other.ends[0] - delta)))
        high = float(np.min(np.minimum(one.ends[1], other.ends[1] - delta)))
        if not 0 <= high - low < math.inf:
            raise KeyError(f"the codes of {source.tally.value} have no ends, or none in common")
        dtype = cut.dtype or ir.DataType.FLOAT
        starts.append(
            SegmentStart(
                source.tally.value, atom, _shape(cut), dtype, low, high, source.points, delta
            )
        )
    fed = {start.points[1].node for start in starts if start.points is not None}
    if not fed.issuperset(theirs.starts.values()):
        raise KeyError("the candidate starts from other codes")
    return starts


def _input(value: ir.Value, ranges: Mapping[str, tuple[float, float]]) -> SegmentStart:
    dtype = value.dtype or ir.DataType.FLOAT
    ends = ranges.get(str(value.name))
    if ends is None:
        if dtype.is_integer() and dtype.bitwidth > _MOST_BITS:
            raise KeyError(f"no range of {value.name}")
        limits = np.iinfo(dtype.numpy()) if dtype.is_integer() else None
        ends = (-1.0, 1.0) if limits is None else (float(limits.min), float(limits.max))
    name = str(value.name)
    return SegmentStart(name, name, _shape(value), dtype, *ends)


def _shape(value: ir.Value) -> Shape:
    """Return the shape of a value, with 1 for sizes that are not known."""
    if value.shape is None:
        raise KeyError(value.name)
    return tuple(size if isinstance(size, int) else 1 for size in value.shape)
