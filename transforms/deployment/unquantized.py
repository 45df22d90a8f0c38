"""Find convolutions and matrix products that are not quantized layers, with reasons."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from qgraph.graph.constants import constant_tensor
from qgraph.graph.scopes import node_name
from qgraph.inventory.einsums import quantized_einsums
from qgraph.model import Model
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.movement import MOVES
from qgraph.targets.layer import LAYERS

_SHOWN = 3


def unquantized(model: Model, sites: Sequence[Site], layers: Collection[str]) -> dict[str, str]:
    """Return why products of the main graph are not quantized layers, by name.

    Args:
        model: the model.
        sites: its quantizers.
        layers: names of its quantized layers.
    """
    coded = {site.y for site in sites}
    reasons = {}
    for node in model.nodes(*LAYERS):
        name = node_name(node)
        if name not in layers and not node.domain and node.graph is model.ir.graph:
            own = (_reason(value, coded) for value in node.inputs[:2])
            reasons[name] = next(
                filter(None, own), "its codes are not integers of 16 bits or fewer"
            )
    return reasons


def unquantized_note(reasons: Mapping[str, str]) -> str | None:
    """Return a sentence about products that are not quantized layers; None if there are none."""
    if not reasons:
        return None
    shown = [f"{name} ({reason})" for name, reason in list(reasons.items())[:_SHOWN]]
    more = f"; and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
    return f"not quantized, so in float and not listed: {'; '.join(shown)}{more}"


def einsum_note(model: Model, sites: Sequence[Site]) -> str | None:
    """Return a sentence about each Einsum whose operands are quantized; None if there is none."""
    names = [node_name(node) for node in quantized_einsums(model.ir, sites)]
    if not names:
        return None
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (
        f"{', '.join(names[:_SHOWN])}{more}: profiles do not describe Einsum of quantized data, so "
        "it is not listed, and may run on codes or in float; export MatMul"
    )


def _reason(operand: ir.Value | None, coded: Collection[ir.Value]) -> str | None:
    """Return why an operand is not the result of a quantizer; None if it is."""
    while operand is not None and operand not in coded:
        maker = operand.producer()
        if maker is None or maker.op_type not in MOVES or maker.domain:
            if constant_tensor(operand) is not None:
                return "its weights have no quantizer"
            source = f"input {operand.name!r}" if maker is None else maker.op_type
            return f"no quantizer between {source} and it"
        operand = maker.inputs[0]
    return None
