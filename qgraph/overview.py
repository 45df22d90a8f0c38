"""What a model file contains: its interface, its quantizers, and what cannot be run here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.constants import overridable
from qgraph.control import is_control
from qgraph.dialects.dialect import Refusal, Site, sites
from qgraph.dialects.granularity import layout_of
from qgraph.errors import OperatorError, UnsupportedError
from qgraph.model import Source, load
from qgraph.numerics.formats import IntFormat
from qgraph.numerics.rounding import Rounding
from qgraph.ops.operator import operator_of
from qgraph.quantizer import Affine, Bipolar, Floating, Ranged
from qgraph.reference import reference_kernel
from qgraph.report import operator_name
from qgraph.storage import weight_bytes

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ValueInfo:
    """An input or an output: its type as ONNX names it, and its shape; None where not known."""

    name: str
    dtype: str | None
    shape: list[int | str | None] | None


@dataclass(frozen=True)
class QuantizerInfo:
    """A quantizer in the graph, and its parameters as far as they are constant.

    Attributes:
        node, op: name and operator of the node that reports name.
        dialect: how it is spelled.
        format: number format of its codes, such as ``int4``, ``int4 narrow`` or ``e4m3``.
        bits: width of a code.
        granularity: over which elements one scale reaches.
        scale: smallest and largest scale, in real units per step.
        zero_point: smallest and largest zero point, in steps.
        rounding: how values between two codes are rounded.
        weight: whether its input is constant.
        reason: why its parameters cannot be read; the other fields are None then.
    """

    node: str
    op: str
    dialect: str | None = None
    format: str | None = None
    bits: int | None = None
    granularity: str | None = None
    scale: tuple[float, float] | None = None
    zero_point: tuple[float, float] | None = None
    rounding: str | None = None
    weight: bool = False
    reason: str | None = None


@dataclass(frozen=True)
class Overview:
    """What :func:`overview` found.

    Attributes:
        ir_version, opsets, producer: from the head of the file.
        inputs, outputs: what is fed, and what comes out.
        overridable: how many initializers are listed as inputs too.
        nodes: how many there are, in subgraphs and functions too.
        operators: how many of each operator.
        weight_bytes: bytes of all initializers and constants as stored.
        quantizers: in topological order.
        unsupported: how many of each operator that neither qgraph nor ONNX defines.
    """

    ir_version: int
    opsets: dict[str, int]
    producer: str
    inputs: list[ValueInfo]
    outputs: list[ValueInfo]
    overridable: int
    nodes: int
    operators: dict[str, int]
    weight_bytes: int
    quantizers: list[QuantizerInfo]
    unsupported: dict[str, int]

    @property
    def dialects(self) -> dict[str, int]:
        """How many quantizers each dialect spells."""
        return dict(Counter(found.dialect for found in self.quantizers if found.dialect))

    def to_json(self) -> dict[str, Any]:
        """Return what ``qgraph info --json`` prints."""
        return asdict(self) | {"dialects": self.dialects}


def overview(source: Source) -> Overview:
    """Return what a model contains.

    Initializers that are listed as inputs too count as constants, as they do for conversions.

    Raises:
        ModelError: the source is no usable model.
    """
    model = load(source)
    count = len(overridable(model.ir.graph))
    if count:
        model = model.clone()
        model.freeze_inputs()
    nodes = list(model.nodes())
    operators = Counter(operator_name(node) for node in nodes)
    unsupported = Counter(operator_name(node) for node in _unsupported(model.ir))
    producer = f"{model.ir.producer_name or ''} {model.ir.producer_version or ''}"
    return Overview(
        ir_version=model.ir.ir_version,
        opsets=dict(model.ir.opset_imports),
        producer=producer.strip(),
        inputs=[_value_info(value) for value in model.inputs],
        outputs=[_value_info(value) for value in model.outputs],
        overridable=count,
        nodes=len(nodes),
        operators=dict(sorted(operators.items())),
        weight_bytes=weight_bytes(model.ir),
        quantizers=[_quantizer_info(found) for found in sites(model.ir)],
        unsupported=dict(sorted(unsupported.items())),
    )


def _value_info(value: ir.Value) -> ValueInfo:
    shape = None
    if value.shape is not None:
        shape = [size if isinstance(size, int) else size.value for size in value.shape]
    return ValueInfo(value.name or "", value.dtype.name if value.dtype else None, shape)


def _quantizer_info(found: Site | Refusal) -> QuantizerInfo:
    root = found.root
    name, op = root.name or root.outputs[0].name or "", operator_name(root)
    if isinstance(found, Refusal):
        return QuantizerInfo(name, op, reason=found.reason)
    known: dict[str, Any] = {"dialect": found.dialect, "weight": found.weight is not None}
    match found.quantizer:
        case Affine(scale, zero_point, lo, hi, rounding):
            known |= _parameters(found, scale, zero_point, rounding)
            known |= _integers(float(lo.min()), float(hi.max()))
        case Ranged(_, _, low, high, levels):
            with np.errstate(all="ignore"):
                scale = (high - low) / np.float32(levels - 1)
                zero_point = -low / scale
            known |= _parameters(found, scale, zero_point, Rounding.ROUND)
            known |= _integers(0, levels - 1)
        case Floating(scale, grid, rounding):
            known |= _parameters(found, scale, None, rounding)
            known |= {"format": f"e{grid.exponent_bits}m{grid.mantissa_bits}", "bits": grid.bits}
        case Bipolar(scale):
            known |= _parameters(found, scale, None, None) | {"format": "bipolar", "bits": 1}
    return QuantizerInfo(name, op, **known)


def _parameters(
    site: Site, scale: Float32, zero_point: Float32 | None, rounding: Rounding | None
) -> dict[str, Any]:
    parameters = [scale] if zero_point is None else [scale, zero_point]
    return {
        "granularity": _granularity(site, parameters),
        "scale": _ends(scale),
        "zero_point": None if zero_point is None else _ends(zero_point),
        "rounding": None if rounding is None else str(rounding),
    }


def _granularity(site: Site, parameters: list[Float32]) -> str:
    layout = layout_of(site.shape or None, *parameters)
    if layout is None:
        return _blocks(site, parameters)
    if layout.block_size:
        return f"per {layout.block_size} along axis {layout.axis}"
    if layout.axis is None:
        return "per tensor"
    return f"per channel ({layout.shape[0]}, axis {layout.axis})"


def _blocks(site: Site, parameters: list[Float32]) -> str:
    """Find the blocks in parameters that are spread over the elements of the data."""
    joint = np.broadcast_shapes(*(parameter.shape for parameter in parameters))
    spread = np.stack([np.broadcast_to(parameter, joint) for parameter in parameters])
    found = []
    for axis, size in enumerate(joint):
        changes = np.diff(np.moveaxis(spread, axis + 1, 0), axis=0).any(
            axis=tuple(range(1, spread.ndim))
        )
        block = math.gcd(size, *(np.flatnonzero(changes) + 1).tolist())
        if 1 < block < size:
            found.append((block, axis + max(len(site.shape) - len(joint), 0)))
    if len(found) == 1:
        return f"per {found[0][0]} along axis {found[0][1]}"
    return f"shape {list(joint)}"


def _ends(parameter: Float32) -> tuple[float, float]:
    # Adding zero removes the sign of a negative one.
    return float(parameter.min()) + 0.0, float(parameter.max()) + 0.0


def _integers(low: float, high: float) -> dict[str, Any]:
    """Return format and width of codes from ``low`` to ``high``."""
    for bits in range(1, 33):
        for narrow in (False, True):
            for kind in (IntFormat(bits, True, narrow), IntFormat(bits, False, narrow)):
                if (low, high) == (kind.lo, kind.hi):
                    return {"format": kind.name.lower(), "bits": bits}
    width = int(np.ceil(np.log2(high - low + 1))) if 1 <= high - low < np.inf else None
    return {"format": f"{low:.0f} .. {high:.0f}", "bits": width}


def _unsupported(model: ir.Model) -> Iterator[ir.Node]:
    bodies: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for body in bodies:
        imports = body.opset_imports
        for node in ir.traversal.RecursiveGraphIterator(body):
            if is_control(node) or node.op_identifier() in model.functions or _is_ours(node):
                continue
            try:
                reference_kernel(node, imports)
            except UnsupportedError:
                yield node


def _is_ours(node: ir.Node) -> bool:
    try:
        return operator_of(node) is not None
    except OperatorError:
        return True
