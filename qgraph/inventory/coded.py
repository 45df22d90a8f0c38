"""Descriptions of the quantizers that are inputs of operators on codes, such as QLinearConv."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from qgraph.graph.scopes import nodes_of, owners
from qgraph.inventory.description import Described, Description, Numbers, numbers
from qgraph.numerics import Array
from qgraph.numerics.rounding import Rounding
from qgraph.quantizers.on_codes import CodedTensor, coded_tensors

_OF_DATA = "scale and zero point are computed from the data"


def coded_descriptions(model: ir.Model) -> Iterator[Described]:
    """Yield the constant weights and the results of operators on codes, with their descriptions.

    Format and zero point are those of the stored codes.
    """
    for owner in owners(model):
        for node in nodes_of(owner):
            for tensor in coded_tensors(node):
                yield Described(_description(tensor), None, None, node.name or "")


def _description(tensor: CodedTensor) -> Description:
    node = tensor.node
    return Description(
        f"{node.outputs[0].name} ({node.op_type})",
        of="weight" if tensor.is_weight else "data",
        format=tensor.format,
        bits=tensor.bits,
        granularity=tensor.granularity,
        scale=_numbers(tensor.scale, digest=True),
        zero_point=_numbers(tensor.zero_point, digest=False),
        rounding=None if tensor.is_weight else str(Rounding.ROUND),
        remark=_OF_DATA if tensor.is_dynamic else None,
    )


def _numbers(parameter: Array | None, *, digest: bool) -> Numbers | None:
    if parameter is None or not parameter.size:
        return None
    return numbers(np.asarray(parameter, np.float32), digest=digest)
