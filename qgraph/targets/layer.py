"""Layers of quantized operands, and the kernels of a target with their conditions for them.

The readers of models describe a convolution or matrix product of quantized operands as a
:class:`QuantizedLayer`, and the engine of targets compares it with the ``[[kernel]]`` of a profile.
There, a key that is left out, or whose value is ``unknown``, says that nothing is known. ``any`` in
a list stands for everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

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
        one_filter: whether it is depthwise, and each channel has one filter.
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
    one_filter: bool = False


ANY = "any"
Names = tuple[str, ...]


@dataclass(frozen=True)
class TypeRule:
    """Types of codes that go together: an entry of ``types``.

    Attributes:
        x, w: of the operands.
        y: of the result; ``FLOAT`` without a quantizer.
        direct: whether data and result must go straight from QuantizeLinear, with one reader,
            to DequantizeLinear: ``both``, or only ``x``, or only ``y``.
    """

    x: Names
    w: Names
    y: Names = (ANY,)
    direct: Literal["both", "x", "y"] | None = None


@dataclass(frozen=True)
class BlockRule:
    """Blocks of scales that a kernel takes.

    Attributes:
        sizes: elements of a block; empty for any.
        least: smallest number of elements.
        power_of_two: whether it must be a power of two.
        axis: axes that are cut into blocks.
    """

    sizes: tuple[int, ...] = ()
    least: int = 1
    power_of_two: bool = False
    axis: tuple[ProductAxis, ...] = ()


@dataclass(frozen=True)
class OperandRule:
    """Conditions of a kernel for an operand or the result: ``x``, ``w`` and ``y``.

    Attributes:
        axis: along which scales per axis may differ.
        blocks: which blocks it takes.
        zero_input: whether the zero point must be stated.
        written: forms of the quantizer, such as ``QuantizeLinear+DequantizeLinear``; an asterisk
            stands for any operators.
        levels: numbers of levels of FakeQuantize.
        before: operators that may stand between quantizer and kernel.
        scale: what scales must be: ``constant``, ``positive``, ``power-of-two``.
        constant: whether codes must be constant: ``yes``, ``no`` or ``any``.
    """

    granularity: tuple[Granularity | str, ...] | None = None
    axis: tuple[ProductAxis | str, ...] | None = None
    blocks: BlockRule | None = None
    zero: tuple[ZeroPoint | str, ...] | None = None
    zero_input: bool = False
    written: Names | None = None
    levels: tuple[int | str, ...] | None = None
    before: Names | None = None
    scale_types: Names | None = None
    scale: tuple[Literal["constant", "positive", "power-of-two"], ...] = ()
    constant: Literal["yes", "no", "any"] = "any"


@dataclass(frozen=True)
class BiasRule:
    """Conditions of a kernel for the bias.

    Attributes:
        types: of the bias; ``none`` for layers without a bias.
        scale: ``as written``; ``product`` where it must be that of the operands' scales;
            ``ignored`` where it is taken for that product.
        within: relative deviation from the product that is allowed.
        gap: absolute deviation that is allowed, even where the relative one is larger.
    """

    types: Names | None = None
    scale: Literal["as written", "product", "ignored"] | None = None
    within: float = 0.0
    gap: float = 0.0


@dataclass(frozen=True)
class BehindRule:
    """Operators that may be between a kernel and the quantizer of its result.

    Attributes:
        operators: these, whatever they compute.
        redundant: these, if the quantizer alone gives the same codes.
        first: one of these must be the first.
        never: operators that may not be the first one, or the first one behind ``first``.
        moves: whether operators through which codes pass may stand there too.
    """

    operators: Names | None = None
    redundant: Names = ()
    first: Names = ()
    never: Names = ()
    moves: bool = False


@dataclass(frozen=True)
class OutputRule:
    """Conditions of a kernel for its result.

    Attributes:
        quantizer: ``required``; ``none`` where none may be directly after; or ``any``.
        one_consumer: whether one reader is allowed only.
        graph_output: whether it may be an output of the model.
    """

    quantizer: Literal["required", "none", "any"] | None = None
    one_consumer: bool | None = None
    graph_output: bool | None = None


@dataclass(frozen=True)
class KernelRule:
    """A kernel, or the statement that there is none: ``[[kernel]]``.

    Attributes:
        id: name in the profile.
        source: where it comes from.
        operators: of the layers that it computes.
        exists: whether there is such a kernel.
        reason: why there is none.
        runs: what executed graphs name it.
        precision: what executed graphs call its type.
        processors: on which it was found; empty for all.
        groups, ranks, attributes: of the layers.
        types: types of codes that go together.
        x, w, y, bias, behind, output: conditions.
        fails: ids of conditions that the runtime does not check: it accepts layers that only do
            not meet these, and fails when they run.
        fourth_channel: whether data of three channels take longer than data of four.
        computes: name of the definition of its arithmetic.
        note: a remark for users.
    """

    id: str
    source: Names
    operators: Names
    exists: Loads = Loads.YES
    reason: str = ""
    runs: Names = ()
    precision: Names = ()
    processors: Names = ()
    groups: Names | None = None
    ranks: tuple[int, ...] | None = None
    attributes: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    types: tuple[TypeRule, ...] = ()
    x: OperandRule = OperandRule()
    w: OperandRule = OperandRule()
    y: OperandRule = OperandRule()
    bias: BiasRule = BiasRule()
    behind: BehindRule = BehindRule()
    output: OutputRule = OutputRule()
    fails: Names = ()
    fourth_channel: bool = False
    computes: str | None = None
    note: str = ""
