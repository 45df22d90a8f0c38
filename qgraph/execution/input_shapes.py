"""Shapes of random inputs: fixed by the model, given by the user, or guessed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from qgraph.errors import ExecutionError, OptionError
from qgraph.graph.interface import fits, fixed_sizes, static

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
            f"{'have' if several else 'has'} no fixed shape, only a batch dimension is guessed. "
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
