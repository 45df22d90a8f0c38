"""Run two models on inputs that can be reproduced from their description.

Sums are rounded, and their order is left open. So elements of outputs that sums lead to count as
different only if they are apart by more than rounding explains. At least half of the elements have
to be, since the models may add in different orders, and a code that rounding flips moves single
elements far. One element is enough where both models have the same sums, and where all operators on
the way are determined to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import ExecutionError, ModelError, OperatorError, OptionError, UnsupportedError
from qgraph.evidence import Demonstration
from qgraph.execution.executor import Executor
from qgraph.execution.inputs import batch_shapes, make_inputs
from qgraph.numerics import Array

Pair = tuple[ir.Value, ir.Value]

_SAMPLES = 16
"""Samples at a time, where a model leaves their number open."""

_BATCH_ELEMENTS = 1 << 16
"""Elements of an input at a time, unless one sample has more."""

_OPEN_SIZE = 16
"""Open sizes of an input that has open sizes after the first."""

_MOST_ELEMENTS = 1 << 20
"""Elements of all inputs together; models with larger inputs are not run."""

_MOST_BYTES = 1 << 26
"""Bytes of all initializers of a model; larger models are not run."""

_MOST_NODES = 2000

_BEYOND_ROUNDING = 2.0**-10
"""Difference, relative to the largest output, that rounding cannot explain."""

_UNBOUNDED = frozenset({"Loop", "Scan", "SequenceMap"})

NOT_RUN = (ExecutionError, ModelError, OperatorError, OptionError, UnsupportedError, KeyError)
"""Errors of models or inputs that cannot be run."""


def demonstrate(
    models: tuple[ir.Model, ir.Model],
    inputs: Sequence[Pair],
    outputs: Sequence[tuple[ir.Value, ir.Value, bool]],
    tried: Iterable[Demonstration],
    *,
    same_sums: bool,
) -> Demonstration | None:
    """Return the first of some inputs on which outputs of two models differ; None if there is none.

    Large models, models with unbounded loops, and inputs that cannot be fed are skipped. The models
    must not change meanwhile.

    Args:
        models: the reference and the candidate.
        inputs: pairs of inputs.
        outputs: pairs of outputs to compare, and whether both are determined to the last bit.
        tried: the inputs.
        same_sums: whether the models have the same operators outside of regions that were decided.
    """
    if not are_small(models):
        return None
    executors: list[Executor] = []
    for demonstration in tried:
        try:
            fed = feeds_of(demonstration, models[0].graph)
            if sum(array.size for array in fed.values()) > _MOST_ELEMENTS:
                continue
            executors = executors or [Executor(model) for model in models]
            ours = executors[0].run(fed)
            theirs = executors[1].run({str(b.name): fed[str(a.name)] for a, b in inputs})
        except NOT_RUN:
            continue
        for a, b, is_exact in outputs:
            arrays = ours[str(a.name)], theirs[str(b.name)]
            if _are_apart(*arrays, is_exact=is_exact, same_sums=same_sums):
                return demonstration
    return None


def feeds_of(demonstration: Demonstration, reference: ir.Graph) -> dict[str, Array]:
    """Return the arrays of all inputs of the reference.

    Raises:
        OptionError: the shape or type of an input is not known.
    """
    values = [value for value in reference.inputs if not value.is_initializer()]
    shapes = batch_shapes(values, _SAMPLES, _BATCH_ELEMENTS) | _open_shapes(values)
    drawn = make_inputs(values, number=demonstration.batch, shapes=shapes)
    if demonstration.input in drawn and demonstration.input is not None:
        array = np.full_like(drawn[demonstration.input], demonstration.value)
        for element, number in zip(demonstration.elements, demonstration.values, strict=True):
            array[element] = number
        drawn[demonstration.input] = array
    if demonstration.scale != 1:
        with np.errstate(all="ignore"):
            for name, x in drawn.items():
                if x.dtype.kind == "f":
                    drawn[name] = x * x.dtype.type(demonstration.scale)
    return drawn


def _open_shapes(values: Sequence[ir.Value]) -> dict[str, tuple[int, ...]]:
    """Return shapes for inputs with open sizes after the first."""
    shapes = {}
    for value in values:
        dims = () if value.shape is None else value.shape.dims
        if any(not isinstance(size, int) for size in dims[1:]):
            sizes = [size if isinstance(size, int) else _OPEN_SIZE for size in dims]
            shapes[str(value.name)] = tuple(sizes)
    return shapes


def _are_apart(a: Any, b: Any, *, is_exact: bool, same_sums: bool) -> bool:
    """Return whether two outputs differ by more than rounding explains."""
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return False
    if a.dtype.kind not in "biuf" or b.dtype.kind not in "biuf":
        return False
    if a.shape != b.shape:
        return True
    x, y = a.astype(np.float64), b.astype(np.float64)
    if is_exact:
        numbers = ~(np.isnan(x) | np.isnan(y))
        return bool((x != y)[numbers].any())
    with np.errstate(all="ignore"):
        size = np.abs(x[np.isfinite(x)]).max(initial=0.0)
        apart = (np.abs(x - y) > _BEYOND_ROUNDING * size) & np.isfinite(x) & np.isfinite(y)
    needed = 1 if same_sums else (x.size + 1) // 2
    return bool(x.size and np.count_nonzero(apart) >= needed)


def are_small(models: Iterable[ir.Model]) -> bool:
    """Return whether models are small enough to be run as a part of a proof."""
    return all(map(_is_small, models))


def _is_small(model: ir.Model) -> bool:
    graph = model.graph
    size = sum(
        value.const_value.nbytes
        for value in graph.initializers.values()
        if value.const_value is not None
    )
    bounded = not any(node.op_type in _UNBOUNDED for node in graph)
    return bounded and size <= _MOST_BYTES and len(graph) <= _MOST_NODES
