"""Products of codes, written in one way: sums of whole numbers, and what is made of them.

QLinearConv and its kin sum products of codes less their zero points, which are whole numbers. So do
Conv and MatMul between DequantizeLinear and QuantizeLinear where scales are powers of two: no
operation rounds there. As long as sums stay below 2**24, float32 has all of them, in whatever order
they are added, so that all forms are the same Conv or MatMul of whole numbers:

    q  = Cast (codes) - Cast (zero point)           of both factors
    acc = Clip (Round (Conv (q_x, q_w, Cast (bias))), -bound, bound)
    y   = QuantizeLinear (acc * (s_x * s_w / s_y), 1, z_y)      of QLinearConv
    y   = acc * (s_x * s_w)                                     of Conv between Q and DQ

Round and Clip change nothing: they tell those who look at what comes after that the sums are whole
and bounded. What is written follows the definitions in :mod:`qgraph.foreign.kernels`, and shares
nothing with the passes that rewrite these operators, so that a mistake there cannot hide.

What the sign of a zero sum is depends on where the additions start. Sums are written like this only
where codes are made of them, which do not tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import UnsupportedError
from qgraph.foreign.kernels import MICROSOFT
from qgraph.foreign.parameters import channels, columns, float32, int32, ratio, result, single
from qgraph.foreign.rescaling import EXACT_IN_FLOAT32, are_powers_of_two
from qgraph.foreign.sums import conv_attributes
from qgraph.graph.edit import Draft, Editor, Region
from qgraph.graph.edit import Operand as Drafted
from qgraph.graph.folding import constant_expression
from qgraph.graph.schema import OpKey
from qgraph.opsets.versions import require

Array = npt.NDArray[Any]

_OPSET = 13
"""All that is written here has its present form since then."""

_CODES = (ir.DataType.INT8, ir.DataType.UINT8)
_WRAPS = 1 << 31

_SAME_FOR_ZEROS = frozenset({"Add", "Cast", "Clip", "Div", "Mul", "Relu", "Round", "Sub"})
"""Operators that make equal values of zeros of both signs, if what else they take is constant."""

_Write = Callable[[Draft], Drafted]


@dataclass(frozen=True, eq=False)
class _Factor:
    """Codes less their zero point.

    Attributes:
        codes: int8 or uint8.
        zero_point: of their type, so that it broadcasts to them; a value where it is computed.
    """

    codes: ir.Value
    zero_point: Array | ir.Value

    @property
    def reach(self) -> int:
        """How far codes can be from their zero point."""
        limits = np.iinfo(_type_of(self.codes).numpy())
        if isinstance(self.zero_point, ir.Value):
            return int(limits.max - limits.min)
        low, high = int(self.zero_point.min()), int(self.zero_point.max())
        return max(high - int(limits.min), int(limits.max) - low)

    @property
    def distances(self) -> Array | None:
        """How far codes that are known are from their zero point."""
        known = constant_expression(self.codes)
        if known is None or isinstance(self.zero_point, ir.Value):
            return None
        return np.abs(known.astype(np.int64) - self.zero_point.astype(np.int64))

    @property
    def stored_zero_point(self) -> Array | ir.Value | None:
        """The zero point as operators on codes take it; None where it is 0."""
        zero = self.zero_point
        if isinstance(zero, ir.Value):
            return zero
        return None if not zero.any() else zero if zero.size == 1 else zero.reshape(-1)

    def draft(self, draft: Draft, to: ir.DataType) -> ir.Value:
        """Write the whole numbers in type ``to``."""
        whole = _cast(draft, self.codes, to)
        zero = self.zero_point
        if isinstance(zero, ir.Value):
            return draft.node("Sub", [whole, _cast(draft, zero, to)], dtype=to)
        if not zero.any():
            return whole
        return draft.node("Sub", [whole, zero.astype(to.numpy())], dtype=to)


@dataclass(frozen=True, eq=False)
class _Sum:
    """A sum of products of whole numbers.

    Attributes:
        node: a Conv, MatMul or Gemm, or the operator on codes that stands for one.
        kind: which of the three.
        a, b: its factors.
        bias: int32, added to the sums.
    """

    node: ir.Node
    kind: str
    a: _Factor
    b: _Factor
    bias: ir.Value | Array | None = None

    @property
    def bound(self) -> int | None:
        """The largest sum and partial sum, bias aside, in size; None where it is not known."""
        far = self.b.distances
        if far is not None:
            axes: Any = tuple(range(1, far.ndim)) if self.kind == "Conv" else self._depth_axis
            return int(far.sum(axis=axes).max(initial=0)) * self.a.reach
        shape = self.b.codes.shape
        if shape is None or not all(isinstance(size, int) for size in shape):
            return None
        sizes = [int(size) for size in shape]  # type: ignore[arg-type]
        depth = int(np.prod(sizes[1:])) if self.kind == "Conv" else sizes[self._depth_axis]
        return depth * self.a.reach * self.b.reach

    @property
    def largest(self) -> int | None:
        """The largest sum and partial sum in size; None where it is not known."""
        bound, bias = self.bound, self.bias
        if bound is None or bias is None:
            return bound
        known = bias if isinstance(bias, np.ndarray) else constant_expression(bias)
        return None if known is None else bound + int(np.abs(known.astype(np.int64)).max(initial=0))

    @property
    def exact_type(self) -> ir.DataType | None:
        """The type that holds all sums; None if only int32 does, in which they wrap around.

        No runtime has a Conv of float64.
        """
        largest = self.largest
        if largest is not None and largest < EXACT_IN_FLOAT32:
            return ir.DataType.FLOAT
        if largest is not None and largest < _WRAPS and self.kind != "Conv":
            return ir.DataType.DOUBLE
        return None

    @property
    def transposed(self) -> dict[str, int]:
        """The factors of a Gemm that are transposed."""
        names = ("transA", "transB")
        given = {name: self.node.attributes.get_int(name, 0) for name in names}
        return {name: 1 for name, value in given.items() if value}

    @property
    def _depth_axis(self) -> int:
        if self.kind == "Gemm" and self.transposed.get("transB"):
            return 1
        return -2 if len(self.b.codes.shape or ()) > 1 else 0

    def draft(self, draft: Draft, kind: ir.DataType) -> ir.Value:
        """Write the sum in a type that holds all of them."""
        factors = [self.a.draft(draft, kind), self.b.draft(draft, kind)]
        bias = draft.constant(self.bias) if isinstance(self.bias, np.ndarray) else self.bias
        added = None if bias is None else _cast(draft, bias, kind)
        if self.kind == "Conv":
            operands = factors if added is None else [*factors, added]
            return draft.node("Conv", operands, conv_attributes(self.node), dtype=kind)
        if self.kind == "Gemm" and self.transposed:
            operands = factors if added is None else [*factors, added]
            return draft.node("Gemm", operands, self.transposed, dtype=kind)
        total = draft.node("MatMul", factors, dtype=kind)
        return total if added is None else draft.node("Add", [total, added], dtype=kind)

    def draft_integers(self, draft: Draft) -> ir.Value:
        """Write the sum as int32, by the standard operator that has it."""
        zeros = [self.a.stored_zero_point, self.b.stored_zero_point]
        while zeros and zeros[-1] is None:
            zeros.pop()
        name = "ConvInteger" if self.kind == "Conv" else "MatMulInteger"
        attributes = conv_attributes(self.node) if self.kind == "Conv" else {}
        operands = [self.a.codes, self.b.codes, *zeros]
        total = draft.node(name, operands, attributes, dtype=ir.DataType.INT32)
        known = self.bias if isinstance(self.bias, np.ndarray) else constant_expression(self.bias)
        if known is None:
            return total
        if self.kind == "Conv":
            known = known.reshape(-1, *(1,) * (len(self.b.codes.shape or ()) - 2))
        return draft.node("Add", [total, known], dtype=ir.DataType.INT32)


def with_common_sums(models: Sequence[ir.Model]) -> list[ir.Model] | None:
    """Return copies of models that sum products of codes in one way.

    Operators whose parameters are not known are left alone, as are all others than those of the
    main graph.

    Returns:
        None where the models have the same operators for such sums, or where different ones are
        left, so that they are not comparable in this way.
    """
    if not _differ(models, _is_product):
        return None
    copies = [model.clone() for model in models]
    try:
        for copy in copies:
            _spell_out(copy)
    except UnsupportedError:
        return None
    left = any(_differ(copies, counts) for counts in (_is_on_codes, _is_whole))
    return None if left else copies


def _differ(models: Sequence[ir.Model], counts: Callable[[ir.Node], bool]) -> bool:
    found = [Counter(node.op_type for node in model.graph if counts(node)) for model in models]
    return any(each != found[0] for each in found)


def _is_product(node: ir.Node) -> bool:
    return OpKey.of(node) in _READERS


def _is_on_codes(node: ir.Node) -> bool:
    return _is_product(node) or (_is_float_product(node) and all(map(_decoder, node.inputs[:2])))


def _is_whole(node: ir.Node) -> bool:
    return _is_float_product(node) and _wholes(node) is not None


def _spell_out(model: ir.Model) -> None:
    """Write sums of products of codes in the main graph of ``model`` in one way, in place.

    Raises:
        UnsupportedError: the opset of the model cannot be raised.
    """
    require(model, _OPSET)
    for label, write_for in (("sum", _of_operator), ("unit", _of_decoded), ("whole", _of_wholes)):
        editor = Editor(model)
        drafts = []
        for node in model.graph:
            try:
                write = write_for(node)
            except ValueError:  # a parameter has another form than its operator takes
                continue
            if write is not None:
                draft = editor.draft(Region(ir.Value(name=""), node.outputs[0], (node,)))
                drafts.append(draft.giving(write(draft)))
        editor.replace_all(drafts)
        # what is written in two ways does not get one name, which would be taken for a hint
        for draft in drafts:
            for node in draft.nodes[:-1]:
                value = node.outputs[0]
                value.name = editor.fresh(f"{value.name}_{label}")


def _of_operator(node: ir.Node) -> _Write | None:
    """Return how to write an operator on codes by its definition."""
    read = _READERS.get(OpKey.of(node))
    found = None if read is None else read(node, [*node.inputs, *[None] * (9 - len(node.inputs))])
    if found is None:
        return None
    total, multiplier, zero = found
    exact = total.exact_type
    if multiplier is None or zero is None:
        if exact is not ir.DataType.FLOAT:
            return None  # it has the sums as int32, and is a standard operator
        return lambda draft: _cast(draft, total.draft(draft, exact), ir.DataType.INT32)
    unfit = exact is None and total.kind == "Gemm" and total.transposed
    if unfit or not (np.isfinite(multiplier) & (multiplier > 0)).all():
        return None

    def write(draft: Draft) -> Drafted:
        acc = total.draft_integers(draft) if exact is None else total.draft(draft, exact)
        acc = _cast(draft, acc, ir.DataType.FLOAT)
        one = np.ones((), np.float32)
        code = ir.DataType.from_numpy(zero.dtype)
        return draft.node("QuantizeLinear", [draft.op.Mul(acc, multiplier), one, zero], dtype=code)

    return write


def _of_decoded(node: ir.Node) -> _Write | None:
    """Return how to write a product of decoded codes that is exact: sums, times both scales."""
    decoders = [_decoder(value) for value in node.inputs[:2]]
    if not _is_float_product(node) or None in decoders or not _becomes_codes(node.outputs[0]):
        return None
    read = [_decoded(decode) for decode in decoders if decode is not None]
    if len(read) < 2 or None in read or (node.op_type == "Gemm" and not _is_plain_gemm(node)):
        return None
    (a, s_a, _), (b, s_b, axis) = (each for each in read if each is not None)
    transposed = node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))
    if s_a.size != 1 or not (are_powers_of_two(s_a) and are_powers_of_two(s_b)):
        return None
    unit = s_a.reshape(()) * s_b
    if s_b.size > 1:
        rank = len(b.codes.shape or ())
        if axis != (0 if node.op_type == "Conv" or transposed else rank - 1):
            return None
        unit = unit.reshape(-1, *(1,) * (rank - 2 if node.op_type == "Conv" else 0))
    bias: Array | None = None
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        bias = _whole_bias(node.inputs[2], unit, node)
        if bias is None:
            return None
    total = _Sum(node, node.op_type, a, b, bias)
    largest = total.largest
    if largest is None or largest >= EXACT_IN_FLOAT32:
        return None
    return lambda draft: draft.op.Mul(total.draft(draft, ir.DataType.FLOAT), unit)


def _whole_bias(value: ir.Value, unit: Array, node: ir.Node) -> Array | None:
    """Return a constant bias in units of both scales as int32; None if it is not whole."""
    known = constant_expression(value)
    decode = _decoder(value)
    if known is None and decode is not None:
        codes, scale = constant_expression(decode.inputs[0]), constant_expression(decode.inputs[1])
        zero = None if len(decode.inputs) < 3 else constant_expression(decode.inputs[2])
        shifted = len(decode.inputs) > 2 and (zero is None or zero.any())
        if codes is None or scale is None or shifted or not are_powers_of_two(scale):
            return None
        if scale.size > 1 and scale.shape != codes.shape:
            return None
        known = codes.astype(np.float64) * scale
    if known is None:
        return None
    units = unit.reshape(-1) if node.op_type == "Conv" else unit
    if units.size > 1 and known.shape[-1:] != units.shape:
        return None
    with np.errstate(all="ignore"):
        whole = known.astype(np.float64) / units
    if not (np.abs(whole) < EXACT_IN_FLOAT32).all() or (whole != np.rint(whole)).any():
        return None
    return whole.astype(np.int32)


def _of_wholes(node: ir.Node) -> _Write | None:
    """Return how to write a product of whole numbers: itself, and that it is whole and bounded."""
    factors = _wholes(node) if _is_float_product(node) else None
    if factors is None or not _becomes_codes(node.outputs[0]):
        return None
    bound = _Sum(node, node.op_type, *factors).bound
    added = node.inputs[2] if len(node.inputs) > 2 else None
    if added is not None and bound is not None:
        known = constant_expression(added)
        if known is None or not (known == np.rint(known)).all():
            return None
        bound += int(np.abs(known).max(initial=0))
    if bound is None or bound >= EXACT_IN_FLOAT32:
        return None
    limit = np.asarray(bound, np.float32)

    def write(draft: Draft) -> Drafted:
        attributes = {name: a.value for name, a in node.attributes.items()}
        total = draft.node(node.op_type, node.inputs, attributes, dtype=ir.DataType.FLOAT)
        return draft.op.Clip(draft.op.Round(total), -limit, limit)

    return write


def _wholes(node: ir.Node) -> tuple[_Factor, _Factor] | None:
    """Return the factors of a product of codes less their zero points, cast to float32."""
    if node.op_type == "Gemm" and not _is_plain_gemm(node):
        return None
    found = []
    for value in node.inputs[:2]:
        made = None if value is None else value.producer()
        zero: Array | ir.Value | None = None
        if made is not None and OpKey.of(made) == OpKey("", "Sub"):
            whole, taken = made.inputs
            made = None if whole is None else whole.producer()
            zero = constant_expression(taken)
            if zero is None:
                cast = None if taken is None else taken.producer()
                zero = None if cast is None or cast.op_type != "Cast" else cast.inputs[0]
            if zero is None:
                return None
        if made is None or OpKey.of(made) != OpKey("", "Cast"):
            return None
        codes = made.inputs[0]
        if codes is None or codes.dtype not in _CODES:
            return None
        kind = codes.dtype.numpy()
        if isinstance(zero, ir.Value) and zero.dtype != codes.dtype:
            return None
        if isinstance(zero, np.ndarray):
            with np.errstate(all="ignore"):
                if not np.array_equal(zero.astype(kind), zero):
                    return None
            zero = zero.astype(kind)
        found.append(_Factor(codes, np.zeros((), kind) if zero is None else zero))
    return found[0], found[1]


def _is_float_product(node: ir.Node) -> bool:
    known = node.domain == "" and node.op_type in ("Conv", "Gemm", "MatMul")
    return known and node.outputs[0].dtype is ir.DataType.FLOAT


def _is_plain_gemm(node: ir.Node) -> bool:
    return all(node.attributes.get_float(name, 1.0) == 1 for name in ("alpha", "beta"))


def _becomes_codes(value: ir.Value) -> bool:
    """Return whether nothing but codes is made of a value, by steps on single elements."""
    pending, seen = [value], {value}
    while pending:
        step = pending.pop()
        if step.is_graph_output() or not step.uses():
            return False
        for node, place in step.uses():
            if node.domain:
                return False
            made = node.outputs[0].dtype
            encodes = place == 0 and node.op_type in ("Cast", "QuantizeLinear")
            if encodes and made is not None and made.is_integer():
                continue
            others = (operand for operand in node.inputs if operand is not step)
            plain = node.op_type in _SAME_FOR_ZEROS and (place == 0 or node.op_type != "Div")
            if not plain or any(o is not None and constant_expression(o) is None for o in others):
                return False
            if node.outputs[0] not in seen:
                seen.add(node.outputs[0])
                pending.append(node.outputs[0])
    return True


def _decoder(value: ir.Value | None) -> ir.Node | None:
    node = None if value is None else value.producer()
    return node if node is not None and OpKey.of(node) == OpKey("", "DequantizeLinear") else None


def _decoded(node: ir.Node) -> tuple[_Factor, Array, int] | None:
    """Return what a DequantizeLinear subtracts and multiplies by, and along which axis."""
    codes, scale, zero = [*node.inputs, None][:3]
    blocks = bool(node.attributes.get_int("block_size", 0))
    if codes is None or codes.dtype not in _CODES or blocks:
        return None
    ratios, taken = constant_expression(scale), constant_expression(zero)
    if ratios is None or ratios.dtype != np.float32 or (taken is None and zero is not None):
        return None
    rank = len(codes.shape or ())
    if ratios.size == 1:
        taken = np.zeros((), codes.dtype.numpy()) if taken is None else single(taken)
        return _Factor(codes, taken), ratios.reshape(()), 0
    axis = node.attributes.get_int("axis", 1)
    if codes.shape is None or ratios.ndim != 1 or not -rank <= axis < rank:
        return None
    after = (1,) * (rank - axis % rank - 1)
    points = np.zeros(ratios.shape, codes.dtype.numpy()) if taken is None else taken
    if points.shape != ratios.shape:
        return None
    return _Factor(codes, points.reshape(-1, *after)), ratios, axis % rank


_Read = tuple[_Sum, Array | None, Array | None]
"""What an operator sums, by what sums are multiplied, and the zero point of its codes."""

_Inputs = Sequence[ir.Value | None]


def _q_linear_mat_mul(node: ir.Node, inputs: _Inputs) -> _Read | None:
    a, s_a, z_a, b, s_b, z_b, s_y, z_y, _ = inputs
    total = _sum(node, "MatMul", (a, z_a, single), (b, z_b, columns))
    scales = _constants(s_a, s_b, s_y, z_y)
    if total is None or scales is None:
        return None
    multiplier = ratio(single(scales[0]), columns(scales[1]), single(scales[2]))
    return total, multiplier, single(result(scales[3]))


def _q_linear_conv(node: ir.Node, inputs: _Inputs) -> _Read | None:
    x, s_x, z_x, w, s_w, z_w, s_y, z_y, bias = inputs
    spatial = (1,) * (len(w.shape) - 2 if w is not None and w.shape is not None else 0)
    total = _sum(node, "Conv", (x, z_x, single), (w, z_w, _per_channel(spatial)), bias)
    scales = _constants(s_x, s_w, s_y, z_y)
    if total is None or scales is None or not spatial:
        return None
    multiplier = ratio(single(scales[0]), channels(scales[1], spatial), single(scales[2]))
    return total, multiplier, single(result(scales[3]))


def _mat_mul_integer(node: ir.Node, inputs: _Inputs) -> _Read | None:
    a, b, z_a, z_b, *_ = inputs
    total = _sum(node, "MatMul", (a, z_a, single), (b, z_b, columns))
    return None if total is None else (total, None, None)


def _conv_integer(node: ir.Node, inputs: _Inputs) -> _Read | None:
    x, w, z_x, z_w, *_ = inputs
    spatial = (1,) * (len(w.shape) - 2 if w is not None and w.shape is not None else 0)
    total = _sum(node, "Conv", (x, z_x, single), (w, z_w, _per_channel(spatial)))
    return None if total is None or not spatial else (total, None, None)


def _q_gemm(node: ir.Node, inputs: _Inputs) -> _Read | None:
    a, s_a, z_a, b, s_b, z_b, c, s_y, z_y = inputs
    if s_y is None or z_y is None:
        return None  # real numbers, whose zeros have a sign
    transposed = bool(node.attributes.get_int("transB", 0))
    place = _per_channel(()) if transposed else columns
    total = _sum(node, "Gemm", (a, z_a, single), (b, z_b, place), c)
    scales = _constants(s_a, s_b, s_y, z_y)
    if total is None or scales is None:
        return None
    alpha = np.float32(node.attributes.get_float("alpha", 1.0))
    with np.errstate(all="ignore"):
        unit = alpha * float32(single(scales[0])) * float32(columns(scales[1]))
        multiplier = unit / float32(single(scales[2]))
    return total, multiplier, single(result(scales[3]))


_READERS: dict[OpKey, Callable[[ir.Node, _Inputs], _Read | None]] = {
    OpKey("", "ConvInteger"): _conv_integer,
    OpKey("", "MatMulInteger"): _mat_mul_integer,
    OpKey("", "QLinearConv"): _q_linear_conv,
    OpKey("", "QLinearMatMul"): _q_linear_mat_mul,
    OpKey(MICROSOFT, "QGemm"): _q_gemm,
}

_Place = Callable[[Array], Array]
_Codes = tuple[ir.Value | None, ir.Value | None, _Place]
"""Codes, their zero point, and what gives it the shape in which it broadcasts to them."""


def _sum(
    node: ir.Node, kind: str, a: _Codes, b: _Codes, bias: ir.Value | None = None
) -> _Sum | None:
    factors = [_factor(*a), _factor(*b)]
    if bias is not None:
        known = constant_expression(bias)
        if known is None:
            return None
        int32(known)
    if factors[0] is None or factors[1] is None:
        return None
    return _Sum(node, kind, factors[0], factors[1], bias)


def _factor(codes: ir.Value | None, zero: ir.Value | None, place: _Place) -> _Factor | None:
    if codes is None or codes.dtype not in _CODES:
        return None
    kind = codes.dtype.numpy()
    known = np.zeros((), kind) if zero is None else constant_expression(zero)
    if known is not None:
        return _Factor(codes, place(known)) if known.dtype == kind else None
    if zero is None or zero.dtype != codes.dtype or zero.shape is None:
        return None
    return _Factor(codes, zero) if all(size == 1 for size in zero.shape) else None


def _per_channel(spatial: tuple[int, ...]) -> _Place:
    return lambda parameter: channels(parameter, (1, *spatial))


def _constants(*values: ir.Value | None) -> list[Array] | None:
    found = [constant_expression(value) for value in values]
    known = [array for array in found if array is not None]
    return known if len(known) == len(found) else None


def _cast(draft: Draft, value: ir.Value, to: ir.DataType) -> ir.Value:
    if value.dtype == to:
        return value
    return draft.node("Cast", [value], {"to": to.value}, dtype=to)


def _type_of(value: ir.Value) -> ir.DataType:
    if value.dtype is None:
        raise ValueError("the type of codes is not known")
    return value.dtype
