"""Constants decoded by a DequantizeLinear, and the types that can represent their codes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError
from qgraph.graph.constants import clip_limits, constant_expression, constant_stream
from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.schema import LINEAR_DOMAINS
from qgraph.graph.scopes import producer_of
from qgraph.graph.streaming import Stream
from qgraph.model import Model
from qgraph.numerics import Array, Int32, blocks
from qgraph.numerics.formats import FORMATS, IntFormat, packed_size
from qgraph.numerics.minifloat import MINIFLOATS, cast
from qgraph.ops.operator import operator_of
from qgraph.quantizers.movement import is_linear
from qgraph.quantizers.weights.job import NumberRange, Source
from qgraph.quantizers.weights.piecewise import Parameter
from qgraph.records import dataclass, replace

_DECODER = "DequantizeLinear"

Move = tuple[Parameter | None, float]
"""Number to subtract, and power of two to multiply by."""


@dataclass(frozen=True, eq=False)
class Stored:
    """A DequantizeLinear on constant codes, with an optional Clip between them.

    Attributes:
        source: the stream of codes after the Clip, shifted by the zero points.
        scale: stored scales, in the rank of the codes; None if they are computed.
        zero_point: likewise, as whole numbers; None for 0.
        others: operators that use the codes directly.
    """

    nodes: tuple[ir.Node, ...]
    value: ir.Value
    source: Source
    scale: Array | None
    zero_point: Int32 | None
    others: tuple[str, ...] = ()

    @property
    def decode(self) -> ir.Node:
        """The DequantizeLinear."""
        return self.nodes[-1]

    @property
    def stream(self) -> Stream:
        """The codes."""
        return self.source.stream

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and zero points; unknown scales and zero points count as 0."""
        points = 0 if self.zero_point is None else self.zero_point.size
        size = self.stream.nbytes + packed_size(FORMATS[self.stream.kind].bits, points)
        return size + (0 if self.scale is None else self.scale.nbytes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the codes."""
        return self.stream.shape

    @property
    def axis(self) -> int:
        """The axis of the DequantizeLinear, counted from the front."""
        return self.decode.attributes.get_int("axis", 1) % max(len(self.shape), 1)

    @property
    def block_size(self) -> int:
        """The block size of the DequantizeLinear."""
        return self.decode.attributes.get_int("block_size", 0)

    @property
    def scale_type(self) -> str:
        """The ONNX type of the scales."""
        scale = self.decode.inputs[1]
        return scale.dtype.name if scale is not None and scale.dtype is not None else "FLOAT"

    def scale_over(self, factor: float) -> Array | None:
        """Return the scales divided by ``factor``; None if they are not constant or not exact."""
        if self.scale is None or factor == 1:
            return self.scale
        with np.errstate(all="ignore"):
            quotient = self.scale.astype(np.float32) / np.float32(factor)
            scale = quotient.astype(self.scale.dtype)
            again = scale.astype(np.float32) * np.float32(factor)
        normal = np.abs(quotient) >= np.finfo(np.float32).smallest_normal
        same = again == self.scale.astype(np.float32)
        return scale if bool((same & normal).all()) else None

    def moved_point(self, shift: Parameter | None) -> Int32:
        """Return the zero points after a shift."""
        point = self.zero_point
        if point is None:
            point = np.zeros((1,) * len(self.shape), np.int32)
        return point if shift is None else point - shift.array


def stored_codes(model: Model) -> Iterator[Stored]:
    """Yield every valid DequantizeLinear on constant codes."""
    others: dict[ir.Value, list[str]] = {}
    for node in model.nodes("DequantizeLinear"):
        try:
            stored = _read(node, others) if node.domain in LINEAR_DOMAINS else None
        except (OperatorError, ValueError):
            continue
        if stored is not None:
            yield stored


def _read(node: ir.Node, known: dict[ir.Value, list[str]]) -> Stored | None:
    """Return the stored codes of a DequantizeLinear; ``known`` are other users of codes so far."""
    value = node.inputs[0]
    nodes: tuple[ir.Node, ...] = (node,)
    bounds = None
    clip = producer_of(value, "Clip")
    if clip is not None:
        ends, most = clip_limits(clip), 2**31 - 1
        if ends is None:
            return None
        bounds = max(ends[0], -most), min(ends[1], most)
        value, nodes = clip.inputs[0], (clip, node)
    stream, operator = constant_stream(value), operator_of(node)
    if value is None or stream is None or stream.kind not in FORMATS or not stream.size:
        return None
    if operator is None:
        return None
    _, scale_value, point_value = operator.schema.values(node)
    point = constant_expression(point_value)
    if point_value is not None and point is None:
        return None
    axis, size = (node.attributes.get_int(name, n) for name, n in (("axis", 1), ("block_size", 0)))
    scale = constant_expression(scale_value)
    scale = None if scale is None else _aligned(scale, stream.shape, axis, size)
    zero_point = shift = None
    if point is not None and point.astype(np.float32).any():
        zero_point = _aligned(point.astype(np.int32), stream.shape, axis, size)
        rank = max(len(stream.shape), 1)
        shift = Parameter(zero_point, stream.shape, axis % rank if size else None, size)
    passed_on = (value, *(n.outputs[0] for n in nodes[:-1]))
    for each in passed_on:  # many nodes may decode the same codes
        if each not in known:
            known[each] = _others(each)
    others = dict.fromkeys(user for each in passed_on for user in known[each])
    return Stored(nodes, value, Source(stream, bounds, shift), scale, zero_point, tuple(others))


def _others(value: ir.Value) -> list[str]:
    """Return the users of codes other than Clip and DequantizeLinear."""
    readers = [n for n, index in value.uses() if index or not is_linear(n, "Clip", _DECODER)]
    names = [reader.op_type for reader in readers]
    return names + (["the outputs of the graph"] if value.is_graph_output() else [])


def _aligned(parameter: Array, shape: tuple[int, ...], axis: int, block_size: int) -> Array:
    """Return a parameter in the rank of the codes: size 1, axis or blocks for each axis."""
    if parameter.size == 1:
        return parameter.reshape((1,) * len(shape))
    if block_size:
        blocks.align(np.empty(parameter.shape, np.bool_), shape, axis, block_size)
        return parameter
    return blocks.align(parameter, shape, axis)


_NARROWER = {
    "signed": ("INT2", "UINT2", "INT4", "UINT4", "INT8", "UINT8", "INT16", "UINT16", "INT32"),
    "unsigned": ("UINT2", "INT2", "UINT4", "INT4", "UINT8", "INT8", "UINT16", "INT16", "INT32"),
    "float": ("FLOAT4E2M1", "FLOAT6E2M3", "FLOAT6E3M2"),
}
"""Types by width; of one width, the current signedness is tried first."""

_EXPONENTS = range(-8, 25)


@dataclass(frozen=True, eq=False)
class Recoding:
    """Another storage of codes: ``(number - shift) * factor`` in ``kind``.

    Attributes:
        shift: the zero points, or one number for all; None for 0.
        scale: as it will be stored; None if it does not change.
        zero_point: as it will be stored; None for 0.
        axis: of the new DequantizeLinear; None per tensor.
        is_merged: whether equal scales were merged.
    """

    kind: str
    shift: Parameter | None
    factor: float
    scale: Array | None
    zero_point: Int32 | None
    axis: int | None
    block_size: int
    is_merged: bool = False


def recodings(stored: Stored, span: NumberRange, kinds: Sequence[str] | None) -> Iterator[Recoding]:
    """Yield the possible recodings of codes in a range, best first.

    Without kinds, all types are tried from the narrowest up to the one that they have.
    """
    now = FORMATS[stored.stream.kind]
    if kinds is None:
        family = "float"
        if isinstance(now, IntFormat):
            family = "signed" if now.signed else "unsigned"
        narrower = [name for name in _NARROWER[family] if FORMATS[name].bits < now.bits]
        kinds = [*narrower, stored.stream.kind]
    for _, alike in itertools.groupby(kinds, key=lambda name: FORMATS[name].bits):
        offers = [
            recoding
            for type_name in alike
            for shift, factor in _moves(stored, span, type_name)
            if (recoding := laid(stored, type_name, shift, factor)) is not None
        ]
        # Within one width, types without zero points take fewer bytes.
        yield from sorted(offers, key=lambda recoding: recoding.zero_point is not None)


def merged(stored: Stored, recoding: Recoding) -> Recoding:
    """Return ``recoding`` with equal scales merged: of blocks, of channels, or all."""
    scale = stored.scale_over(recoding.factor)
    if scale is None or scale.size == 1:
        return recoding
    point = np.broadcast_to(stored.moved_point(recoding.shift), scale.shape)
    rank, axis, size = len(stored.shape), recoding.axis or 0, recoding.block_size
    # Whole tensor, then one entry for each index of an axis, then larger blocks.
    for kept in (None, *range(rank)):
        if kept is not None and scale.shape[kept] != stored.shape[kept]:
            continue
        others = tuple(i for i in range(rank) if i != kept)
        if all(scale.shape[i] == 1 for i in others):
            continue
        if _agree(scale, others) and _agree(point, others):
            index = tuple(0 if i in others else slice(None) for i in range(rank))
            return _with(recoding, scale[index], point[index], kept, 0)
    factor = 1
    while size and size * factor * 2 < 2 * stored.shape[axis]:
        if not all(_agree_in_groups(each, axis, factor * 2) for each in (scale, point)):
            break
        factor *= 2
    if factor == 1:
        return recoding
    index = (*(slice(None),) * axis, slice(None, None, factor))
    return _with(recoding, scale[index], point[index], axis, size * factor)


def needed_opset(stored: Stored, recoding: Recoding, *, rows: bool = False) -> int:
    """Return the minimum opset whose DequantizeLinear supports a recoding, maybe as rows."""
    type_name = stored.scale_type
    needed = [QDQ_SINCE[recoding.kind]]
    if recoding.axis is not None:
        needed.append(21 if recoding.block_size and not rows else 13)
    if type_name != "FLOAT":
        needed.append(24 if type_name == "FLOAT8E8M0" else 19)
    if stored.decode.attributes.get_int("output_dtype", 0):
        needed.append(23)
    return max(needed)


def _moves(stored: Stored, span: NumberRange, type_name: str) -> Iterator[Move]:
    """Yield candidate shifts and power-of-two factors."""
    now, form = FORMATS[stored.stream.kind], FORMATS[type_name]
    if isinstance(now, IntFormat) and isinstance(form, IntFormat):
        yield from _integer_moves(stored, span, type_name)
    elif isinstance(now, IntFormat):
        grid = MINIFLOATS[type_name]
        reach = min(2.0 ** (grid.mantissa_bits + 1), grid.max_value)
        if -reach <= span.low_centred and span.high_centred <= reach:
            yield stored.source.shift, 1.0
    elif isinstance(form, IntFormat):
        used = np.array(sorted(span.used), np.float64)
        for exponent in _EXPONENTS:
            numbers = used * 2.0**exponent
            if (numbers == np.rint(numbers)).all():
                if form.lo <= numbers.min() and numbers.max() <= form.hi:
                    yield None, 2.0**exponent
                break
    else:
        used32 = np.array(sorted(span.used), np.float32)
        if type_name == stored.stream.kind or (cast(used32, type_name) == used32).all():
            yield None, 1.0


def _integer_moves(stored: Stored, span: NumberRange, type_name: str) -> Iterator[Move]:
    now, form = FORMATS[stored.stream.kind], FORMATS[type_name]
    point = stored.zero_point
    # Zero points, also those that are 0, are shifted with the codes and must fit too.
    lowest, highest = (0, 0) if point is None else (int(point.min()), int(point.max()))
    low, high = min(span.low, lowest), max(span.high, highest)
    as_it_is = form.lo <= low and high <= form.hi
    if type_name == stored.stream.kind:
        yield None, 1.0
        return
    if point is not None and form.lo <= span.low_centred and span.high_centred <= form.hi:
        yield stored.source.shift, 1.0
    if as_it_is:
        yield None, 1.0
    # Signed codes are counted from the middle of an unsigned type, others from the lowest code.
    middle = -(1 << (form.bits - 1)) if now.lo < 0 <= form.lo else int(low - form.lo)
    for shift in dict.fromkeys((middle, int(low - form.lo))):
        if form.lo <= low - shift and high - shift <= form.hi:
            number = np.full((1,) * len(stored.shape), shift, np.int32)
            yield Parameter(number, stored.shape), 1.0


def laid(stored: Stored, type_name: str, shift: Parameter | None, factor: float) -> Recoding | None:
    """Return the recoding with stored parameters; None if they cannot be represented."""
    whole = stored.scale is not None and stored.scale.size > 1
    axis = stored.axis if whole or (stored.scale is None and stored.block_size) else None
    size = stored.block_size if axis is not None else 0
    plain = Recoding(type_name, shift, factor, None, None, axis, size)
    point = stored.moved_point(shift)
    if factor == 1 and not point.any():
        return plain
    scale = stored.scale_over(factor)
    if scale is None:
        return None
    if point.any() and not isinstance(FORMATS[type_name], IntFormat):
        return None
    return _with(plain, scale, np.broadcast_to(point, scale.shape), axis, size, is_merged=False)


def _with(
    recoding: Recoding,
    scale: Array,
    point: Int32,
    axis: int | None,
    size: int,
    *,
    is_merged: bool = True,
) -> Recoding:
    shape: tuple[int, ...] = scale.shape if size else () if axis is None else (-1,)
    return replace(
        recoding,
        scale=np.asarray(scale, order="C").reshape(shape),
        zero_point=np.asarray(point, order="C").reshape(shape) if point.any() else None,
        axis=axis,
        block_size=size,
        is_merged=is_merged,
    )


def _agree(parameter: Array, axes: tuple[int, ...]) -> bool:
    numbers = parameter.astype(np.float32)
    first = numbers[tuple(slice(0, 1) if i in axes else slice(None) for i in range(numbers.ndim))]
    return bool((numbers == first).all())


def _agree_in_groups(parameter: Array, axis: int, size: int) -> bool:
    numbers = np.moveaxis(parameter.astype(np.float32), axis, 0)
    first = np.repeat(numbers[::size], size, axis=0)[: len(numbers)]
    return bool((numbers == first).all())
