"""Base class of dialects: a reader and a writer of quantizers, and what a reader finds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Editor, Operand, Region
from qgraph.graph.interface import fixed_sizes
from qgraph.graph.schema import OpKey
from qgraph.graph.streaming import Stream
from qgraph.numerics import Array, Float32, blocks
from qgraph.ops.dispatch import evaluate
from qgraph.ops.operator import operator_of
from qgraph.quantizers.quantizer import Part, Quantizer, arrays_of, with_arrays
from qgraph.registry import Registry


@dataclass(frozen=True, eq=False)
class Site(Region):
    """A quantizer in the graph.

    Attributes:
        root: the node that the reader started from; reports name it.
        dialect: name of the dialect that it is written in.
        meaning: what it means; parameters broadcast to the data, unless there are ``repeats``.
        shape: of the data, None for a dimension that is not known.
        weight: the values of ``x`` where they are known, else None; those in a file are not read.
        repeats: of parameters of blocks, which have an entry for each block in ``meaning``.
    """

    root: ir.Node
    dialect: str
    meaning: Quantizer
    shape: tuple[int | None, ...]
    weight: Stream | None = None
    repeats: blocks.Repeats | None = None

    @property
    def quantizer(self) -> Quantizer:
        """What it means; parameters of blocks are repeated at each call, and not kept."""
        meaning: Any = self.meaning
        if self.repeats is not None:
            meaning = with_arrays(meaning, self.repeats.spread)
        known: Quantizer = meaning
        return known

    @cached_property
    def values(self) -> Array | None:
        """The quantized values of ``weight``, computed by the kernels of its operators."""
        if self.weight is None:
            return None
        return evaluate(self.nodes, self.x, self.y, self.weight.array())


@dataclass(frozen=True, eq=False)
class Refusal:
    """A node of a dialect that cannot be read as a quantizer, and why.

    Attributes:
        root: the node.
        reason: why not.
        is_dynamic: whether its parameters are computed from the data, so that it has no constants.
    """

    root: ir.Node
    reason: str
    is_dynamic: bool = False


def shape_of(x: ir.Value, *parameters: Array) -> tuple[int | None, ...]:
    """Return the shape of the data; where its rank is unknown, that of the widest parameter."""
    widest = max((parameter.ndim for parameter in parameters), default=0)
    return (None,) * widest if (sizes := fixed_sizes(x)) is None else sizes


class Dialect(Protocol):
    """One way to write quantizers.

    Attributes:
        name: as in ``--to name``.
        roots: the operators that its reader starts from.
    """

    name: ClassVar[str]
    roots: ClassVar[frozenset[OpKey]]

    def read(self, node: ir.Node) -> Site | Refusal | None:
        """Return the quantizer whose root is ``node``; None if it is not of this dialect.

        Raises:
            OperatorError: the node violates its operator's definition.
        """

    def spellings(self, site: Site, editor: Editor) -> Iterator[Draft]:
        """Yield drafts of ``site`` in this dialect, the shortest first."""

    def reason(self, site: Site) -> str:
        """Return why the dialect has no equal form."""


DIALECTS: Registry[Dialect] = Registry("dialect", "qgraph.quantizers.dialects", "dialects")


def dialect(cls: type[Dialect]) -> type[Dialect]:
    """Register a dialect class under its name."""
    DIALECTS.add(cls.name)(cls())
    return cls


def parameter(node: ir.Node, value: ir.Value | None, name: str) -> Float32:
    """Return a constant parameter of a quantizer as float32.

    Raises:
        OperatorError: it is computed at run time, or has no element.
    """
    array = constant_expression(value)
    if array is None:
        array = _decoded(value)
    if array is None:
        label = value.name if value is not None else ""
        raise OperatorError(
            f"{where(node)}: {name} {label!r} is not a constant, so the quantizer is unknown "
            f"before run time. Store it as a constant, or export the model with fixed sizes."
        )
    if array.dtype.kind in "cOSU":
        raise OperatorError(f"{where(node)}: {name} is {array.dtype}, expected real numbers.")
    if array.size == 0:
        raise OperatorError(f"{where(node)}: {name} has no element, expected at least one.")
    return array.astype(np.float32, copy=False)


def _decoded(value: ir.Value | None) -> Array | None:
    """Return a parameter that is itself stored as codes: a DequantizeLinear of constants."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "DequantizeLinear":
        return None
    arrays = [constant_expression(operand) for operand in node.inputs]
    operator = operator_of(node)
    if operator is None or any(array is None for array in arrays):
        return None
    return operator.run(node, arrays)


def try_out(node: ir.Node, x: ir.Value, *parameters: Float32) -> None:
    """Check the parameters of ``node`` by running its operator on a minimal array of zeros.

    Raises:
        OperatorError: a parameter violates the definition, or does not fit to ``x``.
    """
    operator = operator_of(node)
    if operator is None:
        return
    try:
        sizes = list(np.broadcast_shapes(*(parameter.shape for parameter in parameters)))
    except ValueError as error:
        raise OperatorError(f"{where(node)}: {error}. Correct the model's exporter.") from error
    if x.shape is not None:
        sizes = [1] * (len(x.shape) - len(sizes)) + sizes[max(len(sizes) - len(x.shape), 0) :]
        for axis, size in enumerate(x.shape):
            if sizes[axis] != 1 and isinstance(size, int):
                sizes[axis] = size
    attributes = operator.schema.attributes_of(node)
    given = tuple((array.shape, array.tobytes()) for array in parameters)
    absent = tuple(value is None for value in node.inputs)
    key = operator.schema.name, operator.schema.since, repr(attributes), absent, tuple(sizes), given
    if key in _PASSED:
        return
    operator.run(node, [np.zeros(sizes, np.float32), *parameters])
    if sum(array.nbytes for array in parameters) <= _FEW_BYTES:
        if len(_PASSED) >= _MOST_PASSED:
            _PASSED.clear()
        _PASSED.add(key)


_PASSED: set[tuple[object, ...]] = set()
"""Operators and parameters that passed the check."""
_MOST_PASSED = 1 << 12
_FEW_BYTES = 256


def data_of(draft: Draft, site: Site) -> ir.Value:
    """Return the float values to which a quantizer of another dialect is applied.

    Where ``site`` decodes stored codes, these are the decoded values.
    """
    # The output of a Constant node may lack a type; its tensor has one.
    kind = site.weight.kind if site.weight is not None else site.x.dtype and site.x.dtype.name
    if kind in (None, ir.DataType.FLOAT.name) or site.values is None:
        return draft.x
    return draft.constant(site.values, "weight")


Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class BlockView:
    """The shape in which data is seen while parameters are applied.

    Attributes:
        data: shape of the data.
        axis: axis of the data that becomes two; None if none does.
        size: elements in a block along ``axis``.
        fits: whether no parameter enlarges the data, as far as its shape is known.
    """

    data: Shape
    axis: int | None = None
    size: int = 1
    fits: bool = False

    @property
    def seen(self) -> tuple[int, ...]:
        """The shape of the view."""
        axis, sizes = self.axis or 0, [size or 0 for size in self.data]
        return (*sizes[:axis], sizes[axis] // self.size, self.size, *sizes[axis + 1 :])

    def enter(self, draft: Draft, x: Operand) -> Operand:
        """Return the data in the shape of the view."""
        return x if self.axis is None else _reshape(draft, x, self.seen)

    def leave(self, draft: Draft, y: Operand) -> Operand:
        """Return data of the view in its own shape."""
        if self.axis is None:
            return y
        return _reshape(draft, y, tuple(size or 0 for size in self.data))

    def lay(self, parameter: Array) -> Array:
        """Return a parameter that broadcasts to the data so that it broadcasts to the view."""
        plain = squeezed(parameter) if self.fits else parameter
        if self.axis is None:
            return plain
        if plain.size == 1:
            return plain.reshape(())
        plain = plain.reshape((1,) * (len(self.data) - plain.ndim) + plain.shape)
        if plain.shape[self.axis] != 1:
            plain = plain[(slice(None),) * self.axis + (slice(None, None, self.size),)]
        return np.ascontiguousarray(np.expand_dims(plain, self.axis + 1))


def view_of(shape: Shape, parameters: Sequence[Array]) -> BlockView:
    """Return the view in which no entry of ``parameters`` is repeated along a second axis.

    Args:
        shape: of the data, None for a dimension that is not known.
        parameters: arrays that broadcast to the data.
    """
    joint = np.broadcast_shapes(*(parameter.shape for parameter in parameters))
    fits = blocks.fits(joint, shape)
    if not fits or None in shape:
        return BlockView(shape, fits=fits)
    arrays = [squeezed(parameter) for parameter in parameters]
    joint = np.broadcast_shapes(*(array.shape for array in arrays))
    varying = [axis for axis, size in enumerate(joint) if size != 1]
    for axis in varying if len(varying) > 1 and len(joint) == len(shape) else []:
        size = math.gcd(joint[axis], blocks.run_length(arrays, axis - len(joint), joint[axis]))
        if size > 1:
            return BlockView(shape, axis, size, fits)
    return BlockView(shape, fits=fits)


def enlarges(parameters: Sequence[Array], shape: Shape) -> bool:
    """Return whether ``parameters`` certainly enlarge data of ``shape`` by broadcasting."""
    joint = np.broadcast_shapes(*(parameter.shape for parameter in parameters))
    own = shape[len(shape) - len(joint) :]
    return len(joint) > len(shape) or any(
        length is not None and size not in (1, length)
        for size, length in zip(joint, own, strict=True)
    )


def squeezed(parameter: Array) -> Array:
    """Return ``parameter`` with a single entry along each axis on which it does not vary."""
    for axis, size in enumerate(parameter.shape):
        first = parameter[(slice(None),) * axis + (slice(1),)]
        if size > 1 and (parameter == first).all():
            parameter = first
    return parameter


def _reshape(draft: Draft, x: Operand, sizes: tuple[int, ...]) -> Operand:
    if isinstance(x, np.ndarray) or x in draft.constants:
        array = x if isinstance(x, np.ndarray) else draft.constants[x]
        return draft.constant(array.reshape(sizes), "weight")
    shape = draft.constant(np.array(sizes, np.int64), "shape")
    return draft.node("Reshape", [x, shape], dtype=x.dtype)


class SiteWriter:
    """Starts and ends the drafts of one site.

    Args:
        site: the quantizer.
        editor: makes the drafts.
    """

    def __init__(self, site: Site, editor: Editor) -> None:
        self.site = site
        self._editor = editor
        self._view = BlockView(site.shape)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Shape of the view of the data."""
        return self.site.shape if self._view.axis is None else self._view.seen

    def see(self, meaning: Part) -> Part:
        """Choose the shape of the data; return the quantizer with its parameters in that shape."""
        self._view = view_of(self.site.shape, arrays_of(meaning))
        return with_arrays(meaning, self._view.lay)

    def begin(self, constant: Array | None = None) -> tuple[Draft, Operand]:
        """Return an empty draft, and the data as float values.

        Args:
            constant: takes the place of the data, in its shape.
        """
        draft = self._editor.draft(self.site)
        x = data_of(draft, self.site) if constant is None else draft.constant(constant, "weight")
        return draft, self._view.enter(draft, x)

    def end(self, draft: Draft, y: Operand) -> Draft:
        """Return the draft with ``y`` as its output."""
        return draft.giving(self._view.leave(draft, y))

    def seen(self, constant: Array) -> Array:
        """Return a constant of the shape of the data in the shape of the view."""
        return constant if self._view.axis is None else constant.reshape(self._view.seen)


Writers = Mapping[type, Callable[[SiteWriter, Any], Iterator[Draft]]]
"""What drafts a quantizer with a :class:`SiteWriter`, by the type of the quantizer."""


def written(site: Site, editor: Editor, writers: Writers) -> Iterator[Draft]:
    """Yield the drafts of the writer of the type of quantizer that ``site`` is, if any."""
    meaning: Any = site.quantizer
    writer, write = writers.get(type(meaning)), SiteWriter(site, editor)
    if writer is not None:
        yield from writer(write, write.see(meaning))


def node(
    draft: Draft,
    domain: str,
    name: str,
    operands: Sequence[Operand],
    attributes: Mapping[str, object],
) -> ir.Value:
    """Append an operator of another domain, which returns float32."""
    return draft.node(name, operands, dict(attributes), domain=domain, dtype=ir.DataType.FLOAT)
