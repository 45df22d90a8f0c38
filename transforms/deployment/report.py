"""Report of ``deploy``: layers with kernels and bounds, accuracy on data, and the next step."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.bound import Bound, Bounding
from qgraph.certificate import Certificate, ProofVerdict
from qgraph.comparison.check import Inputs, check
from qgraph.comparison.tolerance import BoundsReport, Scoring, Tolerances
from qgraph.errors import EquivalenceError, ExecutionError, OptionError, meant, shown
from qgraph.graph.constants import constant_tensor
from qgraph.graph.scopes import node_name
from qgraph.inventory.layers import quantized_einsums
from qgraph.lint.engine import LintFinding
from qgraph.model import Model
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.movement import MOVES
from qgraph.quantizers.quantizer import Truncating
from qgraph.records import field, guarded
from qgraph.reporting.deploy_view import not_loaded
from qgraph.targets.layer import LAYERS
from qgraph.text import Displayed, counted, fields_json
from qgraph.transforms.deployment.tuning import Tuning
from qgraph.version import head


@guarded(frozen=True)
class DeployedLayer:
    """A convolution or matrix product whose operands are codes of 16 bits or fewer.

    Attributes:
        node: its name in the input.
        kernel: its integer kernel; None if there is none.
        reason: why it has no integer kernel, or a remark.
        reason_id: stable id of the reason; None if there is none.
        rewrites: the passes that changed it, or something between it and its quantizers.
        exactness: lowest level of its segments, possibly ``bounded``; None if not decided.
        bound: the largest bound of its segments; None if none is bounded.
        before: its integer kernel in the input; None if there is none.
    """

    node: str
    op: str
    kernel: str | None
    reason: str | None = None
    reason_id: str | None = None
    rewrites: Sequence[str] = ()
    exactness: str | None = None
    bound: Bound | None = None
    before: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return fields_json(self)


@guarded(frozen=True, repr=False)
class Deployment(Displayed):
    """The result of :func:`qgraph.deploy`.

    Attributes:
        profile: its SHA-256.
        runtime: module of the runtime; None if there is none.
        layers: the quantized layers of the input, in order.
        is_executed: whether kernels were read from the graph that the runtime executes; if not, the
            profile predicts them.
        certificate: certificate of the input and the result.
        weight_bytes_before, weight_bytes_after: sizes of all weights.
        session_options: options that a session must set for the result.
        accuracy: comparison on data; None without data.
        tuning: the measured forms of layers; None if none were measured.
        measured: times; None if not measured.
        findings: warnings and errors of lint in the result, mostly about what the target changes
            silently, and float biases that it rounds; layers that are left in float are not
            repeated.
        unquantized: the convolutions and matrix products that are no quantized layers, and why.
        processor: for which the result is.
        conditions: what else than the certificate's conditions must hold.
        refusal: why the installed runtime does not load the result; None if it does, or is not
            known.
        saturating: names of layers whose sums the processor can cut off; they are wrong then.
    """

    target: str
    profile: str
    runtime: str | None
    layers: Sequence[DeployedLayer]
    is_executed: bool
    certificate: Certificate
    weight_bytes_before: int
    weight_bytes_after: int
    session_options: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    accuracy: Accuracy | None = None
    tuning: Tuning | None = None
    measured: Mapping[str, Any] | None = None
    findings: Sequence[LintFinding] = ()
    unquantized: Mapping[str, str] = field(default_factory=dict)
    processor: str = "any"
    conditions: Sequence[str] = ()
    refusal: str | None = None
    saturating: Sequence[str] = ()

    @property
    def summary(self) -> str:
        """Number of layers in integer kernels, and the verdict."""
        done = sum(layer.kernel is not None for layer in self.layers)
        return f"{done} of {len(self.layers)} layers in integer kernels, {self.certificate.verdict}"

    def explained(self, name: str) -> list[str]:
        """Return sentences about a layer.

        Raises:
            OptionError: no quantized layer has this name.
        """
        names = [layer.node for layer in self.layers]
        if name in self.unquantized:
            return [f"{name!r} is not quantized, so it runs in float: {self.unquantized[name]}."]
        if name not in names:
            labels = ", ".join(names) or "none"
            raise OptionError(
                f"There is no quantized layer {shown(name)}, expected one of {labels}."
                f"{meant(name, names)}"
            )
        layer = self.layers[names.index(name)]
        sentences = [f"{layer.op} {name!r} runs in {layer.kernel or 'float'} on {self.target}."]
        sentences.append(f"In the input it runs in {layer.before or 'float'}.")
        if layer.reason is not None:
            sentences.append(f"No integer kernel accepts it: {layer.reason} [{layer.reason_id}].")
        if layer.rewrites:
            sentences.append(f"Rewritten by {', '.join(layer.rewrites)}.")
        if layer.bound is not None:
            sentences.append(
                f"Its codes differ by at most {layer.bound.max_steps} steps from those of the "
                "input in real numbers, and only within "
                f"{layer.bound.tie_distance_steps:.2g} steps of a tie."
            )
        elif layer.exactness is not None:
            sentences.append(f"Its segments are equal: {layer.exactness}.")
        return sentences

    @property
    def left(self) -> list[DeployedLayer]:
        """The layers without an integer kernel."""
        return [layer for layer in self.layers if layer.kernel is None]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON report, without the files."""
        # Bounded segments without a layer, such as means and sums, count too.
        bounds = [
            region.bound
            for region in self.certificate.regions
            if region.bound is not None and region.verdict is ProofVerdict.BOUNDED
        ]
        return {
            **head("deploy"),
            **fields_json(self, "target", "processor", "profile", "layers"),
            "executed": self.is_executed,
            "refusal": self.refusal,
            "verdict": str(self.certificate.verdict),
            "limits": list(map(str, self.certificate.bounding.limits)),
            "against": str(self.certificate.bounding.against),
            "order": self.certificate.bounding.order,
            "summary": {
                "quantized_layers": len(self.layers),
                "integer_layers": len(self.layers) - len(self.left),
                "saturating_layers": len(self.saturating),
                "integer_layers_before": sum(layer.before is not None for layer in self.layers),
                **fields_json(self, "weight_bytes_before", "weight_bytes_after"),
                "max_steps": max((bound.max_steps for bound in bounds), default=0),
                "tie_distance_steps": max((b.tie_distance_steps for b in bounds), default=0.0),
                "reference_error": max((b.reference_error for b in bounds), default=0.0),
            },
            "conditions": [*map(str, self.certificate.conditions), *self.conditions],
            "session_options": dict(self.session_options),
            "notes": [*self.notes, *filter(None, [unquantized_note(self.unquantized)])],
            **fields_json(self, "accuracy", "tuning", "measured", "findings"),
        }


_SHOWN = 3


def unquantized(model: Model, sites: Sequence[Site], layers: Collection[str]) -> dict[str, str]:
    """Return why products of the main graph are not among the quantized layers, by name."""
    coded = {site.y: site for site in sites}
    reasons = {}
    for node in model.nodes(*LAYERS):
        name = node_name(node)
        if name not in layers and not node.domain and node.graph is model.ir.graph:
            own = (_reason(value, coded) for value in node.inputs[:2])
            reasons[name] = next(
                filter(None, own), "its codes are not integers of 16 bits or fewer"
            )
    return reasons


def unquantized_note(reasons: Mapping[str, str]) -> str | None:
    """Return a sentence about products that are not quantized layers; None if there are none."""
    if not reasons:
        return None
    shown = [f"{name} ({reason})" for name, reason in list(reasons.items())[:_SHOWN]]
    more = f"; and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
    return f"not quantized, so in float and not listed: {'; '.join(shown)}{more}"


def einsum_note(model: Model, sites: Sequence[Site]) -> str | None:
    """Return a sentence about each Einsum whose operands are quantized; None if there is none."""
    names = [node_name(node) for node in quantized_einsums(model.ir, sites)]
    if not names:
        return None
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (
        f"{', '.join(names[:_SHOWN])}{more}: profiles do not describe Einsum of quantized data, so "
        "it is not listed, and may run on codes or in float; export MatMul"
    )


def _reason(operand: ir.Value | None, coded: Mapping[ir.Value, Site]) -> str | None:
    """Return why an operand is not the result of a quantizer that rounds; None if it is."""
    while operand is not None and operand not in coded:
        maker = operand.producer()
        if maker is None or maker.op_type not in MOVES or maker.domain:
            if constant_tensor(operand) is not None:
                return "its weights have no quantizer"
            source = f"input {operand.name!r}" if maker is None else maker.op_type
            return f"no quantizer between {source} and it"
        operand = maker.inputs[0]
    site = None if operand is None else coded[operand]
    if site is not None and isinstance(site.quantizer, Truncating):
        return "it reads the result of a Trunc, which is not quantized again"
    return None


def proof_command(request: Bounding, source: str, result: str) -> str:
    """Return the command line that repeats the proof of a deployment from one path to another."""
    words = ["qgraph", "prove", source, result]
    for limit in request.limits:
        words += ["--within", str(limit)]
    words += ["--against", str(request.against), "--order", request.order]
    for name, (low, high) in request.ranges.items():
        words += ["--range", f"{name}={low!r}:{high!r}"]
    return shlex.join(words)


def advice(document: Mapping[str, Any]) -> str:
    """Return the most useful next step after a deployment, by its JSON report, in one line."""
    left = [layer for layer in document["layers"] if layer["kernel"] is None]
    options = [f"{key}={value}" for key, value in document["session_options"].items()]
    measured = document["measured"]
    needed = f"set {', '.join(options)} in the session that runs the result"
    if not document["layers"] and options:
        return needed
    if not document["layers"]:
        return (
            "quantize the operands of convolutions and matrix products to integers of 8 bits or "
            "fewer, as with Brevitas, NNCF or onnxruntime.quantization"
        )
    wrong = [each for each in document["findings"] if each["severity"] == "error"]
    if cause := next((each["id"] for each in wrong if each["id"].startswith("QG1")), None):
        return f"'qgraph explain {cause}' says what to do about parameters that are wrong"
    refusal = not_loaded(document)
    if refusal is not None:
        known = refusal.rpartition("[")[2].rstrip("]")
        return f"'qgraph explain {known}' says what to do about what {document['target']} refuses"
    if document["refusal"]:
        return f"change what {document['target']} refuses, then deploy again"
    if document["summary"].get("saturating_layers"):
        return "'qgraph explain QG239' says how to keep the sums of these layers within 16 bits"
    tuned = document["tuning"]
    if left and not tuned:
        ids = dict.fromkeys(layer["reason_id"] for layer in left if layer["reason_id"])
        what = counted(len(left), "layer")
        return f"'qgraph explain {next(iter(ids))}' says what to do about {what} in float"
    if measured is not None and measured["ratio_to_float"] >= 1 and not tuned:
        return "the result is not faster than the network in float; try --tune"
    if options:
        return needed
    if document["accuracy"] is None:
        return "add --inputs DATA.npz --labels NAME to see the accuracy before and after"
    if measured is None and document["executed"]:
        return "add --measure to see the times of the result, the input and the network in float"
    return "add --certificate FILE to keep the proof; 'qgraph prove --verify FILE' checks it"


@guarded(frozen=True)
class Accuracy:
    """Results of a deployed model on data, compared with those of its input.

    Attributes:
        samples: rows of the inputs.
        before, after: share of correct samples, whose largest score is that of the label; None
            without labels.
        bounds: for each segment, the differing codes, and distances with their bounds.
    """

    samples: int
    before: float | None
    after: float | None
    bounds: BoundsReport

    @property
    def codes_that_differ(self) -> float | None:
        """Share of codes that differ, with each model on its own codes; None without codes."""
        coded = [each for each in self.bounds.segments if not each.is_output]
        total = sum(each.elements for each in coded)
        return sum(each.accumulated_codes for each in coded) / total if total else None

    def to_json(self) -> dict[str, object]:
        """Return the fields, and the number of bounds that are violated."""
        violated = sum(each.violated is not None for each in self.bounds.segments)
        return {
            **fields_json(self, "samples", "before", "after", "codes_that_differ"),
            "violated_bounds": violated,
            "bounds": self.bounds.to_json(),
        }


def accuracy(
    reference: Model,
    candidate: Model,
    request: Bounding,
    inputs: Inputs,
    labels: npt.ArrayLike | None,
) -> Accuracy:
    """Compare a deployed model with its input on data, and labels of the rows if they are known.

    Raises:
        OptionError: labels and outputs do not fit.
        ExecutionError: a model cannot be run on the inputs.
        EquivalenceError: a bound is violated.
    """
    feeds = inputs.feeds or {}
    rows = [np.shape(array)[0] for array in feeds.values() if np.ndim(array)]
    if 0 in rows:
        raise ExecutionError("The inputs have no rows, expected one or more. Give other inputs.")
    tolerances, scoring = Tolerances(within=request), Scoring(labels)
    result = check(reference, candidate, inputs, tolerances=tolerances, scoring=scoring)
    if result.bounds is None:
        raise AssertionError("limits are given, so bounds are computed")
    for segment in result.bounds.segments:
        if segment.violated:
            raise EquivalenceError(
                f"{segment.candidate or segment.reference!r}: {segment.violated}. "
                "The bound is wrong, or the runtime violates one of its conditions: please report "
                "the model and the inputs, and do not deploy the result.",
                result,
            )
    samples = max(rows, default=result.batches)
    if result.metric is None:
        return Accuracy(samples, None, None, result.bounds)
    scores = result.metric.reference, result.metric.candidate
    return Accuracy(result.metric.samples, *scores, result.bounds)
