"""Checking a certificate: what it says about two models, without the search that found it.

Each region is found again by the names of its values, has to consist of the nodes that are named,
and is evaluated on the boxes or cases that the certificate lists, which have to cover all inputs.
Then the outputs have to follow from the regions, and every region that differs has to be one on
which the outputs rest.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from qgraph.certification.certificate import ProofVerdict
from qgraph.errors import EquivalenceError, ModelError, UnsupportedError
from qgraph.exactness import Method
from qgraph.matching.plain import plain
from qgraph.model import Source, load
from qgraph.proof.environment import check_float_environment
from qgraph.report import SCHEMA
from qgraph.storage import files as storage
from qgraph.verification.cases import check_all_values, check_pairs
from qgraph.verification.conclusions import (
    check_bias,
    check_conditions,
    check_verdict,
    interface,
    normal_form,
)
from qgraph.verification.constants import check_constants
from qgraph.verification.differences import check_difference
from qgraph.verification.facts import check_facts
from qgraph.verification.outcome import Claim, Outcome, check_outcome, check_rung
from qgraph.verification.outputs import Outputs
from qgraph.verification.regions import check_boxes
from qgraph.verification.sides import Pair, Side, check_nodes, shape_of, type_of
from qgraph.verification.statements import Document, Statement, fails, read

_IN_MEMORY = (
    "That model was in memory when it was proved: it had been changed since it was loaded, or was "
    "in no file. Save it, prove the files, and verify that certificate."
)


def verify_file(certificate: Path, reference: Path, candidate: Path) -> str:
    """Check the certificate in a file against two model files, and their hashes.

    Returns: the verdict of the certificate.

    Raises:
        ModelError: the file is no certificate, or it is one of other files.
        EquivalenceError: a statement of it does not hold.
        UnsupportedError: this thread does not compute as IEEE 754 says.
    """
    document = _read(certificate)
    for name, path in (("reference", reference), ("candidate", candidate)):
        source = document.get(name)
        stated = source.get("sha256") if isinstance(source, dict) else None
        if not isinstance(stated, str):
            raise ModelError(
                f"{certificate}: states no hash of its {name}, expected that of a file. Prove the "
                "files anew."
            )
        if stated != storage.sha256(path):
            known = source.get("path") if isinstance(source, dict) else None
            raise ModelError(
                f"{certificate}: it is about a {name} of the hash {stated[:12]}..., but {path} is "
                "another file, expected the same. "
                + ("Name the models that were proved." if known else _IN_MEMORY)
            )
    return verify(document, reference, candidate)


def verify(document: Mapping[str, object], reference: Source, candidate: Source) -> str:
    """Check what a certificate says about two models; return its verdict.

    Args:
        document: what ``Certificate.to_json`` gave.
        reference: a path or a model.
        candidate: a path or a model.

    Raises:
        ModelError: the document is no certificate.
        EquivalenceError: a statement of it does not hold.
        UnsupportedError: this thread does not compute as IEEE 754 says.
    """
    stated = read(document)
    check_float_environment()
    models = load(reference), load(candidate)
    prepared = plain(*models, keep_inputs=stated.keep_inputs)
    form = normal_form(stated, prepared)
    first, second = prepared if form is None else form.sides
    sides = Side(first), Side(second)
    inputs, outputs = interface(stated, sides)
    claims = [
        claim
        for number, statement in enumerate(stated.statements)
        for claim in _claims(number, statement, sides)
    ]
    _check_once(stated, sides)
    check_verdict(stated, form)
    check_conditions(stated, sides, models, form)
    check_facts(stated, sides)
    is_proof = stated.verdict is ProofVerdict.PROVED
    following = Outputs(sides, claims, inputs, is_proof=is_proof)
    following.check([*inputs, *outputs])
    for number, statement in enumerate(stated.statements):
        is_cause = stated.shown_by is None and statement.verdict is ProofVerdict.DIFFERENT
        if is_cause and number not in following.used:
            raise statement.fails("it differs, but no output rests on it")
    check_difference(stated, sides, claims, inputs, outputs)
    check_float_environment()
    return str(stated.verdict)


def _read(path: Path) -> Mapping[str, object]:
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{path}: cannot be read ({error}), expected a certificate of 'qgraph prove'."
        ) from error
    known = isinstance(document, dict) and document.get("command") == "prove"
    if not known or document.get("schema") != SCHEMA:
        raise ModelError(
            f"{path}: is no certificate of schema {SCHEMA}, expected what 'qgraph prove "
            "--certificate' writes. Write it again."
        )
    return dict(document)


def _claims(number: int, statement: Statement, sides: tuple[Side, Side]) -> list[Claim]:
    """Return what a statement says, of all values that have its names and of which it holds.

    Raises:
        EquivalenceError: it holds of none.
    """
    check_rung(statement)
    pairs = _named(sides, statement.values)
    if statement.verdict is ProofVerdict.UNDECIDED:
        return [Claim(number, pair, (), statement, may_lose_signs=True) for pair in pairs]
    found: list[Claim] = []
    problem = statement.fails("there is no such value, or no such entry")
    for exit_ in pairs:
        for entries in _entries(statement, sides):
            try:
                outcome = _outcome(statement, sides, entries, exit_)
                check_outcome(statement, outcome)
            except EquivalenceError as error:
                problem = error
                continue
            except (UnsupportedError, ValueError, IndexError, KeyError, TypeError) as error:
                problem = statement.fails(str(error))
                continue
            tells, loses = outcome.tells_zeros_apart, outcome.may_lose_signs
            found.append(Claim(number, exit_, entries, statement, tells, loses))
            break
    if not found:
        raise problem
    return found


def _check_once(document: Document, sides: tuple[Side, Side]) -> None:
    """See that nothing is shown of two values twice; those of one name may be several.

    Raises:
        EquivalenceError: they are.
    """
    shown = [s for s in document.statements if s.verdict is not ProofVerdict.UNDECIDED]
    for values, count in Counter(statement.values for statement in shown).items():
        named = [len(side.named(name)) for side, name in zip(sides, values, strict=True)]
        if count > max(1, named[0] * named[1]):
            raise fails(f"{values[0]!r} -> {values[1]!r} is stated {count} times")


def _entries(statement: Statement, sides: tuple[Side, Side]) -> Iterator[tuple[Pair, ...]]:
    """Yield the pairs of values that have the names of the entries; names may be used again."""
    choices = [_named(sides, names) for names in statement.entries]
    yield from itertools.islice(itertools.product(*choices), 64)


def _named(sides: tuple[Side, Side], names: tuple[str, str]) -> list[Pair]:
    """Return all pairs of values that have two names."""
    return [(a, b) for a in sides[0].named(names[0]) for b in sides[1].named(names[1])]


def _outcome(
    statement: Statement, sides: tuple[Side, Side], entries: Sequence[Pair], exit_: Pair
) -> Outcome:
    """Return what is so about the values of a statement, by the way that it names."""
    if statement.method is Method.CONSTANT:
        _check_constant_nodes(statement, exit_)
        return check_constants(statement, sides, exit_)
    if not entries:
        raise statement.fails("it has no entry")
    parts = [
        side.between(end, [pair[place] for pair in entries])
        for place, (side, end) in enumerate(zip(sides, exit_, strict=True))
    ]
    check_nodes(statement, parts)
    check_bias(statement, sides, parts)
    if len(entries) > 1:
        return check_pairs(statement, sides, entries, exit_, parts)
    (entry,) = entries
    shape = shape_of(entry)
    if type_of(entry) is ir.DataType.FLOAT:
        return check_boxes(statement, sides, entry, exit_, parts, shape)
    return check_all_values(statement, sides, entry, exit_, parts, shape)


def _check_constant_nodes(statement: Statement, values: Pair) -> None:
    """See that the nodes that are named for constants are those that make them.

    Raises:
        EquivalenceError: they are not.
    """
    producers = (value.producer() for value in values)
    check_nodes(statement, [[] if node is None else [node] for node in producers])
