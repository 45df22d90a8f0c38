"""Compare two functions on all inputs, one by one.

Functions of float32 without steps are compared at 2**32 inputs, because branch and bound does not
terminate for them. This takes some seconds for each channel. Inputs are evaluated in blocks. Blocks
with a result that ONNX does not define, such as the sign of a zero, are evaluated again for every
allowed result. A type of up to 16 bits has at most 65,536 values, so the kernels of the operators
compute all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.effort import Watch, watch
from qgraph.exactness import Witness
from qgraph.graph.constants import array_of
from qgraph.numerics import Array, Float32, Mask
from qgraph.numerics.chunks import available_cores
from qgraph.numerics.float32 import check_float_environment, from_keys, to_keys
from qgraph.numerics.formats import all_values
from qgraph.numerics.values import compare_pieces, compare_values, is_nan
from qgraph.proof.functions.blocks import PairBlocks, Same, evaluations_of
from qgraph.proof.functions.decide import PairOutcome, check_shapes, replayed, tried
from qgraph.proof.functions.expression import Expr
from qgraph.proof.functions.finding import Collector, PairFinding, compare_special_inputs
from qgraph.proof.functions.lowering import Constants, Shape, laid_out
from qgraph.proof.functions.program import PairProgram, PointResults
from qgraph.proof.functions.search import BoxBatch
from qgraph.reasons import DO_NOT_FIT, EFFORT, NO_RULE, OUT_OF_TIME, Undecidable
from qgraph.records import dataclass, replace

_BLOCK = 1 << 17
_FINITE = 0x7F800000
"""Number of finite floats of one sign, whose bit patterns begin at 0."""
_INFINITY = 0x7F800000
"""Bit pattern of infinity; NaN has larger ones."""
_MOST_THREADS = 4
"""Maximum number of threads; more would wait for the interpreter lock."""
_COMPARISON = 8
"""Cost of comparing and counting, in operations."""

Gap: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True)
class _Block:
    """The differences on a block of inputs.

    ``stretch`` has the keys of the first differing input, and of the last one after it without a
    gap, ``sign_at`` that of the first input with zeros of different signs; ``ulps`` is the largest
    number of floats between two values, None for NaN.
    """

    differing: int
    zero_sign: int
    stretch: tuple[int, int] | None
    sign_at: int | None
    ulps: int | None

    def joined(self, other: _Block) -> _Block:
        """Return the combined differences of this block and a block of larger bit patterns."""
        stretch = self.stretch or other.stretch
        if self.stretch and other.stretch:
            (lo, hi), (low, high) = self.stretch, other.stretch
            if low == hi + 1 or high == lo - 1:  # keys of negative numbers descend
                stretch = min(lo, low), max(hi, high)
        ulps = None if self.ulps is None or other.ulps is None else max(self.ulps, other.ulps)
        return _Block(
            self.differing + other.differing,
            self.zero_sign + other.zero_sign,
            stretch,
            other.sign_at if self.sign_at is None else self.sign_at,
            ulps,
        )


def enumerate_inputs(
    reference: Expr, candidate: Expr, *, input_shape: Shape | None = None
) -> PairFinding:
    """Compare two expressions at every float32 input, in every channel.

    The shape is that of the variable, None for unknown dimensions. Raises Undecidable if they
    cannot be evaluated, or ONNX does not define the result for an input; UnsupportedError if this
    thread does not follow IEEE 754.
    """
    check_float_environment()
    check_shapes(reference.shape, candidate.shape, input_shape)
    program = PairProgram(reference, candidate)
    collector = Collector(program)
    ulps: list[int | None] = [0]
    with np.errstate(all="ignore"):
        special, keys = compare_special_inputs(program, collector)
    special.check(keys)
    for kind in range(len(program.first)):
        blocks = _blocks(program, kind)
        _note(collector, program, kind, blocks)
        ulps += [block.ulps for block in blocks]
    check_float_environment()
    numbers = [number for number in ulps if number is not None]
    largest = max(numbers) if len(numbers) == len(ulps) else None
    (finding,) = collector.findings(0)
    finding = replace(finding, enumerated=True, largest_ulps=largest or None)
    return replayed(finding, reference, candidate)


def effort(reference: Expr, candidate: Expr) -> int:
    """Return the approximate number of operations on all inputs for :func:`enumerate_inputs`.

    Each operation takes one or two seconds of processor time. Raises Undecidable if the expressions
    cannot be evaluated.
    """
    program = PairProgram(reference, candidate)
    return (len(program.order) + _COMPARISON) * len(program.first)


def _blocks(program: PairProgram, kind: int) -> list[_Block]:
    """Return the differences of each block that has any, in the order of bit patterns."""
    starts, threads = _starts(), min(available_cores(), _MOST_THREADS)
    # each thread gets blocks of all magnitudes
    shares = [starts[first::threads] for first in range(threads)]
    evaluations = evaluations_of(program, kind, _BLOCK, threads, inputs=len(starts) * _BLOCK)
    with ThreadPoolExecutor(threads) as pool:
        futures = [
            pool.submit(_compare_blocks, program, kind, watch(), *both)
            for both in zip(evaluations, shares, strict=True)
        ]
    results: dict[int, _Block] = {}
    for future in futures:
        results.update(future.result())
    return [results[start] for start in sorted(results)]


def _starts() -> list[int]:
    """Return the bit pattern of the first input of each block."""
    return [*range(0, _FINITE, _BLOCK), *range(1 << 31, (1 << 31) + _FINITE, _BLOCK)]


def _compare_blocks(
    program: PairProgram, kind: int, watch: Watch, blocks: PairBlocks, starts: Sequence[int]
) -> dict[int, _Block]:
    """Compare a share of the blocks; the thread of the first share reports progress."""
    check_float_environment()
    gap = np.empty(len(blocks.x), np.int32)
    compared = {}
    with np.errstate(all="ignore"):
        for number, start in enumerate(starts):
            if watch.is_over:
                raise Undecidable(
                    OUT_OF_TIME(f"{number} of {len(starts)} blocks at the time limit")
                )
            if not starts[0]:
                before, channels = kind * len(starts), len(program.first)
                watch.progress("trying all inputs", before + number, channels * len(starts))
            result = _compare_parts(blocks, start, gap)
            block = _carefully(program, kind, start) if result is Same.OPEN else result
            if isinstance(block, _Block):
                compared[start] = block
    check_float_environment()
    return compared


def _compare_parts(blocks: PairBlocks, start: int, gap: Gap) -> _Block | Same:
    """Compare a block in parts; ``gap`` is a buffer of the size of a part."""
    whole: _Block | Same = Same.EQUAL
    for first in range(start, start + _BLOCK, len(gap)):
        results = blocks.compare(first)
        if results is Same.OPEN:
            return results
        if isinstance(results, tuple):
            block = _compared(blocks.x, *results, gap)
            if block is not None:
                whole = whole.joined(block) if isinstance(whole, _Block) else block
    return whole


def _carefully(program: PairProgram, kind: int, start: int) -> _Block | None:
    """Compare a block in which ONNX may not define the signs of zeros."""
    x = np.arange(start, start + _BLOCK, dtype=np.uint32).view(np.float32)
    results = PointResults.of(program, x, np.full(len(x), kind, np.int64))
    results.check(to_keys(x))
    if not (results.differ.any() or results.zero_sign.any()):
        return None
    return _block(x, results.reference, results.candidate, results.differ, results.zero_sign)


def _compared(x: Float32, a: Float32, b: Float32, gap: Gap) -> _Block | None:
    """Compare a block in which ONNX defines all results; ``gap`` is a buffer."""
    ours, theirs = a.view(np.int32), b.view(np.int32)
    np.subtract(ours, theirs, out=gap)
    least, most = _ends(gap)
    if least == most == 0:
        return None
    side, other = _side(ours), _side(theirs)
    if side and side == other:
        # without NaN and zeros of both signs, different bits are different values
        count = int(np.count_nonzero(gap))
        return _Block(count, 0, _stretch(x, gap, count), None, max(most, -least))
    if (side and _is_nan(theirs)) or (other and _is_nan(ours)):
        return _Block(len(x), 0, _stretch(x, gap, len(x)), None, None)
    differ = np.asarray(a != b) & ~(np.isnan(a) & np.isnan(b))
    signs = np.asarray(a == 0) & ~differ & (np.signbit(a) != np.signbit(b))
    return None if not (differ.any() or signs.any()) else _block(x, a, b, differ, signs)


def _ends(numbers: Gap) -> tuple[int, int]:
    return int(np.minimum.reduce(numbers)), int(np.maximum.reduce(numbers))


def _side(bits: Gap) -> int:
    """Return the sign of all values, zeros included; 0 if signs differ or a value is NaN."""
    least, most = _ends(bits)
    if least >= 0 and most <= _INFINITY:
        return 1
    return -1 if most <= _INFINITY - (1 << 31) else 0


def _is_nan(bits: Gap) -> bool:
    """Return whether all values are NaN of one sign."""
    least, most = _ends(bits)
    return least > _INFINITY or (least > _INFINITY - (1 << 31) and most < 0)


def _block(x: Float32, a: Float32, b: Float32, differ: Mask, signs: Mask) -> _Block:
    counts = int(np.count_nonzero(differ)), int(np.count_nonzero(signs))
    stretch = _stretch(x, differ, counts[0]) if counts[0] else None
    sign_at = _key_at(x, int(np.argmax(signs))) if counts[1] else None
    return _Block(*counts, stretch, sign_at, _ulps(a[differ], b[differ]))


def _stretch(x: Float32, differ: Mask | Gap, count: int) -> tuple[int, int]:
    """Return the keys of the first differing input, and of the last one after it without a gap."""
    first, last = 0, len(x) - 1
    if count < len(x):
        mask = differ != 0
        first = int(np.argmax(mask))
        length = int(np.argmin(mask[first:]))
        last = first + length - 1 if length else last
    ends = _key_at(x, first), _key_at(x, last)
    return min(ends), max(ends)


def _key_at(x: Float32, index: int) -> int:
    bits = int(x.view(np.int32)[index])
    return bits if bits >= 0 else bits ^ 0x7FFFFFFF


def _ulps(a: Float32, b: Float32) -> int | None:
    """Return the largest number of floats between two values, -0 being +0; None for NaN."""
    if np.isnan(a).any() or np.isnan(b).any():
        return None
    one, other = (keys + (keys < 0) for keys in (to_keys(a), to_keys(b)))
    return int(np.abs(one - other).max(initial=0))


def _note(collector: Collector, program: PairProgram, kind: int, blocks: Sequence[_Block]) -> None:
    """Add the differences of blocks to a collector, with the values at the reported inputs."""
    stretches = [block.stretch for block in blocks if block.stretch is not None]
    signs = [block.sign_at for block in blocks if block.sign_at is not None][:1]
    for what, ends in (("value", stretches), ("zero", [(key, key) for key in signs])):
        lo, hi = np.array(ends, np.int64).reshape(-1, 2).T
        boxes = BoxBatch(np.full(len(lo), kind), lo, hi, np.zeros(len(lo), np.uint8))
        with np.errstate(all="ignore"):
            results = PointResults.of(program, from_keys(lo), boxes.kind)
        collector.note(what, boxes, *results[:2], np.ones(len(lo), np.bool_))
    collector.add(
        kind,
        sum(block.differing for block in blocks) - sum(hi - lo + 1 for lo, hi in stretches),
        sum(block.zero_sign for block in blocks) - len(signs),
    )


NARROW_BITS = 16
"""Maximum number of bits of types whose values are all tried."""
_AT_ONCE = 1 << 20
"""Maximum number of elements to compute at once."""
_MOST_CHANNELS = 1 << 12


class NodeSegment(NamedTuple):
    """Nodes in topological order that compute ``y`` from ``x`` and constants."""

    nodes: Sequence[ir.Node]
    x: ir.Value
    y: ir.Value
    constants: Constants = array_of


def free_axis(segments: Sequence[NodeSegment], shape: Shape | None) -> tuple[list[int], int]:
    """Return the shape of data with all channels, and an axis along which no parameter varies.

    The parameters of both sides determine the channels. Raises Undecidable if there is no such
    axis, there are too many channels, or the shapes of the results may differ.
    """
    spread = []
    for segment in segments:
        inner = {segment.x, *(value for node in segment.nodes for value in node.outputs)}
        shapes: list[tuple[int, ...]] = [()]
        for node in segment.nodes:
            if node.domain == "" and node.op_type == "Reshape":
                raise Undecidable(NO_RULE("its data is reshaped"))
            for value in node.inputs:
                if value is None or value in inner or segment.constants(value) is None:
                    continue
                array = laid_out(node, value, shape or (), segment.constants)
                is_table = (node.domain, node.op_type) == ("", "Gather") and value is node.inputs[0]
                if is_table and array.ndim == 1:
                    continue  # the data select its elements, equally in all channels
                # even a single number with more dimensions shifts the axes of later nodes
                if shape and array.ndim > len(shape):
                    raise Undecidable(DO_NOT_FIT("a parameter has more dimensions than the data"))
                shapes.append(array.shape)
        spread.append(_broadcast(shapes))
    check_shapes(spread[0], spread[1], shape, exactly=True)
    sizes = list(_broadcast([(1,) * max(len(shape or ()), 1), *spread]))
    free = [axis for axis, size in enumerate(sizes) if size == 1]
    if not free:
        raise Undecidable(EFFORT(f"its parameters of shape {sizes} vary along every axis"))
    if math.prod(sizes) > _MOST_CHANNELS:
        raise Undecidable(EFFORT("there are too many channels to try all values in each"))
    return sizes, free[0]


def along_axis(x: Array, sizes: Sequence[int], axis: int) -> Array:
    """Return data of a shape whose elements along an axis are ``x``; its size there is ignored."""
    shape, along = [*sizes], [1] * len(sizes)
    shape[axis], along[axis] = len(x), -1
    return np.broadcast_to(x.reshape(along), shape)


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise Undecidable(DO_NOT_FIT("its parameters do not broadcast")) from error


def enumerate_values(
    dtype: ir.DataType, runs: Sequence[Callable[[Array], Array]], sizes: list[int], axis: int
) -> PairOutcome:
    """Compare two functions at all values of a type of up to 16 bits, in every channel.

    ``sizes`` is the shape of data with all channels; the values are laid out along ``axis``, of
    size 1. Raises Undecidable if the results are of different types or shapes.
    """

    def results(x: Array) -> tuple[Array, Array, Array]:
        laid = along_axis(x, sizes, axis)
        data = buffer[: laid.size].reshape(laid.shape)
        np.copyto(data, laid)
        a, b = (run(data) for run in runs)
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            one, other = (a.dtype, b.dtype) if a.dtype != b.dtype else (a.shape, b.shape)
            raise Undecidable(DO_NOT_FIT(f"the reference gives {one}, the candidate {other}"))
        return np.broadcast_to(data, a.shape), a, b

    def flat(x: Array) -> tuple[Array, Array]:
        _, a, b = results(x)
        return np.ascontiguousarray(a).reshape(-1), np.ascontiguousarray(b).reshape(-1)

    channels = math.prod(sizes)
    values = all_values(dtype.name)
    with np.errstate(invalid="ignore"):  # signalling NaN
        nan = is_nan(values)
        numbers, zeros = values[~nan], values[~nan & (values.astype(np.float64) == 0)]
    block = max(_AT_ONCE // channels, 1)
    buffer = np.empty(min(block, len(values)) * channels, values.dtype)
    starts = range(0, len(numbers), block)
    outcome = compare_pieces(lambda: (flat(numbers[i : i + block]) for i in starts))
    at_nan = compare_values(*results(values[nan])[1:]) if nan.any() else None
    witness, index = None, -1 if outcome.index is None else outcome.index
    for i in starts if index >= 0 else ():
        arrays = results(numbers[i : i + block])
        if index < arrays[0].size:
            witness = Witness(*(float(array.reshape(-1)[index]) for array in arrays))
            break
        index -= arrays[0].size
    at_zeros = [np.moveaxis(side, axis, 0) for side in results(zeros)[1:]] if len(zeros) > 1 else []
    zeros_differ = any(compare_values(*side).differing > 0 for side in at_zeros)
    return PairOutcome(tried(outcome, at_nan, witness), zeros_differ=zeros_differ)
