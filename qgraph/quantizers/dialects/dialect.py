"""What a dialect is: a reader and a writer of quantizers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Protocol

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Editor
from qgraph.graph.schema import OpKey
from qgraph.numerics import Array, Float32
from qgraph.ops.operator import operator_of
from qgraph.quantizers.site import Refusal, Site
from qgraph.registry import Registry


class Dialect(Protocol):
    """One way to write quantizers.

    Attributes:
        name: as in ``--to name``.
        roots: the operators that its reader starts from.
    """

    name: ClassVar[str]
    roots: ClassVar[frozenset[OpKey]]

    def read(self, node: ir.Node) -> Site | Refusal | None:
        """Return the quantizer whose root is ``node``; None if it is none of this dialect.

        Raises:
            OperatorError: the node violates its operator's definition.
        """

    def spellings(self, site: Site, editor: Editor) -> Iterator[Draft]:
        """Yield the forms of ``site`` in this dialect, the tightest first, the plainest last."""

    def reason(self, site: Site) -> str:
        """Return why the dialect has no equal form."""


DIALECTS: Registry[Dialect] = Registry("dialect", "qgraph.quantizers.dialects")


def dialect(cls: type[Dialect]) -> type[Dialect]:
    """Register a dialect class under its name."""
    DIALECTS.add(cls.name)(cls())
    return cls


def parameter(node: ir.Node, value: ir.Value | None, name: str) -> Float32:
    """Return a constant parameter of a quantizer as float32.

    Raises:
        OperatorError: it is computed at run time, or has no element.
    """
    array = constant_expression(value)
    if array is None:
        array = _decoded(value)
    if array is None:
        label = value.name if value is not None else ""
        raise OperatorError(
            f"{where(node)}: {name} {label!r} is not a constant, so that the quantizer is only "
            "known at run time. Store it as a constant, or export the model with fixed sizes."
        )
    if array.dtype.kind in "cOSU":
        raise OperatorError(f"{where(node)}: {name} is {array.dtype}, expected real numbers.")
    if array.size == 0:
        raise OperatorError(f"{where(node)}: {name} has no element, expected at least one.")
    return array.astype(np.float32, copy=False)


def _decoded(value: ir.Value | None) -> Array | None:
    """Return a parameter that is stored as codes of its own: a DequantizeLinear of constants."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "DequantizeLinear":
        return None
    arrays = [constant_expression(operand) for operand in node.inputs]
    operator = operator_of(node)
    if operator is None or any(array is None for array in arrays):
        return None
    return operator.run(node, arrays)


def try_out(node: ir.Node, x: ir.Value, *parameters: Float32) -> None:
    """Let the operator of ``node`` check its parameters, on as few zeros as they allow.

    Raises:
        OperatorError: a parameter violates the definition, or does not fit to ``x``.
    """
    operator = operator_of(node)
    if operator is None:
        return
    try:
        sizes = list(np.broadcast_shapes(*(parameter.shape for parameter in parameters)))
    except ValueError as error:
        raise OperatorError(f"{where(node)}: {error}. Correct the model's exporter.") from error
    if x.shape is not None:
        sizes = [1] * (len(x.shape) - len(sizes)) + sizes[max(len(sizes) - len(x.shape), 0) :]
        for axis, size in enumerate(x.shape):
            if sizes[axis] != 1 and isinstance(size, int):
                sizes[axis] = size
    attributes = operator.schema.attributes_of(node)
    given = tuple((array.shape, array.tobytes()) for array in parameters)
    absent = tuple(value is None for value in node.inputs)
    key = operator.schema.name, operator.schema.since, repr(attributes), absent, tuple(sizes), given
    if key in _PASSED:
        return
    operator.run(node, [np.zeros(sizes, np.float32), *parameters])
    if sum(array.nbytes for array in parameters) <= _FEW_BYTES:
        if len(_PASSED) >= _MOST_PASSED:
            _PASSED.clear()
        _PASSED.add(key)


_PASSED: set[tuple[object, ...]] = set()
"""Operators with parameters that were found to be right."""
_MOST_PASSED = 1 << 12
_FEW_BYTES = 256


def data_of(draft: Draft, site: Site) -> ir.Value:
    """Return the float values that a quantizer of another dialect is put on.

    Where ``site`` decodes stored codes, these are the decoded values.
    """
    # The output of a Constant node need not have a type; its tensor has one.
    kind = site.weight.kind if site.weight is not None else site.x.dtype and site.x.dtype.name
    if kind in (None, ir.DataType.FLOAT.name) or site.values is None:
        return draft.x
    return draft.constant(site.values, "weight")
