"""Descriptions of quantizers that do not depend on the dialect.

One function of quantization has one description, so that descriptions can be compared:

- Codes of data are counted from the code of real zero if a signed or unsigned format fits, so
  ``int8`` with zero point 0 and ``uint8`` with zero point 128 are equal; otherwise from the lowest
  code.
- A FakeQuantize has the scale and zero point of its ranges.
- For a constant input, the format is the narrowest one for the used codes, but at most the stored
  format, and the rounding is unknown.
- Granularity follows the values of the scale: equal scales of all channels count as per tensor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant_expression
from qgraph.graph.scopes import all_nodes
from qgraph.inventory.info import format_of
from qgraph.inventory.operands import is_bias
from qgraph.inventory.weight_steps import (
    NOISE,
    fraction,
    narrowest_format,
    of_range,
    scale_of,
    used_steps,
    zero_point_of,
)
from qgraph.numerics import Array, blocks
from qgraph.numerics.formats import IntFormat
from qgraph.numerics.rounding import Rounding
from qgraph.quantizers.dialects.dialect import Refusal, Site
from qgraph.quantizers.on_codes import CodedTensor, coded_tensors
from qgraph.quantizers.quantizer import Affine, Bipolar, Floating, Ranged, Truncating, Unnamed
from qgraph.quantizers.sites import sites
from qgraph.records import dataclass, replace
from qgraph.text import fields_json

_DIGITS = 12  # hexadecimal digits of a digest


@dataclass(frozen=True)
class Numbers:
    """A parameter: its smallest and largest value, and a digest of all values.

    The digest covers the float32 values, one per run of equal values; equal digests: equal bits.
    """

    low: float
    high: float
    digest: str | None = None

    def to_json(self) -> dict[str, float | str | None]:
        """Return the ends and the digest."""
        return fields_json(self)

    def __str__(self) -> str:
        ends = f"{self.low:.6g}" if self.high == self.low else f"{self.low:.6g} .. {self.high:.6g}"
        return ends if self.digest is None else f"{ends} #{self.digest}"


@dataclass(frozen=True)
class Description:
    """Description of a quantizer.

    Attributes:
        name: name of its output; not compared.
        of: ``bias`` for the constant bias of a layer, ``weight`` for other constants, or ``data``.
        format: number format of its codes, such as ``int4``, ``uint8 narrow`` or ``e4m3``.
        bits: width of a code.
        granularity: granularity of the scale.
        scale: scale in real units per step.
        zero_point: code of the real zero, in steps; for constants, its fraction.
        rounding: rounding mode; None for constants.
        remark: other properties, such as ``largest value 448, saturates``.
        reason: why it cannot be read; then all other fields except name are None.
    """

    name: str
    of: str | None = None
    format: str | None = None
    bits: int | None = None
    granularity: str | None = None
    scale: Numbers | None = None
    zero_point: Numbers | None = None
    rounding: str | None = None
    remark: str | None = None
    reason: str | None = None

    def fields(self) -> dict[str, str]:
        """Return the present fields as texts, in the order of the description."""
        texts = {key: value for key, value in vars(self).items() if key != "name"}
        return {
            key.replace("_", " "): str(value) for key, value in texts.items() if value is not None
        }

    def to_json(self) -> dict[str, Any]:
        """Return all attributes."""
        return fields_json(self)

    def __str__(self) -> str:
        texts = self.fields()
        texts.pop("bits", None)
        for key in ("scale", "zero point"):
            if key in texts:
                texts[key] = f"{key} {texts[key]}"
        head = " ".join(filter(None, [texts.pop("of", ""), texts.pop("format", "")]))
        return ", ".join(filter(None, [head, *texts.values()]))


@dataclass(frozen=True, eq=False)
class Described:
    """A quantizer in a graph and its description; ``node`` is the name of its root.

    Outside of a graph, input and output are None. It has no nodes if it cannot be read.
    """

    description: Description
    x: ir.Value | None
    y: ir.Value | None
    node: str
    nodes: tuple[ir.Node, ...] = ()


def descriptions(found: ir.Model | Iterable[Site | Refusal]) -> Iterator[Described]:
    """Yield every quantizer of a model, or those that ``sites`` yields, with its description.

    Weights are read one at a time, and not kept.
    """
    memory: dict[tuple[object, ...], tuple[Site, Description]] = {}
    for site in sites(found) if isinstance(found, ir.Model) else found:
        if isinstance(site, Refusal):
            yield _refused(site)
            continue
        # Equal quantizers of data have one meaning; if only one scale differs, they share arrays.
        meaning: Any = site.meaning
        key: tuple[object, ...] = id(meaning), site.shape, id(site.repeats)
        if isinstance(meaning, Affine) and meaning.decoding is None and not meaning.scale.shape:
            key = id(meaning.zero_point), id(meaning.lo), id(meaning.hi), *key[1:], meaning.rounding
        earlier, known = memory.get(key) or (site, _of_site(site))
        if site.weight is None:
            memory[key] = earlier, known
        if earlier.meaning is not meaning:
            is_bipolar = known.format == "bipolar"  # with half of the scale
            known = _of_site(site) if is_bipolar else replace(known, scale=numbers(meaning.scale))
        yield _described(site, replace(known, name=str(site.y.name)))


def _refused(site: Refusal) -> Described:
    y, x = site.root.outputs[0], next(iter(site.root.inputs), None)
    return Described(Description(str(y.name), reason=site.reason), x, y, site.root.name or "")


def _described(site: Site, known: Description) -> Described:
    y, nodes = site.y, site.nodes
    if site.weight is not None and known.scale is not None:
        known, y = _of_constant(site, known)
    last = () if y is site.y else filter(None, [y.producer()])
    return Described(known, site.x, y, site.root.name or "", (*nodes, *last))


@np.errstate(all="ignore")
def _of_site(site: Site) -> Description:
    """Return the description of a quantizer from its parameters, ignoring a constant input."""
    known = Description("", of="data")
    match site.meaning:
        case Affine(scale, zero_point, lo, hi, rounding, _, decoding):
            known = replace(known, rounding=str(rounding))
            if decoding is not None:
                remark = f"codes are dequantized with scale {numbers(decoding.scale, site)}"
                known = replace(
                    known, remark=f"{remark}, zero point {numbers(decoding.zero_point, site)}"
                )
            return _uniform(site, known, scale, zero_point, lo, hi)
        case Ranged(input_low=low, input_high=high, levels=levels) as ranged:
            ends = low, high, ranged.output_low, ranged.output_high
            # Some dialects compute limits with rounding errors.
            is_near = partial(np.allclose, rtol=NOISE, atol=0)
            if not all(map(is_near, ends[:2], ends[2:])):
                outer = f"{numbers(ends[2])} to {numbers(ends[3])}"
                known = replace(known, remark=f"its codes represent {outer}")
            scale, zero_point = of_range(low, high, levels)
            known = replace(known, rounding="ROUND")
            codes = np.asarray([0, levels - 1], np.float32)
            return _uniform(site, known, scale, zero_point, codes[:1], codes[1:])
        case Floating(scale, form, rounding, saturating):
            name, bits = format_of(site.meaning)
            beyond = "saturates" if saturating else "does not saturate"
            known = replace(known, format=name, bits=bits, rounding=str(rounding))
            known = replace(known, remark=f"largest value {form.max_value:g}, {beyond}")
            return _scaled(site, known, scale)
        case Bipolar(scale):
            return _scaled(site, replace(known, format="bipolar", bits=1), scale)
        case Truncating() as trunc:
            return _truncating(site, known, trunc)
        case Unnamed():
            return replace(known, remark="only known by the definition of its operators")


def _truncating(site: Site, known: Description, trunc: Truncating) -> Description:
    text = (
        f"drops low bits: codes of scale {numbers(trunc.scale)}, zero point "
        f"{numbers(trunc.zero_point)}, divided by {numbers(trunc.ratio, digest=False)}"
    )
    known = replace(known, rounding=str(trunc.rounding), remark=text)
    return _uniform(site, known, trunc.out_scale, trunc.out_zero_point, trunc.lo, trunc.hi)


def _uniform(
    site: Site, known: Description, scale: Array, zero_point: Array, lo: Array, hi: Array
) -> Description:
    """Return the description of uniform codes with the given scale."""
    origin = np.asarray(zero_point - lo, np.float32)
    levels = float((hi - lo).max()) + 1
    if levels == 2 and (origin == np.float32(0.5)).all():
        return _scaled(site, replace(known, format="bipolar", bits=1), scale * np.float32(0.5))
    affine = Affine(scale, zero_point, lo, hi)
    for signed in (True, False):
        first = _first_code(levels, signed)
        if first is not None and (origin == -first).all():
            start = np.float32(first)
            affine = Affine(scale, np.zeros_like(zero_point), start + 0 * lo, start + (hi - lo))
            break
    else:
        if np.isfinite(levels) and (lo == lo.min()).all():
            affine = Affine(scale, origin, np.zeros_like(lo), hi - lo)
    name, bits = format_of(affine)
    known = replace(known, format=name, bits=bits)
    if (lo != lo.min()).any() or (hi != hi.max()).any():
        extent = f"codes from {numbers(lo)} to {numbers(hi)}"
        known = replace(known, remark="; ".join(filter(None, [known.remark, extent])))
    return _scaled(site, known, scale, affine.zero_point)


@cache
def _first_code(levels: float, signed: bool) -> int | None:
    """Return the lowest code of the format with this number of levels, None if there is none."""
    forms = (IntFormat(bits, signed, narrow) for bits in range(1, 33) for narrow in (False, True))
    return next((form.lo for form in forms if form.hi - form.lo + 1 == levels), None)


def _scaled(
    site: Site, known: Description, scale: Array, zero_point: Array | None = None
) -> Description:
    return replace(
        known,
        granularity=_granularity(site, scale, *(() if zero_point is None else (zero_point,))),
        scale=numbers(scale, site),
        zero_point=None if zero_point is None else numbers(zero_point, site, digest=False),
    )


def _of_constant(site: Site, known: Description) -> tuple[Description, ir.Value]:
    """Return the description of a constant by its used codes, and the value of its last node."""
    y, factor = _scaled_once_more(site)
    if factor is not None:
        site = replace(site, meaning=site.quantizer, repeats=None)
    known = replace(known, name=str(y.name), of="bias" if is_bias(y) else "weight", rounding=None)
    scale, zero_point = scale_of(site), zero_point_of(site)
    steps, offset = used_steps(site), fraction(zero_point)
    if scale is None or steps is None:
        if known.remark is not None and known.format not in (None, "bipolar"):
            # nothing is clipped any more
            known = replace(known, remark=known.remark.partition(",")[0])
        return known, y
    name, bits = narrowest_format(steps)
    if known.bits is not None and bits is not None and bits > known.bits:
        # Codes far from the real zero need more bits only if they are counted from it.
        name, bits, offset = str(known.format), known.bits, zero_point
    if factor is not None:
        scale = np.asarray(scale * factor, np.float32)
    known = replace(known, format=name, bits=bits, remark=None)
    return _scaled(site, known, scale, np.asarray(offset, np.float32)), y


def _scaled_once_more(site: Site) -> tuple[ir.Value, Array | None]:
    """Return the output of a Mul that applies the scale to integer codes, and that scale."""
    uses = list(site.y.uses())
    scale = scale_of(site)
    if len(uses) != 1 or scale is None or not (scale == 1).all():
        return site.y, None
    node = uses[0].node
    others = [value for value in node.inputs if value is not site.y]
    if (node.domain, node.op_type) != ("", "Mul") or len(others) != 1:
        return site.y, None
    factor = constant_expression(others[0])
    if factor is None or factor.dtype != np.float32 or factor.ndim > len(site.shape):
        return site.y, None
    return node.outputs[0], factor


def _granularity(site: Site, *parameters: Array) -> str:
    """Return the granularity: the elements over which all parameters are constant."""
    if all(parameter.size == 1 for parameter in parameters):
        return "per tensor"
    joint = np.broadcast_shapes(*(parameter.shape for parameter in parameters))
    spread = [np.broadcast_to(parameter, joint) for parameter in parameters]
    strides = [blocks.stretch(spread, axis, site.repeats) for axis in range(len(joint))]
    offset = max(len(site.shape) - len(joint), 0)
    varying = [axis for axis in range(len(joint)) if strides[axis] < _length(joint, axis, site)]
    if not varying:
        return "per tensor"
    if len(varying) == 1:
        return f"per channel ({_length(joint, varying[0], site)}, axis {varying[0] + offset})"
    blocked = [axis for axis in varying if strides[axis] > 1]
    if len(blocked) == 1:
        return f"per {strides[blocked[0]]} along axis {blocked[0] + offset}"
    if not blocked:
        return f"per element of axes {', '.join(str(axis + offset) for axis in varying)}"
    parts = (f"{strides[axis]} along axis {axis + offset}" for axis in varying)
    return f"per {', '.join(parts)}"


def _length(shape: Sequence[int], axis: int, site: Site | None) -> int:
    """Return the number of elements along an axis, with repeated block entries."""
    repeats = None if site is None else site.repeats
    if repeats is None or axis != repeats.axis or shape[axis] == 1:
        return shape[axis]
    return repeats.sizes[axis]


def numbers(parameter: Array, site: Site | None = None, *, digest: bool = True) -> Numbers:
    """Return the smallest and largest value of a parameter and its digest.

    The parameter broadcasts to the data of ``site``, or is repeated there. Without ``digest``,
    there is no digest if all values are the same.
    """
    array = np.asarray(parameter, np.float32) + np.float32(0)  # which removes signs of zeros
    low, high = (float(array.min()), float(array.max())) if array.shape else (float(array),) * 2
    if not digest and low == high:
        return Numbers(low, high)
    repeats = None if site is None or array.size == 1 else site.repeats
    axes = range(array.ndim if array.size > 1 else 0)
    strides = [blocks.stretch([array], axis, repeats) for axis in axes]
    lengths = [_length(array.shape, axis, site) for axis in axes]
    varying = [axis for axis in axes if strides[axis] < lengths[axis]]
    for axis in axes:
        # for a single axis each value counts: equal neighbours are not a block
        stride = strides[axis] if axis not in varying or len(varying) > 1 else 1
        indices = np.arange(0, lengths[axis], stride)
        if lengths[axis] != array.shape[axis] and repeats is not None:
            indices //= repeats.block_size
        array = array.take(indices, axis)
    data = np.ascontiguousarray(array.reshape(-1)).astype("<f4").tobytes()
    return Numbers(low, high, hashlib.sha256(data).hexdigest()[:_DIGITS])


_OF_DATA = "scale and zero point are computed from the data"


def coded_descriptions(model: ir.Model) -> Iterator[Described]:
    """Yield the constant weights and the results of operators on codes, such as QLinearConv.

    Format and zero point are those of the stored codes.
    """
    for tensor in (tensor for node in all_nodes(model) for tensor in coded_tensors(node)):
        yield Described(_coded_description(tensor), None, None, tensor.node.name or "")


def _coded_description(tensor: CodedTensor) -> Description:
    node = tensor.node
    return Description(
        f"{node.outputs[0].name} ({node.op_type})",
        of="weight" if tensor.is_weight else "data",
        format=tensor.format,
        bits=tensor.bits,
        granularity=tensor.granularity,
        scale=_coded_numbers(tensor.scale, digest=True),
        zero_point=_coded_numbers(tensor.zero_point, digest=False),
        rounding=None if tensor.is_weight else str(Rounding.ROUND),
        remark=_OF_DATA if tensor.is_dynamic else None,
    )


def _coded_numbers(parameter: Array | None, *, digest: bool) -> Numbers | None:
    if parameter is None or not parameter.size:
        return None
    return numbers(np.asarray(parameter, np.float32), digest=digest)
