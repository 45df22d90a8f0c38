"""Operators on codes as graphs of standard operators, for proofs of models that have both.

Also replaced: all other operators that a graph defines, and MatMulNBits, by a MatMul with its
decoded weights.

    QLinearMul(a, b)
        -> QuantizeLinear((Cast(a) - z_a) * (Cast(b) - z_b) * m + z_y, 1, 0)
           with m = s_a * s_b / s_y
    QLinearAdd(a, b)
        -> QuantizeLinear(fma(a, r_a, fma(b, r_b, z_y - (z_a * r_a + z_b * r_b))), 1, 0)
           with r = s / s_y, where each fma(x, r, t) is Cast(Cast(x) * r + Cast(t)) by float64
    QLinearGlobalAveragePool(x)
        -> QuantizeLinear(ReduceSum(Cast(x) - z_x) * m, 1, z_y)
           with m = s_x / (s_y * n), where the sums of n codes stay below 2**24
    QLinearAveragePool(x)
        -> QuantizeLinear((w_1 + w_2 + ...) / n / s_y + z_y, 1, 0)
           where w_k has the k-th element of each window of DequantizeLinear(x, s_x, z_x)
    QLinearConcat, QLinearWhere
        -> the operator on the results of DequantizeLinear, then QuantizeLinear

Equal bit for bit: products and sums of codes less their zero points are integers below 2**24, which
float32 represents exactly, in any order of additions. The later operations are those of the kernel,
one by one and in its order. float64 may round a fused sum twice; so a QLinearAdd is written only if
both forms have the same result for every pair of codes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from qgraph.conditions import SUMS_OF_CODES, WHOLE_SUMS, Condition
from qgraph.errors import OperatorError, UnsupportedError, where
from qgraph.graph.constants import constant_elements, constant_expression
from qgraph.graph.edit import Draft, Operand
from qgraph.graph.inference.walk import with_facts
from qgraph.graph.schema import MICROSOFT, OpKey, versions_of
from qgraph.graph.scopes import inputs_of, nodes_of
from qgraph.ops.composite import composite_of, differing, write_composite, write_out
from qgraph.ops.integer.codes import averages_all, counts, float32
from qgraph.ops.integer.forms import draft_codes, draft_exact, draft_offset_codes
from qgraph.ops.integer.kernels import OPERATIONS, read_pair
from qgraph.ops.integer.products import (
    SIGNATURES,
    Product,
    Result,
    read_encoding,
    read_product,
    read_single,
)
from qgraph.ops.integer.sums import EXACT_IN_FLOAT32, Factor
from qgraph.ops.kernels import mat_mul_n_bits
from qgraph.ops.kernels.mat_mul_n_bits import Weights, is_mat_mul_n_bits
from qgraph.ops.kernels.standard import Windows
from qgraph.ops.steps import FLOATS

_Writer: TypeAlias = Callable[[Draft, ir.Node], Operand]

_REAL = ir.DataType.FLOAT
_OPSET = 13
"""Definitions use the forms that operators have since this opset."""

MOST_ELEMENTS = 64
"""Maximum number of elements of a window that are added one by one."""

_END = np.iinfo(np.int64).max
_AVERAGES = {OpKey(MICROSOFT, f"QLinear{name}") for name in ("AveragePool", "GlobalAveragePool")}
_JOINS = {OpKey(MICROSOFT, f"QLinear{name}") for name in ("Concat", "Where")}
ELEMENTWISE = sorted(key.name for key in {*OPERATIONS, *_AVERAGES, *_JOINS})
"""Operators of com.microsoft whose definitions :func:`write_elementwise` writes."""


def is_defined(node: ir.Node) -> bool:
    """Return whether there is a definition of the operator of a node."""
    key = OpKey.of(node)
    return key in SIGNATURES or key in OPERATIONS or key in _AVERAGES


def define(models: Sequence[ir.Model]) -> frozenset[OpKey]:
    """Write operators on codes by their definitions, in place; return those in which models differ.

    Values have types and shapes. Nodes that the definition does not describe stay.
    """
    keys = differing(models, lambda node: is_defined(node) or OpKey.of(node) in _JOINS)
    for model in models:
        _write_out(model, keys, (write, write_elementwise))
    return keys


def _write_out(
    model: ir.Model, keys: Collection[OpKey], writers: Iterable[_Writer], limit: float = math.inf
) -> None:
    nodes = [node for node in nodes_of(model.graph) if OpKey.of(node) in keys]
    for writer in writers:
        write_out(model, [node for node in nodes if _writer(node) is writer], writer, limit)


def conditions(operators: Iterable[OpKey]) -> list[Condition]:
    """Return the conditions under which operators are equal to their definitions."""
    keys = set(operators)
    operators_of = {WHOLE_SUMS: SIGNATURES.keys(), SUMS_OF_CODES: _AVERAGES}
    return [condition for condition, those in operators_of.items() if not keys.isdisjoint(those)]


def write(draft: Draft, node: ir.Node) -> Operand:
    """Write the definition of a node, which has the same bits, and return the result.

    Raises:
        OperatorError: there is none, or a parameter or a size is unknown.
    """
    draft.needs(_OPSET)
    try:
        product, pair = exact_product(node), read_pair(node)
        if product is not None:
            return draft_exact(draft, product)
        if pair is not None and pair.is_exact:
            return pair.draft_exact(draft)
        if OpKey.of(node) in _AVERAGES:
            return read_average(node)[1](draft)
    except ValueError as error:
        raise OperatorError(f"{where(node)}: {error}") from error
    raise OperatorError(f"{where(node)}: no graph of standard operators has the same bits")


def write_elementwise(draft: Draft, node: ir.Node) -> Operand:
    """Write the definition of an operator in :data:`ELEMENTWISE`, see :func:`write`.

    Raises:
        OperatorError: a scale is not above 0, or see :func:`write`.
        ValueError: a parameter has another type or form than the operator takes.
    """
    arrays = [constant_expression(value) for value in node.inputs]
    scales = [float32(array) for array in arrays if array is not None and array.dtype in FLOATS]
    with np.errstate(all="ignore"):
        fit = [(each > 0) & np.isfinite(each * np.float32(255 * MOST_ELEMENTS)) for each in scales]
    if not all(map(np.all, fit)):
        raise OperatorError(f"{where(node)}: its scales are no numbers above 0, or too large")
    draft.needs(_OPSET)
    if OpKey.of(node) in _JOINS:
        return read_joined(node, states_zeros=True)(draft)
    if node.op_type == "QLinearAveragePool" and not averages_all(node, spatial_sizes(node)):
        size, draft_windows = read_windows(node, states_zeros=True)
        if size > MOST_ELEMENTS:
            raise OperatorError(f"{where(node)}: its windows have {size} elements")
        return draft_windows(draft)
    return write(draft, node)


def exact_product(node: ir.Node) -> Product | None:
    """Return the product that a node sums, if its definition is other operators with the same bits.

    Raises:
        OperatorError: see :func:`read_product`.
    """
    product = read_product(node)
    return product if product is not None and _is_exact(product) else None


def _is_exact(product: Product) -> bool:
    """Return whether the definition of a product replaces it by other operators."""
    if product.result is Result.SUMS and product.exact_type is not _REAL:
        return False  # its result is the sums as int32, and it is a standard operator
    if product.result is Result.CODES:
        multiplier = product.multiplier
        if multiplier is None or not (np.isfinite(multiplier) & (multiplier > 0)).all():
            return False
    is_real = product.result is Result.REALS
    return not is_real and not (product.exact_type is None and product.transposed)


def read_average(node: ir.Node) -> tuple[int, Callable[[Draft], Operand]]:
    """Return how many elements a node averages, all of each image, and what drafts its definition.

    That is ``m * sum (x - z_x)`` with ``m = s_x / (s_y * n)``.

    Raises:
        OperatorError: a parameter or the number is unknown, or there are several windows.
    """
    codes, s_x, z_x, s_y, z_y = inputs_of(node, 5)
    x = read_single(node, codes, s_x, z_x, z_y)
    step, zero = read_encoding(node, s_y, z_y, x.dtype)
    if x.codes.shape is None:
        raise OperatorError(
            f"{where(node)}: the shape of its input is unknown; run shape inference."
        )
    rank, is_last = len(x.codes.shape), node.attributes.get_int("channels_last", 0)
    axes = list(range(1, rank - 1) if is_last else range(2, rank))
    sizes = [x.codes.shape[axis] for axis in axes]
    numbers = [size for size in sizes if isinstance(size, int)]
    count = math.prod(numbers)
    if len(numbers) < len(sizes) or not 0 < count * 255 < EXACT_IN_FLOAT32:
        raise OperatorError(
            f"{where(node)}: it sums over {sizes} elements, expected a known number of elements "
            f"whose sums stay below 2**24. Run shape inference with fixed sizes first."
        )
    if node.op_type == "QLinearAveragePool" and (is_last or not averages_all(node, numbers)):
        raise OperatorError(f"{where(node)}: it has several windows")
    with np.errstate(all="ignore"):
        multiplier = x.stored_parameters[0] / (step * np.float32(count))
    if not np.isfinite(multiplier):
        raise OperatorError(f"{where(node)}: the ratio of its scales is {multiplier}")

    def draft_average(draft: Draft) -> Operand:
        operands = [x.draft_difference(draft, _REAL), draft.constant(np.array(axes), "axes")]
        total = draft.node("ReduceSum", operands, {"keepdims": 1}, dtype=_REAL)
        return draft_codes(draft, draft.op.Mul(total, multiplier), zero)

    return count, draft_average


def spatial_sizes(node: ir.Node) -> list[int]:
    """Return the sizes of the images that a node averages.

    Raises:
        OperatorError: one is unknown, or channels come last.
    """
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    sizes = [size for size in list(shape or ())[2:] if isinstance(size, int)]
    if shape is None or len(sizes) < len(shape) - 2:
        raise OperatorError(
            f"{where(node)}: the size of its images is unknown, and the number of elements in a "
            f"window depends on it. Run shape inference with fixed sizes first."
        )
    if node.attributes.get_int("channels_last", 0):
        raise OperatorError(f"{where(node)}: its channels come last")
    return sizes


def read_windows(
    node: ir.Node, *, states_zeros: bool = False
) -> tuple[int, Callable[[Draft], Operand]]:
    """Return how many elements the windows of a node have, and what drafts its definition.

    ``states_zeros`` says whether a DequantizeLinear has a zero point of 0, too.

    Raises:
        OperatorError: a parameter or a size is unknown.
    """
    sizes = spatial_sizes(node)
    codes, s_x, z_x, s_y, z_y = inputs_of(node, 5)
    x = read_single(node, codes, s_x, z_x, z_y)
    x = _with_zero(x) if states_zeros else x
    step, zero = read_encoding(node, s_y, z_y, x.dtype)
    windows = Windows.of(node, sizes, node.attributes.get_ints("kernel_shape", []))

    def draft_windows(draft: Draft) -> Operand:
        parts = _parts(draft, x, windows)
        total: Operand = next(parts)
        for part in parts:
            total = draft.op.Add(total, part)
        average = draft.op.Div(total, np.asarray(counts(node, windows, sizes), np.float32))
        return draft_offset_codes(draft, draft.op.Div(average, step), zero)

    return math.prod(windows.kernel), draft_windows


def _with_zero(codes: Factor) -> Factor:
    zero = np.zeros((), codes.dtype) if codes.zero_point is None else codes.zero_point
    return replace(codes, zero_point=zero)


def _parts(draft: Draft, x: Factor, windows: Windows) -> Iterator[ir.Value]:
    """Yield the first elements of all windows, then the second ones, and so on, in row order."""
    image = x.draft_reals(draft)
    if any(windows.before) or any(windows.after):
        pads = np.array([0, 0, *windows.before, 0, 0, *windows.after], np.int64)
        image = draft.node("Pad", [image, draft.constant(pads, "pads")], dtype=_REAL)
    axes = draft.constant(np.arange(2, 2 + len(windows.kernel)), "axes")
    steps = draft.constant(np.array(windows.strides, np.int64), "steps")
    for starts in np.ndindex(windows.kernel):
        sizes = zip(windows.kernel, starts, strict=True)
        ends = [-(size - 1 - start) or _END for size, start in sizes]
        bounds = [draft.constant(np.array(each, np.int64), "bounds") for each in (starts, ends)]
        yield draft.node("Slice", [image, *bounds, axes, steps], dtype=_REAL)


def read_joined(node: ir.Node, *, states_zeros: bool = False) -> Callable[[Draft], Operand]:
    """Return what drafts the definition of a QLinearConcat or QLinearWhere: :func:`read_windows`.

    Raises:
        OperatorError: a parameter is unknown, or a condition is missing.
    """
    first: list[ir.Value | None] = []
    if node.op_type == "QLinearConcat":
        scale, zero, *rest = node.inputs
    else:
        condition, *rest, scale, zero = inputs_of(node, 9)
        first = [condition]
        if condition is None:
            raise OperatorError(f"{where(node)}: its condition is missing, expected a tensor.")
    parts = [read_single(node, *rest[start : start + 3]) for start in range(0, len(rest), 3)]
    parts = [_with_zero(part) for part in parts] if states_zeros else parts
    encoding = read_encoding(node, scale, zero, parts[0].dtype)

    def draft_joined(draft: Draft) -> Operand:
        operands = [*first, *(part.draft_reals(draft) for part in parts)]
        name = node.op_type.removeprefix("QLinear")
        y = draft.node(name, operands, dict(node.attributes), dtype=_REAL)
        return draft.node("QuantizeLinear", [y, *encoding])

    return draft_joined


def differing_definitions(models: Sequence[ir.Model]) -> frozenset[OpKey]:
    """Return the operators with definitions that not all models have equally often."""
    return differing(models, _writer)


def conditions_of(models: Sequence[ir.Model], operators: Collection[OpKey]) -> list[Condition]:
    """Return the conditions under which operators of models are equal to their definitions."""
    nodes = (node for model in models for node in nodes_of(model.graph))
    replaced = [node for node in nodes if OpKey.of(node) in operators]
    return [*conditions(operators), *mat_mul_n_bits.conditions(replaced)]


def with_definitions(model: ir.Model, defined: Collection[OpKey]) -> ir.Model:
    """Return a copy of a model in which operators are replaced by their definitions.

    Nodes stay that their definition does not describe, or that need a later opset. The types and
    shapes that definitions depend on follow from the inputs alone.
    """
    opset = versions_of(model.opset_imports).get("", 0)
    for writer in (write_composite, write, write_elementwise, _write_packed):
        model = with_facts(model)
        _write_out(model, defined, [writer], opset)
    return model


def _writer(node: ir.Node) -> _Writer | None:
    """Return what writes the definition of a node; None if it has none."""
    if is_mat_mul_n_bits(node):
        return _write_packed
    if composite_of(node) is not None:
        return write_composite
    if OpKey.of(node) in _JOINS:
        return write_elementwise
    return write if is_defined(node) else None


def _write_packed(draft: Draft, node: ir.Node) -> Operand:
    """Write a MatMulNBits as a MatMul with its weights, then Add with its bias."""
    x, *_, order, bias = inputs = inputs_of(node, 6)
    codes, scales, points = (constant_elements(value) for value in inputs[1:4])
    if codes is None or scales is None or (points is None and inputs[3] is not None):
        raise OperatorError(f"{where(node)}: its weights are not constant")
    if scales.dtype != np.float32 or order is not None:
        raise OperatorError(f"{where(node)}: its scales are not float32, or it has groups")
    zero = None if points is None else points.array()
    try:
        weights = Weights.of(node)
        weights.check(codes, scales)
        weights.zero_points(zero)
    except (UnsupportedError, ValueError) as error:
        raise OperatorError(f"{where(node)}: {error}") from error

    def decoded() -> ir.TensorProtocol:
        array = weights.values(codes.array(), scales.array(), zero)
        return ir.Tensor(np.ascontiguousarray(array.T))

    shape = ir.Shape((weights.k, weights.n))
    matrix = ir.LazyTensor(decoded, dtype=ir.DataType.FLOAT, shape=shape, name="weights")
    operands = [x, draft.stored(matrix, "weights")]
    total = draft.node("MatMul", operands, dtype=ir.DataType.FLOAT)
    return total if bias is None else draft.op.Add(total, bias)
