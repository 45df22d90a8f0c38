"""How fast a deployed model is: beside the same network in float, and beside its input."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from qgraph.comparison.bench.measure import Timing, bench
from qgraph.errors import ExecutionError, UnsupportedError
from qgraph.graph.scopes import nodes_of, owners, remove_unused
from qgraph.model import Model
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.sites import sites
from qgraph.targets.reader import profile_of
from qgraph.transforms.deployment.report import Deployment
from qgraph.transforms.integer_operators import LowerIntegerOperators


def measured(found: Deployment, reference: Model, result: Model) -> Deployment:
    """Return the report with times, each model in a process of its own, in turns.

    Args:
        found: the report.
        reference: the input of deploy.
        result: its result.

    Raises:
        UnsupportedError: no runtime of the target is at hand.
        ExecutionError: the runtime refuses the result.
    """
    runtime = profile_of(found.profile_path or found.target).executed
    if runtime is None:
        raise UnsupportedError(
            f"{found.target} has no runtime that can be timed here. Leave --measure out."
        )
    timing = Timing(runtime=runtime, options=dict(found.session_options))
    models = [float_network(reference), result]
    try:
        times = bench([*models, reference], timing)
    except ExecutionError:  # the input is in a dialect that the runtime does not know
        times = bench(models, timing)
    plain, own, *given = times.models
    facts = {
        "runtime": times.runtime,
        "threads": timing.threads,
        "integer_nodes": own.kernels.integer_nodes,
        "float_nodes": own.kernels.float_nodes,
        "milliseconds": own.median_ms,
        "float_milliseconds": plain.median_ms,
        "ratio_to_float": own.ratio,
        "input_milliseconds": given[0].median_ms if given else None,
    }
    return replace(found, measured=facts)


def float_network(model: Model) -> Model:
    """Return the model without its quantizers: data pass as they are, weights are stored floats."""
    plain = model.clone()
    plain.apply(LowerIntegerOperators())
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
        remove_unused(reversed(list(nodes_of(owner))))
    return plain
