"""Times of a deployed model, of its network in float, and of its input."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from qgraph.comparison.bench.measure import BenchReport, Timing, bench
from qgraph.errors import ExecutionError
from qgraph.model import Source


def beside_float(
    plain: Source, result: Source, sources: Sequence[Source], timing: Timing
) -> dict[str, Any]:
    """Time a deployed model, its network in float, and its input.

    ``sources`` are the input model, and equal models in other dialects; the first that the runtime
    accepts is timed. Raises UnsupportedError if the runtime is not installed, ExecutionError if it
    does not run the first two.
    """
    for index, source in enumerate(sources):
        try:
            times = bench([plain, result, source], timing)
        except ExecutionError:
            continue
        return _beside(times, is_converted=index > 0)
    return _beside(bench([plain, result], timing), is_converted=None)


def _beside(times: BenchReport, *, is_converted: bool | None) -> dict[str, Any]:
    first, own, *inputs = times.models
    pairs = zip(own.rounds_ms, inputs[0].rounds_ms, strict=True) if inputs else ()
    return {
        "runtime": times.runtime,
        "threads": times.timing.threads,
        "integer_nodes": own.kernels.integer_nodes,
        "float_nodes": own.kernels.float_nodes,
        "milliseconds": own.median_ms,
        "float_milliseconds": first.median_ms,
        "ratio_to_float": own.ratio,
        "input_milliseconds": inputs[0].median_ms if inputs else None,
        "ratio_to_input": median(a / b for a, b in pairs) if inputs else None,
        "input_is_converted": is_converted,
    }
