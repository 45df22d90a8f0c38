"""Operators of AMD Quark: blocks that share an exponent, and linear codes of up to 32 bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from qgraph.graph.edit import Draft, Operand
from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.schema import OpKey
from qgraph.numerics.formats import FORMATS
from qgraph.numerics.minifloat import Minifloat
from qgraph.ops.composite import (
    FLOAT,
    LAST,
    OPSET_OF_AXES,
    axis_of,
    binade,
    blocks_of,
    cast,
    composite,
    dtype_of,
    element,
    joined_blocks,
    largest,
    operand,
    reshape,
    sizes_of,
)
from qgraph.records import dataclass

_OLD = "com.vai.quantize"
_DOMAIN = "com.amd.quark"
_ELEMENTS = {
    "fp8_e5m2": "FLOAT8E5M2",
    "fp8_e4m3": "FLOAT8E4M3FN",
    "fp6_e3m2": "FLOAT6E3M2",
    "fp6_e2m3": "FLOAT6E2M3",
    "fp4_e2m1": "FLOAT4E2M1",
}
_PRIME = ("to_bfp_prime", "to_bfp_prime_shared")

Coded = Callable[[Operand, Operand], Operand]

_HALF_AWAY, _HALF_UP, _HALF_EVEN = range(3)


@dataclass(frozen=True)
class BlockFormat:
    """The format of the codes of a block.

    Attributes:
        kind: narrowest ONNX type that represents all codes.
        unit: value of a code of 1 where the largest magnitude in the block has exponent 0.
        axis: axis of the blocks; negative axes count from the last.
        size: number of elements of a block.
    """

    kind: str
    unit: np.float32
    axis: int
    size: int


def block_format(node: ir.Node) -> BlockFormat | None:
    """Return the format of a node of these operators, None for another node."""
    get, name = node.attributes.get_int, OpKey.of(node)
    axis = get("axis", 1)
    if name in ((_DOMAIN, "MXQuantizeDequantize"), (_OLD, "MXFixNeuron")):
        element = node.attributes.get_string("element_dtype", "int8")
        grid = FORMATS.get(_ELEMENTS.get(element, ""))
        top = _top_exponent(grid) if isinstance(grid, Minifloat) else 6
        type_name = _ELEMENTS.get(element, "INT8")
        return BlockFormat(type_name, np.float32(2.0**-top), axis, get("block_size", 32))
    method = node.attributes.get_string("bfp_method", "to_bfp")
    is_plain = name in ((_DOMAIN, "BFPQuantizeDequantize"), (_OLD, "BFPFixNeuron"))
    if is_plain and method not in _PRIME:
        bits = get("bit_width", 16) - 9
        type_name = next(
            type_name
            for top, type_name in ((3, "INT4"), (7, "INT8"), (15, "INT16"), (99, "INT32"))
            if bits <= top
        )
        return BlockFormat(type_name, np.float32(2.0 ** (1 - bits)), axis, get("block_size", 8))
    return None


@composite("MXQuantizeDequantize", _DOMAIN, also=[OpKey(_OLD, "MXFixNeuron")])
def mx_quantize_dequantize(draft: Draft, node: ir.Node) -> Operand:
    """Write ``y = s * element(x / s)`` with ``s = 2**(e - emax)`` for blocks along an axis.

    ``e`` is the largest exponent in the block, that of infinities and NaN left out, at least -127.
    Elements of a minifloat are rounded half to even and saturate; underflow gives +0. Elements of
    type int8 are multiples of 2**-6 from -2 to 127/64. Infinities and NaN stay.

    Source: AMD Quark 0.13, by reading and running its CPU kernels.
    """
    name = node.attributes.get_string("element_dtype", "int8")
    mode = node.attributes.get_int("rounding_mode", _HALF_AWAY)
    if name not in _ELEMENTS and name != "int8":
        raise ValueError(f"its element_dtype is {name!r}, expected int8, {', '.join(_ELEMENTS)}")
    grid = FORMATS.get(_ELEMENTS.get(name, ""))
    largest = _top_exponent(grid) if isinstance(grid, Minifloat) else 0

    def coded(x: Operand, power: Operand) -> Operand:
        op = draft.op
        scale = op.Mul(power, 2.0**-largest)
        steps = op.Div(x, scale)
        if isinstance(grid, Minifloat):
            return op.Mul(scale, op.Add(element(draft, steps, grid), 0.0))
        codes = _rounded(draft, op.Div(steps, 2.0**-6), mode)
        codes = op.Max(op.Min(codes, 127.0), -128.0)
        return op.Mul(scale, op.Mul(codes, 2.0**-6))

    return _in_blocks(draft, node, coded, 32)


@composite("BFPQuantizeDequantize", _DOMAIN, also=[OpKey(_OLD, "BFPFixNeuron")])
def bfp_quantize_dequantize(draft: Draft, node: ir.Node) -> Operand:
    """Write ``y = clip(round(x / s) * s)`` with ``s = 2**(e - m + 1)`` for blocks along an axis.

    ``e`` is as in MXQuantizeDequantize, ``m = bit_width - 9``; the bounds are ``2**(e + 1) - s``.

    With ``bfp_method = "to_bfp_prime"`` the blocks have parts, with ``s = 2**(e - d - m + 1)`` for
    each: ``d`` is how far the largest exponent of the part is below ``e``, limited to the numbers
    of ``sub_block_shift_bits`` bits. Magnitudes are not rounded up beyond ``2**m - 1`` steps,
    subnormal numbers count as zeros, and a block with infinities or NaN becomes NaN.

    Source: AMD Quark 0.13, by reading and running its CPU kernels.
    """
    get = node.attributes.get_int
    method = node.attributes.get_string("bfp_method", "to_bfp")
    size, part = get("block_size", 8), get("sub_block_size", 2)
    prime = method in _PRIME and part > 0 and size % part == 0
    mode, bits = get("rounding_mode", _HALF_AWAY), get("bit_width", 16) - 9
    variants = ("use_compiler_version_cpu_kernel", "convert_to_bfloat_before_bfp")
    if not (method == "to_bfp" or prime) or any(get(v, 0) for v in variants) or not 0 < bits < 24:
        raise ValueError(
            f"bfp_method = {method!r}, block_size = {size}, sub_block_size = {part}, bit_width = "
            f"{bits + 9}, {variants[0]} = {get(variants[0], 0)}, {variants[1]} = "
            f"{get(variants[1], 0)}; expected to_bfp, or to_bfp_prime with a sub_block_size that "
            "divides block_size, a bit_width of 10 to 32, and 0 for the last two. Export the model "
            "again with these"
        )
    if prime:
        most = (1 << get("sub_block_shift_bits", 1)) - 1
        return _in_blocks(
            draft, node, _in_parts(draft, node, (size, part, most), bits), 8, spoils=True
        )

    def coded(x: Operand, power: Operand) -> Operand:
        op = draft.op
        scale = op.Mul(power, 2.0 ** (1 - bits))
        y = op.Mul(_rounded(draft, op.Div(x, scale), mode), scale)
        bound = op.Mul(power, 2 - 2.0 ** (1 - bits))
        return op.Max(op.Min(y, bound), op.Neg(bound))

    return _in_blocks(draft, node, coded, 8)


def _in_parts(draft: Draft, node: ir.Node, form: tuple[int, int, int], bits: int) -> Coded:
    """Return a function that rounds blocks whose parts have their own shifts.

    ``form`` has the sizes of a block and of a part, and the largest shift; ``bits`` are those of
    the mantissa.
    """
    size, part, most = form
    rank, op = len(sizes_of(node, 0)), draft.op
    mode = node.attributes.get_int("rounding_mode", _HALF_AWAY)

    def coded(blocks: Operand, power: Operand) -> Operand:
        x = reshape(draft, blocks, [*[0] * rank, size // part, part])
        magnitude = op.Abs(x)
        magnitude = op.Where(op.Less(magnitude, 2.0**-126), 0.0, magnitude)
        own = binade(draft, largest(draft, magnitude))
        shared = draft.node("Unsqueeze", [power, LAST], dtype=FLOAT)
        scale = op.Mul(op.Max(own, op.Mul(shared, 2.0**-most)), 2.0 ** (1 - bits))
        steps = op.Div(magnitude, scale)
        below = op.Floor(steps)
        rest, above = op.Sub(steps, below), op.Add(below, 1.0)
        up = op.Where(op.GreaterOrEqual(rest, 0.5), above, below)
        if mode == _HALF_EVEN:
            up = op.Round(steps)
        elif mode == _HALF_UP:
            up = op.Where(op.Less(x, 0.0), op.Where(op.Greater(rest, 0.5), above, below), up)
        steps = op.Where(op.Equal(below, 2.0**bits - 1), below, up)
        y = op.Mul(steps, scale)
        y = op.Where(op.Equal(x, 0.0), x, op.Where(op.Less(x, 0.0), op.Neg(y), y))
        return reshape(draft, y, [*[0] * rank, size])

    return coded


def _in_blocks(
    draft: Draft, node: ir.Node, coded: Coded, default: int, *, spoils: bool = False
) -> Operand:
    """Return ``coded`` of the data and of the power of two below each block's largest.

    Infinities and NaN stay; with ``spoils`` their whole block becomes NaN.
    """
    draft.needs(OPSET_OF_AXES)
    sizes, dtype = sizes_of(node, 0), dtype_of(node, 0)
    rank = len(sizes)
    axis = axis_of(node.attributes.get_int("axis", 1), rank) if rank > 1 else 0
    data = operand(node, 0)
    if not rank or all(size == 1 for size in sizes):
        return draft.node("Identity", [data], dtype=dtype)
    op, x = draft.op, cast(draft, data, FLOAT)
    size = node.attributes.get_int("block_size", default)
    blocks = blocks_of(draft, x, sizes, axis, size)
    magnitude = op.Abs(blocks)
    is_finite = op.Less(magnitude, float("inf"))
    finite = op.Where(is_finite, magnitude, 0.0)
    y = coded(blocks, binade(draft, largest(draft, finite)))
    if spoils:
        odd = largest(draft, op.Where(is_finite, 0.0, 1.0))
        y = op.Where(op.Greater(odd, 0.0), float("nan"), y)
    else:
        y = op.Where(is_finite, y, blocks)
    return cast(draft, joined_blocks(draft, y, sizes, axis), dtype)


def _top_exponent(grid: Minifloat) -> int:
    return int(grid.max_value).bit_length() - 1


def _rounded(draft: Draft, v: Operand, mode: int) -> Operand:
    """Return integers rounded as in Quark, with its signs of zeros."""
    op = draft.op
    if mode == _HALF_EVEN:
        below = op.Floor(v)
        rest = op.Sub(v, below)
        tie = op.Add(op.Round(v), 0.0)
        at_most_half = op.Where(op.Equal(rest, 0.5), tie, below)
        return op.Where(op.Greater(rest, 0.5), op.Add(below, 1.0), at_most_half)
    nearest = op.Round(v)
    is_tie = op.Equal(op.Abs(op.Sub(v, nearest)), 0.5)
    if mode == _HALF_UP:
        return op.Where(is_tie, op.Ceil(v), nearest)
    if mode == _HALF_AWAY:
        return op.Where(is_tie, op.Mul(op.Sign(v), op.Ceil(op.Abs(v))), nearest)
    raise ValueError(f"its rounding_mode is {mode}, expected 0, 1 or 2. Change it")


_WIDE = {ir.DataType.INT32: (-(1 << 31), (1 << 31) - 1), ir.DataType.UINT32: (0, (1 << 32) - 1)}


@composite(
    "ExtendedQuantizeLinear",
    _DOMAIN,
    also=[OpKey(_OLD, "VitisQuantizeLinear")],
    remark="a quotient of at least 2**63, or NaN, has no defined code in Quark",
)
def extended_quantize_linear(draft: Draft, node: ir.Node) -> Operand:
    """Write ``code = saturate(round_half_even(x / scale) + zero_point)``.

    The zero point names the type of the codes: 8, 16 or 32 bits, or BFLOAT16, whose numbers are
    ``x / scale + zero_point``. One scale, or one for each place along ``axis``, by default 0.

    Source: AMD Quark 0.13, by reading and running its CPU kernels.
    """
    x, scale, point = (operand(node, index) for index in range(3))
    dtype, axis = _code_type(node, dtype_of(node, 2))
    if dtype.name in QDQ_SINCE and dtype not in _WIDE:
        draft.needs(QDQ_SINCE[dtype.name])
        operands = [x, *_parameters(draft, node)]
        return draft.node("QuantizeLinear", operands, {"axis": axis}, dtype=dtype)
    op = draft.op
    steps = op.Div(x, _aligned(draft, node, scale, axis))
    if dtype is ir.DataType.BFLOAT16:
        zero = cast(draft, _aligned(draft, node, point, axis), FLOAT)
        return op.Cast(op.Add(steps, zero), to=dtype)
    wide = ir.DataType.INT64
    zero = cast(draft, _aligned(draft, node, point, axis), wide)
    total = draft.node("Add", [op.Cast(op.Round(steps), to=wide), zero], dtype=wide)
    bounds = [np.asarray(bound, np.int64) for bound in _WIDE[dtype]]
    return cast(draft, draft.node("Clip", [total, *bounds], dtype=wide), dtype)


@composite("ExtendedDequantizeLinear", _DOMAIN, also=[OpKey(_OLD, "VitisDequantizeLinear")])
def extended_dequantize_linear(draft: Draft, node: ir.Node) -> Operand:
    """Write ``y = (code - zero_point) * scale``; the difference is one of integers.

    Source: AMD Quark 0.13, by reading and running its CPU kernels.
    """
    x, scale, point = (operand(node, index) for index in range(3))
    dtype, axis = _code_type(node, dtype_of(node, 2))
    if dtype.name in QDQ_SINCE and dtype not in _WIDE:
        draft.needs(QDQ_SINCE[dtype.name])
        operands = [x, *_parameters(draft, node)]
        return draft.node("DequantizeLinear", operands, {"axis": axis}, dtype=FLOAT)
    to = FLOAT if dtype is ir.DataType.BFLOAT16 else ir.DataType.INT64
    zero = cast(draft, _aligned(draft, node, point, axis), to)
    steps = draft.node("Sub", [cast(draft, x, to), zero], dtype=to)
    return draft.op.Mul(cast(draft, steps, FLOAT), _aligned(draft, node, scale, axis))


def _code_type(node: ir.Node, dtype: ir.DataType) -> tuple[ir.DataType, int]:
    """Return the type of the codes, and the axis of the scales."""
    if dtype is ir.DataType.FLOAT16:
        raise ValueError(
            "its zero point is FLOAT16, for which Quark's kernel for CPUs ignores the scale and "
            "that for GPUs does not; expected codes or BFLOAT16. Write a Cast"
        )
    if dtype not in (*_WIDE, ir.DataType.BFLOAT16) and dtype.name not in QDQ_SINCE:
        raise ValueError(f"its zero point is {dtype.name}, expected integers or BFLOAT16. Cast it")
    rank = len(sizes_of(node, 0))
    return dtype, axis_of(node.attributes.get_int("axis", 0), rank) if rank else 0


def _parameters(draft: Draft, node: ir.Node) -> list[ir.Value]:
    """Return scale and zero point, as scalars if they have one element."""
    parameters = []
    for index in (1, 2):
        value, sizes = operand(node, index), sizes_of(node, index)
        parameters.append(reshape(draft, value, []) if sizes == (1,) else value)
    return parameters


def _aligned(draft: Draft, node: ir.Node, value: ir.Value, axis: int) -> ir.Value:
    """Return a parameter in a shape that broadcasts to the data."""
    sizes = sizes_of(node, list(node.inputs).index(value))
    if sizes in ((), (1,)):
        return reshape(draft, value, []) if sizes else value
    rank = len(sizes_of(node, 0))
    return reshape(draft, value, [-1 if index == axis else 1 for index in range(rank)])
