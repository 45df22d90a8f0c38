"""A dialect of its own in one file: FakeQuant with a range, as TensorFlow's models have it.

Everything that qgraph needs to know of an operator and of a dialect is here; importing the file
registers both. It serves the tests as an example, and to show that nothing else has to be edited.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.graph.constants import constant_stream
from qgraph.graph.edit import Draft, Editor
from qgraph.graph.schema import Attribute, OpKey, OpSchema
from qgraph.numerics.rounding import Rounding
from qgraph.ops import steps
from qgraph.ops.operator import operator, operator_of
from qgraph.quantizers.dialects.dialect import (
    Refusal,
    Site,
    data_of,
    dialect,
    parameter,
    shape_of,
    try_out,
)
from qgraph.quantizers.quantizer import Affine, Recipe

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

DOMAIN = "com.example.tf"
NAME = "FakeQuantWithMinMaxVars"


def _bits(value: int) -> int:
    if not 2 <= value <= 16:
        raise ValueError(f"there are {value} bits, expected 2 to 16. Correct the model's exporter")
    return value


SCHEMA = OpSchema(
    name=NAME,
    domains=(DOMAIN,),
    inputs=("x", "min", "max"),
    attributes=(
        Attribute("num_bits", 8, parse=_bits),
        Attribute("narrow_range", 0, parse=bool),
    ),
)


def define(op: Any, x: Any, low: Any, high: Any, *, num_bits: int, narrow_range: bool) -> Any:
    """Write the operator in primitives; see :func:`fake_quant_with_min_max_vars`."""
    first, last = float(narrow_range), float(2**num_bits - 1)
    scale = op.Div(op.Sub(high, low), last - first)
    zero_point = op.Floor(op.Add(op.Sub(first, op.Div(low, scale)), 0.5))
    zero_point = op.Min(op.Max(zero_point, first), last)
    y = op.Min(op.Max(op.Add(op.Div(x, scale), zero_point), first), last)
    q = steps.round_to_integer(op, y, Rounding.HALF_UP)
    return op.Mul(op.Sub(q, zero_point), scale)


@operator(SCHEMA, define=define)
def fake_quant_with_min_max_vars(
    x: Array, low: Array, high: Array, *, num_bits: int, narrow_range: bool
) -> Array:
    """Round to one of the codes narrow_range .. 2**num_bits - 1 of a range that is nudged first.

    scale = (max - min) / (last - first)                          real units per step
    z = clamp(floor(first - min / scale + 0.5), first, last)      so that 0 is a level
    q = floor(clamp(x / scale + z, first, last) + 0.5)            halves go up
    out = (q - z) * scale                         one rounding per operation, in this order
    """
    first, last = np.float32(narrow_range), np.float32(2**num_bits - 1)
    scale, zero_point = nudged(low, high, first, last)
    y = np.minimum(np.maximum(x / scale + zero_point, first), last)
    return np.asarray((np.floor(y + np.float32(0.5)) - zero_point) * scale)


def nudged(low: Array, high: Array, first: np.float32, last: np.float32) -> tuple[Float32, Float32]:
    """Return scale and zero point of a range."""
    scale = (np.float32(high) - np.float32(low)) / (last - first)
    place = np.floor(first - np.float32(low) / scale + np.float32(0.5))
    return np.asarray(scale), np.asarray(np.clip(place, first, last), np.float32)


@dialect
class TensorFlow:
    """Quantizers given by the range that was observed."""

    name: ClassVar[str] = "tensorflow"
    roots: ClassVar[frozenset[OpKey]] = frozenset({OpKey(DOMAIN, NAME)})

    def read(self, node: ir.Node) -> Site | Refusal | None:
        """Return the uniform quantizer that a node is."""
        known = operator_of(node)
        if known is None:
            return None
        x, *ends = known.schema.values(node)
        if x is None:
            return None
        low, high = (
            parameter(node, end, name) for end, name in zip(ends, ("min", "max"), strict=True)
        )
        try_out(node, x, low, high)
        if not (low < high).all():
            return Refusal(node, f"its range from {low} to {high} is empty")
        attributes = known.schema.attributes_of(node)
        first = np.float32(attributes["narrow_range"])
        last = np.float32(2 ** attributes["num_bits"] - 1)
        scale, zero_point = nudged(low, high, first, last)
        codes = np.asarray(first), np.asarray(last)
        meaning = Affine(scale, zero_point, *codes, Rounding.HALF_UP, Recipe.OFFSET_FIRST)
        shape = shape_of(x, scale)
        return Site(
            x, node.outputs[0], (node,), node, self.name, meaning, shape, constant_stream(x)
        )

    def spellings(self, site: Site, editor: Editor) -> Iterator[Draft]:
        """Yield the node whose nudged range has the scale and the zero point of ``site``."""
        meaning = site.quantizer
        if not isinstance(meaning, Affine):
            return
        first, last = np.float32(meaning.lo.min()), np.float32(meaning.hi.max())
        bits = int(last + 1).bit_length() - 1
        if first not in (0, 1) or last != 2**bits - 1 or bits < 2:
            return
        low, high = _range(meaning, first, last)
        draft = editor.draft(site)
        operands = [data_of(draft, site), *map(np.asarray, (low, high))]
        attributes = {"num_bits": bits, "narrow_range": int(first)}
        yield draft.giving(
            draft.node(NAME, operands, attributes, domain=DOMAIN, dtype=ir.DataType.FLOAT)
        )

    def reason(self, site: Site) -> str:
        """Say what the operator lacks."""
        return f"{NAME} has unsigned codes and rounds halves up; --to onnx spells this exactly"


def _range(meaning: Affine, first: np.float32, last: np.float32) -> tuple[Float32, Float32]:
    """Return the ends that give the scale again: the upper one is moved by ulps until they do."""
    low = np.asarray((first - meaning.zero_point) * meaning.scale, np.float32)
    high = np.asarray((last - meaning.zero_point) * meaning.scale, np.float32)
    best = high
    for direction in (np.float32(np.inf), np.float32(-np.inf)):
        end = high
        for _ in range(8):
            fits = nudged(low, end, first, last)[0] == meaning.scale
            best = np.where(fits, end, best)
            end = np.nextafter(end, direction)
    return low, np.asarray(best, np.float32)
