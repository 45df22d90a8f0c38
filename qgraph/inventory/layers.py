"""Convolutions and matrix products of quantized operands, described for the profiles of targets.

An Einsum of quantized operands is no layer: profiles describe no kernel for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import clip_limits, constant_expression
from qgraph.graph.inference.dimensions import Dim
from qgraph.graph.inference.walk import Facts
from qgraph.graph.scopes import (
    all_nodes,
    input_of,
    node_name,
    nodes_of,
    owners,
    producer_of,
)
from qgraph.inventory.operands import DATA_MOVES, OperandReader, is_decode
from qgraph.numerics import Float32
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.movement import unmoved
from qgraph.quantizers.sites import readable_sites
from qgraph.records import dataclass, replace
from qgraph.targets.layer import (
    LAYERS,
    BehindLayer,
    CodedOperand,
    LayerBias,
    ProductAxis,
    QuantizedLayer,
)
from qgraph.targets.rules import type_of_codes

_HOMOGENEOUS = frozenset({"Abs", "Clip", "Identity", "LeakyRelu", "PRelu", "Relu"})
_MOST_ACTIVATIONS = 8
_ATTRIBUTES = {"Gemm": {"alpha": 1.0, "beta": 1.0, "transA": 0.0, "transB": 0.0}}
_FURTHEST = 12
"""Operators that may lie between a layer and the quantizer of its result."""

_ENDS = LAYERS | {"QuantizeLinear", "DynamicQuantizeLinear"}


@dataclass(frozen=True, eq=False)
class FoundLayer:
    """A layer in a graph, and its description.

    The nodes between it and the quantizer of its result, and the nodes of this quantizer, follow.
    """

    node: ir.Node
    description: QuantizedLayer
    follows: tuple[ir.Node, ...]


def quantized_layers(
    model: ir.Model, read_sites: Sequence[Site] | None = None, facts: Facts | None = None
) -> Iterator[FoundLayer]:
    """Yield each layer whose operands are all codes of 16 bits or fewer, in topological order.

    Operators that only move data may lie between a quantizer and the layer. The quantizers
    ``read_sites`` and the inferred ``facts`` of the model are found if they are None.
    """
    if read_sites is None:
        read_sites = readable_sites(model)
    reader = OperandReader(model, read_sites, facts)
    products = (node for node in all_nodes(model) if node.op_type in LAYERS and not node.domain)
    yield from filter(None, (_layer(node, reader) for node in products))


def _layer(node: ir.Node, reader: OperandReader) -> FoundLayer | None:
    inputs = node.inputs[:2]
    x, w = map(reader.operand, inputs)
    if x is None or w is None:
        return None
    data, weights = x.operand, w.operand
    ranks = [None if (sizes := reader.sizes(value)) is None else len(sizes) for value in inputs]
    if x.axis is not None:
        data = replace(data, axis=_data_role(node, x.axis, ranks[0]))
    if w.axis is not None:
        weights = replace(weights, axis=product_role(node, w.axis, ranks[1]))
    of_data = x.scale if x.scale is not None and x.scale.size == 1 else None
    with np.errstate(over="ignore", under="ignore"):
        scale = None if of_data is None or w.scale is None else of_data * w.scale.reshape(-1)
    behind = _behind(node, reader)
    group, sizes = node.attributes.get_int("group", 1) or 1, reader.sizes(inputs[1])
    form = _group(group, sizes)
    description = QuantizedLayer(
        node_name(node),
        node.op_type,
        data,
        weights,
        behind.y,
        _bias(_summand(node, reader), scale, reader),
        form,
        ranks[0],
        _attributes(node),
        behind.operators,
        behind.consumers,
        behind.is_graph_output,
        one_filter=form == "depthwise" and sizes is not None and sizes[0] == group,
    )
    return FoundLayer(node, description, behind.nodes)


def _group(group: int, sizes: tuple[Dim, ...] | None) -> str:
    if group == 1:
        return "dense"
    return "depthwise" if sizes is not None and len(sizes) > 1 and sizes[1] == 1 else "grouped"


def _attributes(node: ir.Node) -> dict[str, float]:
    return {
        name: default if (stated := node.attributes.get(name)) is None else float(stated.value)
        for name, default in _ATTRIBUTES.get(node.op_type, {}).items()
    }


def product_role(node: ir.Node, axis: int, rank: int | None) -> ProductAxis:
    """Return the role of an axis of the weights of a layer."""
    if rank is None:
        return ProductAxis.OTHER
    axis %= rank
    match node.op_type:
        case "Conv":
            output, summed = 0, (1,)
        case "ConvTranspose":
            output, summed = 1, (0,)
        case "Gemm":
            output = 0 if node.attributes.get_int("transB", 0) else 1
            summed = (1 - output,)
        case _:
            output, summed = rank - 1, (rank - 2,)
    if axis == output:
        return ProductAxis.OUTPUT
    return ProductAxis.INPUT if axis in summed else ProductAxis.OTHER


def _data_role(node: ir.Node, axis: int, rank: int | None) -> ProductAxis:
    """Return the role of an axis of the data of a layer."""
    if rank is None:
        return ProductAxis.OTHER
    axis %= rank
    if node.op_type in ("Conv", "ConvTranspose"):
        return ProductAxis.INPUT if axis == 1 else ProductAxis.OTHER
    return ProductAxis.INPUT if axis == rank - 1 else ProductAxis.OTHER


def _summand(node: ir.Node, reader: OperandReader) -> ir.Value | None:
    """Return the bias of a layer; that of a MatMul is the constant of an Add after it."""
    if node.op_type != "MatMul":
        return input_of(node, 2)
    result = node.outputs[0]
    uses = [use.node for use in result.uses()]
    if len(uses) != 1 or uses[0].op_type != "Add" or uses[0].domain:
        return None
    other = next((each for each in uses[0].inputs if each is not result), None)
    return other if other is not None and reader.is_fixed(other) else None


def _bias(
    value: ir.Value | None, product: Float32 | None, reader: OperandReader
) -> LayerBias | None:
    if value is None:
        return None
    if not reader.is_fixed(value):
        return LayerBias("computed")
    maker = value.producer()
    if maker is None or not is_decode(maker):
        return LayerBias("FLOAT" if value.dtype is None else value.dtype.name)
    scale, type_name = constant_expression(maker.inputs[1]), type_of_codes(maker)
    if scale is None or product is None or scale.size not in (1, product.size):
        return LayerBias(type_name)
    with np.errstate(all="ignore"):
        declared = scale.reshape(-1).astype(np.float64)
        both = np.abs([declared / product - 1, declared - product])
    error, gap = np.nan_to_num(both, nan=np.inf).max(axis=1)
    return LayerBias(type_name, float(error), float(gap))


@dataclass(frozen=True)
class _Behind:
    """The nodes after a layer, up to its quantizer."""

    y: CodedOperand | None
    operators: tuple[BehindLayer, ...]
    nodes: tuple[ir.Node, ...]
    consumers: int
    is_graph_output: bool


def _behind(node: ir.Node, reader: OperandReader) -> _Behind:
    """Return the nodes between a layer and the quantizer of its result."""
    value, between = node.outputs[0], list[ir.Node]()
    consumers, is_output, site = 1, False, None
    while len(between) < _FURTHEST:
        uses = list(value.uses())
        consumers = max(consumers, len(uses))
        is_output = is_output or value.is_graph_output()
        site = next((s for use in uses if (s := reader.starting(use.node))), None)
        if site is not None or len(uses) != 1 or uses[0].node.op_type in _ENDS:
            break
        after = uses[0].node
        if after.graph is not node.graph or not after.outputs:
            break
        between.append(after)
        value = after.outputs[0]
    users = tuple(use.node for use in value.uses())
    if site is not None:
        result, ends, last = reader.result(site), reader.reach(site), site.nodes
    elif moved := next((apart for each in users if (apart := reader.apart(each))), None):
        (result, ends), last = moved, users
    else:
        result, ends, last = None, None, ()
        consumers = max(1, len(list(node.outputs[0].uses())))
    operators = tuple(
        BehindLayer(_name(each, reader), ends is not None and _is_redundant(each, *ends))
        for each in between
    )
    y = None if result is None else result.operand
    return _Behind(y, operators, (*between, *last), consumers, is_output)


def _name(node: ir.Node, reader: OperandReader) -> str:
    data = [value for value in node.inputs if value is not None and not reader.is_fixed(value)]
    return node.op_type if len(data) <= 1 else f"{node.op_type} (data)"


def _is_redundant(node: ir.Node, low: float, high: float) -> bool:
    """Return whether an operator is redundant before a quantizer with a given real range."""
    ends = clip_limits(node) if node.op_type in ("Clip", "Relu") else None
    return node.op_type == "Identity" or (ends is not None and ends[0] <= low and ends[1] >= high)


def quantized_einsums(model: ir.Model, read_sites: Sequence[Site] | None = None) -> list[ir.Node]:
    """Return each Einsum whose operands are all quantized, directly or before movement of data.

    ``read_sites`` are the quantizers of the model; None to find them.
    """
    nodes = [
        node
        for owner in owners(model)
        for node in nodes_of(owner)
        if node.op_type == "Einsum" and not node.domain
    ]
    if nodes and read_sites is None:
        read_sites = readable_sites(model)
    coded = {site.y for site in read_sites or ()}
    return [
        node
        for node in nodes
        if all(value is not None and unmoved(value) in coded for value in node.inputs)
    ]


@dataclass(frozen=True, eq=False)
class ScaledProduct:
    """A product of codes behind operators through which runtimes move scales.

    Attributes:
        x, w: the decoded codes that its operands are computed from.
    """

    node: ir.Node
    x: tuple[ir.Value, ...]
    w: tuple[ir.Value, ...]


def scaled_products(
    model: ir.Model, through: Collection[str], sites: Mapping[ir.Value, Site]
) -> list[ScaledProduct]:
    """Return each layer and Einsum of codes behind operators, of its data or of its weights.

    Such operators, as ``through`` lists them, have constants besides the data. ``sites`` are the
    quantizers of the model, by their results.
    """
    ends = {
        value
        for value, site in sites.items()
        if any(node.op_type in _DECODERS for node in site.nodes)
        and site.nodes[-1].op_type in _ENDS_OF_CODES
    }
    found = []
    for node in all_nodes(model) if through else ():
        if (node.op_type in LAYERS or node.op_type == "Einsum") and not node.domain:
            operands = [decoded_before(value, ends, through) for value in node.inputs[:2]]
            x, w = operands if len(operands) > 1 else (None, None)
            if x and w and any(decoded_before(v, ends) is None for v in node.inputs[:2]):
                found.append(ScaledProduct(node, x, w))
    return found


_DECODERS = ("DequantizeLinear", "FakeQuantize")
_ENDS_OF_CODES = (*_DECODERS, "Identity", "Mul")
"""Last operators of quantizers without a limit, which would keep a product in float."""


def convolution_before(encode: ir.Node) -> ir.Node | None:
    """Return the Conv whose result a QuantizeLinear reads, also through activation functions."""
    node = producer_of(encode.inputs[0])
    for _ in range(_MOST_ACTIVATIONS):
        if node is None or node.domain or node.op_type not in _HOMOGENEOUS:
            break
        node = producer_of(node.inputs[0])
    return node if node is not None and not node.domain and node.op_type == "Conv" else None


def decoded_before(
    value: ir.Value | None, ends: Collection[ir.Value], through: Collection[str] = ()
) -> tuple[ir.Value, ...] | None:
    """Return the decoded codes that a value is computed from; None if it has other sources.

    They are among ``ends``, or results of DequantizeLinear or FakeQuantize. Operators that move
    data may follow, and those of ``through``, whose other operands are constants.
    """
    while value is not None and value not in ends:
        maker = producer_of(value)
        if maker is not None and maker.op_type in _DECODERS:
            break
        if maker is None or maker.domain or maker.op_type not in (*DATA_MOVES, *through):
            return None
        if maker.op_type == "Concat":
            parts = [decoded_before(part, ends, through) for part in dict.fromkeys(maker.inputs)]
            known = [part for part in parts if part is not None]
            return tuple(v for part in known for v in part) if len(known) == len(parts) else None
        others = [each for each in maker.inputs if constant_expression(each) is None]
        if (maker.op_type in through and len(others) != 1) or _pads_infinities(maker):
            return None
        value = others[0] if maker.op_type in through else maker.inputs[0]
    return None if value is None else (value,)


def _pads_infinities(node: ir.Node) -> bool:
    """Return whether the number that a Pad writes may be infinite, so that it has no code."""
    stated = input_of(node, 2) if node.op_type == "Pad" else None
    number = None if stated is None else constant_expression(stated)
    return stated is not None and (number is None or not np.isfinite(number).all())
