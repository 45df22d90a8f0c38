"""Nodes near a value or a layer, as runtimes see them when they fuse."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from qgraph.lint.facts import DECODE, QUANTIZE, ModelFacts
from qgraph.quantizers.movement import unmoved

_ACTIVATIONS = ("Relu", "Clip")
PROPAGATED = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice", "MaxPool")
"""Operators across which ONNX Runtime moves DequantizeLinear."""


def quantizer_after(facts: ModelFacts, node: ir.Node) -> ir.Node | None:
    """Return the QuantizeLinear after a node, with activations between at most."""
    value = node.outputs[0]
    for _ in range(3):
        reader = facts.only_reader(value)
        if reader is None:
            return None
        if reader.op_type == QUANTIZE:
            return reader
        if reader.op_type not in _ACTIVATIONS or not reader.outputs:
            return None
        value = reader.outputs[0]
    return None


def is_codes_for_runtime(value: ir.Value | None) -> bool:
    """Return whether ONNX Runtime recognises a value as decoded codes: Flatten hides them."""
    while value is not None and (node := value.producer()) is not None:
        if node.op_type == DECODE:
            return True
        if node.op_type not in PROPAGATED:
            return False
        value = node.inputs[0]
    return False


def after_moves(facts: ModelFacts, node: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes that read a result, directly or reshaped."""
    waiting = list(facts.readers(node.outputs[0]))
    while waiting:
        reader = waiting.pop()
        yield reader
        if reader.op_type in ("Flatten", "Reshape", "Squeeze") and not reader.domain:
            waiting += facts.readers(reader.outputs[0])


def layer_before_quantizer(facts: ModelFacts, value: ir.Value | None) -> ir.Node | None:
    """Return the layer whose quantized result is a value, possibly after activations."""
    source = unmoved(value)
    site = None if source is None else facts.site_ending.get(source)
    data = None if site is None else site.x
    while data is not None and (node := data.producer()) is not None:
        if node.op_type not in _ACTIVATIONS:
            return node
        data = node.inputs[0]
    return None


def concat_before(facts: ModelFacts, value: ir.Value | None) -> ir.Node | None:
    """Return the Concat before a value, across activations and data movement."""
    source = unmoved(value)
    while source is not None and (node := source.producer()) is not None:
        if node.op_type not in _ACTIVATIONS:
            return node if node.op_type == "Concat" else None
        source = unmoved(node.inputs[0])
    return None
