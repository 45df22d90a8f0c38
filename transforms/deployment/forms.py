"""Storage forms of the weights of a layer, which determine the kernel that computes it.

The numbers are the same in all forms::

    integer  DequantizeLinear(INT8)    an integer kernel computes the layer
    float    DequantizeLinear(INT16)   no kernel takes such codes: the layer is computed in float
    packed   DequantizeLinear(INT4)    as float, and the file is smaller
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from qgraph.errors import Choice
from qgraph.graph.scopes import producer_of
from qgraph.inventory.layers import FoundLayer, quantized_layers
from qgraph.inventory.row_sums import row_sums_of
from qgraph.model import Model
from qgraph.quantizers.movement import unmoved
from qgraph.reasons import ExplainedReason, id_of
from qgraph.targets.engine import KernelMatch, NoKernel, kernel_of
from qgraph.targets.layer import LAYERS
from qgraph.targets.profile import Profile
from qgraph.targets.unmet import PACKED, SLOWER
from qgraph.transforms.base import Transform, escaped
from qgraph.transforms.deployment.pipeline import HIGHEST_OPSET
from qgraph.transforms.deployment.wants import misreads_row_sums
from qgraph.transforms.drafts.choice import label
from qgraph.transforms.float_products import FloatProducts
from qgraph.transforms.integers.shifted_chains import code_chains
from qgraph.transforms.repack import CodeTarget, Repack
from qgraph.transforms.weights.stored_codes import stored_codes

FLOAT = "float"
_BYTE = 8

Left = Mapping[str, ExplainedReason]
"""Layers that are left in float by choice, with the reason, by name."""


class Preference(Choice):
    """Preference of a deployment between forms of a layer."""

    SPEED = "speed"
    """Integer kernels, except forms that are slower according to the profile."""

    SIZE = "size"
    """Weights of few bits stay packed, although no integer kernel accepts them."""

    TUNED = "tuned"
    """The form that is the fastest on this machine, as measured."""


def in_float(names: Collection[str], model: Model | None = None) -> list[Transform]:
    """Return the passes after which layers are computed in float.

    Args:
        names: of the layers.
        model: the model, if their weights need not be stored codes: other weights stay, and the
            data get a Max without effect.
    """
    nodes = "|".join(map(escaped, names))
    computed = [] if model is None else [n for n in computed_weights(model) if n in names]
    weights = Repack(
        to=CodeTarget.INT16,
        scales=False,
        activations=False,
        operators="|".join(sorted(LAYERS)),
        nodes=nodes,
        opset=HIGHEST_OPSET,
    )
    steps: list[Transform] = [weights, FloatProducts(nodes=nodes)] if names else []
    if computed:
        steps.append(FloatProducts(nodes="|".join(map(escaped, computed)), data=True))
    return steps


def computed_weights(model: Model) -> list[str]:
    """Return the layers whose weights a quantizer computes, not a DequantizeLinear alone."""
    decodes = {stored.decode for stored in stored_codes(model)}
    return [
        label(layer.node)
        for layer in quantized_layers(model.ir)
        if layer.description.w.is_constant
        and producer_of(unmoved(layer.node.inputs[1])) not in decodes
    ]


def has_kernel(layer: FoundLayer, profile: Profile) -> bool:
    """Return whether a kernel accepts a layer, according to a profile."""
    return isinstance(kernel_of(layer.description, profile), KernelMatch)


def marked_slower(model: Model, profile: Profile) -> dict[str, ExplainedReason]:
    """Return the layers whose integer form is slower than float, according to a profile."""
    reasons = {}
    for layer in quantized_layers(model.ir):
        match = kernel_of(layer.description, profile)
        forms = match.slower if isinstance(match, KernelMatch) else ()
        slow = next((form for form in forms if form.than == FLOAT and form.ratio > 1), None)
        if slow is not None and layer.description.w.is_constant:
            text = f"{slow.text}: measured to take {slow.ratio:g} times as long as float"
            reasons[label(layer.node)] = SLOWER(text)
    return reasons


def failing(model: Model, profile: Profile) -> dict[str, ExplainedReason]:
    """Return the layers that a target accepts although they fail at run time, with the reason."""
    reasons: dict[str, ExplainedReason] = {}
    if not any(kernel.fails for kernel in profile.kernel):
        return reasons
    for layer in quantized_layers(model.ir):
        match = kernel_of(layer.description, profile)
        if not isinstance(match, NoKernel) or match.kernel is None or not match.reasons:
            continue
        if {id_of(reason) for reason in match.reasons} <= set(match.kernel.fails):
            reasons[label(layer.node)] = match.reasons[0]
    return reasons


def is_misread(model: Model, profile: Profile) -> bool:
    """Return whether a target is wrong after a Concat of codes, or in sums over rows."""
    if misreads_row_sums(profile) and row_sums_of(model.ir):
        return True
    wrong = {kind for row in profile.codes if "Concat" in row.operators for kind in row.wrong}
    return bool(wrong) and any(
        chain.kind in wrong and chain.meets_concat for chain in code_chains(model)
    )


def packed(model: Model) -> dict[str, ExplainedReason]:
    """Return the layers whose weights are stored in fewer than 8 bits."""
    types = {
        label(layer.node): layer.description.w.codes
        for layer in quantized_layers(model.ir)
        if layer.description.w.is_constant
    }
    return {
        name: PACKED(f"its weights stay packed as {codes}")
        for name, codes in types.items()
        if ir.DataType[codes].bitwidth < _BYTE
    }
