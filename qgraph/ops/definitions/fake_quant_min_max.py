"""FakeQuantWithMinMaxVars of TensorFlow, which tf2onnx converts only if it has 8 bits."""

from __future__ import annotations

import onnx_ir as ir

from qgraph.graph.edit import Draft, Operand
from qgraph.ops import pieces
from qgraph.ops.composite import composite

_MOST_BITS = 16


_REMARK = (
    "an empty range gives NaN here, and zeros in TensorFlow; a build of TensorFlow may fuse a "
    "product with the difference after it, which moves results next to ties"
)


@composite("FakeQuantWithMinMaxVarsPerChannel", "", remark=_REMARK)
@composite("FakeQuantWithMinMaxVars", "", remark=_REMARK)
def fake_quant_with_min_max_vars(draft: Draft, node: ir.Node) -> Operand:
    """Write ``floor((clip(x, low, high) - low) / scale - origin + 0.5) * scale``.

    Codes are ``first = narrow_range`` to ``last = 2**num_bits - 1``. The range from ``min`` to
    ``max`` is moved first, so that 0 is one of its levels::

        scale = (max - min) / (last - first)
        z = round(clip(first - min / scale, first, last))        halves up
        low, high = (first - z) * scale, (last - z) * scale

    The quotient is a product with ``1 / scale``, and ``origin`` is ``floor(-low / scale + 0.5)``.
    Ranges of channels are those of the last axis.

    Source: TensorFlow 2.21, by reading and running its CPU kernels.
    """
    bits = node.attributes.get_int("num_bits", 8)
    if not 2 <= bits <= _MOST_BITS:
        raise ValueError(f"num_bits is {bits}, expected 2 to {_MOST_BITS}. Correct the exporter")
    x, least, most = (pieces.operand(node, index) for index in range(3))
    op, first = draft.op, float(bool(node.attributes.get_int("narrow_range", 0)))
    last = 2.0**bits - 1
    scale = op.Div(op.Sub(most, least), last - first)
    z = op.Min(op.Max(op.Sub(first, op.Div(least, scale)), first), last)
    whole = op.Floor(z)
    z = op.Where(op.GreaterOrEqual(op.Sub(z, whole), 0.5), op.Add(whole, 1.0), whole)
    low, high = (op.Mul(op.Sub(end, z), scale) for end in (first, last))
    inverse = op.Div(1.0, scale)
    origin = op.Floor(op.Add(op.Mul(op.Neg(low), inverse), 0.5))
    steps = op.Mul(op.Sub(op.Max(op.Min(x, high), low), low), inverse)
    return op.Mul(op.Floor(op.Add(op.Sub(steps, origin), 0.5)), scale)
