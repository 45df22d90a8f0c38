"""Try forms of a model until one is within the limits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter

import onnx_ir as ir

from qgraph.bound import Bounding
from qgraph.certificate import Certificate, RegionVerdict
from qgraph.effort import require_time
from qgraph.exactness import Exactness, ProofVerdict
from qgraph.execution.demonstration import ModelRuns
from qgraph.graph.scopes import nodes_of, owners, remove_constant, remove_unused
from qgraph.inventory.layers import quantized_layers
from qgraph.model import Model
from qgraph.proof.bounds.regions import certified
from qgraph.quantizers.sites import readable_sites
from qgraph.reasons import AT_RUN_TIME, id_of
from qgraph.reports import Report, SiteStatus
from qgraph.storage.files import weight_bytes
from qgraph.targets.engine import refused_nodes
from qgraph.targets.layer import LAYERS, QuantizedLayer
from qgraph.targets.profile import Profile
from qgraph.transforms.base import Transform, escaped
from qgraph.transforms.canonical_operators import CanonicalForm, CanonicalOperators
from qgraph.transforms.convert import ConvertDialect, FoldWeights
from qgraph.transforms.deployment.forms import Left, decode_weights
from qgraph.transforms.deployment.pipeline import as_pairs, conversion_for, steps_for
from qgraph.transforms.deployment.saturation import unstored
from qgraph.transforms.drafts.choice import label

_PAIRED = ("move-quantizers", "canonical-operators", "move-channel-scales", "plain-pairs")
_WITHOUT = (
    *(_PAIRED[:count] for count in range(5)),
    (
        *_PAIRED,
        "fold-batch-norm",
        "lower-pointwise",
        "quantize-bias",
        "split-gemm",
        "split-leaky-relu",
        "split-zero-points",
        "whole-zero-points",
    ),
)
"""Passes that each attempt omits, in the order of the attempts."""

_MOST_EXACT = 40
"""Number of exact quantizers from which on no further ones are tried."""

_PLAIN = [without for without in _WITHOUT if "plain-pairs" not in without]
_PLANS = [
    *((without, False) for without in _PLAIN),
    *((without, True) for without in _PLAIN),
    *((without, False) for without in _WITHOUT if without not in _PLAIN),
]
"""Omitted passes, and whether quantizers that exceeded the limits stay exact."""

_POINTS = CanonicalOperators(forms=CanonicalForm.POINTS)
"""Passes that keep every bit; they are never omitted."""


@dataclass(frozen=True, eq=False)
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
        _, certificate = certified(
            sides,
            self.request,
            exact=Exactness.VALUES,
            keep_inputs=False,
            evidence=True,
            runs=ModelRuns(),
        )
        return replace(certificate, reference=self.reference.identity())

    @property
    def failing(self) -> list[RegionVerdict]:
        """The regions that are neither proved nor within the limits."""
        beyond = self.certificate.beyond
        settled = (ProofVerdict.PROVED, ProofVerdict.BOUNDED)
        return beyond + [r for r in self.certificate.regions if r.verdict not in settled]

    @property
    def is_changed(self) -> bool:
        """Whether a site changed, or initializers became constants that were inputs, too."""
        inputs = [len(each.ir.graph.inputs) for each in (self.reference, self.model)]
        return self.report.count(SiteStatus.CHANGED) > 0 or inputs[0] != inputs[1]

    @property
    def changing(self) -> set[str]:
        """The names of the passes that changed something."""
        sites = self.report.sites
        return {site.pass_name for site in sites if site.outcome is SiteStatus.CHANGED}


@dataclass(frozen=True)
class _Tried:
    """An attempt that was made, and what failed in it.

    Attributes:
        fixed: names of layers, results of quantizers, and passes, that it left out.
        changing: names of the passes that changed something.
    """

    steps: list[Transform]
    fixed: tuple[frozenset[str], ...]
    changing: set[str]
    failing: list[RegionVerdict]

    def gives_same(self, steps: Sequence[Transform], fixed: tuple[frozenset[str], ...]) -> bool:
        """Return whether other passes give the same model, as they lack only what had no effect."""
        own, other = ([s for s in each if s.name in self.changing] for each in (self.steps, steps))
        return own == other and all(map(frozenset.issubset, self.fixed, fixed))


def best_form(
    reference: Model,
    profile: Profile,
    request: Bounding,
    kept: Sequence[str],
    packed: Collection[str] | None = None,
) -> Attempt:
    """Return the first form that is within the limits.

    The first attempt applies all passes, the second all but those that change the correspondence of
    layers, the third only exact passes; if only sizes are unknown, the third follows at once. If
    regions exceed the limits, the passes run again without changing their layers and quantizers. If
    that is not enough, the quantizers before them stay as they are too, in the attempt in which the
    fewest do. No factors and biases are merged into layers whose names patterns in ``kept`` match.
    If no form is within the limits, the model is unchanged, and a note says why.
    """
    plain = reference.clone()
    plain.apply(as_pairs())
    names = [escaped(layer.description.node) for layer in quantized_layers(plain.ir)]
    coded = "|".join(f"!{escaped(name)}" for name in _of_floats(plain)) or "*"
    tried: list[_Tried] = []
    obstacle: str | None = None
    exact: dict[tuple[str, ...], list[str]] = {}
    found: list[tuple[int, Attempt]] = []
    is_open = False
    for without, is_exact in _PLANS:
        if is_open and without != _WITHOUT[-1]:
            continue
        if found and not is_exact:
            break
        left = list(kept)
        direct = len(exact.get(without, []))
        while True:
            kept_values = exact.get(without, []) if is_exact else []
            nodes, values = (
                "|".join(f"!{name}" for name in each) or "*" for each in (left, kept_values)
            )
            every = steps_for(profile, nodes=nodes, values=values, coded=coded, packed=packed)
            steps = [step for step in every if step.name not in without or step == _POINTS]
            fixed = frozenset(left), frozenset(kept_values), frozenset(without)
            known = next((each for each in tried if each.gives_same(steps, fixed)), None)
            if known is None:
                model = reference.clone()
                report = model.apply(*steps)
                decoded = {} if packed is not None else decode_weights(model, profile, report)
                attempt = Attempt(model, report, reference, request, decoded, obstacle)
                known = _Tried(steps, fixed, attempt.changing, attempt.failing)
                tried.append(known)
                if not known.failing:
                    report.notes += [] if obstacle is None else [obstacle]
                    if len(kept_values) <= direct:
                        return attempt
                    found.append((len(kept_values), attempt))
                    break
                settled = len(attempt.certificate.regions) - len(known.failing)
                require_time(
                    "No form was shown to be within the limits: of the one tried last, "
                    f"{settled} of {len(attempt.certificate.regions)} segments were decided"
                )
            failing = known.failing
            if not failing:  # it was found before
                break
            obstacle = obstacle or _obstacle(failing)
            is_open = all(id_of(region.reason) == AT_RUN_TIME.id for region in failing)
            if is_open:
                break
            near = {name for r in failing for name in (*r.reference_nodes, *r.candidate_nodes)}
            near |= _layers_before(plain, {region.reference_value for region in failing})
            touched = set(map(escaped, near))
            more = [name for name in names if name in touched and name not in left]
            if not more:
                kept_values = exact.get(without, [])
                further, between = _before(reference, failing, kept_values)
                exact[without] = [*kept_values, *further]
                more = [name for name in names if name in between and name not in left]
                if not is_exact or not further or len(kept_values) > _MOST_EXACT:
                    break
            left += more
    if found:
        return min(found, key=itemgetter(0))[1]
    first = failing[0]
    where = "+".join(first.candidate_nodes) or first.candidate_value
    note = (
        f"nothing was changed, since no form is within {', '.join(map(str, request.limits))}: "
        f"{where}: {first.reason or 'beyond the limit'}"
    )
    if unstored(reference, profile):
        note = note.replace("nothing was changed", "only weights were stored as codes")
    return _stored(unchanged(reference, request, note), profile)


def _layers_before(model: Model, ends: Collection[str | None]) -> set[str]:
    """Return the layers whose biases the given values are, or from whose results they follow."""
    pending = [value for node in model.nodes() for value in node.outputs if value.name in ends]
    biased = [node for node in model.nodes(*LAYERS) if len(node.inputs) > 2]
    names = {label(node) for node in biased if node.inputs[2] and node.inputs[2].name in ends}
    reached = set(pending)
    while pending:
        node = pending.pop().producer()
        if node is not None and node.op_type in LAYERS:
            names.add(label(node))
        elif node is not None:
            further = {value for value in node.inputs if value is not None} - reached
            reached |= further
            pending += further
    return names


def _before(
    reference: Model, regions: Sequence[RegionVerdict], known: Collection[str]
) -> tuple[list[str], set[str]]:
    """Return results of the quantizers of regions and before them, and layers between.

    Where a region has no bound, its end may be computed in another form, if its data are equal. So
    the quantizer at its end counts only if those before it are ``known``. Beyond known quantizers,
    it returns those before them, for regions that end at a quantizer: others are too large.
    """
    open_ends = {region.reference_value for region in regions if region.bound is None}
    ends = {region.reference_value for region in regions}
    results = {site.y: escaped(str(site.y.name)) for site in readable_sites(reference.ir)}
    if known:
        ends &= {value.name for value in results}
    pending = [v for node in reference.nodes() for v in node.outputs if v.name in ends]
    first = [v for v in pending if v in results and (known or v.name not in open_ends)]
    found = {results[value]: None for value in first}
    layers: set[str] = set()
    reached = set(pending)
    while pending:
        node = pending.pop().producer()
        if node is None:
            continue
        if node.op_type in LAYERS:
            layers.add(escaped(label(node)))
        for value in node.inputs:
            if value is None or value in reached:
                continue
            reached.add(value)
            if value in results:
                found[results[value]] = None
            if results.get(value, value) in (value, *known):
                pending.append(value)
    return [name for name in found if name not in known], layers


def _obstacle(failing: Sequence[RegionVerdict]) -> str | None:
    """Return why not all rewrites were done, if a wider limit would allow them."""
    bounds = [region.bound for region in failing if region.bound is not None]
    if len(bounds) < len(failing):
        return None
    most = max(bounds, key=lambda bound: bound.max_steps)
    if most.reference_error < most.deviation_steps / 2:
        return None
    where = failing[bounds.index(most)].reference_value
    return (
        f"not all rewrites were done, since {where!r} is within {most.max_steps} steps only, "
        "most of it by the float operators of the input; "
        f"--within {most.max_steps}step allows them"
    )


def _of_floats(model: Model) -> list[str]:
    """Return the products whose data no quantizer computes, directly or through other operators."""
    coded = {site.y for site in readable_sites(model.ir)}
    labels = []
    for node in model.nodes(*LAYERS):
        data = node.inputs[0]
        while data is not None and data not in coded:
            maker = data.producer()
            ends = maker is None or maker.op_type in LAYERS or not maker.inputs
            data = None if maker is None or ends else maker.inputs[0]
        if data is None:
            labels.append(label(node))
    return labels


def unchanged(reference: Model, request: Bounding, note: str) -> Attempt:
    """Return the unchanged model, with a note that says why."""
    size = weight_bytes(reference.ir)
    report = Report(notes=[note], weight_bytes_before=size, weight_bytes_after=size)
    return Attempt(reference.clone(), report, reference, request)


def unchanged_layers(reference: Model, profile: Profile, request: Bounding, note: str) -> Attempt:
    """Return the model with unchanged quantized layers, and a note that says why.

    Weights that the target would decode in each run become floats.
    """
    attempt = _stored(unchanged(reference, request, note), profile)
    return replace(attempt, decoded=decode_weights(attempt.model, profile, attempt.report))


def _stored(attempt: Attempt, profile: Profile) -> Attempt:
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
    if attempt is None:
        model = reference.clone()
        report = model.apply(as_pairs(), every)
        text = f"quantizers are plain operators, since {profile.name} loads no other form"
    else:
        model = attempt.model.clone()
        names = refused_nodes(model.ir, profile)
        refused = [
            escaped(str(site.y.name))
            for site in readable_sites(model.ir)
            if names & {label(node) for node in site.nodes}
        ]
        report = replace(attempt.report, sites=[*attempt.report.sites])
        report.extend(model.apply(replace(every, values="|".join(refused) or "!*")))
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
