"""Forms of a model: rewritten, only converted, or as plain operators."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import onnx_ir as ir

from qgraph.bound import Bounding
from qgraph.certificate import Certificate, RegionVerdict
from qgraph.exactness import Exactness, ProofVerdict
from qgraph.execution import demonstration
from qgraph.graph.scopes import nodes_of, owners, remove_constant, remove_unused
from qgraph.model import Model
from qgraph.proof.bounds.regions import certified
from qgraph.quantizers.sites import readable_sites
from qgraph.records import dataclass, field, replace
from qgraph.reports import Report, SiteStatus
from qgraph.storage.files import weight_bytes
from qgraph.targets.engine import refused_nodes
from qgraph.targets.layer import QuantizedLayer
from qgraph.targets.profile import Profile
from qgraph.transforms.base import escaped
from qgraph.transforms.convert import ConvertDialect, FoldWeights
from qgraph.transforms.deployment.forms import Left, decode_weights
from qgraph.transforms.deployment.pipeline import (
    as_pairs,
    conversion_for,
    misreads_row_scales,
    wide_codes,
)
from qgraph.transforms.deployment.saturation import unstored
from qgraph.transforms.drafts.choice import label


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
    for site in readable_sites(plain.ir):
        value = site.x
        if (stored := site.values) is not None:
            value = ir.Value(name=f"{site.y.name}_float", const_value=ir.tensor(stored))
            graph.initializers[str(value.name)] = value
        site.y.replace_all_uses_with(value, replace_graph_outputs=True)
    for owner in owners(plain.ir):
        for constant in remove_unused(reversed(list(nodes_of(owner)))):
            remove_constant(constant)
    return plain
