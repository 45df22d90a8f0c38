"""An operator: its form, its meaning, and its NumPy kernel; the grid of a quantizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError, forms, where
from qgraph.graph.constants import constant_expression
from qgraph.graph.schema import OpKey, OpSchema, element_type
from qgraph.graph.scopes import input_of, producer_of
from qgraph.numerics import Array, Float32, blocks
from qgraph.ops import steps
from qgraph.ops.steps import Stages
from qgraph.records import by_key, dataclass
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
            dtype = element_type(input_of(node, 2)) or arguments["output_dtype"]
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
        OPERATORS.add(schema.identity)(Operator(schema, define, quiet, resolve, stages))
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
        _BY_KEY.update(by_key((key, entry) for entry in OPERATORS for key in entry.schema.keys))
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


_SHAPE_ONLY = frozenset(
    {"Identity", "Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze", "Relu", "MaxPool"}
)


_HUGE = 1e30
"""Beyond the range of any quantizer."""

_MOST_STEPS = 1 << 16


@dataclass(frozen=True, eq=False)
class Grid:
    """The points ``offset + k * step``, real units; both broadcast to the data."""

    step: Float32
    offset: Float32


def input_grid(node: ir.Node, shape: Sequence[int]) -> Grid | None:
    """Return the grid on which ``node`` puts its first input, of ``shape``.

    None if it is no quantizer, or its parameters are not constant or do not fit the shape.
    """
    parameters = _parameters(node)
    if parameters is None:
        return None
    arrays, attributes = parameters
    if node.op_type == "FakeQuantize":
        low, high = arrays.get("input_low"), arrays.get("input_high")
        return None if low is None or high is None else _ranged(low, high, attributes, shape)
    if "scale" not in arrays:
        return None
    points = arrays.get("zero_point", np.zeros((), np.float32))
    step, zero = (_aligned(array, attributes, shape) for array in (arrays["scale"], points))
    return None if step is None or zero is None else Grid(step, -zero * step)


def input_range(node: ir.Node, shape: Sequence[int]) -> tuple[Float32, Float32] | None:
    """Return the smallest and the largest output of the quantizer ``node``.

    They are asked of the node itself, in real units, and are as large as the input, of ``shape``.
    None if it is no quantizer, its parameters are not constant, or the range has too many steps to
    be that of data.
    """
    grid, operator = input_grid(node, shape), operator_of(node)
    if grid is None or operator is None:
        return None
    parameters = [constant_expression(value) for value in node.inputs[1:]]
    ends = []
    for end in (-_HUGE, _HUGE):
        try:
            limits = operator.run(node, [np.full(shape, end, np.float32), *parameters])
        except OperatorError:
            return None
        if node.op_type == "QuantizeLinear":
            limits = limits.astype(np.float32) * grid.step + grid.offset
        ends.append(limits.astype(np.float32))
    low, high = ends
    with np.errstate(all="ignore"):
        usable = np.isfinite(low) & np.isfinite(high) & (low < high)
        usable &= (high - low) <= _MOST_STEPS * np.abs(grid.step)
    return (low, high) if usable.all() else None


def output_step(value: ir.Value, shape: Sequence[int]) -> Float32 | None:
    """Return the distance of neighbouring numbers that ``value``, of ``shape``, can have.

    Operators that only move values are looked through where the step is a single number. None if
    no quantizer with constant parameters is found, or its grid is not uniform.
    """
    node, moved = value.producer(), False
    while node is not None and node.domain == "" and node.op_type in _SHAPE_ONLY:
        node, moved = producer_of(node.inputs[0]), True
    parameters = None if node is None else _parameters(node)
    if node is None or parameters is None or node.op_type in ("FloatQuant", "QuantizeLinear"):
        return None
    arrays, attributes = parameters
    if node.op_type == "FakeQuantize":
        low, high = arrays.get("output_low"), arrays.get("output_high")
        grid = None if low is None or high is None else _ranged(low, high, attributes, shape)
        step = None if grid is None else grid.step
    else:
        scale = arrays.get("out_scale", arrays.get("scale"))
        codes = node.inputs[0].dtype if node.inputs[0] is not None else None
        if scale is None or (codes is not None and codes.name.startswith(("FLOAT4", "FLOAT8"))):
            return None
        if moved and scale.size > 1:
            return None
        step = _aligned(scale, attributes, shape)
    return None if step is None or (moved and step.size > 1) else step


def _parameters(node: ir.Node) -> tuple[dict[str, Array], dict[str, Any]] | None:
    operator = operator_of(node)
    if operator is None:
        return None
    named = zip(operator.schema.inputs[1:], node.inputs[1:], strict=False)
    arrays = {name: constant_expression(value) for name, value in named}
    present = {name: array for name, array in arrays.items() if array is not None}
    return present, operator.schema.attributes_of(node)


def _ranged(
    low: Array, high: Array, attributes: dict[str, Any], shape: Sequence[int]
) -> Grid | None:
    first, last = _aligned(low, {}, shape), _aligned(high, {}, shape)
    if first is None or last is None:
        return None
    return Grid((last - first) / np.float32(attributes["levels"] - 1), first)


def _aligned(parameter: Array, attributes: dict[str, Any], shape: Sequence[int]) -> Float32 | None:
    numbers = parameter.astype(np.float32)
    try:
        if "axis" in attributes:
            return blocks.align(numbers, shape, attributes["axis"], attributes["block_size"])
        np.broadcast_to(numbers, shape)
    except ValueError:
        return None
    return numbers
