"""Decode the weights of a MatMulNBits some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from qgraph.graph.streaming import Stream
from qgraph.numerics import Array, Float32
from qgraph.ops.kernels.mat_mul_n_bits import Weights

_STRIP_BYTES = 1 << 25
"""Maximum number of packed codes in memory at a time."""


class PackedRows(ir.LazyTensor):
    """The decoded matrix ``[K, N]`` of packed codes, decoded on access.

    Args:
        form: the layout of the packed weights.
        codes, scales: the stored tensors; data in a file are not loaded as a whole.
        zero_points: the stored zero points, or None.
        name: name of the tensor.

    Attributes:
        form, codes, scales, zero_points: see the arguments.
    """

    def __init__(
        self, form: Weights, codes: Stream, scales: Stream, zero_points: Array | None, name: str
    ) -> None:
        shape = ir.Shape((form.k, form.n))
        super().__init__(self._whole, ir.DataType.FLOAT, shape, name=name)
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

    def _whole(self) -> ir.TensorProtocol:
        return ir.Tensor(self.rows(0, self.form.k))

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
        for place, piece in self.codes.pieces(multiple=width):
            found = piece.reshape(-1, width)[:, first * each : last * each]
            codes[place // width : place // width + len(found)] = found
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
        """Return codes, scales and zero points of some of the blocks."""
        each = self.codes.shape[1] // (self.last - self.first)
        cut = slice(first - self.first, last - self.first)
        codes = self.codes[:, cut.start * each : cut.stop * each]
        return codes, self.scales[:, cut], self.zero[:, cut]
