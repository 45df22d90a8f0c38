"""Quantizers within operators on integer codes, such as QLinearConv and MatMulNBits.

Such an operator has inputs for codes, scales and zero points, and its result is codes::

    QLinearConv (x, s_x, z_x, w, s_w, z_w, s_y, z_y)     weight: w, s_w, z_w;  data: s_y, z_y
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import onnx_ir as ir

from qgraph.errors import UnsupportedError
from qgraph.graph.constants import constant_expression, constant_tensor
from qgraph.graph.schema import MICROSOFT, OpKey
from qgraph.graph.scopes import inputs_of, producer_of
from qgraph.graph.tensors import stored_bytes
from qgraph.numerics import Array
from qgraph.records import dataclass

_STANDARD = frozenset(
    {"ConvInteger", "DynamicQuantizeLinear", "MatMulInteger", "QLinearConv", "QLinearMatMul"}
)
"""Operators on codes of ONNX itself; all others are of com.microsoft."""

_RESULTS = {
    "QLinearAdd": (6, 7),
    "QLinearAveragePool": (3, 4),
    "QLinearConcat": (0, 1),
    "QLinearGlobalAveragePool": (3, 4),
    "QLinearLeakyRelu": (3, 4),
    "QLinearMul": (6, 7),
    "QLinearReduceMean": (3, 4),
    "QLinearSigmoid": (3, 4),
    "QLinearSoftmax": (3, 4),
    "QLinearWhere": (7, 8),
}
"""Indices of the scale and the zero point of the result, for operators of com.microsoft."""

_WEIGHTS = {
    "DynamicQuantizeLSTM": (1, 8, 9),
    "DynamicQuantizeMatMul": (1, 2, 3),
    "GatherBlockQuantized": (0, 2, 3),
    "MatMulBnb4": (1, 2, None),
    "MatMulNBits": (1, 2, 3),
    "QAttention": (1, 4, 7),
}
"""Indices of weights, their scale and their zero point."""

_OF_SIZES = frozenset({"ConstantOfShape", "Shape", "Size"})
"""Operators whose result does not depend on the elements of their operand."""

_FORMATS_OF_BNB4 = ("fp4", "nf4")


@dataclass(frozen=True, eq=False)
class CodedTensor:
    """A tensor of codes that is a weight or the result of an operator.

    Attributes:
        format: number format of the codes; None if it is not known.
        is_weight: whether the codes are constant.
        is_dynamic: whether scale and zero point are computed from the data.
        scale, zero_point: constant parameters; None if they are not known, or there are none.
        stored: bytes of the codes with their parameters; None for data.
    """

    node: ir.Node
    format: str | None
    bits: int | None
    is_weight: bool
    is_dynamic: bool = False
    scale: Array | None = None
    zero_point: Array | None = None
    granularity: str | None = None
    stored: int | None = None


def may_be_on_codes(node: ir.Node) -> bool:
    """Return whether a node can be an operator on codes, by its name alone."""
    return node.domain == MICROSOFT or (not node.domain and node.op_type in _STANDARD)


def coded_tensors(node: ir.Node) -> Iterator[CodedTensor]:
    """Yield the constant weights of an operator on codes, and its result if that is codes."""
    if not may_be_on_codes(node):
        return
    from qgraph.ops.integer.products import SIGNATURES

    inputs = dict(enumerate(node.inputs))
    signature = SIGNATURES.get(OpKey.of(node))
    if signature is not None:
        names = {name: inputs.get(index) for index, name in enumerate(signature.inputs)}
        yield from _weight(node, names.get("b"), names.get("s_b"), names.get("z_b"))
        if names.get("s_y") is not None:
            yield _data(node, names.get("s_y"), names.get("z_y"))
    elif OpKey.of(node) == OpKey("", "DynamicQuantizeLinear"):
        of_data = constant_expression(node.inputs[0]) is None
        yield CodedTensor(node, "uint8", 8, False, of_data, granularity="per tensor")
    elif node.domain == MICROSOFT and node.op_type in _RESULTS:
        scale, zero = _RESULTS[node.op_type]
        yield _data(node, inputs.get(scale), inputs.get(zero))
    elif node.domain == MICROSOFT and node.op_type in _WEIGHTS:
        codes, scale, last = _WEIGHTS[node.op_type]
        zero_point = None if last is None else inputs.get(last)
        yield from _weight(node, inputs.get(codes), inputs.get(scale), zero_point)


def has_codes(node: ir.Node) -> bool:
    """Return whether a node has constant coded weights, or a result of codes."""
    return any(True for _ in coded_tensors(node))


def coded_pair(node: ir.Node) -> CodedTensor:
    """Return the codes of a QuantizeLinear or DequantizeLinear that is not part of a pair."""
    scale, zero_point = inputs_of(node, 3)[1:]
    return _data(node, scale, zero_point)


def is_dynamic(node: ir.Node) -> bool:
    """Return whether a parameter of a quantizer is computed from data that the model is fed."""
    from qgraph.graph.slices import ancestors, sources

    values = ancestors(
        filter(None, node.inputs[1:]),
        lambda value: [] if producer_of(value, *_OF_SIZES) else sources(value),
    )
    return any(value.is_graph_input() and not value.is_initializer() for value in values)


def _weight(
    node: ir.Node, codes: ir.Value | None, scale: ir.Value | None, zero_point: ir.Value | None
) -> Iterator[CodedTensor]:
    tensors = [constant_tensor(value) for value in (codes, scale, zero_point)]
    if codes is None or tensors[0] is None:
        return
    name, bits = _format(node, tensors[0].dtype)
    steps = constant_expression(scale)
    stored = sum(stored_bytes(tensor) for tensor in tensors if tensor is not None)
    zeros = _zero_points(node, zero_point, steps)
    granularity = _granularity(node, steps)
    yield CodedTensor(node, name, bits, True, False, steps, zeros, granularity, stored)


def _data(node: ir.Node, scale: ir.Value | None, zero_point: ir.Value | None) -> CodedTensor:
    steps, zeros = constant_expression(scale), constant_expression(zero_point)
    codes = node.inputs[0] if node.op_type == "DequantizeLinear" else None
    types = [value.dtype for value in (zero_point, codes, *node.outputs) if value and value.dtype]
    name, bits = (types[0].name.lower(), types[0].bitwidth) if types else (None, None)
    is_dynamic = scale is not None and steps is None
    granularity = None if steps is None else _granularity(node, steps)
    return CodedTensor(node, name, bits, False, is_dynamic, steps, zeros, granularity)


def _format(node: ir.Node, stored: ir.DataType) -> tuple[str | None, int | None]:
    if node.op_type == "MatMulBnb4":
        quant_type = node.attributes.get_int("quant_type", 0)
        return (_FORMATS_OF_BNB4[quant_type] if quant_type in (0, 1) else None), 4
    if node.op_type == "MatMulNBits" or (
        node.op_type == "GatherBlockQuantized" and stored is ir.DataType.UINT8
    ):
        bits = node.attributes.get_int("bits", 4)
        return f"uint{bits}", bits
    return stored.name.lower(), stored.bitwidth


def _zero_points(node: ir.Node, value: ir.Value | None, scale: Array | None) -> Array | None:
    zeros = constant_expression(value)
    from qgraph.ops.kernels.mat_mul_n_bits import Weights, is_mat_mul_n_bits

    if is_mat_mul_n_bits(node):
        if value is None or zeros is not None:
            with suppress(UnsupportedError, ValueError):
                weights, codes = Weights.of(node), constant_tensor(node.inputs[1])
                total = weights.n * weights.blocks * weights.size
                if codes is not None and 8 * codes.size == total * weights.bits:
                    return weights.zero_points(zeros)
        return None
    # Packed ones are several to a byte.
    is_packed = scale is not None and zeros is not None and zeros.size != scale.size
    return None if is_packed else zeros


def _granularity(node: ir.Node, scale: Array | None) -> str | None:
    block = node.attributes.get_int("block_size", 0)
    if block and node.op_type in _WEIGHTS:
        axis = node.attributes.get_int("quantize_axis", 1)
        return f"per {block}" if node.op_type == "MatMulBnb4" else f"per {block} along axis {axis}"
    if scale is None:
        return None
    return "per tensor" if scale.size == 1 else f"per channel ({scale.size})"
