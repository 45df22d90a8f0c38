"""Codes of a MatMulNBits as a matrix, made while the model is saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import OperatorError
from qgraph.graph.edit import Draft
from qgraph.graph.folding import constant_expression, constant_stream
from qgraph.kernels.mat_mul_n_bits import Weights
from qgraph.numerics.formats import FORMATS, numpy_dtype
from qgraph.numerics.packing import pack
from qgraph.tensors.deferred import DeferredTensor
from qgraph.tensors.streaming import Sink, Stream

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Codes:
    """Codes of the type ``kind``, ``[K, N]``, counted from ``middle``.

    Attributes:
        source: the packed codes of a MatMulNBits.
        form: how they are packed.
        kind: integer type that they get.
        middle: what is subtracted.
        order: of the rows; None where they stay as they are.
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
            raise OperatorError("its codes are only known at run time")
        return _matrix(packed, self.form, self.kind, self.middle, self.order)

    def draft(self, draft: Draft) -> ir.Value:
        """Return an operand that holds the codes, which are not kept in memory."""
        stream = constant_stream(self.source)
        if stream is None:
            return draft.constant(self.array(), "codes")
        part = _Part(stream, self.form, self.kind, self.middle, self.order)
        shape = (self.form.k, self.form.n)
        return draft.stored(DeferredTensor(_Job(part), 0, ir.DataType[self.kind], shape), "codes")


@dataclass(frozen=True, eq=False)
class _Job:
    """Work in one part."""

    part: _Part

    def parts(self) -> Sequence[_Part]:
        return [self.part]

    def conclude(self, results: Sequence[Any]) -> None:
        """Values have been compared when the work was planned."""


@dataclass(frozen=True, eq=False)
class _Part:
    stream: Stream
    form: Weights
    kind: str
    middle: int
    order: Array | None

    @property
    def reads(self) -> int:
        return self.stream.nbytes

    def __call__(self, sinks: Sequence[Sink]) -> None:
        codes = _matrix(self.stream.array(), self.form, self.kind, self.middle, self.order)
        bits = FORMATS[self.kind].bits
        data = np.ascontiguousarray(codes).view(np.uint8).reshape(-1)
        sinks[0].write(0, data if bits == 8 else pack(data, bits))


def _matrix(packed: Array, form: Weights, kind: str, middle: int, order: Array | None) -> Array:
    codes = form.codes(packed).reshape(form.n, -1)[:, : form.k].T
    codes = codes if order is None else codes[order]
    # Differences wrap around in a byte, and the low bits are those of the narrow type.
    shifted = np.ascontiguousarray(codes) - np.uint8(middle)
    return (
        shifted.view(np.int8).astype(numpy_dtype(kind))
        if middle
        else shifted.astype(numpy_dtype(kind))
    )
