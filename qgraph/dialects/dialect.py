"""What a dialect is: a reader and a writer of quantizers, and the walk that runs all readers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.dialects.site import Refusal, Site, shape_of, weight_of
from qgraph.errors import OperatorError, where
from qgraph.graph.edit import Draft, Editor
from qgraph.graph.folding import constant_expression
from qgraph.graph.inferred import inferred
from qgraph.graph.schema import OpKey
from qgraph.graph.scopes import nodes_of
from qgraph.ops.operator import operator_of
from qgraph.opsets.versions import only_float_type
from qgraph.recognition.recogniser import Recogniser
from qgraph.registry import Registry

__all__ = [
    "DIALECTS",
    "Dialect",
    "Refusal",
    "Site",
    "data_of",
    "dialect",
    "parameter",
    "parts",
    "shape_of",
    "site_of",
    "sites",
    "try_out",
    "weight_of",
]


class Dialect(Protocol):
    """One way to spell quantizers.

    Attributes:
        name: as in ``--to name``.
        roots: the operators that its reader starts from.
    """

    name: ClassVar[str]
    roots: ClassVar[frozenset[OpKey]]

    def read(self, node: ir.Node) -> Site | Refusal | None:
        """Return the quantizer whose root is ``node``; None if it is none of this dialect.

        Raises:
            OperatorError: the node violates its operator's definition.
        """

    def spellings(self, site: Site, editor: Editor) -> Iterator[Draft]:
        """Yield the ways to spell ``site`` here, the tightest first, the plainest last."""

    def reason(self, site: Site) -> str:
        """Say why the dialect has no spelling that would be equal."""


DIALECTS: Registry[Dialect] = Registry("dialect", "qgraph.dialects")


def dialect(cls: type[Dialect]) -> type[Dialect]:
    """Register a dialect class under its name."""
    DIALECTS.add(cls.name)(cls())
    return cls


def sites(model: ir.Model) -> Iterator[Site | Refusal]:
    """Yield every quantizer of a model, in subgraphs and functions too, in topological order.

    One that several nodes spell is found as a whole; no node belongs to two that differ. The shapes
    and types of data are inferred, whatever the model states.
    """
    readers = _readers()
    with _inferred(model):
        # a body says what an operator means: in words of that operator it would call itself
        functions = (
            function
            for function in model.functions.values()
            if OpKey(function.domain, function.name) not in readers
        )
        graphs = [model.graph, *(function.graph for function in functions)]
        for graph in graphs:
            yield from _of_graph(list(nodes_of(graph)), readers)


def _of_graph(
    nodes: list[ir.Node], readers: dict[OpKey, list[Dialect]]
) -> Iterator[Site | Refusal]:
    recogniser = Recogniser(nodes)
    for node in nodes:
        if recogniser.is_taken(node):
            continue
        found = recogniser.around(node) or _site_of(node, readers)
        if isinstance(found, Site):
            recogniser.take(found)
        if found is not None:
            yield found


def site_of(node: ir.Node) -> Site | Refusal | None:
    """Return the quantizer that ``node`` is, alone or as the end of a pair.

    The first dialect that reads it has it. Whether it is part of a larger one is not looked at.
    """
    return _site_of(node, _readers())


def parts(site: Site) -> tuple[Site, ...]:
    """Return the quantizers that single dialects' nodes are within a site of more nodes.

    They are smaller than ``site``; the operators around them stay outside.
    """
    readers = _readers()
    found = (_site_of(node, readers) for node in site.nodes if len(site.nodes) > 1)
    own = set(site.nodes)
    return tuple(f for f in found if isinstance(f, Site) and own > set(f.nodes))


def _inferred(model: ir.Model) -> AbstractContextManager[None]:
    """Give the values of the main graph their inferred types and shapes."""
    values = [value for node in nodes_of(model.graph) for value in node.outputs]
    # Where the model has one floating type only, data of no stated type has that one.
    return inferred(model, values, keeps_types=only_float_type(model) is None)


def _readers() -> dict[OpKey, list[Dialect]]:
    readers: dict[OpKey, list[Dialect]] = {}
    for entry in DIALECTS:
        for key in entry.roots:
            readers.setdefault(key, []).append(entry)
    return readers


def _site_of(node: ir.Node, readers: dict[OpKey, list[Dialect]]) -> Site | Refusal | None:
    for reader in readers.get(OpKey.of(node), ()):
        found = _read(reader, node)
        if found is not None:
            return found
    return None


def _read(reader: Dialect, node: ir.Node) -> Site | Refusal | None:
    try:
        return reader.read(node)
    except OperatorError as error:
        return Refusal(node, str(error))


def parameter(node: ir.Node, value: ir.Value | None, name: str) -> npt.NDArray[np.float32]:
    """Return a constant parameter of a quantizer as float32.

    Raises:
        OperatorError: it is computed at run time, or has no element.
    """
    array = constant_expression(value)
    if array is None:
        array = _decoded(value)
    if array is None:
        label = value.name if value is not None else ""
        raise OperatorError(
            f"{where(node)}: {name} {label!r} is not a constant, so that the quantizer is only "
            "known at run time. Store it as a constant, or export the model with fixed sizes."
        )
    if array.size == 0:
        raise OperatorError(f"{where(node)}: {name} has no element, expected at least one.")
    return array.astype(np.float32, copy=False)


def _decoded(value: ir.Value | None) -> npt.NDArray[Any] | None:
    """Return a parameter that is stored as codes of its own: a DequantizeLinear of constants."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "DequantizeLinear":
        return None
    arrays = [constant_expression(operand) for operand in node.inputs]
    operator = operator_of(node)
    if operator is None or any(array is None for array in arrays):
        return None
    return operator.run(node, arrays)


def try_out(node: ir.Node, x: ir.Value, *parameters: npt.NDArray[np.float32]) -> None:
    """Let the operator of ``node`` check its parameters, on as few zeros as they allow.

    Raises:
        OperatorError: a parameter violates the definition, or does not fit to ``x``.
    """
    operator = operator_of(node)
    if operator is None:
        return
    try:
        sizes = list(np.broadcast_shapes(*(parameter.shape for parameter in parameters)))
    except ValueError as error:
        raise OperatorError(f"{where(node)}: {error}. Correct the model's exporter.") from error
    if x.shape is not None:
        sizes = [1] * (len(x.shape) - len(sizes)) + sizes[max(len(sizes) - len(x.shape), 0) :]
        for axis, size in enumerate(x.shape):
            if sizes[axis] != 1 and isinstance(size, int):
                sizes[axis] = size
    attributes = operator.schema.attributes_of(node)
    given = tuple((array.shape, array.tobytes()) for array in parameters)
    absent = tuple(value is None for value in node.inputs)
    key = operator.schema.name, operator.schema.since, repr(attributes), absent, tuple(sizes), given
    if key in _PASSED:
        return
    operator.run(node, [np.zeros(sizes, np.float32), *parameters])
    if sum(array.nbytes for array in parameters) <= _FEW_BYTES:
        if len(_PASSED) >= _MOST_PASSED:
            _PASSED.clear()
        _PASSED.add(key)


_PASSED: set[tuple[object, ...]] = set()
"""Operators with parameters that were found to be right."""
_MOST_PASSED = 1 << 12
_FEW_BYTES = 256


def data_of(draft: Draft, site: Site) -> ir.Value:
    """Return the float values that a quantizer of another dialect is put on.

    Where ``site`` decodes stored codes, these are the decoded values.
    """
    # The output of a Constant node need not have a type; its tensor has one.
    kind = site.weight.kind if site.weight is not None else site.x.dtype and site.x.dtype.name
    if kind in (None, ir.DataType.FLOAT.name) or site.values is None:
        return draft.x
    return draft.constant(site.values, "weight")
