"""Codes that an operator takes, and the parameters that decode them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.graph.folding import constant_expression

Array = npt.NDArray[Any]
Parameter = Array | ir.Value
"""A constant, shaped so that it broadcasts, or the one element that a value will have."""


@dataclass(frozen=True, eq=False)
class Operand:
    """Codes and how they are decoded.

    Attributes:
        codes: int8 or uint8.
        dtype: of the codes.
        zero_point: aligned to the codes; None for 0.
        scale: aligned to the sums; None where there is none.
        axis: of the codes, along which zero point or scale differ; None if they do not.
    """

    codes: ir.Value
    dtype: np.dtype[Any]
    zero_point: Parameter | None = None
    scale: Parameter | None = None
    axis: int | None = None

    @property
    def known(self) -> Array | None:
        """The codes where they are constant."""
        return constant_expression(self.codes)

    @property
    def reach(self) -> int:
        """How far codes can be from their zero point."""
        limits = np.iinfo(self.dtype)
        zero = self.zero_point
        if isinstance(zero, ir.Value):
            return limits.max - limits.min
        if zero is None:
            return max(-limits.min, limits.max)
        return max(int(zero.max()) - limits.min, limits.max - int(zero.min()))


@dataclass(frozen=True)
class Place:
    """Where a parameter with several elements belongs.

    Attributes:
        axis: of the codes.
        after: axes of the codes that follow.
        after_sums: axes of the sums that follow; as many if None.
    """

    axis: int
    after: int
    after_sums: int | None = None

    @property
    def in_sums(self) -> Place:
        """The place of a parameter of the sums."""
        return self if self.after_sums is None else Place(self.axis, self.after_sums)


def refuse_references(node: ir.Node) -> None:
    """Refuse attributes that the caller of a function gives.

    Raises:
        OperatorError: there is one.
    """
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        raise OperatorError(
            f"{where(node)}: an attribute is left to the caller of the function, expected a "
            "value. Inline the function first."
        )


def read_operand(
    node: ir.Node,
    codes: ir.Value | None,
    zero_point: ir.Value | None,
    scale: ir.Value | None,
    place: Place | None = None,
) -> Operand:
    """Return codes with their parameters.

    Raises:
        OperatorError: their type is not known, or a parameter has another form.
    """
    if codes is None:
        raise OperatorError(f"{where(node)}: an input is missing. Correct the model's exporter.")
    dtype = _code_type(codes, zero_point)
    if dtype not in (np.dtype(np.int8), np.dtype(np.uint8)):
        raise OperatorError(
            f"{where(node)}: the codes {codes.name!r} are of type {dtype or 'unknown'}, expected "
            "int8 or uint8. Run shape inference first."
        )
    known = None if zero_point is None else read_parameter(node, zero_point, "zero point", place)
    if isinstance(known, np.ndarray) and not known.any():
        known = None
    ratio = None
    if scale is not None:
        ratio = read_parameter(node, scale, "scale", place and place.in_sums)
    several = any(isinstance(p, np.ndarray) and p.size > 1 for p in (known, ratio))
    if several and codes.shape is None:
        raise OperatorError(
            f"{where(node)}: the rank of {codes.name!r} is not known, so that its parameters "
            "cannot be placed. Run shape inference first."
        )
    return Operand(codes, dtype, known, ratio, place.axis if place and several else None)


def _code_type(codes: ir.Value, zero_point: ir.Value | None) -> np.dtype[Any] | None:
    for value in (codes, zero_point):
        if value is not None and value.dtype is not None:
            return value.dtype.numpy()
    return None


def read_parameter(
    node: ir.Node, value: ir.Value | None, name: str, place: Place | None
) -> Parameter:
    """Return a parameter, shaped for its place.

    Raises:
        OperatorError: it is absent, or known at run time only and may have several elements, or
            has several where there is no place for them.
    """
    if value is None:
        raise OperatorError(f"{where(node)}: {name} is missing. Correct the model's exporter.")
    array = constant_expression(value)
    if array is None:
        if value.shape is None or any(size != 1 for size in value.shape):
            raise OperatorError(
                f"{where(node)}: {name} {value.name!r} is only known at run time and not known to "
                "be one element. Run shape inference first, or fold constants."
            )
        return value
    if array.size == 1:
        return array.reshape(())
    if place is None:
        raise OperatorError(
            f"{where(node)}: {name} has shape {list(array.shape)}, expected one element."
        )
    if array.ndim > 1:
        return array
    return array.reshape(-1, *(1,) * place.after)
