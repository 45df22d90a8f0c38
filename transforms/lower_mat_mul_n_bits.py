"""The pass ``lower-mat-mul-n-bits``: MatMulNBits as DequantizeLinear and MatMul."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.constants import constant_stream
from qgraph.graph.edit import Draft, Operand
from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.opset.versions import ceiling
from qgraph.graph.scopes import input_of
from qgraph.graph.streaming import Stream
from qgraph.model import Model
from qgraph.numerics import Array
from qgraph.ops.integer.products import refuse_references
from qgraph.ops.kernels.mat_mul_n_bits import ROUNDS_DATA, Weights, is_mat_mul_n_bits
from qgraph.reports import Report
from qgraph.transforms.base import Transform, opset_option, option, transform
from qgraph.transforms.drafts.rebuilding import Rebuild, read_all, rebuild
from qgraph.transforms.weights.packed_blocks import BlockCodes

Write = Callable[[Draft], ir.Value]

_OPSET_OF_BLOCKS, _OPSET_OF_AXES = 21, 13
_REAL = ir.DataType.FLOAT


@transform("lower-mat-mul-n-bits")
class LowerMatMulNBits(Transform):
    """Write MatMulNBits as DequantizeLinear and MatMul.

    ``MatMulNBits(a, packed, scales, zero_points, g_idx)`` becomes

    1. ``MatMul(a, DequantizeLinear(codes, s, z))`` with codes ``[K, N]`` of UINT2, UINT4 or UINT8,
       the narrowest type that the opset has, in blocks along axis 0. With ``signed``, codes and
       zero points are stored signed, as INT4 instead of UINT4. Rows that g_idx assigns to blocks
       are sorted by block, and put back in order by a Gather.
    2. ``MatMul(a, (Cast(codes) - z[rows]) * s[rows])`` if zero points are no codes, or g_idx does
       not fill the blocks.

    Data of 16-bit floats are multiplied in float32 and rounded once, as the operator does. Both
    forms subtract the zero point from a code and multiply by the scale. Codes are written while the
    model is saved, strip by strip; packed ones are unpacked again and compared. ``accuracy_level``
    has no counterpart: runtimes that rounded the data because of it no longer do.
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
    """The weights of a MatMulNBits. Data in files are read when the model is saved.

    Attributes:
        form: layout of the stored weights.
        points: stored zero points, or None.
        groups: block of each row if they are not in order, ``[K]``.
    """

    node: ir.Node
    form: Weights
    codes: Stream
    scale: Stream
    points: Array | None
    groups: Array | None

    @classmethod
    def of(cls, node: ir.Node) -> _Weights:
        refuse_references(node)
        form = Weights.of(node)
        inputs = [*node.inputs[1:5], *[None] * (5 - len(node.inputs))]
        codes, scales, zero_points, groups = (constant_stream(value) for value in inputs)
        names = ("codes", "scales", "zero points", "g_idx")
        streams = (codes, scales, zero_points, groups)
        for name, value, stream in zip(names, inputs, streams, strict=True):
            if stream is None and value is not None:
                text = f"{where(node)}: its {name} are not constant, expected constants"
                raise OperatorError(f"{text}. Fold constants first.")
        if codes is None or scales is None:
            raise OperatorError(f"{where(node)}: it has no weights. Correct the model's exporter.")
        form.check(codes, scales)
        points = None if zero_points is None else zero_points.array()
        order = None if groups is None else groups.array()
        if order is not None:
            order = None if form.is_sorted(order) else form.groups(order)
        return cls(node, form, codes, scales, points, order)

    @property
    def zero(self) -> Array:
        """Zero points ``[blocks, N]``."""
        return self.form.zero_points(self.points).T

    @property
    def has_codes_as_points(self) -> bool:
        """Whether all zero points are codes."""
        if self.points is None or self.form.has_packed_points(self.points):
            return True
        zero, top = self.zero, (1 << self.form.bits) - 1
        return bool(((zero >= 0) & (zero <= top) & (zero == np.rint(zero))).all())

    def has_points_beside(self, number: int) -> bool:
        """Return whether a zero point differs from ``number``."""
        if self.points is None:
            return 1 << (self.form.bits - 1) != number
        return bool((self.zero != number).any())

    def job(self, type_name: str, middle: int = 0, order: Array | None = None) -> BlockCodes:
        """Return the job that writes the weights with codes of type ``type_name``."""
        return BlockCodes(self.form, self.codes, self.scale, self.points, type_name, middle, order)


def _lowered(node: ir.Node, *, signed: bool, limit: int) -> Rebuild:
    weights = _Weights.of(node)
    form = weights.form
    order = None if weights.groups is None else np.argsort(weights.groups, kind="stable")
    fills = order is None or form.is_sorted(np.asarray(weights.groups)[order])
    if fills and weights.has_codes_as_points:
        type_name = _code_type(form.bits, limit, signed=signed)
        middle = 1 << (form.bits - 1) if signed else 0
        codes = weights.job(type_name, middle, order)
        write, opset = _decoded(codes, has_points=weights.has_points_beside(middle))
    else:
        # Shifting fractional zero points would round them.
        type_name = _code_type(form.bits, limit, signed=False)
        write = _gathered(weights, weights.job(type_name))
        opset = max(QDQ_SINCE[type_name], _OPSET_OF_AXES)
    # Both compute (code - zero point) * scale of numbers that only move.
    verdict = Verdict(Exactness.BITS, Method.CONGRUENCE)
    if node.attributes.get_int("accuracy_level", 0) == ROUNDS_DATA:
        reason = "accuracy_level 4 allowed runtimes to round the data to int8; MatMul does not"
        verdict = replace(verdict, reason=reason)

    def product(draft: Draft) -> Operand:
        return _product(draft, node, write(draft))

    return Rebuild(node, (node,), verdict, product, opset)


def _code_type(bits: int, limit: int, *, signed: bool) -> str:
    """Return the narrowest type of codes in the opset."""
    prefix = "INT" if signed else "UINT"
    return next(
        f"{prefix}{n}" for n in (2, 4, 8) if n >= bits and QDQ_SINCE[f"{prefix}{n}"] <= limit
    )


def _decoded(codes: BlockCodes, *, has_points: bool) -> tuple[Write, int]:
    """Return the draft of the weights as one DequantizeLinear, and its minimum opset."""
    form = codes.form
    shape: tuple[int, ...] = (form.blocks, form.n)
    attributes = {"axis": 0, "block_size": form.size}
    opset = _OPSET_OF_BLOCKS
    if form.blocks == 1:
        # A single block means one scale for each column, or one for all.
        shape = (form.n,) if form.n > 1 else ()
        attributes = {"axis": 1} if form.n > 1 else {}
        opset = _OPSET_OF_AXES
    rows = None if codes.order is None else np.argsort(codes.order)

    def write(draft: Draft) -> ir.Value:
        names = ("codes", "scale", "zero_point")[: 3 if has_points else 2]
        tensors = codes.tensors(shape)
        operands = [draft.stored(*pair) for pair in zip(tensors, names, strict=False)]
        y = draft.node("DequantizeLinear", operands, attributes, dtype=_REAL)
        return y if rows is None else _rows(draft, y, draft.constant(rows.astype(np.int64), "rows"))

    return write, max(opset, QDQ_SINCE[codes.kind])


def _gathered(weights: _Weights, codes: BlockCodes) -> Write:
    """Return the draft of the weights with parameters gathered for each row."""
    form = codes.form
    groups = np.arange(form.k) // form.size if weights.groups is None else weights.groups

    def write(draft: Draft) -> ir.Value:
        rows = draft.constant(groups.astype(np.int64), "rows")
        packed, scale, _ = codes.tensors((form.blocks, form.n))
        y = _cast(draft, draft.stored(packed, "codes"), _REAL)
        zero = _rows(draft, np.ascontiguousarray(weights.zero), rows)
        y = draft.node("Sub", [y, zero], dtype=_REAL)
        factor = _rows(draft, draft.stored(scale, "scale"), rows)
        return draft.node("Mul", [y, factor], dtype=_REAL)

    return write


def _rows(draft: Draft, table: Operand, rows: ir.Value) -> ir.Value:
    return draft.node("Gather", [table, rows], {"axis": 0}, dtype=_REAL)


def _product(draft: Draft, node: ir.Node, weights: Operand) -> ir.Value:
    a, bias = node.inputs[0], input_of(node, 5)
    type_name = _data_type(node)
    narrow = type_name is not None and type_name is not _REAL
    operands = [_cast(draft, a, _REAL) if narrow else a, weights]
    y = draft.node("MatMul", operands, dtype=_REAL)
    if bias is not None:
        y = draft.node("Add", [y, _cast(draft, bias, _REAL) if narrow else bias], dtype=_REAL)
    return _cast(draft, y, type_name) if narrow and type_name is not None else y


def _data_type(node: ir.Node) -> ir.DataType | None:
    """Return the type of the data, which is that of the scales."""
    for value in (node.inputs[2], node.inputs[0]):
        if value is not None and value.dtype is not None:
            return value.dtype
    return None


def _cast(draft: Draft, value: ir.Value | None, to: ir.DataType) -> ir.Value:
    return draft.node("Cast", [value], {"to": to.value}, dtype=to)
