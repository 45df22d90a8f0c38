"""Find what OpenVINO computes wrongly: square weights, sums over rows, scales of rows, residuals.

OpenVINO prepares the weights of a product once for each stored array, and ignores whether it is
transposed. A square array has the same shape both ways, so that the second product is wrong::

    MatMul(x, w), Gemm(y, w, transB=1)                        yes
    MatMul(x, DequantizeLinear(w)), MatMul(y, Transpose(DequantizeLinear(w)))   yes
    MatMul(x, w), MatMul(y, w)                                no
    MatMul(x, w), Gemm(y, v, transB=1) for an own array v     no

Sums and means of codes over the middle one of three axes are wrong, too. Axes of size 1 are
ignored, and a Transpose before the sum may be undone::

    ReduceMean of [N, 64, 16] over axis 1                        yes
    ReduceMean of [N, 1, 64, 16] over axis 2                     yes
    GlobalAveragePool of [N, 16, 64], after a Transpose         yes
    ReduceMean of [1, 64, 16] over axis 1: one matrix            no
    ReduceMean of [N, 16, 8, 8] over axes 2 and 3                no

Products of codes of 8 bits or fewer with a scale for each row are wrong::

    MatMul(x, DequantizeLinear<axis = 0>(w, s)) of INT4      yes
    MatMul(x, DequantizeLinear<axis = 1>(w, s)) of INT4      no
    MatMul(x, DequantizeLinear<axis = 0>(w, s)) of INT16     no

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
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant_expression, constant_tensor, is_constant
from qgraph.graph.inference.rules import UNKNOWN, Shape
from qgraph.graph.inference.walk import infer
from qgraph.graph.schema import LINEAR_DOMAINS, code_type
from qgraph.graph.scopes import input_of, producer_of
from qgraph.numerics import Array
from qgraph.records import dataclass

_MATRIX = 2
"""Axes of a matrix."""
_BYTE = 8
_PRODUCTS = ("Einsum", "Gemm", "MatMul")
_QUANTIZERS = {"DequantizeLinear", "FakeQuantize", "IntQuant", "Quant", "QuantizeLinear"}
_ELEMENTWISE = {"Add", "Cast", "Clip", "Div", "Identity", "Mul", "Sub"} | _QUANTIZERS
"""Operators between stored weights and product that keep the place of each element."""


@dataclass(frozen=True, eq=False)
class WeightChain:
    """The constant operators between a stored matrix and a product.

    Attributes:
        root: the stored matrix.
        nodes: the elementwise operators on it, in order.
        is_turned: whether the product reads it transposed, by a Transpose or ``transB``.
    """

    root: ir.Value
    nodes: tuple[ir.Node, ...]
    is_turned: bool

    @property
    def swap(self) -> list[int]:
        """The order of axes in which the last two are exchanged."""
        tensor = constant_tensor(self.root)
        rank = 0 if tensor is None else len(tensor.shape)
        return [*range(rank - 2), rank - 1, rank - 2]


def weight_chain(value: ir.Value | None, *, is_turned: bool = False) -> WeightChain | None:
    """Return the operators that compute constant weights from a matrix; None for other values.

    ``is_turned`` says whether the reader transposes them.
    """
    nodes: list[ir.Node] = []
    orders: list[list[int]] = []
    while value is not None and constant_tensor(value) is None:
        node = producer_of(value)
        if node is None or not node.inputs:
            return None
        if node.op_type == "Transpose":
            orders.append(list(node.attributes.get_ints("perm", ())))
        elif node.op_type in _ELEMENTWISE and all(is_constant(v) for v in node.inputs[1:] if v):
            nodes.insert(0, node)
        else:
            return None
        value = node.inputs[0]
    if value is None:
        return None
    chain = WeightChain(value, tuple(nodes), is_turned ^ bool(len(orders) % 2))
    known = [chain.swap, *([[]] if len(chain.swap) == _MATRIX else [])]
    return chain if all(order in known for order in orders) else None


def turned_products(nodes: Iterable[ir.Node]) -> Iterator[tuple[list[ir.Node], list[ir.Node]]]:
    """Yield, for each square matrix read in both orientations, the products as it is, and turned.

    An Einsum that shares the matrix with other products counts as one of the first.
    """
    readers: dict[ir.Value, tuple[list[ir.Node], list[ir.Node]]] = {}
    for node in nodes:
        if node.op_type not in _PRODUCTS or node.domain or len(node.inputs) < 2:
            continue
        is_turned = bool(node.attributes.get_int("transB", 0))
        chain = weight_chain(node.inputs[1], is_turned=is_turned)
        if chain is not None and _is_square(chain.root):
            readers.setdefault(chain.root, ([], []))[chain.is_turned].append(node)
    for plain, turned in readers.values():
        if not turned:
            turned = [node for node in plain if node.op_type != "Einsum"]
            plain = [node for node in plain if node.op_type == "Einsum"]
        if plain and turned:
            yield plain, turned


def row_scaled_products(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield the products whose weights are codes of 8 bits or fewer with a scale for each row."""
    for node in nodes:
        if node.op_type not in ("Gemm", "MatMul") or node.domain or len(node.inputs) < 2:
            continue
        is_turned = bool(node.attributes.get_int("transB", 0))
        chain = weight_chain(node.inputs[1], is_turned=is_turned)
        decoder = next((n for n in chain.nodes if n.op_type == _DECODER), None) if chain else None
        tensor = None if chain is None else constant_tensor(chain.root)
        if chain is None or decoder is None or tensor is None:
            continue
        scale, get = constant_tensor(decoder.inputs[1]), decoder.attributes.get_int
        axis = get("axis", 1) % max(len(tensor.shape), 1)
        is_row = axis == len(tensor.shape) - (1 if chain.is_turned else 2)
        has_blocks = get("block_size", 0) > 0
        is_one = scale is None or scale.size == 1
        if tensor.dtype.bitwidth <= _BYTE and is_row and not has_blocks and not is_one:
            yield node


def _is_square(value: ir.Value) -> bool:
    tensor = constant_tensor(value)
    sizes = [] if tensor is None else list(tensor.shape.numpy())
    return len(sizes) >= _MATRIX and sizes[-1] == sizes[-2] > 1


_SUMS = frozenset({"GlobalAveragePool", "ReduceMean", "ReduceSum"})
_DECODER = "DequantizeLinear"
"""Operators after which OpenVINO adds floats."""
_MOVES = frozenset({"Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
_BETWEEN = _MOVES | {"MaxPool", "Relu"}
"""Operators that codes pass through, whose results are not below the lowest code."""
_AXES = 3


@dataclass(frozen=True)
class RowSum:
    """A sum or mean over rows, and the DequantizeLinear of its codes."""

    node: ir.Node
    decoder: ir.Node


def row_sums(
    nodes: Iterable[ir.Node], shape_of: Callable[[ir.Value], Shape | None]
) -> Iterator[RowSum]:
    """Yield the sums over rows of codes among nodes of a model.

    ``shape_of`` returns the inferred shape of a value; None if its rank is not known.
    """
    for node in nodes:
        if node.op_type not in _SUMS or node.domain not in LINEAR_DOMAINS:
            continue
        x = input_of(node, 0)
        shape = None if x is None else shape_of(x)
        decoder, is_turned = _decoder(x)
        if shape is None or decoder is None:
            continue
        axes = _summed(node, len(shape))
        long = [axis for axis, size in enumerate(shape) if size != 1]
        summed = [place for place, axis in enumerate(long) if axis in axes]
        if len(long) == _AXES and (summed == [1] or (summed == [2] and is_turned)):
            yield RowSum(node, decoder)


def _decoder(value: ir.Value | None) -> tuple[ir.Node | None, bool]:
    """Return the DequantizeLinear of the summed numbers, and whether a Transpose follows it."""
    is_turned = False
    while value is not None and (node := value.producer()) is not None:
        if node.op_type == _DECODER:
            return node, is_turned
        if node.op_type not in _BETWEEN or node.domain not in LINEAR_DOMAINS:
            break
        is_turned |= node.op_type == "Transpose"
        value = node.inputs[0]
    return None, False


def _summed(node: ir.Node, rank: int) -> set[int]:
    """Return the axes of a sum; none if they are not known."""
    if node.op_type == "GlobalAveragePool":
        return set(range(2, rank))
    stated = input_of(node, 1)
    array = None if stated is None else constant_expression(stated)
    axes = node.attributes.get_ints("axes", ()) if array is None else array.reshape(-1).tolist()
    return {int(axis) % rank for axis in axes}


def row_sums_of(model: ir.Model) -> list[RowSum]:
    """Return the sums over rows of codes of a model."""
    nodes = [node for node in model.graph if node.op_type in _SUMS]
    facts = infer(model) if nodes else {}
    return list(row_sums(nodes, lambda value: facts.get(value, UNKNOWN).shape))


RESIDUAL_SUMS = ("Add", "Sub", "Sum")
"""Operators that a convolution computes with its own result."""
_LEVELS = 1 << 16
_WIDE = (ir.DataType.INT16, ir.DataType.UINT16)
_ENCODERS = ("FakeQuantize", "QuantizeLinear")
_CLAMPS = frozenset({"Clip", "Relu"})
_LINEAR = frozenset(
    {"Add", "BatchNormalization", "Div", "Identity", "Mul", "Neg", "Reshape", "Sub"}
)
"""Operators that become part of the quantizer after them."""
_BEFORE = _CLAMPS | _LINEAR
_AFTER = _BEFORE | {"Abs", "Elu", "Gelu", "HardSwish", "LeakyRelu", "PRelu", "Sigmoid", "Tanh"}
"""Operators between the sum and its quantizer that the convolution computes, too."""


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


def _is_quantized_next(value: ir.Value) -> bool:
    """Return whether a quantizer follows that is computed with the sum."""
    while (node := _only_reader(value)) is not None:
        if node.op_type in _ENCODERS:
            return True
        if node.op_type not in _AFTER or _data(node) is not value:
            return False
        value = node.outputs[0]
    return False
