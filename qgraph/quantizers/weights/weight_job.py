"""Quantize one float weight of any size: read in pieces, once, while the model is saved.

If scales belong to runs of neighbouring elements, the codes of a piece depend only on this piece.
Scales of a whole tensor, or along an axis that is not the first, need one more reading, and a
search by squared error another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from qgraph.errors import ModelError
from qgraph.graph.deferred import PART_BYTES, Part
from qgraph.graph.streaming import Sink, Stream
from qgraph.numerics import Array, Float32
from qgraph.numerics.formats import FORMATS, numpy_dtype, packed_size
from qgraph.quantizers.weights import job, scheme as quantization, search
from qgraph.quantizers.weights.job import Box, CodeWriter, Groups, Workspace, run_now
from qgraph.quantizers.weights.scheme import Losses, Parameters, Scheme
from qgraph.records import dataclass, field

_TILE = 1 << 16
"""Number of elements of a shared scale whose squared errors are added in float32."""

_TILE_OF_GROUPS = 1 << 17
"""Number of elements that are quantized at a time."""


@dataclass(eq=False)
class WeightJob:
    """Writes codes and scales of a weight; then zero points, or the unit of the scales.

    Attributes:
        name: of the weight, for messages.
        stream: its elements: float32, float16 or bfloat16.
        groups: the groups that share a scale.
        on_losses: called with the losses when all parts are done.
    """

    name: str
    stream: Stream
    groups: Groups
    scheme: Scheme
    on_losses: Callable[[Losses], None] = field(default=lambda losses: None)

    def parts(self) -> Sequence[Part]:
        """Return the parts; parameters that all parts share are computed from the weight now."""
        work = _WeightQuantizer(self.stream, self.groups, self.scheme)
        with np.errstate(over="ignore", invalid="ignore"):
            if self.scheme.scales == quantization.E4M3:
                _, high = quantization.spanned(*work.survey(), self.scheme)
                work.unit = quantization.unit_of(float(high.max(initial=0)), self.scheme)
            if self.groups.spread:
                work.shared = work.shared_parameters()
        return [
            Part(work.compute, box, self.groups.size_of(box) * self.stream.dtype.itemsize)
            for box in self.groups.parts(PART_BYTES // 4)
        ]

    def conclude(self, results: Sequence[Losses]) -> None:
        """Add up the losses of all parts; ModelError if a weight is infinite or not a number."""
        losses = Losses()
        for result in results:
            losses.add(result)
        if not losses.finite:
            raise ModelError(
                f"Weight {self.name!r}: some elements are infinite or NaN, expected finite "
                f"numbers. Correct the weight, or leave it out with exclude=NODE."
            )
        self.on_losses(losses)

    def run(self) -> list[npt.NDArray[np.uint8]]:
        """Do all work now; return the bytes of each tensor.

        Raises:
            ModelError: a weight is infinite or not a number.
        """
        return run_now(self, self.sizes())

    def sizes(self) -> list[int]:
        """Return the bytes of each tensor: codes, scales, zero points or unit."""
        bits, scales = FORMATS[self.scheme.codes].bits, self.groups.scales
        sizes = [packed_size(bits, self.stream.size)]
        sizes.append(numpy_dtype(self.scheme.scales).itemsize * scales)
        if self.scheme.has_zero_point:
            sizes.append(packed_size(bits, scales))
        if self.scheme.scales == quantization.E4M3:
            sizes.append(4)
        return sizes


@dataclass(eq=False)
class _WeightQuantizer:
    """Quantizes boxes of a weight.

    Attributes:
        shared: parameters of all parts, which the first part writes; None if each piece has its
            own.
    """

    stream: Stream
    groups: Groups
    scheme: Scheme
    unit: np.float32 = field(default=np.float32(1))
    shared: Parameters | None = None

    def compute(self, box: Box, sinks: Sequence[Sink]) -> Losses:
        """Write codes, scales and zero points of a part; return the losses of this part."""
        # Squares may overflow; elements that are no numbers are refused when all was read.
        with np.errstate(over="ignore", invalid="ignore"):
            return self._compute(box, sinks)

    def _compute(self, box: Box, sinks: Sequence[Sink]) -> Losses:
        groups, losses = self.groups, Losses()
        if self.shared is None:
            search.expect(self.scheme, groups.size_of(box))
        is_first = (box.top, box.first) == (0, 0)
        codes = CodeWriter(sinks[0], self.scheme.codes, groups.offset(box))
        first_scale = (box.top * groups.count + box.first // groups.size) * groups.inner
        parameters = _ParameterWriter(sinks, self.scheme, self.unit, first_scale)
        scratch = Workspace()
        for piece, w in self._read(box, job.PIECE):
            flat = w.reshape(-1)
            losses.signal += float(np.dot(flat, flat))
            is_finite = np.isfinite(losses.signal) or np.isfinite(flat).all()
            losses.finite = losses.finite and bool(is_finite)
            if not losses.finite:
                continue
            is_last = (piece.bottom, piece.last) == (box.bottom, box.last)
            narrow = np.empty(w.shape, np.uint8)
            if self.shared is None:
                chosen = self._quantize_groups(w, narrow, losses, scratch)
                parameters.write(chosen, is_last=is_last)
            else:
                shared = self.shared.cut(self._slice(piece))
                losses.add(_tile(w, shared, self.scheme, narrow, scratch.of(w.shape)))
            codes.write(narrow, is_last=is_last)
        if losses.finite and is_first:
            if self.shared is not None:
                parameters.write(self.shared, is_last=True)
            if self.scheme.scales == quantization.E4M3:
                sinks[2].write(0, np.asarray([self.unit], np.float32))
        return losses

    def _quantize_groups(
        self, w: Float32, codes: Array, losses: Losses, scratch: Workspace
    ) -> Parameters:
        """Write the codes of whole groups; return their scales and zero points."""
        rows, length, inner = w.shape
        size = self.groups.size
        count = -(-length // size)
        whole = w
        if count * size != length:
            # Zeros at the end are coded without error and change no scale.
            whole = np.zeros((rows, count * size, inner), np.float32)
            whole[:, :length] = w
        blocks = whole.reshape(rows, count, size, inner)
        scale = np.empty((rows, count, 1, inner), np.float32)
        zero_point = np.empty_like(scale) if self.scheme.has_zero_point else None
        coded = np.empty(blocks.shape, np.uint8) if whole is not w else codes.reshape(blocks.shape)
        for cut in _tiles(blocks.shape):
            tile = blocks[cut]
            y = scratch.of(tile.shape)
            chosen = search.best(tile, self.scheme, (2,), self.unit, y)
            scale[cut] = chosen.scale
            if zero_point is not None and chosen.zero_point is not None:
                zero_point[cut] = chosen.zero_point
            losses.add(_tile(tile, chosen, self.scheme, coded[cut], y))
        if whole is not w:
            codes[...] = coded.reshape(rows, count * size, inner)[:, :length]
        return Parameters(scale, zero_point)

    def survey(self) -> tuple[Float32, Float32]:
        """Return the smallest and the largest weight, per index of the length if shared."""
        low = np.zeros((1, self.groups.count if self.groups.spread else 1, 1), np.float32)
        high = low.copy()
        for box, w in self._read(self.groups.whole, _TILE):
            axes = self._shared_axes if self.groups.spread else (0, 1, 2)
            ends = quantization.extremes(w, axes, np.empty_like(w))
            at = self._slice(box)
            np.minimum(low[:, at], ends[0], out=low[:, at])
            np.maximum(high[:, at], ends[1], out=high[:, at])
        return low, high

    def shared_parameters(self) -> Parameters:
        """Return the shared parameters of all parts."""
        low, high = self.survey()
        wanted = quantization.spanned(low, high, self.scheme)
        offers = list(search.choices(*wanted, self.scheme))
        if len(offers) == 1 or not np.isfinite(wanted).all():
            return offers[0]
        search.expect(self.scheme, self.stream.size)
        (least,) = first = self._noise(offers[:1], low)
        offers[1:] = [
            offer
            for offer in offers[1:]
            if search.may_be_better(low, high, offer, self.scheme, least)
        ]
        noise = np.concatenate([first, self._noise(offers[1:], low)])
        best = noise.argmin(axis=0)[None]

        def chosen(arrays: list[Float32]) -> Float32:
            taken: Float32 = np.take_along_axis(np.stack(arrays), best, axis=0)[0]
            return taken

        points = [offer.zero_point for offer in offers if offer.zero_point is not None]
        scale = chosen([offer.scale for offer in offers])
        return Parameters(scale, chosen(points) if points else None)

    def _noise(self, offers: Sequence[Parameters], like: Float32) -> Array:
        """Return squared errors of shared parameters, ``[candidates, *groups]``, in one reading."""
        noise = np.zeros((len(offers), *like.shape), np.float64)
        for box, w in self._read(self.groups.whole, _TILE) if offers else ():
            at, y = self._slice(box), np.empty_like(w)
            for total, offer in zip(noise, offers, strict=True):
                total[:, at] += search.noise(w, offer.cut(at), self.scheme, self._shared_axes, y)
        return noise

    @property
    def _shared_axes(self) -> tuple[int, ...]:
        return (0, 1, 2) if self.groups.count == 1 else (0, 2)

    def _slice(self, box: Box) -> slice:
        """Return the shared parameters of a box."""
        single = not self.groups.spread or self.groups.count == 1
        return slice(0, 1) if single else slice(box.first, box.last)

    def _read(self, box: Box, size: int) -> Iterator[tuple[Box, Float32]]:
        """Yield pieces of a box as float32; the next piece takes over the memory of the last."""
        scratch = Workspace()
        for piece in self.groups.pieces(box, size):
            count, start = self.groups.size_of(piece), self.groups.offset(piece)
            w = self.stream.read(start, start + count, scratch.of([count], self.stream.dtype))
            if w.dtype != np.float32:
                wide = scratch.of([count], use="float32")
                np.copyto(wide, w)
                w = wide
            shape = piece.bottom - piece.top, piece.last - piece.first, self.groups.inner
            yield piece, w.reshape(shape)


class _ParameterWriter:
    """Writes scales and zero points of consecutive groups.

    Args:
        sinks: the second one takes scales, the third one zero points.
        start: index of the first group.
    """

    def __init__(self, sinks: Sequence[Sink], scheme: Scheme, unit: np.float32, start: int) -> None:
        self._scheme, self._unit = scheme, unit
        self._scales = CodeWriter(sinks[1], scheme.scales, start)
        has_points = scheme.has_zero_point
        self._points = CodeWriter(sinks[2], scheme.codes, start) if has_points else None

    def write(self, chosen: Parameters, *, is_last: bool) -> None:
        """Write scales and zero points."""
        stored = scale_codes(chosen.scale.reshape(-1), self._scheme, self._unit)
        self._scales.write(stored, is_last=is_last)
        if self._points is not None and chosen.zero_point is not None:
            numbers = chosen.zero_point.reshape(-1).astype(np.int16).astype(np.uint8)
            self._points.write(numbers, is_last=is_last)


def scale_codes(scale: Float32, scheme: Scheme, unit: np.float32) -> Array:
    """Return scales in their storage type, which represents each of them exactly."""
    counted = scale / unit if scheme.scales == quantization.E4M3 else scale
    return counted.astype(numpy_dtype(scheme.scales), copy=False)


def _tile(w: Float32, chosen: Parameters, scheme: Scheme, codes: Array, y: Float32) -> Losses:
    clipped = quantization.quantize(w, chosen, scheme, y, codes)
    return quantization.measure(w, y, chosen, clipped)


def _tiles(shape: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Cut ``[rows, groups, size, columns]`` into tiles of whole groups that fit the cache."""
    rows, count, size, columns = shape
    width = max(min(columns, _TILE_OF_GROUPS // max(size, 1)), 1)
    height = max(min(count, _TILE_OF_GROUPS // max(size * width, 1)), 1)
    depth = max(min(rows, _TILE_OF_GROUPS // max(size * width * height, 1)), 1)
    for row in range(0, rows, depth):
        for group in range(0, count, height):
            for column in range(0, columns, width):
                cut = slice(row, row + depth), slice(group, group + height)
                yield (*cut, slice(None), slice(column, column + width))
