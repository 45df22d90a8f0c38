"""QLinearAdd, QLinearMul and QLinearGlobalAveragePool of com.microsoft in standard operators."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.foreign.kernels import MICROSOFT, foreign_kernel
from qgraph.foreign.operands import refuse_references
from qgraph.foreign.rescaling import EXACT_IN_FLOAT32, compare_pairs, unproved
from qgraph.graph.edit import Draft
from qgraph.graph.edit import Operand as Drafted
from qgraph.graph.folding import constant_expression
from qgraph.ops.operator import operator_of
from qgraph.transforms.integers.integer_sums import cast, encode
from qgraph.transforms.rebuilding import Rebuild

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

_NAMES = ("QLinearAdd", "QLinearMul")
_POOL = "QLinearGlobalAveragePool"
_OPSET, _OPSET_OF_AXES = 10, 13
_REAL, _WIDE = ir.DataType.FLOAT, ir.DataType.DOUBLE


def lower_code_pair(node: ir.Node, *, reals: bool) -> Rebuild | None:
    """Return how to spell a node, exactly or with real numbers; None if it is none of these.

    Raises:
        OperatorError: a parameter is only known at run time.
    """
    if node.domain != MICROSOFT:
        return None
    refuse_references(node)
    if node.op_type in _NAMES:
        return _pair(Pair.of(node), reals=reals)
    return lower_pool(node, reals=reals) if node.op_type == _POOL else None


@dataclass(frozen=True, eq=False)
class Pair:
    """A QLinearAdd or QLinearMul.

    Attributes:
        node: the operator.
        a, b: codes.
        scales: of both and of the result.
        zeros: likewise, in the type of the codes.
    """

    node: ir.Node
    a: ir.Value
    b: ir.Value
    scales: tuple[Float32, Float32, Float32]
    zeros: tuple[Array, Array, Array]

    @classmethod
    def of(cls, node: ir.Node) -> Pair:
        """Read a node.

        Raises:
            OperatorError: a parameter is only known at run time.
        """
        values = [*node.inputs, *[None] * (8 - len(node.inputs))]
        a, b = values[0], values[3]
        if a is None or b is None:
            raise OperatorError(f"{where(node)}: an input is missing, expected two tensors.")
        dtype = code_type(node, a, b, *values[2::3], values[7])
        scales = [known_parameter(node, values[place], None) for place in (1, 4, 6)]
        zeros = [known_parameter(node, values[place], dtype) for place in (2, 5, 7)]
        return cls(node, a, b, (scales[0], scales[1], scales[2]), (zeros[0], zeros[1], zeros[2]))

    def table(self) -> Array:
        """Return what the operator makes of every pair of codes, ``[256, 256]``."""
        kernel = foreign_kernel(self.node)
        if kernel is None:
            raise OperatorError(f"{where(self.node)}: there is no kernel.")
        (s_a, s_b, s_y), (z_a, z_b, z_y) = self.scales, self.zeros
        left, right = self.codes
        return np.asarray(kernel(left, s_a, z_a, right, s_b, z_b, s_y, z_y)[0])

    def table_of_reals(self) -> Array:
        """Return the same by way of real numbers."""
        (s_a, s_b, s_y), (z_a, z_b, z_y) = self.scales, self.zeros
        left, right = self.codes
        with np.errstate(all="ignore"):
            a = (left.astype(np.float32) - z_a.astype(np.float32)) * s_a
            b = (right.astype(np.float32) - z_b.astype(np.float32)) * s_b
            y = a + b if self.node.op_type == "QLinearAdd" else a * b
        quantize = ir.node("QuantizeLinear", [ir.val("y"), ir.val("s"), ir.val("z")])
        operator = operator_of(quantize)
        if operator is None:
            raise OperatorError("QuantizeLinear has no kernel.")
        return operator.run(quantize, [y, s_y, z_y])

    @property
    def codes(self) -> tuple[Array, Array]:
        """All codes, as a column and as a row."""
        limits = np.iinfo(self.zeros[0].dtype)
        every = np.arange(limits.min, limits.max + 1).astype(self.zeros[0].dtype)
        return every[:, None], every[None, :]


def _pair(pair: Pair, *, reals: bool) -> Rebuild:
    if reals:
        verdict = compare_pairs(pair.table_of_reals(), pair.table())
        return Rebuild(pair.node, (pair.node,), verdict, lambda draft: _by_reals(draft, pair), 10)
    exact = _exact_sum if pair.node.op_type == "QLinearAdd" else _exact_product
    verdict = Verdict(Exactness.BITS, Method.CONGRUENCE)
    return Rebuild(pair.node, (pair.node,), verdict, lambda draft: exact(draft, pair), _OPSET)


def _by_reals(draft: Draft, pair: Pair) -> ir.Value:
    operands = zip((pair.a, pair.b), pair.scales, pair.zeros, strict=False)
    a, b = (draft.node("DequantizeLinear", each, dtype=_REAL) for each in operands)
    name = pair.node.op_type.removeprefix("QLinear")
    y = draft.node(name, [a, b], dtype=_REAL)
    return draft.node("QuantizeLinear", [y, pair.scales[2], pair.zeros[2]])


def _exact_product(draft: Draft, pair: Pair) -> Drafted:
    factors = []
    for codes, zero in zip((pair.a, pair.b), pair.zeros, strict=False):
        whole = cast(draft, codes, _REAL)
        factors.append(draft.op.Sub(whole, zero.astype(np.float32)) if zero else whole)
    s_a, s_b, s_y = pair.scales
    y = draft.op.Mul(draft.op.Mul(*factors), s_a * s_b / s_y)
    return _encode(draft, y, pair.zeros[2])


def _exact_sum(draft: Draft, pair: Pair) -> Drafted:
    # float64 holds the product of a code and a float32, so that each sum is rounded once.
    s_a, s_b, s_y = pair.scales
    z_a, z_b, z_y = (zero.astype(np.float64) for zero in pair.zeros)
    ratio_a, ratio_b = s_a / s_y, s_b / s_y
    fixed = (z_a * ratio_a + (z_b.astype(np.float32) * ratio_b)).astype(np.float32)
    start = z_y.astype(np.float32) - fixed
    right = _fused(draft, pair.b, ratio_b, np.asarray(start, np.float64))
    y = _fused(draft, pair.a, ratio_a, cast(draft, right, _WIDE))
    return encode(draft, y, np.zeros((), pair.zeros[2].dtype))


def _fused(draft: Draft, codes: ir.Value, ratio: Float32, added: Drafted) -> ir.Value:
    wide = cast(draft, codes, _WIDE)
    factor = draft.constant(np.asarray(ratio, np.float64), "ratio")
    product = draft.node("Mul", [wide, factor], dtype=_WIDE)
    return cast(draft, draft.node("Add", [product, added], dtype=_WIDE), _REAL)


def _encode(draft: Draft, y: Drafted, zero: Array) -> Drafted:
    """Draft the codes of steps to which the zero point is added before rounding."""
    shifted = draft.op.Add(y, zero.astype(np.float32)) if zero else y
    return encode(draft, shifted, np.zeros((), zero.dtype))


def lower_pool(node: ir.Node, *, reals: bool) -> Rebuild:
    """Return how to spell an average of whole images.

    Raises:
        OperatorError: a parameter or a size is only known at run time.
    """
    x, *rest = node.inputs
    s_x, z_x, s_y, z_y = [*rest, *[None] * (4 - len(rest))][:4]
    last = node.attributes.get_int("channels_last", 0)
    if x is None or x.shape is None:
        raise OperatorError(f"{where(node)}: the shape of its input is not known; infer shapes.")
    dtype = code_type(node, x, z_x, z_y)
    scale, step = known_parameter(node, s_x, None), known_parameter(node, s_y, None)
    zero, end = known_parameter(node, z_x, dtype), known_parameter(node, z_y, dtype)
    axes = list(range(1, len(x.shape) - 1) if last else range(2, len(x.shape)))
    if reals:
        if last:
            raise OperatorError(f"{where(node)}: GlobalAveragePool has no channels_last.")
        verdict = unproved("sums are rounded in another order, codes may differ by a step")

        def write_reals(draft: Draft) -> Drafted:
            y = draft.node("DequantizeLinear", [x, scale, zero], dtype=_REAL)
            y = draft.node("GlobalAveragePool", [y], dtype=_REAL)
            return draft.node("QuantizeLinear", [y, step, end])

        return Rebuild(node, (node,), verdict, write_reals, _OPSET)
    sizes = [x.shape[axis] for axis in axes]
    known = [size for size in sizes if isinstance(size, int)]
    count = math.prod(known)
    if len(known) < len(sizes) or count * 255 >= EXACT_IN_FLOAT32:
        raise OperatorError(
            f"{where(node)}: it sums over {sizes} elements, expected a known number of them, so "
            "few that the sums stay below 2**24. Run shape inference with fixed sizes first."
        )

    def write(draft: Draft) -> Drafted:
        whole: Drafted = cast(draft, x, _REAL)
        whole = draft.op.Sub(whole, zero.astype(np.float32)) if zero else whole
        over = draft.constant(np.array(axes, np.int64), "axes")
        total = draft.node("ReduceSum", [whole, over], {"keepdims": 1}, dtype=_REAL)
        multiplier = scale / (step * np.float32(count))
        return encode(draft, draft.op.Mul(total, multiplier), end)

    reason = f"sums of at most {count * 255} are exact in float32"
    verdict = Verdict(Exactness.BITS, Method.CONGRUENCE, reason=reason)
    return Rebuild(node, (node,), verdict, write, _OPSET_OF_AXES)


def code_type(node: ir.Node, *values: ir.Value | None) -> np.dtype[Any]:
    """Return the one type of codes that values have.

    Raises:
        OperatorError: it is not known.
    """
    kinds = {v.dtype.numpy() for v in values if v is not None and v.dtype is not None}
    codes = kinds & {np.dtype(np.int8), np.dtype(np.uint8)}
    if len(codes) != 1:
        raise OperatorError(
            f"{where(node)}: the type of its codes is not known, expected int8 or uint8. Run shape "
            "inference first."
        )
    return codes.pop()


def known_parameter(node: ir.Node, value: ir.Value | None, dtype: np.dtype[Any] | None) -> Array:
    """Return a parameter without axes; an absent zero point is 0.

    Raises:
        OperatorError: it is only known at run time, or has several elements.
    """
    if value is None and dtype is not None:
        return np.zeros((), dtype)
    array = constant_expression(value)
    if array is None or array.size != 1:
        state = "known at run time only" if array is None else f"of shape {list(array.shape)}"
        label = "" if value is None else value.name
        raise OperatorError(
            f"{where(node)}: its parameter {label!r} is {state}, expected one constant. "
            "Fold constants first."
        )
    return array.reshape(()).astype(np.float32 if dtype is None else dtype)
