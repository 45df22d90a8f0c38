"""What pooling means from version to version, where the number of windows is rounded up.

With ``ceil_mode`` the last window may reach beyond the padding at the end. Two things about it were
settled late:

* Opset 22: a window that would start in the padding at the end is left out. The formula of earlier
  versions counts it, though it has nothing to pool.
* Opset 19: with ``count_include_pad`` a sum is divided by the number of elements of the window that
  lie in the input or its padding. The text of earlier versions leaves open whether what lies beyond
  counts as well, and runtimes divided by the size of the whole window.

A node is raised where neither can happen, going by its attributes and, where these do not tell, the
sizes of its data.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from qgraph.graph.inference.windows import Axis
from qgraph.opsets.change import Change


def rounds_up(node: ir.Node) -> bool:
    """Return whether a pooling node may round the number of its windows up."""
    given = node.attributes.get("ceil_mode")
    return given is not None and (given.is_ref() or bool(given.value))


def divide_by_window(change: Change) -> None:
    """Refuse a window that reaches beyond the padding, if padding counts."""
    if change.get("count_include_pad", 0) and any(axis.may_overhang for axis in _axes(change)):
        raise change.refuse(
            "with ceil_mode and count_include_pad, a window may reach beyond the padding, and it "
            "was open what its sum is divided by"
        )


def start_windows(change: Change) -> None:
    """Refuse a window that may start in the padding at the end."""
    if any(axis.may_start_in_padding for axis in _axes(change)):
        raise change.refuse("with ceil_mode, windows may begin in the padding at the end")


def _axes(change: Change) -> Iterator[Axis]:
    """Yield the spatial axes of a pooling node whose number of windows is rounded up."""
    auto = str(change.get("auto_pad", "NOTSET"))
    if not change.get("ceil_mode", 0) or auto.startswith("SAME"):
        return  # so many windows as strides fit into the data, whatever is rounded
    kernel = list(change.get("kernel_shape", ()))
    rank = len(kernel)
    strides = change.get("strides", [1] * rank)
    dilations = change.get("dilations", [1] * rank)
    pads = change.get("pads", [0] * 2 * rank) if auto == "NOTSET" else [0] * 2 * rank
    fits = (len(strides), len(dilations), len(pads)) == (rank, rank, 2 * rank)
    if not rank or not fits or min(strides) < 1:
        raise change.refuse("its kernel_shape, strides, dilations and pads do not fit together")
    shape = change.sizes
    sizes = shape[2:] if shape is not None and len(shape) == rank + 2 else [None] * rank
    for place, size in enumerate(sizes):
        reach = (kernel[place] - 1) * dilations[place] + 1
        yield Axis(size, pads[place], pads[rank + place], strides[place], reach)
