"""Find what OpenVINO computes wrongly: products, sums and normalizations of certain forms.

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

Normalizations of codes without a zero point add epsilon to the variance of the codes, not to that
of the numbers that they stand for. They may be written as one operator or as several::

    LayerNormalization(DequantizeLinear(c, s))                   yes
    Div(Sub(x, ReduceMean(x)), ...) for x of codes               yes
    LayerNormalization(DequantizeLinear(c, s, 7))                no

Two products of few rows that follow one another become one kernel, which reads beyond its data if
one of them has neither bias nor activation before its quantizer::

    MatMul(Q(MatMul(x, v)), w) for x of [4, 32]                  yes
    Q(MatMul(Q(Gemm(x, v, b)), w)) for x of [4, 32]              yes
    Q(Gemm(Q(Gemm(x, v, b)), w, c))                              no
    MatMul(Q(MatMul(x, v)), w) for x of [9, 32], [1, 4, 32]      no
    MatMul(Q(MatMul(x, v)), w), an axis of a matrix above 256    no

Products of codes of 8 bits or fewer with a scale for each row are wrong::

    MatMul(x, DequantizeLinear<axis = 0>(w, s)) of INT4      yes
    MatMul(x, DequantizeLinear<axis = 1>(w, s)) of INT4      no
    MatMul(x, DequantizeLinear<axis = 0>(w, s)) of INT16     no

Products of data of 4 bits and weights of 8 bits write beyond their memory::

    MatMul(DequantizeLinear(QuantizeLinear(x)), w) of UINT4       yes
    MatMul(FakeQuantize<levels = 16>(x), w)                       no
    Conv(DequantizeLinear(QuantizeLinear(x)), w) of UINT4         no
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import onnx_ir as ir

from qgraph.graph.constants import constant_expression, constant_tensor, is_constant
from qgraph.graph.inference.rules import UNKNOWN, Shape
from qgraph.graph.inference.walk import infer
from qgraph.graph.schema import LINEAR_DOMAINS
from qgraph.graph.scopes import input_of, producer_of
from qgraph.inventory.layers import FoundLayer
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
        chain = weight_chain(node.inputs[1], is_turned=bool(node.attributes.get_int("transB", 0)))
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
        chain = weight_chain(node.inputs[1], is_turned=bool(node.attributes.get_int("transB", 0)))
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


def narrow_products(layers: Iterable[FoundLayer]) -> Iterator[FoundLayer]:
    """Yield the matrix products of data of 4 bits and weights of 8 bits."""
    for layer in layers:
        x, w = layer.description.x, layer.description.w
        is_narrow = x.codes in ("INT4", "UINT4") and "QuantizeLinear" in x.written
        if layer.node.op_type in ("Gemm", "MatMul") and is_narrow and w.codes in ("INT8", "UINT8"):
            yield layer


def _is_square(value: ir.Value) -> bool:
    tensor = constant_tensor(value)
    sizes = [] if tensor is None else list(tensor.shape.numpy())
    return len(sizes) >= _MATRIX and sizes[-1] == sizes[-2] > 1


_SUMS = frozenset({"GlobalAveragePool", "ReduceMean", "ReduceSum"})
_NORMALIZATIONS = frozenset({"GroupNormalization", "InstanceNormalization", "LayerNormalization"})
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


def scaled_normalizations(nodes: Iterable[ir.Node]) -> Iterator[tuple[ir.Node, ir.Node]]:
    """Yield the normalizations, or their first Sub, of codes that may have no zero point.

    Each comes with the DequantizeLinear or FakeQuantize of its codes.
    """
    for node in nodes:
        if node.domain or not node.inputs:
            continue
        x = node.inputs[0]
        if node.op_type == "Sub":
            mean = producer_of(node.inputs[1], "ReduceMean")
            is_found = mean is not None and mean.inputs[0] is x
        else:
            is_found = node.op_type in _NORMALIZATIONS
        decoder, _ = _decoder(x, ("FakeQuantize", _DECODER)) if is_found else (None, False)
        if decoder is not None and not _has_point(decoder):
            yield node, decoder


def _has_point(decoder: ir.Node) -> bool:
    """Return whether a DequantizeLinear is known to subtract a zero point."""
    point = input_of(decoder, 2) if decoder.op_type == _DECODER else None
    array = None if point is None else constant_expression(point)
    return array is not None and bool(array.any())


def _decoder(
    value: ir.Value | None, kinds: Sequence[str] = ("DequantizeLinear",)
) -> tuple[ir.Node | None, bool]:
    """Return the DequantizeLinear of the summed numbers, and whether a Transpose follows it."""
    is_turned = False
    while value is not None and (node := value.producer()) is not None:
        if node.op_type in kinds:
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


_FEW_ROWS, _LONGEST = 8, 256
_BETWEEN_PRODUCTS = _ELEMENTWISE | {"Gelu", "HardSwish", "LeakyRelu", "PRelu", "Relu", "Sigmoid"}
_BETWEEN_PRODUCTS |= {"Elu", "Flatten", "Reshape", "Tanh"}


def chained_products(
    layers: Sequence[FoundLayer], shape_of: Callable[[ir.Value], Shape | None]
) -> Iterator[FoundLayer]:
    """Yield the products of few rows that make a wrong kernel with the product before them.

    ``shape_of`` returns the inferred shape of a value; None if its rank is not known.
    """
    known = {layer.node: layer for layer in layers if _is_small(layer, shape_of)}
    for layer in known.values():
        maker = _product_before(layer.node)
        before = None if maker is None else known.get(maker)
        if before is not None and (_is_plain(before) or _is_plain(layer)):
            yield layer


def _is_plain(layer: FoundLayer) -> bool:
    """Return whether a quantizer follows a layer, and neither a bias nor an activation before."""
    form = layer.description
    is_linear = all(each.is_redundant or each.op in _ELEMENTWISE - {"Clip"} for each in form.behind)
    return form.y is not None and form.bias is None and is_linear


def _is_small(layer: FoundLayer, shape_of: Callable[[ir.Value], Shape | None]) -> bool:
    data, weights = layer.node.inputs[:2]
    if layer.node.op_type not in _PRODUCTS or data is None or weights is None:
        return False
    rows, sizes = shape_of(data) or (), shape_of(weights) or ()
    is_few = len(rows) == _MATRIX and isinstance(rows[0], int) and rows[0] <= _FEW_ROWS
    is_short = all(isinstance(size, int) and size <= _LONGEST for size in sizes)
    return is_few and is_short and layer.description.w.is_constant


def _product_before(node: ir.Node) -> ir.Node | None:
    """Return the product whose result, quantized, is the data of a product."""
    value = node.inputs[0]
    while (maker := producer_of(value)) is not None and maker.op_type in _BETWEEN_PRODUCTS:
        value = next((v for v in maker.inputs if v is not None and not is_constant(v)), None)
    return maker
