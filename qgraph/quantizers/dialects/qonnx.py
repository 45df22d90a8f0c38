"""The dialect ``qonnx``: Quant, BipolarQuant, FloatQuant and both versions of Trunc."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qgraph.graph.edit import Draft, Editor
from qgraph.graph.schema import QONNX_DOMAINS, OpKey
from qgraph.numerics import Float32
from qgraph.numerics.formats import Minifloat
from qgraph.numerics.rounding import Rounding
from qgraph.ops.definitions.quant import code_bounds
from qgraph.ops.definitions.trunc import nearest_power_of_two
from qgraph.ops.operator import Operator, operator_of
from qgraph.quantizers.dialects.dialect import dialect, parameter, try_out, written
from qgraph.quantizers.dialects.onnx import decoded_in_float
from qgraph.quantizers.dialects.qonnx_forms import WRITERS
from qgraph.quantizers.quantizer import (
    Affine,
    Bipolar,
    Floating,
    Quantizer,
    Recipe,
    Truncating,
    Unnamed,
)
from qgraph.quantizers.site import Refusal, Site, shape_of, weight_of

_INPUTS_OF_VERSION_1 = 4


def truncating(
    given: list[Float32], rounding: Rounding, *, signed: bool, narrow: bool
) -> Truncating:
    """Return the meaning of a Trunc.

    Args:
        given: its inputs after the data: (scale, zero point, input width, output width) in version
            1, with the output scale before the output width in version 2.
        rounding: of the second rounding.
        signed: whether output codes are signed; version 1 does not limit them.
        narrow: whether they leave one out.
    """
    scale, zero_point, in_bits, *_, out_bits = given
    if len(given) == _INPUTS_OF_VERSION_1:
        ratio = np.ldexp(np.float32(1), (in_bits - out_bits).astype(np.int32))
        end = np.asarray(np.inf, np.float32)
        return Truncating(scale, zero_point, ratio, -end, end, rounding, scale, zero_point)
    out_scale = given[3]
    with np.errstate(all="ignore"):
        ratio = nearest_power_of_two(out_scale / scale)
        lo, hi = code_bounds(out_bits, signed, narrow)
        moved = np.asarray(zero_point / ratio)
    return Truncating(scale, zero_point, ratio, lo, hi, rounding, out_scale, moved)


NAMES = ("Quant", "IntQuant", "BipolarQuant", "FloatQuant", "Trunc")


@dialect
class Qonnx:
    """Quantizers as single nodes that keep float values on both sides."""

    name: ClassVar[str] = "qonnx"
    roots: ClassVar[frozenset[OpKey]] = frozenset(
        OpKey(domain, name) for domain in QONNX_DOMAINS for name in NAMES
    )

    def read(self, node: ir.Node) -> Site | Refusal | None:
        """Return the quantizer of a QONNX node."""
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
        """Yield one node if its parameters suffice, then nodes with float operators."""
        yield from written(site, editor, WRITERS)
        yield from decoded_in_float(site, editor)

    def reason(self, site: Site) -> str:
        """Return why the dialect has no equal form."""
        if isinstance(site.quantizer, Affine):
            return "its codes have no bounds, those of a Quant do; use --to onnx"
        return (
            "only the definition of its operators is known, not parameters for QONNX; use --to "
            "onnx, which has an exact form"
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
    attributes = operator.schema.attributes_of(node)
    rounding = attributes["rounding_mode"]
    return truncating(given, rounding, signed=attributes["signed"], narrow=attributes["narrow"])


_READERS: dict[str, Callable[[Operator, ir.Node, list[Float32]], Quantizer]] = {
    "Quant": _read_quant,
    "BipolarQuant": _read_bipolar,
    "FloatQuant": _read_floating,
    "Trunc": _read_trunc,
}


def _code_range(bits: Float32, *, signed: bool, narrow: bool) -> tuple[Float32, Float32]:
    """Return the range of the codes; that of one signed bit is {-1, 1}."""
    with np.errstate(over="ignore"):
        lo, hi = code_bounds(bits, signed, narrow)
    single = (bits == 1) & signed
    return np.where(single, np.float32(-1), lo), np.where(single, np.float32(1), hi)
