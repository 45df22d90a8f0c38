"""Where each element of a result comes from.

An operator that moves elements is executed on their numbers, from 1, in place of the data. So each
element of the result tells which one it is. 0 is none: what Pad inserts, or what Concat takes from
another tensor::

    Transpose    1 2 3  ->  1 4        Pad    1 2  ->  1 2 0
                 4 5 6      2 5
                            3 6

Movements with equal numbers are one, whatever operators they are made of. Movements in sequence are
one, too. A prime stands for each open size. Movements of open sizes are compared with other primes
again: a Reshape to ``[3, N]`` and a Transpose do the same where N is 3. No open size may get lost:
operators with constant parameters take all elements along an axis of open size then.
"""

from __future__ import annotations

import functools
import hashlib
import operator
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from qgraph.errors import UnsupportedError
from qgraph.graph.inference.dimensions import Dim, Size
from qgraph.graph.inference.walk import RESHAPING
from qgraph.numerics import Array, Float64
from qgraph.numerics.values import narrowed
from qgraph.ops.dispatch import Imports, kernel_for

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
        return np.arange(1, count + 1, dtype=np.int32).reshape(self.lengths)

    def turned(self, last: int, axes: Sequence[int]) -> MovedElements:
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
        places: the numbers of the elements, 0 for none.
        likes: the elements whose scales and errors stand for those of each element; None for the
            elements themselves.

    Raises:
        UnsupportedError: an open size gets lost.
        ValueError: the numbers do not fit the result.
    """

    before: Shape
    after: Shape
    places: Array
    likes: Array | None = None

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

    @functools.cached_property
    def fills(self) -> bool:
        """Whether some elements of the result are none of the data."""
        return not self.places.all()

    @property
    def is_padding(self) -> bool:
        """Whether other elements stand at edges, with the scales and errors of the data."""
        return self.fills and self.likes is not None

    @property
    def is_part(self) -> bool:
        """Whether other tensors stand beside the data."""
        return self.fills and self.likes is None

    @property
    def is_nothing(self) -> bool:
        """Whether the result is the data, in its shape."""
        is_kept = self.before.sizes == self.after.sizes
        return is_kept and np.array_equal(self.places, self.before.places)

    def then(self, other: MovedElements) -> MovedElements:
        """Return both movements in sequence, with broadcasting between them."""
        between = np.broadcast_to(self.places, other.before.lengths)
        return MovedElements(self.before, other.after, np.append(0, between)[other.places])

    def beside(self, other: MovedElements) -> MovedElements:
        """Return both movements of one tensor to two parts of a result."""
        return MovedElements(self.before, self.after, self.places + other.places)

    def of(self, array: Float64, nothing: float = 0.0) -> Float64:
        """Return an array that broadcasts to the data as one that broadcasts to the result."""
        places = self.places if self.likes is None else self.likes
        if array.size == 1 and places.all():
            return array.reshape(())
        wide = array.reshape((1,) * (len(self.before.lengths) - array.ndim) + array.shape)
        moved = np.append(np.broadcast_to(wide, self.before.lengths), nothing)[places - 1]
        moved = narrowed(moved, range(moved.ndim))
        sizes = zip(moved.shape, self.after.sizes, strict=True)
        if any(length > 1 and not isinstance(size, int) for length, size in sizes):
            raise UnsupportedError("numbers differ along an axis of open size")
        return moved.reshape(()) if moved.size == 1 else moved

    def ends(self, low: Float64, high: Float64, fill: float = 0.0) -> tuple[Float64, Float64]:
        """Return the ends of moved data, and of what fills the other elements."""
        low, high = self.of(low), self.of(high)
        return (np.minimum(low, fill), np.maximum(high, fill)) if self.is_padding else (low, high)


def movements(
    node: ir.Node,
    before: Sequence[Shape],
    after: Sequence[Shape],
    parameters: Sequence[Array | None],
    imports: Imports,
    **attributes: str,
) -> list[list[MovedElements]]:
    """Return, for each result, where its elements come from in each tensor of data.

    Operands that are data come first; ``parameters`` are the others. ``attributes`` replace those
    of the node.

    Raises:
        UnsupportedError: it computes other numbers, or has no kernel.
    """
    starts = np.cumsum([0, *(shape.places.size for shape in before)]).tolist()
    numbers = [shape.places + start for shape, start in zip(before, starts, strict=False)]
    if node.op_type in RESHAPING:
        results = [numbers[0].reshape(after[0].lengths)]
    else:
        results = executed(node, [*numbers, *parameters], imports, **attributes)
    return [
        [
            MovedElements(shape, whole, np.where((all_ > start) & (all_ <= stop), all_ - start, 0))
            for shape, (start, stop) in zip(before, pairwise(starts), strict=True)
        ]
        for whole, all_ in zip(after, results, strict=True)
    ]


def executed(
    node: ir.Node, operands: Sequence[Array | None], imports: Imports, **attributes: str
) -> list[Array]:
    """Return the results of an operator that moves elements, on arrays; attributes are replaced.

    Raises:
        UnsupportedError: it computes other numbers, or has no kernel.
    """
    if node.op_type == "Resize" and (
        node.attributes.get_string("mode", "nearest") != "nearest"
        or "crop" in node.attributes.get_string("coordinate_transformation_mode", "")
    ):
        raise UnsupportedError("a Resize that computes numbers between elements")
    copy = ir.node(
        node.op_type,
        [None if array is None else ir.val(f"x{i}") for i, array in enumerate(operands)],
        {**node.attributes, **attributes},
        outputs=[ir.val(f"y{i}") for i in range(len(node.outputs))],
    )
    return list(kernel_for(copy, imports)(*operands))
