"""The schema of certificates, written and read strictly."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from qgraph.deprecated import renamed
from qgraph.errors import EquivalenceError, ModelError, UndecidedError
from qgraph.evidence import Cases, Division
from qgraph.exactness import BIAS_LAST as BIAS_LAST
from qgraph.exactness import Exactness, Verdict, difference
from qgraph.exactness import ProofVerdict as ProofVerdict
from qgraph.reasons import ExplainedReason, id_of
from qgraph.text import read_fields, read_json
from qgraph.version import head

AS_WRITTEN = (
    "every operator computes as written: one IEEE 754 operation at a time in the type of its "
    "operands, rounded to nearest even, subnormals kept; a runtime may do otherwise"
)
NOT_FED = "{} initializers that are also graph inputs keep the values of the file"
NO_NAN = "no NaN reaches the {} regions that treat NaN differently in the two models"
ZERO_SIGNS = (
    "-0 counts as equal to +0: {} regions may change the sign of a zero, and no operator after "
    "them distinguishes -0 from +0"
)
WHOLE_SUMS = (
    "sums of products of codes that stay below 2**24 are computed without rounding, in any order "
    "of additions"
)
OPEN_BOUNDS = (
    "no infinity reaches a Clip without an upper or a lower bound; ONNX does not define whether it "
    "stays infinite or becomes the largest finite number"
)
AFTER_DIFFERENCE = "after a difference, values were assumed equal to find later differences"
EQUAL_OPERATORS = "equal operators on equal operands have equal results"
SUMMED_ALIKE = (
    "MatMulNBits and Gemm add their products in the order of MatMul, which ONNX does not define, "
    "and add the bias to the finished sum"
)
DATA_NOT_ROUNDED = (
    "MatMulNBits multiplies its data as they are; accuracy_level 4 allows a runtime to round them "
    "to 8 bits first"
)
ROUNDED_ONCE = (
    "constants computed by {} are the exact results, rounded once; ONNX does not define their last "
    "bits"
)
OPEN_SIZES = "symbolic dimensions of the inputs ({}) and their products are below 2**40"
ONE_SIZE = "dimensions of the same name are equal: {} is the size of {}"
NO_NAN_AT_MAXIMA = "no NaN reaches the {} maxima that were exchanged with functions"
ZEROS_REWRITTEN = (
    "-0 counts as equal to +0: the normal form may change the sign of a zero, and no operator "
    "after the rewritten ones distinguishes -0 from +0"
)
SUMS_OF_CODES = (
    "sums of codes that stay below 2**24 are computed without rounding, in any order of additions"
)

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__)


@dataclass(frozen=True)
class Identity:
    """A model as a report names it.

    Attributes:
        path: its file; None for a model in memory.
        sha256: hash of the file and its data files, or of the model in memory as it is serialised.
    """

    path: str | None
    sha256: str | None


@dataclass(frozen=True)
class ListedFact:
    """Type and shape of a tensor on which a proof relies.

    Attributes:
        model: "reference" or "candidate".
        tensor: its name.
        type: its element type; None if it is not known.
        shape: numbers, texts of open sizes, and None for what is not known; None without a rank.
        because: what it follows from.
        value: the elements in their order, of a value that sizes determine.
    """

    model: str
    tensor: str
    type: str | None
    shape: tuple[int | str | None, ...] | None
    because: str
    value: tuple[Any, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fact as it stands in a certificate."""
        fact: dict[str, Any] = {
            "model": self.model,
            "tensor": self.tensor,
            "type": self.type,
            "shape": None if self.shape is None else list(self.shape),
            "because": self.because,
        }
        return fact if self.value is None else fact | {"value": list(self.value)}

    @classmethod
    def from_json(cls, fact: Mapping[str, Any]) -> ListedFact:
        """Return what :meth:`to_json` gave."""
        return read_fields(cls, {"value": None, **fact})


@dataclass(frozen=True)
class Demonstration:
    """An input: random arrays, or one input full of a number among them.

    Attributes:
        batch: number of the random arrays.
        input: name of the input of the reference that is full of a number; None without one.
        value: the number.
    """

    batch: int = 0
    input: str | None = None
    value: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the input as it stands in a certificate."""
        return {"batch": self.batch, "input": self.input, "value": self.value}


@dataclass(frozen=True, kw_only=True)
class RegionVerdict(Verdict):
    """Two values that have to be equal, and the verdict on them, given equal entries.

    Of a constant, the input of the witness is the number of the element.

    Attributes:
        reference_nodes, candidate_nodes: names of the nodes that compute the values from the
            entries.
        reference_value, candidate_value: names of the values.
        entries: names of pairs of equal values that the nodes start from; none for constants.
        verdict: proved, different or undecided.
        counted: whether all inputs were compared. If not, the numbers of inputs are lower bounds.
        channels: number of elements that the parameters broadcast to.
        differing_channels: channel and number of differing inputs, for the first channel of each
            set of channels with equal parameters.
        conditions: assumptions about this region, besides those of the certificate.
        boxes: the evidence; empty unless asked for.
        cases: that of a region with two inputs, by entry; likewise.
    """

    reference_nodes: tuple[str, ...]
    candidate_nodes: tuple[str, ...]
    reference_value: str
    candidate_value: str
    entries: tuple[tuple[str, str], ...] = ()
    verdict: ProofVerdict = ProofVerdict.UNDECIDED
    counted: bool = False
    channels: int = 1
    differing_channels: tuple[tuple[int, int], ...] = ()
    conditions: tuple[str, ...] = ()
    boxes: tuple[Division, ...] = ()
    cases: tuple[Cases, ...] = ()

    @property
    def reason_id(self) -> str | None:
        """The id of the cause of an undecided region, see :mod:`qgraph.reasons`; else None."""
        return id_of(self.reason) if self.verdict is ProofVerdict.UNDECIDED else None

    def to_json(self) -> dict[str, Any]:
        """Return the region as it stands in a certificate."""
        witness = self.witness
        return {
            "reference_nodes": list(self.reference_nodes),
            "candidate_nodes": list(self.candidate_nodes),
            "reference_value": self.reference_value,
            "candidate_value": self.candidate_value,
            "entries": [list(pair) for pair in self.entries],
            "verdict": str(self.verdict),
            "exactness": None if self.exactness is None else str(self.exactness),
            "method": str(self.method),
            "counted": self.counted,
            "differing_inputs": self.differing_inputs,
            "zero_sign_inputs": self.zero_sign_inputs,
            "channels": self.channels,
            "differing_channels": [list(pair) for pair in self.differing_channels],
            "largest_steps": self.largest_steps,
            "nan_differs": self.nan_differs,
            "infinity_differs": self.infinity_differs,
            "witness": None
            if witness is None
            else {
                "input": witness.input,
                "reference": witness.reference,
                "candidate": witness.candidate,
                "channel": self.witness_channel,
            },
            "bound": None,
            "conditions": list(self.conditions),
            "reason": None if self.reason is None else str(self.reason),
            "reason_id": self.reason_id,
            "boxes": [boxes.to_json() for boxes in self.boxes],
            "cases": [cases.to_json() for cases in self.cases],
        }

    @classmethod
    def from_json(cls, region: Mapping[str, Any]) -> RegionVerdict:
        """Return what :meth:`to_json` gave."""
        witness = region["witness"]
        channel = None if witness is None else witness["channel"]
        found = read_fields(cls, dict(region) | {"witness_channel": channel})
        reason_id = read_json(str | None, region["reason_id"])
        if region["bound"] is not None:
            raise ValueError(f"bound: {region['bound']!r:.60}, which this version does not know")
        if reason_id is not None and found.reason is not None:
            found = replace(found, reason=ExplainedReason(found.reason, reason_id))
        if reason_id != found.reason_id:
            raise ValueError(f"reason_id: {reason_id!r:.60} of a region that is {found.verdict}")
        return found


@dataclass(frozen=True)
class Certificate:
    """Certificate of a proof about two models.

    Attributes:
        verdict: proved if the outputs are equal for every input, as far as ``conditions`` say;
            different if a region differs and makes the models different; else undecided.
        exactness: the lowest level of all regions; None when undecided.
        reference, candidate: what the models are, by file and hash, or by hash in memory.
        regions: every place where the models differ in form, in the order of the reference.
        conditions: what the verdict takes for granted, or does not cover.
        notes: remarks.
        counterexample: names of model inputs and their arrays on which the outputs differ; empty
            where none was sought or found.
        kept_inputs: whether initializers that are inputs too were left so.
        facts: the types and shapes that the regions and matches rest on.
        shown_by: an input on which the outputs differ, where no region alone makes the models
            different.
    """

    verdict: ProofVerdict
    exactness: Exactness | None
    reference: Identity
    candidate: Identity
    regions: tuple[RegionVerdict, ...]
    conditions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    counterexample: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    kept_inputs: bool = False
    facts: tuple[ListedFact, ...] = ()
    shown_by: Demonstration | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the certificate as ``qgraph prove`` writes it."""
        return {
            **head("prove"),
            "verdict": str(self.verdict),
            "exactness": None if self.exactness is None else str(self.exactness),
            "reference": dict(vars(self.reference)),
            "candidate": dict(vars(self.candidate)),
            "keep_inputs": self.kept_inputs,
            **_NO_BOUNDS,
            "conditions": list(self.conditions),
            "notes": list(self.notes),
            "counterexample_found": bool(self.counterexample),
            "facts": [fact.to_json() for fact in self.facts],
            "shown_by": None if self.shown_by is None else self.shown_by.to_json(),
            "regions": [region.to_json() for region in self.regions],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Certificate:
        """Return the certificate that a file of schema 1 or 2 holds.

        Raises:
            ModelError: something is missing, or of another type or schema.
        """
        document = _current(document)
        nothing = {"path": None, "sha256": None}
        models = {name: document.get(name, nothing) for name in ("reference", "candidate")}
        try:
            _expect_no_bounds(document)
            kept = {"kept_inputs": document["keep_inputs"], "counterexample": {}}
            return read_fields(cls, {**document, **models, **kept})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise ModelError(
                f"The certificate cannot be read ({what}), expected what 'qgraph prove' writes. "
                "Write it again."
            ) from error

    def raise_if_not_proved(self) -> None:
        """Raise unless the models were proved equal.

        Raises:
            EquivalenceError: they differ; names the first place, and carries the certificate.
            UndecidedError: it could not be decided; likewise.
        """
        if self.verdict is ProofVerdict.PROVED:
            return
        found = [region for region in self.regions if region.verdict is self.verdict]
        first, more = found[0], len(found) - 1
        others = f" and {more} other{'s' if more > 1 else ''}" if more else ""
        where = f"{place_of(first.reference_nodes)} -> {place_of(first.candidate_nodes)}{others}"
        if self.verdict is ProofVerdict.UNDECIDED:
            raise UndecidedError(
                f"{where}: {first.reason}. Expected regions that can be decided; compare the "
                "models on data with 'qgraph check'.",
                report=self,
            )
        raise EquivalenceError(
            f"{where}: {difference(first.to_json())} Expected equal values; convert with "
            "--exact values, or change the model there.",
            report=self,
        )


_NO_BOUNDS: Mapping[str, Any] = {"limits": [], "against": "execution", "order": "any"}
"""The fields of certificates that belong to bounds, of a certificate without any."""


_ZEROS = "zeros count as equal whatever their sign; "
_SCHEMA_1: Mapping[str, str] = {
    "{} initializers that could be fed as inputs too are not fed": NOT_FED,
    "no NaN reaches the {} regions that do not keep it": NO_NAN,
    _ZEROS + "{} regions do not keep it, and nothing after them sees it": ZERO_SIGNS,
    "sums of products of codes that stay below 2**24 are computed without rounding, in whatever "
    "order they are added": WHOLE_SUMS,
    "no infinity reaches a Clip that lacks a bound; ONNX leaves open whether it stays infinite or "
    "becomes the largest finite number": OPEN_BOUNDS,
    "after a difference the values were taken for equal": AFTER_DIFFERENCE,
    "MatMulNBits and Gemm sum their products in the order of MatMul, which ONNX leaves open, and "
    "add the bias to the finished sum": SUMMED_ALIKE,
    "constants that {} compute are the exact results, rounded once; ONNX leaves their last bits "
    "open": ROUNDED_ONCE,
    "open sizes of the inputs ({}) and their products are below 2**40": OPEN_SIZES,
    "dimensions of one name are equal: {} is the size of {}": ONE_SIZE,
    _ZEROS + "the normal form does not keep it, and nothing after the operators that it rewrote "
    "distinguishes it": ZEROS_REWRITTEN,
    "sums of codes that stay below 2**24 are computed without rounding, in whatever order they are "
    "added": SUMS_OF_CODES,
}
"""The conditions as schema 1 words them, and as they are worded now."""


def _reworded(condition: object) -> object:
    """Return a condition of schema 1 in the present words."""
    for old, new in _SCHEMA_1.items():
        match = re.fullmatch(re.escape(old).replace(r"\{\}", "(.+)"), str(condition))
        if match is not None:
            return new.format(*match.groups())
    return condition


def _current(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a certificate with the fields that schema 1 lacks, and with the present conditions."""
    if document.get("schema") != 1 or not isinstance(regions := document.get("regions"), list):
        return document
    new: dict[str, Any] = {"bound": None, "reason_id": None}
    current = {**_NO_BOUNDS, **document, "regions": [{**new, **region} for region in regions]}
    if isinstance(conditions := document.get("conditions"), list):
        current["conditions"] = [_reworded(condition) for condition in conditions]
    return current


def _expect_no_bounds(document: Mapping[str, Any]) -> None:
    for name, only in _NO_BOUNDS.items():
        if document[name] != only:
            raise ValueError(f"{name}: {document[name]!r:.60}, expected {only!r}")


def place_of(nodes: Sequence[str]) -> str:
    """Return the nodes of a region in short: the last one, and how many there are before it."""
    if not nodes:
        return "nothing"
    return repr(nodes[-1]) + (f" (and {len(nodes) - 1} before it)" if len(nodes) > 1 else "")
