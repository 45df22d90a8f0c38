"""Inputs of a graph: check given arrays, and make random ones around the ties of quantizers.

Shapes of random inputs are fixed by the model, given by the user, or guessed.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import ExecutionError, OptionError, meant
from qgraph.graph.sizes import fits, fixed_sizes, static
from qgraph.numerics import Array
from qgraph.ops.operator import Grid, input_grid, input_range

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


_MOST_ELEMENTS = 1 << 27
"""Random inputs are not larger: what a model states as a size may be nonsense."""

_MOST_GIVEN = 1 << 48
"""Elements of the largest shape that a user can give; arrays of more cannot be described."""


def describe(value: ir.Value) -> str:
    """Return name, type and shape of a value for a message: ``'x' (FLOAT[N,1,8,8])``."""
    dtype = value.dtype.name if value.dtype else "of unknown type"
    dims = "[?]" if value.shape is None else f"[{','.join(map(str, value.shape.dims))}]"
    return f"{value.name!r} ({dtype}{dims})"


def input_shapes(
    values: Sequence[ir.Value], shapes: dict[str, Sequence[int]]
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each input by name; ``shapes`` are those that are given.

    Raises:
        ExecutionError: an input is too large to be made up.
        OptionError: a shape is not known, does not fit, or is given for no input.
    """
    by_name = {str(value.name): value for value in values}
    for name in shapes:
        if name not in by_name:
            raise OptionError(
                f"A shape is given for {name!r}, but the inputs of the model are "
                f"{', '.join(map(describe, by_name.values())) or 'none'}. Use one of these names."
            )
    symbols: dict[str, int] = {}
    for name, shape in shapes.items():
        dims = by_name[name].shape
        for dim, size in zip(() if dims is None else dims.dims, shape, strict=False):
            if isinstance(dim, ir.SymbolicDim) and dim.value not in (None, "?"):
                symbols[str(dim.value)] = size
    sizes = {name: _shape(value, shapes.get(name), symbols) for name, value in by_name.items()}
    if open_inputs := [by_name[name] for name, shape in sizes.items() if shape is None]:
        rest = [_placeholders(value, symbols) for value in open_inputs]
        options = (
            f"--shape {value.name}:{','.join(names)}"
            for value, names in zip(open_inputs, rest, strict=True)
        )
        letters = [name for names in rest for name in names if not name.isdecimal()]
        numbers_for = ", ".join(dict.fromkeys(letters))
        several = len(open_inputs) > 1
        raise OptionError(
            f"Input{'s' if several else ''} {', '.join(map(describe, open_inputs))} "
            f"{'have' if several else 'has'} no fixed shape; only the batch size has a default. "
            f"Give {' '.join(options)} with numbers for {numbers_for}; in Python, "
            f"shapes={{{open_inputs[0].name!r}: ({', '.join(rest[0])})}}."
        )
    return {name: shape for name, shape in sizes.items() if shape is not None}


def _placeholders(value: ir.Value, symbols: Mapping[str, int]) -> list[str]:
    """Return the sizes of an input for an option; a word replaces each unknown size.

    An input without a shape is assumed to have rank 4, and the last sizes of an image.
    """
    if value.shape is None:
        return ["1", "C", "H", "W"]
    names = []
    for axis, dim in enumerate(value.shape.dims):
        word = str(dim.value) if isinstance(dim, ir.SymbolicDim) and dim.value else f"D{axis}"
        size = symbols.get(word, static(dim))
        names.append(str(size) if size is not None else "1" if axis == 0 else word)
    return names


def _shape(
    value: ir.Value, shape: Sequence[int] | None, symbols: Mapping[str, int]
) -> tuple[int, ...] | None:
    """Return the shape of an input; None if a size beside the batch size is not known."""
    dims = None if value.shape is None else list(value.shape.dims)
    if shape is not None:
        largest = math.prod(max(n, 1) for n in shape)
        if (
            not fits(shape, fixed_sizes(value))
            or min(shape, default=0) < 0
            or largest > _MOST_GIVEN
        ):
            raise OptionError(
                f"Input {describe(value)} cannot have the shape {list(shape)}. Give --shape "
                f"{value.name}:N,... with the sizes that the model fixes, less than 2**48 elements."
            )
        return tuple(shape)
    sizes = [
        symbols.get(str(dim.value)) if isinstance(dim, ir.SymbolicDim) else static(dim)
        for dim in dims or ()
    ]
    if dims is None or None in sizes[1:]:
        return None
    fixed = tuple(1 if size is None else size for size in sizes)
    if math.prod(fixed) > _MOST_ELEMENTS:
        raise ExecutionError(
            f"Input {describe(value)} has {math.prod(fixed)} elements, expected at most "
            f"{_MOST_ELEMENTS} of random data. Feed it: -i {value.name}=FILE.npy."
        )
    return fixed


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
