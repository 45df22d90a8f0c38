"""Evaluate a model on quantities (ideal functions, ranges and errors), node by node.

A node without a rule is evaluated by its definition in primitives. If it has none, its result has
no quantity. Segments that depend on it are undecided, with the reason of this node. All other
values are still evaluated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from qgraph.effort import is_over, step
from qgraph.errors import OperatorError
from qgraph.graph.constants import array_of
from qgraph.graph.schema import versions_of
from qgraph.graph.scopes import operands
from qgraph.graph.sizes import fixed_sizes
from qgraph.numerics import Array, Float64
from qgraph.numerics.minifloat import MINIFLOATS
from qgraph.numerics.primitives import NUMPY
from qgraph.ops.approximation import ARITHMETIC, FEW_NUMBERS, FloatType, coarsest
from qgraph.ops.composite import composite_of, write_out
from qgraph.ops.known_values import KnownValues
from qgraph.ops.operator import operator_of
from qgraph.proof.bounds.combination import Atoms, Combination
from qgraph.proof.bounds.quantity import (
    Constant,
    ConstantTracer,
    Known,
    Operand,
    Pending,
    Quantity,
    Settle,
    constant,
    holds_numbers,
    stored,
)
from qgraph.proof.bounds.rule import NodeCall, expect_no_repeats, rule_of
from qgraph.proof.bounds.small_constants import SmallConstants
from qgraph.proof.bounds.tracer import QuantityTracer
from qgraph.proof.functions.lowering import Shape, lower_node
from qgraph.proof.matching.operators import label
from qgraph.reasons import (
    DO_NOT_FIT,
    NO_BOUND,
    NOT_COMPUTED,
    OUT_OF_RANGE,
    OUT_OF_TIME,
    ExplainedReason,
    Undecidable,
)

Ranges = Mapping[str, tuple[float, float]]
"""Ranges of the inputs of the reference, by name."""

Opaque = Callable[[ir.Value], Quantity | None]
"""Returns the quantity of a result without a rule; None if there is none."""


def written_out(model: ir.Model) -> bool:
    """Replace operators without a rule by the graphs that define them; return if there were any."""
    composites = [node for node in model.graph if rule_of(node) is None and composite_of(node)]
    write_out(model, composites)
    return bool(composites)


_QUANTIZERS = frozenset({"FakeQuantize", "IntQuant", "Quant", "QuantizeLinear"})


class Evaluation:
    """The quantities of one model.

    ``inputs`` are keys, by name of a graph input, that are equal for the same input of both models;
    ``ranges`` are given by these keys. Sums of 16-bit floats are added in the type ``accumulate``,
    or in their own, ``chunk`` terms in sequence, or in any order. ``opaque`` returns quantities of
    results without a rule. ``limits`` are upper bounds of open sizes, by their texts.

    Attributes:
        values: the quantity or constant of each value.
        reasons: why the other values have none.
        named: the values with a quantity or constant, by name.
        decoded: codes minus zero points that are not values of the graph.
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
        opaque: Opaque = lambda _: None,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        self.values: dict[ir.Value, Operand] = {}
        self.named: dict[str | None, ir.Value] = {}
        self.reasons: dict[ir.Value, ExplainedReason] = {}
        self.decoded: list[Quantity] = []
        self._atoms = atoms
        self._settle = settle
        self._small = SmallConstants()
        self._accumulate = accumulate
        self._chunk = chunk
        self._opaque = opaque
        self._known = KnownValues(versions_of(model.opset_imports))
        self._known.enter(model.graph)
        for value in model.graph.inputs:
            key = inputs.get(str(value.name), str(value.name))
            self._store(value, entered(atoms, value, key, ranges.get(key)))
        self._nodes = list(model.graph)
        self._first: dict[Hashable, ir.Node] = {}
        self._dropped: set[ir.Value] = set()
        self._limits = limits or {}
        self._unbounded: dict[int, ExplainedReason] = {}
        self._factors: dict[ir.Value, tuple[Float64, Array]] = {}

    def run(self) -> None:
        """Evaluate all nodes; raise Undecidable if the time limit is reached."""
        users = Counter(value for node in self._nodes for value in operands(node))
        for number, node in enumerate(self._nodes):
            if is_over():
                raise Undecidable(OUT_OF_TIME(f"{number} of {len(self._nodes)} nodes were bounded"))
            step("bounding segments", number, len(self._nodes))
            self._enter(node)
            for value in operands(node):
                users[value] -= 1
                if not users[value]:
                    self._forget(value)

    def _forget(self, value: ir.Value) -> None:
        """Drop the quantities of large weights, which need several times their memory."""
        operand = self.values.get(value)
        if not isinstance(operand, Quantity) or operand.value is None:
            return
        if operand.value.size > FEW_NUMBERS and not value.is_graph_output():
            if operand.factors is not None and operand.factors[0].size <= FEW_NUMBERS:
                self._factors[value] = operand.factors
            del self.values[value]
            self._dropped.add(value)

    def _store(self, value: ir.Value, operand: Operand) -> None:
        self.values[value] = operand
        self.named[value.name] = value

    def _enter(self, node: ir.Node) -> None:
        twin = self._first.setdefault(self._key(node), node)
        if twin is not node and twin.outputs[0] in self.values:
            self._store(node.outputs[0], self.values[twin.outputs[0]])
            return
        try:
            results = self._results(node)
            if any(isinstance(r, Quantity) and r.value is None for r in results):
                results = self._constants(node) or results
            for value, result in zip(node.outputs, results, strict=False):
                _expect_fit(value, result)
        except (Undecidable, ValueError, IndexError) as raised:
            error = raised
            if not isinstance(error, Undecidable):
                error = Undecidable(NOT_COMPUTED(f"{node.op_type}: {raised}"))
            results = self._constants(node)
            if not results:
                reason = self._cause(node, error.reason)
                for value in node.outputs:
                    self.reasons[value] = reason
                    if (opaque := self._opaque(value)) is not None:
                        self._store(value, opaque)
                        self._unbounded |= dict.fromkeys(opaque.meant.leaves, reason)
                return
        for value, result in zip(node.outputs, results, strict=False):
            self._store(value, result)

    def _cause(self, node: ir.Node, reason: ExplainedReason) -> ExplainedReason:
        """Return why a node has no bound; if the range of data is missing, why it is."""
        used = operands(node) if reason.id == OUT_OF_RANGE.id else ()
        known = (self.values.get(value) for value in used)
        leaves = (x.meant.leaves for x in known if isinstance(x, Quantity))
        reasons = (self._unbounded.get(leaf) for own in leaves for leaf in sorted(own))
        return next(filter(None, reasons), reason)

    def _key(self, node: ir.Node) -> Hashable:
        """Return a key that is equal for quantizers that give equal codes of the same data."""
        if node.op_type not in _QUANTIZERS or len(node.outputs) != 1:
            return node
        parameters = [None if v is None else self._known.array(v) for v in node.inputs[1:]]
        numbers = [None if a is None else (a.dtype.str, a.shape, a.tobytes()) for a in parameters]
        operands = [v if a is None else a for v, a in zip(node.inputs[1:], numbers, strict=True)]
        return label(node, self.imports), node.inputs[0], tuple(operands)

    def _constants(self, node: ir.Node) -> Sequence[Operand]:
        """Return constant results of a node without a rule, computed by its kernel."""
        arrays = [self._known.array(v) for v in node.outputs if self._known.has(v)]
        numbers = [constant(a) for a in arrays if a is not None and holds_numbers(a)]
        return numbers if len(numbers) == len(node.outputs) else []

    def known(self, value: ir.Value) -> Operand | None:
        """Return the quantity or constant of a value, or None; evaluate dropped weights again."""
        maker = value.producer()
        if value in self._dropped and value not in self.values and maker is not None:
            self._enter(maker)
        return self.values.get(value)

    def of(self, value: ir.Value) -> Operand:
        """Return what is known of a value; raise Undecidable if nothing is."""
        if (operand := self.known(value)) is not None:
            return operand
        if value in self.reasons:
            raise Undecidable(self.reasons[value])
        array = array_of(value)
        if array is None or not holds_numbers(array):
            raise Undecidable(NOT_COMPUTED(f"{value.name!r} has no numbers"))
        self._store(value, self._small.of(array))
        return self.values[value]

    @property
    def imports(self) -> Mapping[str, int]:
        """Versions of the operator sets, by domain."""
        return self._known.imports

    def executed(self, value: ir.Value | None) -> Array | None:
        """Return the executed elements of a constant; None for data."""
        return None if value is None else self._known.array(value)

    def meant(self, value: ir.Value) -> Float64:
        """Return the elements of a constant in real arithmetic; raise Undecidable for data."""
        if value in self._factors:
            scales, codes = self._factors[value]
            return np.asarray(scales * codes)
        operand = self.known(value)
        if not isinstance(operand, Pending) and (operand is None or operand.value is None):
            stored = self._known.array(value)
            if stored is not None and stored.dtype.kind == "f" and np.isinf(stored).any():
                return np.asarray(stored, np.float64)  # such as a mask of minus infinity
            operand = self.of(value)
        if isinstance(operand, Pending) or operand.value is None:
            raise Undecidable(NOT_COMPUTED(f"{value.name!r} is not constant"))
        return np.broadcast_to(operand.meant.offset, operand.value.shape)

    def _call(self, node: ir.Node) -> NodeCall:
        arithmetic = replace(_arithmetic(node), chunk=self._chunk)
        tracer = QuantityTracer(self._atoms, self._settle, node, arithmetic, self._small)
        sums = arithmetic
        if self._accumulate is not None:
            sums = replace(ARITHMETIC[self._accumulate], chunk=self._chunk)
        return NodeCall(
            node, tracer, self.of, self.executed, self.imports, sums, self.decoded, self._limits
        )

    def _results(self, node: ir.Node) -> Sequence[Operand]:
        expect_no_repeats(node, self.executed)
        call, rule = self._call(node), rule_of(node)
        if rule is not None:
            results = rule(call)
            return results if isinstance(results, Sequence) else [results]
        if operator_of(node) is None and (node.domain != "" or node.op_type not in NUMPY):
            raise call.refusal()
        return [traced(call)]


def entered(
    atoms: Atoms, value: ir.Value, key: Hashable, limits: tuple[float, float] | None = None
) -> Quantity:
    """Return the quantity of data at which segments begin, such as an input.

    ``key`` is equal for equal data of both models; without ``limits``, the range is that of the
    type.
    """
    unit, kind = None, "input"
    if value.dtype is not None and value.dtype.is_integer():
        kind = "integers"
        ends, unit = ml_dtypes.iinfo(value.dtype.numpy()), 1.0  # type: ignore[no-untyped-call]
        limits = limits or (float(ends.min), float(ends.max))
    elif value.dtype is not None and value.dtype.name in MINIFLOATS:
        form = MINIFLOATS[value.dtype.name]
        limits = limits or (form.lo, form.hi)
        unit = 2.0 ** (1 - form.bias - form.mantissa_bits)
    low, high = (np.asarray(end, np.float64) for end in limits or (-np.inf, np.inf))
    atom = atoms.make(kind, key, (), (low, high))
    granule = None if unit is None else np.asarray(unit)
    return Quantity(Combination.of(atom), low, high, unit=granule)


def _arithmetic(node: ir.Node) -> FloatType:
    values = (*node.inputs, *node.outputs)
    names = [value.dtype.name for value in values if value is not None and value.dtype is not None]
    arithmetic = coarsest([ARITHMETIC[name] for name in names if name in ARITHMETIC])
    # float64 rounds less than float32 does, but is not float32
    return replace(arithmetic, name="DOUBLE") if "DOUBLE" in names else arithmetic


def _expect_fit(value: ir.Value, result: Operand) -> None:
    """Check that the numbers of a quantity broadcast to the tensor, and that integers are exact.

    Raises Undecidable if they do not, so the node is invalid; or if integers are bounded like
    floats, which are rounded where integers wrap around or are cut off.
    """
    if isinstance(result, Pending) or result.value is not None:
        return
    if value.dtype is not None and value.dtype.is_integer() and not result.is_exact:
        raise Undecidable(NO_BOUND(f"integers {value.name!r} may leave their range or be cut off"))
    coefficients = [coefficient for coefficient, _ in result.meant.terms]
    shape = list(value.shape or ())
    for array in (result.low, result.high, result.absolute, result.relative, *coefficients):
        sizes = shape[len(shape) - array.ndim :] if array.ndim <= len(shape) else []
        pairs = zip(array.shape, sizes, strict=False)
        fits = all(a in (1, b) or not isinstance(b, int) for a, b in pairs)
        if array.size > 1 and not (sizes and fits):
            raise Undecidable(DO_NOT_FIT(f"parameters do not fit the shape of {value.name!r}"))


def traced(call: NodeCall) -> Operand:
    """Return the result of a node that is a primitive or has a definition, or raise Undecidable."""
    node, tracer = call.node, call.tracer
    is_defined = operator_of(node) is not None
    values = []
    for index, value in enumerate(node.inputs):
        # Parameters are laid out along their axis.
        is_parameter = is_defined and index > 0 and call.array(value) is not None
        if value is not None and not is_parameter:
            values.append(value)
    constants = _constants(values, call)
    dtype = node.outputs[0].dtype
    types = {value.dtype for value in (*values, *node.outputs)}
    tracer.is_whole = all(each is not None and each.is_integer() for each in types)
    try:
        # Definitions are written over any primitives; expressions are one kind of them.
        primitives: Any = tracer if constants is None else ConstantTracer()
        operands: Any = constants or {value: call.of(value) for value in values}
        result: Any = lower_node(node, operands, shape_of_data(node), primitives, call.array)
    except OperatorError as error:
        raise Undecidable(NOT_COMPUTED(str(error))) from error
    if isinstance(result, Constant):
        result = result.quantity
    if not isinstance(result, Quantity | Pending):
        raise call.refusal()
    if tracer.is_whole and dtype is not None and node.op_type in _WRAPPING:
        return _expect_no_wrap(tracer.quantity(result), node, np.iinfo(dtype.numpy()))
    if isinstance(result, Pending) or dtype is None:
        return result
    return stored(result, dtype.name)


def _constants(values: Sequence[ir.Value], call: NodeCall) -> dict[ir.Value, Constant] | None:
    """Return operands that are all constant; None if one is data. All must have a quantity."""
    constants: dict[ir.Value, Constant] = {}
    for value in values:
        array = array_of(value)
        if array is not None and array.dtype.kind not in _NO_NUMBERS:
            constants[value] = Constant(array)
            continue
        known = call.of(value)
        if isinstance(known, Pending) or known.value is None:
            return None
        constants[value] = Known(known)
    return constants


_NO_NUMBERS = "cOSUmM"


def shape_of_data(node: ir.Node) -> Shape:
    """Return the shape of the first operand; empty if it is not known."""
    value = node.inputs[0]
    return () if value is None else fixed_sizes(value) or ()


_WRAPPING = frozenset({"Add", "Sub", "Mul", "Neg", "Abs", "Div", "Pow", "Sum"})
"""Operators on integers, whose results wrap around or are truncated."""
_EXACT = 1 << 53
"""Largest magnitude up to which float64 ranges of integers are exact."""


def _expect_no_wrap(result: Quantity, node: ir.Node, limits: np.iinfo[Any]) -> Quantity:
    first, last = max(limits.min, -_EXACT), min(limits.max, _EXACT)
    is_inside = (result.low >= first).all() and (result.high <= last).all()
    if node.op_type in ("Div", "Pow") or not is_inside:
        raise Undecidable(OUT_OF_RANGE(f"{node.op_type} of integers may leave their range"))
    return result
