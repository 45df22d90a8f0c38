"""Products of codes that processors without VNNI add with saturation, and forms without it.

Such processors add two neighbouring products of UINT8 data and INT8 weights in 16 bits::

    255 * 127 + 255 * 127 = 64770, cut off to 32767

Weights between -64 and 64 cannot get there. Others are stored as UINT8 with zero point 128, where
the kernels multiply these exactly. Where they do not, the layer is left in float.
"""

from __future__ import annotations

from collections.abc import Iterator

from qgraph.graph.scopes import producer_of
from qgraph.inventory.layers import FoundLayer, quantized_layers
from qgraph.inventory.saturation import saturates
from qgraph.model import Model
from qgraph.quantizers.movement import unmoved
from qgraph.quantizers.weights.job import NumberRange
from qgraph.reasons import ExplainedReason
from qgraph.targets.profile import Profile, SaturatingProducts
from qgraph.targets.unmet import SATURATES
from qgraph.text import counted
from qgraph.transforms.base import Transform, escaped
from qgraph.transforms.drafts.choice import label
from qgraph.transforms.repack import CodeTarget, Repack
from qgraph.transforms.weights.stored_codes import stored_codes


def for_this_processor(profile: Profile) -> Profile:
    """Return the profile for the processor of this machine, if the user named none.

    It differs from the given profile only where the runtime is installed and shows that this
    processor saturates.
    """
    if profile.is_named or profile.executed is None or not profile.saturation:
        return profile
    (processor, *_), known = profile.saturation[0].processors, profile.processor
    if processor == known or not saturates(profile.executed):
        return profile
    return profile.on(processor)


def saturating(model: Model, profile: Profile) -> dict[str, ExplainedReason]:
    """Return the layers whose sums may saturate on the processor of a profile, and why."""
    text = "sums of its products exceed 16 bits: {} has no VNNI, and its weights are beyond {}"
    return {
        label(layer.node): SATURATES(text.format(profile.processor, f"-{most}..{most}"))
        for rule in profile.saturating
        for most in [rule.largest]
        for layer in _wide(model, rule)
    }


def unsaturated(model: Model, profile: Profile) -> Transform | None:
    """Return the pass that stores weights so that no sum saturates; None if none is needed."""
    for rule in profile.saturating:
        layers = [layer for layer in _wide(model, rule) if layer.description.w.is_constant]
        if layers and rule.instead is not None:
            nodes = "|".join(escaped(label(layer.node)) for layer in layers)
            to = CodeTarget(rule.instead.lower())
            return Repack(to=to, scales=False, activations=False, nodes=nodes)
    return None


def condition(model: Model, profile: Profile) -> str | None:
    """Return on which processors sums of a model are wrong; None if on none."""
    for rule in profile.saturation:
        count = sum(1 for _ in _wide(model, rule))
        others = " and ".join(rule.processors)
        text = f"sums of products of {counted(count, 'layer')} saturate, and results are wrong"
        if count and rule in profile.saturating:
            return f"on {others}, {text}: quantize their weights to 7 bits"
        if count:
            other = f"{profile.name}@{rule.processors[0]}"
            return (
                f"the processor is {profile.processor}; on {others}, {text}: deploy with "
                f"--target {other} for it"
            )
    return None


def _wide(model: Model, rule: SaturatingProducts) -> Iterator[FoundLayer]:
    """Yield the layers of these types whose weights are beyond the safe range."""
    layers = [
        layer
        for layer in quantized_layers(model.ir)
        if layer.description.x.codes in rule.x and layer.description.w.codes in rule.w
    ]
    if not layers:
        return
    wide = {
        stored.decode
        for stored in stored_codes(model)
        if stored.stream.kind in rule.w and _is_wide(stored.source.survey(), rule.largest)
    }
    for layer in layers:
        weights = layer.node.inputs[1]
        if not layer.description.w.is_constant or producer_of(unmoved(weights)) in wide:
            yield layer


def _is_wide(span: NumberRange, largest: int) -> bool:
    return max(-span.low, span.high) > largest
