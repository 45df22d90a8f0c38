"""Sums and products of two tensors of codes: QLinearAdd and QLinearMul of com.microsoft."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from qgraph.graph.edit import Draft, Operand
from qgraph.graph.schema import MICROSOFT, OpKey
from qgraph.graph.scopes import inputs_of
from qgraph.numerics import Array, Float32
from qgraph.numerics.float32 import multiply_add
from qgraph.ops.integer.codes import fused_in_double, ratio, saturated, shifted
from qgraph.ops.integer.forms import draft_codes, draft_offset_codes
from qgraph.ops.integer.kernels import code_kernel
from qgraph.ops.integer.products import read_encoding, read_single, refuse_references
from qgraph.ops.integer.sums import Factor, cast
from qgraph.ops.operator import operator_of

OPERATIONS = {OpKey(MICROSOFT, "QLinearAdd"): "Add", OpKey(MICROSOFT, "QLinearMul"): "Mul"}
_REAL, _WIDE = ir.DataType.FLOAT, ir.DataType.DOUBLE


def read_pair(node: ir.Node) -> Pair | None:
    """Return the sum or product that a node computes; None for other operators.

    Raises:
        OperatorError: a parameter is not constant.
    """
    operation = OPERATIONS.get(OpKey.of(node))
    if operation is None:
        return None
    refuse_references(node)
    a, s_a, z_a, b, s_b, z_b, s_y, z_y = inputs_of(node, 8)
    left = read_single(node, a, s_a, z_a, b, z_b, z_y)
    right = read_single(node, b, s_b, z_b, a, z_a, z_y)
    return Pair(operation, left, right, *read_encoding(node, s_y, z_y, left.dtype))


@dataclass(frozen=True, eq=False)
class Pair:
    """A sum or product (Add or Mul) of two tensors of codes.

    The zero point of the result is of the type of all codes.
    """

    operation: str
    a: Factor
    b: Factor
    scale: Array
    zero: Array

    @property
    def name(self) -> str:
        """The operator of com.microsoft."""
        return f"QLinear{self.operation}"

    def table(self) -> Array:
        """Return the result of the operator for every pair of codes, ``[256, 256]``."""
        kernel = code_kernel(ir.node(self.name, [], domain=MICROSOFT))
        (left, a), (right, b) = self._every
        return np.asarray(kernel(left, *a, right, *b, self.scale, self.zero)[0])

    def table_of_reals(self) -> Array:
        """Return the result with real numbers for every pair of codes, ``[256, 256]``."""
        with np.errstate(all="ignore"):
            a, b = (shifted(codes, z, np.float32) * s for codes, (s, z) in self._every)
            y = a + b if self.operation == "Add" else a * b
        quantize = ir.node("QuantizeLinear", [ir.val(name) for name in "ysz"])
        operator = operator_of(quantize)
        if operator is None:
            raise AssertionError("there is a kernel of QuantizeLinear")
        return operator.run(quantize, [y, self.scale, self.zero])

    @property
    def _every(self) -> tuple[tuple[Array, tuple[Array, Array]], ...]:
        """All codes as a column and as a row, each with scale and zero point."""
        limits = np.iinfo(self.zero.dtype)
        every = np.arange(limits.min, limits.max + 1).astype(self.zero.dtype)
        a, b = self.a.stored_parameters, self.b.stored_parameters
        return (every[:, None], a), (every[None, :], b)

    def draft_reals(self, draft: Draft) -> Operand:
        """Draft the operation on real numbers."""
        operands = [self.a.draft_reals(draft), self.b.draft_reals(draft)]
        y = draft.node(self.operation, operands, dtype=_REAL)
        return draft.node("QuantizeLinear", [y, self.scale, self.zero])

    @property
    def is_exact(self) -> bool:
        """Whether :meth:`draft_exact` has the result of the operator for every pair of codes.

        A product has: it multiplies whole numbers, then does the operations of the kernel.
        """
        with np.errstate(all="ignore"):
            if self.operation == "Mul":
                return bool(np.isfinite(self._multiplier))
            is_finite = np.isfinite(self._terms).all()
        return bool(is_finite) and np.array_equal(self.table_of_exact(), self.table())

    def table_of_exact(self) -> Array:
        """Return the sum of :meth:`draft_exact` for every pair of codes, ``[256, 256]``."""
        (left, _), (right, _) = self._every
        with np.errstate(all="ignore"):
            r_a, r_b, start = self._terms
            y = fused_in_double(left, r_a, fused_in_double(right, r_b, start))
        return saturated(y, self.zero)

    def draft_exact(self, draft: Draft) -> Operand:
        """Draft the operation as the kernel computes it.

        A product of whole numbers gets the zero point before it is rounded. A sum has its fused
        operations in float64, which holds the product of a code and a float32; float32 then rounds
        the sum a second time, see :meth:`table_of_exact`.
        """
        if self.operation == "Mul":
            factors = [each.draft_difference(draft, _REAL) for each in (self.a, self.b)]
            y = draft.op.Mul(draft.op.Mul(*factors), self._multiplier)
            return draft_offset_codes(draft, y, self.zero)
        r_a, r_b, start = self._terms
        right = _fused(draft, self.b.codes, r_b, np.asarray(start, np.float64))
        y = _fused(draft, self.a.codes, r_a, cast(draft, right, _WIDE))
        return draft_codes(draft, y, np.zeros((), self.zero.dtype))

    @property
    def _multiplier(self) -> Float32:
        (s_a, _), (s_b, _) = self.a.stored_parameters, self.b.stored_parameters
        return ratio(s_a, s_b, self.scale)

    @property
    def _terms(self) -> tuple[Array, Array, Float32]:
        """The factors of both codes, and what is added to the sum, in steps of the result."""
        (s_a, z_a), (s_b, z_b) = self.a.stored_parameters, self.b.stored_parameters
        r_a, r_b = s_a / self.scale, s_b / self.scale
        own, other = (zero.astype(np.float32) for zero in (z_a, z_b))
        return r_a, r_b, self.zero.astype(np.float32) - multiply_add(own, r_a, other * r_b)


def _fused(draft: Draft, codes: ir.Value, factor: Array, added: Operand) -> ir.Value:
    """Draft ``codes * factor + added`` in float64, rounded to float32."""
    constant = draft.constant(np.asarray(factor, np.float64), "ratio")
    product = draft.node("Mul", [cast(draft, codes, _WIDE), constant], dtype=_WIDE)
    return cast(draft, draft.node("Add", [product, added], dtype=_WIDE), _REAL)
