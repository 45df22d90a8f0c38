"""Leave layers in float if the profile, the size preference or measured times favour that."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from qgraph.bound import Bounding
from qgraph.comparison.bench.measure import Timing, bench
from qgraph.errors import ExecutionError, OptionError
from qgraph.inventory.layers import quantized_layers
from qgraph.model import Model
from qgraph.reasons import ExplainedReason
from qgraph.targets.profile import Profile
from qgraph.targets.unmet import SLOWER
from qgraph.transforms.base import Transform, escaped
from qgraph.transforms.deployment.attempts import Attempt, float_network, unchanged
from qgraph.transforms.deployment.forms import (
    Left,
    Preference,
    failing,
    in_float,
    marked_slower,
    misread_biases,
    packed,
)
from qgraph.transforms.deployment.pipeline import misreads_turned_weights
from qgraph.transforms.deployment.saturation import saturating, unsaturated
from qgraph.transforms.deployment.tuning import Tuning, tune
from qgraph.transforms.drafts.choice import label
from qgraph.transforms.float_products import FloatProducts
from qgraph.transforms.separate_weights import SeparateWeights

_ROUNDS = 21
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
) -> Preferred:
    """Return a model with each layer in its preferred form: on codes, or in float.

    Args:
        attempt: the model in the form that integer kernels take.
        reference: the input.
        profile: of the target.
        request: the limits.
        prefer: the preference.
        shapes: of the inputs of models that are timed, by name.

    Raises:
        OptionError: times are requested for a target that cannot be run here.
        UnsupportedError: the runtime is not installed.
    """
    attempt = _with(unsaturated(attempt.model, profile), attempt)
    biases = misread_biases(attempt.model, profile)
    if misreads_turned_weights(profile):
        attempt = _with([SeparateWeights()], attempt)
    if biases:
        names = "|".join(map(escaped, biases))
        attempt = _with([FloatProducts(nodes=names, data=True)], attempt)
    failed = failing(attempt.model, profile) | saturating(attempt.model, profile)
    attempt = _leaving(attempt, failed)
    failed |= biases
    if prefer is Preference.SIZE:
        return Preferred(attempt, failed | packed(attempt.model))
    if prefer is Preference.SPEED:
        left = marked_slower(attempt.model, profile)
        return Preferred(_leaving(attempt, left), failed | left)
    if profile.executed is None:
        raise OptionError(
            f"{profile.name} cannot be run here, so that no times can be taken. Leave --tune out."
        )
    options = {each.key: each.needed for each in profile.option if each.needed and not each.kernels}
    timing = Timing(profile.executed, shapes=shapes, options=options)
    tuning = tune(attempt.model, timing)
    measured = Preferred(attempt, {**failed, **tuning.left}, tuning)
    is_right = not saturating(reference, profile)
    return _fastest(measured, reference, request, may_stay=is_right)


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
        for layer in quantized_layers(attempt.model.ir)
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
    """Return an attempt after more passes."""
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
