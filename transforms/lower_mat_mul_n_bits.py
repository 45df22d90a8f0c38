"""The pass ``lower-mat-mul-n-bits``: MatMulNBits as DequantizeLinear and MatMul."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.constants import constant_expression, constant_stream
from qgraph.graph.deferred import DeferredTensor
from qgraph.graph.edit import Draft, Operand
from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.opset.versions import ceiling
from qgraph.graph.streaming import Sink, Stream
from qgraph.model import Model
from qgraph.numerics.formats import FORMATS, numpy_dtype, pack
from qgraph.ops.definitions.quantize_linear import dequantize_linear
from qgraph.ops.integer.products import refuse_references
from qgraph.ops.kernels.mat_mul_n_bits import Weights, is_mat_mul_n_bits
from qgraph.reports import Report
from qgraph.transforms.base import Transform, opset_option, option, transform
from qgraph.transforms.drafts.rebuilding import Rebuild, read_all, rebuild

Array = npt.NDArray[Any]
Write = Callable[[Draft], ir.Value]

_OPSET_OF_BLOCKS, _OPSET_OF_AXES = 21, 13
_ROUNDS_DATA = 4
_REAL = ir.DataType.FLOAT


@transform("lower-mat-mul-n-bits")
class LowerMatMulNBits(Transform):
    """Write MatMulNBits as DequantizeLinear and MatMul.

    ``MatMulNBits(a, packed, scales, zero_points, g_idx)`` becomes

    1. ``MatMul(a, DequantizeLinear(codes, s, z))`` with codes ``[K, N]`` of UINT2, UINT4 or UINT8,
       the narrowest type that the opset has, in blocks along axis 0. With ``signed``, codes and
       zero points are counted from the middle, INT4 for UINT4. Rows that g_idx assigns to blocks
       are sorted by block, and put back in order by a Gather.
    2. ``MatMul(a, (Cast(codes) - z[rows]) * s[rows])`` if zero points are no codes, or g_idx does
       not fill the blocks.

    Data of 16-bit floats are multiplied in float32 and rounded once, as the operator does. All
    weights are compared, element by element. ``accuracy_level`` has no counterpart: runtimes that
    rounded the data because of it no longer do.
    """

    signed: bool = option(False, help="store signed codes, such as INT4 for UINT4")
    opset: int | None = opset_option()

    preserves: ClassVar[Exactness] = Exactness.BITS

    def apply(self, model: Model, report: Report) -> None:
        """Read every MatMulNBits, raise the opset once if needed, and replace the nodes."""
        limit = ceiling(model.ir, self.opset)
        nodes = filter(is_mat_mul_n_bits, model.nodes("MatMulNBits"))
        read = functools.partial(_lowered, signed=self.signed, limit=limit)
        rebuild(model, read_all(model, nodes, read), Exactness.BITS, report, limit=limit)


@dataclass(frozen=True, eq=False)
class _Weights:
    """The weights of a MatMulNBits but for its codes, which are read when they are needed.

    Attributes:
        node: the operator.
        form: how they are stored.
        scale, zero: ``[blocks, N]``.
        groups: block of each row if they are not in order, ``[K]``.
    """

    node: ir.Node
    form: Weights
    scale: Array
    zero: Array
    groups: Array | None

    @classmethod
    def of(cls, node: ir.Node) -> _Weights:
        refuse_references(node)
        form = Weights.of(node)
        _, scales, zero_points, groups = _constants(node)
        if groups is not None:
            groups = None if form.is_sorted(groups) else form.groups(groups)
        return cls(node, form, form.scales(scales).T, form.zero_points(zero_points).T, groups)


def _constants(node: ir.Node) -> tuple[Array, Array, Array | None, Array | None]:
    """Return codes, scales, zero points and g_idx.

    Raises:
        OperatorError: one is not constant.
    """
    inputs = [*node.inputs[1:5], *[None] * (5 - len(node.inputs))]
    arrays = [constant_expression(value) for value in inputs]
    names = ("codes", "scales", "zero points", "g_idx")
    for name, value, array in zip(names, inputs, arrays, strict=True):
        if array is None and value is not None:
            raise OperatorError(
                f"{where(node)}: its {name} are not constant, expected constants. Fold constants "
                f"first."
            )
    codes, scales, zero_points, groups = arrays
    if codes is None or scales is None:
        raise OperatorError(f"{where(node)}: it has no weights. Correct the model's exporter.")
    return codes, scales, zero_points, groups


def _lowered(node: ir.Node, *, signed: bool, limit: int) -> Rebuild:
    weights = _Weights.of(node)
    form, zero = weights.form, weights.zero
    top = (1 << form.bits) - 1
    order = None if weights.groups is None else np.argsort(weights.groups, kind="stable")
    fills = order is None or form.is_sorted(np.asarray(weights.groups)[order])
    if fills and bool(((zero >= 0) & (zero <= top) & (zero == np.rint(zero))).all()):
        kind = _kind(form.bits, limit, signed=signed)
        codes = _Codes(node.inputs[1], form, kind, (top + 1) // 2 if signed else 0, order)
        values, write, opset = _decoded(weights, codes)
    else:
        # Shifting fractional zero points would round them.
        kind = _kind(form.bits, limit, signed=False)
        values, write = _gathered(weights, _Codes(node.inputs[1], form, kind))
        opset = max(QDQ_SINCE[kind], _OPSET_OF_AXES)
    before = form.values(*_constants(node))
    same = np.array_equal(values.T.view(np.uint32), before.view(np.uint32))
    reasons = [] if same else ["DequantizeLinear decodes to other weights"]
    if node.attributes.get_int("accuracy_level", 0) == _ROUNDS_DATA:
        reasons.append(
            "accuracy_level 4 allowed runtimes to round the data to int8; MatMul does not"
        )
    level = Exactness.BITS if same else Exactness.DIFFERENT
    verdict = Verdict(level, Method.CONSTANT, reason="; ".join(reasons) or None)

    def product(draft: Draft) -> Operand:
        return _product(draft, node, write(draft))

    return Rebuild(node, (node,), verdict, product, opset)


def _kind(bits: int, limit: int, *, signed: bool) -> str:
    """Return the narrowest type of codes in the opset."""
    prefix = "INT" if signed else "UINT"
    return next(
        f"{prefix}{n}" for n in (2, 4, 8) if n >= bits and QDQ_SINCE[f"{prefix}{n}"] <= limit
    )


def _decoded(weights: _Weights, codes: _Codes) -> tuple[Array, Write, int]:
    """Return the weights as one DequantizeLinear decodes them, its draft, and its minimum opset."""
    scale, zero = weights.scale, weights.zero - codes.middle
    attributes = {"axis": 0, "block_size": weights.form.size}
    opset = _OPSET_OF_BLOCKS
    if len(scale) == 1:
        # A single block means one scale for each column, or one for all.
        attributes = {"axis": 1} if scale.size > 1 else {}
        scale, zero = (p.reshape(-1 if p.size > 1 else ()) for p in (scale, zero))
        opset = _OPSET_OF_AXES
    dtype = numpy_dtype(codes.kind)
    points = zero.astype(np.int16).astype(dtype, order="C") if zero.any() else None
    scale = np.asarray(scale, order="C")
    rows = None if codes.order is None else np.argsort(codes.order)
    values = dequantize_linear(
        codes.array(),
        scale,
        points,
        axis=attributes.get("axis", 1),
        block_size=attributes.get("block_size", 0),
        output_dtype=ir.DataType.UNDEFINED,
    )

    def write(draft: Draft) -> ir.Value:
        operands = [codes.draft(draft), draft.constant(scale, "scale")]
        if points is not None:
            operands.append(draft.constant(points, "zero_point"))
        y = draft.node("DequantizeLinear", operands, attributes, dtype=_REAL)
        return y if rows is None else _rows(draft, y, draft.constant(rows.astype(np.int64), "rows"))

    return values if rows is None else values[rows], write, max(opset, QDQ_SINCE[codes.kind])


def _gathered(weights: _Weights, codes: _Codes) -> tuple[Array, Write]:
    """Return the weights with parameters gathered for each row, and their draft."""
    form = weights.form
    groups = np.arange(form.k) // form.size if weights.groups is None else weights.groups
    zero, scale = (np.ascontiguousarray(table) for table in (weights.zero, weights.scale))
    values = (codes.array().astype(np.float32) - zero[groups]) * scale[groups]

    def write(draft: Draft) -> ir.Value:
        rows = draft.constant(groups.astype(np.int64), "rows")
        y = _cast(draft, codes.draft(draft), _REAL)
        y = draft.node("Sub", [y, _rows(draft, zero, rows)], dtype=_REAL)
        return draft.node("Mul", [y, _rows(draft, scale, rows)], dtype=_REAL)

    return values, write


def _rows(draft: Draft, table: Operand, rows: ir.Value) -> ir.Value:
    return draft.node("Gather", [table, rows], {"axis": 0}, dtype=_REAL)


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


@dataclass(frozen=True, eq=False)
class _Codes:
    """Codes of the type ``kind``, ``[K, N]``, counted from ``middle``.

    Attributes:
        source: the packed codes of a MatMulNBits; None in a job, which other processes may do.
        form: how they are packed.
        kind: their integer type.
        middle: what is subtracted.
        order: of the rows; None if they do not move.
    """

    source: ir.Value | None
    form: Weights
    kind: str
    middle: int = 0
    order: Array | None = None

    def array(self) -> Array:
        """Return the codes."""
        packed = constant_expression(self.source)
        if packed is None:
            raise OperatorError("its codes are not constant")
        return self.matrix(packed)

    def draft(self, draft: Draft) -> ir.Value:
        """Return an operand that holds the codes, which are not kept in memory."""
        stream = constant_stream(self.source)
        if stream is None:
            return draft.constant(self.array(), "codes")
        shape = (self.form.k, self.form.n)
        tensor = DeferredTensor(
            _Job(replace(self, source=None), stream), 0, ir.DataType[self.kind], shape
        )
        return draft.stored(tensor, "codes")

    def matrix(self, packed: Array) -> Array:
        """Return the codes that are packed in ``packed``."""
        codes = self.form.codes(packed).reshape(self.form.n, -1)[:, : self.form.k].T
        codes = codes if self.order is None else codes[self.order]
        # Differences wrap around in a byte, and the low bits are those of the narrow type.
        shifted = np.ascontiguousarray(codes) - np.uint8(self.middle)
        shifted = shifted.view(np.int8) if self.middle else shifted
        return shifted.astype(numpy_dtype(self.kind))


@dataclass(frozen=True, eq=False)
class _Job:
    """Writes the codes while the model is saved, in one part."""

    codes: _Codes
    stream: Stream

    def parts(self) -> Sequence[_Job]:
        return [self]

    def conclude(self, results: Sequence[Any]) -> None:
        """Values have been compared when the work was planned."""

    @property
    def reads(self) -> int:
        return self.stream.nbytes

    def __call__(self, sinks: Sequence[Sink]) -> None:
        data = self.codes.matrix(self.stream.array()).view(np.uint8).reshape(-1)
        bits = FORMATS[self.codes.kind].bits
        sinks[0].write(0, data if bits == 8 else pack(data, bits))
