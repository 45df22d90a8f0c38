"""Evaluate a model on quantities, node by node.

A node without a rule gives nothing: what depends on it is undecided, with its reason. All other
values are still evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError
from qgraph.graph.constants import array_of
from qgraph.graph.schema import MICROSOFT
from qgraph.numerics import Array, Float64
from qgraph.numerics.primitives import NUMPY
from qgraph.ops.operator import operator_of
from qgraph.proof.bounds.combination import Atoms, Combination
from qgraph.proof.bounds.definitions import DEFINITIONS
from qgraph.proof.bounds.functions import CURVES, apply
from qgraph.proof.bounds.movements import MOVEMENTS, move
from qgraph.proof.bounds.products import is_product, product
from qgraph.proof.bounds.quantity import ARITHMETIC, FloatType, Quantity, constant
from qgraph.proof.bounds.standard import STANDARD
from qgraph.proof.bounds.tracer import Operand, Pending, QuantityTracer, Settle
from qgraph.proof.functions.expression import Undecidable
from qgraph.proof.functions.lowering import lower_node
from qgraph.proof.matching.known_values import KnownValues
from qgraph.reasons import DO_NOT_FIT, NO_BOUND, NOT_COMPUTED, OUT_OF_RANGE, ExplainedReason

Ranges = Mapping[str, tuple[float, float]]
"""Ranges of the inputs of the reference, by name."""


class Evaluation:
    """The quantities of one model.

    Args:
        model: the model, with types and shapes.
        inputs: a key for each graph input that both models share, by name.
        ranges: ranges of inputs by these keys.
        atoms: makes the atoms of both models.
        settle: gives codes their atom; gets the value that holds them too.
        accumulate: the type in which sums of 16-bit types are added; None for their own.
        chunk: the number of terms that are added in sequence; None for any order.

    Attributes:
        values: what is known of each value.
        reasons: why nothing is known of others.
    """

    def __init__(
        self,
        model: ir.Model,
        inputs: Mapping[str, str],
        ranges: Ranges,
        atoms: Atoms,
        settle: Settle,
        *,
        accumulate: str | None = None,
        chunk: int | None = None,
    ) -> None:
        self.values: dict[ir.Value, Operand] = {}
        self.reasons: dict[ir.Value, ExplainedReason] = {}
        self._atoms = atoms
        self._settle = settle
        self._accumulate = accumulate
        self._chunk = chunk
        imports = {("" if d == "ai.onnx" else d): n for d, n in model.opset_imports.items()}
        self._known = KnownValues(imports)
        self._known.enter(model.graph)
        for value in model.graph.inputs:
            key = inputs.get(str(value.name), str(value.name))
            self.values[value] = self._input(value, key, ranges.get(key))
        for node in model.graph:
            self._enter(node)

    def _input(self, value: ir.Value, key: str, limits: tuple[float, float] | None) -> Quantity:
        if limits is None and value.dtype is not None and value.dtype.is_integer():
            ends = ml_dtypes.iinfo(value.dtype.numpy())  # type: ignore[no-untyped-call]
            limits = float(ends.min), float(ends.max)
        low, high = (-np.inf, np.inf) if limits is None else limits
        arrays = np.asarray(low, np.float64), np.asarray(high, np.float64)
        atom = self._atoms.make("input", key, (), arrays)
        whole = value.dtype is not None and value.dtype.is_integer()
        return Quantity(Combination.of(atom), *arrays, unit=np.ones(()) if whole else None)

    def _enter(self, node: ir.Node) -> None:
        try:
            results = self._results(node)
            for value, result in zip(node.outputs, results, strict=False):
                _expect_fit(value, result)
        except (Undecidable, ValueError, IndexError) as raised:
            error = raised
            if not isinstance(error, Undecidable):
                error = Undecidable(NOT_COMPUTED(f"{node.op_type}: {raised}"))
            results = self._constants(node)
            if not results:
                for value in node.outputs:
                    self.reasons[value] = error.reason
                return
        for value, result in zip(node.outputs, results, strict=False):
            self.values[value] = result

    def _constants(self, node: ir.Node) -> Sequence[Operand]:
        """Return constant results of a node without a rule, as its kernel computes them."""
        arrays = [self._known.array(v) for v in node.outputs if self._known.has(v)]
        numbers = [a for a in arrays if a is not None and a.dtype.kind in "iubf"]
        if len(numbers) < len(node.outputs) or not all(np.isfinite(a).all() for a in numbers):
            return []
        return [constant(array) for array in numbers]

    def of(self, value: ir.Value) -> Operand:
        """Return what is known of a value.

        Raises:
            Undecidable: nothing is.
        """
        if value in self.values:
            return self.values[value]
        if value in self.reasons:
            raise Undecidable(self.reasons[value])
        array = array_of(value)
        if array is None or array.dtype.kind not in "iubf":
            raise Undecidable(NOT_COMPUTED(f"{value.name!r} has no numbers"))
        self.values[value] = constant(array)
        return self.values[value]

    @property
    def imports(self) -> Mapping[str, int]:
        """Versions of the operator sets, by domain."""
        return self._known.imports

    def executed(self, value: ir.Value | None) -> Array | None:
        """Return a constant as it is executed; None for data."""
        return None if value is None else self._known.array(value)

    def meant(self, value: ir.Value) -> Float64:
        """Return a constant in real arithmetic.

        Raises:
            Undecidable: it is data, or not known.
        """
        found = self.of(value)
        if isinstance(found, Pending) or found.value is None:
            raise Undecidable(NOT_COMPUTED(f"{value.name!r} is not constant"))
        return np.broadcast_to(found.meant.offset, found.value.shape)

    def _tracer(self, node: ir.Node) -> QuantityTracer:
        return QuantityTracer(self._atoms, self._settle, node, self._arithmetic(node))

    def _arithmetic(self, node: ir.Node) -> FloatType:
        kinds = [v.dtype.name for v in (*node.inputs[:1], *node.outputs) if v and v.dtype]
        kind = next((name for name in kinds if name in ARITHMETIC), "FLOAT")
        if is_product(node) and self._accumulate is not None:
            kind = self._accumulate
        return replace(ARITHMETIC[kind], chunk=self._chunk)

    def _results(self, node: ir.Node) -> Sequence[Operand]:
        tracer = self._tracer(node)
        if is_product(node):
            return [product(node, tracer, self.of)]
        key = node.domain, node.op_type
        if node.op_type in DEFINITIONS and node.domain != "":
            return [DEFINITIONS[node.op_type](node, tracer, self.of)]
        operator = operator_of(node)
        if operator is not None or (key[0] == "" and node.op_type in NUMPY):
            return [self._traced(node, tracer)]
        if node.domain not in ("", MICROSOFT):
            raise Undecidable(NO_BOUND(f"there is no bound for {node.op_type}"))
        if node.domain and node.op_type != "Gelu":
            raise Undecidable(NO_BOUND(f"there is no bound for {node.op_type}"))
        if node.op_type in STANDARD:
            return [STANDARD[node.op_type](node, tracer, self.of)]
        first = next((value for value in node.inputs if value is not None), None)
        if first is None:
            raise Undecidable(NO_BOUND(f"there is no bound for {node.op_type}"))
        if node.op_type in CURVES:
            return [apply(node, tracer.quantity(self.of(first)), tracer)]
        if node.op_type in MOVEMENTS:
            return self._moved(node, self.of(first), tracer)
        raise Undecidable(NO_BOUND(f"there is no bound for {node.op_type}"))

    def _moved(self, node: ir.Node, x: Operand, tracer: QuantityTracer) -> Sequence[Operand]:
        q = tracer.quantity(x)
        result = move(node, q, self._atoms, self.executed)
        if len(node.outputs) == 1:
            return [result]
        if node.op_type != "Split":
            return [result]
        parts = []
        for place in range(len(node.outputs)):
            ends = result.low, result.high
            terms = tuple(
                (
                    c,
                    self._atoms.make(
                        "moved", ("part", place), (Combination.of(a),), (a.low, a.high)
                    ),
                )
                for c, a in result.meant.terms
            )
            meant = replace(result.meant, terms=terms)
            parts.append(replace(result, meant=meant, low=ends[0], high=ends[1]))
        return parts

    def _traced(self, node: ir.Node, tracer: QuantityTracer) -> Operand:
        """Return the result of a node that is a primitive or has a definition."""
        known = {}
        for value in node.inputs:
            if value is None:
                continue
            if value in self.reasons and not self._known.has(value):
                raise Undecidable(self.reasons[value])
            is_first = value is node.inputs[0]
            if (
                not self._known.has(value)
                or (is_first and value not in self.reasons)
                or operator_of(node) is None
            ):
                known[value] = self.of(value)
        shape = _shape(node)
        try:
            # Definitions are written over any primitives; expressions are one kind of them.
            primitives: Any = tracer
            operands: Any = known
            result: Any = lower_node(node, operands, shape, primitives, constants=self.executed)
        except OperatorError as error:
            raise Undecidable(NOT_COMPUTED(str(error))) from error
        if not isinstance(result, Quantity | Pending):
            raise Undecidable(NO_BOUND(f"there is no bound for {node.op_type}"))
        kind = node.outputs[0].dtype
        if kind is None or not kind.is_integer() or node.op_type not in _WRAPPING:
            return result
        return _expect_no_wrap(tracer.quantity(result), node, np.iinfo(kind.numpy()))


_WRAPPING = frozenset({"Add", "Sub", "Mul", "Neg", "Abs", "Div", "Pow", "Sum"})
"""Operators on integers, whose results wrap around or are truncated."""


def _expect_no_wrap(result: Quantity, node: ir.Node, limits: np.iinfo[Any]) -> Quantity:
    """Return integers if they do not wrap around.

    Raises:
        Undecidable: they may.
    """
    is_inside = (result.low >= limits.min).all() and (result.high <= limits.max).all()
    if node.op_type in ("Div", "Pow") or not is_inside:
        raise Undecidable(OUT_OF_RANGE(f"{node.op_type} of integers may leave their range"))
    return result


def _expect_fit(value: ir.Value, result: Operand) -> None:
    """Check that the numbers of a quantity broadcast to the tensor.

    Raises:
        Undecidable: they do not, so the node has no such result.
    """
    if isinstance(result, Pending) or result.value is not None:
        return
    coefficients = [coefficient for coefficient, _ in result.meant.terms]
    shape = list(value.shape or ())
    for array in (result.low, result.high, result.absolute, result.relative, *coefficients):
        sizes = shape[len(shape) - array.ndim :] if array.ndim <= len(shape) else []
        pairs = zip(array.shape, sizes, strict=False)
        fits = all(a in (1, b) or not isinstance(b, int) for a, b in pairs)
        if array.size > 1 and not (sizes and fits):
            raise Undecidable(DO_NOT_FIT(f"parameters do not fit the shape of {value.name!r}"))


def _shape(node: ir.Node) -> tuple[int | None, ...]:
    value = node.inputs[0]
    if value is None or value.shape is None:
        return ()
    return tuple(n if isinstance(n, int) else None for n in value.shape.dims)
