"""Find the codes of a weight by a table of levels that are all proved.

A quantizer of few bits has few levels, many fewer than a weight has elements. The value that the
quantizer gives to each level, and the value to which the level's code is decoded, are computed for
every level with every parameter by the operators themselves, and compared. While a weight is read,
only the level of each element must be found.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.graph.streaming import box_at, cut_box
from qgraph.numerics import Array
from qgraph.numerics.chunks import merge_axes
from qgraph.numerics.float32 import look_up, representatives
from qgraph.numerics.formats import FORMATS, IntFormat, container, numpy_dtype
from qgraph.numerics.minifloat import decode, encode
from qgraph.ops.steps import Stages
from qgraph.quantizers.weights.job import Workspace
from qgraph.quantizers.weights.piecewise import ElementProgram, Parameter
from qgraph.records import dataclass

Shape = tuple[int, ...]

_COMPARED = 1 << 18
"""Number of table entries that are computed at a time."""

_SHORT = 64
"""Minimum length of runs with one parameter; for shorter runs the parameter is expanded."""

_SAMPLE = 1 << 10
"""Number of parameters that are sampled before repeated ones are removed."""


@dataclass(frozen=True, eq=False)
class LevelTable:
    """Mapping from the elements of a weight to proved codes.

    Attributes:
        shape: of the data, cut so that each parameter is constant along an axis, or has an entry
            for each index.
        stages: the operations of the quantizer.
        arrays: their parameters; they broadcast to ``shape``.
        kind: ONNX type of the codes.
        ends: data beyond them, in steps, counts as clipped.
        codes: code of each representative input; None if levels are their own codes.
    """

    shape: Shape
    stages: Stages
    arrays: tuple[Array, ...]
    kind: str
    ends: tuple[float, float]
    codes: npt.NDArray[np.uint8] | None

    @classmethod
    def of(
        cls,
        quantize: ElementProgram,
        dequantize: ElementProgram,
        type_name: str,
        ends: tuple[float, float],
    ) -> LevelTable | None:
        """Return the table of a quantizer and its decoder; None if it has none, or is not equal.

        Codes have an ONNX type; data beyond ``ends``, in steps, counts as clipped.
        """
        plan, halves = quantize.stages(), quantize.split()
        if plan is None or halves is None:
            return None
        counts = [len(half.parameters) for half in halves]
        parameters = [*quantize.parameters, *dequantize.parameters]
        shapes = aligned([quantize.shape], parameters)
        if shapes is None:
            return None
        shape, laid = shapes
        stages = plan(laid[: counts[0]])
        levels = None if stages is None else stages.levels()
        form = FORMATS[type_name]
        if stages is None or levels is None or isinstance(form, IntFormat) == stages.by_upper_half:
            return None
        table = cls(shape, stages, stages.arrays, type_name, ends, None)
        decoders = (halves[1], laid[counts[0] :][: counts[1]]), (dequantize, laid[sum(counts) :])
        if not table._proves(levels, *decoders):
            return None
        if not stages.by_upper_half:
            return table
        inputs = representatives()
        with np.errstate(all="ignore"):
            stages.level(inputs, *(a.reshape(-1)[:1].reshape(()) for a in stages.arrays))
            codes = encode(inputs, type_name).view(np.uint8)
        return cls(shape, stages, stages.arrays, type_name, ends, codes)

    def read(self, data: Array, start: int, scratch: Workspace) -> tuple[Array, int] | None:
        """Return the codes of flat ``data``, which is overwritten, and how many were clipped.

        The ``[n]`` elements from ``start`` on are a box of :attr:`shape`. None if one is NaN, which
        has no level.
        """
        corner, sizes = box_at(self.shape, start, data.size)
        y = data.reshape(sizes)
        with np.errstate(all="ignore"):
            arrays = [
                _spread(cut_box(array, corner, sizes), sizes, scratch, use)
                for use, array in enumerate(self.arrays)
            ]
            self.stages.place(y, y, *arrays)
            shift = self.stages.shift
            clipped = self._beyond(y if shift is None else y + arrays[shift])
            if clipped is None:
                return None
            if self.codes is not None:
                return look_up(data, self.codes), clipped
            self.stages.level(y, *arrays)
            return data.astype(container(self.kind)), clipped

    def _beyond(self, steps: Array) -> int | None:
        """Return the number of elements beyond the limits; None if one is NaN."""
        least, most = steps.min(), steps.max()
        if np.isnan(least):
            return None
        low, high = (np.float32(end) for end in self.ends)
        count = int(np.count_nonzero(steps < low)) if least < low else 0
        return count + (int(np.count_nonzero(steps > high)) if most > high else 0)

    def _proves(self, levels: Array, rest: _Applied, dequantize: _Applied) -> bool:
        """Return whether each of ``[n]`` levels, with each parameter, is the value of its code.

        ``rest`` is what follows the stages, and ``dequantize`` what is made of the codes.
        """
        arrays = [*self.arrays, *rest[1], *dequantize[1]]
        most = math.prod(self.shape) // levels.size
        flat, entries = distinct(arrays, most)
        if entries > most:
            return False
        form = FORMATS[self.kind]
        if isinstance(form, IntFormat):
            if levels[0] < form.lo or levels[-1] > form.hi:
                return False
            codes = levels.astype(container(self.kind))
        else:
            codes = encode(levels, self.kind).view(np.uint8)
        numbers = numbers_of(codes, self.kind)[:, None]
        keeps_zeros = self.stages.by_upper_half and getattr(form, "has_negative_zero", False)
        first, last = len(self.arrays), len(self.arrays) + len(rest[1])
        for part, width in batches(flat, entries, levels.size):
            values = np.empty((levels.size, width), np.float32)
            values[...] = levels[:, None]
            with np.errstate(all="ignore"):
                self.stages.value(values, *part[:first])
                wanted = rest[0].apply(values, part[first:last])
                decoded = dequantize[0].apply(numbers, part[last:])
            if not _equal(wanted, decoded, values.shape, keeps_zeros=keeps_zeros):
                return False
        return True


_Applied = tuple[ElementProgram, Sequence[Array]]
"""A program and the values of its parameters."""


def _equal(wanted: Array, decoded: Array, shape: Shape, *, keeps_zeros: bool) -> bool:
    """Return whether two arrays that broadcast to ``shape`` are equal, maybe in all bits."""
    if decoded.dtype != wanted.dtype or wanted.dtype != np.float32:
        return False
    if not keeps_zeros:
        return bool((wanted == decoded).all())
    sides = (np.ascontiguousarray(np.broadcast_to(each, shape)) for each in (wanted, decoded))
    one, other = (side.view(np.int32) for side in sides)
    return bool((one == other).all())


def _spread(array: Array, sizes: Sequence[int], scratch: Workspace, use: int) -> Array:
    """Return ``array`` so that it broadcasts to ``sizes`` in long runs."""
    if array.ndim == 0 or array.shape[-1] == sizes[-1] or sizes[-1] >= _SHORT:
        return array
    laid = scratch.of(sizes, array.dtype, use)
    np.copyto(laid, array)
    return laid


def numbers_of(codes: Array, type_name: str) -> Array:
    """Return the numbers of codes after packing and unpacking."""
    form = FORMATS[type_name]
    if not isinstance(form, IntFormat):
        return decode(codes.view(numpy_dtype(type_name)))
    if form.bits >= 8 or (codes.min() >= form.lo and codes.max() <= form.hi):
        return codes
    shift = codes.dtype.type(8 - form.bits)
    return np.asarray((codes << shift) >> shift)


def aligned(
    shapes: Sequence[Shape], parameters: Sequence[Parameter]
) -> tuple[Shape, list[Array]] | None:
    """Return a shape of the data, cut so that each parameter broadcasts to it, and these arrays.

    The shape is made by cutting axes of ``shapes`` and of those of the parameters. None if there is
    none, such as for a last block that is smaller than others.
    """
    views = [view for view in map(_viewed, parameters) if view is not None]
    shape = _common([*shapes, *(view for view, _ in views)])
    if shape is None or len(views) < len(parameters):
        return None
    return merge_axes(shape, [_laid(array, view, shape) for view, array in views])


def distinct(arrays: Sequence[Array], most: int) -> tuple[list[Array], int]:
    """Return flat parameters that broadcast together, and their number of entries.

    Repeated combinations are removed if a sample shows many, or if there are more than ``most``
    entries.
    """
    joint = np.broadcast_shapes(*(array.shape for array in arrays))
    whole = [np.broadcast_to(a, joint).reshape(-1) if a.ndim else a for a in arrays]
    flat = _distinct(whole, most)
    return flat, max((array.size for array in flat), default=1)


def batches(flat: Sequence[Array], entries: int, times: int) -> Iterator[tuple[list[Array], int]]:
    """Yield the ``entries`` of flat parameters, and how many, as few as are compared at once.

    Each takes part in the computation of ``times`` values.
    """
    step = max(_COMPARED // times, 1)
    for start in range(0, entries, step):
        part = [array[start : start + step] if array.ndim else array for array in flat]
        yield part, min(step, entries - start)


def _viewed(parameter: Parameter) -> tuple[Shape, Array] | None:
    """Return a shape of the data, and the parameter as an array that broadcasts to it.

    None if the last block is smaller than others.
    """
    array, shape, axis = parameter.array, parameter.shape, parameter.axis
    if array.size == 1:
        return shape, array.reshape(())
    size = parameter.block_size
    if axis is None or size == 0:
        return shape, array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    if shape[axis] % size:
        return None
    view = (*shape[:axis], shape[axis] // size, size, *shape[axis + 1 :])
    return view, array.reshape((*array.shape[: axis + 1], 1, *array.shape[axis + 1 :]))


def _common(shapes: Sequence[Shape]) -> Shape | None:
    """Return the coarsest shape of which each of ``shapes`` is made by merging axes."""
    cuts = {math.prod(shape[axis:]) for shape in shapes for axis in range(len(shape) + 1)}
    pairs = list(itertools.pairwise(sorted(cuts, reverse=True)))
    if any(big % small for big, small in pairs):
        return None
    return tuple(big // small for big, small in pairs)


def _laid(array: Array, view: Shape, shape: Shape) -> Array:
    """Reshape an array that broadcasts to ``view`` for the finer ``shape``."""
    if array.ndim == 0:
        return array
    sizes: list[int] = []
    for length, count in zip(array.shape, view, strict=True):
        covered = 1
        while covered < count:
            covered *= shape[len(sizes)]
            sizes.append(shape[len(sizes)] if length != 1 else 1)
    return array.reshape(sizes)


def _distinct(arrays: Sequence[Array], most: int) -> list[Array]:
    """Return flat parameters without repeated entries; see :func:`distinct`."""
    arrays = [a[0] if a.ndim and (a == a[0]).all() else a for a in arrays]
    varying: list[Array] = []
    indices: list[int | None] = []
    for array in arrays:
        if array.ndim == 0:
            indices.append(None)
            continue
        if array.dtype != np.float32:
            return arrays
        same = (i for i, other in enumerate(varying) if np.array_equal(_bits(other), _bits(array)))
        index = next(same, len(varying))
        if index == len(varying):
            varying.append(array)
        indices.append(index)
    if not 1 <= len(varying) <= 2:
        return arrays
    keys: npt.NDArray[Any] = _bits(varying[0])
    if len(varying) == 2:
        keys = np.stack([keys, _bits(varying[1])], axis=1).view(np.uint64).reshape(-1)
    if keys.size <= most and not _repeats(keys):
        return arrays
    once = np.unique(keys).view(np.uint32).reshape(-1, len(varying))
    columns = [np.ascontiguousarray(column).view(np.float32) for column in once.T]
    return [a if i is None else columns[i] for a, i in zip(arrays, indices, strict=True)]


def _repeats(keys: npt.NDArray[Any]) -> bool:
    """Return whether few of many keys are distinct, as far as a sample shows.

    If most keys are distinct, removing repeated ones takes longer than using all.
    """
    sample = keys[:: keys.size // _SAMPLE | 1]  # an odd step, so that it meets all columns
    return keys.size > _SAMPLE and bool(np.unique(sample).size < sample.size // 4)


def _bits(array: Array) -> npt.NDArray[np.uint32]:
    return array.view(np.uint32)
