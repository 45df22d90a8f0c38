"""Search for a form of a model that is within the limits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import onnx_ir as ir

from qgraph.bound import Bounding
from qgraph.certificate import RegionVerdict
from qgraph.effort import require_time
from qgraph.exactness import Exactness
from qgraph.graph.scopes import producer_of
from qgraph.graph.slices import ancestors, sources
from qgraph.model import Model
from qgraph.quantizers.sites import readable_sites
from qgraph.reasons import AT_RUN_TIME, id_of
from qgraph.records import dataclass, replace
from qgraph.targets.layer import LAYERS
from qgraph.targets.profile import Profile
from qgraph.transforms.base import Transform, escaped
from qgraph.transforms.canonical_operators import CanonicalForm, CanonicalOperators
from qgraph.transforms.deployment.attempts import Attempt, not_shown
from qgraph.transforms.deployment.forms import decode_weights, in_pairs, layers_of
from qgraph.transforms.deployment.pipeline import adds_channel, steps_for
from qgraph.transforms.drafts.choice import label

_PAIRED = ("move-quantizers", "canonical-operators", "move-channel-scales", "plain-pairs")
"""Passes that change which layers of the model and of the form correspond."""

_EXACT_ONLY = (
    *_PAIRED,
    "fold-batch-norm",
    "lower-pointwise",
    "quantize-bias",
    "split-gemm",
    "split-leaky-relu",
    "split-zero-points",
    "whole-zero-points",
    "write-convolutions",
)
"""All passes that are not exact."""

_MOST_EXACT = 40
"""Number of exact quantizers from which on no further ones are tried."""

_POINTS = CanonicalOperators(forms=CanonicalForm.POINTS)
"""Passes that keep every bit; they are never omitted."""

_CHANNELS = CanonicalOperators(forms=CanonicalForm.CHANNELS)
"""Pass that follows changes that are not exact, since it leaves a proof of equal codes a bound."""


@dataclass(frozen=True)
class _Plan:
    """What a form leaves as it is.

    Attributes:
        without: names of passes that do not run.
        layers: patterns of names of layers into which no factors and biases are merged.
        values: results of quantizers that stay exact.
    """

    without: tuple[str, ...]
    layers: tuple[str, ...]
    values: tuple[str, ...] = ()

    def is_part_of(self, other: _Plan) -> bool:
        """Return whether another plan leaves all of this as it is, too."""
        return (
            set(self.without) <= set(other.without)
            and set(self.layers) <= set(other.layers)
            and set(self.values) <= set(other.values)
        )


@dataclass(frozen=True)
class _Tried:
    """A plan that was carried out, and what failed in its form.

    Attributes:
        changing: names of the passes that changed something.
        fitting: the form, if it is within the limits.
    """

    plan: _Plan
    steps: list[Transform]
    changing: set[str]
    failing: list[RegionVerdict]
    fitting: Attempt | None

    def gives_same(self, steps: Sequence[Transform], plan: _Plan) -> bool:
        """Return whether other passes give the same model, as they lack only what had no effect."""
        own, other = ([s for s in each if s.name in self.changing] for each in (self.steps, steps))
        return own == other and self.plan.is_part_of(plan)

    @property
    def lacks_sizes(self) -> bool:
        """Whether only sizes that are known at run time are missing."""
        ids = {id_of(region.reason) for region in self.failing}
        return ids == {AT_RUN_TIME.id}


class _Search:
    """The forms of a model that were tried, and the quantizers that must stay exact in them."""

    def __init__(
        self,
        reference: Model,
        profile: Profile,
        request: Bounding,
        packed: Collection[str] | None,
    ) -> None:
        self._reference, self._profile = reference, profile
        self._request, self._packed = request, packed
        self._pairs = in_pairs(reference)
        self._names = [escaped(layer.description.node) for layer in layers_of(self._pairs)]
        self._floats = [escaped(name) for name in _of_floats(self._pairs)]
        self._exact: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._obstacle: str | None = None
        self.tried: list[_Tried] = []
        self.last: _Tried

    def first(self, plans: Iterable[_Plan]) -> Attempt | None:
        """Return the form of the first plan that fits, or None if there is none.

        If only sizes are unknown, no further plan is tried: it would lack them, too.
        """
        for plan in plans:
            tried = self._grown(plan)
            if tried.fitting or tried.lacks_sizes:
                return tried.fitting
        return None

    def fewest_exact(self, plans: Iterable[_Plan]) -> Attempt | None:
        """Return the form that fits with the fewest exact quantizers, or None if none fits.

        The quantizers that exceeded the limits stay exact, and more where that is not enough. The
        first form for which it is enough ends the search.
        """
        forms: list[_Tried] = []
        for plan in plans:
            values = self._exact.get(plan.without, ())
            tried = self._grown(replace(plan, values=values), may_grow=True)
            if tried.fitting:
                forms.append(tried)
            if tried.lacks_sizes or (tried.fitting and len(tried.plan.values) <= len(values)):
                break
        best = min(forms, key=lambda each: len(each.plan.values), default=None)
        return best.fitting if best else None

    def _grown(self, plan: _Plan, *, may_grow: bool = False) -> _Tried:
        """Try a plan, then leave more layers as they are, until the form fits or none is left.

        ``may_grow`` says whether further quantizers may stay exact. If not, they are only noted.
        """
        while True:
            self.last = tried = self._form(plan)
            if tried.fitting or tried.lacks_sizes:
                return tried
            self._obstacle = self._obstacle or _obstacle(tried.failing)
            layers = self._failing_layers(tried.failing)
            more = [name for name in self._names if name in layers and name not in plan.layers]
            if not more:
                known = self._exact.get(plan.without, ())
                values, layers = _before(self._reference, tried.failing, known)
                self._exact[plan.without] = (*known, *values)
                if not may_grow or not values or len(plan.values) > _MOST_EXACT:
                    return tried
                plan = replace(plan, values=self._exact[plan.without])
                more = [name for name in self._names if name in layers and name not in plan.layers]
            plan = replace(plan, layers=(*plan.layers, *more))

    def _form(self, plan: _Plan) -> _Tried:
        """Carry out a plan, and prove its form, if no other plan gave the same."""
        every = steps_for(
            self._profile,
            nodes=_all_but(plan.layers),
            values=_all_but(plan.values),
            coded=_all_but(self._floats),
            packed=self._packed,
        )
        steps = [step for step in every if step.name not in plan.without or step == _POINTS]
        for known in self.tried:
            if known.gives_same(steps, plan):
                return known
        model = self._reference.clone()
        report = model.apply(*steps)
        if adds_channel(self._profile) and report.exactness < Exactness.VALUES:
            report.extend(model.apply(_CHANNELS))
        decoded = {}
        if self._packed is None:
            decoded = decode_weights(model, self._profile, report)
        attempt = Attempt(model, report, self._reference, self._request, decoded, self._obstacle)
        failing, regions = attempt.failing, attempt.certificate.regions
        if failing:
            require_time(
                "No form was shown to be within the limits: of the one tried last, "
                f"{len(regions) - len(failing)} of {len(regions)} segments were decided"
            )
        elif self._obstacle is not None:
            report.notes.append(self._obstacle)
        fitting = None if failing else attempt
        self.tried.append(_Tried(plan, steps, attempt.changing, failing, fitting))
        return self.tried[-1]

    def _failing_layers(self, failing: Sequence[RegionVerdict]) -> set[str]:
        """Return the layers in regions that failed, and those whose results or biases they read."""
        near = {name for r in failing for name in (*r.reference_nodes, *r.candidate_nodes)}
        near |= _layers_before(self._pairs, {region.reference_value for region in failing})
        return set(map(escaped, near))


def best_form(
    reference: Model,
    profile: Profile,
    request: Bounding,
    kept: Sequence[str],
    packed: Collection[str] | None = None,
) -> Attempt:
    """Return the first form that is within the limits.

    The first plan applies all passes, and further ones omit those that change the correspondence of
    layers, one more each. If regions exceed the limits, the passes run again without changing their
    layers and quantizers. If that is not enough, the quantizers before them stay as they are too,
    in the form in which the fewest do. The last plan has exact passes only; if only sizes are
    unknown, it follows at once. No factors and biases are merged into layers whose names patterns
    in ``kept`` match. If no form is within the limits, the model is unchanged, and a note says why.
    """
    search = _Search(reference, profile, request, packed)
    paired, exact_only = (_Plan(without, tuple(kept)) for without in (_PAIRED, _EXACT_ONLY))
    plans = [replace(paired, without=_PAIRED[:count]) for count in range(len(_PAIRED))]
    attempt = search.first(plans)
    if attempt is None and not search.last.lacks_sizes:
        attempt = search.fewest_exact(plans)
    if attempt is None and not search.last.lacks_sizes:
        attempt = search.first([paired])
    attempt = attempt or search.first([exact_only])
    if attempt is not None:
        return attempt
    return not_shown(reference, profile, request, search.last.failing)


def _all_but(names: Iterable[str]) -> str:
    """Return the pattern that matches all other names."""
    return "|".join(f"!{name}" for name in names) or "*"


def _layers_before(model: Model, ends: Collection[str | None]) -> set[str]:
    """Return the layers whose biases the given values are, or from whose results they follow."""
    biased = [node for node in model.nodes(*LAYERS) if len(node.inputs) > 2]
    names = {label(node) for node in biased if node.inputs[2] and node.inputs[2].name in ends}
    followed = ancestors(
        (value for node in model.nodes() for value in node.outputs if value.name in ends),
        lambda value: [] if producer_of(value, *LAYERS) else sources(value),
    )
    return names | {label(node) for v in followed if (node := producer_of(v, *LAYERS))}


def _before(
    reference: Model, regions: Sequence[RegionVerdict], known: Collection[str]
) -> tuple[list[str], set[str]]:
    """Return results of the quantizers of regions and before them, and layers between.

    Of a region with a bound, the quantizer at its end comes first. Where a region has no bound, its
    end may be computed in another form, if its data are equal. So the quantizer at its end counts
    only if those before it are ``known``. Beyond known quantizers, it returns those before them,
    for regions that end at a quantizer: others are too large.
    """
    open_ends = {region.reference_value for region in regions if region.bound is None}
    ends = {region.reference_value for region in regions}
    results = {site.y: escaped(str(site.y.name)) for site in readable_sites(reference.ir)}
    if known:
        ends &= {value.name for value in results}
    starts = [v for node in reference.nodes() for v in node.outputs if v.name in ends]

    def is_passed(value: ir.Value) -> bool:
        return value in starts or results.get(value) in (None, *known)

    bounded = [] if known else [v for v in starts if v.name not in open_ends]
    walked = [v for v in starts if v not in bounded]
    passed = ancestors(walked, lambda value: sources(value) if is_passed(value) else [])
    found = [results[value] for value in bounded if value in results]
    found += [results[v] for v in passed if v in results and (known or v not in starts)]
    layers = [producer_of(value, *LAYERS) for value in passed if is_passed(value)]
    names = {escaped(label(node)) for node in layers if node is not None}
    return [name for name in found if name not in known], names


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
