"""Operators that have no bound, by name, with the reason."""

from __future__ import annotations

from functools import partial

from qgraph.graph.schema import MICROSOFT, OpKey
from qgraph.proof.bounds.events import Operand
from qgraph.proof.bounds.rule import NodeCall, bound_rule

_CELLS = "errors of its steps add up along the sequence"
_DYNAMIC = "its scale is computed from the data"
_CONTROL = "which of its nodes run is decided by the data"
_CODES = "ONNX does not define how its result is computed from codes"

REFUSED: dict[str | OpKey, str] = {
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _CELLS),
    **dict.fromkeys(("If", "Loop", "Scan"), _CONTROL),
    "DynamicQuantizeLinear": _DYNAMIC,
    OpKey(MICROSOFT, "DynamicQuantizeMatMul"): _DYNAMIC,
    OpKey(MICROSOFT, "DynamicQuantizeLSTM"): _DYNAMIC,
    OpKey(MICROSOFT, "QAttention"): _CODES,
}
"""Why an operator has no bound."""


def _refuse(call: NodeCall, *, reason: str) -> Operand:
    raise call.refusal(reason)


for _operator, _reason in REFUSED.items():
    bound_rule(_operator)(partial(_refuse, reason=_reason))
