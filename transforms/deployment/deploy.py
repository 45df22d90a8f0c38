"""Rewrite a model so that its target executes it in integers, and prove the result."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy.typing as npt

from qgraph.bound import Against, Bounding, Within
from qgraph.certificate import Identity
from qgraph.comparison.check import Inputs
from qgraph.effort import require_time
from qgraph.errors import (
    EquivalenceError,
    OptionError,
    meant,
    member,
    require,
    shown,
)
from qgraph.lint.engine import LintFinding, chosen_rules, findings_of
from qgraph.lint.facts import ModelFacts
from qgraph.lint.rule import LintLevel
from qgraph.model import Model, Source, load
from qgraph.reporting.deploy_view import NOT_LOADED
from qgraph.reports import SiteStatus
from qgraph.storage.archive import Arrays
from qgraph.targets.engine import runtimes_of
from qgraph.targets.layer import Loads
from qgraph.targets.profile import Profile
from qgraph.targets.reader import profile_of
from qgraph.targets.rules import SATURATES
from qgraph.text import counted
from qgraph.transforms.base import escaped, selects
from qgraph.transforms.deployment.attempts import (
    Attempt,
    always_cut_off,
    condition,
    converted,
    cuts_off_operators,
    for_this_processor,
    not_shown,
    order_of,
    portable,
    saturating,
    unchanged,
    unchanged_layers,
    unstored,
)
from qgraph.transforms.deployment.faults import (
    failing,
    is_misread,
    misread_data,
)
from qgraph.transforms.deployment.forms import (
    Left,
    Preference,
    has_kernel,
    in_pairs,
    layers_of,
    marked_slower,
    packed,
    without_calls,
)
from qgraph.transforms.deployment.listing import TargetRuntime, listed, paired_layers, unmet_of
from qgraph.transforms.deployment.pipeline import steps_for
from qgraph.transforms.deployment.preferences import Preferred, preferred
from qgraph.transforms.deployment.report import DeployedLayer, Deployment, accuracy
from qgraph.transforms.deployment.search import best_form
from qgraph.transforms.drafts.choice import label
from qgraph.version import __version__

_FAMILIES = ("QG1", "QG3", "QG4", "QG6")
"""Rules about correctness, silent changes, speed and portability."""

_NO_LAYER = "there is no quantized layer to rewrite"

_CUT_OFF = "quantizers are unchanged, and layers whose sums would saturate stay in float"

_ROUNDED = ("QG303", "QG330")
"""Rules about float biases and zero points that a target rounds, which no proof contains."""

_TOLD = ("QG401",)
"""Rules about layers that stay in float; the report lists these layers separately."""


def deploy(
    source: Source,
    target: str | os.PathLike[str],
    *,
    within: Within = "1step",
    keep: str | Sequence[str] = (),
    require_all: bool = False,
    prefer: str = Preference.SPEED,
    inputs: Inputs | Arrays | None = None,
    labels: npt.ArrayLike | None = None,
) -> Deployment:
    """Rewrite a model so that a target executes its quantized layers in integer kernels.

    Each rewrite is proved equal, or its distance from the input model in real numbers is bounded. A
    rewrite whose bound exceeds the limit is not done: the layer keeps its form, and the report says
    why.

    Args:
        source: the model; a :class:`qgraph.Model` is changed, as a whole or not at all.
        target: name or path of a profile, see ``qgraph targets``; ``NAME@PROCESSOR`` for another
            processor than the profile's. If none is named, and the runtime shows that this one
            saturates sums of products of 8 bits, it is this one.
        within: limits, see :meth:`qgraph.bound.Limit.parse`; or :class:`qgraph.bound.Bounding` for
            ranges of inputs too. The deployment chooses ``against`` and ``order`` itself.
        keep: one or several patterns of names of layers into which no factors and biases are
            merged.
        require_all: raise if a quantized layer stays in float.
        prefer: ``speed`` leaves layers in float if the profile says that their integer form is
            slower; ``size`` leaves weights of few bits packed; ``tuned`` measures both forms of
            each distinct layer on this machine, and uses the faster one.
        inputs: arrays by name, or paths of files with them, on which the result is compared with
            the input; or :class:`qgraph.Inputs`, whose shapes are also used to time models.
        labels: the labels of the rows of the inputs.

    Raises:
        OptionError: an option is wrong, ``keep`` names no layer, or there is no such target.
        ModelError: the model or the profile is not usable.
        ExecutionError: the model cannot be run on the inputs.
        EquivalenceError: ``require_all`` is set and layers stay in float, or the inputs show that
            a bound is violated.
        UndecidedError: the time limit was reached.
    """
    require(keep, str | list | tuple, "keep", "patterns of names of layers, such as ['conv*']")
    patterns = [keep] if isinstance(keep, str) else list(keep)
    for pattern in patterns:
        require(pattern, str, "keep", "patterns of names of layers, such as ['conv*']")
    named, model = profile_of(target), load(source)
    profile = for_this_processor(named)
    runtime = TargetRuntime(profile)
    source_identity = model.identity()
    reference = without_calls(model)
    data = Inputs.of(inputs)
    if labels is not None and data.feeds is None:
        raise OptionError("Labels are given without inputs, expected both. Add the inputs.")
    preference = member(Preference, prefer, "prefer")
    asked = Bounding.of(within, model.inputs, model.outputs)
    request = replace(asked, against=Against.IDEAL, order=order_of(profile))
    cut_off = always_cut_off(reference, profile)
    note = _CUT_OFF if cut_off else "every quantized layer runs in an integer kernel already"
    attempt = unchanged(reference, request, note)
    deployment = listed(reference, attempt, runtime)
    names = [*(layer.node for layer in deployment.layers), *deployment.unquantized]
    for pattern in patterns:
        if not any(selects(pattern, name) for name in names):
            raise OptionError(
                f"There is no layer {shown(pattern)} to keep, expected names or patterns of names, "
                f"such as {', '.join(names[:3]) or 'none'}.{meant(pattern, names)}"
            )
    if not deployment.layers and deployment.is_executed:
        attempt = unchanged(reference, request, _NO_LAYER)
    elif deployment.left or not deployment.layers or _is_improvable(reference, runtime):
        how = reference, profile, request, patterns
        if preference is Preference.SIZE:
            attempt = best_form(*how, packed(best_form(*how, ()).model))
        else:
            attempt = _gaining(*how, deployment, runtime)
    elif preference is not Preference.SIZE:
        attempt = unchanged_layers(reference, profile, request, note)
    attempt = _loadable(attempt, runtime)
    shapes = data.shapes or {}
    chosen = preferred(attempt, reference, profile, request, preference, shapes, patterns)
    if chosen.attempt.is_changed and chosen.attempt.failing:
        attempt = not_shown(reference, profile, request, chosen.attempt.failing)
        chosen = preferred(attempt, reference, profile, request, preference, shapes, patterns)
        if chosen.attempt.failing:
            chosen = Preferred(attempt, {})
    # What has no kernel for another reason would not be cut off.
    own = unmet_of(attempt.model, profile) if attempt.is_changed else {}
    reasons = {n: own.get(n, r) if r.id == SATURATES.id else r for n, r in chosen.left.items()}
    left = {**_renamed(reasons, reference, attempt.model), **attempt.unmet}
    attempt = chosen.attempt
    wrong = saturating(attempt.model, profile)
    mended = deployment.unquantized.keys() - wrong
    left |= {n: r for n, r in chosen.left.items() if n in mended and r.id == SATURATES.id}
    certificate = replace(attempt.certificate, reference=source_identity)
    deployment = listed(reference, attempt, runtime, left, certificate)
    notes = [*deployment.notes]
    if chosen.tuning is not None and chosen.tuning.note is not None:
        notes.append(chosen.tuning.note)
    if attempt.decoded:
        count = counted(len(attempt.decoded), "layer")
        notes.append(
            f"the stored codes of weights of {count} in float became floats, which is faster and "
            "larger; --prefer size keeps codes"
        )
    if profile is not named:
        notes.append(
            f"this processor has no VNNI, so the result is for {profile.name}@{profile.processor}; "
            f"--target {profile.name}@{named.processor} is for processors that have it"
        )
    if require_all and deployment.left:
        first = deployment.left[0]
        left_over = f"{len(deployment.left)} of {len(deployment.layers)}"
        raise EquivalenceError(
            f"{first.op} {first.node!r}: {first.reason}; {left_over} "
            "quantized layers are left in float, expected none. Change the model there, or omit "
            "--require-all (require_all=True in Python)."
        )
    # A target may take the nodes of functions, and no calls.
    is_inlined = _refusals(model, profile) > _refusals(reference, profile)
    if is_inlined:
        layers = [replace(layer, before=None) for layer in deployment.layers]
        deployment = replace(deployment, layers=layers)
        notes.append(f"functions are written in place of their calls, which {profile.name} refuses")
    has_data = data.feeds is not None or data.random is not None
    deployment = replace(
        deployment,
        notes=notes,
        tuning=chosen.tuning,
        accuracy=accuracy(reference, attempt.model, request, data, labels) if has_data else None,
        findings=_traps(attempt.model, profile, is_loaded=deployment.is_executed),
        conditions=[*filter(None, [condition(attempt.model, profile)])],
        saturating=list(wrong),
    )
    require_time("The layers were rewritten, but their kernels and findings were not read")
    if attempt.is_changed or is_inlined:
        _sign(attempt.model, profile, source_identity)
        model.replace(attempt.model)
    return deployment


def _is_improvable(model: Model, runtime: TargetRuntime) -> bool:
    """Return whether a model needs another form although all of its layers have kernels."""
    profile = runtime.profile
    return bool(
        marked_slower(model, profile)
        or failing(model, profile)
        or unstored(model, profile)
        or cuts_off_operators(model, profile)
        or _misread(model, profile)
        or runtime.refuses(model)
    )


def _loadable(best: Attempt, runtime: TargetRuntime) -> Attempt:
    """Return a form, or one with plain operators in which the target refuses less.

    If no layer has a kernel, all quantizers may become plain operators, else those it refuses.
    """
    model, profile = best.model, runtime.profile
    refuses = runtime.refuses(model)
    if not refuses and (profile.executed is not None or not _refusals(model, profile)):
        return best
    is_float = not any(has_kernel(each, profile) for each in layers_of(model))
    for base in [None, best] if is_float else [best]:
        plain = portable(best.reference, base, profile, best.request)
        refused = runtime.refuses(plain.model) + _refusals(plain.model, profile)
        if refused < refuses + _refusals(model, profile) and not plain.failing:
            return _instead_of(best, plain, profile)
    return best


def _gaining(
    reference: Model,
    profile: Profile,
    request: Bounding,
    keep: Sequence[str],
    before: Deployment,
    runtime: TargetRuntime,
) -> Attempt:
    """Return the best form if it has more integer kernels; else only the changes needed to load it.

    ``before`` is the report on the unchanged input.
    """
    if not before.layers and (loadable := _without_layers(reference, request, runtime)):
        return loadable
    all_cut_off = len(before.layers) == len(always_cut_off(reference, profile)) > 0
    if all_cut_off and not runtime.refuses(reference):
        return unchanged_layers(reference, profile, request, _CUT_OFF)
    attempt = best_form(reference, profile, request, keep)
    after = listed(reference, attempt, runtime)
    if _is_taken(reference, attempt.model, runtime):
        if worse := _worse(before, after):
            kept = [escaped(layer.node) for layer in worse]
            attempt = best_form(reference, profile, request, [*keep, *kept])
            after = listed(reference, attempt, runtime)
        models = reference, attempt.model
        slower = [len(marked_slower(each, profile)) for each in models]
        misread = [_misread(each, profile) for each in models]
        # What fails or saturates is left in float, although the session lists a kernel for it.
        left = [
            len(each.left)
            + (len(failing(model, profile)) if each.is_executed else 0)
            + sum(
                has_kernel(layer, profile)
                for layer in layers_of(model)
                if layer.node in always_cut_off(model, profile)
            )
            for each, model in zip((before, after), models, strict=True)
        ]
        is_idle = left[1] >= left[0] and slower[1] >= slower[0]
        is_idle = is_idle and misread[1] >= misread[0] and not unstored(reference, profile)
        is_idle = is_idle and not cuts_off_operators(reference, profile)
        if _worse(before, after) or is_idle:
            note = attempt.obstacle or "no form has more layers in integer kernels"
            return _instead_of(
                attempt, unchanged_layers(reference, profile, request, note), profile
            )
    elif not any(has_kernel(layer, profile) for layer in layers_of(attempt.model)):
        plain = converted(reference, profile, request)
        if _is_taken(plain.model, attempt.model, runtime) and not plain.failing:
            return _instead_of(attempt, plain, profile)
    return attempt


def _instead_of(best: Attempt, other: Attempt, profile: Profile) -> Attempt:
    """Return another form than the best one, with the reasons why that one has no kernels."""
    refused = [site for site in best.report.sites if site.outcome is SiteStatus.REFUSED]
    other.report.sites += refused
    unmet = _renamed(unmet_of(best.model, profile), best.reference, best.model)
    other.unmet = best.unmet or unmet
    return other


def _without_layers(reference: Model, request: Bounding, runtime: TargetRuntime) -> Attempt | None:
    """Return what is needed to load a model that no form gives a quantized layer.

    None if a form does, or if conversion alone is not enough.
    """
    profile = runtime.profile
    form = reference.clone()
    form.apply(*steps_for(profile))
    if layers_of(form) or is_misread(reference, profile):
        return None
    if _is_taken(reference, form, runtime):
        return unchanged_layers(reference, profile, request, _NO_LAYER)
    plain = converted(reference, profile, request)
    loads = _is_taken(plain.model, form, runtime)
    return plain if loads and not plain.failing else None


def _traps(model: Model, profile: Profile, *, is_loaded: bool) -> tuple[LintFinding, ...]:
    """Return the findings of lint in a result that its list of layers does not contain.

    If the runtime has loaded the result, what the profile says against that does not hold.
    """
    ignored = (*_TOLD, *NOT_LOADED) if is_loaded else _TOLD
    findings = findings_of(ModelFacts(model.ir, profile), chosen_rules(_FAMILIES, ignored))
    return tuple(
        each
        for each in findings
        if each.severity.rank <= LintLevel.WARNING.rank or each.rule.id in _ROUNDED
    )


def _misread(model: Model, profile: Profile) -> int:
    """Return how often a target reads codes or biases wrongly, or rounds a bias, silently."""
    rounded = findings_of(ModelFacts(model.ir, profile), chosen_rules(_ROUNDED))
    return is_misread(model, profile) + len(misread_data(model, profile)) + len(rounded)


def _renamed(left: Left, reference: Model, model: Model) -> Left:
    """Return reasons by names of layers of the reference instead of names in the result."""
    if not left:
        return left
    pairs = paired_layers(*map(layers_of, (in_pairs(reference), model)))
    names = {name: label(layer.node) for name, layer in pairs.items()}
    return {name: left[own] for name, own in names.items() if own in left}


def _is_taken(model: Model, result: Model, runtime: TargetRuntime) -> bool:
    """Return whether the target loads a model; if it cannot be run, as much as the result."""
    if runtime.profile.executed is not None:
        return runtime.runs(model)
    return _refusals(model, runtime.profile) <= _refusals(result, runtime.profile)


def _refusals(model: Model, profile: Profile) -> int:
    """Return how many reasons a profile gives against loading a model."""
    (verdict,) = runtimes_of(model.ir, [profile])
    return sum(reason.loads is Loads.NO for reason in verdict.reasons)


def _worse(before: Deployment, after: Deployment) -> list[DeployedLayer]:
    """Return the layers that lost their kernels, if both models were run, or neither was."""
    is_alike = before.is_executed == after.is_executed
    return [layer for layer in after.layers if is_alike and layer.before and not layer.kernel]


def _sign(model: Model, profile: Profile, source: Identity) -> None:
    """Write the name and version of the producer into the model."""
    facts = {"version": __version__, "target": profile.name, "profile": profile.digest}
    facts["input"] = source.sha256 or ""
    model.ir.metadata_props.update({f"qgraph.deploy.{k}": v for k, v in facts.items()})
