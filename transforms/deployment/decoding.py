"""Store weights as floats if a target would decode their codes in each run."""

from __future__ import annotations

import onnx_ir as ir

from qgraph.graph.constants import constant_tensor
from qgraph.graph.schema import LINEAR_DOMAINS
from qgraph.inventory.layers import quantized_layers
from qgraph.model import Model
from qgraph.reports import Report
from qgraph.targets.layer import LAYERS, QuantizedLayer
from qgraph.targets.profile import Profile
from qgraph.transforms.base import escaped
from qgraph.transforms.deployment.forms import has_kernel
from qgraph.transforms.drafts.choice import label
from qgraph.transforms.fold_constants import FoldConstants

_BETWEEN = frozenset({"Add", "Clip", "Identity", "Relu"})
"""Operators that runtimes fuse with the layer before them and the quantizer after them."""


def decode_weights(model: Model, profile: Profile, report: Report) -> dict[str, QuantizedLayer]:
    """Decode the weights of float layers that were measured to be slower on stored codes.

    Args:
        model: changed in place; unchanged if it has no quantized layer.
        profile: of the target.
        report: gets an entry for each layer.

    Returns:
        The descriptions of the quantized layers among them before the change, by name.
    """
    slow = {
        (name, codes)
        for row in profile.storage
        if row.ratio is not None and row.ratio > 1
        for name in row.operators
        for codes in row.codes
    }
    layers = {layer.node: layer for layer in quantized_layers(model.ir)} if slow else {}
    nodes = [
        node
        for node in model.nodes(*LAYERS)
        if layers and not (node in layers and has_kernel(layers[node], profile))
        if (node.op_type, _codes(node)) in slow and not _is_quantized(node.outputs[0], profile)
    ]
    if nodes:
        names = "|".join(escaped(label(node)) for node in nodes)
        report.extend(model.apply(FoldConstants(layers=names)))
    return {label(node): layers[node].description for node in nodes if node in layers}


def _codes(node: ir.Node) -> str | None:
    """Return the type of the stored codes of a layer's weights; None without codes."""
    weights = node.inputs[1]
    decode = None if weights is None else weights.producer()
    if (
        decode is None
        or decode.op_type != "DequantizeLinear"
        or decode.domain not in LINEAR_DOMAINS
    ):
        return None
    tensor = constant_tensor(decode.inputs[0])
    return None if tensor is None else tensor.dtype.name


def _is_quantized(value: ir.Value, profile: Profile) -> bool:
    """Return whether a quantizer reads a result: float weights before it may be quantized anew."""
    users = list(value.consumers())
    return any(
        user.op_type == "QuantizeLinear"
        or (user.op_type in _BETWEEN | profile.passing and _is_quantized(user.outputs[0], profile))
        for user in users
    )
