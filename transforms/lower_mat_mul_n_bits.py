"""The pass ``lower-mat-mul-n-bits``: packed weights of com.microsoft as DequantizeLinear."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.dialects.dialect import Refusal
from qgraph.errors import OperatorError, UnsupportedError, where
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.foreign.operands import refuse_references
from qgraph.graph.edit import Draft, Operand
from qgraph.graph.folding import constant_expression
from qgraph.kernels.mat_mul_n_bits import Weights, is_mat_mul_n_bits
from qgraph.model import Model
from qgraph.numerics.formats import numpy_dtype
from qgraph.ops.dequantize_linear import dequantize_linear
from qgraph.opsets.versions import QDQ_SINCE, ceiling
from qgraph.report import Report
from qgraph.transforms.base import Transform, option, transform
from qgraph.transforms.rebuilding import Found, Rebuild, rebuild
from qgraph.transforms.weights.recoding import Codes

Array = npt.NDArray[Any]
Write = Callable[[Draft], Operand]

_OPSET_OF_BLOCKS, _OPSET_OF_AXES = 21, 13
_ROUNDS_DATA = 4
_REAL = ir.DataType.FLOAT


@transform("lower-mat-mul-n-bits")
class LowerMatMulNBits(Transform):
    """Spell MatMulNBits as DequantizeLinear in blocks and MatMul, the values of weights unchanged.

    Codes become a matrix ``[K, N]`` of UINT2, UINT4 or UINT8, the narrowest type that the opset
    has, with blocks along its rows; with ``signed`` they and their zero points are counted from the
    middle, INT4 for UINT4. Zero points that are no codes, and rows assigned to blocks by g_idx that
    do not fill them, are spelled with Cast, Sub and Mul. Data of 16-bit floats are multiplied in
    float32 and rounded once, as the operator does.

    All weights are compared, element by element. ``accuracy_level`` has no counterpart: runtimes
    that rounded the data because of it do so no longer.
    """

    signed: bool = option(False, help="store signed codes, INT4 instead of UINT4")
    opset: int | None = option(
        None, help="highest opset that may be used; default: 21, or the model's own if higher"
    )

    preserves: ClassVar[Exactness] = Exactness.BITS

    def apply(self, model: Model, report: Report) -> None:
        """Read every MatMulNBits, raise the opset once as far as needed, replace."""
        limit = ceiling(model.ir, self.opset)
        found = list(self._found(model, limit))
        rebuild(model, found, Exactness.BITS, report, limit=limit)

    def _found(self, model: Model, limit: int) -> Iterator[Found]:
        for node in model.nodes("MatMulNBits"):
            if not is_mat_mul_n_bits(node) or node.op_identifier() in model.ir.functions:
                continue
            try:
                yield _lowered(_Stored.of(node), signed=self.signed, limit=limit)
            except (OperatorError, UnsupportedError) as error:
                yield Refusal(node, str(error))
            except ValueError as error:
                yield Refusal(node, f"{where(node)}: {error}")


@dataclass(frozen=True, eq=False)
class _Stored:
    """What a MatMulNBits holds, but for its codes, which are read where they are needed.

    Attributes:
        node: the operator.
        form: how it is stored.
        scale, zero: ``[blocks, N]``.
        groups: block of each row where they are not in order, ``[K]``.
    """

    node: ir.Node
    form: Weights
    scale: Array
    zero: Array
    groups: Array | None

    @classmethod
    def of(cls, node: ir.Node) -> _Stored:
        refuse_references(node)
        form = Weights.of(node)
        _, scales, zero_points, groups = _constants(node)
        is_sorted = groups is None or form.is_sorted(groups)
        return cls(
            node,
            form,
            form.scales(scales).T,
            form.zero_points(zero_points).T,
            None if is_sorted or groups is None else form.groups(groups),
        )

    def values(self) -> Array:
        """Return the weights, ``[N, K]``."""
        return self.form.values(*_constants(self.node))


def _constants(node: ir.Node) -> tuple[Array, Array, Array | None, Array | None]:
    """Return codes, scales, zero points and g_idx.

    Raises:
        OperatorError: one is only known at run time.
    """
    given = [*node.inputs[1:5], *[None] * (5 - len(node.inputs))]
    arrays = [constant_expression(value) for value in given]
    names = ("codes", "scales", "zero points", "g_idx")
    for name, value, array in zip(names, given, arrays, strict=True):
        if array is None and value is not None:
            raise OperatorError(
                f"{where(node)}: its {name} are only known at run time, expected constants. "
                "Fold constants first."
            )
    codes, scales, zero_points, groups = arrays
    if codes is None or scales is None:
        raise OperatorError(f"{where(node)}: it has no weights. Correct the model's exporter.")
    return codes, scales, zero_points, groups


def _lowered(stored: _Stored, *, signed: bool, limit: int) -> Rebuild:
    form, node = stored.form, stored.node
    top = (1 << form.bits) - 1
    zero = stored.zero
    order = None if stored.groups is None else np.argsort(stored.groups, kind="stable")
    fills = order is None or form.is_sorted(np.asarray(stored.groups)[order])
    if fills and bool(((zero >= 0) & (zero <= top) & (zero == np.rint(zero))).all()):
        kind = _kind(form.bits, limit, signed=signed)
        codes = Codes(node.inputs[1], form, kind, (top + 1) // 2 if signed else 0, order)
        decoded = _Blocks.of(stored, codes)
        values, opset = decoded.values(), decoded.opset
        write: Callable[[Draft], ir.Value] = decoded.write
        if order is not None:
            inverse = np.argsort(order)
            values = values[inverse]
            write = _gathered(decoded.write, inverse)
    else:
        # Shifting zero points that are no whole numbers would round them.
        kind = _kind(form.bits, limit, signed=False)
        values, write = _spelled_out(stored, Codes(node.inputs[1], form, kind))
        opset = max(QDQ_SINCE[kind], _OPSET_OF_AXES)
    same = np.array_equal(values.T.view(np.uint32), stored.values().view(np.uint32))
    reasons = [] if same else ["decoding gives other weights"]
    if node.attributes.get_int("accuracy_level", 0) == _ROUNDS_DATA:
        reasons.append("accuracy_level 4 let runtimes round the data to int8; now they may not")
    rung = Exactness.BITS if same else Exactness.DIFFERENT
    verdict = Verdict(rung, Method.CONSTANT, reason="; ".join(reasons) or None)

    def product(draft: Draft) -> Operand:
        return _product(draft, node, write(draft))

    return Rebuild(node, (node,), verdict, product, opset)


def _kind(bits: int, limit: int, *, signed: bool) -> str:
    """Return the narrowest type of codes that the opset has."""
    prefix = "INT" if signed else "UINT"
    return next(
        f"{prefix}{n}" for n in (2, 4, 8) if n >= bits and QDQ_SINCE[f"{prefix}{n}"] <= limit
    )


@dataclass(frozen=True, eq=False)
class _Blocks:
    """One DequantizeLinear: its inputs and attributes."""

    codes: Codes
    scale: Array
    zero: Array | None
    attributes: dict[str, int]
    opset: int

    @classmethod
    def of(cls, stored: _Stored, codes: Codes) -> _Blocks:
        scale, zero = stored.scale, stored.zero - codes.middle
        attributes = {"axis": 0, "block_size": stored.form.size}
        opset = _OPSET_OF_BLOCKS
        if len(scale) == 1:
            # A single block is a scale for each column, or one for all.
            attributes = {"axis": 1} if scale.size > 1 else {}
            scale, zero = (p.reshape(-1 if p.size > 1 else ()) for p in (scale, zero))
            opset = _OPSET_OF_AXES
        dtype = numpy_dtype(codes.kind)
        points = zero.astype(np.int16).astype(dtype, order="C") if zero.any() else None
        scale = np.asarray(scale, order="C")
        return cls(codes, scale, points, attributes, max(opset, QDQ_SINCE[codes.kind]))

    def values(self) -> Array:
        """Return what comes out, by the kernel of the operator."""
        return dequantize_linear(
            self.codes.array(),
            self.scale,
            self.zero,
            axis=self.attributes.get("axis", 1),
            block_size=self.attributes.get("block_size", 0),
            output_dtype=ir.DataType.UNDEFINED,
        )

    def write(self, draft: Draft) -> ir.Value:
        """Draft the node."""
        operands = [self.codes.draft(draft), draft.constant(self.scale, "scale")]
        if self.zero is not None:
            operands.append(draft.constant(self.zero, "zero_point"))
        return draft.node("DequantizeLinear", operands, self.attributes, dtype=_REAL)


def _gathered(write: Callable[[Draft], ir.Value], order: Array) -> Callable[[Draft], ir.Value]:
    """Put rows that were sorted by their blocks back in order."""

    def gather(draft: Draft) -> ir.Value:
        rows = draft.constant(order.astype(np.int64), "rows")
        return draft.node("Gather", [write(draft), rows], {"axis": 0}, dtype=_REAL)

    return gather


def _spelled_out(stored: _Stored, codes: Codes) -> tuple[Array, Callable[[Draft], ir.Value]]:
    """Return the weights, and what drafts them: parameters gathered for each row."""
    form = stored.form
    groups = np.arange(form.k) // form.size if stored.groups is None else stored.groups
    zero, scale = (np.ascontiguousarray(table) for table in (stored.zero, stored.scale))
    values = (codes.array().astype(np.float32) - zero[groups]) * scale[groups]

    def write(draft: Draft) -> ir.Value:
        rows = draft.constant(groups.astype(np.int64), "rows")
        real = draft.node("Cast", [codes.draft(draft)], {"to": _REAL.value}, dtype=_REAL)
        for name, table in (("Sub", zero), ("Mul", scale)):
            each = draft.node("Gather", [table, rows], {"axis": 0}, dtype=_REAL)
            real = draft.node(name, [real, each], dtype=_REAL)
        return real

    return values, write


def _product(draft: Draft, node: ir.Node, weights: Operand) -> ir.Value:
    a, bias = node.inputs[0], [*node.inputs, *[None] * 6][5]
    kind = _data_type(node)
    narrow = kind is not None and kind is not _REAL
    operands = [_cast(draft, a, _REAL) if narrow else a, weights]
    y = draft.node("MatMul", operands, dtype=_REAL)
    if bias is not None:
        y = draft.node("Add", [y, _cast(draft, bias, _REAL) if narrow else bias], dtype=_REAL)
    return _cast(draft, y, kind) if narrow and kind is not None else y


def _data_type(node: ir.Node) -> ir.DataType | None:
    """Return the type of the data, which is that of the scales."""
    for value in (node.inputs[2], node.inputs[0]):
        if value is not None and value.dtype is not None:
            return value.dtype
    return None


def _cast(draft: Draft, value: ir.Value | None, to: ir.DataType) -> ir.Value:
    return draft.node("Cast", [value], {"to": to.value}, dtype=to)
