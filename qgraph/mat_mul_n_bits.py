"""MatMulNBits of com.microsoft: a matrix product with weights stored as blocks of narrow codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import UnsupportedError, where
from qgraph.kernels import Kernel, matmul
from qgraph.numerics.packing import unpack
from qgraph.ops import chunks, parameters

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

DOMAIN = "com.microsoft"
_WIDTHS = (2, 4, 8)


def is_mat_mul_n_bits(node: ir.Node) -> bool:
    """Return whether ``node`` is a MatMulNBits."""
    return (node.domain, node.op_type) == (DOMAIN, "MatMulNBits")


def mat_mul_n_bits(node: ir.Node) -> Kernel:
    """Return a kernel for a MatMulNBits node, of exactly the product that its weights define.

    w[n, k] = (code[n, k] - zero_point[n, k // block_size]) * scale[n, k // block_size]
    y = a @ w.T + bias                             one rounding per operation, sums in float32

    ``accuracy_level`` allows runtimes to round the data as well; here it has no effect.

    Inputs of the kernel: a ``[*batch, K]``; codes ``[N, blocks, block_size * bits / 8]`` bytes, the
    first code in the low bits, the last block padded; scales ``[N, blocks]``, also flat; zero
    points, 2**(bits - 1) if absent, packed like the codes with each row of ``[N, blocks]`` filled
    up to whole bytes, or one number each; g_idx, which has to be k // block_size; bias ``[N]``.

    Raises:
        UnsupportedError: codes are not of 2, 4 or 8 bits, or blocks are no whole bytes.
    Source: ONNX Runtime's documentation of its operators, MatMulNBits-1.
    """
    get = node.attributes.get_int
    k, n, bits, size = get("K", 0), get("N", 0), get("bits", 4), get("block_size", 0)
    if bits not in _WIDTHS or size < 1 or size * bits % 8 or k < 1 or n < 1:
        raise UnsupportedError(
            f"{where(node)}: K = {k}, N = {n}, bits = {bits}, block_size = {size}; expected a "
            "matrix that is not empty, 2, 4 or 8 bits, and blocks of whole bytes. Write its "
            "weights as DequantizeLinear and MatMul."
        )
    weights = _Weights(k, n, bits, size)

    def run(
        a: Array,
        codes: Array,
        scales: Array,
        zero_points: Array | None = None,
        groups: Array | None = None,
        bias: Array | None = None,
    ) -> list[Array]:
        data = parameters.real_data(a)
        if data.shape[-1:] != (k,):
            raise ValueError(f"its data has shape {list(data.shape)}, expected [..., {k}]")
        if groups is not None and not np.array_equal(groups[:k], np.arange(k) // size):
            raise ValueError("g_idx sorts the rows into other groups, expected k // block_size")
        wide = np.float64 if data.dtype == np.float64 else np.float32
        w = weights.values(codes, scales, zero_points).astype(wide, copy=False)
        y = matmul(data.astype(wide, copy=False), w.T)
        if bias is not None:
            y += bias.astype(wide, copy=False)
        return [y.astype(data.dtype, copy=False)]

    return run


class _Weights:
    """Codes and their parameters as a matrix of ``n`` rows and ``k`` columns."""

    def __init__(self, k: int, n: int, bits: int, size: int) -> None:
        self._k, self._n, self._bits, self._size = k, n, bits, size
        self._blocks = -(-k // size)

    def values(self, codes: Array, scales: Array, zero_points: Array | None) -> Float32:
        """Return the weights ``[n, k]``."""
        n, blocks, size = self._n, self._blocks, self._size
        q = self._unpack("codes", codes, n * blocks * size // (8 // self._bits))
        s = _shaped("scales", scales.astype(np.float32), n, blocks)
        z = self._zero_points(zero_points)
        w = np.empty((n, blocks, size), np.float32)

        def work(w: Array, q: Array, s: Array, z: Array) -> None:
            np.subtract(q, z, out=w)
            np.multiply(w, s, out=w)

        chunks.fill(work, w, q.reshape(w.shape), s[:, :, None], z[:, :, None])
        return w.reshape(n, -1)[:, : self._k]

    def _zero_points(self, given: Array | None) -> Float32:
        n, blocks = self._n, self._blocks
        if given is None:
            return np.full((n, blocks), 1 << (self._bits - 1), np.float32)
        row = -(-blocks * self._bits // 8)
        # Some exporters write one byte for each; the size tells.
        if given.dtype == np.uint8 and given.size == n * row:
            rows = self._unpack("zero points", given, n * row).reshape(n, -1)
            return rows[:, :blocks].astype(np.float32)
        return _shaped("zero points", given.astype(np.float32), n, blocks)

    def _unpack(self, name: str, data: Array, size: int) -> npt.NDArray[np.uint8]:
        if data.dtype != np.uint8 or data.size != size:
            raise ValueError(
                f"its {name} are {data.dtype}{list(data.shape)}, expected {size} uint8"
            )
        flat = data.reshape(-1)
        return flat if self._bits == 8 else unpack(flat, self._bits, size * 8 // self._bits)


def _shaped(name: str, data: Float32, rows: int, columns: int) -> Float32:
    if data.size != rows * columns:
        raise ValueError(f"its {name} have shape {list(data.shape)}, expected [{rows}, {columns}]")
    return data.reshape(rows, columns)
