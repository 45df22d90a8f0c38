"""Types and shapes that follow from those that a model states."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

logger = logging.getLogger(__name__)


@contextmanager
def learnt(
    model: ir.Model, shapes: Iterable[ir.Value] = (), types: Iterable[ir.Value] = ()
) -> Iterator[None]:
    """Give values what ONNX infers of them, where the model does not say it.

    What cannot be inferred stays unknown, and nothing else of the model is changed.

    Args:
        model: the model; its weights are not read.
        shapes: values that get a shape for a while.
        types: values that get a type, which stays.
    """
    shapeless = [value for value in shapes if value.shape is None]
    untyped = [value for value in types if value.dtype is None]
    known = _inferred(model) if shapeless or untyped else {}
    for value in shapeless:
        found = known.get(value.name)
        if found is not None and found.shape is not None:
            value.shape = ir.Shape(found.shape)
            logger.debug("inferred the shape of %s: %s", value.name, value.shape)
    for value in untyped:
        found = known.get(value.name)
        if found is not None and found.dtype is not None:
            value.dtype = found.dtype
            logger.debug("inferred the type of %s: %s", value.name, value.dtype)
    try:
        yield
    finally:
        for value in shapeless:
            value.shape = None


def _inferred(model: ir.Model) -> dict[str | None, ir.Value]:
    copy = model.clone()
    ShapeInferencePass(check_type=False, strict_mode=False)(copy)
    nodes = ir.traversal.RecursiveGraphIterator(copy.graph)
    return {value.name: value for node in nodes for value in node.outputs}
