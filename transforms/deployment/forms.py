"""Storage forms of weights and biases of a layer, which determine the kernel that computes it.

The numbers are the same in all forms::

    integer  DequantizeLinear(INT8)    an integer kernel computes the layer
    float    DequantizeLinear(INT16)   no kernel takes such codes: the layer is computed in float
    packed   DequantizeLinear(INT4)    as float, and the file is smaller
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

import onnx_ir as ir

from qgraph.errors import Choice, ModelError, UnsupportedError
from qgraph.graph.constants import constant_tensor
from qgraph.graph.schema import LINEAR_DOMAINS, OpKey, code_type
from qgraph.graph.scopes import all_nodes, check_names, inline_functions, producer_of
from qgraph.inventory.layers import FoundLayer, quantized_layers
from qgraph.inventory.openvino_roundings import (
    rounded_clips,
    rounded_means,
    stripped_decoders,
    stripped_fake_quantizes,
    unrounded_sums,
)
from qgraph.inventory.openvino_traps import narrow_products
from qgraph.lint.engine import chosen_rules, findings_of
from qgraph.lint.facts import ModelFacts
from qgraph.model import Model
from qgraph.ops.operator import is_defined
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.movement import unmoved
from qgraph.quantizers.sites import readable_sites
from qgraph.reasons import ExplainedReason, id_of
from qgraph.reports import Report, SiteStatus
from qgraph.targets.engine import KernelMatch, NoKernel, kernel_of
from qgraph.targets.layer import LAYERS, BiasRule, QuantizedLayer
from qgraph.targets.profile import Profile
from qgraph.targets.rules import BIAS_SCALE, BIAS_TYPE, NO_KERNEL, PACKED, SLOWER
from qgraph.transforms.base import Transform, escaped
from qgraph.transforms.convert import ConvertDialect
from qgraph.transforms.deployment.pipeline import (
    BEFORE_NARROW_CODES,
    HIGHEST_OPSET,
    as_pairs,
    limits,
)
from qgraph.transforms.drafts.choice import label
from qgraph.transforms.fold_constants import FoldConstants
from qgraph.transforms.integers.shifted_chains import code_chains
from qgraph.transforms.merge_activation import MergeActivation
from qgraph.transforms.quantize_bias import QuantizeBias
from qgraph.transforms.recoding import CodeTarget, Repack
from qgraph.transforms.runtime_faults import FloatProducts, FloatSoftmax, SeparatePairs
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


def failing(model: Model, profile: Profile) -> dict[str, ExplainedReason]:
    """Return the layers that a target accepts although they fail at run time, with the reason."""
    text = "codes of 4 bits that the runtime writes beyond their memory, and no form has 8 bits"
    reasons = {label(layer.node): NO_KERNEL(text) for layer in _narrow_products(model, profile)}
    if not any(kernel.fails for kernel in profile.kernel):
        return reasons
    for layer in layers_of(model):
        match = kernel_of(layer.description, profile)
        if not isinstance(match, NoKernel) or match.kernel is None or not match.reasons:
            continue
        if {id_of(reason) for reason in match.reasons} <= set(match.kernel.fails):
            reasons[label(layer.node)] = match.reasons[0]
    return reasons


def is_misread(model: Model, profile: Profile) -> bool:
    """Return whether a target is wrong after a Concat of codes."""
    wrong = {kind for row in profile.codes if "Concat" in row.operators for kind in row.wrong}
    return bool(wrong) and any(
        chain.kind in wrong and chain.meets_concat for chain in code_chains(model)
    )


def is_unrounded(model: Model, profile: Profile) -> bool:
    """Return whether a target drops roundings of quantizers, by traps of these ids."""
    traps, nodes = {trap.id for trap in profile.trap}, list(model.nodes())
    layers = {layer.node for layer in layers_of(model)}
    found: dict[str, Callable[[], Iterable[object]]] = {
        "residual-add": lambda: unrounded_sums(nodes, layers),
        "sixteen-bits-removed": lambda: (
            *stripped_decoders(nodes),
            *stripped_fake_quantizes(nodes),
        ),
        "limits-between-codes": lambda: rounded_clips(nodes),
        "average-pool": lambda: rounded_means(nodes),
    }
    return any(any(find()) for name, find in found.items() if name in traps)


_FLOAT8 = {ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2}


def twice_rounded(model: Model, profile: Profile) -> list[str]:
    """Return the names of results of FP8 quantizers that a target rounds to float16 before."""
    if not any(trap.id == "float8-rounded-twice" for trap in profile.trap):
        return []
    data = [site for site in readable_sites(model.ir) if site.values is None]
    return [
        str(site.y.name)
        for site in data
        if any(n.op_type == "QuantizeLinear" and code_type(n) in _FLOAT8 for n in site.nodes)
    ]


def _narrow_products(model: Model, profile: Profile) -> list[FoundLayer]:
    """Return the products for which a target writes beyond its memory: a trap of this id."""
    is_affected = any(trap.id == "narrow-data-of-products" for trap in profile.trap)
    return list(narrow_products(layers_of(model))) if is_affected else []


def wider_codes(model: Model, profile: Profile) -> list[Transform]:
    """Return the passes that store such data in 8 bits; nothing if none is needed."""
    data = [unmoved(each.node.inputs[0]) for each in _narrow_products(model, profile)]
    values = "|".join(dict.fromkeys(escaped(str(value.name)) for value in data if value))
    if not values:
        return []
    return [
        ConvertDialect(to="qonnx", values=values),
        ConvertDialect(to="qdq", values=values, opset=BEFORE_NARROW_CODES),
        MergeActivation(form=limits(profile)),
    ]


_LIMITED = {"QG301": SeparatePairs, "QG324": FloatSoftmax}
"""Passes that keep a target from changing operators on decoded codes, by rules that find them."""


def limited(model: Model, profile: Profile) -> list[Transform]:
    """Return the passes after which a target computes operators on decoded codes as written.

    It merges pairs, and gives other codes for Softmax if 1 is not a whole number of steps.
    """
    steps: list[Transform] = []
    for rule, step in _LIMITED.items():
        found = findings_of(ModelFacts(model.ir, profile), chosen_rules(rule))
        nodes = "|".join(escaped(name) for each in found for name in each.nodes)
        steps += [step(nodes=nodes)] if nodes else []
    return steps


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


_FLOAT = "FLOAT"
_ROUNDINGS = 2.0**-22
"""Relative deviation of a scale that roundings explain."""


def misread_biases(model: Model, profile: Profile) -> dict[str, ExplainedReason]:
    """Return the layers in integer kernels whose bias would be added wrongly, with the reason.

    Two cases, neither with a message of the runtime::

        DequantizeLinear(int32 codes, s)   the kernel adds the codes at s_x * s_w, whatever s is
        a float bias of 3                  the runtime stores round(3 / (s_x * s_w)), beyond int32
    """
    found: dict[str, ExplainedReason] = {}
    floats = set[str]()
    is_affected = any(_is_int32(kernel.bias) for kernel in profile.kernel)
    for layer in layers_of(model) if is_affected else ():
        match, bias = kernel_of(layer.description, profile), layer.description.bias
        if bias is None or not isinstance(match, KernelMatch) or not _is_int32(match.kernel.bias):
            continue
        error = bias.scale_error or 0
        if bias.codes == _FLOAT:
            floats.add(label(layer.node))
        elif error > _ROUNDINGS:
            text = f"bias: its scale is off by {error:.3g}, and the kernel does not use it"
            found[label(layer.node)] = BIAS_SCALE(text)
    if floats:
        for site in model.clone().apply(QuantizeBias()):
            if site.outcome is SiteStatus.REFUSED and site.node in floats:
                found[site.node] = BIAS_TYPE(f"bias of {_FLOAT}: {site.reason}")
    return found


def _is_int32(rule: BiasRule) -> bool:
    """Return whether a kernel adds int32 codes in the unit of the products."""
    return rule.scale in ("product", "ignored") and "INT32" in (rule.types or ())


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
