"""Codes with constant parameters of the whole tensor, and the real numbers they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.graph.edit import Draft, Operand
from qgraph.transforms.integers.code_pairs import code_type, known_parameter

Array = npt.NDArray[Any]


class Coded:
    """Codes and their parameters.

    Args:
        node: what reads them.
        codes, scale, zero: its inputs; no zero point is 0.
        others: values of the same type, which may be known where that of the codes is not.

    Attributes:
        codes: the value.
        dtype: int8 or uint8.
        scale, zero: constants without axes; the zero point is of type ``dtype``.

    Raises:
        OperatorError: a parameter is only known at run time, or the type not at all.
    """

    def __init__(
        self,
        node: ir.Node,
        codes: ir.Value | None = None,
        scale: ir.Value | None = None,
        zero: ir.Value | None = None,
        *others: ir.Value | None,
    ) -> None:
        if codes is None:
            raise OperatorError(f"{where(node)}: an input is missing, expected codes.")
        self.codes = codes
        self.dtype = code_type(node, codes, zero, *others)
        self.scale: Array = known_parameter(node, scale, None)
        self.zero: Array = known_parameter(node, zero, self.dtype)

    def decoded(self, draft: Draft) -> ir.Value:
        """Draft the real numbers that the codes stand for."""
        operands: list[Operand | None] = [self.codes, self.scale, self.zero]
        return draft.node("DequantizeLinear", operands, dtype=ir.DataType.FLOAT)


def read_one(node: ir.Node) -> tuple[Coded, Array, Array]:
    """Read ``x, s_x, z_x, s_y, z_y``: codes, and scale and zero point of the result."""
    x, s_x, z_x, s_y, z_y = [*node.inputs, *[None] * (5 - len(node.inputs))][:5]
    codes = Coded(node, x, s_x, z_x, z_y)
    return codes, *coded_result(node, s_y, z_y, codes.dtype)


def coded_result(
    node: ir.Node, scale: ir.Value | None, zero: ir.Value | None, dtype: np.dtype[Any]
) -> tuple[Array, Array]:
    """Return scale and zero point of the result."""
    return known_parameter(node, scale, None), known_parameter(node, zero, dtype)
