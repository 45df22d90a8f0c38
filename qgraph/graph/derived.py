"""Types and shapes that follow from the inputs of a model, whatever its file states.

A file may state a type and a shape for any value, and nothing keeps it from stating wrong ones.
What the inputs are is for the file to say: they are its interface. All else has to follow from
them, from the constants and from the operators, or is unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from qgraph.graph.scopes import bodies
from qgraph.graph.stand_ins import put_stand_ins


def derived(model: ir.Model) -> ir.Model:
    """Return a copy of ``model`` in which the types and shapes of all values are inferred anew.

    Those of its inputs stay. What cannot be inferred is unknown in the copy, also where ``model``
    states it; operators that neither onnx knows nor :mod:`qgraph.graph.stand_ins` end it.
    """
    copy = model.clone()
    others = _forget(copy)
    probe = copy.clone()
    found = dict(_matched(copy, probe))
    put_stand_ins(probe)
    with _silence("onnx_ir"):
        ShapeInferencePass(check_type=False, strict_mode=False)(probe)
    for value, twin in found.items():
        # The pass gives every value that it types the type of a tensor.
        if value not in others:
            value.type, value.shape = twin.type, twin.shape
    return copy


def twins(model: ir.Model) -> dict[ir.Value, ir.Value]:
    """Return the values of :func:`derived`, with their types and shapes, by those of ``model``."""
    return dict(_matched(model, derived(model)))


def _matched(model: ir.Model, copy: ir.Model) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yield the values of a model, each with that of a copy."""
    for ours, theirs in zip(bodies(model), bodies(copy), strict=True):
        yield from zip(_values(ours), _values(theirs), strict=True)


def _forget(model: ir.Model) -> set[ir.Value]:
    """Take types and shapes from all values but the inputs; return those that were no tensors.

    Initializers get those of their tensors.
    """
    kept = set(model.graph.inputs)
    others = set()
    for body in bodies(model):
        for value in _values(body):
            tensor = value.const_value if value.is_initializer() else None
            if value in kept:
                continue
            if value.type is not None and not isinstance(value.type, ir.TensorType):
                others.add(value)
            value.type = None if tensor is None else ir.TensorType(tensor.dtype)
            value.shape = None if tensor is None else ir.Shape(tensor.shape.numpy())
    return others


def _values(body: ir.Graph | ir.Function) -> Iterator[ir.Value]:
    """Yield the inputs, the initializers and the results of a body; not those of bodies in it."""
    yield from body.inputs
    if isinstance(body, ir.Graph):
        yield from (value for value in body.initializers.values() if not value.is_graph_input())
    for node in body:
        yield from node.outputs


@contextmanager
def _silence(name: str) -> Iterator[None]:
    """Keep a library from telling that it could not find out everything."""
    told = logging.getLogger(name)
    level = told.level
    told.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        told.setLevel(level)
