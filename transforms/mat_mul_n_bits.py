"""Passes between MatMulNBits and products with stored codes.

``lower-mat-mul-n-bits``  MatMulNBits as DequantizeLinear and MatMul
``raise-mat-mul-n-bits``  MatMul and Gemm with stored codes as MatMulNBits
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError, OptionError, where
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.constants import constant_stream
from qgraph.graph.edit import Draft, Operand
from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.opset.versions import ceiling
from qgraph.graph.schema import MICROSOFT
from qgraph.graph.scopes import input_of, inputs_of, producer_of
from qgraph.graph.streaming import Stream
from qgraph.model import Model
from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.ops.integer.products import refuse_references
from qgraph.ops.kernels.mat_mul_n_bits import ROUNDS_DATA, Weights, is_mat_mul_n_bits
from qgraph.ops.operator import operator_of
from qgraph.records import dataclass, replace
from qgraph.reports import Report
from qgraph.transforms.base import Transform, exact_option, opset_option, option, transform
from qgraph.transforms.drafts.rebuilding import Rebuild, read_all, rebuild
from qgraph.transforms.weights.packed_blocks import BlockCodes, PackedBlocks

Write = Callable[[Draft], ir.Value]

_OPSET_OF_BLOCKS, _OPSET_OF_AXES = 21, 13
_REAL = ir.DataType.FLOAT


@transform("lower-mat-mul-n-bits", preserves=Exactness.BITS)
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
    types = (value.dtype for value in (node.inputs[2], node.inputs[0]) if value is not None)
    return next((dtype for dtype in types if dtype is not None), None)


def _cast(draft: Draft, value: ir.Value | None, to: ir.DataType) -> ir.Value:
    return draft.node("Cast", [value], {"to": to.value}, dtype=to)


_LEAST_BLOCK = 16
_LEVELS = range(5)
_WIDTHS = (2, 4, 8)
_SCALES = ("FLOAT", "FLOAT16", "BFLOAT16")


@transform("raise-mat-mul-n-bits", preserves=Exactness.VALUES)
class RaiseMatMulNBits(Transform):
    """Write MatMul and Gemm with packed weights as MatMulNBits.

    1. ``MatMul(a, DequantizeLinear(codes, s, z)) -> MatMulNBits(a, packed, s, z)``, also with a
       Transpose between, for codes of 2, 4 or 8 bits and scales per tensor, per column, or per
       block of rows.
    2. ``Gemm(a, b, c) -> Add(MatMulNBits(a, ...), c)`` with ``alpha = beta = 1``, no ``transA``.

    Signed codes and their zero points are shifted to unsigned ones. Scales that are not in blocks,
    or in blocks whose size is not a power of two, are repeated. Codes are packed while the model is
    saved, strip by strip, and compared. Weights that 16-bit scales round are counted.
    """

    block_size: int = option(128, help="rows of a block if scales have no blocks")
    accuracy_level: int = option(
        0, help="type to which runtimes may round the data: 0 unspecified, 1 float32, 4 int8"
    )
    exact: Exactness = exact_option()

    def check_options(self) -> None:
        """Raise an OptionError if options contradict each other."""
        if self.block_size < _LEAST_BLOCK or self.block_size & (self.block_size - 1):
            raise OptionError(
                f"block_size={self.block_size} is not usable; expected a power of two of "
                f"{_LEAST_BLOCK} or more."
            )
        if self.accuracy_level not in _LEVELS:
            raise OptionError(
                f"accuracy_level={self.accuracy_level} is unknown; expected 0 to {max(_LEVELS)}."
            )

    def apply(self, model: Model, report: Report) -> None:
        """Find products with stored codes and replace them."""
        nodes = (node for node in model.nodes("MatMul", "Gemm") if not node.domain)
        limit = model.ir.opset_imports.get("", 0)
        rebuild(model, read_all(model, nodes, self._raised), self.exact, report, limit=limit)

    def _raised(self, node: ir.Node) -> Rebuild | None:
        decode = _decoder(node.inputs[1])
        if decode is None:
            return None
        blocks = _blocks(node, *decode, self.block_size)
        form = blocks.form
        attributes = {"K": form.k, "N": form.n, "bits": form.bits, "block_size": form.size}
        if self.accuracy_level:
            attributes["accuracy_level"] = self.accuracy_level

        def write(draft: Draft) -> Operand:
            names = ("codes", "scales", "zero_points")
            operands: list[Operand | None] = [node.inputs[0]]
            operands += map(draft.stored, blocks.tensors(), names)
            dtype = ir.DataType[blocks.scale.kind]
            y = draft.node("MatMulNBits", operands, attributes, domain=MICROSOFT, dtype=dtype)
            added = input_of(node, 2)
            return y if added is None else draft.node("Add", [y, added], dtype=dtype)

        return Rebuild(node, (node,), blocks.compared(decode[0]), write)


def _decoder(weights: ir.Value | None) -> tuple[ir.Node, bool] | None:
    """Return the decoder of constant codes before a value, and whether it is transposed."""
    node = producer_of(weights)
    turned = False
    if node is not None and node.domain == "" and node.op_type == "Transpose":
        order = node.attributes.get_ints("perm", [1, 0])
        source = node.inputs[0]
        node = source.producer() if source is not None and list(order or []) == [1, 0] else None
        turned = True
    if node is None or node.op_type != "DequantizeLinear":
        return None
    return (node, turned) if constant_stream(node.inputs[0]) is not None else None


def _blocks(node: ir.Node, decode: ir.Node, turned: bool, preferred: int) -> PackedBlocks:
    """Return the weights of a product in blocks of rows, of a preferred number if they have none.

    Raises:
        OperatorError: MatMulNBits has no form for them.
    """
    if node.op_type == "Gemm":
        turned ^= bool(node.attributes.get_int("transB", 0))
        factors = {node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")}
        if node.attributes.get_int("transA", 0) or factors != {1.0}:
            raise OperatorError(f"{where(node)}: MatMulNBits has no transA, alpha or beta")
    operator = operator_of(decode)
    codes, scale, points = (constant_stream(value) for value in inputs_of(decode, 3))
    is_open = points is None and input_of(decode, 2) is not None
    if operator is None or codes is None or scale is None or is_open:
        raise OperatorError(f"{where(decode)}: its scale or zero point is not constant")
    rank = node.inputs[0].shape if node.inputs[0] is not None else None
    if len(codes.shape) != 2 or (rank is not None and len(rank) < 2):
        raise OperatorError(f"{where(node)}: MatMulNBits accepts matrices only")
    form = FORMATS.get(codes.kind)
    if not isinstance(form, IntFormat) or form.bits not in _WIDTHS:
        raise OperatorError(
            f"{where(decode)}: MatMulNBits has codes of 2, 4 or 8 bits only; if they fit, "
            "store them so with -p repack{to=int8} first"
        )
    if scale.kind not in _SCALES:
        raise OperatorError(
            f"{where(decode)}: its scales are {scale.kind}, and those of MatMulNBits are float32, "
            "float16 or bfloat16. Store float scales."
        )
    attributes = operator.schema.attributes_of(decode)
    axis, block = attributes["axis"] % 2, attributes["block_size"]
    _check_shapes(decode, codes, scale, points, axis, block)
    k, n = codes.shape[::-1] if turned else codes.shape
    if scale.size == 1:
        block = 0
    elif axis != int(turned) and block:
        raise OperatorError(f"{where(decode)}: its blocks run along the columns, not the rows")
    elif axis == int(turned) and not block:
        raise OperatorError(f"{where(decode)}: each row has its own scale")
    size = _part(block) if block else preferred
    return PackedBlocks(Weights(k, n, form.bits, size), codes, scale, points, turned, block // size)


def _check_shapes(
    decode: ir.Node, codes: Stream, scale: Stream, points: Stream | None, axis: int, block: int
) -> None:
    """Raise an OperatorError if parameters do not fit the codes."""
    sizes = list(codes.shape)
    sizes[axis] = -(-sizes[axis] // block) if block else sizes[axis]
    expected = sizes if block else [sizes[axis]]
    for parameter in (scale, points):
        if parameter is None or (parameter.size == 1 and scale.size == 1):
            continue
        if list(parameter.shape) != expected:
            raise OperatorError(
                f"{where(decode)}: a parameter has shape {list(parameter.shape)}, expected "
                f"{expected} for codes of shape {list(codes.shape)}. Correct the model's exporter."
            )


def _part(block: int) -> int:
    """Return the largest power of two that divides a block size."""
    size = block & -block
    if size < _LEAST_BLOCK:
        raise OperatorError(
            f"blocks of {block} rows do not divide into powers of two of {_LEAST_BLOCK} or more"
        )
    return size
