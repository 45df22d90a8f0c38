"""An operator: its form, its meaning, and its NumPy kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError, forms, where
from qgraph.graph.schema import OpKey, OpSchema, element_type
from qgraph.graph.scopes import input_of
from qgraph.numerics import Array
from qgraph.ops import steps
from qgraph.ops.steps import Stages
from qgraph.registry import Registry

Definition = Callable[..., Any]
Kernel = Callable[..., Array]
Resolve = Callable[[ir.Node], dict[str, Any]]

OPERATORS: Registry[Operator] = Registry("operator", "qgraph.ops.definitions", "operators")


def _nothing(_: ir.Node) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Operator:
    """One operator, or one version of it.

    Attributes:
        schema: inputs, attributes, domains.
        define: ``define(op, *inputs, **arguments)`` writes the meaning in primitives
            (:mod:`qgraph.numerics.primitives`); the proof engine and function bodies use it.
        kernel: ``kernel(*arrays, **attributes)`` computes the same bits, fast.
        resolve: what ``define`` must know beyond the attributes, such as the type of a
            zero point.
        stages: ``stages(dtype, *parameters, **attributes)`` gives the steps of the kernel, for a
            quantizer whose levels can be computed without its data; None for others, and for
            parameters for which there are none.
    """

    schema: OpSchema
    define: Definition
    kernel: Kernel
    resolve: Resolve = _nothing
    stages: Callable[..., Stages | None] | None = None

    def arguments(self, node: ir.Node) -> dict[str, Any]:
        """Return the keyword arguments of ``define`` for ``node``.

        Raises:
            OperatorError: an attribute violates the definition, or the node computes in another
                type than float32, in which definitions are written.
        """
        try:
            if not self.schema.standard:
                steps.require_float32("data", element_type(node.inputs[0]))
            return self.schema.attributes_of(node) | self.resolve(node)
        except ValueError as error:
            raise OperatorError(f"{where(node)}: {error}") from error

    def half_arguments(self, node: ir.Node) -> dict[str, Any]:
        """Return the arguments of ``define`` for data of 16 bits, in which nodes may be computed.

        The operator has more digits between its steps, so the result may differ: compare it.
        """
        arguments = self.schema.attributes_of(node)
        if node.op_type == "QuantizeLinear":
            zero_point = input_of(node, 2)
            dtype = element_type(zero_point) or arguments["output_dtype"]
            arguments["to"] = dtype or ir.DataType.UINT8
        return arguments

    def run(self, node: ir.Node, arrays: Sequence[Array | None]) -> Array:
        """Compute the output of ``node`` for its input arrays.

        Raises:
            OperatorError: the node or the value of a parameter violates the definition.
        """
        self.schema.values(node)
        absent = [None] * (len(self.schema.inputs) - len(arrays))
        try:
            return self.kernel(*arrays, *absent, **self.schema.attributes_of(node))
        except ValueError as error:
            raise OperatorError(
                f"{where(node)}: {error}. Its inputs are {forms(arrays)}."
            ) from error


def operator(
    schema: OpSchema,
    *,
    define: Definition,
    resolve: Resolve = _nothing,
    stages: Callable[..., Stages | None] | None = None,
) -> Callable[[Kernel], Kernel]:
    """Return a decorator that registers the kernel it is put on as that of an operator.

    The kernel computes without floating-point warnings: infinities and NaN are values like others.
    """

    def register(kernel: Kernel) -> Kernel:
        quiet: Kernel = np.errstate(all="ignore")(kernel)
        schema.declare()
        entry = Operator(schema, define, quiet, resolve, stages)
        OPERATORS.add(schema.identity)(entry)
        _BY_KEY.clear()
        return quiet

    return register


_BY_KEY: dict[OpKey, list[Operator]] = {}


def operator_of(node: ir.Node) -> Operator | None:
    """Return the registered operator of ``node``, or None.

    Versions of one operator are distinguished by the number of inputs, not by the imported opset
    version: files exist in which the two disagree.

    Raises:
        OperatorError: the operator is registered, but no version of it has this number of inputs.
    """
    if not _BY_KEY:
        for entry in OPERATORS:
            for key in entry.schema.keys:
                _BY_KEY.setdefault(key, []).append(entry)
    entries = _BY_KEY.get(OpKey.of(node))
    if entries is None:
        return None
    for entry in entries:
        if entry.schema.takes(len(node.inputs)):
            return entry
    forms = " or ".join(f"({', '.join(entry.schema.inputs)})" for entry in entries)
    raise OperatorError(
        f"{where(node)}: it has {len(node.inputs)} inputs, expected {forms}. "
        "Correct the model's exporter."
    )


def is_defined(node: ir.Node) -> bool:
    """Return whether ``node`` is one of our operators, with a number of inputs that it accepts."""
    try:
        return operator_of(node) is not None
    except OperatorError:
        return False
