"""The pass ``fold-constants``, and other storing of what is computed from constants."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from qgraph.errors import QGraphError
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.constants import constant_expression, constant_stream, constant_tensor
from qgraph.graph.edit import Draft, Editor, Region
from qgraph.graph.inference.rules import UNKNOWN, Fact
from qgraph.graph.inference.walk import RESHAPING, infer
from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.schema import LINEAR_DOMAINS, versions_of
from qgraph.graph.scopes import nodes_of, owners, remove_constant, remove_unused
from qgraph.model import Model
from qgraph.numerics import Array, Float32
from qgraph.ops.definitions.quantize_linear import dequantize_linear
from qgraph.ops.definitions.quark import BlockFormat, block_format
from qgraph.ops.dispatch import compute, evaluate
from qgraph.ops.known_values import KnownValues
from qgraph.quantizers.dialects.dialect import Refusal
from qgraph.quantizers.movement import axis_before, axis_of, is_linear, linear_producer
from qgraph.quantizers.sites import site_of
from qgraph.quantizers.weights.job import codes_of
from qgraph.reasons import UNSUITED_WEIGHT
from qgraph.reports import Report, SiteStatus
from qgraph.targets.layer import LAYERS
from qgraph.transforms.base import Transform, option, selects, transform
from qgraph.transforms.drafts.choice import SAME, STORED, entry, label, refused
from qgraph.transforms.drafts.rebuilding import Rebuild, read_all, rebuild
from qgraph.transforms.weights.output_scale import Stuck, title
from qgraph.transforms.weights.scaled_weights import present
from qgraph.transforms.weights.weighted_sums import OPERATORS

_DECODER = "DequantizeLinear"
_MOVES = RESHAPING | {"Identity", "Transpose"}
_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})


@transform("fold-constants", preserves=Exactness.BITS)
class FoldConstants(Transform):
    """Compute constant operators between stored codes and the operators that use them.

    1. An operand of QuantizeLinear and DequantizeLinear that is computed from constants, without
       DequantizeLinear, is stored: ``DequantizeLinear(Clip(codes)) -> DequantizeLinear(codes')``,
       and ``DequantizeLinear(QuantizeLinear(bias)) -> DequantizeLinear(codes')``, also if ``bias``
       is decoded itself. Likewise a bias computed by Identity, Transpose and reshapes.
    2. ``move(DequantizeLinear(codes, s, z)) -> DequantizeLinear(move(codes), s, z)`` for constant
       codes; ``move`` is Identity, Transpose, Flatten, Reshape, Squeeze or Unsqueeze.

    3. ``biases``: ``DequantizeLinear(codes) -> numbers`` for constants of INT32 codes and biases,
       for runtimes that accept only float biases.

    4. ``recurrent``: likewise for constant operands of LSTM, GRU and RNN, for compilers that accept
       only float constants.

    5. ``layers``: likewise for weights of Conv, ConvTranspose, Gemm and MatMul, for runtimes that
       decode them in each run.

    Other weights stay codes.
    """

    biases: bool = option(False, help="decode constants of INT32 codes, and biases")
    recurrent: bool = option(False, help="decode constant operands of LSTM, GRU and RNN")
    layers: str = option("", help="patterns of names of layers whose weights are decoded")

    def apply(self, model: Model, report: Report) -> None:
        """Store values computed from constants, then move the decoding of constants."""
        editor = Editor(model.ir)
        for owner in owners(model.ir):
            nodes = list(nodes_of(owner))
            known = KnownValues.of(owner)
            for node in filter(self._is_stored, nodes):
                numbers = known.array(node.outputs[0])
                if numbers is not None and not node.outputs[0].is_graph_output():
                    store(editor, node.outputs[0], numbers)
                    report.sites.append(entry(node, SiteStatus.CHANGED, verdict=STORED))
            for value in list(dict.fromkeys(_computed(nodes, known))):
                array, maker = known.array(value), value.producer()
                if array is not None and maker is not None:
                    store(editor, value, array)
                    report.sites.append(entry(maker, SiteStatus.CHANGED, verdict=STORED))
        facts = dict(infer(model.ir))
        for node in list(model.nodes()):
            decode = _moved_decoder(node)
            if decode is None:
                continue
            try:
                _put_before(node, decode, facts, editor)
                report.sites.append(entry(node, SiteStatus.CHANGED, verdict=SAME))
            except Stuck as stuck:
                report.sites.append(refused(node, UNSUITED_WEIGHT(stuck.reason)))

    def _is_stored(self, node: ir.Node) -> bool:
        """Return whether to store the decoded values of a node as numbers."""
        if not is_linear(node, _DECODER):
            return False
        users = {user.op_type for user in node.outputs[0].consumers()}
        is_recurrent = self.recurrent and not users.isdisjoint(_RECURRENT)
        return is_recurrent or (self.biases and _is_bias(node)) or self._is_of_layers(node)

    def _is_of_layers(self, node: ir.Node) -> bool:
        """Return whether a node decodes only weights of selected layers."""
        uses = node.outputs[0].uses() if self.layers else ()
        return bool(uses) and all(
            use.node.op_type in LAYERS and use.idx == 1 and selects(self.layers, label(use.node))
            for use in uses
        )


def _computed(nodes: list[ir.Node], known: KnownValues) -> Iterator[ir.Value]:
    """Yield the values to store, each with no DequantizeLinear before it."""
    decoded: set[ir.Value] = set()
    moved: set[ir.Value] = set()
    for node in nodes:
        for index, value in enumerate(node.inputs):
            if value is None or constant_tensor(value) is not None or not known.has(value):
                continue
            is_coder = is_linear(node, _DECODER, "QuantizeLinear")
            is_bias = node.op_type in OPERATORS and index == 2 and value in moved
            if (is_coder and value not in decoded) or is_bias:
                yield value
        # Operators of other dialects decode, too.
        decodes = node.op_type == _DECODER or node.domain not in LINEAR_DOMAINS
        is_decoded = decodes or not decoded.isdisjoint(node.inputs)
        if is_decoded and not is_linear(node, "QuantizeLinear"):
            decoded.update(node.outputs)
        elif node.op_type in _MOVES and not node.domain:
            source = node.inputs[0]
            if source in moved or constant_tensor(source) is not None:
                moved.update(node.outputs)


def computed_codes(model: Model) -> list[str]:
    """Return the types of operators that compute constants from stored codes in each run."""
    computed: set[ir.Value] = set()
    types: set[str] = set()
    for node in model.nodes():
        if is_linear(node, _DECODER):
            codes = node.inputs[0]
            maker = codes.producer() if codes in computed else None
            types |= set() if maker is None else {maker.op_type}
        elif decode := _moved_decoder(node):
            types |= set() if decode.attributes.get_int("block_size", 0) else {node.op_type}
        elif node.inputs and all(
            value is None or value in computed or constant_tensor(value) is not None
            for value in node.inputs
        ):
            computed.update(node.outputs)
    return sorted(types)


def _is_bias(node: ir.Node) -> bool:
    """Return whether a DequantizeLinear decodes INT32 codes, or only biases of layers."""
    codes, uses = node.inputs[0], list(node.outputs[0].uses())
    is_wide = codes is not None and codes.dtype is ir.DataType.INT32
    return is_wide or all(use.node.op_type in LAYERS and use.idx == 2 for use in uses)


def _moved_decoder(node: ir.Node) -> ir.Node | None:
    """Return the DequantizeLinear of constant codes whose result a node moves."""
    if node.op_type not in _MOVES or node.domain:
        return None
    decode = linear_producer(node.inputs[0], _DECODER)
    return decode if decode and constant_tensor(decode.inputs[0]) is not None else None


def _put_before(
    node: ir.Node, decode: ir.Node, facts: dict[ir.Value, Fact], editor: Editor
) -> None:
    """Replace a movement of decoded codes by the decoding of moved codes.

    Raises:
        Stuck: a parameter would not lie along one axis of the result.
    """
    codes, y = present(decode, 0), node.outputs[0]
    changes: dict[str, int] = {}
    if decode.attributes.get_int("block_size", 0):
        raise Stuck(f"{title(decode)} has a scale for each block; write the weight as it is used")
    axis = axis_of(decode, facts)
    if axis is not None:
        stored = constant_tensor(codes)
        axis %= max(0 if stored is None else len(stored.shape), 1)
        rank = facts.get(y, UNKNOWN).rank or 0
        axes = [each for each in range(rank) if axis_before(node, each, facts) == axis]
        if len(axes) != 1:
            raise Stuck(
                f"{title(decode)} has its scales along axis {axis}, which {node.op_type} does not "
                "keep; write the weight as it is used"
            )
        changes["axis"] = axes[0]
    draft = editor.draft(Region(codes, y, (decode, node)))
    moved = draft.node(node.op_type, [codes, *node.inputs[1:]], dict(node.attributes))
    array = constant_expression(moved)
    if array is None:
        draft.discard()
        raise Stuck(f"what {title(node)} gives depends on data")
    operands = [draft.constant(array, "codes"), *decode.inputs[1:]]
    decoded = draft.copy(decode, operands, changes)
    draft.giving(decoded).commit()
    facts[decoded] = facts.get(y, UNKNOWN)


_OPSET_OF_BLOCKS = 21


def fold_blocks(model: Model, exact: Exactness, limit: int, report: Report) -> None:
    """Store constant MXQuantizeDequantize and BFPQuantizeDequantize as codes and scales.

    The codes are the results of the operator, divided by the power of two of their block. The
    results are compared with what DequantizeLinear decodes.
    """
    nodes = [node for node in model.nodes() if block_format(node) and _data(node) is not None]
    imports = versions_of(model.ir.opset_imports)

    def read(node: ir.Node) -> Rebuild | Refusal | None:
        form, x = block_format(node), _data(node)
        return None if form is None or x is None else _folded(node, form, x, imports)

    rebuild(model, read_all(model, nodes, read), exact, report, limit=limit)


def _data(node: ir.Node) -> Array | None:
    return constant_expression(node.inputs[0])


def _folded(
    node: ir.Node, form: BlockFormat, x: Array, imports: dict[str, int]
) -> Rebuild | Refusal:
    if x.dtype != np.float32 or not np.isfinite(x).all() or x.size < 2:
        return Refusal(
            node,
            "its weight is not float32, or it has infinities, NaN or one element; leave it: "
            "-p lower-vendor-operators writes the operator in standard ones",
        )
    axis = form.axis % x.ndim
    data = node.inputs[0]
    y = compute(node, imports, {} if data is None else {data: x})
    scale = np.ldexp(form.unit, _exponents(x, axis, form.size))
    rows = np.repeat(scale, form.size, axis).take(range(x.shape[axis]), axis)
    codes = codes_of(y / rows, form.kind)
    attributes = {"axis": axis, "block_size": form.size}
    if scale.size == 1:  # runtimes refuse blocks of a single scale
        scale, attributes = scale.reshape(()), {"axis": 1, "block_size": 0}
    same = dequantize_linear(codes, scale, None, **attributes, output_dtype=ir.DataType.UNDEFINED)
    verdict = Verdict(_level(y, same), Method.CONSTANT, reason="the codes give other values")
    if verdict.exactness is not Exactness.DIFFERENT:
        zeros = int(np.count_nonzero(y.view(np.uint32) != same.view(np.uint32)))
        verdict = Verdict(verdict.exactness, Method.CONSTANT, zero_sign_inputs=zeros)

    def write(draft: Draft) -> ir.Value:
        operands = [draft.constant(codes, "codes"), draft.constant(scale, "scale")]
        return draft.node("DequantizeLinear", operands, attributes, dtype=ir.DataType.FLOAT)

    return Rebuild(node, (node,), verdict, write, max(_OPSET_OF_BLOCKS, QDQ_SINCE[form.kind]))


def _exponents(x: Array, axis: int, size: int) -> Array:
    """Return the exponent of the largest magnitude of each block, at least -127."""
    largest = np.maximum.reduceat(np.abs(x), np.arange(0, x.shape[axis], size), axis)
    exponents = np.where(largest > 0, np.frexp(largest)[1] - 1, -127)
    return np.maximum(exponents, -127)


def _level(y: Float32, same: Float32) -> Exactness:
    if np.array_equal(y.view(np.uint32), same.view(np.uint32)):
        return Exactness.BITS
    return Exactness.VALUES if np.array_equal(y, same) else Exactness.DIFFERENT


_CODES_STORED = Verdict(Exactness.BITS, Method.CONSTANT, reason="its codes are stored")


def fold_constant_codes(model: Model, report: Report) -> None:
    """Store the codes of a QuantizeLinear of a constant, if no DequantizeLinear decodes them."""
    editor = Editor(model.ir)
    for node in list(model.nodes("QuantizeLinear")):
        x, y = node.inputs[0], node.outputs[0]
        weight = constant_stream(x)
        is_lone = weight is not None and isinstance(site_of(node), Refusal)
        if x is None or weight is None or not is_lone or y.is_graph_output():
            continue
        try:
            codes = evaluate((node,), x, y, weight.array())
        except QGraphError:
            continue
        report.sites.append(entry(node, SiteStatus.CHANGED, verdict=_CODES_STORED))
        store(editor, y, codes)


def store(editor: Editor, y: ir.Value, array: Array) -> None:
    """Replace the result of a node by a constant, and remove nodes without users."""
    node, constant = y.producer(), ir.val("codes", const_value=ir.Tensor(array))
    if node is None:
        return
    y.replace_all_uses_with(editor.place(constant, node, node.graph, y.name or "quantized"))
    for unused in remove_unused([node]):
        remove_constant(unused)
