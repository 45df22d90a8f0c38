"""Where each element of a result comes from.

An operator that moves all elements is executed on their numbers, in place of the data. So each
element of the result tells which one it is::

    Transpose    0 1 2  ->  0 3
                 3 4 5      1 4
                            2 5

Movements with equal numbers are one, whatever operators they are made of. Movements in sequence are
one, too. A prime stands for each open size. Movements of open sizes are compared with other primes
again: a Reshape to ``[3, N]`` and a Transpose do the same where N is 3. No open size may get lost.
"""

from __future__ import annotations

import functools
import hashlib
import operator
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np

from qgraph.errors import UnsupportedError
from qgraph.graph.inference.dimensions import Dim, Size
from qgraph.numerics import Array, Float64
from qgraph.numerics.values import narrowed
from qgraph.records import dataclass

Sizes = tuple[Dim, ...]

PRIMES = (3, 5, 7, 11, 13, 17), (11, 13, 17, 19, 23, 29)
"""Numbers that stand for open sizes. A size may happen to be that of another axis."""


class Shape:
    """The shape of a tensor, in numbers too.

    Attributes:
        sizes, primes: its sizes, and numbers by open size.
        lengths: the sizes in numbers.
        degrees: how often each open size is a factor of the number of elements.

    Raises:
        UnsupportedError: a size is not known.
    """

    def __init__(self, sizes: Sizes, primes: Mapping[str, int]) -> None:
        known = [size for size in sizes if size is not None]
        self.sizes, self._primes = sizes, primes
        self.degrees = Counter[str]()
        for size in known:
            terms = size.terms if isinstance(size, Size) else ()
            self.degrees += functools.reduce(operator.or_, map(Counter, terms), Counter())
        if len(known) < len(sizes) or not self.degrees.keys() <= primes.keys():
            raise UnsupportedError("a shape is not known")
        self.lengths = tuple(n.at(primes) if isinstance(n, Size) else n for n in known)

    @functools.cached_property
    def places(self) -> Array:
        """The numbers of all elements."""
        count = int(np.prod(self.lengths, dtype=np.int64))
        return np.arange(count, dtype=np.int32).reshape(self.lengths)

    def turned(self, last: Dim, axes: Sequence[int]) -> MovedElements:
        """Return the movement to another order of axes, with another size of the last one."""
        before = Shape((*self.sizes[:-1], last), self._primes)
        after = Shape(tuple(before.sizes[axis] for axis in axes), self._primes)
        return MovedElements(before, after, before.places.transpose(axes))

    def reshaped(self, sizes: Sizes) -> MovedElements:
        """Return the movement of elements to other sizes."""
        after = Shape(sizes, self._primes)
        return MovedElements(self, after, self.places.reshape(after.lengths))


def primes_of(interface: Iterable[Sizes], primes: Sequence[int]) -> dict[str, int]:
    """Return primes that stand for the open sizes of the inputs of a model."""
    sizes = [str(size) for shape in interface for size in shape if isinstance(size, Size)]
    return dict(zip(dict.fromkeys(sizes), primes, strict=False))


@dataclass(frozen=True, eq=False)
class MovedElements:
    """Where each element of a result comes from.

    Attributes:
        before, after: the shapes of data and result.
        places: the numbers of the elements.

    Raises:
        UnsupportedError: an open size gets lost.
        ValueError: the numbers do not fit the result.
    """

    before: Shape
    after: Shape
    places: Array

    def __post_init__(self) -> None:
        if not self.before.degrees <= self.after.degrees:
            raise UnsupportedError("elements are taken along an axis of open size")
        if self.places.shape != self.after.lengths:
            raise ValueError("the numbers of elements do not fit the result")

    @functools.cached_property
    def kind(self) -> tuple[Hashable, ...]:
        """A key that is equal for equal movements."""
        digest = hashlib.blake2b(self.places.astype(np.int32).tobytes(), digest_size=16).digest()
        return "moved", self.before.sizes, self.after.sizes, digest

    @property
    def is_nothing(self) -> bool:
        """Whether the result is the data, in its shape."""
        is_kept = self.before.sizes == self.after.sizes
        return is_kept and np.array_equal(self.places, self.before.places)

    def then(self, other: MovedElements) -> MovedElements:
        """Return both movements in sequence, with broadcasting between them."""
        between = np.broadcast_to(self.places, other.before.lengths)
        return MovedElements(self.before, other.after, between.ravel()[other.places])

    def of(self, array: Float64) -> Float64:
        """Return an array that broadcasts to the data as one that broadcasts to the result."""
        if array.size == 1:
            return array.reshape(())
        wide = array.reshape((1,) * (len(self.before.lengths) - array.ndim) + array.shape)
        moved = np.broadcast_to(wide, self.before.lengths).ravel()[self.places]
        moved = narrowed(moved)
        sizes = zip(moved.shape, self.after.sizes, strict=True)
        if any(length > 1 and not isinstance(size, int) for length, size in sizes):
            raise UnsupportedError("numbers differ along an axis of open size")
        return moved.reshape(()) if moved.size == 1 else moved
