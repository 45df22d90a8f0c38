"""A node whose opset is raised, and the operations on it.

The definition of pooling with ``ceil_mode`` changed between versions. The last window may reach
beyond the padding at the end:

* Opset 22: a window that would start in the padding at the end is omitted. The formula of earlier
  versions counts it, although it contains no data.
* Opset 19: with ``count_include_pad`` a sum is divided by the number of elements of the window that
  lie in the input or its padding. The text of earlier versions leaves open whether elements beyond
  the padding count as well, and runtimes divided by the size of the whole window.

A node is raised only if neither can happen, according to its attributes or the sizes of its data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import UnsupportedError, where
from qgraph.graph.edit import Editor
from qgraph.graph.inference.rules import UNKNOWN
from qgraph.graph.inference.walk import Facts
from qgraph.graph.inference.windows import Axis, rounded_up
from qgraph.numerics import Array
from qgraph.records import dataclass


@dataclass
class OpsetChange:
    """A node of the standard domain that is to be rewritten, from one opset to a higher one.

    Attributes:
        source, target: opset of the graph or function now, and a higher one.
        editor: creates names and constants.
        float_type: the only floating type of the model; None if there are several.
        facts: inferred types and shapes; None if they are not needed.
        reached: the opset of the rewritten node.
    """

    node: ir.Node
    source: int
    target: int
    editor: Editor
    float_type: ir.DataType | None
    facts: Facts | None
    reached: int

    def refuse(self, reason: str) -> UnsupportedError:
        """Return the error to raise."""
        return UnsupportedError(
            f"{where(self.node)}: {reason}, so its opset cannot be raised from {self.source} to "
            f"{self.target}. Export the model with opset {self.target}."
        )

    def take(self, name: str, default: Any = None) -> Any:
        """Remove an attribute and return its value; ``default`` if it is absent."""
        value = self.get(name, default)
        self.node.attributes.pop(name, None)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute; ``default`` if it is absent."""
        attribute = self.node.attributes.get(name)
        if attribute is None:
            return default
        if attribute.is_ref():
            raise self.refuse(f"attribute {name!r} is a parameter of the function")
        return attribute.value

    def set(self, name: str, value: int | str) -> None:
        """Set an attribute."""
        self.node.attributes[name] = ir.convenience.convert_attribute(name, value)

    def feed(self, index: int, name: str, array: Array) -> None:
        """Make a constant the input at ``index``."""
        node = self.node
        if len(node.inputs) <= index:
            node.resize_inputs(index + 1)
        node.replace_input_with(index, self.constant(name, array))

    def constant(self, name: str, array: Array) -> ir.Value:
        """Return a new constant that is visible to the node."""
        value = ir.val(name, const_value=ir.tensor(array))
        return self.editor.place(value, self.node, self.node.graph, self.stem)

    def insert(self, op_type: str, inputs: Sequence[ir.Value], **attributes: int) -> ir.Value:
        """Put a new node before the node; return its output."""
        new = ir.node(op_type, inputs, attributes)
        label = self.editor.fresh(f"{self.stem}_{op_type.lower()}")
        new.name = new.outputs[0].name = label
        self.node.prepend(new)
        return new.outputs[0]

    @property
    def stem(self) -> str:
        """Prefix of the names of added values."""
        return self.node.outputs[0].name or self.node.op_type

    @property
    def x(self) -> ir.Value:
        """The first input."""
        value = self.node.inputs[0] if self.node.inputs else None
        if value is None:
            raise self.refuse("it has no input")
        return value

    def integers(self, index: int, name: str, *, required: bool = False) -> None:
        """Turn a list of integers that is an attribute into the input at ``index``."""
        values = self.take(name)
        if values is not None:
            self.feed(index, name, np.asarray(values, np.int64))
        elif required:
            raise self.refuse(f"it has no attribute {name!r}")

    def number_like_input(self, index: int, name: str, value: float) -> None:
        """Make a number, in the type of the first input, the input at ``index``."""
        dtype = self.element_type(self.x) or self.float_type
        if dtype is None:
            raise self.refuse(f"the type of its input {self.x.name!r} is not known")
        with np.errstate(over="ignore"):
            self.feed(index, name, np.asarray(value, np.float64).astype(dtype.numpy()))

    @property
    def sizes(self) -> list[int | None] | None:
        """The inferred shape of the first input, None if unknown.

        Sizes that are not fixed are None.
        """
        return None if self.facts is None else self.facts.get(self.x, UNKNOWN).sizes

    def element_type(self, value: ir.Value) -> ir.DataType | None:
        """Return the inferred type of the elements of a value."""
        return None if self.facts is None else self.facts.get(value, UNKNOWN).dtype


def may_be_set(node: ir.Node, name: str, *, default: bool = False) -> bool:
    """Return whether an attribute is true, or a parameter of the function."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.is_ref() or bool(attribute.value)


def divide_by_window(change: OpsetChange) -> None:
    """Refuse a window that reaches beyond the padding, if padding counts."""
    if change.get("count_include_pad", 0) and any(axis.may_overhang for axis in _axes(change)):
        raise change.refuse(
            "with ceil_mode and count_include_pad, a window may reach beyond the padding, and the "
            "divisor of its sum was undefined"
        )


def start_windows(change: OpsetChange) -> None:
    """Refuse a window that may start in the padding at the end."""
    if any(axis.may_start_in_padding for axis in _axes(change)):
        raise change.refuse("with ceil_mode, windows may begin in the padding at the end")


def _axes(change: OpsetChange) -> list[Axis]:
    """Return the spatial axes of a pooling node whose number of windows is rounded up."""
    if not change.get("ceil_mode", 0):
        return []
    axes = rounded_up(change.get, change.sizes)
    if axes is None:
        raise change.refuse("its kernel_shape, strides, dilations and pads do not fit together")
    return axes
