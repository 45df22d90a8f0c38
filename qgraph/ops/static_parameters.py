"""Parameters of quantizers that are computed from dimensions which never change, or cast.

Exporters with a batch of any size write what follows from the other sizes as nodes: the window of a
pooling by Shape and Gather, the scale and the bit width after it by Div, Log and Ceil. Sizes are
those that are inferred from the inputs of the model (:mod:`qgraph.graph.inference`), not what it
states of inner values. The exporter of torch casts constant scales and zero points of channels.

Keras expands parameters to the shape of the data, and computes limits after the Expand, since the
number of rows is open::

    data -- Shape -- ... -- Expand(bits) -- Pow(2, .) -- Sub(., step) -- Less(data, .)

Every operator between Expand and ``Less`` is elementwise, so the array before the Expand gives the
same result by broadcasting.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant, constant_tensor, freeze_inputs, overridable
from qgraph.graph.edit import Draft, Editor, Region
from qgraph.graph.inference.rules import UNKNOWN
from qgraph.graph.inference.walk import Facts, infer
from qgraph.graph.schema import versions_of
from qgraph.graph.scopes import nodes_of, producer_of
from qgraph.numerics import Array
from qgraph.numerics.primitives import NUMPY
from qgraph.ops.dispatch import computed
from qgraph.ops.operator import is_defined
from qgraph.records import dataclass

_MOVING = frozenset({"Concat", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"})
"""Operators whose elements are elements of their first operand, for Concat of any."""

_MONOTONE = frozenset({"Add", "Cast", "Ceil", "Div", "Floor", "Log", "Mul", "Round", "Sub"})
"""Operators that rise or fall in each operand alone: their bounds lie where the operands' do."""

_LOG_MARGIN = 2.0**-12
"""How far a logarithm may be off, relatively or around zero; ONNX leaves its last bits open."""

_ANY_SIZE = 1 << 40
"""Stands for the largest size of a dimension that is not known."""

_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64})
_CODES = frozenset(ir.DataType[f"{sign}INT{bits}"] for sign in ("", "U") for bits in (8, 16))
_CASTABLE = 1 << 31

_FEW_ELEMENTS = 1 << 12
_DEEP = 100


def freeze_static_parameters(model: ir.Model) -> int:
    """Put constants in the place of parameters that static dimensions determine; return how many.

    Parameters are the inputs of quantizers but the first, in the main graph and the graphs in it;
    also constants after a Cast that keeps them, or an Expand
    (:func:`.expanded_parameters.expanded_parameters`).
    A logarithm counts as known only if the parameter is the same for every result within a
    relative 2**-12 of it. What feeds nothing else goes. No shapes are inferred for a model none of
    whose parameters asks for a size.
    """
    arrays = static_parameters(model) | expanded_parameters(model)
    if arrays:
        editor = Editor(model)
        editor.replace_all([_constant(editor, value, array) for value, array in arrays.items()])
    return len(arrays)


def settled(model: ir.Model) -> ir.Model:
    """Return the model with constants where a pass would see them: itself, or else a copy.

    Initializers are no graph inputs in it, and parameters of quantizers that follow from static
    dimensions are constants.
    """
    constants = static_parameters(model) or expanded_parameters(model)
    if not overridable(model.graph) and not constants:
        return model
    copy = model.clone()
    freeze_inputs(copy)
    freeze_static_parameters(copy)
    return copy


def static_parameters(model: ir.Model) -> dict[ir.Value, Array]:
    """Return what :func:`freeze_static_parameters` would make constants, with what they hold."""
    sizes = _Sizes(model)
    arrays: dict[ir.Value, Array] = {}
    for node in nodes_of(model.graph):
        for value in node.inputs[1:]:
            maker = producer_of(value)
            if value is None or maker is None or value in arrays or maker.op_type not in _FOLLOWED:
                continue
            bounds = sizes.bounds(value) if is_defined(node) else None
            if bounds is None or not bounds.exact:
                continue
            if bounds.sized or maker.op_type == "Cast":
                arrays[value] = bounds.low
    return arrays


_FOLLOWED = _MOVING | _MONOTONE | {"Shape", "Size"}


def _constant(editor: Editor, value: ir.Value, array: Array) -> Draft:
    maker = value.producer()
    assert maker is not None  # noqa: S101 - only computed values are found
    # What the file states of the value may be wrong, and the constant takes it over.
    value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
    value.shape = ir.Shape(array.shape)
    draft = editor.draft(Region(maker.inputs[0] or value, value, (maker,)))
    return draft.giving(draft.node("Constant", [], {"value": ir.Tensor(np.array(array))}))


@dataclass(frozen=True, eq=False)
class _Bounds:
    """Between which arrays a value lies, and whether a size is in it."""

    low: Array
    high: Array
    sized: bool

    @property
    def exact(self) -> bool:
        return self.low is self.high or self.low.tobytes() == self.high.tobytes()


class _Sizes:
    """What is known of values that are computed from sizes."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._imports = versions_of(model.opset_imports)
        self._known: dict[ir.Value, _Bounds | None] = {}

    @cached_property
    def _facts(self) -> Facts:
        return infer(self._model)

    def bounds(self, value: ir.Value, depth: int = 0) -> _Bounds | None:
        """Return what is known of ``value``; None if that is nothing."""
        if value not in self._known:
            self._known[value] = None if depth > _DEEP else self._found(value, depth)
        return self._known[value]

    def _found(self, value: ir.Value, depth: int) -> _Bounds | None:
        node, tensor = value.producer(), constant_tensor(value)
        if tensor is not None:
            if tensor.dtype not in _TYPES or tensor.size > _FEW_ELEMENTS:
                return None
            array = constant(value)
            return None if array is None else _Bounds(array, array, sized=False)
        if node is None or node.domain != "" or node.op_type not in _FOLLOWED:
            return None
        if node.op_type in ("Shape", "Size"):
            return self._of_shape(node)
        operands = [None if v is None else self.bounds(v, depth + 1) for v in node.inputs]
        present = [operand for operand in operands if operand is not None]
        if len(present) < sum(v is not None for v in node.inputs) or not present:
            return None
        with np.errstate(all="ignore"):
            return self._computed(node, operands, any(b.sized for b in present))

    def _of_shape(self, node: ir.Node) -> _Bounds | None:
        data = node.inputs[0]
        if data is None or data.graph is not self._model.graph:
            return None  # in the body of a Loop or a Scan a size may change from round to round
        sizes = self._facts.get(data, UNKNOWN).sizes
        if sizes is None:
            return None
        if node.op_type == "Size":
            static = [size for size in sizes if size is not None]
            total = np.array(np.prod(static, dtype=np.int64))
            return None if len(static) < len(sizes) else _Bounds(total, total, sized=True)
        start, end = (node.attributes.get(name) for name in ("start", "end"))
        asked = sizes[
            0 if start is None else start.as_int() : len(sizes) if end is None else end.as_int()
        ]
        low = np.array([0 if size is None else size for size in asked], np.int64)
        high = np.array([_ANY_SIZE if size is None else size for size in asked], np.int64)
        return _Bounds(low, high, sized=True)

    def _computed(
        self, node: ir.Node, operands: Sequence[_Bounds | None], sized: bool
    ) -> _Bounds | None:
        pairs = [
            (None,) if b is None else (b.low,) if b.exact else (b.low, b.high) for b in operands
        ]
        if all(len(pair) == 1 for pair in pairs):
            choices = [tuple(pair[0] for pair in pairs)]
        elif node.op_type in _MONOTONE:
            choices = list(itertools.product(*pairs))
        elif node.op_type == "Concat" or all(len(pair) == 1 for pair in pairs[1:]):
            choices = [tuple(pair[end] for pair in pairs) for end in (0, -1)]
        else:
            return None
        if not _is_safe(node, pairs):
            return None
        results = [computed(node, self._imports, arrays) for arrays in choices]
        if any(result is None for result in results):
            return None
        low, high = np.asarray(results[0]), np.asarray(results[0])
        for result in results[1:]:
            low, high = np.minimum(low, result), np.maximum(high, result)
        if node.op_type == "Log":
            low, high = (end + side * _margin(end) for end, side in ((low, -1), (high, 1)))
        if low.dtype.kind == "f" and not (np.isfinite(low) & np.isfinite(high)).all():
            return None
        return _Bounds(low, low if len(results) == 1 and node.op_type != "Log" else high, sized)


def _margin(logarithm: Array) -> Array:
    share = np.maximum(np.abs(logarithm), logarithm.dtype.type(1))
    return np.asarray(share * logarithm.dtype.type(_LOG_MARGIN))


def _is_safe(node: ir.Node, pairs: Sequence[tuple[Array | None, ...]]) -> bool:
    """Return whether an operator has one result only, and bounds where its operands have theirs."""
    arrays = [array for pair in pairs for array in pair if array is not None]
    if node.op_type in _MONOTONE and any(
        len(pair) > 1 and pair[0] is not None and pair[0].dtype.kind != "f" for pair in pairs
    ):
        return False  # sizes that are not known could overflow
    if node.op_type == "Cast":
        to = node.attributes.get("to")
        if to is None or to.is_ref():
            return False
        if to.as_int() in _TYPES:
            return all(bool((np.abs(array) < _CASTABLE).all()) for array in arrays)
        return all(_holds(ir.DataType(to.as_int()), array) for array in arrays)
    if node.op_type == "Div":
        ends = [array for array in pairs[1] if array is not None]
        whole = any(array.dtype.kind != "f" for array in arrays)
        # Quotients of negative whole numbers are rounded in more than one way.
        below = whole and any(bool((array < 0).any()) for array in arrays)
        return not below and all(bool((array > 0).all()) for array in ends)
    return True


def _holds(dtype: ir.DataType, array: Array) -> bool:
    """Return whether an integer type of 8 or 16 bits has all elements of an array of integers."""
    if dtype not in _CODES or array.dtype.kind not in "iu" or not array.size:
        return False
    ends = np.iinfo(dtype.numpy())
    return bool(ends.min <= array.min() and array.max() <= ends.max)


_EXPANDING = frozenset({"ConstantOfShape", "Expand"})
_ELEMENTWISE = frozenset(NUMPY) - {"Gather"}
_OF_PARAMETERS = frozenset({"Add", "Cast", "Identity", "Neg", "Round", "Sub"})
"""What computes a parameter before it is expanded; no quantizer of a constant is among these."""

_MOST_ELEMENTS = 1 << 20


def expanded_parameters(model: ir.Model) -> dict[ir.Value, Array]:
    """Return values that the operators on data take expanded, with what they hold before.

    All users of a value compute the same if it is replaced by a constant of that array.
    """
    nodes = list(nodes_of(model.graph))
    if not any(node.op_type in _EXPANDING and not node.domain for node in nodes):
        return {}
    finder = _Finder(model)
    for node in nodes:
        finder.enter(node)
    return finder.replaceable(nodes)


class _Finder:
    """Follows expanded constants through elementwise operators."""

    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        self._facts: Facts = infer(model)
        self._imports = versions_of(model.opset_imports)
        self._expanded: dict[ir.Value, Array] = {}
        self._before: dict[ir.Value, Array | None] = {}

    def enter(self, node: ir.Node) -> None:
        """Note what a node gives, if that is an expanded constant."""
        if node.domain or len(node.outputs) != 1 or node.graph is not self._graph:
            return
        rank = self._facts.get(node.outputs[0], UNKNOWN).rank
        if rank is None:
            return
        array = None
        if node.op_type == "Expand" and (before := self._parameter(node.inputs[0])) is not None:
            array = before
        elif node.op_type == "ConstantOfShape":
            fill = node.attributes.get("value")
            number = np.zeros((), np.float32) if fill is None else fill.as_tensor().numpy()
            array = number.reshape(())  # ONNX stores a list of one
        elif node.op_type in _ELEMENTWISE and any(v in self._expanded for v in node.inputs):
            array = self._computed(node, self._operand)
        # Integers belong to computations of shapes.
        if array is not None and array.dtype.kind in "fb" and array.size <= _MOST_ELEMENTS:
            self._expanded[node.outputs[0]] = array.reshape(
                (1,) * (rank - array.ndim) + array.shape
            )

    def replaceable(self, nodes: list[ir.Node]) -> dict[ir.Value, Array]:
        """Return the expanded constants that operators on data take."""
        kept: set[ir.Value] = set()
        taken: dict[ir.Value, Array] = {}
        for node in reversed(nodes):
            value = node.outputs[0] if node.outputs else None
            if value is None or value not in self._expanded or value.is_graph_output():
                continue
            users = value.consumers()
            inner = [user for user in users if user.outputs[0] in kept]
            if all(user in inner or self._is_broadcast(user) for user in users):
                kept.add(value)
                if len(inner) < len(users):
                    taken[value] = self._expanded[value]
        return taken

    def _is_broadcast(self, user: ir.Node) -> bool:
        """Return whether the other operands alone give a result its shape."""
        if user.op_type not in _ELEMENTWISE or user.domain or user.graph is not self._graph:
            return False
        own = self._facts.get(user.outputs[0], UNKNOWN).shape
        data = [v for v in user.inputs if v is not None and v not in self._expanded]
        shapes = [self._facts.get(value, UNKNOWN).shape for value in data]
        return own is not None and None not in own and own in shapes

    def _operand(self, value: ir.Value) -> Array | None:
        """Return an expanded constant, or a single number."""
        if value in self._expanded:
            return self._expanded[value]
        number = constant(value)
        return number if number is not None and not number.ndim else None

    def _parameter(self, value: ir.Value | None) -> Array | None:
        """Return what a value holds that is computed from constants as parameters are."""
        if value is None:
            return None
        if value not in self._before:
            node = value.producer()
            array = constant(value)
            if array is None and node is not None and node.op_type in _OF_PARAMETERS:
                array = self._computed(node, self._parameter)
            self._before[value] = array
        return self._before[value]

    def _computed(self, node: ir.Node, operand: Callable[[ir.Value], Array | None]) -> Array | None:
        values = {value: operand(value) for value in node.inputs if value is not None}
        if node.domain or any(array is None for array in values.values()):
            return None
        operands = [None if value is None else values[value] for value in node.inputs]
        result = computed(node, self._imports, operands)
        return None if result is None else np.asarray(result)
