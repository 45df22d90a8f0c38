"""Write MatMulNBits and Gemm as MatMul; packed weights are decoded a few rows at a time.

MatMulNBits becomes a MatMul with its decoded weights, and Gemm without factors becomes a MatMul.
Both add a bias to the finished sum. ONNX does not define in which order any of them adds the
products. MatMulNBits of 16-bit floats computes in float32, and rounds the sum including its bias
once. Packed weights are also compared with others as codes.

A DequantizeLinear computes the same: ``(code - zero_point) * scale``, rounded once. The differences
are small integers. So equal differences and scales of equal bits give weights of equal bits. The
packed codes are not transposed by the code of the passes that store weights, so mistakes there are
found.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import numpy as np
import onnx_ir as ir

from qgraph.errors import UnsupportedError
from qgraph.graph.constants import constant_elements
from qgraph.graph.inference.rules import Unknown, given, require
from qgraph.graph.scopes import input_of, inputs_of
from qgraph.graph.streaming import Stream
from qgraph.numerics import Array, Float32
from qgraph.numerics.chunks import available_cores, transpose
from qgraph.ops.kernels.mat_mul_n_bits import Weights, is_mat_mul_n_bits
from qgraph.proof.matching.sums import replace_sum
from qgraph.records import dataclass, replace

_REALS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

_STRIP_BYTES = 1 << 25
"""Maximum number of packed codes in memory at a time."""


def has_packed_products(model: ir.Model) -> bool:
    """Return whether a model contains a MatMulNBits."""
    return any(is_mat_mul_n_bits(node) for node in model.graph)


def write_products(model: ir.Model) -> None:
    """Replace MatMulNBits and Gemm in the main graph of ``model``, in place, where possible."""
    for node in list(model.graph):
        with suppress(Unknown):
            if is_mat_mul_n_bits(node):
                _write_packed(node)
            elif node.domain == "" and node.op_type == "Gemm":
                _write_gemm(node)


def _write_packed(node: ir.Node) -> None:
    x, *packed, bias = inputs_of(node, 6)
    streams = [None if value is None else given(constant_elements(value)) for value in packed]
    x, codes, scales, (points, groups) = given(x), *map(given, streams[:2]), streams[2:]
    dtype = ir.DataType[scales.kind]  # data and product have the same type
    require(dtype in _REALS and x.dtype in (None, dtype))
    zero = None if points is None else points.array()
    order = None if groups is None else groups.array()
    name = f"{node.outputs[0].name}_weights"
    try:
        weights = Weights.of(node)
        weights.check(codes, scales)
    except (UnsupportedError, ValueError) as error:
        raise Unknown from error

    def values() -> ir.TensorProtocol:
        array = weights.values(codes.array(), scales.array(), zero, order)
        return ir.Tensor(np.ascontiguousarray(array.T))

    shape, real = ir.Shape((weights.k, weights.n)), ir.TensorType(ir.DataType.FLOAT)
    tensor: ir.LazyTensor = PackedRows(weights, codes, scales, zero, name)
    if order is not None and not weights.is_sorted(order):
        tensor = ir.LazyTensor(values, dtype=ir.DataType.FLOAT, shape=shape, name=name)
    value = ir.Value(name=name, type=real, shape=shape, const_value=tensor)
    if isinstance(node.graph, ir.Graph):
        node.graph.register_initializer(value)
        is_narrow = dtype is not ir.DataType.FLOAT
        if is_narrow:
            x, bias = _widened(x, node), None if bias is None else _widened(bias, node)
        total = ir.node("MatMul", [x, value])
        replace_sum(node, total, bias, narrowed=dtype if is_narrow else None)


def _widened(value: ir.Value, node: ir.Node) -> ir.Value:
    cast = ir.node("Cast", [value], {"to": ir.DataType.FLOAT.value})
    (wide,) = cast.outputs
    cast.name = wide.name = f"{node.outputs[0].name}_{value.name}_wide"
    wide.type, wide.shape = ir.TensorType(ir.DataType.FLOAT), value.shape
    node.prepend(cast)
    return wide


def _write_gemm(node: ir.Node) -> None:
    get = node.attributes
    x, matrix, bias = inputs_of(node, 3)
    x, matrix = given(x), given(matrix)
    require(get.get_float("alpha", 1.0) == 1 and get.get_float("beta", 1.0) == 1)
    require(get.get_int("transA", 0) == 0)
    if get.get_int("transB", 0):
        transposed = ir.node("Transpose", [matrix], {"perm": [1, 0]})
        transposed.name = transposed.outputs[0].name = f"{node.outputs[0].name}_matrix"
        transposed.outputs[0].type = matrix.type
        node.prepend(transposed)
        matrix = transposed.outputs[0]
    replace_sum(node, ir.node("MatMul", [x, matrix]), bias)


class PackedRows(ir.LazyTensor):
    """The decoded matrix ``[K, N]`` of packed codes, decoded on access.

    Data of stored tensors in a file are not loaded as a whole.
    """

    def __init__(
        self, form: Weights, codes: Stream, scales: Stream, zero_points: Array | None, name: str
    ) -> None:
        shape = ir.Shape((form.k, form.n))
        whole = lambda: ir.Tensor(self.rows(0, form.k))  # noqa: E731
        super().__init__(whole, ir.DataType.FLOAT, shape, name=name)
        self.form = form
        self.codes = codes
        self.scales = scales
        self.zero_points = zero_points
        self._strip: _Strip | None = None

    def rows(self, start: int, stop: int) -> Float32:
        """Return rows ``start`` to before ``stop``. Reading rows in order reads each block once."""
        form, size = self.form, self.form.size
        first, last = start // size, -(-stop // size)
        if self._strip is None or not self._strip.first <= first < last <= self._strip.last:
            self._strip = None
            most = max(self._strip_blocks, last - first)
            self._strip = self._read(first, min(first + most, form.blocks))
        codes, scales, zero = self._strip.part(first, last)
        part = replace(form, k=min(last * size, form.k) - first * size)
        values = part.values(np.ascontiguousarray(codes), scales, zero)
        if stop == form.k:
            self._strip = None
        return np.ascontiguousarray(values.T[start - first * size : stop - first * size])

    def strips(self) -> Iterator[tuple[int, Array]]:
        """Yield strips of packed codes ``[N, ...]``, each with its first row."""
        for first in range(0, self.form.blocks, self._strip_blocks):
            last = min(first + self._strip_blocks, self.form.blocks)
            yield first * self.form.size, self._packed(first, last)

    @property
    def _strip_blocks(self) -> int:
        form = self.form
        return max(_STRIP_BYTES // (form.n * form.size * form.bits // 8), 1)

    def _read(self, first: int, last: int) -> _Strip:
        scales = self.form.scales(self.scales.array())[:, first:last]
        zero = self.form.zero_points(self.zero_points)[:, first:last]
        return _Strip(first, last, self._packed(first, last), np.array(scales), np.array(zero))

    def _packed(self, first: int, last: int) -> Array:
        """Return the bytes of some blocks of all columns, ``[N, ...]``."""
        n, each = self.form.n, self.form.size * self.form.bits // 8
        width = self.codes.size // n
        if (first, last) == (0, self.form.blocks):
            return self.codes.read().reshape(n, width)
        codes = np.empty((n, (last - first) * each), np.uint8)
        for first_row, piece in self.codes.pieces(multiple=width):
            rows = piece.reshape(-1, width)[:, first * each : last * each]
            codes[first_row // width : first_row // width + len(rows)] = rows
        return codes


@dataclass(frozen=True, eq=False)
class _Strip:
    """Some blocks of all columns, from ``first`` to before ``last``."""

    first: int
    last: int
    codes: Array
    scales: Float32
    zero: Float32

    def part(self, first: int, last: int) -> tuple[Array, Float32, Float32]:
        each = self.codes.shape[1] // (self.last - self.first)
        cut = slice(first - self.first, last - self.first)
        codes = self.codes[:, cut.start * each : cut.stop * each]
        return codes, self.scales[:, cut], self.zero[:, cut]


_ELEMENTS = 1 << 19
"""Approximate number of codes that are compared at a time."""

_WIDTH = 128
"""Bytes of each row that are transposed at a time."""


def has_same_codes(packed: PackedRows, decode: ir.Node) -> bool:
    """Return whether a DequantizeLinear is known to give all bits of the packed weights ``[K, N]``.

    If False, they may be equal or different. Raises ModelError if the data of a constant cannot be
    read.
    """
    form = packed.form
    get = decode.attributes.get_int
    if (decode.domain, decode.op_type) != ("", "DequantizeLinear"):
        return False
    if (get("axis", 1), get("block_size", 0)) not in ((0, form.size), (-2, form.size)):
        return False
    codes, scales, points = (constant_elements(value) for value in inputs_of(decode, 3))
    kinds = f"UINT{form.bits}", f"INT{form.bits}"
    if codes is None or scales is None or codes.kind not in kinds:
        return False
    if codes.shape != (form.k, form.n) or scales.shape != (form.blocks, form.n):
        return False
    is_float = get("output_dtype", 0) in (0, ir.DataType.FLOAT.value)
    has_points = input_of(decode, 2) is not None
    if scales.kind != "FLOAT" or not is_float or has_points != (points is not None):
        return False
    middle = 1 << (form.bits - 1) if codes.kind == kinds[1] else 0
    with ThreadPoolExecutor(available_cores(), thread_name_prefix="qgraph") as threads:
        # In threads while the first codes are read.
        others = (
            threads.submit(_has_same_points, packed, points, middle),
            threads.submit(_has_same_scales, packed, scales),
        )
        is_transposed = _is_transposed(packed, codes, middle, threads)
        return is_transposed and all(other.result() for other in others)


def _has_same_points(packed: PackedRows, points: Stream | None, middle: int) -> bool:
    ours: Array = np.asarray(1 << (packed.form.bits - 1), np.float32)
    if packed.zero_points is not None:
        ours = packed.form.zero_points(packed.zero_points).T
    theirs = np.zeros((), np.int8) if points is None else points.array()
    return bool((ours - np.float32(middle) == theirs.astype(np.float32)).all())


def _has_same_scales(packed: PackedRows, scales: Stream) -> bool:
    ours, theirs = packed.form.scales(packed.scales.array()), scales.array()
    turned = np.empty_like(theirs)
    transpose(ours, turned)
    return np.array_equal(turned.view(np.uint32), theirs.view(np.uint32))


def _is_transposed(packed: PackedRows, codes: Stream, middle: int, threads: Executor) -> bool:
    """Return whether the packed codes minus ``middle`` equal the codes in the other layout."""
    is_same = partial(_is_transposed_part, packed.form, codes, middle)
    for first, strip in packed.strips():
        parts = [
            (first + left * 8 // packed.form.bits, strip[:, left : left + _WIDTH])
            for left in range(0, strip.shape[1], _WIDTH)
        ]
        if not all(threads.map(is_same, *zip(*parts, strict=True))):
            return False
    return True


def _is_transposed_part(form: Weights, codes: Stream, middle: int, first: int, part: Array) -> bool:
    """Compare some bytes of each row, in which codes from row ``first`` of the other layout are."""
    n, bits, each = form.n, form.bits, 8 // form.bits
    stored = codes.packed()
    if bits == 4 and n % 2 == 0 and stored is not None:
        return _is_transposed_pairs(form, stored, middle, first, part)
    turned = np.empty((part.shape[1], n), np.uint8)
    transpose(part, turned)
    step = max(_ELEMENTS // (n * each), 1) * each
    stop = min(first + part.shape[1] * each, form.k)
    for row in range(first, stop, step):
        count = min(step, stop - row)
        ours = turned[(row - first) // each :][: -(-count // each)]
        # What follows the last row has no meaning.
        ours[-1] &= np.uint8((1 << bits * (count % each or each)) - 1)
        theirs = codes.read(row * n, (row + count) * n).view(np.uint8)
        if not np.array_equal(ours, _joined(theirs, n, bits, middle)):
            return False
    return True


def _is_transposed_pairs(
    form: Weights, stored: Stream, middle: int, first: int, part: Array
) -> bool:
    """Compare codes of 4 bits, of which both layouts have two in a byte.

    A byte of ``part`` has two rows of one column, and a byte that is ``stored`` two columns.
    """
    width = form.n // 2
    word = np.dtype(np.uint64 if width % 8 == 0 else np.uint8)
    ones = ((1 << 8 * word.itemsize) - 1) // 255
    low, high, flip = (word.type(ones * mask) for mask in (0x0F, 0xF0, middle * 0x11))
    columns = np.empty((2, part.shape[1], width), np.uint8)
    for parity in range(2):
        transpose(part[parity::2], columns[parity])
    stop = min(first + 2 * part.shape[1], form.k)
    step = 2 * max(_ELEMENTS // form.n, 1)
    for row in range(first, stop, step):
        count = min(step, stop - row)
        theirs = np.zeros((-(-count // 2) * 2, width), np.uint8)
        stored.read(row * width, (row + count) * width, theirs[:count].reshape(-1))
        upper, lower = theirs.view(word)[::2] ^ flip, theirs.view(word)[1::2] ^ flip
        own = columns[:, (row - first) // 2 :][:, : len(upper)]
        if count % 2:  # what follows the last row has no meaning
            own[:, -1] &= np.uint8(0x0F)
            lower[-1] = 0
        joined = (
            (upper & low) | (lower << word.type(4)) & high,
            (upper >> word.type(4)) & low | lower & high,
        )
        if not all(np.array_equal(a.view(word), b) for a, b in zip(own, joined, strict=True)):
            return False
    return True


def _joined(codes: Array, n: int, bits: int, middle: int) -> Array:
    """Pack rows of ``n`` codes plus ``middle`` into bytes; the first row gets the lowest bits.

    The codes are whole rows, one code in each byte; they are overwritten.
    """
    word = np.dtype(np.uint64 if n % 8 == 0 else np.uint8)
    ones = ((1 << 8 * word.itemsize) - 1) // 255
    rows = codes.reshape(-1, n).view(word)
    rows ^= word.type(middle * ones)
    rows &= word.type(((1 << bits) - 1) * ones)
    joined = rows[:: 8 // bits]
    for i in range(1, 8 // bits):
        part = rows[i :: 8 // bits]
        part <<= word.type(bits * i)
        joined[: len(part)] |= part
    return joined.view(np.uint8)
