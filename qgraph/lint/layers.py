"""Figures of layers, and the nodes near them as runtimes fuse them, for rules."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import clip_limits
from qgraph.graph.inference.dimensions import Dim
from qgraph.graph.scopes import producer_of
from qgraph.inventory.layers import product_role
from qgraph.inventory.openvino_roundings import ends_of_codes
from qgraph.lint.facts import DECODE, QUANTIZE, Coder, ModelFacts
from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.quantizers.movement import unmoved
from qgraph.records import dataclass
from qgraph.targets.layer import LAYERS, ProductAxis

_MOST_LISTED = 8
_MATRIX, _STEPS = 2, 255
"""Axes of a matrix, and steps of 8 bits."""

_KNOWN: WeakKeyDictionary[ModelFacts, list[BiasFacts]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class BiasFacts:
    """The bias of a layer, and the figures of the products that it is added to.

    Attributes:
        reals: ``[channels]`` the bias in real numbers; None without a constant one.
        decoder: its DequantizeLinear; None for a float bias.
        codes: ``[channels]`` its codes; for a float bias, unrounded codes with scale ``product``.
        product: ``[1 or channels]`` float32 product of the scales of the operands.
        exact_product: the same in float64.
        largest_sums: ``[channels]`` the largest absolute sum of products of codes over all data,
            with the bias; None if codes of weights are not stored.
    """

    node: ir.Node
    reals: Array | None
    decoder: Coder | None
    codes: Array | None
    product: Array | None
    exact_product: Array | None
    largest_sums: Array | None


def bias_facts(facts: ModelFacts, *, all_layers: bool = False) -> Iterator[BiasFacts]:
    """Yield the figures of each layer on codes with a bias, or of all layers.

    Layers have data and weights after DequantizeLinear, with constant scales.
    """
    for layer in _all(facts):
        if all_layers or layer.reals is not None or layer.decoder is not None:
            yield layer


@dataclass(frozen=True, eq=False)
class RoundedBias:
    """A float bias that ONNX Runtime rounds.

    Attributes:
        node: the layer.
        codes: ``[channels]`` its codes before they are rounded.
        product: ``[1 or channels]`` float32 scale of the codes.
        behind: the quantizer of the result.
    """

    node: ir.Node
    codes: Array
    product: Array
    behind: ir.Node


def rounded_biases(facts: ModelFacts) -> Iterator[RoundedBias]:
    """Yield each float bias between quantizers.

    ONNX Runtime writes a MatMul and the Add of a row as Gemm.
    """
    for layer in bias_facts(facts, all_layers=True):
        last, codes, product = layer.node, layer.codes, layer.product
        if product is None or layer.decoder is not None:
            continue
        most = 2
        if codes is None and (added := _added_row(facts, last)) is not None:
            last, row, is_reshaped = added
            codes, most = _in_steps(row, product), 0 if is_reshaped else most
        behind = quantizer_after(facts, last, most_activations=most)
        if codes is not None and behind is not None:
            yield RoundedBias(layer.node, codes, product, behind)


def _added_row(facts: ModelFacts, node: ir.Node) -> tuple[ir.Node, Array, bool] | None:
    """Return the Add after a MatMul that is the bias of a Gemm for ONNX Runtime, and its row.

    The last says whether its data are reshaped to a matrix, which needs fixed sizes, and is undone
    before an activation.
    """
    y = node.outputs[0]
    add = facts.only_reader(y) if node.op_type == "MatMul" else None
    if add is None or add.op_type != "Add" or add.domain:
        return None
    row = next((facts.constant(value) for value in add.inputs if value is not y), None)
    data, weights = (facts.shape(value) for value in node.inputs)
    if row is None or data is None or weights is None:
        return None
    if len(weights) != _MATRIX or len(data) < _MATRIX or row.shape != (weights[1],):
        return None
    is_matrix = len(data) == _MATRIX
    is_fixed = all(isinstance(size, int) for size in data)
    return (add, row, not is_matrix) if is_matrix or is_fixed else None


def _in_steps(reals: Array, product: Array) -> Array | None:
    """Return unrounded codes of a bias with a scale for all channels or each one."""
    if product.size not in (1, reals.size):
        return None
    with np.errstate(all="ignore"):
        return np.where(product == 0, 0, reals.reshape(-1).astype(np.float64) / product)


def _all(facts: ModelFacts) -> list[BiasFacts]:
    if facts not in _KNOWN:
        layers = (_of(facts, node) for node in facts.products)
        _KNOWN[facts] = [each for each in layers if each is not None]
    return _KNOWN[facts]


def _of(facts: ModelFacts, node: ir.Node) -> BiasFacts | None:
    x, w = (facts.decoder_of(value) for value in node.inputs[:2])
    if x is None or w is None or x.scale is None or w.scale is None:
        return None
    if node.op_type not in LAYERS or x.scale.size != 1 or w.block:
        return None
    if not _has_scales_of_channels(facts, node, w):
        return None
    with np.errstate(all="ignore"):
        scales = [s.reshape(-1).astype(np.float32) for s in (x.scale, w.scale)]
        exact = scales[0].astype(np.float64) * scales[1].astype(np.float64)
        product = scales[0] * scales[1]
    if node.op_type == "Gemm":
        exact = exact * (node.attributes.get_float("alpha", 1.0) or 0.0)
    bias = facts.bias_of(node)
    maker = producer_of(bias)
    decoder = None
    reals = codes = None
    if maker is not None and maker.op_type == "DequantizeLinear":
        decoder = facts.coder(maker)
        codes = facts.constant(maker.inputs[0])
        if codes is not None and decoder.scale is not None:
            reals = codes.reshape(-1).astype(np.float64) * decoder.scale.reshape(-1)
    elif bias is not None:
        array = facts.constant(bias)
        reals = None if array is None else array.reshape(-1).astype(np.float64)
        codes = None if reals is None else _in_steps(reals, product)
    return BiasFacts(node, reals, decoder, codes, product, exact, _sums(facts, x, w, codes))


def _has_scales_of_channels(facts: ModelFacts, node: ir.Node, w: Coder) -> bool:
    """Return whether weights have no scales along another axis than the output channels."""
    value = node.inputs[1]
    shape = facts.shape(value)
    if w.axis is None or shape is None or w.node.outputs[0] is not value:
        return True
    return product_role(node, w.axis, len(shape)) is ProductAxis.OUTPUT


def _sums(facts: ModelFacts, x: Coder, w: Coder, codes: Array | None) -> Array | None:
    counts, form = facts.counts(w), FORMATS.get(x.kind)
    if counts is None or not isinstance(form, IntFormat):
        return None
    zero = 0 if x.zero is None else int(x.zero.reshape(-1)[0])
    extent = max(form.hi - zero, zero - form.lo)
    sums = counts.reach * float(extent)
    if codes is not None and codes.size in (1, sums.size):
        sums = sums + np.abs(codes.reshape(-1).astype(np.float64))
    return sums


def ulps_between(one: Array, other: Array) -> Array:
    """Return the distance in float32 numbers of two arrays of one sign, element by element."""
    with np.errstate(all="ignore"):
        spacing = np.spacing(np.abs(other).astype(np.float32)).astype(np.float64)
        return np.abs(one.astype(np.float64) - other.astype(np.float64)) / spacing


def listed(channels: Array) -> list[int]:
    """Return the first few of some channels."""
    return [int(channel) for channel in channels[:_MOST_LISTED]]


def misfit(coder: Coder, shape: Sequence[Dim] | None) -> str | None:
    """Return why scales do not fit data of a shape; None if they fit, or if it is not known."""
    scale, axis = coder.scale, coder.node.attributes.get_int("axis", 1)
    if scale is not None and scale.ndim > 1 and not coder.block:
        return f"scales of shape {list(scale.shape)} without block_size, expected one axis at most"
    if scale is None or shape is None or not (coder.block or (scale.ndim == 1 and scale.size > 1)):
        return None
    if not -len(shape) <= axis < len(shape):
        return f"{scale.size} scales, but axis {axis} of {len(shape)} axes does not exist"
    size = shape[axis]
    if not isinstance(size, int):
        return None
    if not coder.block:
        fits = size == scale.size
        there = f"axis {axis} of {len(shape)} axes has {size} elements"
        return None if fits else f"{scale.size} scales, but {there}"
    expected = [*shape]
    expected[axis] = -(-size // coder.block)
    if len(shape) == scale.ndim and all(
        actual == wanted or not isinstance(wanted, int)
        for actual, wanted in zip(scale.shape, expected, strict=True)
    ):
        return None
    blocks = f"blocks of {coder.block} along axis {axis} of {list(shape)}"
    return f"scales of shape {list(scale.shape)}, but {blocks} need {expected}"


_ACTIVATIONS = ("Relu", "Clip")
PROPAGATED = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice", "MaxPool")
"""Operators across which ONNX Runtime moves QuantizeLinear and DequantizeLinear."""


def quantizer_after(
    facts: ModelFacts, node: ir.Node, *, most_activations: int = 2, is_fused: bool = False
) -> ir.Node | None:
    """Return the QuantizeLinear after a node, with activations and then data movement between.

    ONNX Runtime moves QuantizeLinear before the movement. Activations that change no code, which it
    removes, are the only ones if ``is_fused``.
    """
    value, left, limits = node.outputs[0], most_activations, list[tuple[float, float]]()
    while (reader := facts.only_reader(value)) is not None and reader.op_type != QUANTIZE:
        if reader.op_type in _ACTIVATIONS and (left or is_fused):
            left -= 1
            limits.append(clip_limits(reader) or (0, 0))
        elif reader.op_type in PROPAGATED:
            left = 0
        elif reader.op_type != "Identity":
            return None
        value = reader.outputs[0]
    low, high = (is_fused and reader and ends_of_codes(reader)) or (-math.inf, math.inf)
    half = (high - low) / _STEPS / 2
    is_open = is_fused and any(start > low + half or end < high - half for start, end in limits)
    return None if is_open else reader


def pairs_around(facts: ModelFacts, encode: ir.Node) -> tuple[ir.Node, ...]:
    """Return two pairs that ONNX Runtime sees as neighbours; ``encode`` begins the second.

    It removes operators that do nothing, and joins Transposes across pairs. Else it is empty.
    """
    nodes, turns, value = [encode], list[ir.Node](), encode.inputs[0]
    while len(nodes) < 3:
        node = None if value is None or facts.only_reader(value) is None else value.producer()
        if node is None or node.domain:
            return ()
        value = next((v for v in node.inputs if facts.constant(v) is None), None)
        if node.op_type == (DECODE if len(nodes) == 1 else QUANTIZE):
            nodes.insert(0, node)
        elif _turns(node):
            turns.insert(0, node)
        elif not _does_nothing(facts, node):
            return ()
    after = encode.outputs[0]
    while (reader := facts.only_reader(after)) is not None and not reader.domain:
        after = reader.outputs[0]
        if reader.op_type == DECODE:
            is_alone = not turns or _are_joined(facts, turns, after)
            return (*nodes, reader) if is_alone else ()
        if _turns(reader):
            turns.append(reader)
        elif not _does_nothing(facts, reader):
            return ()
    return ()


def _turns(node: ir.Node) -> bool:
    order = list(node.attributes.get_ints("perm", ()))
    return node.op_type == "Transpose" and (not order or order != sorted(order))


def _does_nothing(facts: ModelFacts, node: ir.Node) -> bool:
    """Return whether ONNX Runtime removes a node, as it gives its data."""
    data, *others = node.inputs or [None]
    match node.op_type:
        case "Identity":
            return True
        case "Dropout":
            return len(others) < 2  # else its training mode is an input
        case "Cast":
            return facts.dtype(data) == ir.DataType(node.attributes.get_int("to", 0))
        case "Expand":
            shape = facts.shape(data)
            return shape is not None and shape == facts.shape(node.outputs[0])
        case "Add" | "Sub" | "Mul" | "Div" if others:
            constant = facts.constant(others[0])
            if constant is None and node.op_type in ("Add", "Mul"):
                constant = facts.constant(data)
            neutral = float(node.op_type in ("Mul", "Div"))
            return constant is not None and constant.size == 1 and constant.item() == neutral
    return False


def _are_joined(facts: ModelFacts, turns: Sequence[ir.Node], after: ir.Value) -> bool:
    """Return whether Transposes cancel, or meet another one behind ``after``."""
    shape, value = facts.shape(turns[0].inputs[0]), after
    axes = list(range(0 if shape is None else len(shape)))
    for turn in turns if axes else ():
        axes = [
            axes[axis] for axis in turn.attributes.get_ints("perm", ()) or range(len(axes))[::-1]
        ]
    while (reader := facts.only_reader(value)) is not None and not reader.domain:
        is_coder = reader.op_type in (QUANTIZE, DECODE)
        if reader.op_type == "Transpose":
            return True
        if not is_coder and not _does_nothing(facts, reader):
            break
        value = reader.outputs[0]
    return bool(axes) and axes == sorted(axes)


def is_codes_for_runtime(value: ir.Value | None) -> bool:
    """Return whether ONNX Runtime recognises a value as decoded codes: Flatten hides them."""
    while value is not None and (node := value.producer()) is not None:
        if node.op_type == DECODE:
            return True
        if node.op_type not in PROPAGATED:
            return False
        value = node.inputs[0]
    return False


def concat_before(facts: ModelFacts, value: ir.Value | None) -> ir.Node | None:
    """Return the Concat before a value, across activations and data movement."""
    source = unmoved(value)
    while source is not None and (node := source.producer()) is not None:
        if node.op_type not in _ACTIVATIONS:
            return node if node.op_type == "Concat" else None
        source = unmoved(node.inputs[0])
    return None


def attribute(node: ir.Node, name: str, default: object) -> Any:
    """Return the value of an attribute, ``default`` where it is absent."""
    found = node.attributes.get(name)
    return default if found is None or found.is_ref() else found.value
