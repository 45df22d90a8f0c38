"""Passes that avoid forms which a runtime does not compute, or not as ONNX defines them.

``float-products``    products of two operands of data as floats
``float-softmax``     Softmax of codes as floats
``float-sums``        sums over rows of codes, and normalizations, as floats
``separate-pairs``    two pairs with different parameters as they are
``separate-weights``  a matrix of its own for products that read a matrix turned
``widen-floats``      float32 instead of floats of 16 bits
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness, Verdict
from qgraph.graph.constants import array_of, constant_expression
from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.graph.inference.rules import UNKNOWN
from qgraph.graph.inference.walk import infer
from qgraph.graph.opset.versions import only_float_type
from qgraph.graph.schema import code_type
from qgraph.graph.scopes import graphs_of, input_of, producer_of
from qgraph.inventory.layers import quantized_einsums, quantized_layers
from qgraph.inventory.openvino_traps import (
    row_sums_of,
    scaled_normalizations,
    turned_products,
    weight_chain,
)
from qgraph.model import Model
from qgraph.numerics import Array
from qgraph.ops.composite import region_of
from qgraph.ops.operator import operator_of
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.movement import unmoved
from qgraph.quantizers.quantizer import Affine, Floating, Ranged
from qgraph.quantizers.sites import readable_sites
from qgraph.reasons import FAULTY_SCALE, NO_EQUAL_FORM, NO_OPERATOR
from qgraph.reports import Report, SiteStatus
from qgraph.transforms.base import Transform, option, selects, transform
from qgraph.transforms.drafts.choice import STORED, entry, label, refused
from qgraph.transforms.drafts.rebuilding import replace_node, turned_weights, wrap_operand

_INFINITE = FAULTY_SCALE(
    "results of the quantizer of its operand may be infinite, and a Max would change them; "
    "export finite scales"
)


@transform("float-products", preserves=Exactness.BITS)
class FloatProducts(Transform):
    """Prevent a runtime from multiplying two operands of data as codes.

    1. ``MatMul(x, y) -> MatMul(x, Max(y, lowest))``, where quantizers compute ``x`` and ``y`` from
       data, and ``lowest`` is the lowest finite number of the type; likewise Gemm.
    2. ``Einsum(x, y) -> Einsum(x, Max(y, lowest))`` likewise, also if ``y`` are weights.
    3. ``data=true``: ``Conv(x, w, b) -> Conv(Max(x, lowest), w, b)`` for layers with quantized
       weights ``w``, instead.

    The Max changes nothing, since all results of the quantizers are finite; others are refused.
    Without it, OpenVINO multiplies the codes, and processors without VNNI cut off large sums of
    such products.
    """

    nodes: str = option("*", help="names of operators, such as *attention*|!*MatMul_1")
    data: bool = option(False, help="also insert a Max before the data of layers with weights")

    def apply(self, model: Model, report: Report) -> None:
        """Insert a Max before the second operand of each product, and report it."""
        editor = Editor(model.ir)
        einsums = [] if self.data else quantized_einsums(model.ir)
        finite = {site.y for site in readable_sites(model.ir) if _is_finite(site)}
        index = 0 if self.data else 1
        limit = functools.partial(_limit, editor, report)
        for node in [*_products(model, has_weights=self.data), *einsums]:
            if len(node.inputs) < 2 or not selects(self.nodes, label(node)):
                continue
            y = node.inputs[index]
            if y is not None and unmoved(y) not in finite:
                report.sites.append(refused(node, _INFINITE))
            elif y is not None:
                dtype = y.dtype or only_float_type(model.ir) or ir.DataType.FLOAT
                limit(node, index, np.asarray(dtype.min, dtype.numpy()))


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

    The Max changes no number. Without it, OpenVINO adds the codes, and all results except those of
    the first matrix are wrong, or epsilon is added to another variance.
    """

    def apply(self, model: Model, report: Report) -> None:
        """Insert a Max before each sum over rows, and each normalization, and report it."""
        editor = Editor(model.ir)
        for each in row_sums_of(model.ir):
            lowest = _lowest(each.decoder)
            if each.node.inputs[0] is not None and lowest is not None:
                _limit(editor, report, each.node, 0, lowest)
        for node in list(scaled_normalizations(model.nodes())):
            x = node.inputs[0]
            dtype = (x and x.dtype) or only_float_type(model.ir) or ir.DataType.FLOAT
            _limit(editor, report, node, 0, np.asarray(dtype.min, dtype.numpy()))


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
    """Return the lowest result of a DequantizeLinear; None if it has several scales."""
    codes = code_type(decoder)
    scale = constant_expression(decoder.inputs[1])
    if codes is None or scale is None or scale.size != 1 or not codes.is_integer():
        return None
    stated = input_of(decoder, 2)
    point = np.zeros(1, np.int64) if stated is None else constant_expression(stated)
    if point is None:
        return None
    ends = np.array([codes.min, codes.max], np.int64) - point.astype(np.int64).reshape(())
    return np.asarray((ends.astype(scale.dtype) * scale.reshape(())).min())


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


_NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_TYPE_NAMES = ("dtype", "output_dtype")
_DOMAINS = ("", "com.microsoft")
_OWN_TYPES = frozenset({"CastLike", "Optional", "SequenceEmpty", "If", "Loop", "Scan"})
_BOUND = "results are rounded less; bound the difference with 'qgraph prove --within'"


@transform("widen-floats", bounded=True)
class WidenFloats(Transform):
    """Compute in float32 what a model computes in floats of 16 bits.

    1. Constants of float16 and bfloat16 become float32 constants of the same numbers, and all
       operators on them compute in float32.
    2. Inputs and outputs keep their types: a Cast follows each input and precedes each output.
       A Cast to 16 bits stays, with a Cast back after it, so that its rounding stays too.

    No number of the model changes, but results are rounded less. Kernels on codes of most runtimes
    need scales of float32. Fold weights first, since float weights become twice as large.
    """

    def apply(self, model: Model, report: Report) -> None:
        """Widen all values, or none."""
        graph = model.ir.graph
        nodes = list(graph)
        facts = infer(model.ir)
        kinds = {v: v.dtype or facts.get(v, UNKNOWN).dtype for v in _values(graph)}
        narrow = [value for value, dtype in kinds.items() if dtype in _NARROW]
        computing = [node for node in nodes if node.op_type != "Cast" or node.domain]
        if not any(v in narrow for node in computing for v in (*node.inputs, *node.outputs)):
            return
        for node in nodes:
            is_known = node.domain in _DOMAINS or operator_of(node) is not None
            if graphs_of(node) or node.op_type in _OWN_TYPES or not is_known:
                reason = f"{node.op_type} may state types of its own; the model keeps its types"
                report.sites.append(refused(node, NO_OPERATOR(reason)))
                return
        ends = [(value, kinds[value]) for value in narrow if value.is_graph_output()]
        starts = [(value, kinds[value]) for value in narrow if value.is_graph_input()]
        kept = {node for node in nodes if node.op_type == "Cast" and _target(node) in _NARROW}
        editor = Editor(model.ir)
        for value in narrow:
            if not value.is_graph_input():
                _widen(value)
        for node in nodes:
            if node in kept:
                _cast_behind(editor, graph, node.outputs[0], _target(node), node)
            else:
                _widen_attributes(node)
        for value, dtype in starts:
            _cast_behind(editor, graph, value, dtype, None)
        for value, dtype in ends:
            _cast_before(editor, graph, value, dtype)
        for node in nodes:
            if any(value in narrow for value in node.outputs) and node not in kept:
                verdict = Verdict()
                report.sites.append(entry(node, SiteStatus.CHANGED, _BOUND, verdict=verdict))


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def _target(node: ir.Node) -> ir.DataType | None:
    to = node.attributes.get_int("to", None)
    return None if to is None else ir.DataType(to)


def _widen(value: ir.Value) -> None:
    """Give a value, and a constant, the type float32."""
    if value.const_value is not None:
        array = array_of(value)
        if array is not None:
            value.const_value = ir.tensor(np.asarray(array).astype(np.float32), name=value.name)
    value.type = ir.TensorType(ir.DataType.FLOAT)


def _widen_attributes(node: ir.Node) -> None:
    """Let the attributes of a node state float32 where they state 16 bits."""
    for name, attribute in list(node.attributes.items()):
        if attribute.type is ir.AttributeType.TENSOR:
            tensor = attribute.as_tensor()
            if tensor.dtype in _NARROW:
                wide = ir.tensor(tensor.numpy().astype(np.float32), name=tensor.name)
                node.attributes[name] = ir.AttrTensor(name, wide)
        elif name in _TYPE_NAMES and attribute.as_int() in _NARROW:
            node.attributes[name] = ir.AttrInt64(name, ir.DataType.FLOAT)


def _cast_behind(
    editor: Editor,
    graph: ir.Graph,
    value: ir.Value,
    dtype: ir.DataType | None,
    node: ir.Node | None,
) -> None:
    """Let all users of a value of 16 bits take it as float32."""
    value.type = ir.TensorType(dtype or ir.DataType.FLOAT16)
    uses = list(value.uses())
    if not uses:
        return
    cast = _cast(editor, value, ir.DataType.FLOAT)
    if node is None:
        graph.insert_before(graph[0], cast)
    else:
        graph.insert_after(node, cast)
    for user, index in uses:
        user.replace_input_with(index, cast.outputs[0])


def _cast_before(
    editor: Editor, graph: ir.Graph, value: ir.Value, dtype: ir.DataType | None
) -> None:
    """Give an output its type again."""
    maker = value.producer()
    if maker is None or (maker.op_type == "Cast" and value.dtype is dtype):
        return
    name, shape = str(value.name), value.shape
    cast = _cast(editor, value, dtype or ir.DataType.FLOAT16)
    graph.insert_after(maker, cast)
    for index, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[index] = cast.outputs[0]
    value.name = editor.fresh(f"{name}_float")
    cast.outputs[0].name, cast.outputs[0].shape = name, shape


def _cast(editor: Editor, value: ir.Value, to: ir.DataType) -> ir.Node:
    name = editor.fresh(f"{value.name}_{to.name.lower()}")
    cast = ir.node("Cast", [value], {"to": to}, name=editor.fresh(f"{name}_Cast"))
    cast.outputs[0].name, cast.outputs[0].shape = name, value.shape
    cast.outputs[0].type = ir.TensorType(to)
    return cast
