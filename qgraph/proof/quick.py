"""Two expressions on many inputs of one channel at once, in buffers that stay in the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.primitives import NUMPY
from qgraph.proof.expression import CONSTANT, INPUT, TABLE, Expr, undefined
from qgraph.proof.keys import Float32
from qgraph.proof.program import Program

Array = npt.NDArray[Any]

_ZERO = np.float32(0)


@dataclass(frozen=True)
class _Step:
    """One primitive: where its operands lie, where its result goes, and what to look out for."""

    name: str
    function: Callable[..., Array]
    attributes: dict[str, Any]
    operands: tuple[int, ...]
    out: Array | None
    may_leave_open: bool


class Quick:
    """Evaluates the two expressions of a program, without a look at what ONNX leaves open.

    Args:
        program: the expressions.
        kind: the kind of channels whose constants are taken.
        size: how many inputs are evaluated at once.
    """

    def __init__(self, program: Program, kind: int, size: int) -> None:
        order = program.order
        place = {id(e): i for i, e in enumerate(order)}
        self._roots = [place[id(root)] for root in program.roots]
        last = {place[id(o)]: i for i, e in enumerate(order) for o in e.inputs}
        last.update(dict.fromkeys(self._roots, len(order)))
        self._values: list[Any] = [None] * len(order)
        self._steps: list[tuple[int, _Step]] = []
        self._inputs = [i for i, e in enumerate(order) if e.op == INPUT]
        self._size = size
        pool: dict[type, list[Array]] = {np.float32: [], np.bool_: []}
        held: dict[int, Array] = {}
        for i, e in enumerate(order):
            if e.op in (CONSTANT, TABLE):
                self._values[i] = program.constant(e, kind)
            elif e.op != INPUT:
                out = None
                if isinstance(NUMPY[e.op], np.ufunc):
                    element = np.bool_ if e.dtype == "BOOL" else np.float32
                    out = pool[element].pop() if pool[element] else np.empty(size, element)
                    held[i] = out
                operands = tuple(place[id(o)] for o in e.inputs)
                self._steps.append((i, self._step(e, operands, out)))
                for operand in set(operands):
                    if last[operand] == i and operand in held:
                        freed = held.pop(operand)
                        pool[freed.dtype.type].append(freed)

    def _step(self, e: Expr, operands: tuple[int, ...], out: Array | None) -> _Step:
        ties = e.op in ("Min", "Max", "Relu") and not any(
            operand.op == CONSTANT and np.all(self._values[place] != 0)
            for operand, place in zip(e.inputs, operands, strict=True)
        )
        may = ties or e.op in ("Cast", "Gather")
        return _Step(e.op, NUMPY[e.op], dict(e.attributes), operands, out, may)

    def __call__(self, x: Float32) -> tuple[Float32, Float32] | None:
        """Return both results at inputs ``x`` ``[size]``, which last until the next call.

        None is returned where ONNX leaves open what is computed for one of them, if only the sign
        of a zero.
        """
        values = self._values
        for place in self._inputs:
            values[place] = x
        for place, step in self._steps:
            operands = [values[operand] for operand in step.operands]
            if step.may_leave_open and _is_open(step, operands):
                return None
            if step.out is not None:
                step.function(*operands, out=step.out)
                values[place] = step.out
                continue
            result = step.function(*operands, **step.attributes)
            if any(np.may_share_memory(result, operand) for operand in operands):
                result = result.copy()
            values[place] = result
        a, b = (np.broadcast_to(values[root], (self._size,)) for root in self._roots)
        return a, b


def _is_open(step: _Step, operands: list[Array]) -> bool:
    if step.name == "Cast":
        # what is defined lies between two numbers, and NaN is passed on by minimum and maximum
        ends = np.array([operands[0].min(), operands[0].max()])
        return bool(undefined("Cast", [ends], step.attributes).any())
    if step.name == "Gather":
        table, index = operands
        ends = np.array([index.min(), index.max()])
        return bool(undefined("Gather", [table, ends], {}).any())
    a, b = operands if len(operands) == 2 else (operands[0], np.asarray(_ZERO))
    if a.ndim == 0:
        a, b = b, a
    if b.ndim == 0:
        opposite = (-b).view(np.uint32)
        return bool((a.view(np.uint32) == opposite).any())
    both = (a == 0) & (b == 0)
    return bool(both.any() and (both & (np.signbit(a) != np.signbit(b))).any())
