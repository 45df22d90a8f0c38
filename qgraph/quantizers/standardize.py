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
from functools import cache
from itertools import islice

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import UnsupportedError
from qgraph.exactness import Exactness, Verdict
from qgraph.graph.constants import constant_expression, constant_stream, freeze_inputs
from qgraph.graph.edit import Draft, Editor
from qgraph.graph.inference.walk import inferred
from qgraph.graph.opset.versions import raise_ir_version, require
from qgraph.graph.scopes import bodies, nodes_of
from qgraph.ops.composite import composite_of, write_out
from qgraph.proof.functions.lowering import Forms
from qgraph.quantizers.compare import Comparer
from qgraph.quantizers.dialects.dialect import Refusal, Site
from qgraph.quantizers.quantizer import Affine, Floating
from qgraph.quantizers.runtime_forms import Offer, magnitudes, offered, offers, with_relu
from qgraph.quantizers.sites import site_of, site_reader

logger = logging.getLogger(__name__)

_OPSET = 13
"""Opset with all operators of the forms of uniform quantizers, also per axis."""
_OPSET_OF_FLOATS = 24
"""Opset with the cast to E8M0, which gives powers of two."""


def standardize(model: ir.Model, *, bounded: bool = False) -> ir.Model:
    """Return a copy of ``model`` in which quantizers are written in standard operators.

    With ``bounded`` the copy is valid only for inputs that are numbers of a magnitude up to
    :data:`qgraph.execution.session.MODERATE`, and is faster.

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
    read = cache(site_reader())
    numbers = magnitudes(copy, read) if bounded else {}
    # All forms are chosen before the first is inserted: a site refers to the original graph.
    for draft in list(_choose(list(_sites(copy, read)), numbers, editor, Comparer(copy), limit)):
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


def _sites(model: ir.Model, read: Callable[[ir.Node], Site | Refusal | None]) -> Iterator[Site]:
    for body in bodies(model):
        for node in list(body):
            if not _is_custom(node, model):
                continue
            site = read(node)
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
    functions = [function.graph for function in model.functions.values()]
    for body in bodies(model):
        if not isinstance(body, ir.Graph) or body in functions:
            continue
        for node in list(body):
            array = _folded(node, model)
            if array is not None:
                _settle(node, array, editor)


def _folded(node: ir.Node, model: ir.Model) -> npt.NDArray[np.generic] | None:
    if _is_custom(node, model):
        if not node.inputs or constant_stream(node.inputs[0]) is None:
            return None
        site = site_of(node)
        return site.values if isinstance(site, Site) and _is_sane(site) else None
    is_reshaping = node.domain == "" and node.op_type != "Constant" and len(node.outputs) == 1
    return constant_expression(node.outputs[0]) if is_reshaping else None


def _settle(node: ir.Node, array: npt.NDArray[np.generic], editor: Editor) -> None:
    """Replace ``node`` by an initializer with the name of its output."""
    old, graph = node.outputs[0], node.graph
    if not isinstance(graph, ir.Graph):
        return
    name, old.name = old.name, editor.fresh(f"{old.name}_folded")
    new = ir.val(name, const_value=ir.Tensor(np.asarray(array, order="C"), name=name))
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
        starts = [*with_relu(site), site]
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

    firsts = offered([group[0] for group in alike.values()], numbers, editor, forms)
    pending = list(zip(alike.values(), map(enumerate, firsts), strict=True))
    others: list[Offer] = []
    while pending:
        rounds = [(*each, offer) for each in pending if (offer := next(each[1], None))]
        drafts = equal([offer for *_, (_, offer) in rounds])
        pending = []
        for (group, rest, (index, _)), draft in zip(rounds, drafts, strict=True):
            if draft is None:
                pending.append((group, rest))
                continue
            yield draft
            for site in group[1:]:
                repeated = _repeated(draft, site)
                if repeated is not None:
                    yield repeated
                else:
                    others += islice(offers(site, numbers, editor), index, index + 1)
    yield from filter(None, equal(others))


def _repeated(draft: Draft, site: Site) -> Draft | None:
    """Repeat a draft for an equal site; None if the draft fits its own site only.

    For constants, the occurring values are compared.
    """
    if site.weight is not None:
        return None
    starts = (*with_relu(site), site)
    return next(
        draft.again(start) for start in starts if len(start.nodes) == len(draft.region.nodes)
    )


def _is_equal(verdict: Verdict, *, but_nan: bool) -> bool:
    if but_nan and verdict.reaches(Exactness.VALUES):
        return not verdict.zero_sign_inputs
    return verdict.reaches(Exactness.BITS)
