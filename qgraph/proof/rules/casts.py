"""Cast and CastLike between types of real numbers; to codes by their definition."""

from __future__ import annotations

from qgraph.ops.approximation import ARITHMETIC, rounded
from qgraph.proof.bounds.events import Operand
from qgraph.proof.bounds.quantity import stored
from qgraph.proof.bounds.rule import NodeCall, bound_rule
from qgraph.proof.bounds.traced import traced

_REALS = frozenset({*ARITHMETIC, "DOUBLE"})


@bound_rule("Cast", "CastLike")
def cast(call: NodeCall) -> Operand:
    """Cast: the numbers in another type, rounded once if it has fewer digits."""
    source, result = call.value(0), call.node.outputs[0]
    names = [value.dtype.name if value and value.dtype else "" for value in (source, result)]
    if not _REALS.issuperset(names):
        if call.node.op_type == "CastLike":
            raise call.refusal("codes")
        return traced(call)
    x = call.quantity(0)
    if x.value is not None:
        return stored(x, names[1])
    kinds = [ARITHMETIC.get(name) for name in names]
    if kinds[1] is None or kinds[0] is kinds[1]:
        return x
    return rounded(x, kinds[1])
