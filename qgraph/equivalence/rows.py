"""Single samples of a model's inputs, run many at once where the model takes any number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import ExecutionError
from qgraph.execution.executor import Executor
from qgraph.execution.feeds import static
from qgraph.model import Model
from qgraph.proof.keys import from_keys, to_keys

Array = npt.NDArray[Any]
Row = dict[str, Array]
"""Inputs with one sample each, or with as many as the model fixes."""

_AT_ONCE = 32

_MOVED = 3
"""So many numbers of each input are moved, about."""


class Rows:
    """Runs samples of the inputs of a model.

    Args:
        model: the model.
        executor: runs it.

    Attributes:
        is_open: whether the model leaves the number of samples open in all its inputs.
    """

    def __init__(self, model: Model, executor: Executor) -> None:
        self._executor = executor
        self._halved = {str(v.name) for v in model.inputs if v.dtype == ir.DataType.FLOAT}
        self.is_open = bool(model.inputs) and all(
            value.shape is not None and len(value.shape) > 0 and static(value.shape.dims[0]) is None
            for value in model.inputs
        )

    def split(self, feeds: Mapping[str, Any]) -> list[Row]:
        """Return the samples of a batch."""
        arrays = {name: np.asarray(array) for name, array in feeds.items()}
        sizes = {len(array) if array.ndim else 0 for array in arrays.values()}
        if not self.is_open or len(sizes) != 1:
            return [arrays]
        return [
            {name: array[place : place + 1] for name, array in arrays.items()}
            for place in range(sizes.pop())
        ]

    def joined(self, rows: Sequence[Row]) -> list[Row]:
        """Return batches of samples, rounded to the types of the inputs."""
        step = _AT_ONCE if self.is_open else 1
        parts = [rows[start : start + step] for start in range(0, len(rows), step)]
        return [
            {name: np.concatenate([self.rounded(row)[name] for row in part]) for name in part[0]}
            if len(part) > 1
            else self.rounded(part[0])
            for part in parts
        ]

    def values(self, rows: Sequence[Row], names: Sequence[str]) -> list[dict[str, Array]]:
        """Return for each sample the values of some tensors."""
        found: list[dict[str, Array]] = []
        place = 0
        for batch in self.joined(rows):
            count = min(_AT_ONCE, len(rows) - place) if self.is_open else 1
            results = self._run(batch, names, count)
            if results is None:  # rows are not what the first axis counts
                self.is_open = False
                return found + self.values(rows[place:], names)
            found += results
            place += count
        return found

    def rounded(self, row: Row) -> Row:
        """Return a sample in the types of the inputs; half-way is computed in float64."""
        return {
            name: array.astype(np.float32) if name in self._halved else array
            for name, array in row.items()
        }

    def middle(self, one: Row, other: Row) -> Row:
        """Return what lies half-way between two samples; numbers that are no float32 stay."""
        return {
            name: (array.astype(np.float64) + other[name].astype(np.float64)) / 2
            if name in self._halved
            else array
            for name, array in one.items()
        }

    def moved(self, row: Row, generator: np.random.Generator) -> Row:
        """Return a sample in which a few numbers became neighbours of theirs, or nearly."""
        found = self.rounded(row)
        for name, array in found.items():
            if name not in self._halved:
                continue
            by = generator.integers(-2, 3, array.shape)
            chosen = generator.random(array.shape) * array.size < _MOVED
            found[name] = from_keys(to_keys(array) + np.where(chosen, by, 0))
        return found

    def are_equal(self, one: Row, other: Row) -> bool:
        """Return whether no number lies between two samples in any place, and others are equal."""
        first, second = self.rounded(one), self.rounded(other)
        return all(
            bool(np.all(np.nextafter(array, second[name]) == second[name]))
            if name in self._halved
            else np.array_equal(array, second[name])
            for name, array in first.items()
        )

    def _run(self, batch: Row, names: Sequence[str], count: int) -> list[dict[str, Array]] | None:
        found: dict[str, Array] = {}

        def keep(name: str, value: Any) -> None:
            found[name] = np.array(value)

        try:
            self._executor.run(batch, taps=list(dict.fromkeys(names)), observe=keep)
        except ExecutionError:
            if count == 1:
                raise
            return None
        if count == 1:
            return [found]
        if any(array.ndim == 0 or len(array) % count for array in found.values()):
            return None
        parts = {name: np.split(array, count) for name, array in found.items()}
        return [{name: part[place] for name, part in parts.items()} for place in range(count)]
