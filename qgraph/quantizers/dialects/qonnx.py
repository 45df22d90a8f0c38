"""The dialect ``qonnx``: Quant, BipolarQuant, FloatQuant and both versions of Trunc."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from qgraph.graph.edit import Draft, Editor
from qgraph.graph.schema import QONNX_DOMAINS, OpKey
from qgraph.numerics import Float32
from qgraph.numerics.formats import Minifloat
from qgraph.numerics.primitives import power_of_two
from qgraph.ops.definitions.quant import code_bounds
from qgraph.ops.definitions.trunc import nearest_power_of_two
from qgraph.ops.operator import Operator
from qgraph.quantizers.dialects import qonnx_forms
from qgraph.quantizers.dialects.dialect import Refusal, Site, dialect, single_node, written
from qgraph.quantizers.dialects.onnx import decoded_in_float
from qgraph.quantizers.quantizer import (
    Affine,
    Bipolar,
    Floating,
    Quantizer,
    Recipe,
    Truncating,
    Unnamed,
)

Attributes = dict[str, Any]

_INPUTS_OF_VERSION_1 = 4


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

        def meaning(operator: Operator, parameters: list[Float32]) -> Quantizer:
            return _READERS[operator.schema.name](operator.schema.attributes_of(node), parameters)

        return single_node(node, self.name, meaning)

    def spellings(self, site: Site, editor: Editor) -> Iterator[Draft]:
        """Yield one node if it can express the quantizer, then nodes with float operators."""
        yield from written(site, editor, qonnx_forms.WRITERS, later=True)
        yield from decoded_in_float(site, editor)

    def reason(self, site: Site) -> str:
        """Return why the dialect has no equal form."""
        if isinstance(site.quantizer, Affine):
            return "its codes have no bounds, those of a Quant do; use --to onnx"
        return (
            "only the definition of its operators is known, not parameters for QONNX; use --to "
            "onnx, which has an exact form"
        )


def _read_quant(attributes: Attributes, parameters: list[Float32]) -> Quantizer:
    scale, zero_point, bits = parameters
    lo, hi = _codes_of_quant(bits.tobytes(), bits.shape, attributes["signed"], attributes["narrow"])
    return Affine(scale, zero_point, lo, hi, attributes["rounding_mode"], Recipe.OFFSET_FIRST)


@functools.lru_cache
def _codes_of_quant(
    content: bytes, shape: tuple[int, ...], signed: bool, narrow: bool
) -> tuple[Float32, Float32]:
    """Return the smallest and largest codes for numbers of bits; results are cached."""
    bits = np.frombuffer(content, np.float32).reshape(shape)
    with np.errstate(over="ignore"):
        lo, hi = code_bounds(bits, signed, narrow)
    # The codes of one signed bit are -1 and 1.
    is_bipolar = (bits == 1) & signed
    return np.where(is_bipolar, np.float32(-1), lo), np.where(is_bipolar, np.float32(1), hi)


def _read_floating(attributes: Attributes, parameters: list[Float32]) -> Quantizer:
    scale, *of_format = parameters
    if any(array.size != 1 for array in of_format):
        return Unnamed()
    exponent, mantissa, bias, max_value = (float(array.reshape(())) for array in of_format)
    with np.errstate(over="ignore"):
        top = (2.0 - 2.0**-mantissa) * 2.0 ** (2.0**exponent - 1 - bias)
    grid = Minifloat(int(exponent), int(mantissa), int(bias), min(top, max_value))
    return Floating(scale, grid, attributes["rounding_mode"], bool(attributes["saturation"]))


def _read_trunc(attributes: Attributes, parameters: list[Float32]) -> Quantizer:
    """Read version 1 (scale, zero point, input width, output width), which does not limit codes.

    Version 2 has the output scale before the output width.
    """
    scale, zero_point, in_bits, *_, out_bits = parameters
    rounding = attributes["rounding_mode"]
    if len(parameters) == _INPUTS_OF_VERSION_1:
        ratio = power_of_two(in_bits - out_bits)
        end = np.asarray(np.inf, np.float32)
        return Truncating(scale, zero_point, ratio, -end, end, rounding, scale, zero_point)
    out_scale = parameters[3]
    with np.errstate(all="ignore"):
        ratio = nearest_power_of_two(out_scale / scale)
        lo, hi = code_bounds(out_bits, attributes["signed"], attributes["narrow"])
        moved = np.asarray(zero_point / ratio)
    return Truncating(scale, zero_point, ratio, lo, hi, rounding, out_scale, moved)


_READERS: dict[str, Callable[[Attributes, list[Float32]], Quantizer]] = {
    "Quant": _read_quant,
    "BipolarQuant": lambda _, parameters: Bipolar(*parameters),
    "FloatQuant": _read_floating,
    "Trunc": _read_trunc,
}
