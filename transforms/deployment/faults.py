"""What a target computes wrongly, and the passes that avoid it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx_ir as ir

from qgraph.graph.inference.rules import UNKNOWN
from qgraph.graph.inference.walk import infer
from qgraph.graph.schema import code_type
from qgraph.inventory.layers import FoundLayer
from qgraph.inventory.openvino_convolutions import misread_convolutions_of
from qgraph.inventory.openvino_roundings import (
    padded_means,
    quantized_extremes,
    rounded_clips,
    rounded_means,
    rounded_shifts,
    stripped_decoders,
    stripped_fake_quantizes,
    unrounded_sums,
)
from qgraph.inventory.openvino_traps import (
    chained_products,
    narrow_products,
    row_scaled_products,
)
from qgraph.lint.engine import chosen_rules, findings_of
from qgraph.lint.facts import ModelFacts
from qgraph.model import Model
from qgraph.quantizers.movement import unmoved
from qgraph.quantizers.sites import readable_sites
from qgraph.reasons import ExplainedReason, id_of
from qgraph.reports import SiteStatus
from qgraph.targets.engine import KernelMatch, NoKernel, kernel_of
from qgraph.targets.layer import BiasRule
from qgraph.targets.profile import Profile
from qgraph.targets.rules import BIAS_SCALE, BIAS_TYPE, NO_KERNEL
from qgraph.transforms.base import Transform, escaped
from qgraph.transforms.convert import ConvertDialect
from qgraph.transforms.deployment.forms import has_kernel, layers_of
from qgraph.transforms.deployment.pipeline import (
    BEFORE_NARROW_CODES,
    limits,
    misreads_row_scales,
    wide_codes,
)
from qgraph.transforms.drafts.choice import label
from qgraph.transforms.integers.shifted_chains import code_chains
from qgraph.transforms.merge_activation import MergeActivation
from qgraph.transforms.quantize_bias import QuantizeBias
from qgraph.transforms.runtime_faults import FloatSoftmax, SeparatePairs


def failing(model: Model, profile: Profile) -> dict[str, ExplainedReason]:
    """Return the layers that a target accepts although they fail at run time, with the reason."""
    text = "codes of 4 bits that the runtime writes beyond their memory, and no form has 8 bits"
    reasons = {label(layer.node): NO_KERNEL(text) for layer in _narrow_products(model, profile)}
    wrong = misread_layers(model, profile)
    reasons |= {
        label(each.node): NO_KERNEL(why) for each, why in wrong if has_kernel(each, profile)
    }
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
    """Return whether a target reads signed codes as unsigned."""
    wrong = {kind for row in profile.codes if "Concat" in row.operators for kind in row.wrong}
    return bool(wrong) and any(
        chain.kind in wrong and chain.is_read_unsigned for chain in code_chains(model)
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
        "average-pool": lambda: (*rounded_means(nodes), *padded_means(nodes)),
        "quantized-extremes": lambda: quantized_extremes(nodes),
        "constants-between-codes": lambda: rounded_shifts(nodes),
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


def misread_layers(model: Model, profile: Profile) -> list[tuple[FoundLayer, str]]:
    """Return the convolutions that a target computes wrongly or has no kernel for, and why."""
    traps = [trap for trap in profile.trap if trap.id == "misread-convolutions"]
    is_here = any(profile.processor in trap.processors for trap in traps)
    return misread_convolutions_of(model.ir, layers_of(model)) if is_here else []


def wider_codes(model: Model, profile: Profile) -> list[Transform]:
    """Return the passes that store data of such layers in 8 bits; nothing if none is needed."""
    layers = _narrow_products(model, profile)
    layers += [each for each, _ in misread_layers(model, profile) if _is_narrow(each)]
    data = [unmoved(each.node.inputs[0]) for each in layers]
    values = "|".join(dict.fromkeys(escaped(str(value.name)) for value in data if value))
    if not values:
        return []
    return [
        ConvertDialect(to="qonnx", values=values),
        ConvertDialect(to="qdq", values=values, opset=BEFORE_NARROW_CODES),
        MergeActivation(form=limits(profile)),
    ]


def _is_narrow(layer: FoundLayer) -> bool:
    return layer.description.x.codes in ("INT4", "UINT4")


def wide_rows(model: Model, profile: Profile) -> list[Transform]:
    """Return the pass that stores weights with scales for rows in 16 bits; nothing if not needed.

    A target may take scales of rows of short codes for those of columns.
    """
    if not misreads_row_scales(profile):
        return []
    rows = "|".join(escaped(label(node)) for node in row_scaled_products(model.nodes()))
    return [wide_codes(rows)] if rows else []


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


_FLOAT = "FLOAT"


_ROUNDINGS = 2.0**-22
"""Relative deviation of a scale that roundings explain."""


def misread_data(model: Model, profile: Profile) -> dict[str, ExplainedReason]:
    """Return the layers that are wrong unless their data are floats, with the reason."""
    found = misread_biases(model, profile)
    layers = [layer for layer in layers_of(model) if layer.node.op_type in ("Gemm", "MatMul")]
    if len(layers) > 1 and any(trap.id == "small-products" for trap in profile.trap):
        facts = infer(model.ir)
        chained = chained_products(layers, lambda value: facts.get(value, UNKNOWN).shape)
        text = "it would become one kernel with the product before, which reads beyond its data"
        found |= {label(layer.node): NO_KERNEL(text) for layer in chained}
    return found


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
