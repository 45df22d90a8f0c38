"""Find where OpenVINO drops, changes or adds roundings: of sums, 16 bits, limits, means, maxima.

A convolution adds the other operand of an Add or Sub, and computes the quantizers before and after
the sum, too. The first quantizer then only clamps, unless an operator precedes it that is not
linear. In this list, ``Q`` is QuantizeLinear and DequantizeLinear::

    Q(Add(Q(Conv(x)), Q(Conv(y))))                           yes, of one of both
    Q(Relu(Sub(u, Q(Clip(Conv(x))))))                        yes
    Q(Add(Q(Conv(Q(Conv(v)))), v)): a skip of two layers     yes
    Q(Add(Q(Conv(v)), v)): a skip of one layer               no
    Q(Add(Q(LeakyRelu(Conv(x))), u))                         no
    Add(Q(Conv(x)), u)                                       no

If a reader of ``v`` must wait for the sum, OpenVINO rounds there, too; that order is not known
from the file.

The limits of a Clip of decoded codes become whole codes, whether it is one node or Min and Max.
Operators in between may move codes, choose some, scale them or add a constant::

    Clip(DequantizeLinear(c, 0.3), -1, 1)                    yes: -0.9, 0.9
    Clip(Neg(DequantizeLinear(c, 0.3)), -1, 1)               yes
    Clip(DequantizeLinear(c, 0.3), 0)                        no: real zero is a code
    Clip(Conv(x), -1, 1)                                     no

The mean of codes becomes a code unless only quantizers, outputs, and operators that need floats
follow. Again, others may lie in between::

    Conv(AveragePool(DequantizeLinear(c)), w)                yes; also MatMul, Mul, ReduceMean
    Q(Clip(AveragePool(DequantizeLinear(c))))                yes; also LeakyRelu, Neg, PRelu
    Q(Relu(AveragePool(DequantizeLinear(c))))                no
    Sigmoid(AveragePool(DequantizeLinear(c)))                no
    Conv(AveragePool(LeakyRelu(DequantizeLinear(c))), w)     no

The zero point of a convolution with quantized weights is a whole code, also that of a FakeQuantize
whose zero point is none. A constant that is added to codes without one becomes their zero point::

    Conv(Sub(DequantizeLinear(c, 0.3), 1), w)                yes: 0.9
    Conv(LeakyRelu(Sub(DequantizeLinear(c, 0.3), 1)), w)     no

The largest of floats and their quantizer become one kernel, which gives other codes. Operators on
each element may lie in between::

    Q(ReduceMax(Conv(x)))                                    yes; also ReduceMin, GlobalMaxPool
    Q(Relu(ReduceMax(Sigmoid(x))))                           yes
    Q(ReduceMax(DequantizeLinear(c)))                        no
    Q(Max(ReduceMax(Conv(x)), -inf))                         no
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import array_of, clip_limits, constant_expression, is_constant
from qgraph.graph.schema import LINEAR_DOMAINS, code_type
from qgraph.graph.scopes import input_of, producer_of
from qgraph.numerics import Array
from qgraph.quantizers.movement import MOVES, is_linear, unmoved
from qgraph.records import dataclass

_DECODER, _ENCODER = "DequantizeLinear", "QuantizeLinear"
RESIDUAL_SUMS = ("Add", "Sub", "Sum")
"""Operators that a convolution computes with its own result."""
_LEVELS = 1 << 16
_BYTE_LEVELS, _BITS = 256, 8
_LEAST = 2.0**-10
"""Fractions of zero points up to it are rounding errors of ranges."""
_OPERANDS = 5
"""Inputs of a FakeQuantize."""
_EXTREMES = {"Max": "Min", "Min": "Max"}
_WIDE = (ir.DataType.INT16, ir.DataType.UINT16)
_ENCODERS = ("FakeQuantize", "QuantizeLinear")
_CLAMPS = frozenset({"Clip", "Relu"})
_LINEAR = frozenset(
    {"Add", "BatchNormalization", "Div", "Identity", "Mul", "Neg", "Reshape", "Sub"}
)
"""Operators that become part of the quantizer after them."""
_CARRIED = MOVES | {"Cast", "Dropout", "GlobalMaxPool", "Pad", "ReduceMax", "ReduceMin", "Relu"}
_CARRIED |= {"Resize", "Split"}
"""Operators whose results are codes, too, if their data are."""
_SHIFTS = frozenset({"Add", "BatchNormalization", "Sub"})
_SCALED = _SHIFTS | {"Div", "Mul", "Neg"}
"""Operators that, with constants, change the scale or the zero point of codes."""
_FLOATS = {"Abs", "AveragePool", "Celu", "CumSum", "Elu", "Erf", "Exp", "Floor", "Gelu", "Log"}
_FLOATS |= {"HardSigmoid", "HardSwish", "Mish", "Pow", "ReduceL2", "ReduceProd"}
_FLOATS |= {"Round", "Selu", "Sigmoid", "Sin", "Softmax", "Softplus", "Softsign", "Sqrt", "Tanh"}
"""Operators that are always computed on floats."""
_BEFORE = _CLAMPS | _LINEAR
_AFTER = _BEFORE | {"Abs", "Elu", "Gelu", "HardSwish", "LeakyRelu", "PRelu", "Sigmoid", "Tanh"}
"""Operators between the sum and its quantizer that the convolution computes, too."""
_AFTER_EXTREMES = _AFTER | {"Cast", "Dropout", "Sqrt", "Transpose"}


@dataclass(frozen=True)
class UnroundedSum:
    """A sum, and for each operand that may not be rounded its quantizer and the limited data."""

    node: ir.Node
    operands: tuple[tuple[ir.Node, ir.Value], ...]


def unrounded_sums(nodes: Iterable[ir.Node], layers: Collection[ir.Node]) -> Iterator[UnroundedSum]:
    """Yield the sums with operands that are clamped, not rounded.

    ``layers`` are the convolutions of the model that run on codes.
    """
    for node in nodes:
        x, y = input_of(node, 0), input_of(node, 1)
        is_sum = node.op_type in RESIDUAL_SUMS and not node.domain and len(node.inputs) == 2
        if not is_sum or x is None or y is None:
            continue
        found = [_unrounded(v, other, layers) for v, other in ((x, y), (y, x))]
        operands = tuple(each for each in found if each is not None)
        if operands and _is_quantized_next(node.outputs[0]):
            yield UnroundedSum(node, operands)


def rounded_clips(nodes: Iterable[ir.Node]) -> Iterator[tuple[ir.Node, int, ir.Node]]:
    """Yield each Clip within the range of decoded codes: node, its operand, the decoder.

    Of a Min and a Max in a row, the first is returned.
    """
    for last in nodes:
        node, limits = _limits(last) if not last.domain else (last, ())
        data = _data(node) if limits else None
        decoder, between = _origin(data, "Max", "Min")
        ends = None if decoder is None else ends_of_codes(decoder)
        if data is None or decoder is None or ends is None or _is_hard(last, data):
            continue
        is_scaled = any(each.op_type in _SCALED for each in between)
        low, high = (-np.inf, np.inf) if is_scaled else ends
        if any(limit and low < limit < high for limit in limits):
            yield node, list(node.inputs).index(data), decoder


def _is_hard(clip: ir.Node, data: ir.Value) -> bool:
    """Return whether a Clip is part of a HardSwish or HardSigmoid, which is one kernel."""
    factors = {reader.op_type for reader in clip.outputs[0].consumers()}
    return producer_of(data, "Add") is not None and bool(factors) and factors <= {"Div", "Mul"}


def rounded_means(nodes: Iterable[ir.Node]) -> Iterator[tuple[ir.Node, ir.Node]]:
    """Yield each AveragePool of codes whose mean is rounded to a code, and the operator behind."""
    for node in nodes:
        if node.op_type != "AveragePool" or node.domain:
            continue
        if _origin(node.inputs[0], "Clip")[0] is None:
            continue
        values, seen = [node.outputs[0]], set[ir.Node]()
        while values:
            readers = [reader for reader in values.pop().consumers() if reader not in seen]
            seen.update(readers)
            on_codes = [r for r in readers if r.op_type not in (*_ENCODERS, *_FLOATS, *_CARRIED)]
            if on_codes:
                yield node, on_codes[0]
                break
            values += [v for r in readers if r.op_type in _CARRIED for v in r.outputs]


@dataclass(frozen=True)
class PaddedMean:
    """An AveragePool that is padded with code 0 although another code stands for zero.

    Attributes:
        node: the AveragePool.
        first: the first AveragePool after the decoder; ``node`` itself if there is only one.
        decoder: what decodes the codes.
        zero_point: of the codes.
        error: absolute value of the number that code 0 stands for.
    """

    node: ir.Node
    first: ir.Node
    decoder: ir.Node
    zero_point: int
    error: float


def padded_means(nodes: Iterable[ir.Node]) -> Iterator[PaddedMean]:
    """Yield each AveragePool that is padded with another code than that of zero."""
    for node in nodes:
        if node.op_type != "AveragePool" or node.domain:
            continue
        decoder, between = _origin(node.inputs[0], "AveragePool")
        points, step = (np.zeros(1), 0.0) if decoder is None else _zero_points(decoder)
        zero = int(np.rint(points.flat[0])) if np.isfinite(points).all() else 0
        names = {each.op_type for each in between}
        is_same = node.attributes.get_string("auto_pad", "NOTSET").startswith("SAME")
        pads = any(node.attributes.get_ints("pads", ())) or is_same
        is_padded = pads and node.attributes.get_int("count_include_pad", 0) != 0
        if decoder is not None and zero and (is_padded or "Pad" in names):
            pools = [node, *(each for each in between if each.op_type == "AveragePool")]
            yield PaddedMean(node, pools[-1], decoder, zero, abs(zero * step))


def _zero_points(decoder: ir.Node) -> tuple[Array, float]:
    """Return the zero points of stored codes, which may have fractions, and the size of a step."""
    low, high = ends_of_codes(decoder) or (0.0, 0.0)
    if decoder.op_type == _DECODER:
        codes, point = code_type(decoder), array_of(input_of(decoder, 2))
        bits = 0 if codes is None else codes.bitwidth
        return np.zeros(1) if point is None else point.astype(float), (high - low) / (2**bits - 1)
    lows, highs = (array_of(v) for v in decoder.inputs[3:5])
    levels = decoder.attributes.get_int("levels", 2)
    if lows is None or highs is None:
        return np.zeros(1), 0.0
    with np.errstate(all="ignore"):
        points = lows.astype(np.float64) * (levels - 1) / (lows - highs.astype(np.float64))
        return np.where(2 * np.rint(points) == levels, 0, points), (high - low) / (levels - 1)


def rounded_shifts(nodes: Iterable[ir.Node]) -> Iterator[tuple[ir.Node, ir.Node]]:
    """Yield each convolution of codes whose zero point is rounded, and their decoder.

    Their zero point has a fraction, or a constant was added to them.
    """
    for node in nodes:
        if node.op_type != "Conv" or node.domain or _origin(node.inputs[1])[0] is None:
            continue
        decoder, between = _origin(node.inputs[0])
        if decoder is None or not np.isfinite(_zero_points(decoder)[0]).all():
            continue
        points, is_ranged = _zero_points(decoder)[0], decoder.op_type == "FakeQuantize"
        is_shifted = any(each.op_type in _SHIFTS for each in between)
        has_fraction = (np.abs(points - np.rint(points)) > _LEAST).any()
        if has_fraction or (is_shifted and (is_ranged or not points.any())):
            yield node, decoder


def quantized_extremes(nodes: Iterable[ir.Node]) -> Iterator[tuple[ir.Node, ir.Node]]:
    """Yield each maximum or minimum of floats that becomes one kernel with its quantizer.

    Yields it, and the node that reads it.
    """
    for node in nodes:
        if node.op_type not in ("GlobalMaxPool", "ReduceMax", "ReduceMin") or node.domain:
            continue
        source = unmoved(node.inputs[0])
        maker = None if source is None else source.producer()
        reader = _only_reader(node.outputs[0])
        is_on_codes = maker is not None and maker.op_type in (_DECODER, "FakeQuantize")
        if reader is None or is_on_codes:
            continue
        if _is_quantized_next(node.outputs[0], _AFTER_EXTREMES):
            yield node, reader


def _origin(value: ir.Value | None, *more: str) -> tuple[ir.Node | None, list[ir.Node]]:
    """Return what decodes the codes that a value comes from, and the nodes between them.

    The last node is next to the decoder, which is None if there is none. ``more`` are further
    operators that may be between.
    """
    between = list[ir.Node]()
    while value is not None and (node := value.producer()) is not None:
        if node.op_type in (_DECODER, "FakeQuantize"):
            return (None if ends_of_codes(node) is None else node), between
        if node.domain or node.op_type not in (*_CARRIED, *_SCALED, *more):
            break
        between.append(node)
        value = node.inputs[0] if node.op_type in _CARRIED else _data(node)
    return None, between


def _limits(node: ir.Node) -> tuple[ir.Node, tuple[float, ...]]:
    """Return the limits of a Clip, or of a Min and Max in a row with the first of both."""
    if node.op_type == "Clip":
        return node, clip_limits(node) or ()
    first = _only_maker(_data(node)) if node.op_type in _EXTREMES else None
    if first is None or first.op_type != _EXTREMES[node.op_type] or first.domain:
        return node, ()
    arrays = [array_of(v) for n in (first, node) for v in n.inputs if is_constant(v)]
    numbers = [float(a.flat[0]) for a in arrays if a is not None and a.size == 1]
    return first, tuple(numbers) if len(numbers) == len(_EXTREMES) else ()


def ends_of_codes(decoder: ir.Node) -> tuple[float, float] | None:
    """Return the smallest and largest number that codes of 8 bits or fewer stand for, if known.

    ``decoder`` may be a QuantizeLinear or FakeQuantize, too.
    """
    arrays = [*map(array_of, decoder.inputs), None]
    if any(array is not None and not array.size for array in arrays):
        return None
    if decoder.op_type == "FakeQuantize" and len(decoder.inputs) == _OPERANDS:
        low, high = arrays[3:5]
        is_narrow = 0 < decoder.attributes.get_int("levels", 0) <= _BYTE_LEVELS
        return None if low is None or high is None or not is_narrow else (low.min(), high.max())
    codes = code_type(decoder) if is_linear(decoder, _DECODER, _ENCODER) else None
    if codes is None or not codes.is_integer() or codes.bitwidth > _BITS or arrays[1] is None:
        return None
    lowest = -(1 << codes.bitwidth - 1) if codes.is_signed() else 0
    zero = 0 if arrays[2] is None else arrays[2].astype(int)
    low, high = ((lowest + n - zero) * arrays[1] for n in (0, (1 << codes.bitwidth) - 1))
    return float(low.min()), float(high.max())


def stripped_decoders(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield each DequantizeLinear that reads codes of 16 bits directly from a QuantizeLinear."""
    for node in nodes:
        codes = input_of(node, 0)
        encoder = None if codes is None else codes.producer()
        if codes is None or encoder is None or codes.is_graph_output():
            continue
        is_pair = encoder.op_type == "QuantizeLinear" and encoder.domain in LINEAR_DOMAINS
        readers = {user.op_type for user in codes.consumers()}
        if is_pair and readers == {node.op_type} == {_DECODER} and code_type(encoder) in _WIDE:
            yield from [] if encoder.attributes.get_int("block_size", 0) else [node]


def stripped_fake_quantizes(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield each FakeQuantize of data with 65536 levels and equal ranges of input and output."""
    for node in nodes:
        if node.op_type != "FakeQuantize" or node.attributes.get_int("levels", 0) != _LEVELS:
            continue
        if len(node.inputs) != 5 or is_constant(node.inputs[0]):
            continue
        ends = [None if v is None else constant_expression(v) for v in node.inputs[1:]]
        pairs = list(zip(ends[:2], ends[2:], strict=False))
        if all(a is not None and b is not None and _is_near(a, b) for a, b in pairs):
            yield node


def _is_near(a: Array, b: Array) -> bool:
    return bool(np.allclose(a, b, rtol=0, atol=1e-6))


def _only_reader(value: ir.Value) -> ir.Node | None:
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def _only_maker(value: ir.Value | None) -> ir.Node | None:
    """Return the node that computes a value with one reader."""
    return None if value is None or _only_reader(value) is None else value.producer()


def _data(node: ir.Node) -> ir.Value | None:
    """Return the operand that is not constant; None if there are several."""
    values = [v for v in node.inputs if v is not None and not is_constant(v)]
    return values[0] if len(values) == 1 else None


def _codes(value: ir.Value | None) -> ir.Value | None:
    """Return the codes that a value decodes, or the value itself."""
    decoder = None if value is None else producer_of(value, _DECODER)
    return value if decoder is None else decoder.inputs[0]


def _unrounded(
    value: ir.Value, other: ir.Value, layers: Collection[ir.Node]
) -> tuple[ir.Node, ir.Value] | None:
    """Return the quantizer after a convolution that computes a value, and the data before limits.

    None if there is no such quantizer, or if it always rounds: if ``other``, the second operand of
    the sum, is constant, or what the convolution itself reads.
    """
    if is_constant(other):
        return None
    encoder = _only_maker(value)
    if encoder is not None and encoder.op_type == _DECODER:
        encoder = _only_maker(encoder.inputs[0])
    if encoder is None or encoder.op_type not in _ENCODERS:
        return None
    place = data = encoder.inputs[0]
    while (node := _only_maker(data)) is not None and place is not None:
        if node in layers and node.op_type == "Conv":
            return None if _codes(node.inputs[0]) is _codes(other) else (encoder, place)
        if node.op_type not in _BEFORE:
            return None
        if node.op_type in _CLAMPS and place is data:
            place = node.inputs[0]
        data = _data(node)
    return None


def _swish(value: ir.Value) -> ir.Node | None:
    """Return the Mul of a value and its own Sigmoid, if nothing else reads either."""
    users = list(value.consumers())
    gates = [node for node in users if node.op_type == "Sigmoid"]
    last = _only_reader(gates[0].outputs[0]) if gates and len(users) == 2 else None
    is_swish = last is not None and last.op_type == "Mul" and last in users
    return last if is_swish and not value.is_graph_output() else None


def _is_quantized_next(value: ir.Value, passed: Collection[str] = _AFTER) -> bool:
    """Return whether a quantizer follows that is computed with the sum."""
    while (node := _only_reader(value) or _swish(value)) is not None:
        if node.op_type in _ENCODERS:
            return node.inputs[0] is value
        if node is _swish(value):
            value = node.outputs[0]
            continue
        if node.op_type not in passed or _data(node) is not value:
            return False
        value = node.outputs[0]
    return False
