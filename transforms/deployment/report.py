"""Report of ``deploy``: each quantized layer, its kernel, and its bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qgraph.bound import Bound
from qgraph.certificate import Certificate
from qgraph.display import Displayed
from qgraph.errors import OptionError, meant, shown
from qgraph.lint.engine import LintFinding
from qgraph.transforms.deployment.accuracy import Accuracy
from qgraph.transforms.deployment.tuning import Tuning
from qgraph.transforms.deployment.unquantized import unquantized_note
from qgraph.version import head


@dataclass(frozen=True)
class DeployedLayer:
    """A convolution or matrix product whose operands are codes of 16 bits or fewer.

    Attributes:
        node: its name in the input.
        op: its operator.
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
        bound = None if self.bound is None else self.bound.to_json()
        return vars(self) | {"rewrites": list(self.rewrites), "bound": bound}


@dataclass(frozen=True, repr=False)
class Deployment(Displayed):
    """The result of :func:`qgraph.deploy`.

    Attributes:
        target: name of the profile.
        profile: its SHA-256.
        runtime: module of the runtime; None if there is none.
        layers: the quantized layers of the input, in order.
        is_executed: whether kernels were read from the graph that the runtime executes; if not, the
            profile predicts them.
        certificate: certificate of the input and the result.
        weight_bytes_before, weight_bytes_after: sizes of all weights.
        session_options: options that a session must set for the result.
        notes: remarks.
        accuracy: comparison on data; None without data.
        tuning: the measured forms of layers; None if none were measured.
        measured: times; None if not measured.
        findings: warnings and errors of lint in the result, mostly about what the target changes
            silently; layers that are left in float are not repeated.
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
        bounds = [layer.bound for layer in self.layers if layer.bound is not None]
        return {
            **head("deploy"),
            "target": self.target,
            "processor": self.processor,
            "profile": self.profile,
            "layers": [layer.to_json() for layer in self.layers],
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
                "weight_bytes_before": self.weight_bytes_before,
                "weight_bytes_after": self.weight_bytes_after,
                "max_steps": max((bound.max_steps for bound in bounds), default=0),
                "tie_distance_steps": max((b.tie_distance_steps for b in bounds), default=0.0),
            },
            "conditions": [*map(str, self.certificate.conditions), *self.conditions],
            "session_options": dict(self.session_options),
            "notes": [*self.notes, *filter(None, [unquantized_note(self.unquantized)])],
            "accuracy": None if self.accuracy is None else self.accuracy.to_json(),
            "tuning": None if self.tuning is None else self.tuning.to_json(),
            "measured": None if self.measured is None else dict(self.measured),
            "findings": [finding.to_json() for finding in self.findings],
        }
