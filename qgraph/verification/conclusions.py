"""Whether what a certificate says as a whole follows from its regions and from the models."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from qgraph.certification.certificate import (
    AFTER_DIFFERENCE,
    AS_WRITTEN,
    BIAS_LAST,
    EQUAL_OPERATORS,
    NO_NAN,
    NOT_FED,
    OPEN_BOUNDS,
    SUMMED_ALIKE,
    WHOLE_SUMS,
    ZERO_SIGNS,
    ProofVerdict,
)
from qgraph.errors import ModelError
from qgraph.exactness import Exactness, Method
from qgraph.matching.normal.normalise import NORMAL_FORM, NormalForm, normalise
from qgraph.matching.plain import Plain
from qgraph.matching.products import has_packed_products
from qgraph.model import Model
from qgraph.verification.sides import Pair, Side
from qgraph.verification.statements import Document, Statement, fails


def normal_form(document: Document, sides: tuple[Plain, Plain]) -> NormalForm | None:
    """Return the models in the normal form that a certificate names; None where it names none.

    Raises:
        EquivalenceError: it names another one than there is.
    """
    noted = [note for note in document.notes if note.startswith(NORMAL_FORM)]
    if not noted:
        return None
    for level in (Exactness.BITS, Exactness.VALUES):
        form = normalise(sides, level)
        if form is not None and noted == [form.note]:
            return form
    raise fails("the models have no normal form as it describes it")


def check_verdict(document: Document, form: NormalForm | None) -> None:
    """Check that the verdict and the level are those of the worst region and the normal form.

    Raises:
        EquivalenceError: they are not.
    """
    statements = document.statements
    verdicts = {statement.verdict for statement in statements}
    order = ProofVerdict.DIFFERENT, ProofVerdict.UNDECIDED
    worst = next((verdict for verdict in order if verdict in verdicts), ProofVerdict.PROVED)
    if document.verdict is not worst:
        raise fails(f"its regions add up to {worst}, but its verdict is {document.verdict}")
    rungs = [statement.exactness for statement in statements]
    known = [rung for rung in rungs if rung is not None]
    kept = Exactness.BITS if form is None else form.exactness
    lowest = None if len(known) < len(rungs) else min([*known, kept])
    if document.exactness is not lowest:
        raise fails(f"its regions are equal in {lowest}, but it states {document.exactness}")
    proved = {s.exactness for s in statements if s.verdict is ProofVerdict.PROVED}
    short = {s.exactness for s in statements if s.verdict is not ProofVerdict.PROVED}
    if Exactness.VALUES in proved & short:
        raise fails("equal values are enough for one of its regions, and not for another one")


def check_conditions(
    document: Document,
    sides: tuple[Side, Side],
    models: Sequence[Model],
    form: NormalForm | None,
) -> None:
    """See that no condition is left out; more of them than needed do no harm.

    Raises:
        EquivalenceError: one is missing.
    """
    statements = document.statements
    frozen = max(side.plain.frozen for side in sides)
    nan = sum(statement.nan_differs for statement in statements)
    signs = sum(statement.zero_sign_inputs > 0 for statement in statements)
    needed = {
        AS_WRITTEN: True,
        NOT_FED.format(frozen): frozen,
        NO_NAN.format(nan): nan,
        ZERO_SIGNS.format(signs): signs,
        AFTER_DIFFERENCE: document.verdict is ProofVerdict.DIFFERENT,
        EQUAL_OPERATORS: any(s.method is Method.CONGRUENCE for s in statements),
        BIAS_LAST: any(side.plain.bias_sums for side in sides),
        OPEN_BOUNDS: sides[0].plain.open_clips != sides[1].plain.open_clips,
        WHOLE_SUMS: any(side.plain.has_common_sums for side in sides),
        SUMMED_ALIKE: any(has_packed_products(model.ir) for model in models),
        **dict.fromkeys(() if form is None else form.conditions, True),
    }
    for condition, is_needed in needed.items():
        if is_needed and condition not in document.conditions:
            raise fails(f"it leaves out the condition {condition!r}")


def adds_bias(sides: tuple[Side, Side], parts: Sequence[Sequence[ir.Node]]) -> bool:
    """Return whether nodes of a region add the bias of a sum."""
    return any(
        value.name in side.plain.bias_sums
        for side, nodes in zip(sides, parts, strict=True)
        for node in nodes
        for value in node.outputs
    )


def check_bias(
    statement: Statement, sides: tuple[Side, Side], parts: Sequence[Sequence[ir.Node]]
) -> None:
    """See that a region that adds the bias of a sum states the condition under which it may.

    Raises:
        EquivalenceError: it does not.
    """
    if adds_bias(sides, parts) and BIAS_LAST not in statement.conditions:
        raise statement.fails(f"it leaves out the condition {BIAS_LAST!r}")


def interface(document: Document, sides: tuple[Side, Side]) -> tuple[list[Pair], list[Pair]]:
    """Return the pairs of inputs and of outputs, by name or else by position.

    Raises:
        ModelError: the models have different numbers of them.
        EquivalenceError: the certificate does not say that they are paired by position.
    """
    graphs = [side.plain.graph for side in sides]
    free = [[value for value in graph.inputs if not value.is_initializer()] for graph in graphs]
    inputs = _paired(document, "input", *free)
    defaults = {str(v.name): v for v in graphs[1].inputs if v.is_initializer()}
    for value in graphs[0].inputs:
        other = defaults.get(str(value.name))
        if value.is_initializer() and other is not None and _same_default(value, other):
            inputs.append((value, other))
    return inputs, _paired(document, "output", *(list(graph.outputs) for graph in graphs))


def _same_default(a: ir.Value, b: ir.Value) -> bool:
    if a.const_value is None or b.const_value is None:
        return False
    one, other = a.const_value.numpy(), b.const_value.numpy()
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def _paired(
    document: Document, kind: str, ours: Sequence[ir.Value], theirs: Sequence[ir.Value]
) -> list[Pair]:
    named = {str(value.name): value for value in theirs}
    names = {str(value.name) for value in ours}
    if len(names) == len(ours) == len(theirs) and names == set(named):
        return [(value, named[str(value.name)]) for value in ours]
    if len(ours) != len(theirs):
        raise ModelError(
            f"The models have {len(ours)} and {len(theirs)} {kind}s, expected as many. Name the "
            "models that were proved."
        )
    pairs = list(zip(ours, theirs, strict=True))
    told = ", ".join(f"{a.name!r} with {b.name!r}" for a, b in pairs if a.name != b.name)
    if told and not any(
        note == f"{kind}s are matched by position: {told}" for note in document.notes
    ):
        raise fails(f"it does not say that {kind}s are matched by position: {told}")
    return pairs
