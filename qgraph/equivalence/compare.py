"""Comparing a draft with the nodes it would replace, both by their operators' definitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.dialects.dialect import Site
from qgraph.equivalence.exhaustive import enumerate_inputs, is_half
from qgraph.errors import OperatorError, UnsupportedError
from qgraph.exactness import Exactness, Method, Verdict, Witness
from qgraph.graph.edit import Draft
from qgraph.graph.element_type import element_type
from qgraph.numerics.values import compare_values
from qgraph.ops.evaluate import evaluate
from qgraph.opsets.versions import only_float_type
from qgraph.proof.batch import decide_all
from qgraph.proof.cone import Shape, lower
from qgraph.proof.engine import Finding
from qgraph.proof.expression import Builder, Expr, Undecidable, text
from qgraph.proof.forms import Form, Forms
from qgraph.proof.ladder import grade

Array = npt.NDArray[Any]


class Comparer:
    """Compares sites of one model with drafts; equal pairs of expressions are decided once.

    Args:
        model: the model; where it holds one floating type only, data of unknown type has that one.
    """

    def __init__(self, model: ir.Model) -> None:
        self._decided: dict[Form, Verdict] = {}
        self._model = model

    @cached_property
    def _float(self) -> ir.DataType | None:
        return only_float_type(self._model)

    def compare(self, site: Site, draft: Draft) -> Verdict:
        """Return how equal ``draft`` is to ``site``; see :meth:`compare_all`."""
        return self.compare_all([(site, draft)])[0]

    def compare_all(
        self, drafts: Sequence[tuple[Site, Draft]], *, at_least: Exactness | None = None
    ) -> list[Verdict]:
        """Return how equal each draft is to its site.

        For a constant input the values that occur are compared. Otherwise both sides are lowered
        to primitives and decided for every float32 input; what the reader took the site for plays
        no part. Pairs of one form are decided together. Data of 16 bits is tried value by value.

        Args:
            drafts: with their sites.
            at_least: the rung that is wanted; how far below it a draft is need not be found out.
        """
        soon = at_least is not None and at_least >= Exactness.VALUES
        lowering = _Lowering()
        outcomes = [self._lower(site, draft, lowering) for site, draft in drafts]
        pending: dict[Form, _Cone] = {o.key: o for o in outcomes if isinstance(o, _Cone)}
        cones = [cone for key, cone in pending.items() if key not in self._decided]
        pairs = [(cone.reference, cone.candidate, cone.shape) for cone in cones]
        below: dict[Form, Verdict] = {}
        for cone, finding in zip(cones, decide_all(pairs, until_difference=soon), strict=True):
            if soon and (finding.differing or finding.infinity_differs):
                below[cone.key] = _undecided("values differ")
            else:
                self._decided[cone.key] = _verdict(finding, grade(finding, cone.reference))
        known = below | self._decided
        return [known[o.key] if isinstance(o, _Cone) else o for o in outcomes]

    def _lower(self, site: Site, draft: Draft, lowering: _Lowering) -> _Cone | Verdict:
        if draft.promise is not None:
            return draft.promise
        if site.weight is not None:
            return _compare_constant(site, draft)
        dtype = element_type(site.x, self._model.opset_imports) or self._float
        if dtype is None:
            return _undecided("the type of its data is not known; run shape inference first")
        if is_half(dtype):
            return enumerate_inputs(site, draft, dtype)
        if dtype is not ir.DataType.FLOAT:
            return _undecided(f"its data is {dtype.name}; only 16 and 32 bits are compared")
        try:
            return lowering.of(site, draft)
        except Undecidable as undecidable:
            return _undecided(str(undecidable))


@dataclass(frozen=True)
class _Cone:
    """A pair of expressions to decide.

    Attributes:
        key: equal only for pairs that are the same.
        reference, candidate: both sides.
        shape: of the data.
    """

    key: Form
    reference: Expr
    candidate: Expr
    shape: Shape


class _Lowering:
    """Lowers pairs of regions with one builder, those of one form once."""

    def __init__(self) -> None:
        self._builder = Builder()
        self._forms = Forms()
        self._cones: dict[Form, _Cone] = {}

    def of(self, site: Site, draft: Draft) -> _Cone:
        """Return both sides as expressions.

        Raises:
            Undecidable: there is no expression for one of them.
        """
        own, new = (self._forms.of_region(r.nodes, r.x, r.y) for r in (site, draft))
        key = None if own is None or new is None else (own, new, site.shape)
        if key is not None and key in self._cones:
            return self._cones[key]
        reference = lower(site.nodes, site.x, site.y, site.shape, self._builder)
        candidate = lower(draft.nodes, draft.x, draft.y, site.shape, self._builder)
        if key is None:
            written = text((reference, candidate)), site.shape
            return _Cone(written, reference, candidate, site.shape)
        self._cones[key] = _Cone(key, reference, candidate, site.shape)
        return self._cones[key]


def _undecided(reason: str) -> Verdict:
    return Verdict(None, Method.NONE, reason=reason)


def _verdict(finding: Finding, rung: Exactness | None) -> Verdict:
    remarks = [] if finding.undecided is None else [finding.undecided]
    if finding.nan_differs:
        remarks.append("NaN is not kept")
    if finding.infinity_differs:
        remarks.append("infinities differ")
    return Verdict(
        rung,
        Method.INTERVALS if rung is not None else Method.NONE,
        differing_inputs=finding.differing,
        zero_sign_inputs=finding.zero_sign,
        witness=finding.witness,
        reason="; ".join(remarks) or None,
    )


def _compare_constant(site: Site, draft: Draft) -> Verdict:
    try:
        weight, reference = np.asarray(site.weight), np.asarray(site.values)
        candidate = evaluate(draft.nodes, draft.x, draft.y, weight)
    except (OperatorError, UnsupportedError) as error:
        return _undecided(str(error))
    if reference.shape != candidate.shape:
        return _undecided(f"shape {list(reference.shape)} became {list(candidate.shape)}")
    found = compare_values(reference, candidate)
    witness = None
    if found.differing and found.place is not None:
        at = (array.reshape(-1)[found.place] for array in (weight, reference, candidate))
        witness = Witness(*map(float, at))
    return Verdict(found.rung, Method.CONSTANT, found.differing, found.zero_sign, witness)
