"""The dialect ``onnx``: plain float operators, the exact way out for every quantizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.dialects.definition import by_definition
from qgraph.dialects.dialect import Refusal, Site, dialect, shape_of, weight_of
from qgraph.edit import Draft, Editor
from qgraph.folding import constant_expression
from qgraph.numerics.rounding import Rounding
from qgraph.quantizer import Affine
from qgraph.schema import OpKey

Array = npt.NDArray[Any]

ROUNDERS = {"Round": Rounding.ROUND, "Floor": Rounding.FLOOR, "Ceil": Rounding.CEIL}

NOTHING = np.zeros((), np.float32)


@dialect
class PlainOnnx:
    """Quantizers written as Div, Add, Max, Min, Round, Sub, Mul, and whatever else defines them."""

    name: ClassVar[str] = "onnx"
    roots: ClassVar[frozenset[OpKey]] = frozenset({OpKey("", "Mul")})

    def read(self, node: ir.Node) -> Site | Refusal | None:
        """Return the uniform quantizer that ends in the product ``node``.

        ``Div(scale) [Add(zero point)] Max Min Round|Floor|Ceil [Sub(zero point)] Mul(scale)``, the
        bounds also as one Clip. Anything else is float arithmetic, not a quantizer.
        """
        product = _step(node.outputs[0], "Mul")
        if product is None:
            return None
        nodes = [product.node]
        value, offset = product.data, NOTHING
        if (sub := _step(value, "Sub")) is not None:
            nodes.append(sub.node)
            value, offset = sub.data, sub.constant
        rounder = value.producer()
        if rounder is None or rounder.domain or rounder.op_type not in ROUNDERS:
            return None
        nodes.append(rounder)
        inner = rounder.inputs[0]
        bounds = None if inner is None else _bounds(inner, nodes)
        if bounds is None:
            return None
        value, lo, hi = bounds
        if (add := _step(value, "Add")) is not None:
            nodes.append(add.node)
            value = add.data
        quotient = _step(value, "Div")
        inside = NOTHING if add is None else add.constant
        if quotient is None or not (
            np.array_equal(quotient.constant, product.constant) and np.array_equal(inside, offset)
        ):
            return None
        nodes.append(quotient.node)
        x = quotient.data
        rounding = ROUNDERS[rounder.op_type]
        meaning = Affine(product.constant, inside, lo, hi, rounding)
        shape = shape_of(x, meaning.scale, meaning.zero_point)
        chain = tuple(reversed(nodes))
        return Site(x, node.outputs[0], chain, node, self.name, meaning, shape, weight_of(x))

    def spellings(self, site: Site, editor: Editor) -> Iterator[Draft]:
        """Yield the operators' definitions."""
        yield from by_definition(site, editor)

    def reason(self, site: Site) -> str:
        """Say why a definition was not accepted."""
        return "its definition needs operators of a higher opset"


class _Step(NamedTuple):
    node: ir.Node
    data: ir.Value
    constant: npt.NDArray[np.float32]


def _step(value: ir.Value, name: str) -> _Step | None:
    """Return the operator ``name`` that computes ``value`` from data and one float32 constant."""
    node = value.producer()
    if node is None or node.op_type != name or node.domain or len(node.inputs) != 2:
        return None
    left, right = node.inputs
    if left is None or right is None:
        return None
    orders = [(left, right)] if name in ("Sub", "Div") else [(left, right), (right, left)]
    for data, operand in orders:
        constant = constant_expression(operand)
        if constant is not None and constant.dtype == np.float32:
            return _Step(node, data, constant)
    return None


def _bounds(value: ir.Value, nodes: list[ir.Node]) -> tuple[ir.Value, Array, Array] | None:
    """Return what is clamped and its bounds; append the nodes that clamp."""
    node = value.producer()
    if node is not None and node.op_type == "Clip" and len(node.inputs) == 3:
        data, *ends = node.inputs
        arrays = [constant_expression(end) for end in ends]
        if data is None or any(array is None or array.dtype != np.float32 for array in arrays):
            return None
        nodes.append(node)
        return data, np.asarray(arrays[0]), np.asarray(arrays[1])
    upper = _step(value, "Min")
    lower = None if upper is None else _step(upper.data, "Max")
    if upper is None or lower is None:
        return None
    nodes += [upper.node, lower.node]
    return lower.data, lower.constant, upper.constant
