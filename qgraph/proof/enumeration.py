"""Comparing two expressions on all float32 inputs, one by one.

That takes some seconds for each channel, and is for functions that are no step functions: branch
and bound does not end with them. Most inputs are evaluated a block at a time, as the primitives are
written; blocks in which ONNX leaves something open, such as the sign of a zero, are evaluated once
more with all that it may be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from qgraph.cores import available_cores
from qgraph.proof.engine import Shape, check_shapes, replayed
from qgraph.proof.environment import check_float_environment
from qgraph.proof.expression import Expr, Undecidable
from qgraph.proof.finding import Collector, Finding, Mask
from qgraph.proof.keys import Float32, Keys, from_keys, to_keys
from qgraph.proof.outcome import Outcome, compare_special_inputs
from qgraph.proof.program import Program
from qgraph.proof.quick import Quick

_BLOCK = 1 << 17
_FINITE = 0x7F800000
"""How many finite floats of one sign there are; their bits count up from 0."""
_INFINITY = 0x7F800000
"""The bits of infinity; NaN has larger ones."""
_MOST_THREADS = 4
"""More of them wait for the interpreter."""
_COMPARISON = 8
"""What it takes to compare and count, in operations."""

Bits: TypeAlias = npt.NDArray[np.uint32]
Gap: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True)
class _Block:
    """What a block of inputs shows.

    Attributes:
        differing, zero_sign: numbers of inputs.
        stretch: keys of the first input that differs, and of the last one after it without a gap.
        sign_at: the first input at which zeros differ in sign.
        ulps: the largest number of floats from one value to the other; None where one is NaN.
    """

    differing: int
    zero_sign: int
    stretch: tuple[int, int] | None
    sign_at: Float32 | None
    ulps: int | None


def enumerate_inputs(
    reference: Expr, candidate: Expr, *, input_shape: Shape | None = None
) -> Finding:
    """Compare two expressions at every float32 input, in every channel.

    Args:
        reference: the function to keep to.
        candidate: the other one.
        input_shape: shape of the variable, None for unknown dimensions.

    Raises:
        Undecidable: they cannot be evaluated, or ONNX leaves open what is computed for an input.
        UnsupportedError: this thread does not compute as IEEE 754 says.
    """
    check_float_environment()
    check_shapes(reference.shape, candidate.shape, input_shape)
    program = Program(reference, candidate)
    found = Collector(program.channels, program.first, program.count)
    ulps: list[int | None] = [0]
    with np.errstate(all="ignore"):
        compare_special_inputs(program, found)
    for kind in range(len(program.first)):
        blocks = _blocks(program, kind)
        _note(found, program, kind, blocks)
        ulps += [block.ulps for block in blocks]
    check_float_environment()
    known = [number for number in ulps if number is not None]
    largest = max(known) if len(known) == len(ulps) else None
    finding = replace(found.finding(0), enumerated=True, largest_ulps=largest or None)
    return replayed(finding, reference, candidate)


def effort(reference: Expr, candidate: Expr) -> int:
    """Return about how many operations on all inputs :func:`enumerate_inputs` takes.

    Each takes one or two seconds of processor time.

    Raises:
        Undecidable: the expressions cannot be evaluated.
    """
    program = Program(reference, candidate)
    return (len(program.order) + _COMPARISON) * len(program.first)


def _blocks(program: Program, kind: int) -> list[_Block]:
    """Return what the blocks show in which anything differs, in the order of their bits."""
    starts, threads = _starts(), min(available_cores(), _MOST_THREADS)
    # the share of a thread is spread over all magnitudes
    shares = [starts[first::threads] for first in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(_compare_blocks, program, kind, share) for share in shares]
    found: dict[int, _Block] = {}
    for future in futures:
        found.update(future.result())
    return [found[start] for start in sorted(found)]


def _starts() -> list[int]:
    """Return the bits of the first input of each block."""
    return [*range(0, _FINITE, _BLOCK), *range(1 << 31, (1 << 31) + _FINITE, _BLOCK)]


def _compare_blocks(program: Program, kind: int, starts: Sequence[int]) -> dict[int, _Block]:
    check_float_environment()
    quick = Quick(program, kind, _BLOCK)
    gap: Gap = np.empty(_BLOCK, np.int32)
    found = {}
    with np.errstate(all="ignore"):
        for start, x in _inputs(starts):
            results = quick(x)
            block = _compared(x, *results, gap) if results else _carefully(program, kind, x)
            if block is not None:
                found[start] = block
    check_float_environment()
    return found


def _inputs(starts: Sequence[int]) -> Iterator[tuple[int, Float32]]:
    """Yield blocks of inputs, in one buffer."""
    bits: Bits = np.empty(_BLOCK, np.uint32)
    first = np.arange(_BLOCK, dtype=np.uint32)
    for start in starts:
        np.add(first, np.uint32(start), out=bits)
        yield start, bits.view(np.float32)


def _carefully(program: Program, kind: int, x: Float32) -> _Block | None:
    """Compare where ONNX leaves something open.

    Raises:
        Undecidable: it is more than the sign of a zero.
    """
    outcome = Outcome.of(program, x, np.full(len(x), kind, np.int64))
    if outcome.unknown.any():
        at = float(x[np.argmax(outcome.unknown)])
        raise Undecidable(f"ONNX leaves open what is computed for the input {at!r}")
    if not (outcome.differ.any() or outcome.zero_sign.any()):
        return None
    return _block(x, outcome.reference, outcome.candidate, outcome.differ, outcome.zero_sign)


def _compared(x: Float32, a: Float32, b: Float32, gap: Gap) -> _Block | None:
    """Compare where every value is what ONNX says, with ``gap`` to compute in."""
    ours, theirs = a.view(np.int32), b.view(np.int32)
    np.subtract(ours, theirs, out=gap)
    least, most = int(gap.min()), int(gap.max())
    if least == most == 0:
        return None
    side = _side(ours)
    if side and side == _side(theirs):
        # no NaN, and no zeros of two signs: other bits are another value
        count = int(np.count_nonzero(gap))
        return _Block(count, 0, _stretch(x, gap, count), None, max(most, -least))
    differ = np.asarray(a != b) & ~(np.isnan(a) & np.isnan(b))
    signs = np.asarray(a == 0) & ~differ & (np.signbit(a) != np.signbit(b))
    if not (differ.any() or signs.any()):
        return None
    return _block(x, a, b, differ, signs)


def _side(bits: Gap) -> int:
    """Return the sign that all values have, in which zero counts as well; 0 for two, or NaN."""
    least, most = int(bits.min()), int(bits.max())
    if least >= 0 and most <= _INFINITY:
        return 1
    return -1 if most <= _INFINITY - (1 << 31) else 0


def _block(x: Float32, a: Float32, b: Float32, differ: Mask, signs: Mask) -> _Block:
    counts = int(np.count_nonzero(differ)), int(np.count_nonzero(signs))
    stretch = _stretch(x, differ, counts[0]) if counts[0] else None
    sign_at = x[[int(np.argmax(signs))]] if counts[1] else None
    return _Block(*counts, stretch, sign_at, _ulps(a[differ], b[differ]))


def _stretch(x: Float32, differ: Mask | Gap, count: int) -> tuple[int, int]:
    """Return the keys of the first input that differs, and of the last without a gap."""
    first, last = 0, len(x) - 1
    if count < len(x):
        mask = differ != 0
        first = int(np.argmax(mask))
        length = int(np.argmin(mask[first:]))
        last = first + length - 1 if length else last
    ends = sorted(to_keys(x[[first, last]]).tolist())
    return ends[0], ends[1]


def _ulps(a: Float32, b: Float32) -> int | None:
    """Return the most floats from a value to its other one, None where one is NaN.

    Both zeros are one float.
    """
    if np.isnan(a).any() or np.isnan(b).any():
        return None
    one, other = (keys + (keys < 0) for keys in (to_keys(a), to_keys(b)))
    return int(np.abs(one - other).max(initial=0))


def _note(found: Collector, program: Program, kind: int, blocks: Sequence[_Block]) -> None:
    """Note what blocks of one kind of channels show, with the values at the inputs to show."""
    stretches = [block.stretch for block in blocks if block.stretch is not None]
    lo, hi = np.array(stretches, np.int64).reshape(-1, 2).T
    kinds = np.full(len(lo), kind)
    found.differ(kinds, lo, hi, *_values(program, kinds, lo))
    signs = [block.sign_at for block in blocks if block.sign_at is not None]
    if signs:
        at, one = to_keys(signs[0]), np.array([kind], np.int64)
        found.differ_in_zero_sign(one, at, at, *_values(program, one, at))
    found.differ_elsewhere(
        kind,
        sum(block.differing for block in blocks) - int((hi - lo + 1).sum()),
        sum(block.zero_sign for block in blocks) - bool(signs),
    )


def _values(program: Program, kinds: npt.NDArray[np.int64], keys: Keys) -> tuple[Float32, Float32]:
    with np.errstate(all="ignore"):
        outcome = Outcome.of(program, from_keys(keys), kinds)
    return outcome.reference, outcome.candidate
