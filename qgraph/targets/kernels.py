"""Kernels of a target and their conditions for layers: ``[[kernel]]`` of a profile.

A key that is left out, or whose value is ``unknown``, says that nothing is known. ``any`` in a list
stands for everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from qgraph.records import dataclass, field
from qgraph.targets.layer import Granularity, Loads, ProductAxis, ZeroPoint

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
