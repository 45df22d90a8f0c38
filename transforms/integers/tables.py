"""Lowering of operators of com.microsoft that map or average codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.edit import Draft, Operand
from qgraph.graph.schema import MICROSOFT
from qgraph.graph.scopes import inputs_of
from qgraph.numerics import Array
from qgraph.ops.composite import cast
from qgraph.ops.dispatch import kernel_for
from qgraph.ops.integer.codes import averages_all, recode
from qgraph.ops.integer.definitions import (
    MOST_ELEMENTS,
    read_average,
    read_joined,
    read_windows,
    spatial_sizes,
)
from qgraph.ops.integer.forms import compare_tables, unproved
from qgraph.ops.integer.kernels import code_kernel
from qgraph.ops.integer.products import read_encoding, read_single, refuse_references
from qgraph.ops.integer.sums import Factor
from qgraph.quantizers.dialects.dialect import Refusal
from qgraph.transforms.drafts.rebuilding import Rebuild, no_operator

Lowered = Rebuild | Refusal
Encoding = tuple[Array, Array]
"""Scale and zero point of the result."""

_REAL = ir.DataType.FLOAT
_OPSET, _OPSET_OF_NEGATIVE_INDICES, _OPSET_OF_PADS, _OPSET_OF_AXES = 10, 11, 11, 13
_AS_REALS = (
    "-p lower-integer-operators{form=qdq,exact=near}, or convert --exact near, writes a float "
    "operator between DequantizeLinear and QuantizeLinear"
)

_RUNS = "; ONNX Runtime computes the node, also with --backend numpy"

_SAME = Verdict(
    Exactness.BITS, Method.CONGRUENCE, reason="defined by DequantizeLinear and QuantizeLinear"
)


def lower_function(node: ir.Node, *, reals: bool) -> Lowered | None:
    """Return the lowering of a node, exact or with real numbers; None for other operators.

    Raises:
        OperatorError: a parameter or a size is not constant.
    """
    lower = _LOWERED.get(node.op_type) if node.domain == MICROSOFT else None
    if lower is None:
        return None
    refuse_references(node)
    return lower(node, reals)


def _joined(node: ir.Node, reals: bool) -> Lowered:
    return Rebuild(node, (node,), _SAME, read_joined(node), _OPSET)


def _activation(node: ir.Node, reals: bool) -> Lowered:
    """Write an activation as a table; for a LeakyRelu, the form on real numbers may be equal.

    ONNX does not say how a Sigmoid is rounded.
    """
    x, encoding = _read(node)
    name = node.op_type.removeprefix("QLinear")
    attributes = {k: v.value for k, v in node.attributes.items() if k == "alpha"}
    # The order of bytes: negative codes are indices from the end.
    every = np.arange(256).astype(np.uint8).view(x.dtype)
    table = np.asarray(code_kernel(node)(every, *x.stored_parameters, *encoding)[0])
    verdict = unproved("runtimes approximate Sigmoid, codes may differ by a step")
    if name == "LeakyRelu":
        plain = ir.node(name, [ir.val("x")], attributes, outputs=[ir.val("y")])
        compute = kernel_for(plain, {"": 16})
        with np.errstate(all="ignore"):
            codes = recode(every, *x.stored_parameters, *encoding, lambda r: compute(r)[0])
        verdict = compare_tables(codes, table, "codes")
    if reals or verdict.reaches(Exactness.BITS):
        return _by_reals(node, x, encoding, name, attributes, verdict)

    def write(draft: Draft) -> Operand:
        index = cast(draft, x.codes, ir.DataType.INT32)
        return draft.node("Gather", [draft.constant(table, "table"), index], {"axis": 0})

    verdict = Verdict(Exactness.BITS, Method.EXHAUSTIVE, reason="a table of all 256 codes")
    return Rebuild(node, (node,), verdict, write, _OPSET_OF_NEGATIVE_INDICES)


def _softmax(node: ir.Node, reals: bool) -> Lowered:
    x, encoding = _read(node)
    if not reals:
        reason = f"it sums powers from a table in float32, in sequence; {_AS_REALS}"
        return no_operator(node, reason)
    step = encoding[0]
    whole = np.float32(1) / step
    if whole != np.floor(whole):
        reason = (
            f"it rounds 1 / {step:g} = {whole:g}, the number of steps in 1, down to "
            f"{np.floor(whole):g}, which QuantizeLinear does not{_RUNS}"
        )
        return no_operator(node, reason)
    rank = None if x.codes.shape is None else len(x.codes.shape)
    axis = node.attributes.get_int("axis", -1)
    is_last = axis == -1 or (rank is not None and axis == rank - 1)
    if node.attributes["opset"].as_int() < _OPSET_OF_AXES and not is_last:
        reason = f"it runs over several axes at once, Softmax since opset 13 over one{_RUNS}"
        return no_operator(node, reason)
    verdict = unproved("powers and their sums are rounded differently")
    return _by_reals(node, x, encoding, "Softmax", {"axis": axis}, verdict, _OPSET_OF_AXES)


def _global_average_pool(node: ir.Node, reals: bool) -> Lowered:
    """Average whole images: ``m * sum (x - z_x)`` with ``m = s_x / (s_y * n)``."""
    if reals:
        x, (step, zero) = _read(node)
        if node.attributes.get_int("channels_last", 0):
            raise OperatorError(f"{where(node)}: GlobalAveragePool has no channels_last.")
        verdict = unproved("sums are rounded in another order, codes may differ by a step")
        return _by_reals(node, x, (step, zero), "GlobalAveragePool", {}, verdict)
    count, write = read_average(node)
    reason = f"sums of at most {count * 255} are exact in float32"
    verdict = Verdict(Exactness.BITS, Method.CONGRUENCE, reason=reason)
    return Rebuild(node, (node,), verdict, write, _OPSET_OF_AXES)


def _average_pool(node: ir.Node, reals: bool) -> Lowered:
    """Average windows.

    AveragePool leaves the order of its additions open; the exact form adds the elements of a window
    one after the other, each a Slice of the image.
    """
    x, (step, zero) = _read(node)
    get = node.attributes.get_int
    if get("channels_last", 0):
        return no_operator(node, f"AveragePool has no channels_last{_RUNS}")
    if reals and get("count_include_pad", 0) != 0 and get("ceil_mode", 0) != 0:
        reason = (
            "with ceil_mode it counts elements beyond the padding, which AveragePool does not; "
            "form=exact writes it in exact sums"
        )
        return no_operator(node, reason)
    if reals:
        attributes = {k: v.value for k, v in node.attributes.items() if k != "channels_last"}
        verdict = unproved(
            "it adds the zero point before rounding and the form with real numbers after it, and "
            "the order of the additions is undefined"
        )
        return _by_reals(node, x, (step, zero), "AveragePool", attributes, verdict)
    if averages_all(node, spatial_sizes(node)):
        return _global_average_pool(node, False)
    size, write = read_windows(node)
    if size > MOST_ELEMENTS:
        what = f"windows of more than {MOST_ELEMENTS} elements"
        return no_operator(node, f"{what} have no exact form; {_AS_REALS}")
    reason = f"the {size} elements of a window are added in their order"
    verdict = Verdict(Exactness.BITS, Method.CONGRUENCE, reason=reason)
    return Rebuild(node, (node,), verdict, write, _OPSET_OF_PADS)


def _read(node: ir.Node) -> tuple[Factor, Encoding]:
    """Read ``x, s_x, z_x, s_y, z_y``: codes, and scale and zero point of the result."""
    x, s_x, z_x, s_y, z_y = inputs_of(node, 5)
    codes = read_single(node, x, s_x, z_x, z_y)
    return codes, read_encoding(node, s_y, z_y, codes.dtype)


def _by_reals(
    node: ir.Node,
    x: Factor,
    encoding: Encoding,
    name: str,
    attributes: dict[str, Any],
    verdict: Verdict,
    opset: int = _OPSET,
) -> Rebuild:
    """Return the lowering of a node to an operator on real numbers between DQ and Q."""

    def write(draft: Draft) -> Operand:
        y = draft.node(name, [x.draft_reals(draft)], attributes, dtype=_REAL)
        return draft.node("QuantizeLinear", [y, *encoding])

    return Rebuild(node, (node,), verdict, write, opset)


_LOWERED: dict[str, Callable[[ir.Node, bool], Lowered]] = {
    "QLinearAveragePool": _average_pool,
    "QLinearConcat": _joined,
    "QLinearGlobalAveragePool": _global_average_pool,
    "QLinearLeakyRelu": _activation,
    "QLinearSigmoid": _activation,
    "QLinearSoftmax": _softmax,
    "QLinearWhere": _joined,
}
