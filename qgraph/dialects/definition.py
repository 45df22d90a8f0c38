"""Spelling a quantizer by its operators' definitions: plain float operators, always exact."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.dialects.site import Site
from qgraph.errors import OperatorError
from qgraph.graph.edit import HALF_TYPES, Draft, Editor, Operand, Tracer
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.ops import parameters
from qgraph.ops.operator import Operator, operator_of
from qgraph.proof.cone import laid_out, parameter_array
from qgraph.quantizer import Floating


def by_definition(site: Site, editor: Editor) -> Iterator[Draft]:
    """Yield the quantizer in plain operators: first as defined, then for opsets without E8M0."""
    draft = editor.draft(site)
    try:
        _trace(site, draft, _Values(draft))
    except OperatorError:
        # written for float32 only, which the data, or a difference of codes, is not
        yield from _difference_of_codes(site, editor)
        return
    yield draft
    if isinstance(site.quantizer, Floating):
        low = editor.draft(site)
        _trace(site, low, _Binades(low, site.quantizer))
        yield low


def obstacle(site: Site) -> str | None:
    """Return why the definitions of a site's operators do not apply to it; None if they do."""
    try:
        for node in site.nodes:
            operator = operator_of(node)
            if operator is not None and site.x.dtype not in HALF_TYPES:
                operator.arguments(node)
    except OperatorError as error:
        return str(error)
    return None


def _trace(site: Site, draft: Draft, op: Tracer) -> None:
    data: Operand = draft.x
    if site.x.dtype not in (None, ir.DataType.FLOAT, *HALF_TYPES):
        # Stored codes: definitions speak of their float32 values.
        data = draft.op.Cast(draft.x, to=ir.DataType.FLOAT)
    known: dict[ir.Value, Operand] = {site.x: data}
    for node in site.nodes:
        operator = operator_of(node)
        operands: list[Any] = []
        for value in node.inputs if operator is None else operator.schema.values(node):
            if value is None or value in known:
                operands.append(None if value is None else known[value])
                continue
            operands.append(parameter_array(node, value, site.shape))
        if operator is None:
            attributes = {name: found.value for name, found in node.attributes.items()}
            known[node.outputs[0]] = getattr(op, node.op_type)(*operands, **attributes)
            continue
        is_half = site.x.dtype in HALF_TYPES
        arguments = half_arguments(operator, node) if is_half else operator.arguments(node)
        known[node.outputs[0]] = operator.define(op, *operands, **arguments)
    draft.giving(known[site.y])


def _difference_of_codes(site: Site, editor: Editor) -> Iterator[Draft]:
    """Yield ``Cast(codes - zero_point) * scale`` with the difference in int32, for INT32 codes."""
    node = site.root
    if len(site.nodes) > 1 or node.op_type != "DequantizeLinear" or len(node.inputs) < 3:
        return
    scale, zero_point = node.inputs[1:3]
    if scale is None or zero_point is None or site.y.dtype not in (None, ir.DataType.FLOAT):
        return
    laid = [laid_out(node, value, site.shape) for value in (scale, zero_point)]
    if site.x.dtype is not ir.DataType.INT32 or laid[0].dtype != np.float32:
        return
    draft = editor.draft(site)
    steps = draft.node("Sub", [draft.x, laid[1]], dtype=ir.DataType.INT32)
    yield draft.giving(draft.op.Mul(draft.op.Cast(steps, to=ir.DataType.FLOAT), laid[0]))


def half_arguments(operator: Operator, node: ir.Node) -> dict[str, Any]:
    """Return the arguments of a definition for data of 16 bits.

    What it then computes need not be what the operator does, which has more digits in between;
    that is compared.
    """
    arguments = operator.schema.attributes_of(node)
    if node.op_type == "QuantizeLinear":
        zero_point = node.inputs[2] if len(node.inputs) > 2 else None
        known = parameters.element_type(zero_point) or arguments["output_dtype"]
        arguments["to"] = known or ir.DataType.UINT8
    return arguments


class _Values(Tracer):
    """Keeps integer codes as the float32 values that definitions take them for."""

    def Cast(self, v: Operand, **attributes: Any) -> Operand:  # noqa: N802 - an ONNX operator
        """Leave whole numbers in float where a cast to an integer type is asked for."""
        if v.dtype in HALF_TYPES and attributes["to"] == ir.DataType.FLOAT:
            return v
        if isinstance(FORMATS.get(ir.DataType(attributes["to"]).name), IntFormat):
            return v
        return self._call("Cast", [v], attributes)


class _Binades(_Values):
    """Finds the power of two below |v| by comparing it with every binade of the format.

    E8M0, which gives it in one cast, exists since opset 24 only.
    """

    def __init__(self, draft: Draft, quantizer: Floating) -> None:
        super().__init__(draft)
        grid = quantizer.format
        self._exponents = range(1 - grid.bias, math.frexp(grid.max_value)[1])
        self._power: Operand | None = None

    def Cast(self, v: Operand, **attributes: Any) -> Operand:  # noqa: N802 - an ONNX operator
        """Return the power of two where a cast to E8M0 is asked for."""
        if attributes["to"] == ir.DataType.FLOAT8E8M0:
            first, *others = self._exponents
            power: Operand = np.asarray(2.0**first, np.float32)
            for exponent in others:
                step = 2.0**exponent
                power = self.Where(self.GreaterOrEqual(v, step), step, power)
            self._power = power
            return power
        return v if v is self._power else super().Cast(v, **attributes)
