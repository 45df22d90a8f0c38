"""The pass ``fold-constants``: compute constant operators on stored codes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.constants import constant_expression, constant_tensor
from qgraph.graph.edit import Editor, Region
from qgraph.graph.inference.rules import UNKNOWN, Fact
from qgraph.graph.inference.walk import RESHAPING, infer
from qgraph.graph.schema import LINEAR_DOMAINS
from qgraph.graph.scopes import nodes_of, owners
from qgraph.model import Model
from qgraph.ops.known_values import KnownValues
from qgraph.quantizers.movement import axis_before, axis_of, is_linear, linear_producer
from qgraph.reasons import UNSUITED_WEIGHT
from qgraph.reports import Report, SiteStatus
from qgraph.targets.layer import LAYERS
from qgraph.transforms.base import Transform, option, selects, transform
from qgraph.transforms.drafts.choice import entry, label, refused
from qgraph.transforms.weights.constant_codes import store
from qgraph.transforms.weights.output_scale import Stuck, title
from qgraph.transforms.weights.scaled_weights import present
from qgraph.transforms.weights.weighted_sums import OPERATORS

_DECODER = "DequantizeLinear"
_MOVES = RESHAPING | {"Identity", "Transpose"}
_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
_STORED = Verdict(Exactness.BITS, Method.CONSTANT)
_MOVED = Verdict(Exactness.BITS, Method.CONGRUENCE)


@transform("fold-constants")
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

    preserves: ClassVar[Exactness] = Exactness.BITS

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
                    report.sites.append(entry(node, SiteStatus.CHANGED, verdict=_STORED))
            for value in list(dict.fromkeys(_computed(nodes, known))):
                array, maker = known.array(value), value.producer()
                if array is not None and maker is not None:
                    store(editor, value, array)
                    report.sites.append(entry(maker, SiteStatus.CHANGED, verdict=_STORED))
        facts = dict(infer(model.ir))
        for node in list(model.nodes()):
            decode = _moved_decoder(node)
            if decode is None:
                continue
            try:
                _put_before(node, decode, facts, editor)
                report.sites.append(entry(node, SiteStatus.CHANGED, verdict=_MOVED))
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
