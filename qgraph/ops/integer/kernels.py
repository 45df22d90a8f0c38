"""Kernels of operators on integer codes, and pairs: sums and products of two tensors of codes.

Those that sum products make an exact sum of integers first, ``acc``, in int32; see
:mod:`qgraph.ops.integer.products` for what follows. It is written in float32, each operation
rounded once, in the order that ONNX Runtime has. The sum is rounded to float32 before it is scaled,
if it exceeds 2**24. The text of ONNX leaves order and precision open. Its reference evaluator
scales in float64 and adds the zero point before it rounds, so that with odd zero points every tie
goes the other way.

Source: ONNX QLinearMatMul-21, QLinearConv-10, MatMulInteger-10, ConvInteger-10; ONNX Runtime's
documentation of its own operators; the order of operations was found by running ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from qgraph.graph.edit import Draft, Operand
from qgraph.graph.schema import MICROSOFT, OpKey
from qgraph.graph.scopes import inputs_of
from qgraph.numerics import Array, Float32, Float64, Int32
from qgraph.numerics.float32 import multiply_add
from qgraph.ops.composite import cast
from qgraph.ops.integer.codes import (
    fitted,
    float32,
    fused_in_double,
    int32,
    q_linear_average_pool,
    q_linear_concat,
    q_linear_leaky_relu,
    q_linear_sigmoid,
    q_linear_softmax,
    q_linear_where,
    ratio,
    requantize,
    result,
    saturated,
    shifted,
    single,
    zero_of,
)
from qgraph.ops.integer.forms import draft_codes, draft_offset_codes
from qgraph.ops.integer.products import (
    SIGNATURES,
    Result,
    read_encoding,
    read_single,
    refuse_references,
)
from qgraph.ops.integer.sums import Factor, conv_attributes
from qgraph.ops.kernels.kernel import Kernel
from qgraph.ops.kernels.standard import kernel_of, matmul
from qgraph.ops.operator import operator_of
from qgraph.records import dataclass

_OPSET_OF_CONV = 11


def _pair(node: ir.Node) -> Kernel:
    """Return the kernel of a product or a sum of two tensors of codes, less rounding the results.

    A product is ``float32(acc) * m + z_y``: the zero point comes before rounding. A sum is
    ``fma(a, r_a, fma(b, r_b, z_y - fma(z_a, r_a, z_b * r_b)))`` with ``r = s / s_y``. Fused
    operations, rounded once, are what ONNX Runtime uses on processors that have them; others differ
    by a step for some codes near a tie.
    """
    operation = OPERATIONS[OpKey.of(node)]

    def run(
        a: Array,
        s_a: Array,
        z_a: Array | None,
        b: Array,
        s_b: Array,
        z_b: Array | None,
        s_y: Array,
        z_y: Array | None = None,
    ) -> Sequence[Array]:
        z = zero_of(z_y, a)
        if operation == "Mul":
            product = (shifted(a, z_a, np.int32) * shifted(b, z_b, np.int32)).astype(np.float32)
            m = ratio(single(s_a), single(s_b), single(s_y))
            return [saturated(product * m + z.astype(np.float32), z)]
        unit = float32(single(s_y))
        scales = float32(single(s_a)) / unit, float32(single(s_b)) / unit
        zeros = [np.zeros(()) if zero is None else single(zero) for zero in (z_a, z_b)]
        r_a, r_b, start = _terms(*scales, zeros, z)
        left, right = (shifted(x, None, np.float32) for x in (a, b))
        return [saturated(multiply_add(left, r_a, multiply_add(right, r_b, start)), z)]

    return run


def _terms(
    r_a: Array, r_b: Array, zeros: Iterable[Array], z_y: Array
) -> tuple[Array, Array, Float32]:
    """Return the factors of both codes, and what is added to the sum, in steps of the result."""
    own, other = (zero.astype(np.float32) for zero in zeros)
    return r_a, r_b, z_y.astype(np.float32) - multiply_add(own, r_a, other * r_b)


def code_kernel(node: ir.Node) -> Kernel:
    """Return the kernel of an operator on integer codes.

    Raises:
        KeyError: it is another operator; see :func:`is_on_codes`.
    """
    return _BUILDERS[OpKey.of(node)](node)


def integer_kernel(node: ir.Node) -> Kernel | None:
    """Return the kernel of an operator on integer codes; None for any other operator."""
    return code_kernel(node) if is_on_codes(node) else None


def is_on_codes(node: ir.Node) -> bool:
    """Return whether there is a kernel for a node here."""
    return OpKey.of(node) in _BUILDERS


def is_unknown_on_codes(node: ir.Node) -> bool:
    """Return whether a node is an operator of ONNX Runtime on codes that has no kernel here."""
    return node.domain == MICROSOFT and node.op_type in _WITHOUT_KERNELS


def _product(node: ir.Node) -> Kernel:
    """Return the kernel of an operator that sums products."""
    signature = SIGNATURES[OpKey.of(node)]
    trans_a, trans_b = (node.attributes.get_int(name, 0) for name in ("transA", "transB"))
    alpha = np.float32(node.attributes.get_float("alpha", 1.0))
    total = _conv(node) if signature.kind == "Conv" else _matmul

    def run(*arrays: Array | None) -> Sequence[Array]:
        inputs = dict(zip(signature.inputs, arrays, strict=False))
        codes = {side: np.asarray(inputs[side]) for side in "ab"}
        rank = codes["b"].ndim

        def aligned(name: str) -> Array:
            array = inputs.get(name)
            if array is None:
                raise ValueError(f"its input {name} is missing")
            return signature.align(node, name, array, rank)

        def whole(side: str) -> Array:
            is_zero = inputs.get(f"z_{side}") is None
            return shifted(codes[side], None if is_zero else aligned(f"z_{side}"))

        a, b = whole("a"), whole("b")
        acc = total(a.T if trans_a else a, b.T if trans_b else b)
        bias, added = inputs.get("bias"), inputs.get("added")
        if bias is not None:
            is_conv = signature.kind == "Conv"
            acc = acc + (int32(bias).reshape(-1, *(1,) * (rank - 2)) if is_conv else int32(bias))
        stage = signature.result(inputs)
        if stage is Result.SUMS:
            return [acc]
        unit = alpha * float32(aligned("s_a")) * float32(aligned("s_b"))
        if stage is Result.REALS:
            y = acc.astype(np.float32) * fitted(unit, acc)
            return [y if added is None else y + float32(added)]
        with np.errstate(all="ignore"):
            multiplier = unit / float32(aligned("s_y"))
        return [requantize(acc, fitted(multiplier, acc), fitted(result(aligned("z_y")), acc))]

    return run


def _matmul(a: Array, b: Array) -> Int32:
    """Return ``a @ b`` of whole numbers as int32, which wraps around as it does in runtimes."""
    # Whole numbers below 2**53 add up without rounding, and float64 has the fast product.
    return _to_int32(matmul(a.astype(np.float64), b.astype(np.float64)))


def _conv(node: ir.Node) -> Callable[[Array, Array], Int32]:
    """Return a function that convolves whole numbers as ``node`` does, like :func:`_matmul`."""
    conv = ir.node("Conv", [ir.val("x"), ir.val("w")], conv_attributes(node))
    kernel = kernel_of(conv, _OPSET_OF_CONV)
    if kernel is None:
        raise AssertionError("there is a kernel of Conv")
    return lambda x, w: _to_int32(kernel(x.astype(np.float64), w.astype(np.float64))[0])


def _to_int32(total: Float64) -> Int32:
    """Return whole numbers as int32, modulo 2**32."""
    return total.astype(np.int64).astype(np.int32)


_BUILDERS: dict[OpKey, Callable[[ir.Node], Kernel]] = {
    **dict.fromkeys(SIGNATURES, _product),
    OpKey(MICROSOFT, "QLinearAdd"): _pair,
    OpKey(MICROSOFT, "QLinearAveragePool"): q_linear_average_pool,
    OpKey(MICROSOFT, "QLinearConcat"): q_linear_concat,
    OpKey(MICROSOFT, "QLinearGlobalAveragePool"): q_linear_average_pool,
    OpKey(MICROSOFT, "QLinearLeakyRelu"): q_linear_leaky_relu,
    OpKey(MICROSOFT, "QLinearMul"): _pair,
    OpKey(MICROSOFT, "QLinearSigmoid"): q_linear_sigmoid,
    OpKey(MICROSOFT, "QLinearSoftmax"): q_linear_softmax,
    OpKey(MICROSOFT, "QLinearWhere"): q_linear_where,
}

_WITHOUT_KERNELS = frozenset(
    {
        "DynamicQuantizeLSTM",
        "DynamicQuantizeMatMul",
        "MatMulInteger16",
        "QEmbedLayerNormalization",
        "QLinearConv",
        "QLinearReduceMean",
    }
)


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
        (s_a, z_a), (s_b, z_b) = self.a.stored_parameters, self.b.stored_parameters
        return _terms(s_a / self.scale, s_b / self.scale, (z_a, z_b), self.zero)


def _fused(draft: Draft, codes: ir.Value, factor: Array, added: Operand) -> ir.Value:
    """Draft ``codes * factor + added`` in float64, rounded to float32."""
    constant = draft.constant(np.asarray(factor, np.float64), "ratio")
    product = draft.node("Mul", [cast(draft, codes, _WIDE), constant], dtype=_WIDE)
    return cast(draft, draft.node("Add", [product, added], dtype=_WIDE), _REAL)
