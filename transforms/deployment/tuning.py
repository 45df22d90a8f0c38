"""Measure both forms of each distinct layer of a model on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from qgraph.comparison.bench import Timing, bench
from qgraph.comparison.divergence import excerpt, frontier
from qgraph.errors import ExecutionError, QGraphError
from qgraph.graph.inference.dimensions import Dim
from qgraph.graph.inference.walk import open_interface, with_facts
from qgraph.inventory.layers import FoundLayer, quantized_layers
from qgraph.model import Model
from qgraph.records import by_key, dataclass, field, replace
from qgraph.targets.layer import LAYERS
from qgraph.targets.rules import SLOWER
from qgraph.text import as_json, fields_json
from qgraph.transforms.deployment.forms import FLOAT, Left, in_float
from qgraph.transforms.drafts.choice import label

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
