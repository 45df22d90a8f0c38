"""Small quantizers: chains of nodes with constant parameters, and the inputs that test them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from qgraph.model import Model, load

Array = npt.NDArray[Any]

QONNX = "qonnx.custom_op.general"
OPENVINO = "org.openvinotoolkit"
OPSET = 28
"""Opset of the models; the only one that has all formats."""

LEADING = (2, 3, 2)
"""Shape of the data but for its last axis, along which the inputs to test lie."""

GRANULARITIES = ("tensor", "axis", "block", "free")
SCALES = (0.1, 0.0123, 0.25, 1.7, 0.03, 3.0, 0.007)

SPECIAL = np.float32(
    [0.0, -0.0, 1e-45, -1e-45, 1.1e-38, -1.1e-38, 1e9, -1e9, 3e38, -3e38, np.inf, -np.inf]
)


@dataclass(frozen=True, eq=False)
class Step:
    """One node: its data, then ``constants`` (None where an input is absent)."""

    operator: str
    constants: tuple[Array | None, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    domain: str = ""


@dataclass(frozen=True, order=True)
class Row:
    """What a quantizer is, in words; the rows of the table.

    Attributes:
        operator: what spells it.
        data: ``input``, or ``weight`` where the data is a constant.
        granularity: tensor, axis, block, or free where a scale varies along several axes.
        kind: sign and narrowness, a number format, or what is special.
        width: bits, or levels of a FakeQuantize; 0 where ``kind`` says it.
        zero: none, 0, even, odd or fractional.
        rounding: the attribute, or ``-`` where the operator has none.
    """

    operator: str
    data: str
    granularity: str
    kind: str
    width: int
    zero: str
    rounding: str


@dataclass(frozen=True, eq=False)
class Quantizer:
    """A chain of nodes and the inputs on which it is run.

    Attributes:
        row: what it is.
        steps: the nodes.
        x: data of shape [2, 3, 2, N]; for stored codes, the codes.
    """

    row: Row
    steps: tuple[Step, ...]
    x: Array


def parameter(granularity: str, values: Sequence[float]) -> Array:
    """Spread ``values`` over a float32 array that broadcasts to the data."""
    shape = {"tensor": (), "axis": (3, 1, 1), "block": (*LEADING, 1), "free": (2, 1, 2, 1)}
    return np.resize(np.float32(values), shape[granularity])


def inputs(thresholds: npt.ArrayLike, *, special: bool = True) -> Array:
    """The thresholds as float32, two neighbours on either side, and hostile values.

    Args:
        thresholds: [..., n] for each entry of a parameter, along the last axis.
        special: whether infinities, zeros of both signs and subnormals are added.

    Returns:
        [2, 3, 2, N] with N even.
    """
    with np.errstate(all="ignore"):
        exact = np.asarray(thresholds, np.float64).astype(np.float32)
    parts = [exact]
    for direction in (np.float32(np.inf), np.float32(-np.inf)):
        near = exact
        for _ in range(2):
            near = np.nextafter(near, direction)
            parts.append(near)
    if special:
        parts.append(np.broadcast_to(SPECIAL, (*exact.shape[:-1], SPECIAL.size)))
    points = np.concatenate(parts, axis=-1)
    if points.shape[-1] % 2:
        points = np.concatenate([points, points[..., :1]], axis=-1)
    return np.broadcast_to(points, (*LEADING, points.shape[-1])).copy()


def halves(lo: float, hi: float) -> Array:
    """Multiples of a half from below ``lo`` to above ``hi``; of wide ranges both ends and some."""
    if hi - lo <= 24:
        return np.arange(lo - 1, hi + 1.5, 0.5)
    random = np.random.default_rng(int(hi - lo))
    some = random.integers(int(2 * lo), int(2 * hi), 30) / 2
    ends = np.arange(-1, 3.5, 0.5)
    middle = np.clip(np.arange(-2, 2.5, 0.5), lo, hi)
    return np.unique(np.concatenate([lo + ends, hi - ends, middle, some]))


def binades(widths: tuple[int, int, int, float]) -> Array:
    """Values and midpoints of a minifloat (exponent, mantissa, bias, largest), and what is near."""
    exponent, mantissa, bias, largest = widths
    top = int(np.floor(np.log2(min(largest, 2.0 ** (2**exponent - bias)))))
    exponents = np.arange(1 - bias - 1, top + 2)
    if exponents.size > 10:
        exponents = np.unique(np.concatenate([exponents[:4], exponents[-4:], [-1, 0]]))
    fractions = 1 + np.arange(2 ** min(mantissa + 1, 4)) / 2 ** min(mantissa + 1, 4)
    values = np.unique(np.outer(np.exp2(exponents), fractions))
    small = np.exp2(float(1 - bias - mantissa)) * np.arange(0.5, 4, 0.5)
    grid = np.unique(np.concatenate([values, small, [largest, largest * 1.03]]))
    return np.concatenate([-grid, grid])


def zero_point(zero: str, width: int, *, signed: bool) -> float | None:
    """Return a zero point of a kind, far from 0; None where the width has no such code."""
    even = None
    if width > 1:
        even = -(2.0 ** max(width - 2, 1)) if signed else 2.0 ** (width - 1)
    odd = 1.0 if even is None else even + (1 if signed else -1)
    known = {"none": 0.0, "0": 0.0, "even": even, "odd": odd, "fractional": odd + 0.3}
    return known[zero]


def build(quantizers: Sequence[Quantizer]) -> Model:
    """Return a model with all ``quantizers`` side by side: inputs x0, x1, ..., outputs y0, ..."""
    data, nodes, outputs, initializers = [], [], [], []
    for number, quantizer in enumerate(quantizers):
        kind = ir.DataType.from_numpy(quantizer.x.dtype)
        value = ir.val(f"x{number}", dtype=kind, shape=quantizer.x.shape)
        if quantizer.row.data == "weight":
            value.const_value = ir.tensor(quantizer.x, name=value.name)
            initializers.append(value)
        else:
            data.append(value)
        for place, step in enumerate(quantizer.steps):
            operands: list[ir.Value | None] = [value]
            for position, constant in enumerate(step.constants):
                if constant is None:
                    operands.append(None)
                    continue
                name = f"c{number}_{place}_{position}"
                operands.append(ir.val(name, const_value=ir.tensor(constant, name=name)))
            initializers += [operand for operand in operands[1:] if operand is not None]
            node = ir.node(step.operator, operands, step.attributes, domain=step.domain)
            node.name = f"q{number}_{place}"
            nodes.append(node)
            value = node.outputs[0]
            value.name = f"t{number}_{place}"
            if step.operator not in ("QuantizeLinear", "Clip", "Cast"):
                value.type = ir.TensorType(ir.DataType.FLOAT)
        value.name, value.type = f"y{number}", ir.TensorType(ir.DataType.FLOAT)
        value.shape = ir.Shape(quantizer.x.shape)
        outputs.append(value)
    graph = ir.Graph(
        data,
        outputs,
        nodes=nodes,
        initializers=initializers,
        opset_imports={"": OPSET, QONNX: 2, OPENVINO: 1},
        name="conformance",
    )
    model = load(ir.Model(graph, ir_version=14))
    ShapeInferencePass()(model.ir)
    return model
