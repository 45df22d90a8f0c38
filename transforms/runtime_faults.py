"""Passes that avoid forms which a runtime does not compute, or not as ONNX defines them.

``float-products``    products of two operands of data as floats
``float-softmax``     Softmax of codes as floats
``float-sums``        sums over rows of codes, and normalizations, as floats
``separate-pairs``    two pairs with different parameters as they are
``separate-weights``  a matrix of its own for products that read a matrix turned
"""

from __future__ import annotations

import functools

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness
from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.graph.opset.versions import only_float_type
from qgraph.graph.schema import code_type
from qgraph.graph.scopes import input_of, producer_of
from qgraph.inventory.layers import (
    decoded_before,
    quantized_einsums,
    quantized_layers,
    scaled_products,
)
from qgraph.inventory.openvino_traps import (
    row_sums_of,
    scaled_normalizations,
    turned_products,
    weight_chain,
)
from qgraph.model import Model
from qgraph.numerics import Array
from qgraph.ops.composite import region_of
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.movement import unmoved
from qgraph.quantizers.quantizer import Affine, Floating, Ranged
from qgraph.quantizers.sites import readable_sites
from qgraph.reasons import FAULTY_SCALE, NO_EQUAL_FORM
from qgraph.reports import Report
from qgraph.transforms.base import Transform, option, selects, transform
from qgraph.transforms.drafts.choice import STORED, label, refused
from qgraph.transforms.drafts.rebuilding import replace_node, turned_weights, wrap_operand

_INFINITE = FAULTY_SCALE(
    "results of the quantizer of its operand may be infinite, and a Max would change them; "
    "export finite scales"
)


_SCALED = ("Add", "AveragePool", "Cast", "Div", "Dropout", "Mul", "Neg", "Relu", "Sub")
"""Operators through which OpenVINO moves scales, so that a product after them reads codes."""


@transform("float-products", preserves=Exactness.BITS)
class FloatProducts(Transform):
    """Prevent a runtime from multiplying two operands of data as codes.

    1. ``MatMul(x, y) -> MatMul(x, Max(y, lowest))``, where quantizers compute ``x`` and ``y`` from
       data, and ``lowest`` is the lowest finite number of the type; likewise Gemm.
    2. ``Einsum(x, y) -> Einsum(x, Max(y, lowest))`` likewise, also if ``y`` are weights.
    3. ``data=true``: ``Conv(x, w, b) -> Conv(Max(x, lowest), w, b)`` for layers with quantized
       weights ``w``, instead.
    4. ``data=true``: ``MatMul(Relu(x), y) -> MatMul(Relu(x), Max(y, -inf))`` for products of codes
       after such operators on data or weights; likewise other layers and Einsum.

    The Max changes nothing, since all results of the quantizers are finite; others are refused.
    Results of operators may be infinite: their limit is minus infinity.
    Without it, OpenVINO multiplies the codes, and processors without VNNI cut off large sums of
    such products.
    """

    nodes: str = option("*", help="names of operators, such as *attention*|!*MatMul_1")
    data: bool = option(
        False, help="insert a Max before the data of layers with weights, and after operators"
    )

    def apply(self, model: Model, report: Report) -> None:
        """Insert a Max before the second operand of each product, and report it."""
        editor = Editor(model.ir)
        einsums = [] if self.data else quantized_einsums(model.ir)
        sites = {site.y: site for site in readable_sites(model.ir)}
        finite = {y for y, site in sites.items() if _is_finite(site)}
        index = 0 if self.data else 1
        limit = functools.partial(_limit, editor, report)
        behind = scaled_products(model.ir, _SCALED, sites) if self.data else []
        scaled = [each.node for each in behind if selects(self.nodes, label(each.node))]
        for node in [*_products(model, has_weights=self.data), *einsums]:
            if len(node.inputs) < 2 or not selects(self.nodes, label(node)) or node in scaled:
                continue
            y = node.inputs[index]
            if y is not None and not finite.issuperset(decoded_before(y, sites) or [y]):
                report.sites.append(refused(node, _INFINITE))
            elif y is not None:
                dtype = y.dtype or only_float_type(model.ir) or ir.DataType.FLOAT
                limit(node, index, np.asarray(dtype.min, dtype.numpy()))
        for node in scaled:
            y = node.inputs[1]
            dtype = (y and y.dtype) or only_float_type(model.ir) or ir.DataType.FLOAT
            limit(node, 1, np.asarray(-np.inf, dtype.numpy()))


def _limit(editor: Editor, report: Report, node: ir.Node, index: int, lowest: Array) -> None:
    """Insert a Max with the lowest number before an operand."""
    dtype = ir.DataType.from_numpy(lowest.dtype)

    def write(draft: Draft) -> ir.Value:
        return draft.node("Max", [draft.x, draft.constant(lowest, "lowest")], dtype=dtype)

    wrap_operand(node, index, write, editor, report)


def _is_finite(site: Site) -> bool:
    """Return whether the parameters show that no result of a quantizer is infinite."""
    with np.errstate(all="ignore"):
        match site.quantizer:
            case Affine(lo=lo, hi=hi, to_real=real):
                ends = [(code - real.zero_point) * real.scale for code in (lo, hi)]
            case Ranged(output_low=low, output_high=high):
                ends = [low, high, high - low]
            case Floating(scale=scale, format=kind, saturating=True):
                ends = [np.float32(kind.max_value) * scale]
            case _:
                return False
        dtype = (site.y.dtype or ir.DataType.FLOAT).numpy()
        return all(bool(np.isfinite(end.astype(dtype)).all()) for end in ends)


def _products(model: Model, *, has_weights: bool) -> list[ir.Node]:
    """Return the products of data and weights, or of two operands of data."""
    return [
        layer.node
        for layer in quantized_layers(model.ir)
        if not layer.description.x.is_constant and layer.description.w.is_constant is has_weights
    ]


@transform("float-sums", preserves=Exactness.BITS)
class FloatSums(Transform):
    """Prevent a runtime from adding or normalizing codes where it is wrong.

    1. ``ReduceMean(x) -> ReduceMean(Max(x, lowest))``, where ``x`` are decoded codes, and
       ``lowest`` is the lowest number of their type; likewise ReduceSum and GlobalAveragePool.
    2. ``LayerNormalization(x) -> LayerNormalization(Max(x, lowest))``, where ``x`` are decoded
       codes without a zero point, and ``lowest`` is the lowest finite number; likewise other
       normalizations, and the Sub of those that are written as several operators.

    The Max changes no number, since decoded codes that may be infinite are refused. Without it,
    OpenVINO adds the codes, and all results except those of the first matrix are wrong, or epsilon
    is added to another variance.
    """

    def apply(self, model: Model, report: Report) -> None:
        """Insert a Max before each sum over rows, and each normalization, and report it."""
        editor = Editor(model.ir)
        for each in row_sums_of(model.ir):
            lowest = _lowest(each.decoder)
            if each.node.inputs[0] is not None and lowest is not None:
                _limit(editor, report, each.node, 0, lowest)
        normalizations = list(scaled_normalizations(model.nodes()))
        sites = readable_sites(model.ir) if normalizations else []
        finite = {site.y for site in sites if _is_finite(site)}
        for node, decoder in normalizations:
            if decoder.outputs[0] not in finite and not _has_finite_results(decoder):
                report.sites.append(refused(node, _INFINITE))
                continue
            x = node.inputs[0]
            dtype = (x and x.dtype) or only_float_type(model.ir) or ir.DataType.FLOAT
            _limit(editor, report, node, 0, np.asarray(dtype.min, dtype.numpy()))


def _has_finite_results(decoder: ir.Node) -> bool:
    """Return whether no code that a DequantizeLinear can read stands for an infinite number."""
    codes = code_type(decoder) if decoder.op_type == "DequantizeLinear" else None
    scale = None if codes is None else constant_expression(decoder.inputs[1])
    stated = input_of(decoder, 2)
    point = np.zeros(1) if stated is None else constant_expression(stated)
    if codes is None or scale is None or point is None or not codes.is_integer():
        return False
    ends = np.array([codes.min, codes.max], np.float64)[:, None] - point.reshape(-1)
    with np.errstate(all="ignore"):
        most = np.abs(ends).max(initial=0).astype(scale.dtype) * np.abs(scale).max(initial=0)
    return bool(np.isfinite(most))


@transform("float-softmax", preserves=Exactness.BITS)
class FloatSoftmax(Transform):
    """Prevent a runtime from computing Softmax on codes.

    1. ``Softmax(x) -> Softmax(Max(x, lowest))``, where ``x`` are decoded codes, possibly moved, and
       ``lowest`` is the lowest number of their type.

    The Max changes no number. Without it, ONNX Runtime counts the number 1 as a whole number of
    steps of the result, so that codes can be one too low.
    """

    nodes: str = option("*", help="names of operators, such as *attention*|!*Softmax_1")

    def apply(self, model: Model, report: Report) -> None:
        """Insert a Max before each Softmax of codes, and report it."""
        _limit_decoded(model, report, "Softmax", self.nodes)


@transform("separate-pairs", preserves=Exactness.BITS)
class SeparatePairs(Transform):
    """Prevent a runtime from merging two pairs of QuantizeLinear and DequantizeLinear into one.

    1. ``QuantizeLinear(x) -> QuantizeLinear(Max(x, lowest))`` for the same ``x`` as in
       ``float-softmax``.

    The Max changes no number. Without it, ONNX Runtime writes one pair with a new scale.
    """

    nodes: str = option("*", help="names of QuantizeLinear, such as *attention*|!*second")

    def apply(self, model: Model, report: Report) -> None:
        """Insert a Max before each QuantizeLinear of decoded codes, and report it."""
        _limit_decoded(model, report, "QuantizeLinear", self.nodes)


def _limit_decoded(model: Model, report: Report, operator: str, nodes: str) -> None:
    """Insert a Max before the named operators on decoded codes."""
    editor = Editor(model.ir)
    for node in list(model.nodes(operator)):
        decoder = producer_of(unmoved(node.inputs[0]), "DequantizeLinear")
        if node.domain or decoder is None or not selects(nodes, label(node)):
            continue
        if (lowest := _lowest(decoder)) is not None:
            _limit(editor, report, node, 0, lowest)


def _lowest(decoder: ir.Node) -> Array | None:
    """Return the lowest result of a DequantizeLinear; None if it has several scales, or is NaN."""
    codes = code_type(decoder)
    scale = constant_expression(decoder.inputs[1])
    if codes is None or scale is None or scale.size != 1 or not codes.is_integer():
        return None
    stated = input_of(decoder, 2)
    point = np.zeros(1, np.int64) if stated is None else constant_expression(stated)
    if point is None:
        return None
    ends = np.array([codes.min, codes.max], np.int64) - point.astype(np.int64).reshape(())
    with np.errstate(all="ignore"):
        lowest = np.asarray((ends.astype(scale.dtype) * scale.reshape(())).min())
    return None if np.isnan(lowest) else lowest


_UNKNOWN = NO_EQUAL_FORM(
    "its weights are shared with a product that reads them transposed, and a parameter of their "
    "quantizer has no transposed form; export weights of its own for one of the products"
)


@transform("separate-weights", preserves=Exactness.BITS)
class SeparateWeights(Transform):
    """Store square weights twice if products share them in both orientations.

    1. ``MatMul(x, w), Gemm(y, w, transB=1) -> MatMul(x, Transpose(v)), Gemm(y, w, transB=1)``,
       where ``v`` is a new constant with the transposed numbers of ``w``; likewise for weights that
       quantizers compute from ``w``, and for Einsum.

    No number changes. Without it, OpenVINO computes both products with the same orientation.
    """

    def apply(self, model: Model, report: Report) -> None:
        """Give each product that reads such weights as they are new ones, and report it."""
        editor = Editor(model.ir)
        for node in [each for plain, _ in turned_products(model.nodes()) for each in plain]:
            weights = node.inputs[1]
            chain = weight_chain(weights)
            draft = editor.draft(region_of(node))
            turned = None if chain is None else turned_weights(draft, chain)
            if turned is None or chain is None:
                draft.discard()
                report.sites.append(refused(node, _UNKNOWN))
                continue
            dtype = None if weights is None else weights.dtype
            operands: list[Operand | None] = list(node.inputs)
            operands[1] = turned
            if not chain.is_turned:
                operands[1] = draft.node("Transpose", [turned], {"perm": chain.swap}, dtype=dtype)
            draft.giving(draft.copy(node, operands))
            replace_node(node, draft, STORED, report, heirs=(node.op_type,))
