"""Lower operators on codes to standard operators, before quantizers are converted.

The inputs of QLinearConv, MatMulNBits and similar operators are parameters of quantizers. After
lowering, these are QuantizeLinear and DequantizeLinear nodes, which the dialects read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness
from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Editor
from qgraph.graph.opset.versions import ceiling, raise_ir_version, raise_opset
from qgraph.graph.schema import OpKey
from qgraph.graph.scopes import input_of
from qgraph.model import Model
from qgraph.quantizers.decompressed import decompressed
from qgraph.quantizers.movement import encoder_of, join_pairs
from qgraph.quantizers.on_codes import coded_tensors, may_be_on_codes
from qgraph.reasons import NO_OPERATOR
from qgraph.reports import Report, SiteStatus, operator_name
from qgraph.transforms.drafts.choice import DYNAMIC, STORED, entry, label, opset_reason, refused

_IN_SUMS = (
    "operators on codes were written in exact sums of whole numbers; with exact=near they become "
    "DequantizeLinear, the operator and QuantizeLinear, whose results may differ by a step near "
    "ties"
)


_NO_FORM = NO_OPERATOR(
    "no pass writes this operator in standard operators; ONNX Runtime computes it, also with "
    "--backend numpy"
)
_OF_CONSTANTS = NO_OPERATOR("its data are constant: apply -p fold-constants before")


@contextmanager
def parts_marked(model: Model, report: Report) -> Iterator[Callable[[], None]]:
    """Mark report entries of nodes that lowering writes as parts of the lowered operators.

    Nodes that stay as lowering wrote them have no entry.

    Yields: a function to call when all operators are lowered.
    """
    before, new = _labels(model), set[str]()
    first = len(report.sites)

    def mark(names: set[str]) -> None:
        parts = [replace(s, is_part=True) if s.node in names else s for s in report.sites[first:]]
        is_idle = [s.is_part and s.outcome is SiteStatus.KEPT and s.why != DYNAMIC for s in parts]
        report.sites[first:] = [s for s, idle in zip(parts, is_idle, strict=True) if not idle]

    def lowered() -> None:
        nonlocal first
        mark({site.node for site in report.sites[first:]} - before)
        if len(report.sites) > first:
            new.update(_labels(model) - before)
        first = len(report.sites)

    yield lowered
    mark(new)


def _labels(model: Model) -> set[str]:
    return {label(node) for node in model.nodes()}


def lower_operators(model: Model, exact: Exactness, opset: int | None, report: Report) -> None:
    """Write operators on codes in standard operators, and report each.

    A product becomes DequantizeLinear, Conv or MatMul, and QuantizeLinear if that is equal at the
    level ``exact``, and exact sums between quantizers of scale 1 otherwise.
    """
    nodes = [node for node in model.nodes() if may_be_on_codes(node)]
    if not nodes:
        return
    # What concerns operators on codes is imported only for models that have such operators.
    from qgraph.ops.integer.kernels import is_on_codes, is_unknown_on_codes
    from qgraph.ops.kernels.mat_mul_n_bits import is_mat_mul_n_bits

    if any(map(is_mat_mul_n_bits, nodes)):
        from qgraph.transforms.mat_mul_n_bits import LowerMatMulNBits

        LowerMatMulNBits(opset=opset).apply(model, report)
    if any(is_on_codes(node) or is_unknown_on_codes(node) for node in nodes):
        _lower_sums(model, exact, report)
    reported = {(site.node, site.op) for site in report.sites}
    for node in model.nodes():
        coded = next(coded_tensors(node), None)
        if coded is None or (label(node), operator_name(node)) in reported:
            continue
        if coded.is_dynamic:
            report.sites.append(entry(node, SiteStatus.KEPT, DYNAMIC))
        else:
            is_constant = node.op_type == "DynamicQuantizeLinear"
            report.sites.append(refused(node, _OF_CONSTANTS if is_constant else _NO_FORM))


def lower_decompressed(model: Model, opset: int | None, report: Report) -> None:
    """Replace Cast, Sub and Mul that decode constants by DequantizeLinear, and report each."""
    editor, limit = Editor(model.ir), ceiling(model.ir, opset)
    decisions = []
    for weight in decompressed(model.ir, limit):
        draft = weight.draft(editor)
        if draft.opset <= limit:
            decisions.append((weight, draft))
        else:
            draft.discard()
            reason = opset_reason("its DequantizeLinear", draft.opset, limit)
            report.sites.append(refused(weight.nodes[-1], reason))
    report.notes += raise_opset(model.ir, (draft.opset for _, draft in decisions))
    for weight, draft in decisions:
        node, form = weight.nodes[-1], draft.spelling
        report.sites.append(entry(node, SiteStatus.CHANGED, spelling=form, verdict=STORED))
    if decisions:
        editor.replace_all([draft for _, draft in decisions])
        raise_ir_version(model.ir)


def note_joined(model: Model, report: Report, *, constants: bool = False) -> None:
    """Move data movement from codes to after their DequantizeLinear, and report the number.

    Decoding ``constants`` before they move takes more memory.
    """
    if number := join_pairs(model.ir, constants=constants):
        report.notes.append(f"data movement was moved after {number} DequantizeLinear")


def _lower_sums(model: Model, exact: Exactness, report: Report) -> None:
    from qgraph.ops.integer.kernels import is_on_codes
    from qgraph.transforms.lowered_operators import LowerIntegerOperators, SumForm

    # Of both forms at once, codes would be decoded at some places and be numbers at others.
    trial = Report()
    LowerIntegerOperators(form=SumForm.QDQ, exact=exact).apply(Model(model.ir.clone()), trial)
    # Of operators without scales, the exact form is as short.
    without = {OpKey("", "ConvInteger"), OpKey("", "MatMulInteger")}
    has_scales = any(is_on_codes(n) and OpKey.of(n) not in without for n in model.nodes())
    is_equal = has_scales and not trial.count(SiteStatus.REFUSED)
    form = SumForm.QDQ if is_equal else SumForm.EXACT
    step = Report()
    LowerIntegerOperators(form=form, exact=exact).apply(model, step)
    if has_scales and form is SumForm.EXACT and step.count(SiteStatus.CHANGED):
        step.notes.append(_IN_SUMS)
    report.sites += step.sites
    report.notes += step.notes
    editor = Editor(model.ir)
    editor.replace_all([_decoded(editor, *numbers) for numbers in _numbers(model)])


_Numbers = tuple[ir.Node, tuple[ir.Node, ...], int, ir.DataType]
"""A QuantizeLinear, the nodes that convert its codes to numbers, the zero point, and the type."""


def _numbers(model: Model) -> Iterator[_Numbers]:
    """Yield each Cast of the codes of a QuantizeLinear, with a Sub of its zero point if present."""
    for number in model.nodes("Cast"):
        encode = encoder_of(number.inputs[0])
        zero = None if encode is None else _zero_point(encode)
        dtype = ir.DataType(number.attributes.get_int("to", 0))
        if encode is None or zero is None or dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
            continue
        users = number.outputs[0].consumers()
        if dtype is ir.DataType.FLOAT and zero and all(_takes(node, zero) for node in users):
            for sub in users:
                yield encode, (number, sub), 0, dtype
        else:
            yield encode, (number,), zero, dtype


def _takes(node: ir.Node, zero: int) -> bool:
    """Return whether a node is a Sub of the zero point."""
    taken = constant_expression(node.inputs[1]) if node.op_type == "Sub" else None
    return taken is not None and taken.size == 1 and bool(taken == zero)


def _zero_point(encode: ir.Node) -> int | None:
    """Return the zero point of a QuantizeLinear as one number; None if it has several."""
    point = input_of(encode, 2)
    if point is None:
        return 0
    zero = constant_expression(point)
    return None if zero is None or zero.size != 1 else int(zero.reshape(()))


def _decoded(
    editor: Editor, encode: ir.Node, nodes: tuple[ir.Node, ...], added: int, dtype: ir.DataType
) -> Draft:
    """Return a DequantizeLinear of scale 1, plus ``added``: exact, as all are whole numbers."""
    from qgraph.ops.composite import cast, region_of
    from qgraph.ops.integer.sums import without_trailing_none

    draft = editor.draft(region_of(*nodes))
    scale = constant_expression(encode.inputs[1])
    ones = np.ones(() if scale is None else (1,) * scale.ndim, np.float32)
    operands = without_trailing_none([nodes[0].inputs[0], ones, input_of(encode, 2)])
    y = draft.node("DequantizeLinear", operands, dtype=ir.DataType.FLOAT)
    y = cast(draft, y, dtype)
    if added:
        y = draft.node("Add", [y, draft.constant(np.asarray(added, dtype.numpy()))], dtype=dtype)
    return draft.giving(y)
