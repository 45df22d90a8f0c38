"""The float network from which a quantized model was made."""

from __future__ import annotations

import onnx_ir as ir

from qgraph.graph.scopes import nodes_of, owners, remove_constant, remove_unused
from qgraph.model import Model
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.sites import sites
from qgraph.transforms.deployment.pipeline import as_pairs


def float_network(model: Model) -> Model:
    """Return the model without its quantizers; weights become stored floats."""
    plain = model.clone()
    plain.apply(as_pairs())
    graph = plain.ir.graph
    for site in list(sites(plain.ir)):
        if not isinstance(site, Site) or site.x is None:
            continue
        value = site.x
        if (stored := site.values) is not None:
            value = ir.Value(name=f"{site.y.name}_float", const_value=ir.tensor(stored))
            graph.initializers[str(value.name)] = value
        site.y.replace_all_uses_with(value, replace_graph_outputs=True)
    for owner in owners(plain.ir):
        for constant in remove_unused(reversed(list(nodes_of(owner)))):
            remove_constant(constant)
    return plain
