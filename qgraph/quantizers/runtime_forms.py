"""The forms of quantizers in standard operators, in the order in which ONNX Runtime is fast.

Some forms lose NaN. Bounds of the magnitudes of values tell where there is none: a value with a
bound is never NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import onnx_ir as ir

from qgraph.execution.session import MODERATE
from qgraph.graph.constants import constant
from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.graph.opset.versions import only_float_type
from qgraph.numerics import Array, Float32
from qgraph.numerics.rounding import Rounding
from qgraph.ops.operator import operator_of
from qgraph.ops.steps import round_to_integer
from qgraph.proof.functions.lowering import Forms
from qgraph.quantizers.compare import Make, OpenDrafts, opened, returning, with_open_scale
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.dialects.layout import layout_of
from qgraph.quantizers.dialects.onnx import by_definition
from qgraph.quantizers.dialects.parts import (
    CLIPPABLE,
    CodeType,
    clip,
    dequantize,
    range_steps,
    range_values,
    real_values,
    split_top,
)
from qgraph.quantizers.dialects.qdq_pairs import pairs
from qgraph.quantizers.quantizer import Affine, Bipolar, Floating, Ranged
from qgraph.quantizers.sites import site_of

Offer = tuple[Site, Make]


def runtime_forms(site: Site, editor: Editor, *, numbers: bool) -> Iterator[Make]:
    """Yield the forms of ``site``, the fastest first, its definition last.

    Other nodes may precede the quantizer in ``site``; its forms omit them. Equal quantizers have
    the same forms, in the same order. Forms that lose NaN are among them for data that are
    ``numbers``.
    """
    match site.quantizer:
        case Affine() as meaning:
            for keeps_nan in (False, True) if numbers else (True,):
                yield from _pair(site, editor, meaning, keeps_nan=keeps_nan)
            yield from _affine_chains(site, editor, meaning)
        case Ranged() as meaning:
            yield from _ranged_chains(site, editor, meaning)
        case Floating():
            yield from map(returning, pairs(site, editor))
    if all(operator_of(node) is not None for node in site.nodes):
        yield from map(returning, by_definition(site, editor))


def _pair(site: Site, editor: Editor, meaning: Affine, *, keeps_nan: bool) -> Iterator[Make]:
    """Yield the pair, or ``min(max(x, top), pair)``, which is equal and keeps NaN."""
    scale, zero = meaning.scale, np.zeros(meaning.scale.shape, np.float32)
    codes = CodeType.of(meaning.lo, meaning.hi, CLIPPABLE)
    layout = layout_of(site.shape or None, scale)
    is_plain = meaning.rounding is Rounding.ROUND and not meaning.zero_point.any()
    if codes is None or layout is None or not codes.is_uniform or not is_plain:
        return

    def make() -> Draft:
        draft = editor.draft(site)
        q = codes.quantize(draft, draft.x, scale, zero, layout)
        pair: Operand = dequantize(draft, q, scale, zero, codes.kind, layout)
        if keeps_nan:
            with np.errstate(over="ignore"):
                top = np.maximum(np.float32(codes.lo) * scale, np.float32(codes.hi) * scale)
            pair = draft.op.Min(draft.op.Max(draft.x, top), pair)
        return draft.giving(pair)

    yield make


def _affine_chains(site: Site, editor: Editor, meaning: Affine) -> Iterator[Make]:
    """Yield ``(round(clip(x / s + z)) - z) * s``, for z = 0 also without the addition.

    Adding 0 changes -0 to +0.
    """
    zero_point = meaning.zero_point

    def make(*, adds: bool) -> Draft:
        draft = editor.draft(site)
        y = draft.op.Div(draft.x, meaning.scale)
        y = draft.op.Add(y, zero_point) if adds else y
        y = round_to_integer(draft.op, clip(draft, y, meaning.lo, meaning.hi), meaning.rounding)
        return draft.giving(real_values(draft, y, meaning.scale, zero_point))

    for adds in (True,) if zero_point.any() else (False, True):
        yield partial(make, adds=adds)


def _ranged_chains(site: Site, editor: Editor, meaning: Ranged) -> Iterator[Make]:
    """Yield FakeQuantize's formula on data clamped to the range, without its comparisons.

    Operations with 0 are omitted first. At the top of the range the formula may miss the upper
    limit by an ulp; then inputs above the range have a separate level.
    """
    low, high = meaning.output_low, meaning.output_high
    if not (meaning.input_low < meaning.input_high).all():
        return

    def make(*, adds: bool, splits: bool) -> Draft:
        draft = editor.draft(site)
        inside = clip(draft, draft.x, meaning.input_low, meaning.input_high)
        codes = draft.op.Round(range_steps(draft, inside, meaning))
        y = range_values(draft, codes, low, high, meaning.levels - 1)
        y = draft.op.Add(y, low) if adds else y
        return draft.giving(split_top(draft, y, draft.x, meaning.input_high, high) if splits else y)

    ways = product((False, True), (False,) if low.any() else (False, True))
    yield from (partial(make, adds=adds, splits=splits) for splits, adds in ways)


def offers(site: Site, numbers: Container[ir.Value], editor: Editor) -> Iterator[Offer]:
    """Yield the forms of a site, first those that replace a Relu before it, too."""
    yield from (
        (start, make)
        for start in (*with_relu(site), site)
        for make in runtime_forms(start, editor, numbers=start.x in numbers)
    )


def offered(
    sites: Sequence[Site], numbers: Container[ir.Value], editor: Editor, forms: Forms
) -> list[Iterator[Offer]]:
    """Return the offers of sites; forms that do not depend on the scale are written once."""
    alike = dict[object, OpenDrafts]()
    listed = []
    for site in sites:
        own = offers(site, numbers, editor)
        starts = (*with_relu(site), site)
        key = tuple([opened(start, forms) for start in starts])
        if isinstance(site.meaning, Affine) and None not in key:
            places = tuple([start.x in numbers for start in starts])
            templates = alike.get((key, places))
            if templates is None:
                same = offers(with_open_scale(site), numbers, editor)
                templates = alike[key, places] = OpenDrafts(make for _, make in same)
            own = _filled(templates, own, site.meaning.scale)
        listed.append(own)
    return listed


def _filled(templates: OpenDrafts, offered: Iterator[Offer], scale: Float32) -> Iterator[Offer]:
    """Yield what a site is offered, made from drafts of an equal site where these fit."""

    def make(index: int, start: Site, own: Make) -> Draft:
        return templates.at(index, start, scale) or own()

    for index, (start, own) in enumerate(offered):
        yield start, partial(make, index, start, own)


def with_relu(site: Site) -> Iterator[Site]:
    """Yield the site extended by a Relu before it, which an unsigned quantizer makes redundant."""
    relu = site.x.producer()
    if not isinstance(site.quantizer, Affine | Ranged) or relu is None or relu.op_type != "Relu":
        return
    x = relu.inputs[0]
    if x is not None and relu.domain == "" and relu.graph is site.root.graph:
        yield replace(site, x=x, nodes=(relu, *site.nodes), form=None)


_LARGEST = 2.0**100
"""Larger bounds are discarded: a product of two such values would be infinite."""
_SLACK = 1.001
"""Factor that covers the rounding of the few float operations of one element."""

Bounds = dict[ir.Value, float]
Rule = Callable[[ir.Node, list[float]], float | None]


def magnitudes(model: ir.Model, read: Callable[[ir.Node], object] = site_of) -> Bounds:
    """Return bounds of ``|value|`` in the main graph, for inputs of moderate magnitude.

    Inputs are at most :data:`qgraph.execution.session.MODERATE` in magnitude. A value with a
    bound is neither NaN nor infinite. Results of operators without a rule have no bound, nor do
    values computed from them. ``read`` may remember the quantizers that it has read.
    """
    bounds: Bounds = {}
    if only_float_type(model) is not ir.DataType.FLOAT:
        return bounds
    graph = model.graph
    for value in graph.inputs:
        if not value.is_initializer() and value.dtype is ir.DataType.FLOAT:
            bounds[value] = MODERATE
    for node in graph:
        if node.op_identifier() in model.functions:
            continue
        bound = _bound(node, bounds, read)
        if bound is not None and bound <= _LARGEST:
            bounds[node.outputs[0]] = bound
    return bounds


def _bound(
    node: ir.Node, bound_of: Mapping[ir.Value, float], read: Callable[[ir.Node], object]
) -> float | None:
    if operator_of(node) is not None:
        site = read(node)
        # Quantizers keep NaN.
        return _of_quantizer(site) if isinstance(site, Site) and site.x in bound_of else None
    rule = _RULES.get(node.op_type) if node.domain == "" else None
    if rule is None:
        return None
    operands = [value for value in node.inputs if value is not None]
    bounds = [bound_of[v] if v in bound_of else _largest(constant(v)) for v in operands]
    numbers = [bound for bound in bounds if bound is not None]
    return rule(node, numbers) if len(numbers) == len(bounds) else None


def _largest(array: Array | None) -> float | None:
    if array is None or array.dtype.kind not in "fiu" or not array.size:
        return None
    largest = float(np.abs(array.astype(np.float64)).max())
    return largest if np.isfinite(largest) else None


def _of_quantizer(site: Site) -> float | None:
    match site.quantizer:
        case Affine(scale, zero_point, lo, hi):
            ends = [np.abs(end.astype(np.float64) - zero_point).max() for end in (lo, hi)]
            bound = max(ends) * np.abs(scale).max()
        case Ranged(low, high, below, above):
            with np.errstate(all="ignore"):
                spans = np.stack([np.abs(high - low).max(), np.abs(above - below).max()])
            bound = 2 * max(np.abs(below).max(), np.abs(above).max()) + 0 * spans.sum()
        case Floating(scale, format=grid, saturating=True):
            bound = float(grid.max_value) * np.abs(scale).max()
        case Bipolar(scale):
            bound = np.abs(scale).max()
        case _:
            return None
    # A comparison with NaN is false, so there is no bound.
    return float(bound) * _SLACK if bound <= _LARGEST else None


def _same(node: ir.Node, bounds: list[float]) -> float:
    return bounds[0] * _SLACK


def _pool(node: ir.Node, bounds: list[float]) -> float | None:
    # With ceil_mode a window may consist of padding only.
    return None if node.attributes.get_int("ceil_mode", 0) else bounds[0] * _SLACK


def _quotient(node: ir.Node, bounds: list[float]) -> float | None:
    divisor = constant(node.inputs[1])
    least = 0.0 if divisor is None or not divisor.size else float(np.abs(divisor).min())
    return bounds[0] / least * _SLACK if least > 0 else None


def _convolution(node: ir.Node, bounds: list[float]) -> float | None:
    """Each output is a sum over all but the first axis of the weight, plus the bias."""
    weight = constant(node.inputs[1])
    if weight is None or weight.ndim < 2:
        return None
    sums = np.abs(weight).reshape(weight.shape[0], -1).sum(axis=1, dtype=np.float64)
    return _accumulated(bounds[0] * float(sums.max(initial=0)), weight[0].size, bounds[2:])


def _matrix_product(node: ir.Node, bounds: list[float]) -> float | None:
    """Each output is a sum along the axis of a matrix that the other operand shares."""
    right = node.inputs[1]
    transposed = node.attributes.get_int("transB", 0) != 0
    matrix = constant(right)
    if matrix is not None and matrix.ndim == 2:
        axis = 1 if transposed else 0
        sums = np.abs(matrix).sum(axis=axis, dtype=np.float64)
        terms, product = matrix.shape[axis], bounds[0] * float(sums.max(initial=0))
    else:
        shape = None if right is None or right.shape is None else list(right.shape)
        axis = -1 if transposed else -2
        terms = shape[axis] if shape is not None and len(shape) > 1 else None
        if not isinstance(terms, int):
            return None
        product = terms * bounds[0] * bounds[1]
    product *= abs(node.attributes.get_float("alpha", 1.0))
    beta = abs(node.attributes.get_float("beta", 1.0))
    return _accumulated(product, terms, [beta * bound for bound in bounds[2:]])


def _accumulated(product: float, terms: int, others: list[float]) -> float:
    """Return the bound of a sum of ``terms`` float32 products in any order, and of ``others``."""
    return (product * (1 + 2.0**-22 * terms) + sum(others)) * _SLACK


def _normalization(node: ir.Node, bounds: list[float]) -> float | None:
    scale, bias, mean, variance = map(constant, node.inputs[1:5])
    if scale is None or bias is None or mean is None or variance is None:
        return None
    if len(node.outputs) > 1 or node.attributes.get_int("training_mode", 0) != 0:
        return None
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    if not (variance + epsilon > 0).all():
        return None
    factor = np.abs(scale.astype(np.float64)) / np.sqrt(variance.astype(np.float64) + epsilon)
    worst = factor * (bounds[0] + np.abs(mean)) + np.abs(bias)
    return float(worst.max(initial=0)) * _SLACK


_RULES: dict[str, Rule] = {
    **dict.fromkeys(("Abs", "Neg", "Relu", "GlobalAveragePool", "GlobalMaxPool"), _same),
    **dict.fromkeys(("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"), _same),
    **dict.fromkeys(("AveragePool", "MaxPool"), _pool),
    **dict.fromkeys(("Clip", "Concat", "Max", "Min"), lambda _, bounds: max(bounds)),
    **dict.fromkeys(("Add", "Sub", "Sum"), lambda _, bounds: sum(bounds) * _SLACK),
    **dict.fromkeys(("HardSigmoid", "Sigmoid", "Softmax", "Tanh"), lambda *_: 1.0),
    "Mul": lambda _, bounds: bounds[0] * bounds[1] * _SLACK,
    "Div": _quotient,
    "Conv": _convolution,
    "MatMul": _matrix_product,
    "Gemm": _matrix_product,
    "BatchNormalization": _normalization,
}
