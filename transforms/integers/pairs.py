"""Lowering and raising of QLinearAdd and QLinearMul of com.microsoft."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.edit import Draft, Operand
from qgraph.graph.schema import MICROSOFT
from qgraph.numerics import Array, Float32
from qgraph.numerics.float32 import multiply_add
from qgraph.ops.integer.codes import fused_in_double, ratio, saturated, shifted
from qgraph.ops.integer.decoded import decoder, parameters, result_parameters
from qgraph.ops.integer.forms import compare_tables, draft_codes
from qgraph.ops.integer.kernels import code_kernel
from qgraph.ops.integer.products import read_encoding, read_single, refuse_references
from qgraph.ops.integer.sums import Factor, cast
from qgraph.ops.operator import operator_of
from qgraph.transforms.drafts.rebuilding import Rebuild
from qgraph.transforms.integers.products import only_source

_OPERATIONS = {"QLinearAdd": "Add", "QLinearMul": "Mul"}
_OPSET = 10
_REAL, _WIDE = ir.DataType.FLOAT, ir.DataType.DOUBLE


def lower_pair(node: ir.Node, *, reals: bool) -> Rebuild | None:
    """Return the lowering of a node, exact or with real numbers; None for other operators.

    Raises:
        OperatorError: a parameter is not constant.
    """
    if node.domain != MICROSOFT or node.op_type not in _OPERATIONS:
        return None
    refuse_references(node)
    inputs: list[ir.Value | None] = [*node.inputs, *[None] * (8 - len(node.inputs))]
    a, s_a, z_a, b, s_b, z_b, s_y, z_y = inputs
    left = read_single(node, a, s_a, z_a, b, z_b, z_y)
    right = read_single(node, b, s_b, z_b, a, z_a, z_y)
    pair = Pair(_OPERATIONS[node.op_type], left, right, *read_encoding(node, s_y, z_y, left.dtype))
    if reals:
        verdict = compare_tables(pair.table_of_reals(), pair.table(), "pairs of codes")
        return Rebuild(node, (node,), verdict, pair.draft_reals, _OPSET)
    if pair.operation == "Add":
        verdict = compare_tables(pair.table_of_sums(), pair.table(), "pairs of codes")
        return Rebuild(node, (node,), verdict, pair.draft_sum, _OPSET)
    verdict = Verdict(Exactness.BITS, Method.CONGRUENCE)
    return Rebuild(node, (node,), verdict, pair.draft_product, _OPSET)


def raise_pair(encode: ir.Node) -> Rebuild | None:
    """Return the raising of an Add or Mul before a QuantizeLinear; None if there is none.

    All pairs of codes are tried.

    Raises:
        OperatorError: its codes or scales are not those of the operators of com.microsoft.
    """
    total = only_source(encode.inputs[0], encode)
    if total is None or total.op_type not in _OPERATIONS.values():
        return None
    nodes = [decoder(value) for value in total.inputs]
    decoders = [node for node in nodes if node is not None and node.inputs[0] is not None]
    if len(decoders) < 2:
        return None
    encodings = [*map(parameters, decoders), result_parameters(encode)]
    if any(scale.size > 1 for scale, _ in encodings) or len({z.dtype for _, z in encodings}) > 1:
        raise OperatorError(
            f"{where(total)}: its scales differ along an axis or its codes are of several types, "
            f"expected one of each for QLinear{total.op_type}"
        )
    factors = [
        Factor(node.inputs[0], zero.dtype, zero, scale)
        for node, (scale, zero) in zip(decoders, encodings[:2], strict=True)
        if node.inputs[0] is not None
    ]
    pair = Pair(total.op_type, factors[0], factors[1], *encodings[2])
    verdict = compare_tables(pair.table(), pair.table_of_reals(), "pairs of codes")

    def write(draft: Draft) -> Operand:
        operands = [x for each in factors for x in (each.codes, each.scale, each.zero_point)]
        dtype = encode.outputs[0].dtype
        return draft.node(pair.name, [*operands, *encodings[2]], domain=MICROSOFT, dtype=dtype)

    return Rebuild(total, (total, encode), verdict, write, _OPSET)


@dataclass(frozen=True, eq=False)
class Pair:
    """A sum or product of two tensors of codes.

    Attributes:
        operation: Add or Mul.
        a, b: the tensors.
        scale, zero: of the result; the zero point is of the type of all codes.
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

    def table_of_sums(self) -> Array:
        """Return what :meth:`draft_sum` gives for every pair of codes, ``[256, 256]``."""
        (left, _), (right, _) = self._every
        with np.errstate(all="ignore"):
            r_a, r_b, start = self._terms
            y = fused_in_double(left, r_a, fused_in_double(right, r_b, start))
        return saturated(y, self.zero)

    @property
    def _terms(self) -> tuple[Array, Array, Float32]:
        """The factors of both codes, and what is added to the sum, in steps of the result."""
        (s_a, z_a), (s_b, z_b) = self.a.stored_parameters, self.b.stored_parameters
        r_a, r_b = s_a / self.scale, s_b / self.scale
        own, other = (zero.astype(np.float32) for zero in (z_a, z_b))
        return r_a, r_b, self.zero.astype(np.float32) - multiply_add(own, r_a, other * r_b)

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

    def draft_product(self, draft: Draft) -> Operand:
        """Draft the product as the kernel computes it: the zero point is added before rounding."""
        (s_a, _), (s_b, _) = self.a.stored_parameters, self.b.stored_parameters
        factors = [each.draft_difference(draft, _REAL) for each in (self.a, self.b)]
        y = draft.op.Mul(draft.op.Mul(*factors), ratio(s_a, s_b, self.scale))
        return draft_offset_codes(draft, y, self.zero)

    def draft_sum(self, draft: Draft) -> Operand:
        """Draft the sum as the kernel computes it, each fused operation in float64.

        float64 holds the product of a code and a float32. Where it does not hold the sum, it is
        rounded twice, which :meth:`table_of_sums` shows.
        """
        r_a, r_b, fixed = self._terms
        right = _fused(draft, self.b.codes, r_b, np.asarray(fixed, np.float64))
        y = _fused(draft, self.a.codes, r_a, cast(draft, right, _WIDE))
        return draft_codes(draft, y, np.zeros((), self.zero.dtype))


def draft_offset_codes(draft: Draft, steps: Operand, zero: Array) -> Operand:
    """Draft codes from steps, with the zero point added before rounding."""
    shifted = draft.op.Add(steps, zero.astype(np.float32)) if zero else steps
    return draft_codes(draft, shifted, np.zeros((), zero.dtype))


def _fused(draft: Draft, codes: ir.Value, factor: Array, added: Operand) -> ir.Value:
    """Draft ``codes * factor + added`` in float64, rounded to float32."""
    constant = draft.constant(np.asarray(factor, np.float64), "ratio")
    product = draft.node("Mul", [cast(draft, codes, _WIDE), constant], dtype=_WIDE)
    return cast(draft, draft.node("Add", [product, added], dtype=_WIDE), _REAL)
