"""Convert quantizers of custom domains to standard operators, for a single ONNX Runtime session.

Every such quantizer is compared, over all inputs, with forms that ONNX Runtime computes fast. It is
replaced by the first form that is equal bit for bit, including the sign of zero, and NaN unless its
input cannot be NaN. Quantizers of constants, and operators that only reshape constants, are
computed once by the kernels of qgraph.

Forms, the fastest first:

* A pair of QuantizeLinear and DequantizeLinear. It reads or writes the data twice, and codes of a
  quarter of its size. It loses NaN, which an additional Max and Min keep, and gives +0 for small
  negative values.
* Float operators, which read and write the data once each, and keep NaN and -0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import UnsupportedError
from qgraph.exactness import Exactness, Verdict
from qgraph.graph.constants import constant_expression, constant_stream, freeze_inputs
from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.graph.inference.walk import inferred
from qgraph.graph.opset.versions import raise_ir_version, require
from qgraph.graph.scopes import bodies, nodes_of
from qgraph.numerics.rounding import Rounding
from qgraph.ops.composite import composite_of, write_out
from qgraph.ops.operator import operator_of
from qgraph.ops.steps import round_to_integer
from qgraph.proof.functions.lowering import Forms
from qgraph.quantizers.compare import Comparer
from qgraph.quantizers.dialects.dialect import Refusal, Site
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
from qgraph.quantizers.magnitudes import magnitudes
from qgraph.quantizers.quantizer import Affine, Floating, Ranged
from qgraph.quantizers.sites import site_of

Make = Callable[[], Draft]
"""Writes a draft."""


def runtime_forms(site: Site, editor: Editor, *, numbers: bool) -> Iterator[Make]:
    """Yield the forms of ``site``, the fastest first, its definition last.

    Other nodes may precede the quantizer in ``site``; its forms omit them. Equal quantizers have
    the same forms, in the same order.

    Args:
        site: the quantizer.
        editor: makes the drafts.
        numbers: also yield forms that lose NaN.
    """
    match site.quantizer:
        case Affine() as meaning:
            for keeps_nan in (False, True) if numbers else (True,):
                yield from _pair(site, editor, meaning, keeps_nan=keeps_nan)
            yield from _affine_chains(site, editor, meaning)
        case Ranged() as meaning:
            yield from _ranged_chains(site, editor, meaning)
        case Floating():
            yield from map(_returning, pairs(site, editor))
    if all(operator_of(node) is not None for node in site.nodes):
        yield from map(_returning, by_definition(site, editor))


def _returning(draft: Draft) -> Make:
    return lambda: draft


def _pair(site: Site, editor: Editor, meaning: Affine, *, keeps_nan: bool) -> Iterator[Make]:
    """Yield the pair, or ``min(max(x, top), pair)``, which is equal and keeps NaN."""
    scale, zero = meaning.scale, np.zeros_like(meaning.scale)
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

    for splits in (False, True):
        for adds in [False] if low.any() else [False, True]:
            yield partial(make, adds=adds, splits=splits)


logger = logging.getLogger(__name__)

_OPSET = 13
"""Opset with all operators of the forms of uniform quantizers, also per axis."""
_OPSET_OF_FLOATS = 24
"""Opset with the cast to E8M0, which gives powers of two."""

Offer = tuple[Site, Make]


def standardize(model: ir.Model, *, bounded: bool = False) -> ir.Model:
    """Return a copy of ``model`` in which quantizers are written in standard operators.

    With ``bounded`` the copy is valid only for inputs that are numbers of a magnitude up to
    :data:`qgraph.execution.conformant.MODERATE`, and is faster.

    All values of the main graph are kept under their names, even unused ones. Initializers that are
    also inputs are constants in the copy. Quantizers without an equal form are unchanged. A model
    without quantizers of custom domains is returned itself.
    """
    nodes = [node for body in bodies(model) for node in body]
    if not any(_is_custom(node, model) or _is_graph(node, model) for node in nodes):
        return model
    copy = model.clone()
    freeze_inputs(copy)
    graphs = [node for node in nodes_of(copy.graph) if _is_graph(node, copy)]
    with inferred(copy, [value for node in graphs for value in node.inputs if value]):
        write_out(copy, graphs)
    editor = Editor(copy)
    _fold(copy, editor)
    _raise_opset(copy)
    editor.learn()
    limit = copy.opset_imports.get("", 0)
    numbers = magnitudes(copy) if bounded else {}
    # All forms are chosen before the first is inserted: a site refers to the original graph.
    for draft in list(_choose(list(_sites(copy)), numbers, editor, Comparer(copy), limit)):
        draft.commit(sweep=False)
    raise_ir_version(copy)
    return copy


def _is_custom(node: ir.Node, model: ir.Model) -> bool:
    """Return whether ``node`` is a quantizer that ONNX Runtime does not implement."""
    if node.op_identifier() in model.functions:
        return False
    # Versions are a matter of the reader; here only the name counts.
    return node.op_type in _NAMES and (node.domain not in _THEIRS or node.op_type == "FakeQuantize")


def _is_graph(node: ir.Node, model: ir.Model) -> bool:
    """Return whether ONNX Runtime lacks ``node``, and a graph of standard operators defines it."""
    is_call = node.op_identifier() in model.functions
    return not is_call and node.domain not in _THEIRS and composite_of(node) is not None


_NAMES = frozenset({"Quant", "IntQuant", "BipolarQuant", "Trunc", "FloatQuant", "FakeQuantize"})
_THEIRS = frozenset({"", "com.microsoft"})


def _sites(model: ir.Model) -> Iterator[Site]:
    for body in bodies(model):
        for node in list(body):
            if not _is_custom(node, model):
                continue
            site = site_of(node)
            if isinstance(site, Site) and _is_sane(site):
                yield site
            elif isinstance(site, Refusal):
                logger.info("computed by its kernel: %s", site.reason)


def _is_sane(site: Site) -> bool:
    """Return whether the kernel runs without a warning."""
    if not isinstance(site.quantizer, Affine | Floating):
        return True
    scale = site.quantizer.scale
    return bool((np.isfinite(scale) & (scale != 0)).all())


def _fold(model: ir.Model, editor: Editor) -> None:
    """Replace quantizers and reshaping operators on constants by constants."""
    for body in bodies(model):
        if not isinstance(body, ir.Graph) or body in _function_graphs(model):
            continue
        for node in list(body):
            array = _folded(node, model)
            if array is not None:
                _settle(node, array, editor)


def _function_graphs(model: ir.Model) -> list[ir.Graph]:
    return [function.graph for function in model.functions.values()]


def _folded(node: ir.Node, model: ir.Model) -> npt.NDArray[np.generic] | None:
    if _is_custom(node, model):
        if not node.inputs or constant_stream(node.inputs[0]) is None:
            return None
        site = site_of(node)
        sane = isinstance(site, Site) and _is_sane(site)
        return site.values if isinstance(site, Site) and sane else None
    is_reshaping = node.domain == "" and node.op_type != "Constant" and len(node.outputs) == 1
    return constant_expression(node.outputs[0]) if is_reshaping else None


def _settle(node: ir.Node, array: npt.NDArray[np.generic], editor: Editor) -> None:
    """Replace ``node`` by an initializer with the name of its output."""
    old, graph = node.outputs[0], node.graph
    if not isinstance(graph, ir.Graph):
        return
    name = old.name
    old.name = editor.fresh(f"{name}_folded")
    tensor = ir.Tensor(np.asarray(array, order="C"), name=name)
    new = ir.val(name, const_value=tensor)
    graph.register_initializer(new)
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _raise_opset(model: ir.Model) -> None:
    """Raise the opset as far as the forms need, if that changes nothing else."""
    nodes = (node for body in bodies(model) for node in body)
    floats = any(node.op_type == "FloatQuant" and _is_custom(node, model) for node in nodes)
    for opset in (_OPSET_OF_FLOATS, _OPSET) if floats else (_OPSET,):
        try:
            require(model, opset)
        except UnsupportedError as error:
            logger.info("opset %d cannot be used: %s", opset, error)
        else:
            return


def _choose(
    sites: Iterable[Site],
    numbers: Container[ir.Value],
    editor: Editor,
    comparer: Comparer,
    limit: int,
) -> Iterator[Draft]:
    """Yield for each site the first form that is equal.

    Among equal sites, all forms are tried for one only. The others reuse its draft. If a draft fits
    one site only, the same form is drafted for the others, and only this form is compared.
    """
    forms, alike = Forms(), dict[object, list[Site]]()
    for site in sites:
        starts = [*_with_relu(site), site]
        keys = [forms.of_region(start.nodes, start.x, start.y) for start in starts]
        key = (*keys, site.shape, *(start.x in numbers for start in starts))
        alike.setdefault(site.y if None in keys else key, []).append(site)

    def equal(offers: Sequence[Offer]) -> list[Draft | None]:
        drafted = [(site, make()) for site, make in offers]
        tried = [each for each in drafted if each[1].opset <= limit]
        verdicts = iter(comparer.compare_all(tried, at_least=Exactness.VALUES))
        drafts: list[Draft | None] = []
        for site, draft in drafted:
            verdict = next(verdicts) if draft.opset <= limit else None
            is_equal = verdict is not None and _is_equal(verdict, but_nan=site.x in numbers)
            drafts.append(draft if is_equal else None)
            if not is_equal:
                logger.debug("%s of %r: %s", draft.spelling, site.y.name, verdict)
        return drafts

    pending = [(group, enumerate(_offers(group[0], numbers, editor))) for group in alike.values()]
    others: list[Offer] = []
    while pending:
        rounds = [(*each, offer) for each in pending if (offer := next(each[1], None))]
        drafts = equal([offer for *_, (_, offer) in rounds])
        pending = []
        for (group, offers, (index, _)), draft in zip(rounds, drafts, strict=True):
            if draft is None:
                pending.append((group, offers))
                continue
            yield draft
            for site in group[1:]:
                repeated = _repeated(draft, site)
                if repeated is not None:
                    yield repeated
                else:
                    others += islice(_offers(site, numbers, editor), index, index + 1)
    yield from filter(None, equal(others))


def _repeated(draft: Draft, site: Site) -> Draft | None:
    """Repeat a draft for an equal site; None if the draft fits its own site only.

    For constants, the occurring values are compared.
    """
    if site.weight is not None:
        return None
    starts = (*_with_relu(site), site)
    return next(
        draft.again(start) for start in starts if len(start.nodes) == len(draft.region.nodes)
    )


def _is_equal(verdict: Verdict, *, but_nan: bool) -> bool:
    if but_nan and verdict.reaches(Exactness.VALUES):
        return not verdict.zero_sign_inputs
    return verdict.reaches(Exactness.BITS)


def _offers(site: Site, numbers: Container[ir.Value], editor: Editor) -> Iterator[Offer]:
    for start in (*_with_relu(site), site):
        for make in runtime_forms(start, editor, numbers=start.x in numbers):
            yield start, make


def _with_relu(site: Site) -> Iterator[Site]:
    """Yield the site extended by a Relu before it, which an unsigned quantizer makes redundant."""
    relu = site.x.producer()
    if not isinstance(site.quantizer, Affine | Ranged) or relu is None or relu.op_type != "Relu":
        return
    x = relu.inputs[0]
    if x is not None and relu.domain == "" and relu.graph is site.root.graph:
        yield replace(site, x=x, nodes=(relu, *site.nodes))
