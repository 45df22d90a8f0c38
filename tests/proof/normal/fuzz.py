"""Random models in two forms: functions of single elements before movements, or after them.

The generator moves parameters by its own means: it lays each out over the data and moves it as data
is moved, by NumPy alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Function:
    """A function of single elements.

    Attributes:
        write: text of its nodes, for names of the data, the result and the parameter.
        parameter: laid out over the data; None without one.
        rises: whether it never decreases.
        is_quantizer: whether the parameter is a scale along one axis, which is written as such.
    """

    write: Callable[[str, str, str], str]
    parameter: Array | None
    rises: bool
    is_quantizer: bool = False


@dataclass(frozen=True)
class Move:
    """A movement, or a maximum over windows.

    Attributes:
        write: text of its node, for names of the data and the result.
        constants: what it takes besides, as text.
        apply: what it does to an array.
        is_maximum: whether it takes maxima, and not elements as they are.
    """

    write: Callable[[str, str], str]
    constants: str
    apply: Callable[[Array], Array]
    is_maximum: bool = False


Item = Function | Move


def random_pair(random: np.random.Generator, *, mistake: bool) -> tuple[str, str]:
    """Return two models as text; with a ``mistake``, the second one is changed somewhere."""
    sizes = tuple(int(n) for n in random.integers(1, 5, random.integers(2, 5)))
    items = _random_items(random, sizes)
    other = list(items)
    for _ in range(int(random.integers(1, 8))):
        place = int(random.integers(len(items) - 1)) if len(items) > 1 else 0
        _swap(other, place)
    if mistake:
        _mistake(random, other, sizes)
    return _text(sizes, items), _text(sizes, other)


def _random_items(random: np.random.Generator, sizes: tuple[int, ...]) -> list[Item]:
    items: list[Item] = []
    for count in range(int(random.integers(2, 7))):
        now = sizes
        for item in items:
            now = item.apply(np.zeros(now, np.float32)).shape if isinstance(item, Move) else now
        if random.random() < 0.5:
            items.append(_random_function(random, now))
        else:
            items.append(_random_move(random, now, count))
    return items


def _random_function(random: np.random.Generator, sizes: tuple[int, ...]) -> Function:
    kind = int(random.integers(9))
    if kind == 8:
        axis = int(random.integers(len(sizes))) if sizes else 0
        shape = [size if place == axis else 1 for place, size in enumerate(sizes)]
        scales = random.choice(np.array([0.25, 0.5, 1, 2], np.float32), shape)
        scales = np.broadcast_to(scales, sizes)
        return Function(_write_pair, scales, rises=True, is_quantizer=bool(sizes))
    plain = {
        0: ("Relu", True),
        1: ("Tanh", False),  # it rises, which is not for the last bit of a kernel to say
        2: ("Neg", False),
        3: ("Abs", False),
    }
    if kind in plain:
        name, rises = plain[kind]
        return Function(lambda x, y, _: f"{y} = {name}({x})", None, rises)
    if kind == 4:
        return Function(_write_pair, None, rises=True)
    shape = [size if random.random() < 0.5 else 1 for size in sizes]
    numbers = random.choice(np.array([-2, -0.5, 0.25, 1.5, 3], np.float32), shape)
    if kind in (5, 6):
        numbers = np.abs(numbers)
    laid_out = np.broadcast_to(numbers, sizes)
    name = {5: "Mul", 6: "Div", 7: "Add"}[kind]
    return Function(lambda x, y, c: f"{y} = {name}({x}, {c})", laid_out, rises=True)


def _write_pair(x: str, y: str, _: str) -> str:
    return (
        f"{y}q = QuantizeLinear({x}, pair_scale, pair_zero) "
        f"{y} = DequantizeLinear({y}q, pair_scale, pair_zero)"
    )


def _random_move(random: np.random.Generator, sizes: tuple[int, ...], count: int) -> Move:
    rank, name = len(sizes), f"m{count}"
    kind = int(random.integers(8))
    if kind < 2 or not rank:
        order = [int(axis) for axis in random.permutation(rank)]
        return Move(
            lambda x, y: f"{y} = Transpose <perm = {order}> ({x})",
            "",
            lambda a: np.transpose(a, order),
        )
    axis = int(random.integers(rank))
    if kind == 2:
        target = _factors(random, int(np.prod(sizes)))
        return Move(
            lambda x, y: f"{y} = Reshape({x}, {name})",
            _list(name, target),
            lambda a: a.reshape(target),
        )
    if kind == 3:
        chosen = [int(i) for i in random.integers(0, sizes[axis], random.integers(1, 4))]
        return Move(
            lambda x, y: f"{y} = Gather <axis = {axis}> ({x}, {name})",
            _list(name, chosen),
            lambda a: a.take(chosen, axis=axis),
        )
    if kind == 4:
        start = int(random.integers(sizes[axis]))
        step = int(random.choice([-1, 1, 2]))
        end = -99 if step < 0 else 99
        cut = [slice(None)] * axis + [slice(start, None, step)]
        constants = ", ".join(
            _list(f"{name}{part}", [number])
            for part, number in (("b", start), ("e", end), ("a", axis), ("s", step))
        )
        return Move(
            lambda x, y: f"{y} = Slice({x}, {name}b, {name}e, {name}a, {name}s)",
            constants,
            lambda a: a[tuple(cut)],
        )
    if kind == 5:
        return Move(
            lambda x, y: f"{y} = Unsqueeze({x}, {name})",
            _list(name, [axis]),
            lambda a: np.expand_dims(a, axis),
        )
    if kind == 6:
        counts = [2 if place == axis else 1 for place in range(rank)]
        return Move(
            lambda x, y: f"{y} = Tile({x}, {name})",
            _list(name, counts),
            lambda a: np.tile(a, counts),
        )
    return Move(
        lambda x, y: f"{y} = ReduceMax <keepdims = 1> ({x}, {name})",
        _list(name, [axis]),
        lambda a: a.max(axis=axis, keepdims=True),
        is_maximum=True,
    )


def _factors(random: np.random.Generator, count: int) -> list[int]:
    found, left = [], count
    for _ in range(int(random.integers(0, 3))):
        divisors = [n for n in range(1, left + 1) if left % n == 0]
        found.append(int(random.choice(divisors)))
        left //= found[-1]
    return [*found, left]


def _swap(items: list[Item], place: int) -> None:
    """Do a movement before the function in front of it, where the two commute."""
    first, second = [*items[place : place + 2], None][:2]
    if not isinstance(first, Function) or not isinstance(second, Move):
        return
    parameter = first.parameter
    if second.is_maximum:
        if not first.rises:
            return
        if parameter is not None and (second.apply(parameter) != -second.apply(-parameter)).any():
            return  # it varies within a window
    moved = None if parameter is None else second.apply(parameter)
    if first.is_quantizer and moved is not None and sum(n > 1 for n in _shrunk(moved).shape) > 1:
        return  # its scale would lie along two axes
    other = replace(first, parameter=moved)
    if first.is_quantizer and moved is not None and not moved.ndim:
        return
    items[place : place + 2] = [second, other]


def _mistake(random: np.random.Generator, items: list[Item], sizes: tuple[int, ...]) -> None:
    place = int(random.integers(len(items)))
    item = items[place]
    match item:
        case Function(parameter=parameter) if parameter is not None:
            changed = np.array(parameter)
            flat = changed.reshape(-1)
            flat[int(random.integers(flat.size))] += np.float32(0.5)
            if not item.is_quantizer:
                items[place] = replace(item, parameter=changed)
        case Move() if random.random() < 0.5:
            data = np.zeros(sizes, np.float32)
            for before in items[:place]:
                data = before.apply(data) if isinstance(before, Move) else data
            items[place] = _random_move(random, data.shape, 90 + place)
        case _ if len(items) > 1:
            other = int(random.integers(len(items)))
            items[place], items[other] = items[other], items[place]


def _list(name: str, numbers: Sequence[int]) -> str:
    return f"int64[{len(numbers)}] {name} = {{{', '.join(map(str, numbers))}}}"


def _text(sizes: tuple[int, ...], items: Sequence[Item]) -> str:
    constants = ["float pair_scale = {0.5}, uint8 pair_zero = {100}"]
    lines, value = [], "x"
    for count, item in enumerate(items):
        result = "y" if count == len(items) - 1 else f"v{count}"
        if isinstance(item, Move):
            constants += [item.constants] if item.constants else []
            lines.append(item.write(value, result))
        elif item.is_quantizer and item.parameter is not None:
            lines.append(_write_quantizer(value, result, item.parameter, constants))
        else:
            name = f"c{count}"
            if item.parameter is not None:
                constants.append(_numbers(name, item.parameter))
            lines.append(item.write(value, result, name))
        value = result
    dims = ",".join(map(str, sizes))
    return f"g (float[{dims}] x) => (float[] y) <{', '.join(constants)}> {{ {' '.join(lines)} }}"


def _write_quantizer(x: str, y: str, scales: Array, constants: list[str]) -> str:
    """Write a QuantizeLinear and a DequantizeLinear with a scale along the axis where it varies."""
    shape = _shrunk(scales).shape
    axis = next((place for place, size in enumerate(shape) if size > 1), 0)
    size = shape[axis]
    listed = ", ".join(map(str, _shrunk(scales).reshape(-1).tolist()))
    zeros = ", ".join(["0"] * size)
    constants.append(f"float[{size}] {y}s = {{{listed}}}, int8[{size}] {y}z = {{{zeros}}}")
    if size == 1:
        constants[-1] = f"float {y}s = {{{listed}}}, int8 {y}z = {{0}}"
    return (
        f"{y}q = QuantizeLinear <axis = {axis}> ({x}, {y}s, {y}z) "
        f"{y} = DequantizeLinear <axis = {axis}> ({y}q, {y}s, {y}z)"
    )


def _shrunk(array: Array) -> Array:
    """Return an array with size 1 along axes along which it does not vary."""
    for axis in range(array.ndim):
        first = array.take([0], axis=axis)
        if (first == array).all():
            array = first
    return array


def _numbers(name: str, array: Array) -> str:
    """Write a parameter."""
    array = _shrunk(array)
    dims = ",".join(map(str, array.shape))
    numbers = ", ".join(map(str, array.reshape(-1).tolist()))
    return f"float{f'[{dims}]' if dims else ''} {name} = {{{numbers}}}"
