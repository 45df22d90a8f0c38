"""Inputs of a graph: check given arrays, and make random ones around the ties of quantizers."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import ExecutionError, OperatorError, OptionError, meant
from qgraph.execution.input_shapes import describe, input_shapes
from qgraph.graph.constants import constant_expression
from qgraph.graph.interface import fits, fixed_sizes
from qgraph.graph.scopes import producer_of
from qgraph.numerics import Array, Float32, blocks
from qgraph.ops.operator import operator_of

logger = logging.getLogger(__name__)


def check_feeds(
    graph: ir.Graph, inputs: Mapping[str, npt.ArrayLike | Sequence[Any]]
) -> dict[ir.Value, Any]:
    """Return the array to feed to each input of ``graph``.

    Arrays must have the type and the static dimensions of the input exactly; Python numbers
    and lists are converted when that changes no kind of number. Initializers that are listed as
    inputs may be fed, too; sequences and optionals are passed on unchecked. If all needed inputs
    are there, arrays under other names are left out, with a warning in the log.

    Raises:
        ExecutionError: a needed input is missing, or an array does not fit.
    """
    names = {value.name for value in graph.inputs}
    spare = tuple(name for name in inputs if name not in names)
    needed = {value.name for value in graph.inputs if not value.is_initializer()}
    if spare and not needed <= set(inputs):
        raise ExecutionError(_unknown(graph, spare[0]))
    if spare:
        _tell(str(graph.name), spare)
    fed = {}
    for value in graph.inputs:
        name = str(value.name)
        if name in inputs:
            fed[value] = _fit(graph, value, inputs[name])
        elif not value.is_initializer():
            raise ExecutionError(
                f"Input {describe(value)} of graph {graph.name!r} is not fed; "
                f"{f'given are {sorted(inputs)}' if inputs else 'no array is given'}. "
                "Feed an array under this name."
            )
    return fed


@functools.cache
def _tell(graph: str, spare: tuple[str, ...]) -> None:
    names = ", ".join(map(repr, spare))
    logger.warning("graph %r has no such inputs, their arrays are left out: %s", graph, names)


def _unknown(graph: ir.Graph, name: str) -> str:
    names = [str(value.name) for value in graph.inputs]
    needed = [describe(value) for value in graph.inputs if not value.is_initializer()]
    expected, hint = ", ".join(needed) or "none", meant(name, names) or " Feed these names."
    return f"Graph {graph.name!r} has no input {name!r}, expected {expected}.{hint}"


def numpy_type(value: ir.Value) -> np.dtype[Any] | None:
    """Return the type of the arrays that a value holds; None if the model does not state it."""
    is_known = value.dtype not in (None, ir.DataType.UNDEFINED)
    return value.dtype.numpy() if value.dtype is not None and is_known else None


def _fit(graph: ir.Graph, value: ir.Value, data: Any) -> Any:
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        return data
    expected = f"Input {describe(value)} of graph {graph.name!r} is fed"
    wanted = numpy_type(value)
    try:
        kind = str(getattr(data, "dtype", ""))
        if wanted is not None and wanted.isbuiltin != 1 and kind == f"torch.{wanted}":
            data = np.asarray(data.float()).astype(wanted)  # torch itself makes no such arrays
        is_shared = hasattr(data, "__dlpack__") and not hasattr(data, "__array__")
        array = np.from_dlpack(data) if is_shared else np.asarray(data)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ExecutionError(
            f"{expected} {type(data).__name__}, which is no array ({error}). Convert it to a "
            "NumPy array first."
        ) from error
    if value.dtype == ir.DataType.STRING and array.dtype.kind in "UT":
        array = array.astype(object)
    if wanted is not None and array.dtype != wanted:
        # Arrays are taken as they are: a silent change of their type would hide a mistake.
        if hasattr(data, "dtype") or not np.can_cast(array.dtype, wanted, "same_kind"):
            way = f", as by x.astype({str(wanted)!r})" if hasattr(data, "astype") else ""
            raise ExecutionError(
                f"{expected} an array of {array.dtype}. Convert it to {wanted} first{way}."
            )
        array = array.astype(wanted)
    if not fits(array.shape, fixed_sizes(value)):
        raise ExecutionError(
            f"{expected} an array of shape {list(array.shape)}. Give it the shape of the input; "
            "its dimensions without a number are free."
        )
    return array


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
        source = node.inputs[0]
        node, moved = producer_of(source), True
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
            block_size = attributes["block_size"]
            return blocks.align(numbers, shape, attributes["axis"], block_size)
        np.broadcast_to(numbers, shape)
    except ValueError:
        return None
    return numbers


_ON_THE_GRID = 0.25
"""Share of the elements that lie on or beside the grid of the quantizer that reads an input."""


_BEYOND = 1.125
"""Factor by which uniform numbers exceed the range of a quantizer."""


def make_inputs(
    values: Sequence[ir.Value],
    *,
    seed: int = 0,
    number: int = 0,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, Array]:
    """Return an array for each of ``values``.

    Floats are half normal (deviation 1), half uniform in -3 .. 3. Where a quantizer with constant
    parameters reads the input directly, they are spread over its range and a little beyond instead,
    and a quarter are its grid points and the points half-way between them, and the float neighbours
    of both; a few are zeros of either sign. Integers of up to 8 bits fill their range, larger ones
    lie in 0 .. 3, so that they can be indices.

    Args:
        values: the inputs of a model that must be fed.
        seed: chooses the values.
        number: which of the batches of this seed.
        shapes: by input name. Without an entry a dynamic first dimension is 1.

    Raises:
        ExecutionError: an input is too large to be made up.
        OptionError: a shape is not known, does not fit, or is given for no input; or an input has
            no numeric type.
    """
    sizes = input_shapes(values, dict(shapes or {}))
    inputs = {}
    for index, value in enumerate(values):
        generator = np.random.default_rng([seed, number, index])
        name = str(value.name)
        inputs[name] = _draw(generator, value, sizes[name])
    return inputs


def _draw(generator: np.random.Generator, value: ir.Value, shape: tuple[int, ...]) -> Array:
    dtype = value.dtype
    others = ir.DataType.STRING, ir.DataType.UNDEFINED
    if dtype is None or dtype in others or not isinstance(value.type, ir.TensorType):
        raise OptionError(
            f"Input {describe(value)} cannot be generated: it is not a tensor of numbers. Feed it: "
            f"-i {value.name}=FILE.npy."
        )
    if dtype == ir.DataType.BOOL:
        return generator.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_integer():
        narrow = dtype.bitwidth <= 8
        low = -(1 << (dtype.bitwidth - 1)) if narrow and dtype.is_signed() else 0
        high = low + (1 << dtype.bitwidth) if narrow else 4
        return generator.integers(low, high, shape).astype(dtype.numpy())
    x = np.where(
        generator.random(shape) < 0.5,
        generator.standard_normal(shape),
        generator.uniform(-3, 3, shape),
    )
    x = np.asarray(np.clip(x, -3, 3) if dtype.bitwidth <= 8 else x).astype(dtype.numpy())
    if dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
        return x
    for node in value.consumers():
        grid = input_grid(node, shape) if node.inputs[0] is value else None
        if grid is not None:
            limits = input_range(node, shape)
            spread = x if limits is None else _spread(x, *limits)
            return _sprinkle(generator, spread, grid)
    return x


def _spread(x: Array, low: Array, high: Array) -> Array:
    """Return numbers of -3 .. 3 spread over a range, and a little beyond."""
    middle, half = low / 2 + high / 2, high / 2 - low / 2
    return (middle + x * half * (_BEYOND / 3)).astype(x.dtype)


def _sprinkle(generator: np.random.Generator, x: Array, grid: Grid) -> Array:
    # Small codes matter most, yet every size up to 16 bits has to occur.
    size = np.floor(np.exp2(generator.uniform(0, 10, x.shape))) - 1
    code = size * generator.choice([-1, 1], x.shape) + generator.choice([0, 0.5], x.shape)
    points = (code.astype(np.float32) * grid.step + grid.offset).astype(x.dtype)
    beside = generator.choice([-1, 0, 1], x.shape)
    towards = np.where(beside < 0, -np.inf, np.inf).astype(x.dtype)
    points = np.where(beside == 0, points, np.nextafter(points, towards))
    chance = generator.random(x.shape)
    x = np.where(chance < _ON_THE_GRID, points, x)
    zeros = np.where(beside < 0, x.dtype.type(-0.0), x.dtype.type(0))
    return np.where(chance < _ON_THE_GRID / 16, zeros, x)


def batch_shapes(
    values: Sequence[ir.Value], samples: int, elements: int
) -> dict[str, tuple[int, ...]]:
    """Return shapes with several samples for inputs whose first dimension alone is open.

    There are at most ``samples``, and ``elements`` in an input, unless one sample has more.
    """
    opened = {}
    for value in values:
        dims = None if value.shape is None else list(value.shape.dims)
        if dims and not isinstance(dims[0], int) and all(isinstance(d, int) for d in dims[1:]):
            opened[str(value.name)] = tuple(int(d) for d in dims[1:] if isinstance(d, int))
    largest = max((math.prod(sizes) for sizes in opened.values()), default=1)
    batch = max(1, min(samples, elements // max(1, largest)))
    return {name: (batch, *sizes) for name, sizes in opened.items()}
