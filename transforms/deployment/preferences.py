"""Leave layers in float if the profile, the size preference or measured times favour that.

For times, both forms of each distinct layer are measured on this machine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from qgraph.bound import Bounding
from qgraph.certificate import RegionVerdict
from qgraph.comparison.bench import Timing, bench
from qgraph.errors import ExecutionError, OptionError
from qgraph.exactness import Exactness, ProofVerdict
from qgraph.graph.opset.rewrites import unsigned_copies
from qgraph.inventory.layers import convolution_before
from qgraph.model import Model
from qgraph.reasons import ExplainedReason
from qgraph.records import dataclass, field, replace
from qgraph.targets.profile import Profile
from qgraph.targets.rules import SLOWER
from qgraph.transforms.base import Transform, escaped
from qgraph.transforms.canonical_operators import CanonicalForm, CanonicalOperators
from qgraph.transforms.convert import ConvertDialect
from qgraph.transforms.deployment.attempts import (
    Attempt,
    float_network,
    saturating,
    unchanged,
    unsaturated,
)
from qgraph.transforms.deployment.faults import (
    failing,
    is_unrounded,
    limited,
    misread_data,
    twice_rounded,
    wide_rows,
    wider_codes,
)
from qgraph.transforms.deployment.forms import (
    Left,
    Preference,
    in_float,
    layers_of,
    marked_slower,
    packed,
)
from qgraph.transforms.deployment.pipeline import (
    copies_unsigned_pairs,
    joins_limits,
    misreads_row_sums,
    misreads_turned_weights,
    multiplies_results,
)
from qgraph.transforms.deployment.tuning import Tuning, tune
from qgraph.transforms.drafts.choice import label
from qgraph.transforms.runtime_faults import FloatProducts, FloatSums, SeparateWeights
from qgraph.transforms.simpler_ranges import KeepRoundings
from qgraph.transforms.unit_scales import SeparateLimits, UnitScales

_ROUNDS = 21
_MOST_ATTEMPTS = 4
_CLEAR = 0.98
"""Another form of the model is used if its time is less than this share of the time before."""


@dataclass(frozen=True, eq=False)
class Preferred:
    """A model in its preferred form.

    Attributes:
        attempt: the model and its certificate.
        left: the layers that are left in float by choice, with the reason.
        tuning: measured times; None if nothing was measured.
    """

    attempt: Attempt
    left: Left = field(default_factory=dict)
    tuning: Tuning | None = None


def preferred(
    attempt: Attempt,
    reference: Model,
    profile: Profile,
    request: Bounding,
    prefer: Preference,
    shapes: Mapping[str, Sequence[int]],
    keep: Sequence[str] = (),
) -> Preferred:
    """Return a model with each layer in its preferred form: on codes, or in float.

    Args:
        attempt: the model in the form that integer kernels take.
        reference: the input.
        profile: of the target.
        request: the limits.
        prefer: the preference.
        shapes: of the inputs of models that are timed, by name.
        keep: patterns of names of layers into which no factors are merged.

    Raises:
        OptionError: times are requested for a target that cannot be run here.
        UnsupportedError: the runtime is not installed.
    """
    is_fast = prefer is not Preference.SIZE
    proved = _proved(attempt) if is_fast and multiplies_results(profile) else None
    attempt = _with(wider_codes(attempt.model, profile), attempt)
    steps = unsaturated(attempt.model, profile) + limited(attempt.model, profile)
    attempt = _with(steps, attempt)
    floats = misread_data(attempt.model, profile)
    if misreads_turned_weights(profile):
        attempt = _with([SeparateWeights()], attempt)
    if misreads_row_sums(profile):
        attempt = _with([FloatSums()], attempt)
    if is_unrounded(attempt.model, profile):
        attempt = _with([KeepRoundings()], attempt)
    if results := twice_rounded(attempt.model, profile):
        values = "|".join(map(escaped, results))
        plain = _with([ConvertDialect(to=to, values=values) for to in ("qonnx", "onnx")], attempt)
        attempt = attempt if any(plain.model.nodes("FloatQuant")) else plain
    if copies_unsigned_pairs(profile) and unsigned_copies(attempt.model.ir):
        attempt = _with([CanonicalOperators(forms=CanonicalForm.POINTS)], attempt)
    attempt = _with(wide_rows(attempt.model, profile), attempt)
    if floats:
        names = "|".join(map(escaped, floats))
        attempt = _with([FloatProducts(nodes=names, data=True)], attempt)
    failed = failing(attempt.model, profile) | saturating(attempt.model, profile)
    attempt = _leaving(attempt, failed)
    if rest := saturating(attempt.model, profile):  # behind operators, or of computed weights
        names = "|".join(map(escaped, rest))
        attempt = _with([FloatProducts(nodes=names, data=True)], attempt)
    failed |= floats
    if not is_fast:
        return Preferred(attempt, failed | packed(attempt.model))
    attempt = _cheaper(attempt, profile, proved, keep)
    if prefer is Preference.SPEED:
        left = marked_slower(attempt.model, profile)
        return Preferred(_leaving(attempt, left), failed | left)
    if profile.executed is None:
        raise OptionError(
            f"{profile.name} cannot be run here, so no times can be measured. Leave --tune out."
        )
    options = {each.key: each.needed for each in profile.option if each.needed and not each.kernels}
    tuning = tune(attempt.model, Timing(profile.executed, shapes=shapes, options=options))
    measured = Preferred(attempt, {**failed, **tuning.left}, tuning)
    faults = saturating, is_unrounded, twice_rounded, limited, wider_codes
    is_right = not any(each(reference, profile) for each in faults)
    return _fastest(measured, reference, request, may_stay=is_right)


def _proved(attempt: Attempt) -> set[str] | None:
    """Return the names of the values that are proved equal; None if all are."""
    if not attempt.is_changed or attempt.certificate.verdict is ProofVerdict.PROVED:
        return None
    regions = attempt.certificate.regions
    return {each.candidate_value for each in regions if each.verdict is ProofVerdict.PROVED}


def _cheaper(
    attempt: Attempt, profile: Profile, proved: Collection[str] | None, keep: Sequence[str]
) -> Attempt:
    """Return a form with fewer operations on each result of a convolution, if it is shown, too.

    What is ``proved``, None for all values, stays proved: scales of such codes are not moved, nor
    those of codes before them, if the proof needs that; nor those after layers to ``keep``.
    """
    if not attempt.is_changed:
        return attempt
    kept = set(proved or ())
    for _ in range(_MOST_ATTEMPTS):
        steps: list[Transform] = []
        if proved is not None:
            encoders = attempt.model.nodes("QuantizeLinear")
            ending = [convolution_before(e) for e in encoders if e.outputs[0].name in kept]
            names = [*keep, *(escaped(label(layer)) for layer in ending if layer)]
            nodes = "|".join(f"!{name}" for name in names) or "*"
            steps.append(UnitScales(nodes=nodes, exact=Exactness.NEAR))
        if joins_limits(profile):
            steps.append(SeparateLimits())
        cheaper = _with(steps, attempt)
        if cheaper is attempt or not (lost := _lost(cheaper, proved or ())):
            return cheaper
        kept |= {theirs for region in lost for _, theirs in region.entries}
        kept |= {region.candidate_value for region in lost}
    return attempt


def _lost(attempt: Attempt, proved: Collection[str]) -> list[RegionVerdict]:
    """Return the regions that are beyond the limits, or that are proved no more."""
    regions = attempt.certificate.regions
    return attempt.failing + [
        each
        for each in regions
        if each.verdict is ProofVerdict.BOUNDED and each.candidate_value in proved
    ]


def _fastest(
    preferred: Preferred, reference: Model, request: Bounding, *, may_stay: bool
) -> Preferred:
    """Return the fastest of the model, the input, the tuned model, and all layers in float.

    All quantizers stay in each of them. The input is chosen only if it ``may_stay`` as it is.
    """
    attempt, tuning = preferred.attempt, preferred.tuning
    if tuning is None:
        raise AssertionError("there are times")
    every = {
        label(layer.node): SLOWER("the whole model was measured to be faster with it in float")
        for layer in layers_of(attempt.model)
        if layer.description.w.is_constant
    }
    choices: dict[str, Left] = {"untuned": {}}
    choices |= {"tuned": preferred.left} if preferred.left else {}
    choices |= {"all in float": every} if preferred.left.keys() != every.keys() else {}
    models = {name: _in_float(attempt.model, left) for name, left in choices.items()}
    timing = replace(tuning.timing, rounds=_ROUNDS)
    plain = float_network(reference)
    try:
        timed = {"float": plain, "input": reference, **models}
        times = bench(list(timed.values()), timing)
    except ExecutionError:  # the runtime does not run the input
        timed = {"float": plain, **models}
        times = bench(list(timed.values()), timing)
    measured = {name: each.median_ms for name, each in zip(timed, times.models, strict=True)}
    ratios = {name: each.ratio for name, each in zip(timed, times.models, strict=True)}
    others = {"float"} if may_stay else {"float", "input"}
    best = min((name for name in timed if name not in others), key=lambda name: ratios[name])
    if ratios[best] > _CLEAR * ratios["untuned"]:
        best = "untuned"
    measurement = replace(tuning, networks=measured, ratios=ratios, chosen=best)
    if best == "input":
        note = "nothing was changed, since the input was measured to be the fastest"
        return Preferred(unchanged(reference, request, note), {}, measurement)
    left = choices[best]
    return Preferred(_leaving(attempt, left), left, measurement)


def _leaving(attempt: Attempt, left: Mapping[str, ExplainedReason]) -> Attempt:
    """Return an attempt with some layers in float."""
    return _with(in_float(left, attempt.model), attempt)


def _with(steps: Sequence[Transform], attempt: Attempt) -> Attempt:
    if not steps:
        return attempt
    model = attempt.model.clone()
    report = model.apply(*steps)
    if not report.sites:
        return attempt
    whole = replace(attempt.report, sites=[*attempt.report.sites], notes=[*attempt.report.notes])
    whole.extend(report)
    return replace(attempt, model=model, report=whole)


def _in_float(model: Model, names: Collection[str]) -> Model:
    """Return a copy of a model with layers in float."""
    copy = model.clone()
    if names:
        copy.apply(*in_float(names))
    return copy
