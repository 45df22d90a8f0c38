"""MatMulNBits of com.microsoft: a matrix product with weights stored as blocks of narrow codes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.conditions import DATA_NOT_ROUNDED, SUMMED_ALIKE, Condition
from qgraph.errors import UnsupportedError, where
from qgraph.graph.schema import MICROSOFT
from qgraph.graph.streaming import Stream
from qgraph.numerics import Array, Float32, chunks
from qgraph.numerics.formats import pack, unpack
from qgraph.ops import steps
from qgraph.ops.kernels.kernel import Kernel
from qgraph.ops.kernels.standard import matmul
from qgraph.records import dataclass

_WIDTHS = (2, 4, 8)

ROUNDS_DATA = 4
"""The ``accuracy_level`` that allows runtimes to round the data to 8 bits."""


def is_mat_mul_n_bits(node: ir.Node) -> bool:
    """Return whether ``node`` is a MatMulNBits."""
    return (node.domain, node.op_type) == (MICROSOFT, "MatMulNBits")


def conditions(nodes: Iterable[ir.Node]) -> list[Condition]:
    """Return the conditions under which those of MatMulNBits are products with decoded weights."""
    products = list(filter(is_mat_mul_n_bits, nodes))
    levels = {node.attributes.get_int("accuracy_level", 0) for node in products}
    own = [SUMMED_ALIKE] if products else []
    return own + ([DATA_NOT_ROUNDED] if ROUNDS_DATA in levels else [])


def mat_mul_n_bits(node: ir.Node) -> Kernel:
    """Return a kernel for a MatMulNBits node, of exactly the product that its weights define.

    w[n, k] = (code[n, k] - zero_point[n, g[k]]) * scale[n, g[k]]
    y = a @ w.T + bias                             one rounding per operation, sums in float32

    ``accuracy_level`` allows runtimes to round the data as well; here it has no effect.

    Inputs of the kernel: a ``[*batch, K]``; codes ``[N, blocks, block_size * bits / 8]`` bytes, the
    first code in the low bits, the last block padded; scales ``[N, blocks]``, also flat; zero
    points, 2**(bits - 1) if absent, packed like the codes with each row of ``[N, blocks]`` filled
    up to whole bytes, or one number each; g_idx, the block ``g[k]`` whose parameters row k has,
    k // block_size if absent; bias ``[N]``.

    Raises:
        UnsupportedError: codes are not of 2, 4 or 8 bits, or blocks are no whole bytes.
    Source: ONNX Runtime's documentation of its operators, MatMulNBits-1.
    """
    weights = Weights.of(node)

    def run(
        a: Array,
        codes: Array,
        scales: Array,
        zero_points: Array | None = None,
        groups: Array | None = None,
        bias: Array | None = None,
    ) -> list[Array]:
        data = steps.real_data(a)
        if data.shape[-1:] != (weights.k,):
            raise ValueError(f"its data has shape {list(data.shape)}, expected [..., {weights.k}]")
        wide = np.float64 if data.dtype == np.float64 else np.float32
        w = weights.values(codes, scales, zero_points, groups).astype(wide, copy=False)
        y = matmul(data.astype(wide, copy=False), w.T)
        if bias is not None:
            y += bias.astype(wide, copy=False)
        return [y.astype(data.dtype, copy=False)]

    return run


@dataclass(frozen=True)
class Weights:
    """How a MatMulNBits stores a matrix ``[k, n]``: bits of a code, and rows that share a scale."""

    k: int
    n: int
    bits: int
    size: int

    @classmethod
    def of(cls, node: ir.Node) -> Weights:
        """Read the attributes of a node.

        Raises:
            UnsupportedError: codes are not of 2, 4 or 8 bits, or blocks are no whole bytes.
        """
        get = node.attributes.get_int
        k, n, bits, size = get("K", 0), get("N", 0), get("bits", 4), get("block_size", 0)
        if bits not in _WIDTHS or size < 1 or size * bits % 8 or k < 1 or n < 1:
            raise UnsupportedError(
                f"{where(node)}: K = {k}, N = {n}, bits = {bits}, block_size = {size}; expected a "
                "matrix that is not empty, 2, 4 or 8 bits, and blocks of whole bytes. Write its "
                "weights as DequantizeLinear and MatMul."
            )
        if get("weight_prepacked", 0):
            raise UnsupportedError(
                f"{where(node)}: its weights are arranged for one kind of device "
                "(weight_prepacked), expected the order of the documentation. Export the model "
                "again without that."
            )
        return cls(k, n, bits, size)

    @property
    def blocks(self) -> int:
        """Scales of a column."""
        return -(-self.k // self.size)

    def values(
        self,
        codes: Array,
        scales: Array,
        zero_points: Array | None = None,
        groups: Array | None = None,
    ) -> Float32:
        """Return the weights ``[n, k]``.

        Raises: ValueError if an input has another form than the attributes say.
        """
        q = self.codes(codes)
        s, z = self.scales(scales), self.zero_points(zero_points)
        w = np.empty((self.n, self.blocks, self.size), np.float32)

        def work(w: Array, q: Array, s: Array, z: Array) -> None:
            np.subtract(q, z, out=w)
            np.multiply(w, s, out=w)

        if groups is None or self.is_sorted(groups):
            chunks.fill(work, w, q, s[:, :, None], z[:, :, None])
            return w.reshape(self.n, -1)[:, : self.k]
        picked = self.groups(groups)
        w = np.empty((self.n, self.k), np.float32)
        q = q.reshape(self.n, -1)[:, : self.k]
        return chunks.fill(work, w, q, s[:, picked], z[:, picked])

    def codes(self, data: Array) -> npt.NDArray[np.uint8]:
        """Return the codes ``[n, blocks, size]``, those beyond ``k`` included."""
        total = self.n * self.blocks * self.size
        return self._unpack("codes", data, total * self.bits // 8).reshape(self.n, -1, self.size)

    def check(self, codes: Stream, scales: Stream) -> None:
        """Raise ValueError if codes and scales do not fill the matrix; they are not read."""
        total = self.n * self.blocks * self.size
        self._check("codes", codes.dtype, codes.shape, total * self.bits // 8)
        if scales.size != self.n * self.blocks:
            raise _misshaped("scales", scales.shape, self.n, self.blocks)

    def scales(self, data: Array) -> Float32:
        """Return the scales ``[n, blocks]``."""
        return _shaped("scales", data.astype(np.float32, copy=False), self.n, self.blocks)

    def zero_points(self, points: Array | None) -> Float32:
        """Return the zero points ``[n, blocks]``."""
        n, blocks = self.n, self.blocks
        if points is None:
            return np.broadcast_to(np.float32(1 << (self.bits - 1)), (n, blocks))
        if self.has_packed_points(points):
            rows = self._unpack("zero points", points, points.size).reshape(n, -1)
            return rows[:, :blocks].astype(np.float32)
        return _shaped("zero points", points.astype(np.float32), n, blocks)

    def has_packed_points(self, points: Array) -> bool:
        """Return whether zero points are packed like codes, and so are codes."""
        # Some exporters write one byte for each; the size tells.
        row = -(-self.blocks * self.bits // 8)
        return points.dtype == np.uint8 and points.size == self.n * row

    def is_sorted(self, groups: Array) -> bool:
        """Return whether g_idx says what holds without it."""
        return np.array_equal(groups[: self.k], np.arange(self.k) // self.size)

    def groups(self, order: Array) -> npt.NDArray[np.int64]:
        """Return the block of each row, ``[k]``."""
        picked = order.reshape(-1)[: self.k].astype(np.int64)
        if picked.size != self.k or picked.min() < 0 or picked.max() >= self.blocks:
            raise ValueError(
                f"its g_idx has shape {list(order.shape)}, expected a block from 0 to "
                f"{self.blocks - 1} for each of {self.k} rows"
            )
        return picked

    def pack_zero_points(self, points: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return zero points ``[n, blocks]`` as they are stored, each row in whole bytes."""
        each = 8 // self.bits
        padded = np.zeros((self.n, -(-self.blocks // each) * each), np.uint8)
        padded[:, : self.blocks] = points
        data = padded if self.bits == 8 else pack(padded, self.bits)
        return data.reshape(self.n, -1)

    @staticmethod
    def _check(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], size: int) -> None:
        if dtype != np.uint8 or math.prod(shape) != size:
            raise ValueError(f"its {name} are {dtype}{list(shape)}, expected {size} uint8")

    def _unpack(self, name: str, data: Array, size: int) -> npt.NDArray[np.uint8]:
        self._check(name, data.dtype, data.shape, size)
        flat = data.reshape(-1)
        return flat if self.bits == 8 else unpack(flat, self.bits, size * 8 // self.bits)


def _shaped(name: str, data: Float32, rows: int, columns: int) -> Float32:
    if data.size != rows * columns:
        raise _misshaped(name, data.shape, rows, columns)
    return data.reshape(rows, columns)


def _misshaped(name: str, shape: tuple[int, ...], rows: int, columns: int) -> ValueError:
    return ValueError(f"its {name} have shape {list(shape)}, expected [{rows}, {columns}]")
