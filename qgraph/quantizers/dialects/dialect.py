"""Base class of dialects, which read and write quantizers, and the results of readers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.exactness import Method, Verdict
from qgraph.graph.constants import array_of, constant_expression, constant_stream
from qgraph.graph.deferred import DeferredTensor
from qgraph.graph.edit import Draft, Editor, Operand, Region
from qgraph.graph.schema import OpKey
from qgraph.graph.scopes import producer_of
from qgraph.graph.sizes import fixed_sizes
from qgraph.graph.streaming import Stream
from qgraph.numerics import Array, Float32
from qgraph.numerics.blocks import BlockView, Repeats, view_of, view_of_blocks
from qgraph.numerics.values import as_float32
from qgraph.ops.dispatch import evaluate
from qgraph.ops.operator import Operator, operator_of
from qgraph.proof.functions.lowering import Constants
from qgraph.quantizers.quantizer import Part, Quantizer, arrays_of, with_arrays
from qgraph.quantizers.weights.piecewise import ElementProgram
from qgraph.records import dataclass, replace
from qgraph.registry import Registry

if TYPE_CHECKING:
    from qgraph.quantizers.weights.decoded import DecodedCodes


@dataclass(frozen=True, eq=False)
class Site(Region):
    """A quantizer in the graph.

    Attributes:
        root: the node from which the reader started; reports name it.
        dialect: name of the dialect that it is written in.
        meaning: description of the quantizer; parameters broadcast to the data, unless there are
            ``repeats``.
        shape: shape of the data, None for an unknown dimension.
        weight: the values of ``x`` if they are constant, else None; values in a file are not read.
        repeats: how to repeat parameters that have one entry per block in ``meaning``.
        constants: returns the array of a constant operand of its nodes, or an open scale.
        form: equal for quantizers of data that differ in nothing but their one scale, if known.
    """

    root: ir.Node
    dialect: str
    meaning: Quantizer
    shape: tuple[int | None, ...]
    weight: Stream | None = None
    repeats: Repeats | None = None
    constants: Constants = array_of
    form: Hashable = None

    @property
    def quantizer(self) -> Quantizer:
        """Description with repeated parameters of blocks; computed at each call."""
        meaning: Any = self.meaning
        known: Quantizer = meaning
        return known if self.repeats is None else with_arrays(meaning, self.repeats.spread)

    @property
    def small(self) -> Site:
        """The site with the first entry of each parameter only."""
        meaning: Any = self.meaning
        first = with_arrays(meaning, lambda array: array[(slice(1),) * array.ndim].copy())
        return replace(self, meaning=first)

    @property
    def is_decoder(self) -> bool:
        """Whether its data are integer codes, which it only decodes."""
        return self.x.dtype is not None and not self.x.dtype.is_floating_point()

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
        is_dynamic: whether its parameters are computed from the data.
    """

    root: ir.Node
    reason: str
    is_dynamic: bool = False


def shape_of(x: ir.Value, *parameters: Array) -> tuple[int | None, ...]:
    """Return the shape of the data; where its rank is unknown, that of the widest parameter."""
    widest = max((parameter.ndim for parameter in parameters), default=0)
    return (None,) * widest if (sizes := fixed_sizes(x)) is None else sizes


class Dialect(Protocol):
    """A set of operators in which quantizers are written.

    Attributes:
        name: the name, as in ``--to name``.
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
            "before run time. Store it as a constant, with -p fold-constants if it is computed "
            "from constants, or export the model with fixed sizes."
        )
    if array.dtype.kind in "cOSU":
        raise OperatorError(f"{where(node)}: {name} is {array.dtype}, expected real numbers.")
    if array.size == 0:
        raise OperatorError(f"{where(node)}: {name} has no element, expected at least one.")
    return as_float32(array)


def _decoded(value: ir.Value | None) -> Array | None:
    """Return a parameter that is itself stored as codes: a DequantizeLinear of constants."""
    node = producer_of(value)
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
        OperatorError: a parameter violates the definition, or does not broadcast to ``x``.
    """
    operator = operator_of(node)
    if operator is None:
        return
    schema = operator.schema
    attributes = schema.attributes_of(node)
    # No operator refuses a scale for its numbers.
    constants = tuple(
        (array.shape, name == "scale" or array.tobytes())
        for name, array in zip(schema.inputs[1:], parameters, strict=False)
    )
    absent = tuple(value is None for value in node.inputs)
    key = schema.identity, repr(attributes), absent, fixed_sizes(x), constants
    if key in _PASSED:
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
    # Sizes that do not fit may be beyond all memory.
    operator.run(node, [np.broadcast_to(np.float32(0), sizes), *parameters])
    if sum(array.nbytes for array in parameters) <= _FEW_BYTES:
        if len(_PASSED) >= _MOST_PASSED:
            _PASSED.clear()
        _PASSED.add(key)


_PASSED: set[tuple[object, ...]] = set()
"""Operators and parameters that passed the check."""
_MOST_PASSED = 1 << 12
_FEW_BYTES = 256


def single_node(
    node: ir.Node, dialect: str, meaning: Callable[[Operator, list[Float32]], Quantizer]
) -> Site | None:
    """Return the quantizer of one node, by its operator and parameters; None for other nodes.

    Raises:
        OperatorError: the node violates its operator's definition.
    """
    operator = operator_of(node)
    x, *values = (None,) if operator is None else operator.schema.values(node)
    if operator is None or x is None:
        return None
    names = operator.schema.inputs[1:]
    arrays = [parameter(node, v, name) for v, name in zip(values, names, strict=True)]
    try_out(node, x, *arrays)
    fields = meaning(operator, arrays), shape_of(x, *arrays), constant_stream(x)
    return Site(x, node.outputs[0], (node,), node, dialect, *fields)


def data_of(draft: Draft, site: Site) -> ir.Value:
    """Return the float values to which the draft of another dialect is applied.

    If ``site`` decodes stored codes, these are the decoded values.
    """
    # The output of a Constant node may lack a type; its tensor has one.
    type_name = site.weight.kind if site.weight is not None else site.x.dtype and site.x.dtype.name
    if type_name in (None, ir.DataType.FLOAT.name) or site.values is None:
        return draft.x
    return draft.constant(site.values, "weight")


class SiteWriter:
    """Starts and ends the drafts of one site.

    Args:
        decoded: computes the data from stored codes when the model is saved.
    """

    def __init__(self, site: Site, editor: Editor, decoded: DecodedCodes | None = None) -> None:
        self.site = site
        self._editor, self._decoded = editor, decoded
        self._view = BlockView(site.shape)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Shape of the view of the data."""
        return self.site.shape if self._view.axis is None else self._view.seen

    def see(self, meaning: Part) -> Part:
        """Choose the view of the data; return the quantizer with its parameters in that view."""
        self._view = view_of(self.site.shape, arrays_of(meaning))
        return with_arrays(meaning, self._view.lay)

    def see_blocks(self) -> Quantizer | None:
        """Like :meth:`see`, for one entry per block; None if parameters must be repeated."""
        meaning: Any = self.site.meaning
        view: BlockView | None = view_of(self.site.shape, arrays_of(meaning))
        if self.site.repeats is not None:
            view = view_of_blocks(arrays_of(meaning), self.site.repeats)
        if view is None:
            return None
        self._view = view
        seen: Quantizer = with_arrays(meaning, view.lay)
        return seen

    def begin(self, constant: Array | None = None) -> tuple[Draft, Operand]:
        """Return an empty draft, and the data, or a constant of the same shape, as float values."""
        draft = self._editor.draft(self.site)
        if self._decoded is not None:
            sizes = tuple(size or 0 for size in self.shape)
            return draft, draft.stored(self._decoded.tensor(sizes), "weight")
        x = data_of(draft, self.site) if constant is None else draft.constant(constant, "weight")
        return draft, self.enter(draft, x)

    @property
    def is_split(self) -> bool:
        """Whether the view has an axis for blocks."""
        return self._view.axis is not None

    @property
    def is_later(self) -> bool:
        """Whether the data is computed from stored codes when the model is saved."""
        return self._decoded is not None

    def begin_codes(self, shift: Float32) -> tuple[Draft, ir.Value] | None:
        """Return an empty draft, and the stored codes less ``shift`` as float values.

        They are computed when the model is saved. None if they cannot be.
        """
        from qgraph.quantizers.weights.decoded import DecodedCodes

        draft, steps = self._editor.draft(self.site), self._editor.draft(self.site)
        sizes = tuple(size or 0 for size in self.shape)
        numbers = steps.op.Cast(steps.x, to=ir.DataType.FLOAT)
        steps.giving(steps.op.Sub(numbers, shift) if shift.any() else numbers)
        program = ElementProgram.of(steps.nodes, steps.x, steps.y, sizes)
        steps.discard()
        if self._decoded is None or program is None:
            return None
        job = DecodedCodes(self._decoded.codes, program)
        return draft, draft.stored(job.tensor(sizes), "weight")

    def enter(self, draft: Draft, x: Operand) -> Operand:
        """Return data of the site in the view."""
        return x if self._view.axis is None else _reshape(draft, x, self._view.seen)

    def end(self, draft: Draft, y: Operand) -> Draft:
        """Return the draft with ``y`` as its output."""
        if self._view.axis is not None:
            y = _reshape(draft, y, tuple(size or 0 for size in self.site.shape))
        return draft.giving(y)

    def seen(self, constant: Array) -> Array:
        """Reshape a constant from the shape of the data to the shape of the view."""
        return constant if self._view.axis is None else constant.reshape(self._view.seen)


def _reshape(draft: Draft, x: Operand, sizes: tuple[int, ...]) -> Operand:
    if isinstance(x, ir.Value) and isinstance(tensor := draft.tensors.get(x), DeferredTensor):
        seen = DeferredTensor(tensor.job, tensor.place, tensor.dtype, sizes)
        return draft.stored(seen, "weight")
    if isinstance(x, np.ndarray) or x in draft.constants:
        array = x if isinstance(x, np.ndarray) else draft.constants[x]
        return draft.constant(array.reshape(sizes), "weight")
    shape = draft.constant(np.array(sizes, np.int64), "shape")
    return draft.node("Reshape", [x, shape], dtype=x.dtype)


Writers = Mapping[type, Callable[[SiteWriter, Any], Iterator[Draft]]]
"""Functions that draft a quantizer with a :class:`SiteWriter`, by the type of the quantizer."""


def written(
    site: Site, editor: Editor, writers: Writers, *, later: bool = False
) -> Iterator[Draft]:
    """Yield the drafts of the writer for the type of the quantizer, if there is one.

    With ``later``, large codes in files are not read for drafts that are equal by construction.
    """
    writer = writers.get(type(site.meaning))
    if writer is None:
        return
    if later:
        from qgraph.quantizers.weights.decoded import DecodedCodes

        decoded = DecodedCodes.of(site, site.weight)
        if decoded is not None:
            yield from _written_later(SiteWriter(site, editor, decoded), writer, decoded)
    write, meaning = SiteWriter(site, editor), site.quantizer
    known: Any = meaning
    yield from writer(write, write.see(known))


def _written_later(
    write: SiteWriter, writer: Callable[[SiteWriter, Any], Iterator[Draft]], decoded: DecodedCodes
) -> Iterator[Draft]:
    from qgraph.quantizers.weights.decoded import DecodedCodes

    meaning = write.see_blocks()
    for draft in () if meaning is None else writer(write, meaning):
        stored = [value for value in draft.tensors if value.const_value is draft.tensors[value]]
        job = getattr(stored[0].const_value, "job", None) if stored else None
        level = None
        if isinstance(job, DecodedCodes):
            level = decoded.exactness(draft.nodes, stored[0], draft.y, job.decode)
        if level is None:
            draft.discard()  # a large scale would stay in memory
            continue
        draft.promise = Verdict(level, Method.CONGRUENCE)
        yield draft


def node(
    draft: Draft,
    domain: str,
    name: str,
    operands: Sequence[Operand],
    attributes: Mapping[str, object],
) -> ir.Value:
    """Append an operator of another domain, which returns float32."""
    return draft.node(name, operands, dict(attributes), domain=domain, dtype=ir.DataType.FLOAT)
