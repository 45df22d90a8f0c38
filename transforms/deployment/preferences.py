"""Leave layers in float if the profile, the size preference or measured times favour that.

For times, both forms of each distinct layer are measured on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from qgraph.bound import Bounding
from qgraph.comparison.bench import Timing, bench
from qgraph.comparison.divergence import excerpt, frontier
from qgraph.errors import ExecutionError, OptionError, QGraphError
from qgraph.graph.inference.dimensions import Dim
from qgraph.graph.inference.walk import open_interface, with_facts
from qgraph.graph.opset.rewrites import unsigned_copies
from qgraph.inventory.layers import FoundLayer, quantized_layers
from qgraph.model import Model
from qgraph.reasons import ExplainedReason
from qgraph.records import by_key, dataclass, field, replace
from qgraph.targets.layer import LAYERS
from qgraph.targets.profile import Profile
from qgraph.targets.rules import SLOWER
from qgraph.text import as_json, fields_json
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
    FLOAT,
    Left,
    Preference,
    in_float,
    layers_of,
    marked_slower,
    packed,
)
from qgraph.transforms.deployment.pipeline import (
    copies_unsigned_pairs,
    misreads_row_sums,
    misreads_turned_weights,
)
from qgraph.transforms.drafts.choice import label
from qgraph.transforms.runtime_faults import FloatProducts, FloatSums, SeparateWeights
from qgraph.transforms.simpler_ranges import KeepRoundings

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
    if prefer is Preference.SIZE:
        return Preferred(attempt, failed | packed(attempt.model))
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


_ENDS = LAYERS | {"DequantizeLinear"}
_FURTHEST = 12
"""Operators that may lie between a layer and the quantizer of its result."""

Progress = Callable[[int, int], None]

_LAYER_ROUNDS = 9
_CLEARLY_SLOWER = 1.05
"""A layer is left in float if its integer form takes more than this share of the float time."""


@dataclass(frozen=True)
class TunedForm:
    """Both forms of layers with equal operator, shapes, attributes and types.

    Attributes:
        integer_ms, float_ms: median times of the layer and the operators up to the next codes.
        ratio: median over the rounds of the ratio of the integer to the float time.
    """

    layers: Sequence[str]
    op: str
    shapes: Sequence[Sequence[int]]
    integer_ms: float
    float_ms: float
    ratio: float

    @property
    def is_slower(self) -> bool:
        """Whether the integer form is clearly slower."""
        return self.ratio > _CLEARLY_SLOWER

    def to_json(self) -> dict[str, Any]:
        """Return the fields, and the chosen form."""
        return vars(self) | {"chosen": FLOAT if self.is_slower else "integer"}


@dataclass(frozen=True)
class Tuning:
    """Measured times of layers and of whole models.

    Attributes:
        networks: median times of the ``float`` network without quantizers, and of the whole model
            as ``input``, ``untuned``, ``tuned``, and ``all in float``.
        ratios: medians over the rounds of their ratios to the float network.
        chosen: the variant that is the result.
    """

    runtime: str
    timing: Timing
    forms: Sequence[TunedForm]
    networks: Mapping[str, float] = field(default_factory=dict)
    ratios: Mapping[str, float] = field(default_factory=dict)
    chosen: str = "untuned"

    @property
    def left(self) -> Left:
        """The layers that are faster in float."""
        return {
            name: SLOWER(f"its integer form was measured to take {each.ratio:.3g} of float's time")
            for each in self.forms
            if each.is_slower
            for name in each.layers
        }

    @property
    def note(self) -> str | None:
        """Remark if the result is slower than the network in float; otherwise None."""
        ratio = self.ratios.get(self.chosen, 0.0)
        if ratio <= 1:
            return None
        return (
            f"the fastest form ({self.chosen}) takes {ratio:.3g} times as long as the network in "
            "float: its quantizers, which all stay, cost more than its integer kernels save"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the report."""
        return {
            "runtime": self.runtime,
            **fields_json(self.timing, "threads", "batch"),
            "forms": as_json(self.forms),
            "milliseconds": dict(self.networks),
            "ratios": dict(self.ratios),
            "chosen": self.chosen,
        }


def tune(model: Model, timing: Timing, progress: Progress = lambda done, total: None) -> Tuning:
    """Measure both forms of each distinct layer of a model in integer form, each in its own model.

    ``progress`` is called after each of them.

    Raises:
        UnsupportedError: the runtime is not installed.
    """
    timing = replace(timing, rounds=_LAYER_ROUNDS)
    groups = by_key((_signature(part.ir), (name, part)) for name, part in _parts(model, timing))
    forms, runtime = list[TunedForm](), str(timing.runtime)
    for number, members in enumerate(groups.values()):
        name, part = members[0]
        progress(number, len(groups))
        plain = part.clone()
        plain.apply(*in_float([name]))
        try:
            report = bench([plain, part], replace(timing, shapes={}))
        except ExecutionError:
            continue  # the runtime does not run it alone
        runtime, (slow, own) = report.runtime, report.models
        shapes = [list(value.shape.numpy() if value.shape else ()) for value in part.inputs]
        op = next(node.op_type for node in part.nodes() if label(node) == name)
        names = [each for each, _ in members]
        forms.append(TunedForm(names, op, shapes, own.median_ms, slow.median_ms, own.ratio))
    return Tuning(runtime, timing, forms)


def _parts(model: Model, timing: Timing) -> list[tuple[str, Model]]:
    """Return, for each layer with constant weights, the model from codes to its codes."""
    interface: dict[str, tuple[Dim, ...]] = {}
    for name, sizes in open_interface(model.ir).items():
        first = sizes[:1] if isinstance(sizes[0] if sizes else 0, int) else (timing.batch,)
        interface[name] = tuple(timing.shapes.get(name) or (*first, *sizes[1:]))
    whole = Model(with_facts(model.ir, interface))
    parts = []
    for layer in quantized_layers(whole.ir):
        part = _part(whole, layer) if layer.description.w.is_constant else None
        if part is not None:
            parts.append((label(layer.node), part))
    return parts


def _part(whole: Model, layer: FoundLayer) -> Model | None:
    """Return the model of one layer; None if its shapes are not known."""
    end = _end(layer.node.outputs[0])
    decoded = [node.inputs[0] for node in whole.nodes("DequantizeLinear")]
    codes = [value for value in decoded if value is not None and value.producer() is not None]
    starts = [value for value in frontier(whole.ir.graph, end, codes) if not value.is_initializer()]
    shapes = [value.shape for value in starts]
    if not all(shape is not None and shape.is_static() for shape in shapes):
        return None
    pairs = [(str(value.name), str(value.name)) for value in starts]
    try:
        part = excerpt(whole, pairs, (str(end.name), str(end.name)), [])
    except (QGraphError, ValueError):
        return None
    start_of = dict(zip([name for name, _ in pairs], zip(starts, shapes, strict=True), strict=True))
    for value in part.graph.inputs:
        start, shape = start_of[str(value.name)]
        value.type, value.shape = start.type, shape
    return Model(part)


def _end(value: ir.Value) -> ir.Value:
    """Return the codes of a result, or the result if it has several readers before its codes."""
    end = value
    for _ in range(_FURTHEST):
        uses = list(end.uses())
        if len(uses) != 1 or uses[0].node.op_type in _ENDS or end.is_graph_output():
            return end
        end = uses[0].node.outputs[0]
    return value


def _signature(part: ir.Model) -> str:
    """Return a key that is equal for layers that take the same time in every form."""
    return str(
        [
            (
                node.op_type,
                sorted((name, str(each.value)) for name, each in node.attributes.items()),
                [_form(value) for value in node.inputs],
            )
            for node in part.graph
        ]
    )


def _form(value: ir.Value | None) -> tuple[str, str] | None:
    """Return type and shape of an input or a constant."""
    if value is None or value.producer() is not None:
        return None
    return str(value.dtype), str(value.shape)
