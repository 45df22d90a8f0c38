"""The pass ``raise-mat-mul-n-bits``: MatMul and Gemm with stored codes as MatMulNBits."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError, OptionError, where
from qgraph.exactness import Exactness, Method, Verdict, Witness
from qgraph.graph.constants import constant_stream
from qgraph.graph.edit import Draft, Operand
from qgraph.graph.schema import MICROSOFT
from qgraph.graph.scopes import input_of, inputs_of, producer_of
from qgraph.graph.streaming import PIECE, Stream, box_at
from qgraph.model import Model
from qgraph.numerics.formats import FORMATS, IntFormat, container
from qgraph.ops.kernels.mat_mul_n_bits import Weights
from qgraph.ops.operator import operator_of
from qgraph.quantizers.weights.level_table import numbers_of
from qgraph.quantizers.weights.piecewise import ElementProgram, pieces
from qgraph.reports import Report
from qgraph.transforms.base import Transform, exact_option, option, transform
from qgraph.transforms.drafts.rebuilding import Rebuild, read_all, rebuild
from qgraph.transforms.weights.packed_blocks import PackedBlocks

_LEAST_BLOCK = 16
_LEVELS = range(5)
_WIDTHS = (2, 4, 8)
_SCALES = ("FLOAT", "FLOAT16", "BFLOAT16")


@transform("raise-mat-mul-n-bits")
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

    preserves: ClassVar[Exactness] = Exactness.VALUES

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

        return Rebuild(node, (node,), _compared(decode[0], blocks), write)


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


def _compared(decode: ir.Node, blocks: PackedBlocks) -> Verdict:
    """Compare the weights of a DequantizeLinear with those of a MatMulNBits.

    Both are ``(code - zero_point) * scale``, and the difference is exact. MatMulNBits rounds the
    product to float32, the other one to its own type.
    """
    codes, x, y = blocks.codes, decode.inputs[0], decode.outputs[0]
    is_float = decode.attributes.get_int("output_dtype", 0) in (0, ir.DataType.FLOAT.value)
    if blocks.scale.kind == "FLOAT" and is_float:
        return Verdict(Exactness.BITS, Method.CONGRUENCE)
    program = None if x is None else ElementProgram.of([decode], x, y, codes.shape)
    if program is None:
        raise OperatorError(f"{where(decode)}: its weights cannot be compared; use float32 scales")
    scale, *points = program.parameters
    differing, witness = 0, None
    for first, last in pieces(program.shapes, 0, codes.size, PIECE):
        corner, sizes = box_at(codes.shape, first, last - first)
        numbers = numbers_of(codes.read(first, last).view(container(codes.kind)), codes.kind)
        before = program(numbers, first).astype(np.float32)
        steps = numbers.reshape(sizes).astype(np.float32)
        after = (steps - sum(p.at(corner, sizes) for p in points)) * scale.at(corner, sizes)
        wrong = np.flatnonzero(before != after.reshape(-1))
        if wrong.size and witness is None:
            at = int(wrong[0])
            witness = Witness(float(first + at), float(before[at]), float(after.flat[at]))
        differing += wrong.size
    if witness is None:
        return Verdict(Exactness.BITS, Method.CONSTANT)
    reason = f"only DequantizeLinear rounds {differing} weights to its 16 bits"
    return Verdict(Exactness.CODES, Method.CONSTANT, differing, witness=witness, reason=reason)
