"""List the layers of a deployed model, with their kernels and rewrites."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Generic, TypeVar

import onnx_ir as ir

from qgraph.certificate import Certificate, Identity, RegionVerdict
from qgraph.errors import ExecutionError, QGraphError, UnsupportedError
from qgraph.exactness import Exactness, ProofVerdict
from qgraph.inventory.executed import ExecutedGraph, executed
from qgraph.inventory.layers import FoundLayer
from qgraph.inventory.operands import OperandReader
from qgraph.model import Model
from qgraph.quantizers.sites import readable_sites
from qgraph.reasons import NO_PARTNER, OTHER, UNREADABLE, ExplainedReason, id_of
from qgraph.records import dataclass
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.targets.engine import KernelMatch, kernel_of
from qgraph.targets.layer import LAYERS, QuantizedLayer
from qgraph.targets.profile import Profile
from qgraph.targets.rules import NOT_CODES, PREDICTION
from qgraph.transforms.base import ABOUT_RUNTIME
from qgraph.transforms.deployment.attempts import Attempt
from qgraph.transforms.deployment.forms import Left, in_pairs, kept, layers_of
from qgraph.transforms.deployment.report import DeployedLayer, Deployment, einsum_note, unquantized
from qgraph.transforms.drafts.choice import label

KERNELS = (
    "ConvInteger",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "QGemm",
    "QLinearConv",
    "QLinearMatMul",
)
"""Operators that are integer kernels themselves."""

T = TypeVar("T")

_ENCODER = "QuantizeLinear"
_READING = (NO_PARTNER.id, UNREADABLE.id)


@dataclass(frozen=True)
class _Taken:
    """The kernel of a layer, or the reason why there is none."""

    kernel: str | None
    reason: str | None = None


class TargetRuntime:
    """The runtime of a target. It loads each model once, to save memory."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._known: dict[int, tuple[Model, ExecutedGraph | QGraphError]] = {}

    def outcome(self, model: Model) -> ExecutedGraph | QGraphError | None:
        """Return the executed graph, or why there is none; None for a target that cannot be run."""
        if self.profile.executed is None:
            return None
        if id(model) not in self._known:
            try:
                self._known[id(model)] = model, executed(model.ir, self.profile.executed)
            except (ExecutionError, UnsupportedError) as error:
                self._known[id(model)] = model, error
        return self._known[id(model)][1]

    def runs(self, model: Model) -> bool:
        """Return whether the runtime is installed and runs the model."""
        return isinstance(self.outcome(model), ExecutedGraph)

    def refuses(self, model: Model) -> bool:
        """Return whether the runtime is installed but cannot run the model."""
        return isinstance(self.outcome(model), ExecutionError)


def _kernels(
    model: Model, runtime: TargetRuntime, *, run: bool
) -> tuple[dict[str, _Taken], Collection[str]]:
    """Return the kernel of each quantized layer, by name, and all executed products.

    Kernels are predicted by the profile, or read from the executed graph with ``run``.

    Raises:
        ExecutionError: the runtime refuses the model.
        UnsupportedError: the runtime is not installed.
    """
    profile = runtime.profile
    layers = [layer.description for layer in layers_of(model)]
    taken = {layer.node: _predicted(layer, profile) for layer in layers}
    graph = runtime.outcome(model) if run else None
    if isinstance(graph, QGraphError):
        raise graph
    if graph is None:
        return taken, ()
    for each in graph.layers:
        predicted = taken[each.node].kernel
        if each.is_integer:
            taken[each.node] = _Taken(each.kernel)
        elif predicted is not None:
            text = f"the profile predicts {predicted}, the runtime executes {each.kernel}"
            taken[each.node] = _Taken(None, PREDICTION(text))
    return taken, graph.kernels


def _predicted(layer: QuantizedLayer, profile: Profile) -> _Taken:
    """Return the kernel that the profile predicts for a layer."""
    match = kernel_of(layer, profile)
    if isinstance(match, KernelMatch):
        return _Taken("/".join(match.kernel.runs) or match.kernel.id)
    text = "; ".join(dict.fromkeys(map(str, match.reasons)))
    return _Taken(None, ExplainedReason(text, match.reasons[-1].id) if match.reasons else None)


def unmet_of(model: Model, profile: Profile) -> dict[str, ExplainedReason]:
    """Return why no kernel of a target accepts the layers of a model."""
    layers = {label(each.node): each.description for each in layers_of(model)}
    taken = {name: _predicted(layer, profile).reason for name, layer in layers.items()}
    return {name: reason for name, reason in taken.items() if isinstance(reason, ExplainedReason)}


def _unread(layer: QuantizedLayer, profile: Profile, result: Model) -> _Taken:
    """Return why a layer of the input that is not quantized in the result has no kernel."""
    taken = _predicted(layer, profile)
    if taken.kernel is None:
        return taken
    reader = _reader(result)
    operands = {
        what: value.name
        for node in result.nodes(layer.op)
        for what, value in zip(("data", "weights"), node.inputs, strict=False)
        if label(node) == layer.node and value is not None and reader.operand(value) is None
    }
    names = " and ".join(f"{what}, {name!r}," for what, name in operands.items())
    text = f"no plain quantizer of its {names or 'data or weights'} could be written"
    return _Taken(None, NOT_CODES(text))


@kept
def _reader(model: Model) -> OperandReader:
    """Return the reader of the operands of a model."""
    return OperandReader(model.ir, readable_sites(model.ir), None)


@kept
def _readable(model: Model) -> set[str]:
    """Return the names of the nodes of the quantizers of a model."""
    return {label(node) for site in readable_sites(model.ir) for node in site.nodes}


@kept
def _others(model: Model) -> tuple[dict[str, str], str | None]:
    """Return why products of an input are no quantized layers, and a note about its Einsums."""
    plain = in_pairs(model)
    read = readable_sites(plain.ir)
    names = {layer.description.node for layer in layers_of(plain)}
    return unquantized(plain, read, names), einsum_note(plain, read)


_UNPROVED = Certificate(
    ProofVerdict.UNDECIDED, None, Identity(None, None), Identity(None, None), ()
)


def listed(
    reference: Model,
    attempt: Attempt,
    runtime: TargetRuntime,
    chosen: Left = MappingProxyType({}),
    certificate: Certificate = _UNPROVED,
) -> Deployment:
    """Return the report of an attempt: its layers, their kernels and its figures.

    Layers of the input that are left in float by choice are ``chosen``, with the reason. The
    ``certificate`` is that of the attempt; it is left out where attempts are only compared.
    """
    profile = runtime.profile
    result = attempt.model if attempt.is_changed else reference
    layers = layers_of(in_pairs(reference))
    floats, einsums = _others(reference)
    ends = paired_layers(layers, layers_of(result))
    own, left = _coded(reference, profile), _coded(attempt.model, profile)
    notes = [*filter(None, [einsums])]
    refusal = None
    try:
        (after, kinds), run = _kernels(result, runtime, run=True), profile.executed is not None
    except (ExecutionError, UnsupportedError) as error:
        refusal = str(error) if isinstance(error, ExecutionError) else None
        notes.append(f"kernels are predicted by the profile, not read from the runtime: {error}")
        (after, kinds), run = _kernels(result, runtime, run=False), False
    try:
        before, _ = _kernels(reference, runtime, run=run)
    except ExecutionError:
        before = {}  # it does not load, so nothing runs in integers
    readable, told = _readable(attempt.model), _Told(attempt.report, certificate.regions)
    rows = []
    for layer in layers:
        name = layer.description.node
        values, end = _made(layer), ends.get(name)
        source, stayed = (
            next((each[v] for v in values if v in each), None) for each in (own, left)
        )
        names = _names(layer) | (set() if end is None else _names(end))
        was = before.get(name, _Taken(None if source is None else source.op_type)).kernel
        if end is not None:
            taken = after[end.description.node]
        elif stayed is not None:
            taken = _Taken(stayed.op_type)
        elif name in attempt.decoded:
            taken = _predicted(attempt.decoded[name], profile)
        else:
            taken = _unread(layer.description, profile, result)
        if taken.kernel is None and name in chosen:
            taken = _Taken(None, chosen[name])
        own_name = name if source is None else label(source)
        node = own_name, layer.description.op
        rows.append(_row(node, names, taken, was, told, readable))
    # products behind operators, which the runtime would compute on codes
    for product in in_pairs(reference).nodes(*LAYERS):
        name = label(product)
        if name in floats and name in chosen:
            taken, node = _Taken(None, chosen[name]), (name, product.op_type)
            rows.append(_row(node, {name}, taken, None, told, readable))
    listed_names = {row.node for row in rows}
    return Deployment(
        profile.name,
        profile.digest,
        profile.executed,
        rows,
        run,
        certificate,
        attempt.report.weight_bytes_before,
        attempt.report.weight_bytes_after,
        {
            each.key: each.needed
            for each in profile.option
            if each.needed is not None and (not each.kernels or {*each.kernels} & {*kinds})
        },
        [*notes, *(n for n in attempt.report.notes if not n.startswith(ABOUT_RUNTIME))],
        unquantized={n: why for n, why in floats.items() if n not in listed_names},
        processor=profile.processor,
        refusal=refusal,
    )


def _coded(model: Model, profile: Profile) -> dict[str | None, ir.Node]:
    """Return operators that are integer kernels of a target themselves, by their result.

    A target whose executed graphs contain none of them accepts only layers between quantizers.
    """
    if not any(set(kernel.runs) & set(KERNELS) for kernel in profile.kernel):
        return {}
    return {node.outputs[0].name: node for node in model.nodes(*KERNELS)}


def paired_layers(
    layers: Sequence[FoundLayer], others: Sequence[FoundLayer]
) -> dict[str, FoundLayer]:
    """Return the layer of the result for each layer of the input, by its name in the input.

    A replaced layer and its replacement compute values of the same name.
    """
    by_name = {other.description.node: other for other in others}
    names = [layer.description.node for layer in layers]
    pairs = {name: by_name[name] for name in names if name in by_name}
    taken = set(pairs.values())
    rest = {
        str(value): other for other in others if other not in taken
        for value in reversed(_made(other))
    }  # fmt: skip
    for layer in layers:
        other = next((rest[value] for value in _made(layer) if value in rest), None)
        if layer.description.node not in pairs and other is not None:
            pairs[layer.description.node] = other
            for value in _made(other):
                if rest.get(value) is other:
                    del rest[value]
    return pairs


def _made(layer: FoundLayer) -> list[str]:
    """Return the names of the result of a layer, and of its codes."""
    values = [value for node in (layer.node, *layer.follows) for value in node.outputs]
    codes = [user.outputs[0] for user in values[-1].consumers() if user.op_type == _ENCODER]
    return [str(value.name) for value in (*values, *codes)]


def _names(layer: FoundLayer) -> set[str]:
    """Return the names of a layer, of the following nodes, and of the quantizers of its result."""
    names = {label(node) for node in (layer.node, *layer.follows)}
    behind = [layer.node] if layer.description.y is None else []
    while behind:
        for user in (each for value in behind.pop().outputs for each in value.consumers()):
            if label(user) not in names and user.op_type not in LAYERS:
                names.add(label(user))
                behind += [] if user.op_type == _ENCODER else [user]
    return names


class _Named(Generic[T]):
    """Entries of a list, found by the names that they mention."""

    def __init__(self, entries: Iterable[T], names: Callable[[T], Iterable[str]]) -> None:
        self._entries = list(entries)
        self._places: dict[str, list[int]] = {}
        for place, each in enumerate(self._entries):
            for name in names(each):
                self._places.setdefault(name, []).append(place)

    def of(self, names: Iterable[str]) -> list[T]:
        """Return the entries that mention any of some names, in their order."""
        places = {place for name in names for place in self._places.get(name, ())}
        return [self._entries[place] for place in sorted(places)]


class _Told:
    """What report and certificate say about nodes: proved regions, changed and refused sites."""

    def __init__(self, report: Report, regions: Sequence[RegionVerdict]) -> None:
        self.regions = _Named(regions, lambda r: (*r.reference_nodes, *r.candidate_nodes))
        self.changed = _Named(_with(report, SiteStatus.CHANGED), _mentioned)
        self.refused = _Named(_with(report, SiteStatus.REFUSED), lambda site: (site.node,))


def _with(report: Report, outcome: SiteStatus) -> Iterator[SiteReport]:
    return (site for site in report if site.outcome is outcome)


def _mentioned(site: SiteReport) -> Iterable[str]:
    """Return the name of a site, and those in its figures."""
    return site.node, *", ".join(map(str, site.figures.values())).split(", ")


def _row(
    node: tuple[str, str],
    names: set[str],
    taken: _Taken,
    before: str | None,
    told: _Told,
    readable: set[str],
) -> DeployedLayer:
    """Return the line of one layer of the input, given by name and operator.

    Names are those of its nodes up to the quantizer of its result, in both models. A pass that
    could not read a ``readable`` node came before the passes that mended it.
    """
    regions = told.regions.of(names)
    rewrites = dict.fromkeys(site.pass_name for site in told.changed.of(names))
    reason = taken.reason
    if reason is not None:
        causes = {
            f"{site.pass_name}: {site.reason}": site.reason_id
            for site in told.refused.of(names)
            if not (site.reason_id in _READING and site.node in readable)
        }
        # What a pass refused decides: it would have mended the reasons before.
        known = [id_of(reason), *causes.values()]
        last = next(filter(None, reversed(known)), OTHER.id)
        reason = ExplainedReason("; ".join([reason, *causes]), last)
    levels = [region.exactness for region in regions if region.exactness is not None]
    bounds = [region.bound for region in regions if region.bound is not None]
    return DeployedLayer(
        *node,
        taken.kernel,
        reason,
        id_of(reason),
        list(rewrites),
        str(ProofVerdict.BOUNDED) if bounds else str(min(levels, default=Exactness.BITS)),
        max(bounds, key=lambda bound: bound.deviation_steps, default=None),
        before,
    )
