"""What to do to a node of the standard domain when the opset around it is raised.

Operators get new versions all the time, most of which only take more types or spell a text anew.
The table at the end lists the others: under the name of the operator and the version that came
with the change stands a function that rewrites a node so that it computes what it did, or refuses.
All versions from OLDEST to LATEST have been compared for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.constants import constant
from qgraph.edit import Editor
from qgraph.errors import UnsupportedError, where

OLDEST = 9
"""The lowest opset that can be raised."""

LATEST = 28
"""The highest opset whose operators are known here."""


_RESIZE_WITH_ROI, _RESIZE_WITHOUT_ROI = 11, 13


def adapt(
    node: ir.Node, source: int, target: int, editor: Editor, float_type: ir.DataType | None
) -> None:
    """Rewrite ``node``, which means what opset ``source`` says, for opset ``target``.

    Args:
        node: a node of the standard domain.
        source: opset of the graph or function, now.
        target: a higher one.
        editor: gives names and places constants.
        float_type: the only floating type of the model; None if there are several.

    Raises:
        UnsupportedError: what it computes cannot be said in opset ``target``.
    """
    if source < OLDEST:
        raise UnsupportedError(
            f"{where(node)}: the opset is {source}; one below {OLDEST} cannot be raised. "
            f"Export the model with opset {target}."
        )
    change = Change(node, source, target, editor, float_type)
    reached = source
    while steps := changes(node.op_type, reached, target):
        reached = steps[0]
        ADAPTERS[node.op_type, reached](change)


def changes(name: str, source: int, target: int) -> list[int]:
    """Return the opsets after ``source`` up to ``target`` that changed the operator ``name``."""
    return [step for step in _STEPS.get(name, ()) if source < step <= target]


@dataclass(frozen=True)
class Change:
    """A node that is to be rewritten."""

    node: ir.Node
    source: int
    target: int
    editor: Editor
    float_type: ir.DataType | None

    def refuse(self, reason: str) -> UnsupportedError:
        """Return the error to raise."""
        return UnsupportedError(
            f"{where(self.node)}: {reason}, so its opset cannot be raised from {self.source} to "
            f"{self.target}. Export the model with opset {self.target}."
        )

    def take(self, name: str, default: Any = None) -> Any:
        """Remove an attribute and return its value, ``default`` where it is absent."""
        value = self.get(name, default)
        self.node.attributes.pop(name, None)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute, ``default`` where it is absent."""
        attribute = self.node.attributes.get(name)
        if attribute is None:
            return default
        if attribute.is_ref():
            raise self.refuse(f"attribute {name!r} is a parameter of the function")
        return attribute.value

    def set(self, name: str, value: int | str) -> None:
        """Set an attribute."""
        self.node.attributes[name] = ir.convenience.convert_attribute(name, value)

    def feed(self, place: int, name: str, array: npt.NDArray[Any]) -> None:
        """Make a constant the input at ``place``."""
        node = self.node
        if len(node.inputs) <= place:
            node.resize_inputs(place + 1)
        node.replace_input_with(place, self.constant(name, array))

    def constant(self, name: str, array: npt.NDArray[Any]) -> ir.Value:
        """Return a new constant within reach of the node."""
        tensor = ir.tensor(array)
        kind, shape = ir.TensorType(tensor.dtype), ir.Shape(array.shape)
        value = ir.Value(name=name, type=kind, shape=shape, const_value=tensor)
        return self.editor.place(value, self.node, self.node.graph, self.stem)

    def insert(self, op_type: str, inputs: Sequence[ir.Value], **attributes: int) -> ir.Value:
        """Put a new node before the node; return its output."""
        made = ir.node(op_type, inputs, attributes)
        label = self.editor.fresh(f"{self.stem}_{op_type.lower()}")
        made.name = made.outputs[0].name = label
        self.node.prepend(made)
        return made.outputs[0]

    @property
    def stem(self) -> str:
        """How the names of what is added begin."""
        return self.node.outputs[0].name or self.node.op_type

    @property
    def x(self) -> ir.Value:
        """The first input."""
        value = self.node.inputs[0] if self.node.inputs else None
        if value is None:
            raise self.refuse("it has no input")
        return value

    def integers(self, place: int, name: str, *, required: bool = False) -> None:
        """Turn a list of integers that is an attribute into the input at ``place``."""
        values = self.take(name)
        if values is not None:
            self.feed(place, name, np.asarray(values, np.int64))
        elif required:
            raise self.refuse(f"it has no attribute {name!r}")

    def number_like_input(self, place: int, name: str, value: float) -> None:
        """Make a number, in the type of the first input, the input at ``place``."""
        dtype = self.x.dtype or self.float_type
        if dtype is None:
            raise self.refuse(f"the type of its input {self.x.name!r} is not stated in the model")
        self.feed(place, name, np.asarray(value, np.float64).astype(dtype.numpy()))


def _axes(change: Change) -> None:
    change.integers(1, "axes")


def _slice(change: Change) -> None:
    change.integers(1, "starts", required=True)
    change.integers(2, "ends", required=True)
    change.integers(3, "axes")


def _split(change: Change) -> None:
    change.integers(1, "split")


def _split_evenly(change: Change) -> None:
    if len(change.node.inputs) < 2 or change.node.inputs[1] is None:
        change.set("num_outputs", len(change.node.outputs))


def _pad(change: Change) -> None:
    change.integers(1, "pads", required=True)
    value = change.take("value", 0.0)
    if value:
        change.number_like_input(2, "value", value)


def _clip(change: Change) -> None:
    for place, name in ((1, "min"), (2, "max")):
        bound = change.take(name)
        if bound is not None:
            change.number_like_input(place, name, bound)


def _top_k(change: Change) -> None:
    count = change.take("k")
    if count is None:
        raise change.refuse("it has no attribute 'k'")
    change.feed(1, "k", np.asarray([count], np.int64))


def _dft(change: Change) -> None:
    change.feed(2, "axis", np.asarray(change.take("axis", 1), np.int64))


def _dropout_mask(change: Change) -> None:
    mask = change.node.outputs[1:]
    if any(value.uses() or value.is_graph_output() for value in mask):
        raise change.refuse("its mask is used, which was a number and became a truth value")


def _dropout(change: Change) -> None:
    change.feed(1, "ratio", np.asarray(change.take("ratio", 0.5), np.float32))


def _batch_normalization(change: Change) -> None:
    if any(value.name for value in change.node.outputs[1:]):
        raise change.refuse("it has the outputs of training, which have other meanings since")


def _scatter(change: Change) -> None:
    change.node.op_type = "ScatterElements"


def _upsample(change: Change) -> None:
    change.node.op_type = "Resize"
    if change.target >= _RESIZE_WITH_ROI:
        _resize_as_upsample(change)


def _resize(change: Change) -> None:
    if "coordinate_transformation_mode" in change.node.attributes:
        return  # an Upsample, done above
    scales = constant(change.node.inputs[1])
    if change.get("mode", "nearest") == "nearest" and (scales is None or (scales < 1).any()):
        raise change.refuse("it picks the nearest pixel for a scale that may be below 1")
    _resize_as_upsample(change)


def _resize_as_upsample(change: Change) -> None:
    """Spell what Upsample, and Resize for scales from 1, did before they could do more."""
    node = change.node
    node.resize_inputs(3)
    node.replace_input_with(2, node.inputs[1])
    node.replace_input_with(1, None)
    if change.target < _RESIZE_WITHOUT_ROI:
        change.feed(1, "roi", np.zeros(0, np.float32))
    change.set("coordinate_transformation_mode", "asymmetric")
    change.set("nearest_mode", "floor")


def _resize_by_sizes(change: Change) -> None:
    if change.get("coordinate_transformation_mode") == "tf_half_pixel_for_nn":
        raise change.refuse("coordinate_transformation_mode 'tf_half_pixel_for_nn' is no more")
    if len(change.node.inputs) > 3 and change.node.inputs[3] is not None:
        change.node.replace_input_with(2, None)


def _softmax(change: Change) -> None:
    """Softmax, LogSoftmax and Hardmax took all dimensions from ``axis`` on as one."""
    axis, shape = change.get("axis", 1), change.x.shape
    if axis == -1 or (shape is not None and axis == len(shape) - 1):
        change.set("axis", axis)
        return
    node = change.node
    size = change.insert("Shape", [change.x])
    flat = change.insert("Flatten", [change.x], axis=axis)
    flat_result = change.insert(node.op_type, [flat], axis=-1)
    node.op_type = "Reshape"
    node.attributes.clear()
    node.resize_inputs(2)
    node.replace_input_with(0, flat_result)
    node.replace_input_with(1, size)


def _one_hot(change: Change) -> None:
    indices = constant(change.x)
    if indices is None or (indices < 0).any():
        raise change.refuse("its indices may be negative, which count from the end since")


def _conv_transpose(change: Change) -> None:
    if change.get("output_shape") or str(change.get("auto_pad", "")).startswith("SAME"):
        raise change.refuse("an odd padding went to the other side before opset 11")


def _pool(change: Change) -> None:
    """Windows that begin in the padding at the end were counted, if the size is rounded up."""
    kernel = change.get("kernel_shape", ())
    ones = [1] * len(kernel)
    strides, dilations = change.get("strides", ones), change.get("dilations", ones)
    pads = change.get("pads", [0] * 2 * len(kernel))[len(kernel) :]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    fits = all(s + p <= r for s, p, r in zip(strides, pads, reach, strict=True))
    if change.get("ceil_mode", 0) and not fits:
        raise change.refuse("with ceil_mode, windows may begin in the padding at the end")


def _grid_sample(change: Change) -> None:
    mode = change.get("mode", "bilinear")
    change.set("mode", {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))


def _roi_align(change: Change) -> None:
    change.set("coordinate_transformation_mode", "output_half_pixel")


def _group_normalization(change: Change) -> None:
    raise change.refuse("its scale and bias belong to groups, and to channels since")


def _floats_only(change: Change) -> None:
    dtype = change.x.dtype
    if dtype is not None and dtype.is_integer():
        raise change.refuse(f"its input is {dtype.name}, and it only takes floats since")


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")

ADAPTERS: Mapping[tuple[str, int], Callable[[Change], None]] = {
    ("AveragePool", 22): _pool,
    ("BatchNormalization", 14): _batch_normalization,
    ("Clip", 11): _clip,
    ("ConvTranspose", 11): _conv_transpose,
    ("DFT", 20): _dft,
    ("Dropout", 10): _dropout_mask,
    ("Dropout", 12): _dropout,
    ("Erf", 13): _floats_only,
    ("GridSample", 20): _grid_sample,
    ("GroupNormalization", 21): _group_normalization,
    ("Hardmax", 13): _softmax,
    ("LogSoftmax", 13): _softmax,
    ("MaxPool", 22): _pool,
    ("OneHot", 11): _one_hot,
    ("Pad", 11): _pad,
    ("ReduceLogSum", 28): _floats_only,
    ("ReduceLogSumExp", 28): _floats_only,
    ("ReduceSum", 13): _axes,
    ("Resize", 11): _resize,
    ("Resize", 13): _resize_by_sizes,
    ("RoiAlign", 16): _roi_align,
    ("Scatter", 11): _scatter,
    ("Slice", 10): _slice,
    ("Softmax", 13): _softmax,
    ("Split", 13): _split,
    ("Split", 18): _split_evenly,
    ("Squeeze", 13): _axes,
    ("TopK", 10): _top_k,
    ("Unsqueeze", 13): _axes,
    ("Upsample", 10): _upsample,
    **{(f"Reduce{name}", 18): _axes for name in _REDUCTIONS},
}
"""For an operator and the version that changed it, what to do."""

_STEPS: dict[str, list[int]] = {}
for _name, _step in sorted(ADAPTERS):
    _STEPS.setdefault(_name, []).append(_step)
