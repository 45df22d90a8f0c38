"""The pass ``raise-mat-mul-n-bits``: MatMul and Gemm with stored codes as MatMulNBits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError, OptionError, where
from qgraph.exactness import Exactness, Method, Verdict, Witness
from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Operand
from qgraph.graph.schema import MICROSOFT
from qgraph.graph.scopes import input_of, producer_of
from qgraph.model import Model
from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.ops.kernels.mat_mul_n_bits import Weights
from qgraph.ops.operator import operator_of
from qgraph.reports import Report
from qgraph.transforms.base import Transform, exact_option, option, transform
from qgraph.transforms.drafts.rebuilding import Rebuild, read_all, rebuild

_LEAST_BLOCK = 16
_LEVELS = range(5)
_WIDTHS = (2, 4, 8)


@transform("raise-mat-mul-n-bits")
class RaiseMatMulNBits(Transform):
    """Write MatMul and Gemm with packed weights as MatMulNBits.

    1. ``MatMul(a, DequantizeLinear(codes, s, z)) -> MatMulNBits(a, packed, s, z)``, also with a
       Transpose between, for codes of 2, 4 or 8 bits and scales per tensor, per column, or per
       block of rows.
    2. ``Gemm(a, b, c) -> Add(MatMulNBits(a, ...), c)`` with ``alpha = beta = 1``, no ``transA``.

    Signed codes and their zero points are shifted to unsigned ones. Scales that are not in blocks,
    or in blocks that are no power of two, are repeated. All weights are compared, element by
    element.
    """

    block_size: int = option(128, help="rows of a block if scales have no blocks")
    accuracy_level: int = option(
        0, help="type to which runtimes may round the data: 0 unspecified, 1 float32, 4 int8"
    )
    exact: Exactness = exact_option()

    preserves: ClassVar[Exactness] = Exactness.VALUES

    def check_options(self) -> None:
        """Raise an OptionError for options that do not go together."""
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
        decoded = _Decoded.of(node, *decode)
        form, inputs = decoded.packed(self.block_size)
        verdict = _compare(form.values(*inputs), decoded.values)
        attributes = {"K": form.k, "N": form.n, "bits": form.bits, "block_size": form.size}
        if self.accuracy_level:
            attributes["accuracy_level"] = self.accuracy_level

        def write(draft: Draft) -> Operand:
            operands: list[Operand | None] = [node.inputs[0]]
            names = ("codes", "scales", "zero_points")
            operands += [
                draft.constant(array, name)
                for name, array in zip(names, inputs, strict=True)
                if array is not None
            ]
            dtype = ir.DataType.from_numpy(inputs[1].dtype)
            y = draft.node("MatMulNBits", operands, attributes, domain=MICROSOFT, dtype=dtype)
            added = input_of(node, 2)
            return y if added is None else draft.node("Add", [y, added], dtype=dtype)

        return Rebuild(node, (node,), verdict, write)


def _decoder(weights: ir.Value | None) -> tuple[ir.Node, bool] | None:
    """Return the DequantizeLinear of constant codes before a value, and if it is transposed."""
    node = producer_of(weights)
    turned = False
    if node is not None and node.domain == "" and node.op_type == "Transpose":
        order = node.attributes.get_ints("perm", [1, 0])
        source = node.inputs[0]
        node = source.producer() if source is not None and list(order or []) == [1, 0] else None
        turned = True
    if node is None or node.op_type != "DequantizeLinear":
        return None
    return (node, turned) if constant_expression(node.inputs[0]) is not None else None


@dataclass(frozen=True, eq=False)
class _Decoded:
    """Weights after a DequantizeLinear, transposed to ``[K, N]`` if needed.

    Attributes:
        values: what comes out.
        codes: unsigned, ``[K, N]``.
        bits: of a code.
        scale, zero: aligned to the codes, or with one row for each block.
        block: rows of a block; 0 if scales do not differ by rows.
    """

    values: Array
    codes: Array
    bits: int
    scale: Array
    zero: Array
    block: int

    @classmethod
    def of(cls, node: ir.Node, decode: ir.Node, turned: bool) -> _Decoded:
        """Read the weights of ``node``.

        Raises:
            OperatorError: MatMulNBits has no form for them.
        """
        if node.op_type == "Gemm":
            turned ^= bool(node.attributes.get_int("transB", 0))
            factors = {node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")}
            if node.attributes.get_int("transA", 0) or factors != {1.0}:
                raise OperatorError(f"{where(node)}: MatMulNBits has no transA, alpha or beta")
        operator = operator_of(decode)
        arrays = [constant_expression(value) for value in decode.inputs]
        codes, scale, zero = [*arrays, None][:3]
        if (
            operator is None
            or codes is None
            or scale is None
            or (zero is None and input_of(decode, 2) is not None)
        ):
            raise OperatorError(f"{where(decode)}: its scale or zero point is not constant")
        rank = node.inputs[0].shape if node.inputs[0] is not None else None
        if codes.ndim != 2 or (rank is not None and len(rank) < 2):
            raise OperatorError(f"{where(node)}: MatMulNBits accepts matrices only")
        form = FORMATS.get(ir.DataType.from_numpy(codes.dtype).name)
        if not isinstance(form, IntFormat) or form.bits not in _WIDTHS:
            raise OperatorError(
                f"{where(decode)}: MatMulNBits has codes of 2, 4 or 8 bits only; if they fit, "
                "store them so with -p repack{to=int8} first"
            )
        values = operator.run(decode, [codes, scale, zero])
        attributes = operator.schema.attributes_of(decode)
        points = np.zeros(scale.shape, np.int32) if zero is None else zero.astype(np.int32)
        shift = 1 << (form.bits - 1) if form.signed else 0
        axis, block = attributes["axis"] % 2, attributes["block_size"]
        if scale.size == 1:
            scale, points, block = scale.reshape(1, 1), points.reshape(1, 1), 0
        elif not block:
            sizes = (1, -1) if axis == 1 else (-1, 1)
            scale, points = scale.reshape(sizes), points.reshape(sizes)
        whole = (codes.astype(np.int32) + shift).astype(np.uint8)
        points = points + shift
        if turned:
            whole, scale, points, axis, values = (whole.T, scale.T, points.T, 1 - axis, values.T)
        if block and axis == 1:
            raise OperatorError(f"{where(decode)}: its blocks run along the columns, not the rows")
        if not block and scale.shape[0] > 1:
            raise OperatorError(f"{where(decode)}: each row has its own scale")
        return cls(values, whole, form.bits, scale, points, block)

    def packed(self, preferred: int) -> tuple[Weights, tuple[Array, Array, Array | None]]:
        """Return the layout of the weights, and their codes, scales and zero points.

        Raises:
            OperatorError: the blocks cannot be divided.
        """
        k, n = self.codes.shape
        size = _part(self.block) if self.block else preferred
        form = Weights(k, n, self.bits, size)
        scale, zero = self.scale, self.zero
        if self.block:
            times = self.block // size
            scale, zero = (np.repeat(p, times, axis=0)[: form.blocks] for p in (scale, zero))
        wide = (form.blocks, n)
        scale, zero = (np.ascontiguousarray(np.broadcast_to(p, wide).T) for p in (scale, zero))
        default = bool((zero == 1 << (self.bits - 1)).all())
        packed = None if default else form.pack_zero_points(zero.astype(np.uint8))
        return form, (form.pack(self.codes.T), scale, packed)


def _part(block: int) -> int:
    """Return the largest power of two that divides a block size."""
    size = block & -block
    if size < _LEAST_BLOCK:
        raise OperatorError(
            f"blocks of {block} rows do not divide into powers of two of {_LEAST_BLOCK} or more"
        )
    return size


def _compare(after: Array, decoded: Array) -> Verdict:
    """Compare weights ``[N, K]`` with ``[K, N]``."""
    before = decoded.T.astype(np.float32)
    wrong = np.flatnonzero(before != after)
    if not wrong.size:
        return Verdict(Exactness.BITS, Method.CONSTANT)
    first = int(wrong[0])
    witness = Witness(float(first), float(before.flat[first]), float(after.flat[first]))
    # 16-bit scales: only one of the two operators rounds the products to 16 bits.
    reason = f"only DequantizeLinear rounds {wrong.size} weights to {decoded.dtype}"
    return Verdict(
        Exactness.CODES, Method.CONSTANT, int(wrong.size), witness=witness, reason=reason
    )
