"""The functions, ranges and errors of all values of one model, for the checker of bounds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from qgraph.errors import UnsupportedError
from qgraph.graph.constants import clip_limits
from qgraph.numerics import Array, Float64
from qgraph.numerics.formats import numpy_dtype
from qgraph.ops.approximation import (
    ARITHMETIC,
    FLOAT32,
    FloatType,
    multiple_of,
    rounded,
    sum_of,
)
from qgraph.ops.moved_elements import Sizes
from qgraph.ops.operator import operator_of
from qgraph.verify.ideals import (
    ENDLESS,
    NOTHING,
    UNKNOWN,
    WHOLE,
    Basis,
    Executed,
    Ideal,
    TracedRounding,
    fixed,
    rounding_of,
)
from qgraph.verify.reading import FAILURES, QUANTIZERS, Reading, code_range, need

Operation = Callable[..., Float64]
Rule = Callable[["Trace", ir.Node], Executed]
"""Returns the first result of a node."""

_EXACT = frozenset({"Add", "Sub", "Sum", "Mul", "MatMul", "Gemm", "Conv"})
_ARITHMETIC = _EXACT | {"Div", "AveragePool", "GlobalAveragePool"}
_WHOLE = 1 << 53
ON_CODES = frozenset({"QLinearConv", "QLinearMatMul"})

_FEW_NUMBERS = 4096
"""Maximum number of elements of constants that are kept; larger ones are used once."""


class Trace:
    """The functions, ranges and errors of all values of a model.

    Args:
        side, inputs: the model, and its inputs as functions and ranges.
        settle: called with a result and its rounding; returns its codes, or None for new ones.
        order: the number of terms in a chunk, and the type in which 16-bit types are added.
        rules: rules by operator.
        ends: ends of segments. If an end has no bound, all of its codes are assumed to occur.
        primes: prime numbers in place of open sizes; the attribute has them by size.
    """

    def __init__(
        self,
        side: Reading,
        inputs: Mapping[ir.Value, Executed],
        settle: Callable[[ir.Value, TracedRounding], Ideal | None],
        order: tuple[int | None, str],
        rules: Mapping[str, Rule],
        ends: Collection[ir.Value],
        primes: Sequence[int],
    ) -> None:
        self.roundings: dict[ir.Value, TracedRounding] = {}
        self._side, self._settle, self._order, self._rules = side, settle, order, rules
        self._ends = ends
        self._shapes, self.primes = side.shapes(primes)
        self._values: dict[ir.Value, Executed] = dict(inputs)
        self._unknown: dict[ir.Value, str] = {}
        with np.errstate(all="ignore"):
            for node in side.graph:
                if not all(map(side.has, node.outputs)):
                    self._enter(node)

    def of(self, value: ir.Value | None) -> Executed:
        """Return the function, range and error of a value."""
        if value is None:
            raise UnsupportedError("an operand is missing")
        if value in self._values:
            return self._values[value]
        if value in self._unknown:
            raise UnsupportedError(self._unknown[value])
        constant = self._constant(value)
        if constant.meant.offset.size <= _FEW_NUMBERS:
            self._values[value] = constant
        return constant

    def expect_rounding(self, value: ir.Value) -> None:
        """Raise UnsupportedError if no known rounding has this result."""
        if value in self._unknown:
            raise UnsupportedError(self._unknown[value])
        self.of(value)  # raises what is wrong before it
        need(value in self.roundings, "it ends at no rounding that the checker knows")

    def _enter(self, node: ir.Node) -> None:
        rule, value = self._rules.get(node.op_type), node.outputs[0]
        try:
            is_known = not node.domain or operator_of(node) is not None
            if rule is None or node.domain == "com.microsoft" or not is_known:
                raise UnsupportedError(f"the checker has no bound for {node.op_type}")
            result = rule(self, node)
            _expect_whole(node, result)
            self._values[value] = result
        except FAILURES as error:
            self._unknown.update(dict.fromkeys(node.outputs, str(error)))
            if value in self._ends:
                self._assume_codes(node, value)

    def _assume_codes(self, node: ir.Node, value: ir.Value) -> None:
        """Assume that a result takes all codes of its type; no bound of them is checked."""
        unknown, data = Executed(Ideal.of(UNKNOWN), -ENDLESS, ENDLESS), node.inputs[0]
        with contextlib.suppress(*FAILURES):
            if node.op_type in QUANTIZERS and data in self._unknown and data not in self._values:
                self._values[data] = unknown
                try:
                    result = self._rules[node.op_type](self, node)
                finally:
                    del self._values[data]
            else:
                zero = self.of(node.inputs[7]).numbers if node.op_type in ON_CODES else NOTHING
                ends = *range_of_codes(value), zero.reshape(())
                result = self.quantized(node, unknown, "Round", ends)
            self._values[value] = result

    def shape(self, value: ir.Value | None) -> Sizes:
        """Return the shape of a value."""
        shape = None if value is None else self._shapes.get(value)
        if shape is None:
            raise UnsupportedError("the rank of a tensor is not known")
        return shape

    def _constant(self, value: ir.Value) -> Executed:
        """Return a constant; its ideal numbers follow from the rule of its node, if any."""
        array, node = self._side.array(value), value.producer()
        if array is None or array.dtype.kind not in "iubfV":
            raise UnsupportedError(f"{value.name!r} has no numbers that the checker knows")
        numbers = array.astype(np.float64)
        rule = None if node is None else self._rules.get(node.op_type)
        if node is not None and rule is not None and node.inputs and node.outputs[0] is value:
            with contextlib.suppress(*FAILURES):
                own = rule(self, node)
                if own.value is not None and np.array_equal(own.value, numbers):
                    return own
        return fixed(numbers)

    def adding(self, node: ir.Node) -> FloatType:
        """Return the arithmetic of the additions of a node."""
        chunk, accumulate = self._order
        own = precision_of(node)
        need(accumulate == "own" or own is FLOAT32, "16-bit sums that are added in another type")
        return replace(own, chunk=chunk)

    def _folded(
        self, node: ir.Node, operation: Operation, a: Executed, b: Executed, *factors: Array
    ) -> Executed:
        """Return an operation on constants, in the type of a node and in real arithmetic."""
        executed = operation(*(c.numbers.astype(np.float32) for c in (a, b)))
        stored = executed.astype(numpy_dtype(precision_of(node).name)).astype(np.float64)
        ideal = np.asarray(operation(a.meant.offset, b.meant.offset))
        return fixed(stored, ideal, (factors[0], factors[1]) if factors else None)

    def times(self, node: ir.Node, x: Executed, factor: Executed) -> Executed:
        """Return a product with a constant, rounded."""
        if x.is_constant:
            scale, *codes = x.factors or (NOTHING,)
            own = (scale * factor.meant.offset, *codes) if codes else ()
            return self._folded(node, np.multiply, x, factor, *own)
        return rounded(multiple_of(x, factor.meant.offset, factor.numbers), precision_of(node))

    def sum(self, node: ir.Node, a: Executed, b: Executed, sign: float = 1.0) -> Executed:
        """Return a sum or difference, rounded."""
        for x, other in ((a, b), (b, a)):
            is_moving = other.value is None or other.value.any() or other.meant.offset.any()
            if not is_moving and (x is a or sign > 0):
                return x
        if a.is_constant and b.is_constant:
            return self._folded(node, np.add if sign > 0 else np.subtract, a, b)
        return rounded(sum_of(a, b, sign), precision_of(node))

    def over(self, node: ir.Node, x: Executed, by: Executed) -> Executed:
        """Return a quotient by a constant, rounded."""
        need(by.numbers.all() and by.meant.offset.all(), "a division by 0 has no bound")
        if x.is_constant:
            return self._folded(node, np.divide, x, by)
        exact = multiple_of(x, 1 / by.meant.offset, 1 / by.numbers)
        if (np.abs(np.frexp(by.numbers)[0]) != 0.5).any():
            exact = replace(exact, unit=None)
        return rounded(exact, precision_of(node))

    def limits(self, node: ir.Node) -> tuple[Float64, Float64]:
        """Return the limits of a Clip or Relu."""
        low, high = clip_limits(node) or (None, None)
        if low is None or high is None:
            raise UnsupportedError("the limits of a Clip are not known")
        need(low <= high, "the limits of a Clip are in reverse order")
        return np.asarray(low), np.asarray(high)

    def limits_behind(self, value: ir.Value) -> tuple[float, float]:
        """Return the limits of Clips after a value that nothing else uses."""
        low, high = -np.inf, np.inf
        while [(u.domain, u.op_type) for u in value.consumers()] == [("", "Clip")]:
            if value.is_graph_output():
                break
            (clip,) = value.consumers()
            first, last = self.limits(clip)
            low, high, value = max(low, float(first)), min(high, float(last)), clip.outputs[0]
        return low, high

    def quantized(
        self, node: ir.Node, before: Executed, rounding: str, ends: tuple[Float64, Float64, Float64]
    ) -> Executed:
        """Return ``clip(round(before) + zero, low, high)``, including following limits."""
        value, (low, high, zero) = node.outputs[0], ends
        # other quantizers decode: what follows limits no codes
        is_coded = node.op_type == "QuantizeLinear" or node.op_type not in QUANTIZERS
        least, most = self.limits_behind(value) if is_coded else (-np.inf, np.inf)
        low, high = np.maximum(low, least) - zero, np.minimum(high, most) - zero
        if before.is_constant:
            return fixed(np.clip(WHOLE[rounding](before.numbers), low, high) + zero)
        rounded = rounding_of(rounding, before, (low, high))
        own = Ideal.of(Basis(("codes", id(value)), *rounded.ends))
        codes = self._settle(value, rounded) or own
        self.roundings[value] = replace(rounded, codes=codes)
        result = Executed(codes, *codes.range, unit=np.ones(()))
        return sum_of(result, fixed(zero)) if zero.any() else result


def _expect_whole(node: ir.Node, result: Executed) -> None:
    """Check that an operator on integers does not round them, nor lets them wrap around."""
    dtype = node.outputs[0].dtype
    if node.op_type not in _ARITHMETIC or dtype is None or not dtype.is_integer():
        return
    low, high = code_range(dtype)
    is_exact = (result.low >= max(low, -_WHOLE)).all() and (result.high <= min(high, _WHOLE)).all()
    is_kept = node.op_type in _EXACT and is_exact
    need(is_kept, f"integers of {node.op_type} may be rounded or wrap around")


def range_of_codes(value: ir.Value) -> tuple[Float64, Float64]:
    """Return the first and the last code of the type of a value."""
    if value.dtype is None or not value.dtype.is_integer():
        raise UnsupportedError("the type of codes is not known")
    low, high = code_range(value.dtype)
    return np.asarray(float(low)), np.asarray(float(high))


def is_whole(value: ir.Value) -> bool:
    """Return whether the type of a value is an integer type."""
    return value.dtype is not None and value.dtype.is_integer()


def input_of(value: ir.Value, limits: tuple[float, float] | None) -> Executed:
    """Return an input of a model, within limits if they are given."""
    low, high = range_of_codes(value) if is_whole(value) else (-ENDLESS, ENDLESS)
    if limits is not None:
        low, high = map(np.asarray, map(float, limits))
    basis = Basis(("input", str(value.name)), low, high)
    return Executed(Ideal.of(basis), low, high, unit=np.ones(()) if is_whole(value) else None)


def precision_of(node: ir.Node) -> FloatType:
    """Return the type in which a node rounds."""
    kinds = [v.dtype.name for v in (*node.inputs[:1], *node.outputs) if v and v.dtype]
    return next((ARITHMETIC[name] for name in kinds if name in ARITHMETIC), FLOAT32)
