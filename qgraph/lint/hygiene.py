"""Rules about superfluous or wrong parts of a model (QG7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError, UnsupportedError
from qgraph.graph.constants import constant_tensor
from qgraph.graph.scopes import graphs_of, producer_of
from qgraph.lint.facts import DECODE, QUANTIZE, Coder, ModelFacts, nodes_of_site
from qgraph.lint.rule import Found, LintFix, LintLevel, rule
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.ops.dispatch import evaluate
from qgraph.quantizers.dialects.dialect import Refusal
from qgraph.quantizers.on_codes import is_dynamic
from qgraph.quantizers.quantizer import Affine, Ranged
from qgraph.reasons import id_of
from qgraph.records import by_key
from qgraph.text import counted

ERROR, WARNING, INFO = LintLevel.ERROR, LintLevel.WARNING, LintLevel.INFO
_SHARED = 8
_ELEMENTWISE = frozenset(
    {"Abs", "Add", "Ceil", "Clip", "Div", "Exp", "Floor", "Max", "Min", "Mul", "Neg", "Relu"}
    | {"Sigmoid", "Sqrt", "Sub", "Tanh"}
)


@rule(
    "QG701",
    "double-quantizer",
    WARNING,
    fix=LintFix("move-quantizers{operators=QuantizeLinear}", "values"),
)
def double_quantizer(facts: ModelFacts) -> Iterator[Found]:
    """Two equal quantizers follow each other."""
    for encoder in facts.encoders:
        first = producer_of(encoder.node.inputs[0])
        if first is None or first.op_type != DECODE or encoder.scale is None:
            continue
        earlier = facts.coder(first)
        if facts.encoder_of(earlier) is not None and earlier.is_like(encoder):
            yield Found((encoder.node, first), "the second quantizer changes nothing")
    for site in facts.sites:
        node = site.x.producer()
        earlier_site = facts.site_ending.get(site.x)
        if earlier_site is None or node is None or site.dialect == "qdq":
            continue
        if _same_parameters(site.nodes, earlier_site.nodes) and site.weight is None:
            nodes = nodes_of_site(site, earlier_site.root)
            yield Found(nodes, "the second quantizer changes nothing", is_fixable=False)


@rule("QG702", "duplicate-quantizer", INFO)
def duplicate_quantizer(facts: ModelFacts) -> Iterator[Found]:
    """A value is quantized twice in the same way."""
    coders = ((encoder.node.inputs[0], encoder) for encoder in facts.encoders)
    for encoders in by_key(pair for pair in coders if _is_shared(pair[0])).values():
        for index, encoder in enumerate(encoders[1:], 1):
            same = next((e for e in encoders[:index] if e.is_like(encoder)), None)
            if same is not None and encoder.scale is not None:
                yield Found((encoder.node, same.node), "both give the same codes: one is enough")
    others = facts.of_qonnx("Quant", "IntQuant", "BipolarQuant", "FloatQuant")
    for nodes in by_key((n.inputs[0], n) for n in others if _is_shared(n.inputs[0])).values():
        for index, node in enumerate(nodes[1:], 1):
            twin = next((n for n in nodes[:index] if _same_parameters((n,), (node,))), None)
            if twin is not None:
                yield Found((node, twin), "both give the same values: one is enough")


def _is_shared(value: ir.Value | None) -> bool:
    return value is not None and len(value.uses()) > 1


@rule("QG703", "unused-result", INFO)
def unused_result(facts: ModelFacts) -> Iterator[Found]:
    """No node reads the result of a node."""
    for node in facts.nodes:
        outputs = [value for value in node.outputs if value.name]
        if not outputs or any(value.uses() or value.is_graph_output() for value in outputs):
            continue
        if not graphs_of(node) and node.op_type != "Constant":
            yield Found((node,), f"the result of {node.op_type} is not read, and no output")


@rule("QG704", "constants-as-inputs", WARNING)
def constants_as_inputs(facts: ModelFacts) -> Iterator[Found]:
    """Initializers are listed as inputs of the model."""
    number = len(facts.overridable)
    if number:
        text = (
            f"{number} initializers are inputs too, such as {facts.overridable[0]!r}: runtimes "
            "do not treat them as constants"
        )
        yield Found((), text, {"count": number, "names": facts.overridable[:_SHARED]})


@rule("QG705", "redundant-activation", INFO)
def redundant_activation(facts: ModelFacts) -> Iterator[Found]:
    """A Relu or Clip before a quantizer has no effect."""
    for layer in facts.layers:
        for node, behind in zip(layer.follows, layer.description.behind, strict=False):
            if behind.is_redundant and node.op_type in ("Relu", "Clip"):
                text = f"{node.op_type} changes no code: the quantizer clips as much"
                yield Found((node, layer.node), text)


@rule("QG706", "idle-operator", INFO)
def idle_operator(facts: ModelFacts) -> Iterator[Found]:
    """An operator passes its data on unchanged."""
    for node in facts.of("Identity", "Dropout"):
        value = node.inputs[0]
        if node.op_type == "Dropout" and len(node.inputs) > 2:
            continue  # its training mode is an input
        at_ends = node.outputs[0].is_graph_output() or value is None or value.is_graph_input()
        if not at_ends and constant_tensor(value) is None:
            yield Found((node,), f"{node.op_type} does nothing, and hides what is before it")
    for node in facts.of("Cast"):
        wanted = node.attributes.get_int("to", 0)
        if wanted and facts.dtype(node.inputs[0]) == ir.DataType(wanted):
            yield Found((node,), f"the data is {ir.DataType(wanted).name} already")


@rule("QG707", "names-of-nodes", INFO)
def names_of_nodes(facts: ModelFacts) -> Iterator[Found]:
    """Nodes have no name, or the same name as others."""
    count = Counter(node.name for node in facts.original.graph)
    unnamed = sum(number for name, number in count.items() if not name)
    twice = [name for name, number in count.items() if name and number > 1]
    if twice:
        text = f"{len(twice)} names are given to several nodes, such as {twice[0]!r}"
        yield Found(tuple(map(str, twice[:_SHARED])), text, {"names": len(twice)}, WARNING)
    if unnamed:
        text = f"no name for {counted(unnamed, 'node')}: reports and runtimes name their outputs"
        yield Found((), text, {"nodes": unnamed})


@rule("QG708", "stated-shape", WARNING)
def stated_shape(facts: ModelFacts) -> Iterator[Found]:
    """A stated type or shape differs from the computed one."""
    for node in facts.nodes:
        for value in node.outputs:
            inferred, stated = facts.shape(value), value.shape
            if inferred is None or stated is None:
                continue
            sizes = [size if isinstance(size, int) else None for size in stated.dims]
            wrong = len(sizes) != len(inferred) or any(
                isinstance(a, int) and isinstance(b, int) and a != b
                for a, b in zip(sizes, inferred, strict=False)
            )
            if wrong:
                shown = [size if isinstance(size, int) else "?" for size in inferred]
                text = f"{value.name!r} is stated as {list(stated.dims)}, and is {shown}"
                yield Found((node,), text, {"stated": [str(d) for d in stated.dims]})


@rule("QG709", "unused-input", INFO)
def unused_input(facts: ModelFacts) -> Iterator[Found]:
    """No node reads an input of the model."""
    for value in facts.original.graph.inputs:
        if not (value.uses() or value.is_graph_output() or value.is_initializer()):
            yield Found((), f"the input {value.name!r} is not read", {"input": str(value.name)})


@rule("QG710", "mixed-dialects", INFO)
def mixed_dialects(facts: ModelFacts) -> Iterator[Found]:
    """Quantizers are written in several dialects."""
    count = Counter(site.dialect for site in facts.sites if site.dialect != "onnx")
    if len(count) > 1:
        shown = ", ".join(f"{number} {name}" for name, number in count.most_common())
        yield Found((), f"{shown}: no runtime knows all of them", {"dialects": dict(count)})


@rule("QG711", "unused-import", INFO)
def unused_import(facts: ModelFacts) -> Iterator[Found]:
    """A domain is imported that no node uses."""
    used = {node.domain for node in facts.nodes} | {"", "ai.onnx"}
    used |= {function.domain for function in facts.model.functions.values()}
    for domain in facts.original.opset_imports:
        if domain not in used:
            yield Found((), f"{domain} is imported, and no node is of it", {"domain": domain})


@rule("QG712", "computed-parameters", WARNING, fix=LintFix("fold-constants", "bits"))
def computed_parameters(facts: ModelFacts) -> Iterator[Found]:
    """The scale or zero point of a quantizer is computed when the model runs."""
    for node in [*(coder.node for coder in facts.coders), *facts.of_qonnx()]:
        values = [value for value in node.inputs[1:] if value is not None and value.producer()]
        if any(facts.constant(value) is None for value in values) and not is_dynamic(node):
            text = "it follows from constants only: computed once, it would be known to runtimes"
            yield Found((node,), text)


@rule("QG713", "unreadable-quantizer", WARNING)
def unreadable_quantizer(facts: ModelFacts) -> Iterator[Found]:
    """A node cannot be read as a quantizer."""
    coders = (QUANTIZE, DECODE)
    for refusal in facts.found:
        if not isinstance(refusal, Refusal) or refusal.is_dynamic:
            continue
        node, constants = refusal.root, [facts.constant(v) for v in refusal.root.inputs[1:]]
        parameters = [value for value in node.inputs[1:] if value is not None]
        if node.op_type in coders or sum(c is not None for c in constants) != len(parameters):
            continue  # one of a pair, or computed
        yield Found((node,), str(refusal.reason), {"reason_id": id_of(refusal.reason)})


@rule("QG714", "signed-codes-of-positive-data", INFO)
def signed_codes_of_positive_data(facts: ModelFacts) -> Iterator[Found]:
    """Data after a Relu has signed codes, half of which are never used."""
    for site in facts.sites:
        quantizer = site.quantizer
        maker = producer_of(site.x, "Relu")
        if maker is None or site.weight is not None:
            continue
        if isinstance(quantizer, Affine) and quantizer.lo.size == quantizer.zero_point.size == 1:
            negative = float(quantizer.zero_point.flat[0] - quantizer.lo.flat[0])
            levels = float(quantizer.hi.flat[0] - quantizer.lo.flat[0]) + 1
        elif isinstance(quantizer, Ranged) and quantizer.input_low.size == 1:
            extent = float(quantizer.input_high.flat[0] - quantizer.input_low.flat[0])
            share = -float(quantizer.input_low.flat[0]) / extent if extent else 0.0
            negative, levels = share * (quantizer.levels - 1), float(quantizer.levels)
        else:
            continue
        negative = min(negative, levels)  # the zero point may be beyond the codes
        if negative >= levels / 4:
            figures = {"unused": int(negative), "levels": int(levels)}
            text = f"{int(negative)} of {int(levels)} codes stand for negative numbers"
            yield Found(nodes_of_site(site, maker), text, figures)


@rule("QG715", "unreachable-codes", INFO)
def unreachable_codes(facts: ModelFacts) -> Iterator[Found]:
    """Codes of a quantizer are unreachable from the codes before it."""
    for encoder in facts.encoders:
        form, path = FORMATS.get(encoder.kind), list(_elementwise_from_codes(facts, encoder))
        before = facts.coder(path[-1]) if path else None
        first = None if before is None else FORMATS.get(before.kind)
        if not isinstance(form, IntFormat) or not isinstance(first, IntFormat) or before is None:
            continue
        if form.bits > 8 or first.bits > 8 or before.scale is None or encoder.axis is not None:
            continue
        if not (np.isfinite(before.scale.flat[0]) and before.scale.flat[0] > 0):
            continue
        zero = 0 if before.zero is None else int(before.zero.flat[0])
        codes = np.arange(first.lo, first.hi + 1) - zero
        data = (codes * before.scale.flat[0]).astype(np.float32)
        nodes = [*reversed(path[:-1]), encoder.node]
        try:
            results = evaluate(nodes, before.node.outputs[0], encoder.node.outputs[0], data)
        except (UnsupportedError, OperatorError):
            continue
        used, levels = int(np.unique(results).size), int(form.hi - form.lo) + 1
        if 4 * used <= 3 * levels:
            text = f"{used} of {levels} codes can occur: {encoder.kind} has more than it needs"
            yield Found((encoder.node, before.node), text, {"reachable": used, "levels": levels})


def _elementwise_from_codes(facts: ModelFacts, encoder: Coder) -> Iterator[ir.Node]:
    """Yield the nodes between decoded codes and a quantizer that depends on nothing else."""
    value, nodes = encoder.node.inputs[0], list[ir.Node]()
    while value is not None and len(nodes) < _SHARED:
        node = value.producer()
        if node is None:
            return
        nodes.append(node)
        if node.op_type == DECODE:
            coder = facts.coder(node)
            is_one = coder.scale is not None and coder.scale.size == 1
            if is_one and len(nodes) > 1 and not facts.is_stored(coder):
                yield from nodes
            return
        data = [v for v in node.inputs if v is not None and facts.constant(v) is None]
        constants = [facts.constant(v) for v in node.inputs if v is not None]
        if len(data) != 1 or node.domain or any(c is not None and c.size > 1 for c in constants):
            return
        if node.op_type not in _ELEMENTWISE:
            return
        value = data[0]


def _same_parameters(one: tuple[ir.Node, ...], other: tuple[ir.Node, ...]) -> bool:
    """Return whether two quantizers of one node each have the same operator and constants."""
    if len(one) != 1 or len(other) != 1 or one[0].op_type != other[0].op_type:
        return False
    a, b = one[0], other[0]
    values = ({k: str(v.value) for k, v in node.attributes.items()} for node in (a, b))
    if len(a.inputs) != len(b.inputs) or next(values) != next(values):
        return False
    return all(map(_same_constant, a.inputs[1:], b.inputs[1:]))


def _same_constant(one: ir.Value | None, other: ir.Value | None) -> bool:
    if one is other:
        return True
    tensors = constant_tensor(one), constant_tensor(other)
    if tensors[0] is None or tensors[1] is None:
        return False
    return tensors[0].numpy().tobytes() == tensors[1].numpy().tobytes()
