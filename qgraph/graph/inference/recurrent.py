"""Recurrent networks."""

from __future__ import annotations

from qgraph.graph.inference.facts import Fact
from qgraph.graph.inference.rules import Call, Unknown, rule


def _recurrent(call: Call, data: int = 0) -> list[Fact]:
    """All states ``[steps, directions, batch, hidden]``, the last one, and for LSTM the cell."""
    x, hidden = call.shape(data), call.integer("hidden_size", 0)
    if len(x) != 3 or hidden < 1 or call.integer("layout", 0):
        raise Unknown
    directions = 2 if call.text("direction", "forward") == "bidirectional" else 1
    last = Fact(call[data].dtype, [directions, x[1], hidden])
    return [Fact(call[data].dtype, [x[0], directions, x[1], hidden]), last, last]


rule("GRU", "LSTM", "RNN")(_recurrent)
rule("DynamicQuantizeLSTM", domain="com.microsoft")(_recurrent)
