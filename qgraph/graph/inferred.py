"""Values with their inferred types and shapes in place of those that a file states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import onnx_ir as ir

from qgraph.graph.inference.facts import UNKNOWN, Fact
from qgraph.graph.inference.walk import infer


@contextmanager
def inferred(
    model: ir.Model, values: Iterable[ir.Value], *, keeps_types: bool = True
) -> Iterator[None]:
    """Give values their inferred shapes and types for a while.

    A shape is None where no rank can be inferred, whatever the file states. A type that cannot be
    inferred stays as stated.

    Args:
        model: the model; its inputs keep what it states of them.
        values: the values; none of them for no inference.
        keeps_types: leave the types that the file does not state in the model.
    """
    wanted = [v for v in dict.fromkeys(values) if not (v.is_graph_input() or v.is_initializer())]
    facts = infer(model) if wanted else {}
    wanted = [
        v for v in wanted if not v.is_graph_output() or facts.get(v, UNKNOWN).shape is not None
    ]
    before = [(value, value.type, value.shape) for value in wanted]
    for value in wanted:
        fact = facts.get(value, UNKNOWN)
        value.shape = _shape(value.shape, fact)
        if fact.dtype is not None and fact.dtype is not value.dtype:
            value.type = ir.TensorType(fact.dtype)
    try:
        yield
    finally:
        for value, kind, shape in before:
            value.shape = shape
            if kind is not None or not keeps_types:
                value.type = kind


def _shape(stated: ir.Shape | None, fact: Fact) -> ir.Shape | None:
    """Return an inferred shape; an open size keeps the name that the file states for it."""
    if fact.shape is None:
        return None
    names: list[int | ir.SymbolicDim] = [ir.SymbolicDim(None)] * len(fact.shape)
    if stated is not None and len(stated) == len(fact.shape):
        names = list(stated.dims)
    return ir.Shape(
        [
            size if isinstance(size, int) else name if isinstance(name, ir.SymbolicDim) else None
            for size, name in zip(fact.shape, names, strict=True)
        ]
    )
