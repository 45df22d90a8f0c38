"""Read the quantized operands of layers: their codes and the form of their quantizers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant_expression
from qgraph.graph.inference.dimensions import Dim
from qgraph.graph.inference.rules import UNKNOWN
from qgraph.graph.inference.walk import Facts, infer
from qgraph.graph.schema import element_type
from qgraph.graph.scopes import graphs_of, input_of, nodes_of, owners, producer_of
from qgraph.numerics import Array, Float32
from qgraph.numerics.formats import FORMATS, holding
from qgraph.ops.operator import is_defined
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.quantizer import Affine, Bipolar, Ranged, Truncating
from qgraph.records import dataclass, replace
from qgraph.targets.layer import LAYERS, CodedOperand, Granularity, ZeroPoint
from qgraph.targets.rules import type_of_codes

DATA_MOVES = frozenset(
    {
        *("Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "Identity"),
        *("MaxPool", "Pad", "Reshape", "Resize", "Slice", "SpaceToDepth", "Split", "Squeeze"),
        *("Tile", "Transpose", "Unsqueeze", "ReduceMax", "ReduceMin"),
    }
)
"""Operators that move or select elements."""

_ON_CODES = DATA_MOVES | {"Clip", "Max", "Min", "Relu"}
ACTIVATIONS = frozenset({"Clip", "Identity", "Relu"})
"""Operators that limit data; before a quantizer, they are not treated as part of it."""
_AGAIN = ACTIVATIONS | {"QuantizeLinear"}
_MOST_LEVELS = 256
_NARROW = ("INT2", "UINT2", "INT4", "UINT4", "INT8", "UINT8", "INT16", "UINT16")
_MIDDLES = {"UINT2": 2, "UINT4": 8, "UINT8": 128}
_NOISE = 1e-4


@dataclass(frozen=True)
class ReadOperand:
    """An operand, with the values that the description of a layer compares.

    Attributes:
        operand: its description; the axis is open.
        axis: axis along which scales differ; None if they do not, or the axis is not known.
        scale: its scales; None if they are not constant, or of several operands that differ.
        zero: its zero points; None if there are none, or they are not constant.
    """

    operand: CodedOperand
    axis: int | None
    scale: Float32 | None
    zero: Array | None = None


class OperandReader:
    """Reads the quantizers around layers, given all quantizers of the model.

    Facts are inferred if they are None.
    """

    def __init__(
        self, model: ir.Model, read_sites: Iterable[Site], facts: Facts | None = None
    ) -> None:
        self._facts = infer(model) if facts is None else facts
        self._fixed = _fixed(model)
        self._ending = {site.y: site for site in read_sites}
        self._within = {node: site for site in self._ending.values() for node in site.nodes}
        self._joins: dict[ir.Value, ReadOperand | None] = {}

    def is_fixed(self, value: ir.Value) -> bool:
        """Return whether a value depends on constants only."""
        return value in self._fixed

    def sizes(self, value: ir.Value | None) -> tuple[Dim, ...] | None:
        """Return the inferred shape of a value; None if its rank is not known."""
        return None if value is None else self._facts.get(value, UNKNOWN).shape

    def starting(self, node: ir.Node) -> Site | None:
        """Return the quantizer that begins with ``node``, apart from activations before it."""
        site = self._within.get(node)
        return None if site is None or node.op_type in ACTIVATIONS else site

    def operand(self, value: ir.Value | None) -> ReadOperand | None:
        """Return a value as codes of 16 bits or fewer, through operators that move data."""
        passed: list[str] = []
        moves: list[ir.Node] = []
        while value is not None:
            read = self._read(value) or self._concatenated(value)
            if read is not None:
                is_constant = value in self._fixed
                before = (*read.operand.before, *reversed(passed))
                operand = replace(read.operand, before=before, is_constant=is_constant)
                return replace(read, operand=operand, axis=_moved_axis(read.axis, moves))
            node = producer_of(value, *DATA_MOVES)
            if node is None:
                return None
            passed.append(node.op_type)
            moves.insert(0, node)
            value = node.inputs[0]
        return None

    def _concatenated(self, value: ir.Value) -> ReadOperand | None:
        """Return the result of a Concat of codes; None for other values."""
        node = producer_of(value, "Concat")
        if node is None or node.domain:
            return None
        if value not in self._joins:
            parts = [self.operand(part) for part in node.inputs]
            known = [part for part in parts if part is not None]
            is_known = len(known) == len(parts) > 0
            axis = node.attributes.get_int("axis", 0) or 0
            self._joins[value] = _joined(known, axis) if is_known else None
        return self._joins[value]

    def result(self, site: Site) -> ReadOperand | None:
        """Return the result of a quantizer, apart from what limits or quantizes it again."""
        names = [node.op_type for node in site.nodes]
        read = self._read(site.y)
        first = names.index("DequantizeLinear") if "DequantizeLinear" in names else len(names)
        if not _AGAIN.isdisjoint(names[first:]):
            read, names = _decoded(site.nodes[first]), names[: first + 1]
        if read is None:
            return None
        while names[0] in ACTIVATIONS:
            names.pop(0)
        return replace(read, operand=replace(read.operand, written="+".join(names)))

    def apart(self, node: ir.Node) -> tuple[ReadOperand, tuple[float, float]] | None:
        """Return the result of a QuantizeLinear whose DequantizeLinear follows data movement.

        Also returns the smallest and largest real number of its codes.
        """
        if node.op_type != "QuantizeLinear" or node in self._within:
            return None
        names, uses = [node.op_type], list(node.outputs[0].uses())
        while uses and (after := uses[0].node).op_type in _ON_CODES and not after.domain:
            names += [] if after.op_type in DATA_MOVES else [after.op_type]
            uses = list(after.outputs[0].uses())
        if not uses or not is_decode(uses[0].node):
            return None
        read, decode = _decoded(uses[0].node), uses[0].node
        if read is None:
            return None
        zero = constant_expression(input_of(decode, 2))
        form = FORMATS[read.operand.codes]
        ends = -math.inf, math.inf
        if read.scale is not None:
            point = np.zeros((), np.float32) if zero is None else zero.astype(np.float32)
            low, high = (form.lo - point) * read.scale, (form.hi - point) * read.scale
            ends = float(np.max(low)), float(np.min(high))
        written = "+".join([*names, "DequantizeLinear"])
        return replace(read, operand=replace(read.operand, written=written)), ends

    def reach(self, site: Site) -> tuple[float, float]:
        """Return the smallest and largest real number of the type of the codes."""
        match site.quantizer:
            case Affine(scale, zero_point, lo, hi):
                limits = _code_limits(site)
                low, high = (lo, hi) if limits is None else limits
                with np.errstate(over="ignore"):
                    ends = (low - zero_point) * scale, (high - zero_point) * scale
                return float(np.max(ends[0])), float(np.min(ends[1]))
            case Ranged(input_low=low, input_high=high):
                return float(low.max()), float(high.min())
        return -math.inf, math.inf

    def _read(self, value: ir.Value) -> ReadOperand | None:
        node = value.producer()
        if node is None:
            return None
        site = self._ending.get(value)
        if is_decode(node):
            return _decoded(node)
        return None if site is None else _of_site(site)


def is_decode(node: ir.Node) -> bool:
    """Return whether a node is the DequantizeLinear of ONNX or of ONNX Runtime."""
    return node.op_type == "DequantizeLinear" and is_defined(node)


def is_bias(constant: ir.Value) -> bool:
    """Return whether only layers read a constant, as their bias."""
    uses = list(constant.uses())
    return bool(uses) and all(use.idx == 2 and use.node.op_type in LAYERS for use in uses)


def _fixed(model: ir.Model) -> set[ir.Value]:
    """Return the values that are constant, or computed from constants only.

    Initializers that are inputs of the model too count as constants, as they do for conversions.
    """
    fixed: set[ir.Value] = set()
    for owner in owners(model):
        for node in nodes_of(owner):
            inputs = [value for value in node.inputs if value is not None]
            fixed.update(value for value in inputs if value.is_initializer())
            if graphs_of(node) or not (inputs or node.op_type == "Constant"):
                continue
            if fixed.issuperset(inputs):
                fixed.update(node.outputs)
    return fixed


def _decoded(node: ir.Node) -> ReadOperand | None:
    """Return the result of a DequantizeLinear, for any producer of its codes."""
    codes, names = node.inputs[0], [node.op_type]
    is_direct = len(list(node.outputs[0].uses())) + node.outputs[0].is_graph_output() == 1
    while codes is not None and (maker := codes.producer()) is not None:
        names.append(maker.op_type)
        if maker.op_type not in _ON_CODES or maker.domain or not maker.inputs:
            break
        codes = maker.inputs[0]
    names = [name for name in reversed(names) if name != "Constant"]
    type_name = type_of_codes(node)
    if type_name not in _NARROW:
        return None
    is_pair = names == ["QuantizeLinear", "DequantizeLinear"]
    source = producer_of(node.inputs[0])
    uses = 1 if source is None else len(list(source.outputs[0].uses()))
    scale, zero = constant_expression(node.inputs[1]), constant_expression(input_of(node, 2))
    if any(array is not None and not array.size for array in (scale, zero)):
        return None
    block = node.attributes.get_int("block_size", 0) or 0
    stated = element_type(node.inputs[1])
    operand = CodedOperand(
        type_name,
        "+".join(names),
        zero=_zero(zero, type_name, has_input=input_of(node, 2) is not None),
        has_zero_input=input_of(node, 2) is not None,
        scale="FLOAT" if stated is None else stated.name,
        is_direct=is_pair and is_direct and uses == 1,
    )
    axis: int | None = node.attributes.get_int("axis", 1)
    array = None if scale is None else np.asarray(scale, np.float32)
    if block:
        operand = replace(operand, granularity=Granularity.BLOCK, block=block)
    elif array is None or array.size == 1:
        axis = None
    else:
        operand = replace(operand, granularity=Granularity.AXIS)
    return ReadOperand(_scaled(operand, array), axis, array, zero)


def _of_site(site: Site) -> ReadOperand | None:
    """Return the result of a quantizer of any dialect."""
    quantizer = site.quantizer
    match quantizer:
        case Affine(scale=scale, zero_point=zero, lo=lo, hi=hi):
            scale, zero = quantizer.to_real.scale, quantizer.to_real.zero_point
        case Truncating(out_scale=scale, out_zero_point=zero, lo=lo, hi=hi):
            pass
        case Bipolar(scale=scale):
            zero, lo, hi = np.zeros((3, 1), np.float32)
            lo, hi = lo - 1, hi + 1
        case Ranged(output_low=low, output_high=high, levels=number):
            scale, zero, lo, hi = _of_range(low, high, number)
        case _:
            return None
    levels = float(hi.max()) - float(lo.min()) + 1
    if not levels <= _MOST_LEVELS:
        return None
    array = np.asarray(scale, np.float32)
    type_name = holding(float(lo.min()), float(hi.max()), _NARROW) or "INT16"
    operand = CodedOperand(
        type_name,
        "+".join(node.op_type for node in site.nodes),
        int(levels),
        zero=_zero(np.asarray(zero), type_name, has_input=True),
        is_direct=False,
    )
    rank, axis = len(site.shape), None
    varying = [i for i, size in enumerate(array.shape) if size > 1]
    if len(varying) == 1:
        axis = varying[0] + max(rank - array.ndim, 0)
        operand = replace(operand, granularity=Granularity.AXIS)
    elif varying:
        operand = replace(operand, granularity=Granularity.BLOCK)
    return ReadOperand(_scaled(operand, array), axis, array, np.asarray(zero))


def _of_range(
    low: Float32, high: Float32, levels: int
) -> tuple[Float32, Float32, Float32, Float32]:
    """Return scale, zero point and codes of FakeQuantize; signed if zero is in the middle."""
    with np.errstate(all="ignore"):
        scale = np.asarray((high - low) / np.float32(levels - 1), np.float32)
        zero = np.nan_to_num(-low / scale)
    whole = np.round(zero)
    zero = np.where(np.abs(zero - whole) <= _NOISE * levels, whole, zero)
    first = np.zeros(1, np.float32)
    if (zero == levels // 2).all():
        first, zero = first - levels // 2, zero * 0
    return scale, zero.astype(np.float32), first, first + np.float32(levels - 1)


def _scaled(operand: CodedOperand, scale: Float32 | None) -> CodedOperand:
    if scale is None:
        return replace(operand, is_constant_scale=False, is_positive=False)
    mantissas = np.frexp(np.abs(scale))[0]
    return replace(
        operand, is_positive=bool((scale > 0).all()), is_power_of_two=bool((mantissas == 0.5).all())
    )


def _zero(zero: Array | None, type_name: str, *, has_input: bool) -> ZeroPoint:
    if zero is None:
        return ZeroPoint.DIFFER if has_input else ZeroPoint.NONE
    values = np.asarray(zero, np.float32)
    if (values != np.round(values)).any():
        return ZeroPoint.FRACTION
    if not values.any():
        return ZeroPoint.ZERO
    if (values != values.flat[0]).any():
        return ZeroPoint.DIFFER
    return ZeroPoint.MIDDLE if values.flat[0] == _MIDDLES.get(type_name) else ZeroPoint.EQUAL


def _joined(parts: Sequence[ReadOperand], axis: int) -> ReadOperand:
    """Return what is read from operands that are joined along an axis."""
    first, *others = parts
    operand = replace(first.operand, before=(*first.operand.before, "Concat"))
    if any(not _is_equal(first.zero, each.zero) for each in others):
        operand = replace(operand, zero=ZeroPoint.DIFFER)
    if all(_is_equal(first.scale, each.scale) for each in others):
        return replace(first, operand=operand)
    return ReadOperand(replace(operand, granularity=Granularity.AXIS), axis, None, None)


def _is_equal(a: Array | None, b: Array | None) -> bool:
    a, b = (np.zeros(1) if each is None else each for each in (a, b))
    return a.size == b.size and bool((a.reshape(-1) == b.reshape(-1)).all())


def _code_limits(site: Site) -> tuple[Float32, Float32] | None:
    """Return the limits of the type of the codes of a pair; None without one."""
    decode = site.nodes[-1]
    if decode.op_type != "DequantizeLinear":
        return None
    type_name = type_of_codes(decode)
    if type_name not in _NARROW:
        return None
    form = FORMATS[type_name]
    return np.asarray(form.lo, np.float32), np.asarray(form.hi, np.float32)


def _moved_axis(axis: int | None, moves: list[ir.Node]) -> int | None:
    """Return the index of an axis after operators, of which only Transpose changes it."""
    for node in moves:
        order = node.attributes.get("perm")
        if axis is None or node.op_type != "Transpose":
            continue
        if order is not None:
            axis = list(order.as_ints()).index(axis % len(order.as_ints()))
        else:
            axis = -1 - axis
    return axis
