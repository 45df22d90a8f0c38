"""Rules about models that are larger than necessary (QG5)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from qgraph.graph.opset.versions import ceiling
from qgraph.graph.scopes import owners
from qgraph.graph.streaming import PIECE, Stream
from qgraph.inventory.info import packing_of, weight_size
from qgraph.inventory.weight_steps import step_range
from qgraph.lint.facts import ModelFacts, nodes_of_site
from qgraph.lint.layers import listed
from qgraph.lint.rule import Found, LintFix, LintLevel, rule
from qgraph.numerics.formats import FORMATS, IntFormat, holding
from qgraph.quantizers.quantizer import Affine
from qgraph.records import by_key
from qgraph.text import size as bytes_text

WARNING, INFO = LintLevel.WARNING, LintLevel.INFO
_FEW = 64
"""Minimum number of elements of constants for a finding."""

_FEW_BYTES = 1 << 10
_TYPES = ("INT2", "UINT2", "INT4", "UINT4", "INT8", "UINT8")


@rule("QG501", "unpacked-weights", WARNING, fix=LintFix("fold-weights", "values"))
def unpacked_weights(facts: ModelFacts) -> Iterator[Found]:
    """Quantized weights are stored as floats."""
    opset = ceiling(facts.model)
    for site in facts.sites:
        if site.weight is None or site.weight.size < _FEW:
            continue
        packing = packing_of(site, opset)
        before = weight_size(site)
        if packing is not None and packing.bytes < before:
            packed = f"{bytes_text(packing.bytes)} of {packing.type}"
            text = f"{bytes_text(before)} of floats are {packed}"
            figures = {"bytes": before, "packed_bytes": packing.bytes, "type": packing.type}
            yield Found(nodes_of_site(site), text, figures)


def _with_reader(facts: ModelFacts, node: ir.Node) -> tuple[ir.Node, ...]:
    """Return a node and the readers of its result."""
    return (node, *dict.fromkeys(facts.readers(node.outputs[0])))


@rule("QG502", "wide-storage", INFO, fix=LintFix("repack", "values"))
def wide_storage(facts: ModelFacts) -> Iterator[Found]:
    """Stored codes need fewer bits than their type has."""
    for decoder in facts.decoders:
        counts, form = facts.counts(decoder), FORMATS.get(decoder.kind)
        if counts is None or counts.size < _FEW or not isinstance(form, IntFormat):
            continue
        if form.bits > 16:
            continue  # biases are int32 for kernels
        least = holding(counts.low, counts.high, _TYPES)
        if least is not None and FORMATS[least].bits < form.bits:
            saved = counts.size * (form.bits - FORMATS[least].bits) // 8
            text = f"codes from {counts.low} to {counts.high} fit in {least}: "
            text += f"{bytes_text(saved)} less"
            figures = {"low": counts.low, "high": counts.high, "saved_bytes": saved}
            # The smallest type is not the one that layers on codes want.
            yield Found(
                _with_reader(facts, decoder.node), text, figures, is_fixable=not facts.layers
            )


@rule("QG503", "unused-codes", INFO)
def unused_codes(facts: ModelFacts) -> Iterator[Found]:
    """Weights use few of the codes that their type has."""
    for decoder in facts.decoders:
        counts, form = facts.counts(decoder), FORMATS.get(decoder.kind)
        if counts is None or counts.size < 16 * _FEW or not isinstance(form, IntFormat):
            continue
        levels = int(form.hi - form.lo) + 1
        extent = counts.high - counts.low + 1
        if counts.used and 4 * extent <= 3 * levels and decoder.axis is None and not decoder.block:
            text = f"{counts.used} of {levels} codes are used, from {counts.low} to {counts.high}"
            figures = {"used": counts.used, "levels": levels}
            figures |= {"low": counts.low, "high": counts.high}
            yield Found((decoder.node,), text, figures)
    for site in facts.sites:
        quantizer = site.quantizer if site.weight is not None else None
        if not isinstance(quantizer, Affine) or quantizer.scale.size != 1 or not site.weight:
            continue
        levels = int(min(float((quantizer.hi - quantizer.lo).max()) + 1, 1 << 16))
        if site.weight.size < 16 * _FEW or site.nodes[0].op_type == "DequantizeLinear":
            continue
        steps = step_range(site, quantizer.to_real.scale, quantizer.to_real.zero_point)
        if steps is not None and 4 * (steps.high - steps.low + 1) <= 3 * levels <= 3 * 256:
            used = int(steps.high - steps.low) + 1
            text = f"codes from {steps.low:g} to {steps.high:g}, {used} of {levels}"
            yield Found(nodes_of_site(site), text, {"used": used, "levels": levels})


@rule("QG504", "duplicate-weights", INFO)
def duplicate_weights(facts: ModelFacts) -> Iterator[Found]:
    """Two constants have the same elements."""
    groups = by_key(
        ((tensor.dtype.name, tensor.shape.numpy()), value)
        for owner in owners(facts.model)
        if isinstance(owner, ir.Graph)
        for value in owner.initializers.values()
        if (tensor := value.const_value) is not None and tensor.nbytes >= _FEW_BYTES
        if value.uses()
    )
    for values in groups.values():
        first_of: dict[bytes, ir.Value] = {}
        for value in values if len(values) > 1 else ():
            stream = facts.stream(value)
            first = None if stream is None else first_of.setdefault(_digest(stream), value)
            if first is not None and first is not value:
                number = int(value.const_value.nbytes) if value.const_value is not None else 0
                nodes = tuple(facts.readers(each)[0] for each in (first, value))
                if nodes[0] is nodes[1]:
                    continue
                text = f"{first.name!r} and {value.name!r} are the same {bytes_text(number)}"
                yield Found(nodes, text, {"bytes": number})


@rule("QG505", "zero-channels", INFO)
def zero_channels(facts: ModelFacts) -> Iterator[Found]:
    """All weights of some channels are zero."""
    for decoder in facts.decoders:
        counts = facts.counts(decoder)
        if counts is None or counts.reach.size < 2 or not counts.peak.any():
            continue
        if counts.kind == "INT32":
            continue  # a bias
        dead = np.flatnonzero(counts.peak == 0)
        if dead.size:
            text = f"{dead.size} of {counts.peak.size} channels are 0: their outputs are the bias"
            yield Found((decoder.node,), text, {"channels": listed(dead), "count": int(dead.size)})


@rule("QG506", "equal-scales", INFO, fix=LintFix("repack", "values"))
def equal_scales(facts: ModelFacts) -> Iterator[Found]:
    """All scales of a tensor are equal: one is enough."""
    for decoder in facts.decoders:
        scale, zero = decoder.scale, decoder.zero
        if scale is None or scale.size < 2 or not facts.is_stored(decoder):
            continue
        is_one = (scale == scale.flat[0]).all() and (zero is None or (zero == zero.flat[0]).all())
        if is_one:
            text = f"{scale.size} equal scales of {float(scale.flat[0]):.6g}"
            figures = {"scales": int(scale.size)}
            yield Found(
                _with_reader(facts, decoder.node), text, figures, is_fixable=not facts.layers
            )


@rule("QG507", "double-constants", INFO)
def double_constants(facts: ModelFacts) -> Iterator[Found]:
    """A constant has 64-bit floats."""
    for owner in owners(facts.model):
        for value in owner.initializers.values() if isinstance(owner, ir.Graph) else ():
            tensor = value.const_value
            if tensor is not None and tensor.dtype is ir.DataType.DOUBLE:
                number, readers = int(tensor.nbytes), facts.readers(value)
                if number >= _FEW_BYTES and readers:
                    text = f"{value.name!r} takes {bytes_text(number)} in float64"
                    yield Found((readers[0],), text, {"bytes": number})


def _digest(stream: Stream) -> bytes:
    digest = hashlib.sha256()
    for start in range(0, stream.size, PIECE):
        digest.update(stream.read(start, min(start + PIECE, stream.size)).tobytes())
    return digest.digest()
