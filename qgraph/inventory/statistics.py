"""Codes of dequantized values, and statistics of tensors: used codes, clipping rate.

Tensors are processed in parts, and only statistics are kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.graph.scopes import node_name
from qgraph.inventory.info import format_of
from qgraph.numerics import Array, Float32
from qgraph.numerics.minifloat import snap
from qgraph.numerics.rounding import Rounding, round_to_integer
from qgraph.ops.static_parameters import settled
from qgraph.quantizers.dialects.dialect import Refusal, Site
from qgraph.quantizers.quantizer import Affine, Bipolar, Floating, Quantizer, Ranged, Recipe
from qgraph.quantizers.sites import sites
from qgraph.records import dataclass
from qgraph.reports import operator_name
from qgraph.storage.archive import common, tensors
from qgraph.text import fields_json

_MOST_LEVELS = 1 << 16
"""Maximum number of levels of formats whose codes are counted one by one."""


def levels_of(quantizer: Quantizer) -> int | None:
    """Return the number of codes of a format; None if it is too large, or not known."""
    match quantizer:
        case Affine(_, _, lo, hi):
            levels = float(hi.max()) - float(lo.min()) + 1
        case Ranged(levels=given):
            levels = given
        case Floating(format=grid):
            exponent = math.frexp(grid.max_value)[1] - 1
            largest = exponent + grid.bias + grid.max_value / 2.0**exponent - 1
            levels = 2 * float(np.ceil(largest * 2**grid.mantissa_bits)) + 1
        case Bipolar():
            levels = 2
        case _:
            return None
    return int(levels) if 0 < levels <= _MOST_LEVELS else None


def is_clipped(quantizer: Quantizer, x: Float32) -> npt.NDArray[np.bool_]:
    """Return where the code nearest to a value is outside the format."""
    match quantizer:
        case Affine(scale, zero_point, lo, hi, rounding, recipe):
            q = x / scale
            if recipe is Recipe.OFFSET_FIRST:
                q = round_to_integer(q + zero_point, rounding)
            else:
                q = round_to_integer(q, rounding) + zero_point
            return (q < lo) | (q > hi)
        case Ranged(low, high, _, _, levels):
            top = np.float32(levels - 1)
            q = round_to_integer((x - low) / (high - low) * top, Rounding.ROUND)
            return (q < 0) | (q > top)
        case Floating(scale, grid, rounding):
            q = snap(x / scale, grid.mantissa_bits, 1 - grid.bias, np.inf, rounding)
            return np.abs(q) > np.float32(grid.max_value)
    return np.zeros(x.shape, np.bool_)


def codes_of(quantizer: Quantizer, y: Float32) -> Array:
    """Return the codes of dequantized values, as floats; NaN stays NaN."""
    match quantizer:
        case Affine(scale, zero_point, lo, hi):
            codes: Array = np.clip(np.rint(y / scale + zero_point), lo, hi)
            return codes
        case Ranged(_, _, low, high, levels):
            top = np.float32(levels - 1)
            places: Array = np.rint((y - low) / (high - low) * top)
            return np.clip(places, 0, top)
        case Floating(scale, grid):
            return grid.snap(y / scale)
        case Bipolar(scale):
            signs: Array = np.sign(y / scale)
            return signs
    return y


_MEASURES = ("elements", "nan", "min", "max", "mean")


@dataclass
class TensorStatistics:
    """Statistics of a tensor over the parts added so far; NaN is counted and otherwise ignored.

    Attributes:
        dtype: NumPy's name of its type; empty before the first part.
        shape: shape of all parts joined along the first axis; None if they cannot be joined.
        min, max: smallest and largest value; None if there is no number.
    """

    name: str
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    elements: int = 0
    nan: int = 0
    min: float | None = None
    max: float | None = None
    _sum: float = 0.0

    @property
    def mean(self) -> float | None:
        """Mean of all values except NaN, added in double precision; None if there are none."""
        return None if self.min is None else self._sum / (self.elements - self.nan)

    def add(self, array: Array) -> None:
        """Add a part of the tensor."""
        self.shape = array.shape if not self.dtype else _joined(self.shape, array.shape)
        self.dtype = str(array.dtype)
        self.elements += array.size
        numbers = common(array)
        if numbers.dtype.kind not in "biuf":
            return
        if numbers.dtype.kind == "f":
            wrong = np.isnan(numbers)
            count = int(np.count_nonzero(wrong))
            self.nan += count
            numbers = numbers[~wrong] if count else numbers
        if not numbers.size:
            return
        low, high = float(numbers.min()), float(numbers.max())
        self.min = low if self.min is None else min(self.min, low)
        self.max = high if self.max is None else max(self.max, high)
        with np.errstate(invalid="ignore", over="ignore"):  # infinities of both signs
            self._sum += float(numbers.sum(dtype=np.float64))

    def to_json(self) -> dict[str, Any]:
        """Return what ``qgraph run --json`` prints of a tensor."""
        return fields_json(self, "name", "dtype", "shape", *_MEASURES)


def _joined(whole: tuple[int, ...] | None, part: tuple[int, ...]) -> tuple[int, ...] | None:
    if whole is None or whole[1:] != part[1:]:
        return None
    return ((whole[0] if whole else 1) + (part[0] if part else 1), *part[1:])


class QuantizerStatistics:
    """Statistics of one quantizer over the parts of its input and output added so far.

    A value counts as clipped if its code, by the quantizer's rounding, is outside the format. Codes
    are whole numbers; codes of a float format are its values.

    Attributes:
        node, op: name and operator of the node that reports name.
        weight: whether its input is constant; it is then counted once, not in every run.
        format, bits: number format of its codes; None if only the operator defines it.
        reason: why there are no statistics; None if there are.
        values: statistics of the output.
        inputs, clipped: number of inputs, and of clipped inputs; None if clipping has no meaning:
            for signs, and for stored codes.
        levels: number of codes of the format; None if they are not counted.
    """

    def __init__(self, site: Site | Refusal, main: ir.Graph) -> None:
        root = site.root
        self.node, self.op = node_name(root), operator_name(root)
        self.tensor = str(root.outputs[0].name)
        self.values = TensorStatistics(self.tensor)
        self.weight = False
        self.format: str | None = None
        self.bits: int | None = None
        self.reason: str | None = None
        self.inputs = 0
        self.clipped: int | None = None
        self.levels: int | None = None
        self._quantizer: Quantizer | None = None
        self._codes: Counter[float] = Counter()
        if isinstance(site, Refusal):
            self.reason = site.reason
            return
        self.tensor = self.values.name = str(site.y.name)
        self._quantizer = site.quantizer
        self.format, self.bits = format_of(site.quantizer)
        self.levels = levels_of(site.quantizer)
        self.weight = site.weight is not None
        is_sign = isinstance(site.quantizer, Bipolar)
        if not is_sign and self.format is not None and not site.is_decoder:
            self.clipped = 0
        if site.weight is not None and site.values is not None:
            self.see_input(site.weight.array())
            self.see_output(site.values)
        elif root.graph is not main:
            self.reason = "it is in a subgraph or a function, for which there are no statistics"

    @property
    def codes(self) -> list[tuple[float, int]] | None:
        """The used codes and their counts, in order; None if they are not counted."""
        return None if self.levels is None else sorted(self._codes.items())

    @property
    def clipped_share(self) -> float | None:
        """Clipping rate: fraction of inputs that were clipped, 0 to 1; None if unknown."""
        return self.clipped / self.inputs if self.clipped is not None and self.inputs else None

    def see_input(self, x: Array) -> None:
        """Add a part of the input."""
        if self.clipped is None or self._quantizer is None:
            return
        self.inputs += x.size
        with np.errstate(all="ignore"):
            beyond = is_clipped(self._quantizer, x.astype(np.float32, copy=False))
        self.clipped += int(np.count_nonzero(beyond))

    def see_output(self, y: Array) -> None:
        """Add a part of the output."""
        self.values.add(y)
        if self.levels is None or self._quantizer is None:
            return
        with np.errstate(all="ignore"):
            codes = codes_of(self._quantizer, y.astype(np.float32, copy=False))
        codes = codes[np.isfinite(codes)]
        if not isinstance(self._quantizer, Floating) and codes.size:
            # Counting is several times faster than sorting.
            low = codes.min()
            counts = np.bincount((codes - low).astype(np.int64))
            used = np.flatnonzero(counts)
            self._count(used + low, counts[used])
        else:
            self._count(*np.unique(codes, return_counts=True))

    def to_json(self) -> dict[str, Any]:
        """Return what ``qgraph run --stats --json`` prints of a quantizer."""
        return {
            **fields_json(self, "node", "op", "tensor", "weight", "format", "bits", "reason"),
            **fields_json(self.values, *_MEASURES),
            **fields_json(self, "inputs", "clipped", "clipped_share", "levels", "codes"),
        }

    def _count(self, codes: Array, counts: Array) -> None:
        for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
            # Sums of whole floats are whole; JSON readers expect integers then.
            self._codes[int(code) if code == int(code) else code] += count


class Statistics:
    """Statistics of named tensors and of all quantizers of a model, over any number of runs.

    Initializers that are listed as inputs too count as constants, as they do for conversions.
    """

    def __init__(
        self, model: ir.Model, names: Sequence[str] = (), *, quantizers: bool = True
    ) -> None:
        self._tensors: dict[str, dict[str, TensorStatistics]] = {name: {} for name in names}
        self.quantizers: list[QuantizerStatistics] = []
        self._inputs: dict[str, list[QuantizerStatistics]] = {}
        self._outputs: dict[str, QuantizerStatistics] = {}
        if quantizers:
            self._find(model)

    @property
    def tensors(self) -> list[TensorStatistics]:
        """Statistics of the requested tensors, in order; elements of sequences have their own."""
        return [tensor for parts in self._tensors.values() for tensor in parts.values()]

    @property
    def taps(self) -> list[str]:
        """The inputs and outputs of quantizers, which must be tapped."""
        return list({**self._inputs, **self._outputs})

    def add(self, name: str, value: Any) -> None:
        """Add the value of a tensor in one run."""
        if name in self._tensors:
            parts = self._tensors[name]
            for key, array in tensors({name: value}).items():
                parts.setdefault(key, TensorStatistics(key)).add(array)
        if not isinstance(value, np.ndarray):
            return
        for quantizer in self._inputs.get(name, ()):
            quantizer.see_input(common(value))
        if name in self._outputs:
            self._outputs[name].see_output(common(value))

    def to_json(self) -> dict[str, Any]:
        """Return all statistics, as ``qgraph run --json`` prints them."""
        return fields_json(self, "tensors", "quantizers")

    def _find(self, model: ir.Model) -> None:
        constant = settled(model)
        for site in sites(constant):
            quantizer = QuantizerStatistics(site, constant.graph)
            self.quantizers.append(quantizer)
            if isinstance(site, Site) and not quantizer.weight and quantizer.reason is None:
                self._outputs[quantizer.tensor] = quantizer
                if quantizer.clipped is not None:
                    self._inputs.setdefault(str(site.x.name), []).append(quantizer)
