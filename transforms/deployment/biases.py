"""Find biases that an integer kernel would add wrongly.

Two cases, neither with a message of the runtime::

    DequantizeLinear(int32 codes, s)   the kernel adds the codes at s_x * s_w, whatever s is
    a float bias of 3                  the runtime stores round(3 / (s_x * s_w)), beyond int32
"""

from __future__ import annotations

from qgraph.inventory.layers import quantized_layers
from qgraph.model import Model
from qgraph.reasons import ExplainedReason
from qgraph.reports import SiteStatus
from qgraph.targets.engine import KernelMatch, kernel_of
from qgraph.targets.kernels import BiasRule
from qgraph.targets.profile import Profile
from qgraph.targets.unmet import BIAS_SCALE, BIAS_TYPE
from qgraph.transforms.drafts.choice import label
from qgraph.transforms.quantize_bias import QuantizeBias

_FLOAT = "FLOAT"
_ROUNDINGS = 2.0**-22
"""Relative deviation of a scale that roundings explain."""


def misread_biases(model: Model, profile: Profile) -> dict[str, ExplainedReason]:
    """Return the layers in integer kernels whose bias would be added wrongly, with the reason."""
    found: dict[str, ExplainedReason] = {}
    floats = set[str]()
    for layer in quantized_layers(model.ir) if any(map(_is_int32, _rules(profile))) else ():
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


def _rules(profile: Profile) -> list[BiasRule]:
    return [kernel.bias for kernel in profile.kernel]


def _is_int32(rule: BiasRule) -> bool:
    """Return whether a kernel adds int32 codes in the unit of the products."""
    return rule.scale in ("product", "ignored") and "INT32" in (rule.types or ())
