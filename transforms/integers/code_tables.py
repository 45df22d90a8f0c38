"""Operators of com.microsoft that look codes up or normalize them, in standard ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.dialects.dialect import Refusal
from qgraph.errors import OperatorError, where
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.execution.executor import kernel_for
from qgraph.foreign.kernels import MICROSOFT, foreign_kernel
from qgraph.foreign.operands import refuse_references
from qgraph.foreign.rescaling import compare_codes, unproved
from qgraph.foreign.tables import recode
from qgraph.graph.edit import Draft
from qgraph.graph.edit import Operand as Drafted
from qgraph.kernels.standard import Kernel
from qgraph.transforms.integers.coded import Coded, coded_result, read_one
from qgraph.transforms.integers.integer_sums import cast
from qgraph.transforms.rebuilding import Rebuild

Array = npt.NDArray[Any]
Lowered = Rebuild | Refusal

_REAL = ir.DataType.FLOAT
_OPSET, _OPSET_OF_NEGATIVE_INDICES, _OPSET_OF_SOFTMAX = 10, 11, 13
_SAME = Verdict(
    Exactness.BITS, Method.CONGRUENCE, reason="defined by DequantizeLinear and QuantizeLinear"
)


def lower_code_table(node: ir.Node, *, reals: bool) -> Lowered | None:
    """Return how to spell a node, exactly or with real numbers; None if it is none of these.

    Raises:
        OperatorError: a parameter is only known at run time.
    """
    lower = _LOWERED.get(node.op_type) if node.domain == MICROSOFT else None
    if lower is None:
        return None
    refuse_references(node)
    return lower(node, reals)


def _concat(node: ir.Node, reals: bool) -> Lowered:
    s_y, z_y, *rest = node.inputs
    parts = [Coded(node, *rest[place : place + 3]) for place in range(0, len(rest), 3)]
    step, zero = coded_result(node, s_y, z_y, parts[0].dtype)
    axis = {"axis": node.attributes["axis"].as_int()}

    def write(draft: Draft) -> Drafted:
        y = draft.node("Concat", [each.decoded(draft) for each in parts], axis, dtype=_REAL)
        return draft.node("QuantizeLinear", [y, step, zero])

    return Rebuild(node, (node,), _SAME, write, _OPSET)


def _where(node: ir.Node, reals: bool) -> Lowered:
    values = [*node.inputs, *[None] * (9 - len(node.inputs))]
    condition, rest = values[0], values[1:]
    x, y = Coded(node, *rest[:3]), Coded(node, *rest[3:6])
    step, zero = coded_result(node, rest[6], rest[7], x.dtype)
    if condition is None:
        raise OperatorError(f"{where(node)}: its condition is missing, expected a tensor.")

    def write(draft: Draft) -> Drafted:
        chosen = draft.node("Where", [condition, x.decoded(draft), y.decoded(draft)], dtype=_REAL)
        return draft.node("QuantizeLinear", [chosen, step, zero])

    return Rebuild(node, (node,), _SAME, write, _OPSET)


def _activation(node: ir.Node, reals: bool) -> Lowered:
    x, step, zero = read_one(node)
    name = node.op_type.removeprefix("QLinear")
    kernel = foreign_kernel(node)
    if kernel is None:
        raise OperatorError(f"{where(node)}: there is no kernel.")
    # The order of bytes: negative codes are indices from the end.
    every = np.arange(256).astype(np.uint8).view(x.dtype)
    table = np.asarray(kernel(every, x.scale, x.zero, step, zero)[0])
    attributes = {k: v.value for k, v in node.attributes.items() if k == "alpha"}
    plain = _float_kernel(name, attributes)

    def apply(r: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        with np.errstate(all="ignore"):
            return np.asarray(plain(r)[0])

    verdict = compare_codes(recode(every, x.scale, x.zero, step, zero, apply), table)

    def write_reals(draft: Draft) -> Drafted:
        y = draft.node(name, [x.decoded(draft)], attributes, dtype=_REAL)
        return draft.node("QuantizeLinear", [y, step, zero])

    if reals or (name == "LeakyRelu" and verdict.reaches(Exactness.BITS)):
        return Rebuild(node, (node,), verdict, write_reals, _OPSET)

    def write(draft: Draft) -> Drafted:
        place = cast(draft, x.codes, ir.DataType.INT32)
        return draft.node("Gather", [draft.constant(table, "table"), place], {"axis": 0})

    looked_up = Verdict(Exactness.BITS, Method.EXHAUSTIVE, reason="a table of all 256 codes")
    return Rebuild(node, (node,), looked_up, write, _OPSET_OF_NEGATIVE_INDICES)


def _float_kernel(name: str, attributes: dict[str, Any]) -> Kernel:
    plain = ir.node(name, [ir.val("x")], attributes, outputs=[ir.val("y")])
    return kernel_for(plain, {"": 16})


def _softmax(node: ir.Node, reals: bool) -> Lowered:
    x, step, zero = read_one(node)
    if not reals:
        reason = "it sums powers from a table in float32, one after the other; form=qdq is near"
        return Refusal(node, f"{where(node)}: {reason}")
    whole = np.float32(1) / step
    if whole != np.floor(whole):
        reason = (
            f"it takes {np.floor(whole):g} for 1 / {step:g} = {whole:g}, the number of steps in 1, "
            "which QuantizeLinear does not"
        )
        return Refusal(node, f"{where(node)}: {reason}")
    rank = None if x.codes.shape is None else len(x.codes.shape)
    axis = node.attributes.get_int("axis", -1)
    last = axis == -1 or (rank is not None and axis == rank - 1)
    if node.attributes["opset"].as_int() < _OPSET_OF_SOFTMAX and not last:
        reason = "it runs over several axes at once; Softmax of opset 13 and later over one"
        return Refusal(node, f"{where(node)}: {reason}")

    def write(draft: Draft) -> Drafted:
        y = draft.node("Softmax", [x.decoded(draft)], {"axis": axis}, dtype=_REAL)
        return draft.node("QuantizeLinear", [y, step, zero])

    verdict = unproved("powers and their sums are rounded otherwise")
    return Rebuild(node, (node,), verdict, write, _OPSET_OF_SOFTMAX)


_LOWERED: dict[str, Callable[[ir.Node, bool], Lowered]] = {
    "QLinearConcat": _concat,
    "QLinearLeakyRelu": _activation,
    "QLinearSigmoid": _activation,
    "QLinearSoftmax": _softmax,
    "QLinearWhere": _where,
}
