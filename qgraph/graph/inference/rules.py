"""The registry of rules: facts about the results of an operator, from facts about its operands.

A fact of a value is its element type, its shape, and its elements if they are few. A rule is a
function of a :class:`Call` that returns one fact for each output, in order; missing facts are
unknown. It raises :class:`Unknown` if no fact is known, or a ValueError or IndexError for a node
that violates its definition. A fact holds provided that the node succeeds::

    @rule("Transpose")
    def transpose(call: Call) -> list[Fact]:
        x = call[0]
        perm = call.integers("perm") or ...
        return [Fact(x.dtype, [x.shape[axis] for axis in perm])]

The results of an operator without a rule are unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx_ir as ir

from qgraph.graph.inference.dimensions import INT64, Dim, Size, bounds
from qgraph.numerics import Array
from qgraph.records import dataclass, field

Shape: TypeAlias = tuple[Dim, ...]
T = TypeVar("T")

Items: TypeAlias = Array
"""An array of objects: each element is a Python number, a :class:`Size`, or None if unknown."""

MOST_ITEMS = 1024
"""Maximum number of elements of tensors whose elements are computed."""

_INTEGERS = {
    dtype: (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if name == "INT" else (0, (1 << bits) - 1)
    for bits in (8, 16, 32, 64)
    for name in ("INT", "UINT")
    for dtype in (ir.DataType[f"{name}{bits}"],)
}

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
_FOLLOWED = frozenset({*_INTEGERS, *FLOATS, ir.DataType.BOOL})
"""Floating-point types whose elements are computed: NumPy follows IEEE 754 for them."""


class Fact:
    """Facts about a value that hold whenever the nodes that compute it succeed.

    The element type is None if unknown; the shape if not even its rank is known.
    """

    __slots__ = ("_items", "_read", "dtype", "shape")

    def __init__(
        self,
        dtype: ir.DataType | None = None,
        shape: Sequence[Dim] | None = None,
        items: Items | None = None,
        read: Callable[[], Items | None] | None = None,
    ) -> None:
        self.dtype = dtype
        self.shape = None if shape is None else tuple(shape)
        self._items = items
        self._read = read

    @property
    def items(self) -> Items | None:
        """The elements, in the shape of the value; None if they are not computed."""
        if self._read is not None:
            self._items, self._read = self._read(), None
        return self._items

    @property
    def rank(self) -> int | None:
        """The number of dimensions."""
        return None if self.shape is None else len(self.shape)

    @property
    def sizes(self) -> list[int | None] | None:
        """The shape with None for each dimension that is not a number."""
        if self.shape is None:
            return None
        return [size if isinstance(size, int) else None for size in self.shape]

    @property
    def array(self) -> Array | None:
        """The elements as an array, None unless all of them are numbers."""
        items = self.items
        if items is None or self.dtype is None:
            return None
        if any(item is None or isinstance(item, Size) for item in items.flat):
            return None
        return np.array(items.tolist(), self.dtype.numpy()).reshape(items.shape)

    def __repr__(self) -> str:
        type_name = "?" if self.dtype is None else self.dtype.name
        shape = "[...]" if self.shape is None else f"[{', '.join(map(_shown, self.shape))}]"
        items = self.items
        return f"{type_name}{shape}" + ("" if items is None else f" = {items.tolist()}")


UNKNOWN = Fact()


def of_items(dtype: ir.DataType | None, items: Items) -> Fact:
    """Return the fact of a value with these elements."""
    return Fact(dtype, items.shape, items if items.size <= MOST_ITEMS else None)


def of_tensor(tensor: ir.TensorProtocol) -> Fact:
    """Return the fact of a constant; its elements are read when needed."""
    shape = tuple(int(size) for size in tensor.shape.numpy())
    dtype = tensor.dtype
    if dtype not in _FOLLOWED or math.prod(shape) > MOST_ITEMS:
        return Fact(dtype, shape)
    return Fact(dtype, shape, read=lambda: _items_of(tensor))


def _items_of(tensor: ir.TensorProtocol) -> Items | None:
    try:
        return tensor.numpy().astype(object)
    except (OSError, ValueError, TypeError):
        return None  # the file cannot be read, which is reported where it is needed


def as_items(elements: Sequence[Any], shape: Sequence[int] | None = None) -> Items:
    """Return elements as an array of objects, one-dimensional unless a shape is given."""
    items = np.empty(len(elements), object)
    items[:] = elements
    return items if shape is None else items.reshape(tuple(shape))


def known_sizes(shape: Sequence[Dim] | None) -> list[int] | None:
    """Return a shape of which all sizes are known, and so few elements that these may be, too."""
    sizes = [size for size in shape or () if isinstance(size, int)]
    is_known = shape is not None and len(sizes) == len(shape)
    return sizes if is_known and math.prod(sizes) <= MOST_ITEMS else None


def joined(a: Fact, b: Fact) -> Fact:
    """Return the facts that hold for both of two values."""
    dtype = a.dtype if a.dtype == b.dtype else None
    shape = None
    if a.shape is not None and b.shape is not None and len(a.shape) == len(b.shape):
        shape = tuple(m if m == n else None for m, n in zip(a.shape, b.shape, strict=True))
    items = a.items
    other = b.items
    if dtype is None or items is None or other is None or items.shape != other.shape:
        return Fact(dtype, shape)
    pairs = zip(items.flat, other.flat, strict=True)
    same = [m if repr(m) == repr(n) else None for m, n in pairs]
    return Fact(dtype, shape, as_items(same, items.shape))


def range_of(dtype: ir.DataType | None) -> tuple[int, int] | None:
    """Return the least and the greatest number of an integer type, None for other types."""
    return None if dtype is None else _INTEGERS.get(dtype)


def wrapped(number: Dim, dtype: ir.DataType | None) -> Dim:
    """Return a result of integer arithmetic in its type: numbers wrap around.

    A polynomial is kept if it cannot exceed int64, and is unknown otherwise.
    """
    limits = range_of(dtype)
    if number is None or limits is None:
        return None
    low, high = limits
    if isinstance(number, int):
        return (number - low) % (high - low + 1) + low
    least, most = bounds(number)
    return number if dtype is ir.DataType.INT64 and INT64[0] <= least <= most <= INT64[1] else None


def _shown(dim: Dim) -> str:
    return "?" if dim is None else str(dim)


class Unknown(Exception):  # noqa: N818 - no error: nothing follows
    """What a rule needs is not known, or does not hold."""


def require(*conditions: object) -> None:
    """Raise :class:`Unknown` unless all conditions hold."""
    if not all(conditions):
        raise Unknown


def given(value: T | None) -> T:
    """Return a value; raise :class:`Unknown` if there is none."""
    if value is None:
        raise Unknown
    return value


@dataclass(frozen=True)
class Call:
    """A node, the imported version of its domain, and facts about its operands.

    Those of an absent operand are None. ``limits`` gets upper bounds of open sizes, by their texts.
    """

    node: ir.Node
    version: int
    operands: Sequence[Fact | None]
    limits: dict[str, int] = field(default_factory=dict)

    def __getitem__(self, index: int) -> Fact:
        """Return the facts about a required operand."""
        require(self.has(index))
        return self.operands[index] or UNKNOWN

    def has(self, index: int) -> bool:
        """Return whether there is an operand at ``index``."""
        return len(self.operands) > index and self.operands[index] is not None

    def optional(self, index: int) -> Fact:
        """Return the facts about an optional operand."""
        return self[index] if self.has(index) else UNKNOWN

    def shape(self, index: int) -> Shape:
        """Return the shape of an operand; raise :class:`Unknown` if its rank is not known."""
        return given(self[index].shape)

    def axis(self, name: str, default: int, rank: int) -> int:
        """Return an axis attribute as an index; a negative axis counts from the end."""
        return place_of(self.integer(name, default), rank)

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        attribute = self._attribute(name, ir.AttributeType.INT)
        return default if attribute is None else int(attribute.as_int())

    def integers(self, name: str) -> list[int] | None:
        """Return a list of integers, None if the attribute is absent."""
        attribute = self._attribute(name, ir.AttributeType.INTS)
        return None if attribute is None else [int(number) for number in attribute.as_ints()]

    def text(self, name: str, default: str) -> str:
        """Return an attribute that is a text."""
        attribute = self._attribute(name, ir.AttributeType.STRING)
        return default if attribute is None else str(attribute.as_string())

    def dtype(self, name: str) -> ir.DataType | None:
        """Return an attribute that names an element type, None if it is absent or 0."""
        number = self.integer(name, 0)
        return ir.DataType(number) if number else None

    def numbers(self, index: int) -> list[int]:
        """Return the elements of an operand, all of which must be numbers."""
        array = given(self[index].array)
        require(array.dtype.kind in "iu")
        return [int(number) for number in array.reshape(-1)]

    def listed(self, index: int, name: str, since: int) -> list[int] | None:
        """Return numbers that are an attribute before opset ``since``, and an operand since."""
        if self.version < since:
            return self.integers(name)
        return self.numbers(index) if self.has(index) else None

    def _attribute(self, name: str, attribute_type: ir.AttributeType) -> ir.Attr | None:
        attribute = self.node.attributes.get(name)
        if attribute is None:
            return None
        require(not attribute.is_ref(), attribute.type is attribute_type)
        return attribute


Rule: TypeAlias = Callable[[Call], Sequence[Fact]]

RULES: dict[tuple[str, str], Rule] = {}
"""Rules by domain and name of the operator."""


def rule(*names: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Return a decorator that registers the rule of some operators of one domain."""

    def register(function: Rule) -> Rule:
        for name in names:
            if RULES.setdefault((domain, name), function) is not function:
                raise ValueError(f"two rules for {domain}::{name}")
        return function

    return register


def place_of(axis: int, rank: int) -> int:
    """Return the index of an axis; a negative axis counts from the end."""
    require(-rank <= axis < rank)
    return axis % rank


def places_of(axes: Sequence[int], rank: int) -> list[int]:
    """Return the indices of axes, which must be distinct."""
    places = [place_of(axis, rank) for axis in axes]
    require(len(set(places)) == len(places))
    return places


def common_type(*facts: Fact) -> ir.DataType | None:
    """Return the type that some operands share by definition, None if unknown or contradictory."""
    kinds = {fact.dtype for fact in facts} - {None}
    return kinds.pop() if len(kinds) == 1 else None
