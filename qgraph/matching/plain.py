"""Models as proofs see them: functions inlined, of one opset, shapes filled in."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, ShapeInferencePass

from qgraph.constants import overridable
from qgraph.errors import UnsupportedError
from qgraph.matching.products import has_packed_products, spell_out_products
from qgraph.model import Model
from qgraph.opset import declare_domains, only_float_type, require
from qgraph.scopes import owners

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plain:
    """A private copy of a model.

    Attributes:
        model: the copy.
        frozen: how many initializers were inputs too and are constants here.
        float_type: the only floating type in the model; None if there are several.
    """

    model: ir.Model
    frozen: int
    float_type: ir.DataType | None

    @property
    def graph(self) -> ir.Graph:
        """The main graph."""
        return self.model.graph

    @property
    def imports(self) -> dict[str, int]:
        """Domains and their versions."""
        imports = self.model.opset_imports
        return {("" if domain == "ai.onnx" else domain): n for domain, n in imports.items()}


def plain(reference: Model, candidate: Model, *, keep_inputs: bool) -> tuple[Plain, Plain]:
    """Return copies of two models that can be matched node by node.

    Both get the higher one of the two opsets, as far as their nodes can be raised to it. If one
    has products with packed weights, all products are written in one way.

    Args:
        reference: one model.
        candidate: the other one.
        keep_inputs: leave initializers that are inputs too, which are not constant then.

    Raises:
        UnsupportedError: a function cannot be inlined.
        ModelError: no opset has all nodes of a model.
    """
    copies = [_flat(model) for model in (reference, candidate)]
    counts = [0 if keep_inputs else _freeze(copy) for copy in copies]
    if any(map(has_packed_products, copies)):
        for copy in copies:
            spell_out_products(copy)
    highest = max(copy.opset_imports.get("", 0) for copy in copies)
    made = []
    for copy, frozen in zip(copies, counts, strict=True):
        try:
            require(copy, highest)
        except UnsupportedError as error:
            logger.info("left at its opset: %s", error)
        made.append(Plain(_inferred(copy), frozen, only_float_type(copy)))
    return made[0], made[1]


def _flat(model: Model) -> ir.Model:
    copy = model.ir.clone()
    declare_domains(copy)
    if not copy.functions:
        return copy
    versions = {key.opset_imports.get("") for key in owners(copy)} - {None}
    if len(versions) > 1:
        require(copy, max(version for version in versions if version is not None))
    try:
        InlinePass()(copy)
    except (ir.passes.PassError, ValueError, KeyError) as error:
        raise UnsupportedError(
            f"The functions of the model cannot be inlined ({error}), expected functions of the "
            "opsets of the model and without a circle. Inline them with the tool that wrote them."
        ) from error
    return copy


def _freeze(model: ir.Model) -> int:
    """Make constants of initializers that could be fed; return how many."""
    found = overridable(model.graph)
    for value in found:
        model.graph.inputs.remove(value)
    return len(found)


def _inferred(model: ir.Model) -> ir.Model:
    """Return ``model``, or a copy with types and shapes that it does not state."""
    known = all(
        value.dtype is not None and value.shape is not None
        for node in model.graph
        for value in node.outputs
        if value.name
    )
    if known:
        return model
    # a failure may leave the model without some of its weights
    copy = model.clone()
    with _silence("onnx_ir"):
        ShapeInferencePass(check_type=False, strict_mode=False)(copy)
    return copy if len(copy.graph.inputs) == len(model.graph.inputs) else model


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
