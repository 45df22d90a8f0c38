"""Quantizing one float weight of any size: read in pieces, once, while the model is saved.

Where scales belong to runs of neighbouring elements, a piece has everything that its codes need.
Scales of a whole tensor, or of an axis before which others vary, take a reading more, and a search
by squared error another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.errors import ModelError
from qgraph.numerics.formats import FORMATS, numpy_dtype
from qgraph.numerics.packing import pack, packed_size
from qgraph.tensors.deferred import PART_BYTES, MemorySink
from qgraph.tensors.streaming import Sink, Stream
from qgraph.weights import weight_quantization as quantization
from qgraph.weights.weight_groups import Box, Groups, product_of
from qgraph.weights.weight_quantization import Losses, Parameters, Scheme

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

_PIECE = 1 << 18
"""Elements that are read at a time."""

_TILE = 1 << 16
"""Elements that are quantized at a time."""


@dataclass(eq=False)
class WeightJob:
    """Gives codes and scales of a weight; then zero points, or the unit of the scales.

    Attributes:
        name: of the weight, for messages.
        stream: its elements: float32, float16 or bfloat16.
        groups: which of them share a scale.
        scheme: what codes are made.
        tell: is given the losses when all parts are done.
    """

    name: str
    stream: Stream
    groups: Groups
    scheme: Scheme
    tell: Callable[[Losses], None] = field(default=lambda losses: None)

    def parts(self) -> Sequence[Part]:
        """Return the work; what all parts must know is read from the weight now."""
        unit, shared = np.float32(1), None
        with np.errstate(over="ignore", invalid="ignore"):
            if self.scheme.scales == quantization.E4M3:
                _, high = self._survey()
                unit = quantization.unit_of(float(high.max(initial=0)), self.scheme)
            if self.groups.spread:
                shared = self._shared()
        boxes = self.groups.parts(PART_BYTES // 4)
        return [
            Part(self.stream, self.groups, self.scheme, box, unit, shared, number == 0)
            for number, box in enumerate(boxes)
        ]

    def conclude(self, results: Sequence[Losses]) -> None:
        """Add up what the parts have lost.

        Raises:
            ModelError: a weight is infinite or not a number.
        """
        losses = Losses()
        for result in results:
            losses.add(result)
        if not losses.finite:
            raise ModelError(
                f"Weight {self.name!r}: some elements are infinite or NaN, expected numbers, which "
                "codes stand for. Correct the weight, or leave it out with exclude=NODE."
            )
        self.tell(losses)

    def run(self) -> list[npt.NDArray[np.uint8]]:
        """Do all work now; return the bytes of each tensor.

        Raises:
            ModelError: as :meth:`conclude` does.
        """
        sinks = [MemorySink(size) for size in self.sizes()]
        self.conclude([part(sinks) for part in self.parts()])
        return [sink.data for sink in sinks]

    def sizes(self) -> list[int]:
        """Return the bytes of each tensor: codes, scales, zero points or unit."""
        bits, scales = FORMATS[self.scheme.codes].bits, self.groups.scales
        found = [_bytes(bits, self.stream.size), numpy_dtype(self.scheme.scales).itemsize * scales]
        if self.scheme.has_zero_point:
            found.append(_bytes(bits, scales))
        if self.scheme.scales == quantization.E4M3:
            found.append(4)
        return found

    def _survey(self) -> tuple[Float32, Float32]:
        """Return the smallest and the largest weight, of each index of the length if shared."""
        low = high = np.zeros((1, self.groups.count if self.groups.spread else 1, 1), np.float32)
        for box, w in self._read():
            axes = self._shared_axes if self.groups.spread else (0, 1, 2)
            low_here, high_here = quantization.extremes(w, self.scheme, axes, np.empty_like(w))
            place = self._place(box)
            low, high = low.copy(), high.copy()
            np.minimum(low[:, place], low_here, out=low[:, place])
            np.maximum(high[:, place], high_here, out=high[:, place])
        return low, high

    def _shared(self) -> Parameters:
        """Return the parameters that all parts have in common."""
        low, high = self._survey()
        offers = list(quantization.choices(low, high, self.scheme))
        if len(offers) == 1 or not np.isfinite(high).all():
            return offers[0]
        noise = np.zeros((len(offers), *low.shape), np.float64)
        for box, w in self._read():
            place, y = self._place(box), np.empty_like(w)
            for total, offer in zip(noise, offers, strict=True):
                part = _cut(offer, place)
                total[:, place] += quantization.noise(w, part, self.scheme, self._shared_axes, y)
        least = noise.argmin(axis=0)[None]

        def chosen(arrays: list[Float32]) -> Float32:
            found: Float32 = np.take_along_axis(np.stack(arrays), least, axis=0)[0]
            return found

        points = [offer.zero_point for offer in offers if offer.zero_point is not None]
        scale = chosen([offer.scale for offer in offers])
        return Parameters(scale, chosen(points) if points else None)

    @property
    def _shared_axes(self) -> tuple[int, ...]:
        return (0, 1, 2) if self.groups.count == 1 else (0, 2)

    def _place(self, box: Box) -> slice:
        single = not self.groups.spread or self.groups.count == 1
        return slice(0, 1) if single else slice(box.first, box.last)

    def _read(self) -> Iterator[tuple[Box, Float32]]:
        groups = self.groups
        whole = Box(0, groups.outer, 0, groups.length)
        reader = _Reader(self.stream, groups)
        for box in groups.pieces(whole, _TILE):
            yield box, reader.read(box)


@dataclass(frozen=True, eq=False)
class Part:
    """The elements in ``box``; see :class:`WeightJob`.

    Attributes:
        unit: of E4M3 scales.
        shared: parameters that all parts have in common, which the leader writes.
        leads: whether this is the first part.
    """

    stream: Stream
    groups: Groups
    scheme: Scheme
    box: Box
    unit: np.float32
    shared: Parameters | None
    leads: bool

    @property
    def reads(self) -> int:
        """Bytes of the weight in this part."""
        return self._elements * self.stream.dtype.itemsize

    def __call__(self, sinks: Sequence[Sink]) -> Losses:
        """Write codes, scales and zero points; the losses are those of this part."""
        # Squares may overflow, and what is no number is refused when all was read.
        with np.errstate(over="ignore", invalid="ignore"):
            return self._work(sinks)

    def _work(self, sinks: Sequence[Sink]) -> Losses:
        groups, box = self.groups, self.box
        losses, done = Losses(), 0
        codes = np.empty(self._elements, np.uint8)
        found: list[Parameters] = []
        reader, scratch = _Reader(self.stream, groups), _Scratch()
        for piece in groups.pieces(box, _PIECE):
            w = reader.read(piece)
            flat = w.reshape(-1)
            here = codes[done : done + flat.size].reshape(w.shape)
            done += flat.size
            losses.signal += float(np.dot(flat, flat))
            losses.finite = losses.finite and bool(np.isfinite(losses.signal) or _finite(flat))
            if losses.finite:
                self._quantize(w, piece, here, losses, found, scratch)
        if not losses.finite:
            return losses
        bits = FORMATS[self.scheme.codes].bits
        start = (box.top * groups.length + box.first) * groups.inner
        sinks[0].write(start * bits // 8, pack(codes, bits) if bits < 8 else codes)
        self._write_parameters(sinks, found, bits)
        return losses

    @property
    def _elements(self) -> int:
        box = self.box
        return (box.bottom - box.top) * (box.last - box.first) * self.groups.inner

    def _quantize(
        self,
        w: Float32,
        piece: Box,
        codes: Array,
        losses: Losses,
        found: list[Parameters],
        scratch: _Scratch,
    ) -> None:
        if self.shared is not None:
            single = self.groups.count == 1
            place = slice(0, 1) if single else slice(piece.first, piece.last)
            shared = _cut(self.shared, place)
            losses.add(_tile(w, shared, self.scheme, codes, scratch.of(w)))
            return
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
            y = scratch.of(tile)
            chosen = quantization.best(tile, self.scheme, (2,), self.unit, y)
            scale[cut] = chosen.scale
            if zero_point is not None and chosen.zero_point is not None:
                zero_point[cut] = chosen.zero_point
            losses.add(_tile(tile, chosen, self.scheme, coded[cut], y))
        if whole is not w:
            codes[...] = coded.reshape(rows, count * size, inner)[:, :length]
        found.append(Parameters(scale, zero_point))

    def _write_parameters(
        self, sinks: Sequence[Sink], found: Sequence[Parameters], bits: int
    ) -> None:
        groups, box = self.groups, self.box
        at = (box.top * groups.count + box.first // groups.size) * groups.inner
        if self.shared is not None:
            at, found = 0, [self.shared] if self.leads else []
        if found:
            scale = np.concatenate([each.scale.reshape(-1) for each in found])
            stored = scale_codes(scale, self.scheme, self.unit)
            sinks[1].write(at * stored.itemsize, stored)
        points = [each.zero_point.reshape(-1) for each in found if each.zero_point is not None]
        if points:
            signed = np.concatenate(points).astype(np.int16).astype(np.uint8)
            sinks[2].write(at * bits // 8, pack(signed, bits) if bits < 8 else signed)
        if self.scheme.scales == quantization.E4M3 and self.leads:
            sinks[2].write(0, np.asarray([self.unit], np.float32))


def scale_codes(scale: Float32, scheme: Scheme, unit: np.float32) -> Array:
    """Return scales in the type in which they are stored, which holds each of them exactly."""
    counted = scale / unit if scheme.scales == quantization.E4M3 else scale
    if scheme.scales in FORMATS:
        return FORMATS[scheme.scales].to_codes(counted)
    return counted.astype(numpy_dtype(scheme.scales), copy=False)


class _Reader:
    """Reads boxes of a weight as float32, into memory that is used again."""

    def __init__(self, stream: Stream, groups: Groups) -> None:
        self._stream, self._groups = stream, groups
        self._raw = np.empty(0, stream.dtype)
        self._buffer = np.empty(0, np.float32)

    def read(self, box: Box) -> Float32:
        """Return ``[bottom - top, last - first, inner]`` weights."""
        groups = self._groups
        shape = box.bottom - box.top, box.last - box.first, groups.inner
        count = product_of(shape)
        if self._raw.size < count:
            self._raw = np.empty(count, self._stream.dtype)
            self._buffer = np.empty(count, np.float32)
        start = (box.top * groups.length + box.first) * groups.inner
        raw = self._stream.read(start, start + count, self._raw[:count])
        if raw.dtype == np.float32:
            return raw.reshape(shape)
        np.copyto(self._buffer[:count], raw)
        return self._buffer[:count].reshape(shape)


class _Scratch:
    """Memory for intermediate results, used again for each tile."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.float32)

    def of(self, w: Float32) -> Float32:
        """Return an array in the shape of ``w``."""
        if self._buffer.size < w.size:
            self._buffer = np.empty(w.size, np.float32)
        return self._buffer[: w.size].reshape(w.shape)


def _tile(w: Float32, chosen: Parameters, scheme: Scheme, codes: Array, y: Float32) -> Losses:
    clipped = quantization.quantize(w, chosen, scheme, y, codes)
    return quantization.measure(w, y, chosen, clipped)


def _tiles(shape: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Cut ``[rows, groups, size, columns]`` into tiles of whole groups that fit the cache."""
    rows, count, size, columns = shape
    width = max(min(columns, _TILE // max(size, 1)), 1)
    height = max(min(count, _TILE // max(size * width, 1)), 1)
    depth = max(min(rows, _TILE // max(size * width * height, 1)), 1)
    for row in range(0, rows, depth):
        for group in range(0, count, height):
            for column in range(0, columns, width):
                yield (
                    slice(row, row + depth),
                    slice(group, group + height),
                    slice(None),
                    slice(column, column + width),
                )


def _cut(shared: Parameters, place: slice) -> Parameters:
    point = shared.zero_point
    return Parameters(shared.scale[:, place], None if point is None else point[:, place])


def _finite(flat: Float32) -> bool:
    return bool(np.isfinite(flat).all())


def _bytes(bits: int, count: int) -> int:
    return packed_size(bits, count) if bits < 8 else count
