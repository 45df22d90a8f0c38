"""Find products that processors without VNNI compute wrongly: cut off, or with halved weights.

They add two neighbouring products of UINT8 data and INT8 weights in 16 bits::

    255 * 127 + 255 * 127 = 64770, cut off to 32767

Weights from -64 to 64 cannot get there. Signed data are made unsigned before. Where they stay
signed, in a convolution, OpenVINO halves weights instead, and rounds odd ones to even ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant_expression, constant_stream, constant_tensor
from qgraph.graph.schema import MICROSOFT, OpKey, element_type
from qgraph.graph.scopes import all_nodes, producer_of
from qgraph.inventory.description import descriptions
from qgraph.inventory.layers import (
    FoundLayer,
    decoded_before,
    quantized_einsums,
    scaled_products,
)
from qgraph.inventory.operands import OperandReader
from qgraph.inventory.weight_steps import used_steps
from qgraph.ops.integer.products import SIGNATURES
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.movement import unmoved
from qgraph.quantizers.weights.job import Source
from qgraph.records import dataclass
from qgraph.targets.engine import KernelMatch, kernel_of
from qgraph.targets.layer import ZeroPoint
from qgraph.targets.profile import Profile, SaturatingProducts
from qgraph.targets.rules import type_of_codes

_WITHOUT = (ZeroPoint.NONE, ZeroPoint.ZERO)
_DECODER = "DequantizeLinear"
_MIDDLE = 128
"""Zero point of unsigned data that products of data accept."""

ANY_RUNTIME = SaturatingProducts(
    x=("UINT8", "INT8", "INT4"),
    w=("INT8",),
    largest=64,
    processors=(),
    source=(),
    operators=("DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "QAttention"),
    exact=("depthwise",),
)
"""What is cut off in some runtime, for models without a target."""

Sites = Mapping[ir.Value, Site]
"""All quantizers of a model, by their results."""

_DATA = "second operand can be"


@dataclass(frozen=True, eq=False)
class WrongProduct:
    """A product whose result may be wrong.

    Attributes:
        operand: what is beyond the safe range.
        largest: largest absolute code of its weights; None if it is not known here.
        is_halved: whether its weights are halved instead.
    """

    node: ir.Node
    operand: str = "weights are"
    largest: int | None = None
    is_halved: bool = False


def wrong_products(
    model: ir.Model,
    layers: Collection[FoundLayer],
    sites: Sites,
    rule: SaturatingProducts,
    profile: Profile | None,
) -> list[WrongProduct]:
    """Return the products of a model that a rule of a profile is about, each once.

    ``layers`` are its quantized layers. Without a profile, products of data are left out.
    """
    wide = [
        WrongProduct(layer.node, _DATA if not layer.description.w.is_constant else "weights are")
        for layer in wide_layers(layers, sites, rule, profile)
    ]
    others = [WrongProduct(node, "operands can be") for node in _unlisted(model, sites, rule)]
    halved = [WrongProduct(each.node, is_halved=True) for each in halved_layers(layers, rule)]
    found: dict[ir.Node, WrongProduct] = {}
    for each in (*wide, *wide_operators(model, rule), *others, *halved):
        found.setdefault(each.node, each)
    return list(found.values())


def wide_layers(
    layers: Iterable[FoundLayer], sites: Sites, rule: SaturatingProducts, profile: Profile | None
) -> Iterator[FoundLayer]:
    """Yield the layers of these types whose weights are beyond the safe range."""
    for layer in layers:
        form = layer.description
        x, w = form.x, form.w
        if x.codes not in rule.x or w.codes not in rule.w:
            continue
        if form.one_filter and form.group in rule.exact:
            continue
        weights = layer.node.inputs[1]
        if (is_safe := _is_stored_narrow(weights, rule)) is None:
            # zero points are subtracted after codes are multiplied
            is_shifted = w.is_constant and w.zero not in _WITHOUT
            is_safe = not is_shifted and is_narrow(weights, sites, rule.largest)
        is_taken = w.is_constant or (profile and isinstance(kernel_of(form, profile), KernelMatch))
        if is_taken and not is_safe:
            yield layer


def _is_stored_narrow(value: ir.Value | None, rule: SaturatingProducts) -> bool | None:
    """Return whether stored codes are in the safe range; None if weights are not stored so."""
    decode = producer_of(unmoved(value), _DECODER)
    codes = None if decode is None else constant_stream(decode.inputs[0])
    if decode is None or codes is None or not codes.size or type_of_codes(decode) not in rule.w:
        return None
    span = Source(codes).survey()
    return -rule.largest <= span.low and span.high <= rule.largest


def is_narrow(value: ir.Value | None, sites: Sites, largest: int) -> bool:
    """Return whether a quantizer only uses codes of the safe range, counted from real zero.

    ``largest`` is a power of two. Data have codes from -64 to 63 for 64, as a type of 7 bits.
    """
    sources = None if value is None else decoded_before(value, sites)
    found = [sites.get(source) for source in sources or ()]
    return bool(found) and all(site and _uses_few(site, largest) for site in found)


def _uses_few(site: Site, largest: int) -> bool:
    steps = used_steps(site)
    if steps is not None:
        return -largest <= steps.low and steps.high <= largest
    bits = largest.bit_length()
    safe = {f"{sign}int{n + (sign == '')}" for sign in ("", "u") for n in range(1, bits)}
    return any(each.description.format in safe for each in descriptions([site]))


def halved_layers(layers: Iterable[FoundLayer], rule: SaturatingProducts) -> Iterator[FoundLayer]:
    """Yield the layers whose odd weights are rounded to even ones."""
    for layer in layers:
        x = layer.description.x
        if layer.node.op_type in rule.halved and x.codes == "INT8" and not x.is_direct:
            decode = producer_of(unmoved(layer.node.inputs[1]), _DECODER)
            codes = None if decode is None else constant_tensor(decode.inputs[0])
            if codes is None or (codes.numpy().astype(np.int16) % 2).any():
                yield layer


def wide_operators(model: ir.Model, rule: SaturatingProducts) -> Iterator[WrongProduct]:
    """Yield the operators on codes, and those that quantize data, with codes beyond the range."""
    for node in all_nodes(model):
        key = OpKey.of(node)
        signature = SIGNATURES.get(key)
        if signature is not None and key.name != "ConvInteger":  # which adds no pairs
            inputs = dict(zip(signature.inputs, node.inputs, strict=False))
            weights, point = inputs.get("b"), constant_expression(inputs.get("z_b"))
            codes = constant_expression(weights)
            is_taken = _kind(weights) == "INT8" or (point is not None and (point == _MIDDLE).all())
            if codes is None and is_taken and _kind(weights) in rule.w:
                yield WrongProduct(node, _DATA)
            groups = node.attributes.get_int("group", 1)
            is_depthwise = codes is not None and groups > 1 and codes.shape[:2] == (groups, 1)
            stored = [] if is_depthwise and "depthwise" in rule.exact else [weights]
        elif node.op_type in rule.operators and node.domain == MICROSOFT:
            stored = list(node.inputs[1:3])  # of LSTM both are weights, else the second is float
        else:
            continue
        found = ((constant_expression(value), _kind(value)) for value in stored)
        narrow = [np.int16(codes) for codes, kind in found if codes is not None and kind in rule.w]
        peaks = [int(np.abs(codes).max(initial=0)) for codes in narrow]
        if max(peaks, default=0) > rule.largest:
            yield WrongProduct(node, largest=max(peaks))


def _kind(value: ir.Value | None) -> str:
    dtype = element_type(value)
    return "" if dtype is None else dtype.name


def _unlisted(model: ir.Model, sites: Sites, rule: SaturatingProducts) -> list[ir.Node]:
    """Return the nodes without kernels that become such products, unless these are narrow."""
    nodes = quantized_einsums(model, [*sites.values()]) if "Einsum" in rule.operators else []
    wide = [node for node in nodes if not is_narrow(node.inputs[-1], sites, rule.largest)]
    scaled = scaled_products(model, rule.through, sites)
    reader = OperandReader(model, sites.values()) if scaled else None

    def is_among(values: Collection[ir.Value], kinds: Collection[str]) -> bool:
        read = [reader.operand(value) for value in values] if reader else []
        return all(each is not None and each.operand.codes in kinds for each in read)

    for each in scaled:
        weights = [value for value in each.w if not _is_safe(value, sites, rule)]
        is_taken = each.node.op_type != "Einsum" or "Einsum" in rule.operators
        if weights and is_taken and is_among(each.x, rule.x) and is_among(each.w, rule.w):
            wide.append(each.node)
    return wide


def _is_safe(value: ir.Value, sites: Sites, rule: SaturatingProducts) -> bool:
    """Return whether weights are in the safe range, as stored codes or results of a quantizer."""
    is_safe = _is_stored_narrow(value, rule)
    return is_narrow(value, sites, rule.largest) if is_safe is None else is_safe
