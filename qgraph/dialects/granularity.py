"""Over which elements of a tensor one scale reaches, as QuantizeLinear spells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.numerics import blocks

Array = npt.NDArray[Any]
Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class Layout:
    """How a parameter lies along the data.

    Attributes:
        axis: None per tensor; else the axis along which it varies, or in which the blocks lie.
        block_size: elements that share an entry along ``axis``; 0 when not blocked.
        shape: shape that scale and zero point have in QuantizeLinear.
    """

    axis: int | None
    block_size: int
    shape: tuple[int, ...]

    def lay(self, parameter: Array) -> Array:
        """Return ``parameter``, which broadcasts to the data, in the shape of this layout."""
        if self.block_size:
            return np.asarray(np.broadcast_to(parameter, self.shape), order="C")
        if self.axis is None:
            return parameter.reshape(())
        return np.array(np.broadcast_to(parameter.reshape(-1), self.shape))

    @property
    def attributes(self) -> dict[str, int]:
        """Attributes of QuantizeLinear and DequantizeLinear."""
        found = {} if self.axis is None else {"axis": self.axis}
        return {**found, "block_size": self.block_size} if self.block_size else found

    @property
    def opset(self) -> int:
        """The opset since which QuantizeLinear can say this."""
        return 21 if self.block_size else 10 if self.axis is None else 13


def layout_of(data: Shape | None, *parameters: Array) -> Layout | None:
    """Return the layout that all ``parameters`` have in common, or None if Q/DQ has none.

    Args:
        data: shape of the data, None where its rank is unknown; the axis is then counted from
            the end.
        parameters: arrays that broadcast to the data.
    """
    joint = np.broadcast_shapes(*(parameter.shape for parameter in parameters))
    varying = [place for place, size in enumerate(joint) if size != 1]
    if not varying:
        return Layout(None, 0, ())
    offset = -len(joint) if data is None else len(data) - len(joint)
    if len(varying) == 1 and (data is None or joint[varying[0]] == data[offset + varying[0]]):
        return Layout(offset + varying[0], 0, (joint[varying[0]],))
    if data is None or any(size is None for size in data):
        return None
    known = tuple(size for size in data if size is not None)
    found = blocks.blocks_of(joint, known)
    return None if found is None else Layout(found[0], found[1], joint)
