"""The dialect ``qonnx``: Quant, BipolarQuant, FloatQuant and Trunc (Brevitas, QKeras)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.dialects.dialect import (
    Refusal,
    Site,
    data_of,
    dialect,
    parameter,
    shape_of,
    try_out,
    weight_of,
)
from qgraph.edit import Draft, Editor, Operand
from qgraph.numerics.formats import Minifloat
from qgraph.numerics.rounding import Rounding
from qgraph.ops.operator import Operator, operator_of
from qgraph.quantizer import Affine, Bipolar, Floating, Quantizer, Ranged, Recipe, Unnamed
from qgraph.schema import OpKey

DOMAIN = "qonnx.custom_op.general"
DOMAINS = (DOMAIN, "onnx.brevitas", "finn.custom_op.general", "finn")
NAMES = ("Quant", "IntQuant", "BipolarQuant", "FloatQuant", "Trunc")
Float32 = npt.NDArray[np.float32]


@dialect
class Qonnx:
    """Quantizers as single nodes that keep float values on both sides."""

    name: ClassVar[str] = "qonnx"
    roots: ClassVar[frozenset[OpKey]] = frozenset(
        OpKey(domain, name) for domain in DOMAINS for name in NAMES
    )

    def read(self, node: ir.Node) -> Site | Refusal | None:
        """Return the quantizer that a QONNX node is."""
        operator = operator_of(node)
        if operator is None:
            return None
        x, *values = operator.schema.values(node)
        if x is None:
            return None
        names = operator.schema.inputs[1:]
        given = [parameter(node, v, name) for v, name in zip(values, names, strict=True)]
        try_out(node, x, *given)
        quantizer = _READERS[operator.schema.name](operator, node, given)
        shape = shape_of(x, *given)
        return Site(x, node.outputs[0], (node,), node, self.name, quantizer, shape, weight_of(x))

    def spellings(self, site: Site, editor: Editor) -> Iterator[Draft]:
        """Yield the node that the parameters suggest, then the one without a zero point."""
        match site.quantizer:
            case Affine() as meaning:
                yield from _affine(site, editor, meaning)
            case Ranged() as meaning:
                yield from _ranged(site, editor, meaning)
            case Bipolar(scale):
                draft = editor.draft(site)
                yield draft.giving(
                    draft.node("BipolarQuant", [data_of(draft, site), scale], domain=DOMAIN)
                )
            case Floating() as meaning:
                yield _floating(site, editor, meaning)

    def reason(self, site: Site) -> str:
        """Say what the dialect lacks."""
        return (
            "Quant adds its zero point before it rounds, and no parameters make that the same "
            "float function; --to onnx spells it exactly"
        )


def _read_quant(operator: Operator, node: ir.Node, given: list[Float32]) -> Quantizer:
    scale, zero_point, bits = given
    attributes = operator.schema.attributes_of(node)
    lo, hi = _code_range(bits, signed=attributes["signed"], narrow=attributes["narrow"])
    return Affine(scale, zero_point, lo, hi, attributes["rounding_mode"], Recipe.OFFSET_FIRST)


def _read_bipolar(operator: Operator, node: ir.Node, given: list[Float32]) -> Quantizer:
    return Bipolar(given[0])


def _read_floating(operator: Operator, node: ir.Node, given: list[Float32]) -> Quantizer:
    scale, *format_parameters = given
    attributes = operator.schema.attributes_of(node)
    if any(array.size != 1 for array in format_parameters):
        return Unnamed()
    exponent, mantissa, bias, max_value = (float(array.reshape(())) for array in format_parameters)
    with np.errstate(over="ignore"):
        top = (2.0 - 2.0**-mantissa) * 2.0 ** (2.0**exponent - 1 - bias)
    grid = Minifloat(int(exponent), int(mantissa), int(bias), min(top, max_value))
    return Floating(scale, grid, attributes["rounding_mode"], bool(attributes["saturation"]))


def _read_trunc(operator: Operator, node: ir.Node, given: list[Float32]) -> Quantizer:
    operator.schema.attributes_of(node)
    return Unnamed()


_READERS: dict[str, Callable[[Operator, ir.Node, list[Float32]], Quantizer]] = {
    "Quant": _read_quant,
    "BipolarQuant": _read_bipolar,
    "FloatQuant": _read_floating,
    "Trunc": _read_trunc,
}


def _code_range(bits: Float32, *, signed: bool, narrow: bool) -> tuple[Float32, Float32]:
    """Return the range of the codes; that of one signed bit is {-1, 1}."""
    if signed:
        half = np.float32(2) ** (bits - np.float32(1))
        lo, hi = np.float32(narrow) - half, half - np.float32(1)
        single = bits == 1
        return np.where(single, np.float32(-1), lo), np.where(single, np.float32(1), hi)
    top = np.float32(2) ** bits - np.float32(2 if narrow else 1)
    return np.zeros_like(top), top


def _affine(site: Site, editor: Editor, meaning: Affine) -> Iterator[Draft]:
    lo, hi = float(meaning.lo.min()), float(meaning.hi.max())
    if meaning.recipe is Recipe.OFFSET_FIRST or not meaning.zero_point.any():
        form = _integer_form(lo, hi)
        if form is not None:
            yield _quant(site, editor, meaning.scale, meaning.zero_point, form, meaning.rounding)
    if meaning.rounding is Rounding.ROUND:
        yield _without_zero_point(site, editor, meaning)


def _without_zero_point(site: Site, editor: Editor, meaning: Affine) -> Draft:
    """Draft a clamp of the data and a Quant wide enough not to clamp, codes counted from zero."""
    steps = [end - meaning.zero_point for end in (meaning.lo, meaning.hi)]
    with np.errstate(over="ignore"):
        ends = [step * meaning.scale for step in steps]
    bits = max(int(np.abs(step).max()) for step in steps).bit_length() + 1
    draft = editor.draft(site)
    lower = draft.op.Max(data_of(draft, site), np.minimum(*ends))
    inside = draft.op.Min(lower, np.maximum(*ends))
    form = (bits, True, False)
    return draft.giving(_node(draft, inside, meaning.scale, np.float32(0), form, meaning.rounding))


def _ranged(site: Site, editor: Editor, meaning: Ranged) -> Iterator[Draft]:
    with np.errstate(all="ignore"):
        scale = (meaning.output_high - meaning.output_low) / np.float32(meaning.levels - 1)
        zero_point = np.rint(-meaning.output_low / scale)
    form = _integer_form(0.0, meaning.levels - 1.0)
    if form is not None and np.isfinite(zero_point).all() and (scale != 0).all():
        yield _quant(site, editor, scale, zero_point, form, Rounding.ROUND)


def _integer_form(lo: float, hi: float) -> tuple[int, bool, bool] | None:
    """Return (bits, signed, narrow) of exactly the codes lo..hi, or None."""
    for signed in (False, True):
        for narrow in (False, True):
            for bits in range(1 + signed, 25):
                bounds = _code_range(np.asarray(bits, np.float32), signed=signed, narrow=narrow)
                if (float(bounds[0]), float(bounds[1])) == (lo, hi):
                    return bits, signed, narrow
    return None


def _quant(
    site: Site,
    editor: Editor,
    scale: Float32,
    zero_point: Float32,
    form: tuple[int, bool, bool],
    rounding: Rounding,
) -> Draft:
    draft = editor.draft(site)
    return draft.giving(_node(draft, data_of(draft, site), scale, zero_point, form, rounding))


def _node(
    draft: Draft,
    x: Operand,
    scale: Float32,
    zero_point: npt.ArrayLike,
    form: tuple[int, bool, bool],
    rounding: Rounding,
) -> ir.Value:
    bits, signed, narrow = form
    operands = [
        x,
        draft.constant(scale, "scale"),
        draft.constant(np.asarray(zero_point, np.float32), "zero_point"),
        draft.constant(np.float32(bits), "bit_width"),
    ]
    attributes = {"signed": int(signed), "narrow": int(narrow), "rounding_mode": str(rounding)}
    return draft.node("Quant", operands, attributes, domain=DOMAIN, dtype=ir.DataType.FLOAT)


def _floating(site: Site, editor: Editor, meaning: Floating) -> Draft:
    draft = editor.draft(site)
    grid = meaning.format
    widths: list[Any] = [
        draft.constant(np.float32(number), name)
        for number, name in (
            (grid.exponent_bits, "exponent_bit_width"),
            (grid.mantissa_bits, "mantissa_bit_width"),
            (grid.bias, "exponent_bias"),
            (grid.max_value, "max_val"),
        )
    ]
    attributes = {
        "has_inf": int(grid.has_inf),
        "has_nan": int(grid.has_nan),
        "has_subnormal": 1,
        "saturation": int(meaning.saturating),
        "rounding_mode": str(meaning.rounding),
    }
    scale = draft.constant(meaning.scale, "scale")
    return draft.giving(
        draft.node("FloatQuant", [data_of(draft, site), scale, *widths], attributes, domain=DOMAIN)
    )
