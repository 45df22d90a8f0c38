"""Running a few nodes on known values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import UnsupportedError, where
from qgraph.graph.folding import array_of
from qgraph.ops.operator import operator_of
from qgraph.primitives import NUMPY

Array = npt.NDArray[Any]


def evaluate(nodes: Iterable[ir.Node], x: ir.Value, y: ir.Value, data: Array) -> Array:
    """Return the value of ``y`` when ``x`` is ``data``, by the kernels of the operators.

    Raises:
        UnsupportedError: a node is neither an operator of ours nor a primitive, or has an operand
            that is only known at run time.
        OperatorError: a node violates its operator's definition.
    """
    known: dict[ir.Value, Array] = {x: data}

    def array(node: ir.Node, value: ir.Value | None) -> Array | None:
        if value is None or value in known:
            return None if value is None else known[value]
        found = array_of(value)
        if found is None:
            raise UnsupportedError(
                f"{where(node)}: operand {value.name!r} is only known at run time."
            )
        return found

    for node in nodes:
        operands = [array(node, value) for value in node.inputs]
        operator = operator_of(node)
        if operator is not None:
            known[node.outputs[0]] = operator.run(node, operands)
        elif node.domain == "" and node.op_type in NUMPY:
            attributes = {name: attribute.value for name, attribute in node.attributes.items()}
            with np.errstate(all="ignore"):
                known[node.outputs[0]] = np.asarray(NUMPY[node.op_type](*operands, **attributes))
        elif node.domain == "" and node.op_type == "Reshape":
            data, sizes = (np.asarray(operand) for operand in operands)
            known[node.outputs[0]] = data.reshape(sizes.tolist())
        else:
            raise UnsupportedError(f"{where(node)}: no kernel is known for it here.")
    return known[y]
