"""The pass ``keep-roundings``: keep runtimes from dropping the roundings of quantizers."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.edit import Draft, Editor, Region
from qgraph.inventory.layers import quantized_layers
from qgraph.inventory.openvino_traps import (
    stripped_decoders,
    stripped_fake_quantizes,
    unrounded_sums,
)
from qgraph.model import Model
from qgraph.reports import Report
from qgraph.transforms.base import Transform, escaped, transform
from qgraph.transforms.drafts.choice import label
from qgraph.transforms.drafts.rebuilding import replace_node
from qgraph.transforms.simpler_ranges import SplitFakeQuantize

_SAME = Verdict(Exactness.BITS, Method.CONSTANT)


@transform("keep-roundings")
class KeepRoundings(Transform):
    """Prevent a runtime from dropping the roundings of quantizers, or whole quantizers.

    1. ``Add(Q(Conv(x)), u) -> Add(Q(LeakyRelu<alpha=1>(Conv(x))), u)`` before another quantizer,
       also with Relu and Clip between Conv and ``Q``; likewise Sub.
    2. ``DequantizeLinear(c) -> DequantizeLinear(Identity(c))`` for codes ``c`` of 16 bits that a
       QuantizeLinear computes.
    3. A FakeQuantize with 65536 levels is split, as ``split-fake-quantize`` does.

    None of this changes a value. Without the first one, OpenVINO clamps the result of the
    convolution, but rounds only the sum. Without the others, it removes the quantizer.
    """

    preserves: ClassVar[Exactness] = Exactness.VALUES

    def apply(self, model: Model, report: Report) -> None:
        """Insert a LeakyRelu before, or an Identity inside, each of these quantizers."""
        editor = Editor(model.ir)
        layers = {layer.node for layer in quantized_layers(model.ir)}
        sums = list(unrounded_sums(model.ir.graph, layers))
        for x in (data for each in sums for _, data in each.operands):
            (reader,) = x.consumers()
            draft = _draft(editor, x, reader)
            same = draft.node("LeakyRelu", [draft.x], {"alpha": 1.0}, dtype=x.dtype)
            _replace(reader, draft, same, report)
        for decoder in list(stripped_decoders(model.ir.graph)):
            codes = decoder.inputs[0]
            if codes is not None:
                draft = _draft(editor, codes, decoder)
                same = draft.node("Identity", [draft.x], dtype=codes.dtype)
                _replace(decoder, draft, same, report)
        fakes = [escaped(label(node)) for node in stripped_fake_quantizes(model.ir.graph)]
        if fakes:
            SplitFakeQuantize(nodes="|".join(fakes)).apply(model, report)


def _draft(editor: Editor, x: ir.Value, reader: ir.Node) -> Draft:
    return editor.draft(Region(x, reader.outputs[0], (reader,)))


def _replace(reader: ir.Node, draft: Draft, x: ir.Value, report: Report) -> None:
    """Let a node read a new value instead of its data, and report it."""
    draft.giving(draft.copy(reader, [x, *reader.inputs[1:]]))
    replace_node(reader, draft, _SAME, report, heirs=(reader.op_type,))
