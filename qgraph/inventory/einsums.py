"""Find each Einsum of quantized operands. It is no layer: profiles describe no kernel for it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from qgraph.graph.scopes import nodes_of, owners
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.movement import unmoved
from qgraph.quantizers.sites import sites


def quantized_einsums(model: ir.Model, read_sites: Sequence[Site] | None = None) -> list[ir.Node]:
    """Return each Einsum whose operands are all quantized, directly or before movement of data.

    Args:
        model: the model.
        read_sites: its quantizers; None to find them.
    """
    nodes = [
        node
        for owner in owners(model)
        for node in nodes_of(owner)
        if node.op_type == "Einsum" and not node.domain
    ]
    if nodes and read_sites is None:
        read_sites = [site for site in sites(model) if isinstance(site, Site)]
    coded = {site.y for site in read_sites or ()}
    return [
        node
        for node in nodes
        if all(value is not None and unmoved(value) in coded for value in node.inputs)
    ]
