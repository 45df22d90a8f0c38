"""Description of a convolution or matrix product of quantized operands for profiles.

The readers of models make it, and the engine of targets compares it with a profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from qgraph.records import dataclass, field

LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Operators that are layers if their operands are quantized."""


class Loads(StrEnum):
    """Whether a runtime takes a model: ``yes`` if nothing is known against it."""

    YES = "yes"
    UNKNOWN = "unknown"
    NO = "no"


class Granularity(StrEnum):
    """Granularity of the scale."""

    TENSOR = "tensor"
    AXIS = "axis"
    BLOCK = "block"


class ProductAxis(StrEnum):
    """Role of the axis along which scales differ in a product."""

    OUTPUT = "output"
    """Each index is one channel, or column, of the result."""

    INPUT = "input"
    """The product adds along it."""

    OTHER = "other"


class ZeroPoint(StrEnum):
    """Zero points of one operand."""

    NONE = "none"
    """There is none, which counts as zero."""

    ZERO = "zero"
    EQUAL = "equal"
    """One whole number other than zero."""

    MIDDLE = "middle"
    """128 of UINT8, or the middle of another unsigned type; counts as ``equal``, too."""

    DIFFER = "differ"
    """Several whole numbers."""

    FRACTION = "fraction"


@dataclass(frozen=True)
class CodedOperand:
    """Data or weights of a layer, or its result, between quantizer and operator.

    Attributes:
        codes: ONNX type of the codes, such as ``UINT8``; the narrowest one where no type is stated.
        written: operators of the quantizer, such as ``QuantizeLinear+DequantizeLinear``.
        granularity, axis, block: over which elements a scale reaches; elements of a block.
        has_zero_input: whether an input states the zero point.
        scale: ONNX type of the scales.
        is_constant_scale, is_positive, is_power_of_two: of the scales.
        is_constant: whether the codes are constant.
        is_direct: whether QuantizeLinear has one reader, a DequantizeLinear with one reader.
        before: operators between the quantizer and the layer, in order.
    """

    codes: str
    written: str = "QuantizeLinear+DequantizeLinear"
    levels: int = 256
    granularity: Granularity = Granularity.TENSOR
    axis: ProductAxis | None = None
    block: int = 0
    zero: ZeroPoint = ZeroPoint.ZERO
    has_zero_input: bool = True
    scale: str = "FLOAT"
    is_constant_scale: bool = True
    is_positive: bool = True
    is_power_of_two: bool = False
    is_constant: bool = False
    is_direct: bool = True
    before: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayerBias:
    """The summand of a layer.

    Attributes:
        codes: ``FLOAT`` and other types of constants, type of the codes if it is dequantized;
            ``computed`` if it is neither.
        scale_error: largest relative deviation of its scale from the product of the operands'
            scales; None without codes or if they are not known.
        scale_gap: largest absolute deviation.
    """

    codes: str
    scale_error: float | None = None
    scale_gap: float | None = None


@dataclass(frozen=True)
class BehindLayer:
    """An operator between a layer and the quantizer of its result.

    Attributes:
        op: its type; followed by ``(data)`` if it combines the result with other data.
        is_redundant: whether the quantizer alone gives the same codes.
    """

    op: str
    is_redundant: bool = False


@dataclass(frozen=True)
class QuantizedLayer:
    """A layer whose operands are codes of 16 bits or fewer.

    Attributes:
        y: quantizer of its result; None without one.
        group: ``dense``, ``grouped`` or ``depthwise``.
        rank: of the data; None if it is not known.
        attributes: numbers among its attributes, with defaults.
        behind: operators between it and the quantizer of its result.
        consumers: readers of its result, or of what follows, whichever are more.
        is_graph_output: whether one of these values is an output of the model.
    """

    node: str
    op: str
    x: CodedOperand
    w: CodedOperand
    y: CodedOperand | None = None
    bias: LayerBias | None = None
    group: str = "dense"
    rank: int | None = None
    attributes: Mapping[str, float] = field(default_factory=dict)
    behind: tuple[BehindLayer, ...] = ()
    consumers: int = 1
    is_graph_output: bool = False
