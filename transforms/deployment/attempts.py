"""Forms of a model: rewritten, only converted, as plain operators, or without saturating products.

Processors without VNNI cut off sums of products (:mod:`qgraph.inventory.saturation`). Weights that
may get there are stored as UINT8 with zero point 128, where the kernels multiply these exactly.
Where they do not, the layer is left in float.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import onnx_ir as ir

from qgraph.bound import Bounding
from qgraph.certificate import Certificate, RegionVerdict
from qgraph.exactness import Exactness, ProofVerdict
from qgraph.execution import demonstration
from qgraph.graph.schema import OpKey
from qgraph.graph.scopes import nodes_of, owners, producer_of, remove_constant, remove_unused
from qgraph.inventory.executed import saturates
from qgraph.inventory.layers import FoundLayer
from qgraph.inventory.saturation import (
    WrongProduct,
    halved_layers,
    is_narrow,
    wide_layers,
    wide_operators,
    wrong_products,
)
from qgraph.model import Model
from qgraph.ops.integer.products import SIGNATURES
from qgraph.proof.bounds.regions import certified
from qgraph.quantizers.movement import unmoved
from qgraph.quantizers.sites import readable_sites
from qgraph.reasons import ExplainedReason
from qgraph.records import dataclass, field, replace
from qgraph.reports import Report, SiteStatus
from qgraph.storage.files import weight_bytes
from qgraph.targets.engine import refused_nodes
from qgraph.targets.layer import QuantizedLayer
from qgraph.targets.profile import Profile, SaturatingProducts
from qgraph.targets.rules import SATURATES
from qgraph.text import counted
from qgraph.transforms.base import Transform, escaped
from qgraph.transforms.canonical_operators import CanonicalForm, CanonicalOperators
from qgraph.transforms.convert import ConvertDialect, FoldWeights
from qgraph.transforms.deployment.forms import Left, decode_weights, layers_of, sites_of
from qgraph.transforms.deployment.pipeline import (
    as_pairs,
    conversion_for,
    misreads_row_scales,
    wide_codes,
)
from qgraph.transforms.drafts.choice import label
from qgraph.transforms.recoding import CodeSign, CodeTarget, Repack, ShiftZeroPoints
from qgraph.transforms.weights.stored_codes import stored_codes


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


def wrong_products_of(
    model: Model, rule: SaturatingProducts, profile: Profile
) -> list[WrongProduct]:
    """Return the products of a model that a rule of a profile is about."""
    return wrong_products(model.ir, layers_of(model), sites_of(model), rule, profile)


def saturating(model: Model, profile: Profile) -> dict[str, ExplainedReason]:
    """Return the layers whose sums may saturate on the processor of a profile, and why."""
    reasons = {}
    for rule in profile.saturating:
        for each in wrong_products_of(model, rule, profile):
            reasons[label(each.node)] = SATURATES(
                f"its weights are halved and rounded: {profile.processor} has no VNNI, and its "
                "data are INT8 codes with an operator between QuantizeLinear and DequantizeLinear"
                if each.is_halved
                else f"sums of its products exceed 16 bits: {profile.processor} has no VNNI, and "
                f"its {each.operand} beyond -{rule.largest}..{rule.largest}"
            )
    return reasons


def unsaturated(model: Model, profile: Profile) -> list[Transform]:
    """Return the passes that store codes so that no sum saturates; nothing if none is needed."""
    steps: list[Transform] = []
    for rule in profile.saturating:
        if any(True for _ in halved_layers(layers_of(model), rule)):
            steps.append(ShiftZeroPoints(activations=CodeSign.UINT8, weights=CodeSign.KEEP))
        if rule.instead is None:
            continue
        to = CodeTarget(rule.instead.lower())
        wide = _wide(model, rule, profile)
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
        for layer in _wide(model, rule, profile)
        if not is_narrow(layer.node.inputs[1], sites_of(model), rule.largest)
    }


def condition(model: Model, profile: Profile) -> str | None:
    """Return on which processors sums of a model are wrong; None if on none."""
    for rule in profile.saturation:
        count = len(wrong_products_of(model, rule, profile))
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


def _wide(model: Model, rule: SaturatingProducts, profile: Profile) -> list[FoundLayer]:
    return list(wide_layers(layers_of(model), sites_of(model), rule, profile))


def unstored(model: Model, profile: Profile) -> bool:
    """Return whether sums of weights may saturate that only stored codes would not reach."""
    rules = [rule for rule in profile.saturating if rule.instead is not None]
    decodes = {stored.decode for stored in stored_codes(model)} if rules else set()
    return any(
        layer.description.w.is_constant
        and producer_of(unmoved(layer.node.inputs[1])) not in decodes
        for rule in rules
        for layer in _wide(model, rule, profile)
    )


def cuts_off_operators(model: Model, profile: Profile) -> bool:
    """Return whether sums of operators on codes may saturate, which layers would not."""
    found = (wide_operators(model.ir, rule) for rule in profile.saturating)
    return any(OpKey.of(each.node) in SIGNATURES for operators in found for each in operators)


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
