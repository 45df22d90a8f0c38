"""Operators without a known equivalent graph."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from qgraph.graph.edit import Draft, Operand
from qgraph.ops.composite import composite

_NO_GRAPH = "so that no graph is known to be equal. "
_DYNAMIC = (
    "it computes scales of blocks at run time, and NVIDIA does not publish where it rounds, "
    f"{_NO_GRAPH}Run the model in TensorRT, or export it with static scales"
)
_CELL = (
    "it stands for a whole quantized LSTM, and neither Brevitas nor QONNX says where it rounds, "
    f"{_NO_GRAPH}Run the model in Brevitas, or export its steps as separate operators"
)
_QUARK = (
    f"AMD documents no formula for it, {_NO_GRAPH}Run the model with Quark's library, or quantize "
    "it without extended operators"
)

UNDEFINED = {
    "TRT_FP4DynamicQuantize": (("trt",), _DYNAMIC),
    "TRT_MXFP8DynamicQuantize": (("trt",), _DYNAMIC),
    "QuantLSTMCell": (("qonnx.custom_op.general", "onnx.brevitas"), _CELL),
    "ExtendedLSTM": (("com.amd.quark",), _QUARK),
    "ExtendedInstanceNormalization": (("com.amd.quark",), _QUARK),
}
"""The domains of each operator, and why it has no graph."""


def _refusal(reason: str) -> Callable[[Draft, ir.Node], Operand]:
    def refuse(draft: Draft, node: ir.Node) -> Operand:
        raise ValueError(reason)

    return refuse


for _name, (_domains, _reason) in UNDEFINED.items():
    composite(_name, *_domains, is_defined=False)(_refusal(_reason))
