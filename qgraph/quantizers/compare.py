"""Compare a draft with the nodes that it would replace, by the definitions of their operators.

Of quantizers that differ only in their scale, drafts are written and compared once, with an open
scale.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import count, islice
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError, UnsupportedError
from qgraph.exactness import Exactness, Method, Verdict, Witness
from qgraph.graph.constants import array_of
from qgraph.graph.edit import HALF_TYPES, Draft, Region
from qgraph.graph.opset.versions import only_float_type
from qgraph.graph.schema import element_type
from qgraph.numerics import Array, Float32
from qgraph.numerics.values import LAST_BITS, OpenScale, ScaleReadError, compare_values
from qgraph.ops.dispatch import evaluate
from qgraph.proof.functions.decide import PairOutcome, decide_pairs, undecided
from qgraph.proof.functions.expression import Builder, Expr
from qgraph.proof.functions.lowering import Form, Forms, lower
from qgraph.proof.functions.pair import (
    AnyScale,
    FunctionPair,
    Key,
    OpenPair,
    open_scale,
    scales_of,
    single_scale,
)
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.quantizer import Affine, Ranged, arrays_of
from qgraph.reasons import DO_NOT_FIT, NOT_COMPUTED, NOT_KNOWN, TYPE_NOT_PROVED, Undecidable
from qgraph.records import replace

_SAME_CODE = 2.0**-4
"""Largest difference of constants of one code, in steps: 16-bit codes leave no more."""


class Comparer:
    """Compares sites of one model with drafts; equal pairs of functions are decided once.

    Args:
        model: the model; if it has only one floating type, data of unknown type has this type.
    """

    def __init__(self, model: ir.Model) -> None:
        self._decided: dict[Key, PairOutcome] = {}
        self._model = model

    @cached_property
    def _float(self) -> ir.DataType | None:
        return only_float_type(self._model)

    def type_of(self, data: ir.Value) -> ir.DataType | None:
        """Return the type of data: the stated or implied one, or the model's only float type."""
        return element_type(data, self._model.opset_imports) or self._float

    def compare(self, site: Site, draft: Draft) -> Verdict:
        """Return the verdict on ``draft`` and ``site``; see :meth:`compare_all`."""
        return self.compare_all([(site, draft)])[0]

    def compare_all(
        self, drafts: Sequence[tuple[Site, Draft]], *, at_least: Exactness | None = None
    ) -> list[Verdict]:
        """Return the verdict on each draft and its site.

        The values of a constant input are compared. Otherwise, both sides are lowered to primitives
        and compared over every float32 input, without the parameters that a reader derived. Pairs
        of one form are decided together. For 16-bit data, all values are tried. A draft that is not
        equal in values may stay undecided if a level is required with ``at_least``.
        """
        lowering = _Lowering()
        pairs = [self._lower(site, draft, lowering) for site, draft in drafts]
        outcomes = decide_pairs(pairs, self._decided, at_least=at_least, keeps_runs=False)
        return [_counted(outcome) for outcome in outcomes]

    def _lower(self, site: Site, draft: Draft, lowering: _Lowering) -> FunctionPair | PairOutcome:
        if draft.promise is not None:
            return PairOutcome(draft.promise)
        try:
            if site.weight is not None:
                return PairOutcome(_compare_constant(site, draft))
            dtype = self.type_of(site.x)
            if dtype is None:
                text = "the type of its data is unknown; run shape inference first"
                return undecided(NOT_KNOWN(text))
            if dtype in HALF_TYPES:
                return _enumerate(site, draft.apart(), dtype)
            if dtype is not ir.DataType.FLOAT:
                text = f"its data is {dtype.name}; only types of 16 and 32 bits can be compared"
                return undecided(TYPE_NOT_PROVED(text))
            return lowering.of(site, draft)
        except Undecidable as undecidable:
            return undecided(undecidable.reason)
        except (OperatorError, UnsupportedError) as error:
            return undecided(NOT_COMPUTED(str(error)))


def _counted(outcome: PairOutcome) -> Verdict:
    """Return the verdict; it is undecided if differing inputs were not counted."""
    verdict = outcome.verdict
    if outcome.finding is None or outcome.is_counted:
        return verdict
    return replace(verdict, exactness=None)


def _enumerate(site: Site, draft: Draft, dtype: ir.DataType) -> PairOutcome:
    """Compare on all values of a 16-bit type, in every channel, with the operators' kernels."""
    from qgraph.proof.functions.enumeration import NodeSegment, enumerate_values, free_axis

    parts = [NodeSegment(region.nodes, region.x, region.y) for region in (site, draft)]
    runs = [partial(evaluate, part.nodes, part.x, part.y) for part in parts]
    return enumerate_values(dtype, runs, *free_axis(parts, site.shape))


class _Lowering:
    """Lowers pairs of regions with one builder; pairs of one form are lowered once."""

    def __init__(self) -> None:
        self._builder = Builder()
        self._forms = Forms()
        self._scales = AnyScale(self._builder, self._forms)
        self._pairs: dict[Form, FunctionPair] = {}
        self._open: dict[Draft, OpenPair | None] = {}

    def of(self, site: Site, draft: Draft) -> FunctionPair:
        """Return both sides as expressions; Undecidable if one side cannot be lowered."""
        if draft.template is not None and draft.scale is not None:
            opened = self._opened(draft.template)
            if opened is not None:
                return opened.at(draft.scale)
        draft = draft.apart()
        own, new = (self._forms.of_region(r.nodes, r.x, r.y) for r in (site, draft))
        form = None if own is None or new is None else (own, new, site.shape)
        if form is not None and form in self._pairs:
            return self._pairs[form]
        reference, candidate = (
            lower(r.nodes, r.x, r.y, site.shape, self._builder, one=self._scales.lower)
            for r in (site, draft)
        )
        pair = FunctionPair(reference, candidate, site.shape)
        if form is not None:
            self._pairs[form] = pair
        return pair

    def _opened(self, template: Draft) -> OpenPair | None:
        """Return both sides of a draft with an open scale; None if they must be lowered alone."""
        if template not in self._open:
            self._open[template] = None
            site, scale = template.region, open_scale()
            own = dict.fromkeys(scales_of(site), scale)
            numbers: list[tuple[Expr, Any]] = [(scale, OpenScale())]
            new = {}
            for value in template.open:
                number: Any = template.constants[value]
                new[value] = scale if number.is_scale else open_scale()
                if not number.is_scale:
                    numbers.append((new[value], number))
            if isinstance(site, Site):
                with suppress(Undecidable, OperatorError, UnsupportedError, ValueError):
                    reference, candidate = (
                        lower(r.nodes, r.x, r.y, site.shape, self._builder, given=given)
                        for r, given in ((site, own), (template, new))
                    )
                    pair = OpenPair((reference, candidate), numbers, site.shape, self._builder)
                    self._open[template] = pair if pair.stays_open else None
        return self._open[template]


def _compare_constant(site: Site, draft: Draft) -> Verdict:
    weight, reference = np.asarray(site.weight), np.asarray(site.values)
    candidate = evaluate(draft.nodes, draft.x, draft.y, weight)
    for what, old, new in (
        ("shape", [*reference.shape], [*candidate.shape]),
        ("type", reference.dtype, candidate.dtype),
    ):
        if old != new:
            return Verdict(reason=DO_NOT_FIT(f"{what} {old} became {new}"))
    verdict = compare_values(reference, candidate)
    witness = None
    if verdict.differing and verdict.index is not None:
        # Parameters may enlarge the constant by broadcasting.
        x = weight if weight.size == reference.size else np.broadcast_to(weight, reference.shape)
        at = (array.reshape(-1)[verdict.index] for array in (x, reference, candidate))
        witness = Witness(*map(float, at))
    level, zero_signs = Exactness.of(verdict), verdict.zero_sign
    if verdict.differing and isinstance(meaning := site.quantizer, Ranged):
        level = _level_in_range(meaning, reference, candidate)
    if level is Exactness.BITS and (
        zero_signs := _open_zeros(site, weight) + _open_zeros(draft, weight)
    ):
        level = Exactness.VALUES
    return Verdict(level, Method.CONSTANT, verdict.differing, zero_signs, witness)


def _level_in_range(meaning: Ranged, reference: Array, candidate: Array) -> Exactness:
    """Return the level of differing values of a FakeQuantize.

    Its formula rounds each value like the ends of its range: also where few levels are used, all of
    them close to 0.
    """
    low, high = (end.astype(np.float64) for end in (meaning.output_low, meaning.output_high))
    with np.errstate(all="ignore"):
        gaps = np.abs(reference.astype(np.float64) - candidate)
        step = np.abs(high - low) / (meaning.levels - 1)
        rounding = np.maximum(np.abs(low), np.abs(high)) * LAST_BITS
        is_same = (gaps <= np.minimum(rounding, step * _SAME_CODE)).all()
    return Exactness.CODES if is_same else Exactness.DIFFERENT


def _open_zeros(region: Site | Draft, data: Array) -> int:
    """Return the number of results that depend on the sign of zero of Max, Min, Relu or Clip.

    ONNX leaves this sign open for operands -0 and +0, and runtimes differ.
    """
    from qgraph.ops.known_values import CHOOSING, meets_both_zeros

    number = 0
    for index, node in enumerate(region.nodes):
        if node.domain or node.op_type not in CHOOSING:
            continue
        before, after, chosen = region.nodes[:index], region.nodes[index + 1 :], node.outputs[0]
        operands = {
            value: evaluate(before, region.x, value, data) if constant is None else constant
            for value in node.inputs
            if value is not None
            for constant in [array_of(value)]
        }
        if not meets_both_zeros(node, operands):
            continue
        result = evaluate((*before, node), region.x, chosen, data)
        try:
            sides = [
                evaluate(after, chosen, region.y, np.where(result == 0, sign * result, result))
                for sign in (1, -1)
            ]
            verdict = compare_values(*sides)
            number += verdict.zero_sign + verdict.differing
        except UnsupportedError:  # nodes after it take other values too
            number += int((result == 0).sum())
    return number


Spell = Callable[[Site], Iterable[Draft]]
"""Writes the drafts of a site."""


def opened(site: Site, forms: Forms) -> Hashable:
    """Return the form of a site, equal for all scales; None if it has no single float32 scale."""
    meaning = site.meaning
    if not isinstance(meaning, Affine) or meaning.decoding is not None or site.weight is not None:
        return None
    nodes = site.form
    if nodes is None:
        scale, marks = single_scale(site.nodes)
        if scale is None or meaning.scale.shape or scale.tobytes() != meaning.scale.tobytes():
            return None
        nodes = forms.of_region(site.nodes, site.x, site.y, marks)
    if nodes is None:
        return None
    arrays = (meaning.zero_point, meaning.lo, meaning.hi)
    others = [(array.shape, array.tobytes()) for array in arrays]
    kind = site.dialect, meaning.rounding, meaning.recipe
    return nodes, type_key(site), kind, *others


def type_key(site: Site) -> Hashable:
    """Return what the drafts of a site depend on of the types and the shape of its data.

    If all parameters are scalars, only these sizes matter: 0, 1, and unknown ones.
    """
    *types, dims = site.types
    shapes: list[Sequence[object] | None] = [site.shape, dims]
    is_scalar = all(array.ndim == 0 for array in arrays_of(site.quantizer))
    if is_scalar and all(node.op_type != "Reshape" for node in site.nodes):
        shapes = [sizes and [_few(size) for size in sizes] for sizes in shapes]
    return *types, *(sizes if sizes is None else tuple(sizes) for sizes in shapes)


def _few(size: object) -> object:
    return min(size, 2) if isinstance(size, int) else size


def spelled_once(
    sites: Sequence[tuple[Site, Iterator[Draft]]], forms: Forms, spell: Spell
) -> list[Iterator[Draft]]:
    """Return the drafts of sites; those that do not depend on the scale are written once."""
    alike: dict[Hashable, list[tuple[int, Float32]]] = {}
    for index, (site, _) in enumerate(sites):
        form, meaning = opened(site, forms), site.meaning
        if form is not None and isinstance(meaning, Affine):
            alike.setdefault(form, []).append((index, meaning.scale))
    drafts = [each for _, each in sites]
    for group in alike.values():
        if len(group) > 1:
            first = with_open_scale(sites[group[0][0]][0])
            shared = OpenDrafts(map(returning, spell(first)))
            for index, scale in group:
                drafts[index] = _filled(shared, sites[index][0], scale, drafts[index])
    return drafts


def with_open_scale(site: Site) -> Site:
    """Return a site that has a form, with an open scale in place of its own."""
    scale: Any = OpenScale()
    meaning: Any = site.meaning
    scales = scales_of(site)
    return replace(
        site,
        meaning=replace(meaning, scale=scale),
        constants=lambda value: scale if value in scales else array_of(value),
    )


Make = Callable[[], Draft]
"""Writes a draft."""


def returning(draft: Draft) -> Make:
    """Return what gives a draft that is written already."""
    return lambda: draft


class OpenDrafts:
    """The drafts of a site with an open scale, and none for those that depend on its value.

    Args:
        makers: write the drafts, one after the other.
    """

    def __init__(self, makers: Iterator[Make]) -> None:
        self._makers = makers
        self._drafts: list[Draft | None] = []

    def at(self, index: int, region: Region, scale: Float32) -> Draft | None:
        """Return a draft for a region that is equal up to its scale; None if that matters."""
        while len(self._drafts) <= index:
            draft = None
            with suppress(ScaleReadError, StopIteration):
                draft = next(self._makers)()
            self._drafts.append(draft)
        template = self._drafts[index]
        return None if template is None else template.with_scale(region, scale)


def _filled(
    shared: OpenDrafts, site: Site, scale: Float32, own: Iterator[Draft]
) -> Iterator[Draft]:
    """Yield shared drafts of a site up to the first that depends on the scale, then its own."""
    for index in count():
        draft = shared.at(index, site, scale)
        if draft is None:
            yield from islice(own, index, None)
            return
        yield draft
