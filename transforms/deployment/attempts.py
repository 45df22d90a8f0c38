"""Forms of a model: rewritten, only converted, as plain operators, or without saturating products.

Processors without VNNI add two neighbouring products of UINT8 data and INT8 weights in 16 bits::

    255 * 127 + 255 * 127 = 64770, cut off to 32767

Weights between -64 and 64 cannot get there. Others are stored as UINT8 with zero point 128, where
the kernels multiply these exactly. Where they do not, the layer is left in float.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import onnx_ir as ir

from qgraph.bound import Bounding
from qgraph.certificate import Certificate, RegionVerdict
from qgraph.exactness import Exactness, ProofVerdict
from qgraph.execution import demonstration
from qgraph.graph.constants import constant_tensor
from qgraph.graph.schema import OpKey
from qgraph.graph.scopes import nodes_of, owners, producer_of, remove_constant, remove_unused
from qgraph.inventory.executed import saturates
from qgraph.inventory.layers import FoundLayer, quantized_einsums, scaled_products
from qgraph.lint.facts import ModelFacts
from qgraph.lint.layers import wide_operators
from qgraph.model import Model
from qgraph.ops.integer.products import SIGNATURES
from qgraph.proof.bounds.regions import certified
from qgraph.quantizers.movement import unmoved
from qgraph.quantizers.sites import readable_sites
from qgraph.quantizers.weights.job import NumberRange
from qgraph.reasons import ExplainedReason
from qgraph.records import dataclass, field, replace
from qgraph.reports import Report, SiteStatus
from qgraph.storage.files import weight_bytes
from qgraph.targets.engine import KernelMatch, kernel_of, refused_nodes
from qgraph.targets.layer import QuantizedLayer, ZeroPoint
from qgraph.targets.profile import Profile, SaturatingProducts
from qgraph.targets.rules import SATURATES
from qgraph.text import counted
from qgraph.transforms.base import Transform, escaped
from qgraph.transforms.canonical_operators import CanonicalForm, CanonicalOperators
from qgraph.transforms.convert import ConvertDialect, FoldWeights
from qgraph.transforms.deployment import forms
from qgraph.transforms.deployment.forms import Left, decode_weights, in_pairs, layers_of
from qgraph.transforms.deployment.pipeline import (
    as_pairs,
    conversion_for,
    misreads_row_scales,
    wide_codes,
)
from qgraph.transforms.drafts.choice import label
from qgraph.transforms.recoding import CodeSign, CodeTarget, Repack, ShiftZeroPoints
from qgraph.transforms.weights.stored_codes import stored_codes

_WITHOUT = (ZeroPoint.NONE, ZeroPoint.ZERO)


def for_this_processor(profile: Profile) -> Profile:
    """Return the profile for the processor of this machine, if the user named none.

    It differs from the given profile only where the runtime is installed and shows that this
    processor saturates.
    """
    if profile.is_named or profile.executed is None or not profile.saturation:
        return profile
    (processor, *_), known = profile.saturation[0].processors, profile.processor
    if processor == known or not saturates(profile.executed):
        return profile
    return profile.on(processor)


def saturating(model: Model, profile: Profile) -> dict[str, ExplainedReason]:
    """Return the layers whose sums may saturate on the processor of a profile, and why."""
    reasons = {}
    for rule in profile.saturating:
        beyond: dict[ir.Node, str] = {}
        for layer in (*_wide(model, rule, profile), *_operators(model, rule, profile)):
            is_constant = layer.description.w.is_constant
            beyond[layer.node] = "weights are" if is_constant else "second operand can be"
        beyond |= dict.fromkeys(_unlisted(model, rule), "operands can be")
        for layer in _halved(model, rule):
            reasons[label(layer.node)] = SATURATES(
                f"its weights are halved and rounded: {profile.processor} has no VNNI, and its "
                "data are INT8 codes with an operator between QuantizeLinear and DequantizeLinear"
            )
        for node, what in beyond.items():
            reasons[label(node)] = SATURATES(
                f"sums of its products exceed 16 bits: {profile.processor} has no VNNI, and its "
                f"{what} beyond -{rule.largest}..{rule.largest}"
            )
    return reasons


def unsaturated(model: Model, profile: Profile) -> list[Transform]:
    """Return the passes that store codes so that no sum saturates; nothing if none is needed."""
    steps: list[Transform] = []
    for rule in profile.saturating:
        if any(True for _ in _halved(model, rule)):
            steps.append(ShiftZeroPoints(activations=CodeSign.UINT8, weights=CodeSign.KEEP))
        if rule.instead is None:
            continue
        to = CodeTarget(rule.instead.lower())
        wide = list(_wide(model, rule, profile))
        nodes = [escaped(label(each.node)) for each in wide if each.description.w.is_constant]
        if nodes:
            steps.append(Repack(to=to, scales=False, activations=False, nodes="|".join(nodes)))
            # a zero point of 0 is left out, which products with a bias need
            if any(each.node.op_type != "Conv" for each in wide):
                steps.append(CanonicalOperators(forms=CanonicalForm.POINTS))
        if len(nodes) < len(wide):
            steps.append(ShiftZeroPoints(activations=CodeSign(str(to)), weights=CodeSign.KEEP))
    return steps


def always_cut_off(model: Model, profile: Profile) -> set[ir.Node]:
    """Return the layers that saturate on the processor of a profile, however they are written."""
    return {
        layer.node
        for rule in profile.saturating
        if rule.instead is None
        for narrow in [forms.narrow_values(model.ir, rule.largest)]
        for layer in _wide(model, rule, profile)
        if unmoved(layer.node.inputs[1]) not in narrow
    }


def condition(model: Model, profile: Profile) -> str | None:
    """Return on which processors sums of a model are wrong; None if on none."""
    for rule in profile.saturation:
        layers = *_wide(model, rule, profile), *_operators(model, rule, profile)
        nodes = {each.node for each in (*layers, *_halved(model, rule))}
        count = len(nodes) + len(_unlisted(model, rule))
        others = " and ".join(rule.processors)
        text = f"sums of products of {counted(count, 'layer')} saturate, and results are wrong"
        if count and rule in profile.saturating:
            return f"on {others}, {text}: quantize their weights to 7 bits"
        if count:
            other = f"{profile.name}@{rule.processors[0]}"
            return (
                f"the processor is {profile.processor}; on {others}, {text}: deploy with "
                f"--target {other} for it"
            )
    return None


def _wide(model: Model, rule: SaturatingProducts, profile: Profile) -> Iterator[FoundLayer]:
    """Yield the layers of these types whose weights are beyond the safe range."""
    layers = [
        layer
        for layer in layers_of(model)
        if layer.description.x.codes in rule.x and layer.description.w.codes in rule.w
        if not (layer.description.one_filter and layer.description.group in rule.exact)
    ]
    if not layers:
        return
    spans = _spans(model, rule)
    narrow = {d for d, span in spans.items() if max(-span.low, span.high) <= rule.largest}
    is_stored = all(layer.description.w.is_constant for layer in layers)
    others = set[ir.Value]()
    if not is_stored or _unstored(layers, spans):
        others = forms.narrow_values(model.ir, rule.largest)
    for layer in layers:
        weights, operand = unmoved(layer.node.inputs[1]), layer.description.w
        is_narrow = producer_of(weights) in narrow or weights in others
        if not operand.is_constant:
            match = kernel_of(layer.description, profile)
            if not is_narrow and isinstance(match, KernelMatch):
                yield layer
        # codes are multiplied as they are stored, before zero points are subtracted
        elif not (is_narrow and operand.zero in _WITHOUT):
            yield layer


def _spans(model: Model, rule: SaturatingProducts) -> dict[ir.Node, NumberRange]:
    """Return the ranges of stored codes of the types of weights, by their DequantizeLinear."""
    stored = (each for each in stored_codes(model) if each.stream.kind in rule.w)
    return {each.decode: each.source.survey() for each in stored}


def _halved(model: Model, rule: SaturatingProducts) -> Iterator[FoundLayer]:
    """Yield the layers whose odd weights are rounded to even ones."""
    for layer in layers_of(model):
        x = layer.description.x
        if layer.node.op_type in rule.halved and x.codes == "INT8" and not x.is_direct:
            decode = producer_of(unmoved(layer.node.inputs[1]), "DequantizeLinear")
            codes = None if decode is None else constant_tensor(decode.inputs[0])
            if codes is None or (codes.numpy().astype(np.int16) % 2).any():
                yield layer


def _operators(model: Model, rule: SaturatingProducts, profile: Profile) -> Iterator[FoundLayer]:
    """Yield the operators on codes beyond the safe range, as layers between quantizers."""
    exact = OpKey("", "ConvInteger")  # adds no pairs
    if any(OpKey.of(node) in SIGNATURES and OpKey.of(node) != exact for node in model.nodes()):
        own = {label(each.node) for each in layers_of(model)}
        wide = _wide(in_pairs(model), rule, profile)
        yield from (each for each in wide if label(each.node) not in own)


def _unlisted(model: Model, rule: SaturatingProducts) -> list[ir.Node]:
    """Return the operators without kernels that become such products, unless these are narrow."""
    nodes = quantized_einsums(model.ir) if "Einsum" in rule.operators else []
    narrow = forms.narrow_values(model.ir, rule.largest) if nodes else set[ir.Value]()
    known = wide_operators(ModelFacts(model.ir), rule.largest)
    others = [node for node, _ in known if node.op_type in rule.operators]
    scaled = scaled_products(model.ir, rule.through)
    spans = _spans(model, rule) if scaled else {}
    wide = {each for each, span in spans.items() if max(-span.low, span.high) > rule.largest}
    others += [node for node in scaled if producer_of(unmoved(node.inputs[1])) in wide]
    return [node for node in nodes if unmoved(node.inputs[-1]) not in narrow] + others


def unstored(model: Model, profile: Profile) -> bool:
    """Return whether sums of weights may saturate that only stored codes would not reach."""
    rules = [rule for rule in profile.saturating if rule.instead is not None]
    decodes = {stored.decode for stored in stored_codes(model)} if rules else set()
    return any(_unstored(list(_wide(model, rule, profile)), decodes) for rule in rules)


def cuts_off_operators(model: Model, profile: Profile) -> bool:
    """Return whether sums of operators on codes may saturate, which layers would not."""
    found = (_operators(model, rule, profile) for rule in profile.saturating)
    return any(True for operators in found for _ in operators)


def _unstored(layers: Sequence[FoundLayer], decodes: Collection[ir.Node]) -> bool:
    """Return whether a quantizer computes the weights of a layer, not a DequantizeLinear alone."""
    constant = [layer.node for layer in layers if layer.description.w.is_constant]
    return any(producer_of(unmoved(node.inputs[1])) not in decodes for node in constant)


@dataclass(eq=False)
class Attempt:
    """One way to rewrite the model.

    Attributes:
        decoded: descriptions of layers before their weights became floats, by name.
        obstacle: why not all rewrites were done, if a wider limit would allow them.
        unmet: why layers have no kernel in the best form, by name, if this is another form.
    """

    model: Model
    report: Report
    reference: Model
    request: Bounding
    decoded: Mapping[str, QuantizedLayer] = field(default_factory=dict)
    obstacle: str | None = None
    unmet: Left = field(default_factory=dict)

    @cached_property
    def certificate(self) -> Certificate:
        """How equal the result is to the input; proved when it is first read."""
        sides = self.reference.ir, self.model.ir
        return certified(
            sides,
            self.request,
            exact=Exactness.VALUES,
            keep_inputs=False,
            evidence=True,
            runs=demonstration,
        )[1]

    @property
    def failing(self) -> list[RegionVerdict]:
        """The regions that are neither proved nor within the limits."""
        beyond = self.certificate.beyond
        settled = (ProofVerdict.PROVED, ProofVerdict.BOUNDED)
        return beyond + [r for r in self.certificate.regions if r.verdict not in settled]

    @property
    def is_changed(self) -> bool:
        """Whether a site, the number of inputs, or the opset changed, which may only be lowered."""
        models = self.reference.ir, self.model.ir
        inputs = [len(each.graph.inputs) for each in models]
        opsets = [each.opset_imports.get("", 0) for each in models]
        is_other = inputs[0] != inputs[1] or opsets[0] > opsets[1]
        return is_other or self.report.count(SiteStatus.CHANGED) > 0

    @property
    def changing(self) -> set[str]:
        """The names of the passes that changed something."""
        sites = self.report.sites
        return {site.pass_name for site in sites if site.outcome is SiteStatus.CHANGED}


def unchanged(reference: Model, request: Bounding, note: str) -> Attempt:
    """Return the unchanged model, with a note that says why."""
    size = weight_bytes(reference.ir)
    report = Report(notes=[note], weight_bytes_before=size, weight_bytes_after=size)
    return Attempt(reference.clone(), report, reference, request)


def not_shown(
    reference: Model, profile: Profile, request: Bounding, failing: Sequence[RegionVerdict]
) -> Attempt:
    """Return the unchanged model, with a note that names the first failing region of a form.

    Weights become stored codes if sums of them can be cut off.
    """
    first = failing[0]
    where = "+".join(first.candidate_nodes) or first.candidate_value
    is_stored = unstored(reference, profile)
    what = "only weights were stored as codes" if is_stored else "nothing was changed"
    limits = ", ".join(map(str, request.limits))
    reason = first.reason or "beyond the limit"
    note = f"{what}, since no form is within {limits}: {where}: {reason}"
    return stored_as_codes(unchanged(reference, request, note), profile)


def unchanged_layers(reference: Model, profile: Profile, request: Bounding, note: str) -> Attempt:
    """Return the model with unchanged quantized layers, and a note that says why.

    Weights that the target would decode in each run become floats.
    """
    attempt = stored_as_codes(unchanged(reference, request, note), profile)
    return replace(attempt, decoded=decode_weights(attempt.model, profile, attempt.report))


def stored_as_codes(attempt: Attempt, profile: Profile) -> Attempt:
    """Return an attempt, not proved yet, with weights as codes, if sums of them can be cut off.

    Only stored codes can be replaced by codes of another type, which are multiplied exactly.
    """
    if unstored(attempt.model, profile):
        attempt.report.extend(attempt.model.apply(FoldWeights()))
    return attempt


def converted(reference: Model, profile: Profile, request: Bounding) -> Attempt:
    """Return the model with its quantizers in the dialect of a target, and nothing else changed."""
    model = reference.clone()
    report = model.apply(*conversion_for(profile))
    report.notes.append("quantizers are only converted, since no form has integer layers")
    decoded = decode_weights(model, profile, report)
    return Attempt(model, report, reference, request, decoded)


def portable(
    reference: Model, attempt: Attempt | None, profile: Profile, request: Bounding
) -> Attempt:
    """Return a model with quantizers as plain operators, which targets load in float.

    Of an attempt, only the quantizers that the target refuses change; without one, all of the
    input.
    """
    every = ConvertDialect(to="onnx", exact=Exactness.VALUES)
    is_misread = misreads_row_scales(profile)
    if attempt is None:
        model = reference.clone()
        report = model.apply(as_pairs(), *[wide_codes()] * is_misread, every)
        text = f"quantizers are plain operators, since {profile.name} loads no other form"
    else:
        model = attempt.model.clone()
        names = refused_nodes(model.ir, profile)
        refused = [
            site.y
            for site in readable_sites(model.ir)
            if names & {label(node) for node in site.nodes}
        ]
        values = "|".join(escaped(str(y.name)) for y in refused) or "!*"
        readers = "|".join(escaped(label(use.node)) for y in refused for use in y.uses()) or "!*"
        report = replace(attempt.report, sites=[*attempt.report.sites])
        wide = [wide_codes(readers)] * is_misread
        report.extend(model.apply(*wide, replace(every, values=values)))
        text = f"quantizers that {profile.name} refuses are plain operators"
    report.notes = [*report.notes, text]
    return Attempt(model, report, reference, request)


def order_of(profile: Profile) -> str:
    """Return the order of additions that holds for all float sums of a target."""
    orders = {rule.order for rule in profile.sums if not rule.when}
    return orders.pop() if len(orders) == 1 else "any"


def float_network(model: Model) -> Model:
    """Return the model without its quantizers; weights become stored floats."""
    plain = model.clone()
    plain.apply(as_pairs())
    graph = plain.ir.graph
    sources: dict[ir.Value, ir.Value] = {}
    for site in readable_sites(plain.ir):
        value = sources.get(site.x, site.x)  # its quantizer may have been removed
        if (stored := site.values) is not None:
            value = ir.Value(name=f"{site.y.name}_float", const_value=ir.tensor(stored))
            graph.initializers[str(value.name)] = value
        site.y.replace_all_uses_with(value, replace_graph_outputs=True)
        sources[site.y] = value
    for owner in owners(plain.ir):
        for constant in remove_unused(reversed(list(nodes_of(owner)))):
            remove_constant(constant)
    return plain
