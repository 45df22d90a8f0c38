"""Figures of layers, the nodes near them as runtimes fuse them, and ties of sums, for rules."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir

from qgraph.graph.inference.dimensions import Dim
from qgraph.graph.scopes import producer_of
from qgraph.inventory.layers import product_role
from qgraph.lint.facts import DECODE, QUANTIZE, Coder, ModelFacts
from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.quantizers.movement import unmoved
from qgraph.records import dataclass
from qgraph.targets.layer import LAYERS, ProductAxis

_MOST_LISTED = 8
_MOST_PARTS = 64
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
        if reals is not None and product.size in (1, reals.size):
            with np.errstate(all="ignore"):
                codes = np.where(product == 0, 0, reals / product)
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
"""Operators across which ONNX Runtime moves DequantizeLinear."""


def quantizer_after(facts: ModelFacts, node: ir.Node) -> ir.Node | None:
    """Return the QuantizeLinear after a node, with activations between at most."""
    value = node.outputs[0]
    for _ in range(3):
        reader = facts.only_reader(value)
        if reader is None:
            return None
        if reader.op_type == QUANTIZE:
            return reader
        if reader.op_type not in _ACTIVATIONS or not reader.outputs:
            return None
        value = reader.outputs[0]
    return None


def is_codes_for_runtime(value: ir.Value | None) -> bool:
    """Return whether ONNX Runtime recognises a value as decoded codes: Flatten hides them."""
    while value is not None and (node := value.producer()) is not None:
        if node.op_type == DECODE:
            return True
        if node.op_type not in PROPAGATED:
            return False
        value = node.inputs[0]
    return False


def after_moves(facts: ModelFacts, node: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes that read a result, directly or reshaped."""
    waiting = list(facts.readers(node.outputs[0]))
    while waiting:
        reader = waiting.pop()
        yield reader
        if reader.op_type in ("Flatten", "Reshape", "Squeeze") and not reader.domain:
            waiting += facts.readers(reader.outputs[0])


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


def meet_ties(ratios: list[float]) -> bool:
    """Return whether whole multiples of some ratios can add up to a half-integer."""
    near = [Fraction(ratio).limit_denominator(_MOST_PARTS) for ratio in ratios]
    if any(abs(float(f) - r) > 1e-6 * abs(r) for f, r in zip(near, ratios, strict=True)):
        return False
    parts = math.lcm(*(f.denominator for f in near))
    wholes = [f.numerator * parts // f.denominator for f in near]
    return parts % 2 == 0 and (parts // 2) % math.gcd(parts, *wholes) == 0
