"""Storage forms of weights and biases of a layer, which determine the kernel that computes it.

The numbers are the same in all forms::

    integer  DequantizeLinear(INT8)    an integer kernel computes the layer
    float    DequantizeLinear(INT16)   no kernel takes such codes: the layer is computed in float
    packed   DequantizeLinear(INT4)    as float, and the file is smaller
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

import onnx_ir as ir

from qgraph.errors import Choice, ModelError, UnsupportedError
from qgraph.graph.constants import constant_tensor
from qgraph.graph.schema import LINEAR_DOMAINS, OpKey
from qgraph.graph.scopes import all_nodes, check_names, inline_functions, producer_of
from qgraph.inventory.layers import FoundLayer, quantized_layers
from qgraph.model import Model
from qgraph.ops.operator import is_defined
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.movement import unmoved
from qgraph.quantizers.sites import readable_sites
from qgraph.reasons import ExplainedReason
from qgraph.reports import Report
from qgraph.targets.engine import KernelMatch, kernel_of
from qgraph.targets.layer import LAYERS, QuantizedLayer
from qgraph.targets.profile import Profile
from qgraph.targets.rules import PACKED, SLOWER
from qgraph.transforms.base import Transform, escaped
from qgraph.transforms.deployment.pipeline import (
    HIGHEST_OPSET,
    as_pairs,
)
from qgraph.transforms.drafts.choice import label
from qgraph.transforms.fold_constants import FoldConstants
from qgraph.transforms.recoding import CodeTarget, Repack
from qgraph.transforms.runtime_faults import FloatProducts
from qgraph.transforms.weights.stored_codes import stored_codes

FLOAT = "float"
_BYTE = 8

Left = Mapping[str, ExplainedReason]
"""Layers that are left in float by choice, with the reason, by name."""


T = TypeVar("T")


def kept(function: Callable[[Model], T]) -> Callable[[Model], T]:
    """Return a function that keeps its results, each as long as the graph that it was called with.

    A deployment changes graphs only by :meth:`Model.apply`, which makes a new one.
    """
    results: WeakKeyDictionary[ir.Model, T] = WeakKeyDictionary()

    @wraps(function)
    def result(model: Model) -> T:
        if model.ir not in results:
            results[model.ir] = function(model)
        return results[model.ir]

    return result


@kept
def layers_of(model: Model) -> Sequence[FoundLayer]:
    """Return the quantized layers of a model."""
    return tuple(quantized_layers(model.ir, [*sites_of(model).values()]))


@kept
def sites_of(model: Model) -> Mapping[ir.Value, Site]:
    """Return the quantizers of a model, by their results."""
    return {site.y: site for site in readable_sites(model.ir)}


@kept
def in_pairs(model: Model) -> Model:
    """Return a copy of a model without integer operators, whose layers are between quantizers."""
    plain = model.clone()
    plain.apply(as_pairs())
    return plain


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

    The model is needed if their weights may be computed by quantizers: these stay, and the data get
    a Max without effect.
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
        for layer in layers_of(model)
        if layer.description.w.is_constant
        and producer_of(unmoved(layer.node.inputs[1])) not in decodes
    ]


def has_kernel(layer: FoundLayer, profile: Profile) -> bool:
    """Return whether a kernel accepts a layer, according to a profile."""
    return isinstance(kernel_of(layer.description, profile), KernelMatch)


def marked_slower(model: Model, profile: Profile) -> dict[str, ExplainedReason]:
    """Return the layers whose integer form is slower than float, according to a profile."""
    reasons = {}
    for layer in layers_of(model):
        match = kernel_of(layer.description, profile)
        forms = match.slower if isinstance(match, KernelMatch) else ()
        slow = next((form for form in forms if form.than == FLOAT and form.ratio > 1), None)
        if slow is not None and layer.description.w.is_constant:
            text = f"{slow.text}: measured to take {slow.ratio:g} times as long as float"
            reasons[label(layer.node)] = SLOWER(text)
    return reasons


def packed(model: Model) -> dict[str, ExplainedReason]:
    """Return the layers whose weights are stored in fewer than 8 bits."""
    types = {
        label(layer.node): layer.description.w.codes
        for layer in layers_of(model)
        if layer.description.w.is_constant
    }
    return {
        name: PACKED(f"its weights stay packed as {codes}")
        for name, codes in types.items()
        if ir.DataType[codes].bitwidth < _BYTE
    }


_BETWEEN = frozenset({"Add", "Clip", "Identity", "Relu"})
"""Operators that runtimes fuse with the layer before them and the quantizer after them."""


def decode_weights(model: Model, profile: Profile, report: Report) -> dict[str, QuantizedLayer]:
    """Decode the weights of float layers that were measured to be slower on stored codes, in place.

    Return the descriptions of the quantized layers among them before the change, by name. Without a
    quantized layer nothing is done.
    """
    slow = {
        (name, codes)
        for row in profile.storage
        if row.ratio is not None and row.ratio > 1
        for name in row.operators
        for codes in row.codes
    }
    layers = {layer.node: layer for layer in layers_of(model)} if slow else {}
    nodes = [
        node
        for node in model.nodes(*LAYERS)
        if layers and not (node in layers and has_kernel(layers[node], profile))
        if (node.op_type, _codes(node)) in slow and not _is_quantized(node.outputs[0], profile)
    ]
    if nodes:
        names = "|".join(escaped(label(node)) for node in nodes)
        report.extend(model.apply(FoldConstants(layers=names)))
    return {label(node): layers[node].description for node in nodes if node in layers}


def _codes(node: ir.Node) -> str | None:
    """Return the type of the stored codes of a layer's weights; None without codes."""
    weights = node.inputs[1]
    decode = None if weights is None else weights.producer()
    if (
        decode is None
        or decode.op_type != "DequantizeLinear"
        or decode.domain not in LINEAR_DOMAINS
    ):
        return None
    tensor = constant_tensor(decode.inputs[0])
    return None if tensor is None else tensor.dtype.name


def _is_quantized(value: ir.Value, profile: Profile) -> bool:
    """Return whether a quantizer reads a result: float weights before it may be quantized anew."""
    users = list(value.consumers())
    return any(
        user.op_type == "QuantizeLinear"
        or (user.op_type in _BETWEEN | profile.passing and _is_quantized(user.outputs[0], profile))
        for user in users
    )


def without_calls(model: Model) -> Model:
    """Return a copy with the nodes of functions in place of calls, as runtimes execute them.

    Functions of operators with a definition stay, and all functions if one cannot be inlined.
    """
    copy = model.clone()
    defined = {OpKey.of(node) for node in all_nodes(copy.ir) if is_defined(node)}
    with suppress(UnsupportedError, ModelError):
        inline_functions(
            copy.ir, lambda function: OpKey(function.domain, function.name) not in defined
        )
        check_names(copy.ir)
        return copy
    return model.clone()
