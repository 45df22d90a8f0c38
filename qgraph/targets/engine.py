"""Find the kernel of a target that accepts a layer, or the conditions that fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

import onnx_ir as ir

from qgraph.reasons import Cause, ExplainedReason
from qgraph.records import by_key, dataclass, field
from qgraph.targets import rules
from qgraph.targets.layer import (
    ANY,
    CodedOperand,
    Granularity,
    KernelRule,
    Loads,
    OperandRule,
    QuantizedLayer,
    TypeRule,
    ZeroPoint,
)
from qgraph.targets.profile import Profile, SlowForm
from qgraph.targets.rules import NodeForm, node_forms

_CODES = "codes"
"""Stands, in ``before``, for all operators through which codes pass."""


@dataclass(frozen=True)
class KernelMatch:
    """A kernel takes the layer.

    Attributes:
        unknown: conditions that the profile does not decide for the layer; the
            kernel takes the layer for certain if there are none.
        slower: forms like this one that were measured to be slower than others.
    """

    kernel: KernelRule
    unknown: tuple[ExplainedReason, ...] = ()
    slower: tuple[SlowForm, ...] = ()


@dataclass(frozen=True)
class NoKernel:
    """No kernel of the target takes the layer.

    Attributes:
        reasons: the failing conditions of the kernel that comes closest.
        kernel: that kernel; None if there is none for the operator.
        is_certain: whether the profile states this; if not, it does not describe such layers.
    """

    reasons: tuple[ExplainedReason, ...]
    kernel: KernelRule | None = None
    is_certain: bool = True


Answer: TypeAlias = tuple[bool | None, ExplainedReason]
"""Whether a condition holds, None if it is not known, and the reason where it does not."""


def kernel_of(
    layer: QuantizedLayer, profile: Profile, processor: str | None = None
) -> KernelMatch | NoKernel:
    """Return the first kernel of a target that takes a layer, or why none does.

    The processor is by default the one that the profile means.
    """
    unit = processor or profile.processor
    kernels = [each for each in profile.kernel if layer.op in each.operators]
    here = [each for each in kernels if not each.processors or unit in each.processors]
    kernels = here or kernels
    tried: list[tuple[KernelRule, tuple[ExplainedReason, ...]]] = []
    for kernel in kernels:
        if kernel.exists is Loads.NO:
            continue
        answers = list(_answers(layer, kernel, profile, unit))
        failed, unknown = (
            tuple(reason for holds, reason in answers if holds is state) for state in (False, None)
        )
        if failed:
            tried.append((kernel, failed))
        elif kernel.exists is Loads.UNKNOWN:
            return NoKernel((rules.NOT_RECORDED(kernel.reason),), kernel, is_certain=False)
        else:
            slower = tuple(form for form in profile.slower if _is_slow(layer, form))
            return KernelMatch(kernel, unknown, slower)
    tried = [each for each in tried if each[0].exists is Loads.YES]
    if tried:
        kernel, failed = min(tried, key=lambda each: len(each[1]))
        return NoKernel(failed, kernel)
    for kernel in kernels:
        if kernel.exists is Loads.NO:
            return NoKernel((rules.NO_KERNEL(kernel.reason),), kernel)
    text = f"the profile of {profile.name} does not say whether it has a kernel for {layer.op}"
    return NoKernel((rules.NOT_RECORDED(text),), is_certain=False)


def _answers(
    layer: QuantizedLayer, kernel: KernelRule, profile: Profile, processor: str
) -> Iterator[Answer]:
    if kernel.processors:
        listed = ", ".join(kernel.processors)
        yield (
            processor in kernel.processors,
            rules.PROCESSOR(f"{kernel.id} is listed for {listed} only"),
        )
    yield from _form(layer, kernel)
    yield from _types(layer, kernel)
    yield from _operand("data", layer.x, kernel.x, profile)
    yield from _operand("weights", layer.w, kernel.w, profile)
    if layer.y is not None:
        yield from _operand("result", layer.y, kernel.y, profile)
    yield from _bias(layer, kernel)
    yield from _result(layer, kernel, profile)


def _form(layer: QuantizedLayer, kernel: KernelRule) -> Iterator[Answer]:
    if kernel.groups is not None:
        yield layer.group in kernel.groups, rules.ATTRIBUTES(f"{layer.group} {layer.op}")
    if kernel.ranks is not None and layer.rank is not None:
        yield layer.rank in kernel.ranks, rules.ATTRIBUTES(f"data of {layer.rank} axes")
    for name, allowed in kernel.attributes.items():
        value = layer.attributes.get(name)
        if value is not None:
            yield value in allowed, rules.ATTRIBUTES(f"{name} is {value:g}")


def _types(layer: QuantizedLayer, kernel: KernelRule) -> Iterator[Answer]:
    """Yield whether a combination of types fits, with the failures of the closest one."""
    result = "FLOAT" if layer.y is None else layer.y.codes
    close = None
    for rule in kernel.types:
        if not (_in(layer.x.codes, rule.x) and _in(layer.w.codes, rule.w)):
            continue
        if layer.y is not None and not _in(result, rule.y):
            continue
        indirect = _indirect(layer, rule)
        if indirect is None:
            return
        close = close or indirect
    if close is not None:
        yield False, rules.INDIRECT(close)
        return
    text = f"{layer.op} of {layer.x.codes} and {layer.w.codes}"
    yield False, rules.TYPES(text if layer.y is None else f"{text} to {result}")


def _indirect(layer: QuantizedLayer, rule: TypeRule) -> str | None:
    """Return the quantizer that must be direct and is not."""
    for name, operand in (("x", layer.x), ("y", layer.y)):
        if rule.direct in (name, "both") and operand is not None and not operand.is_direct:
            side = "before" if name == "x" else "behind"
            return f"{operand.codes} {side} the layer: {operand.written} is not a direct pair"
    return None


def _operand(
    what: str, operand: CodedOperand, rule: OperandRule, profile: Profile
) -> Iterator[Answer]:
    def asks(allowed: Sequence[object] | None, value: object, cause: Cause, text: str) -> Answer:
        return None if allowed is None else _in(value, allowed), cause(f"{what}: {text}")

    if operand.granularity is not Granularity.TENSOR:
        text = f"one scale per {operand.granularity}"
        yield asks(rule.granularity, operand.granularity, rules.GRANULARITY, text)
    if operand.granularity is Granularity.AXIS and rule.granularity is not None:
        text = f"scales differ along the {operand.axis} axis"
        yield asks(rule.axis, operand.axis, rules.AXIS, text)
    if operand.granularity is Granularity.BLOCK and rule.blocks is not None:
        yield _fits_blocks(operand, rule), rules.BLOCKS(f"{what}: blocks of {operand.block}")
    if operand.zero not in (ZeroPoint.NONE, ZeroPoint.ZERO):
        zero = operand.zero
        if zero is ZeroPoint.MIDDLE and zero not in (rule.zero or ()):
            zero = ZeroPoint.EQUAL
        yield asks(rule.zero, zero, rules.ZERO_POINT, _ZEROS[zero])
    if rule.zero_input:
        yield operand.has_zero_input, rules.ZERO_INPUT(f"{what}: no zero point is stated")
    if rule.written is None:
        yield None, rules.WRITTEN(f"{what}: {operand.written}")
    else:
        fits = any(fnmatchcase(operand.written, form) for form in rule.written)
        yield fits, rules.WRITTEN(f"{what}: {operand.written}")
    if "FakeQuantize" in operand.written:
        yield asks(rule.levels, operand.levels, rules.LEVELS, f"{operand.levels} levels")
    if rule.scale_types is not None:
        text = f"scales of {operand.scale}"
        yield asks(rule.scale_types, operand.scale, rules.SCALE, text)
    for name in rule.scale:
        holds, word = getattr(operand, _SCALES[name]), _WORDS.get(name, name)
        yield holds, rules.SCALE(f"{what}: a scale is not {word}")
    if rule.constant != ANY:
        text = "codes are data" if rule.constant == "yes" else "codes are constant"
        yield operand.is_constant == (rule.constant == "yes"), rules.CONSTANT(f"{what}: {text}")
    for each in operand.before:
        text = f"{each} between quantizer and layer"
        passes = each in profile.passing and _CODES in (rule.before or ())
        holds, reason = asks(rule.before, each, rules.BEFORE, text)
        yield passes or holds, reason


def _fits_blocks(operand: CodedOperand, rule: OperandRule) -> bool:
    blocks = rule.blocks
    return blocks is None or (
        (not blocks.sizes or operand.block in blocks.sizes)
        and operand.block >= blocks.least
        and not (blocks.power_of_two and operand.block & (operand.block - 1))
        and (not blocks.axis or operand.axis in blocks.axis)
    )


def _bias(layer: QuantizedLayer, kernel: KernelRule) -> Iterator[Answer]:
    bias, rule = layer.bias, kernel.bias
    if bias is None:
        return
    holds = None if rule.types is None else _in(bias.codes, rule.types)
    yield holds, rules.BIAS_TYPE(f"bias of {bias.codes}")
    if bias.codes == "FLOAT":
        return
    error = bias.scale_error
    text = "its scale is not known" if error is None else f"its scale is off by {error:.3g}"
    if rule.scale is None:
        yield None, rules.BIAS_SCALE(f"bias: {text}")
    elif rule.scale == "product":
        fits = error is not None and error <= rule.within
        near = bias.scale_gap is not None and bias.scale_gap <= rule.gap
        yield fits or near, rules.BIAS_SCALE(f"bias: {text}")


def _result(layer: QuantizedLayer, kernel: KernelRule, profile: Profile) -> Iterator[Answer]:
    rule, output = kernel.behind, kernel.output
    counted = [
        each
        for each in layer.behind
        if not (rule.moves and each.op in profile.passing)
        and each.op not in rule.first
        and not (each.is_redundant and _in(each.op, rule.redundant))
    ]
    text = f"no quantizer after {layer.op}"
    if layer.y is None:
        holds = None if output.quantizer is None else output.quantizer != "required"
        yield holds, rules.NO_QUANTIZER(text)
    elif output.quantizer == "none" and not counted:
        yield False, rules.QUANTIZED(f"a quantizer directly after {layer.op}")
    if rule.first:
        wanted = " or ".join(rule.first)
        is_first = bool(layer.behind) and layer.behind[0].op in rule.first
        yield is_first, rules.BEHIND(f"no {wanted} directly after {layer.op}")
    others = [each.op for each in layer.behind if each.op not in rule.first]
    if others and others[0] in rule.never:
        yield False, rules.BEHIND(f"{others[0]} directly after {layer.op}")
    for each in counted if layer.y is not None else ():
        holds = None if rule.operators is None else _in(each.op, rule.operators)
        yield holds, rules.BEHIND(f"{each.op} between {layer.op} and its quantizer")
    if layer.consumers > 1:
        holds = None if output.one_consumer is None else not output.one_consumer
        yield holds, rules.CONSUMERS(f"{layer.consumers} readers of the result")
    if layer.is_graph_output and layer.y is not None:
        yield output.graph_output, rules.GRAPH_OUTPUT("the result is an output of the model")


def _is_slow(layer: QuantizedLayer, form: SlowForm) -> bool:
    conditions: tuple[tuple[Sequence[object] | None, object], ...] = (
        (form.operators, layer.op),
        (form.groups, layer.group),
        (form.x_types, layer.x.codes),
        (form.w_types, layer.w.codes),
        (form.x_zero, layer.x.zero),
        (form.w_zero, layer.w.zero),
        (form.y_written, None if layer.y is None else layer.y.written),
    )
    return any(allowed is not None for allowed, _ in conditions) and all(
        allowed is None or _in(value, allowed) for allowed, value in conditions
    )


def _in(value: object, allowed: Sequence[object]) -> bool:
    return value in allowed or ANY in allowed


_ZEROS = {
    ZeroPoint.EQUAL: "a zero point other than 0",
    ZeroPoint.MIDDLE: "a zero point in the middle",
    ZeroPoint.DIFFER: "zero points that differ",
    ZeroPoint.FRACTION: "a zero point that is no whole number",
}
_SCALES = {
    "constant": "is_constant_scale",
    "positive": "is_positive",
    "power-of-two": "is_power_of_two",
}
"""Attributes of operands by properties of scales."""

_WORDS = {"power-of-two": "a power of two"}


@dataclass(frozen=True)
class Reason:
    """One reason, or remark, of a verdict.

    Attributes:
        loads: the verdict for this reason; ``yes`` for a remark.
        nodes: number of nodes with this reason; 0 for the model as a whole.
    """

    loads: Loads
    text: str
    nodes: int = 0
    example: str | None = None


@dataclass(frozen=True)
class RuntimeVerdict:
    """Whether a runtime can load a model.

    Attributes:
        runtime, knowledge: as in :class:`qgraph.targets.profile.Profile`.
        loads: the worst of all reasons.
        reasons: the worst first.
    """

    runtime: str
    knowledge: str
    loads: Loads
    reasons: list[Reason] = field(default_factory=list)


def runtimes_of(model: ir.Model, targets: Sequence[Profile]) -> list[RuntimeVerdict]:
    """Return for each runtime whether it can load ``model``.

    Nothing is loaded or run: the verdicts follow from rules about operators, types and versions.
    Parameters that are graph inputs too count as unknown; freeze them first.
    """
    forms = Counter(node_forms(model))
    return [_judge(target, model, forms) for target in targets]


def refused_nodes(model: ir.Model, target: Profile) -> set[str]:
    """Return the labels of the nodes that a runtime does not load."""
    forms = node_forms(model)
    return {form.label for form in forms if worst_of_node(target, form)[0] is Loads.NO}


def unloaded(target: Profile, forms: Iterable[NodeForm]) -> dict[tuple[Loads, str], list[NodeForm]]:
    """Return the nodes that a runtime may not load, by its answer and the reason."""
    read = (form for form in forms if not (form.inside and target.by_name))
    answers = ((worst_of_node(target, form), form) for form in read)
    return by_key((answer, form) for answer, form in answers if answer[1])


def _judge(target: Profile, model: ir.Model, forms: Mapping[NodeForm, int]) -> RuntimeVerdict:
    reasons = list(version_reasons(target, model.ir_version or 0, model.graph.opset_imports))
    reasons += [
        Reason(loads, text, sum(forms[form] for form in group), group[0].label)
        for (loads, text), group in unloaded(target, forms).items()
    ]
    order = [Loads.NO, Loads.UNKNOWN, Loads.YES]
    reasons.sort(key=lambda reason: order.index(reason.loads))
    return RuntimeVerdict(
        target.name, target.knowledge, reasons[0].loads if reasons else Loads.YES, reasons
    )


def version_reasons(target: Profile, version: int, imports: Mapping[str, int]) -> Iterable[Reason]:
    """Yield why a runtime may not read files of an IR version with some imports."""
    opset = imports.get("", imports.get("ai.onnx", 0))
    versions = target.versions
    low, high = versions.opsets or (opset, opset)
    if opset and not low <= opset <= high:
        yield Reason(versions.beyond, f"it takes opset {low} to {high}, the model has {opset}")
    if versions.ir_version is not None and version > versions.ir_version:
        yield Reason(
            versions.beyond,
            f"it reads files up to IR version {versions.ir_version}, the model has {version}",
        )


def worst_of_node(target: Profile, form: NodeForm) -> tuple[Loads, str]:
    """Return whether a runtime loads a node, and why not; an empty text without a reason."""
    if form.since > form.opset:
        what = f"codes of type {form.codes}" if not form.block else f"blocks of {form.codes}"
        return Loads.NO, f"{what} need opset {form.since}, the model has {form.opset}"
    fitting = (rule for rule in target.load if rule.fits(form))
    answers = ((rule.loads, rule.reason.format(**vars(form))) for rule in fitting)
    return next(answers, (Loads.YES, ""))
