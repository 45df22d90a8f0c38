"""Find square matrices of weights that products share in both orientations, for OpenVINO.

OpenVINO prepares the weights of a product once for each stored array, and ignores whether it is
transposed. A square array has the same shape both ways, so that the second product is wrong::

    MatMul(x, w), Gemm(y, w, transB=1)                        yes
    MatMul(x, DequantizeLinear(w)), MatMul(y, Transpose(DequantizeLinear(w)))   yes
    MatMul(x, w), MatMul(y, w)                                no
    MatMul(x, w), Gemm(y, v, transB=1) for an own array v     no
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from qgraph.graph.constants import constant_tensor, is_constant
from qgraph.graph.scopes import producer_of

_MATRIX = 2
"""Axes of a matrix."""
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

    Args:
        value: the weights.
        is_turned: whether their reader transposes them.
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


def _is_square(value: ir.Value) -> bool:
    tensor = constant_tensor(value)
    sizes = [] if tensor is None else list(tensor.shape.numpy())
    return len(sizes) >= _MATRIX and sizes[-1] == sizes[-2] > 1
