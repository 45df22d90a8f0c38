"""One ONNX Runtime session called with nothing in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.execution.feeds import static


class Direct:
    """A graph that is one session, for calls that feed exactly its inputs, as arrays that fit.

    Args:
        graph: its inputs are what may be fed.
        feeds: names of the inputs that the session reads.
        session: of ONNX Runtime.
        names: of its outputs.
    """

    def __init__(
        self, graph: ir.Graph, feeds: Sequence[str], session: Any, names: Sequence[str]
    ) -> None:
        self._forms = [
            (str(value.name), value.dtype and value.dtype.numpy(), _sizes(value))
            for value in graph.inputs
            if not value.is_initializer()
        ]
        self._unused = {name for name, _, _ in self._forms}.difference(feeds)
        self._session = session
        self._names = names

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the outputs by name; None if the inputs need a closer look."""
        if len(inputs) != len(self._forms):
            return None
        for name, dtype, sizes in self._forms:
            array = inputs.get(name)
            if type(array) is not np.ndarray or array.dtype != dtype:
                return None
            if array.shape != sizes and not _fits(array.shape, sizes):
                return None
        if self._unused:
            inputs = {name: array for name, array in inputs.items() if name not in self._unused}
        return dict(zip(self._names, self._session.run(None, inputs), strict=True))


def _sizes(value: ir.Value) -> tuple[int | None, ...] | None:
    return None if value.shape is None else tuple(static(dim) for dim in value.shape.dims)


def _fits(shape: tuple[int, ...], sizes: tuple[int | None, ...] | None) -> bool:
    if sizes is None:
        return True
    pairs = zip(shape, sizes, strict=False)
    return len(shape) == len(sizes) and all(size is None or size == n for n, size in pairs)
