"""The schema of certificates, written and read strictly."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from qgraph import conditions as kinds
from qgraph.bound import Bound, Bounding, is_within
from qgraph.conditions import Cases, Condition, Demonstration, Division
from qgraph.errors import EquivalenceError, ModelError, UndecidedError
from qgraph.exactness import Exactness, ProofVerdict as ProofVerdict, Verdict, difference
from qgraph.reasons import ExplainedReason, id_of
from qgraph.records import field, guarded, replace
from qgraph.text import Displayed, Fields, counted, fields_json, read_fields, read_json
from qgraph.version import SEMANTICS, head, renamed

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__)


@guarded(frozen=True)
class Identity:
    """File and hash of a model; one in memory has no path, and is hashed as it is serialised."""

    path: str | None
    sha256: str | None


@guarded(frozen=True)
class ListedFact:
    """Type and shape of a tensor on which a proof relies.

    Attributes:
        model: "reference" or "candidate".
        tensor: its name.
        type: its element type; None if it is not known.
        shape: numbers, texts of open sizes, and None for what is not known; None without a rank.
        because: its source.
        value: the elements in order, if sizes determine them.
    """

    model: str
    tensor: str
    type: str | None
    shape: tuple[int | str | None, ...] | None
    because: str
    value: tuple[Any, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fact in the form of certificates."""
        names = "model", "tensor", "type", "shape", "because"
        return fields_json(self, *names, *(() if self.value is None else ("value",)))

    @classmethod
    def from_json(cls, fact: Mapping[str, Any]) -> ListedFact:
        """Return what :meth:`to_json` gave."""
        return read_fields(cls, {"value": None, **fact})


@guarded(frozen=True, kw_only=True, repr=False)
class RegionVerdict(Verdict, Fields):
    """Two values that should be equal, and the verdict on them, given equal entries.

    For constants, the input of the witness is the index of the element.

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
        boxes: the evidence; empty unless requested.
        cases: the evidence of a region with two inputs, by entry; likewise.
        bound: the bound of the difference, if there is one.
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
    conditions: tuple[Condition, ...] = ()
    boxes: tuple[Division, ...] = ()
    cases: tuple[Cases, ...] = ()
    bound: Bound | None = None

    def __repr__(self) -> str:
        values = f"{self.reference_value!r} and {self.candidate_value!r}"
        return f"<{self.verdict}, {values}: {self.reason or self.level}>"

    @property
    def level(self) -> str | None:
        """The level that holds; ``bounded`` if only a bound is known, None if undecided."""
        if self.verdict is ProofVerdict.BOUNDED:
            return str(self.verdict)
        return None if self.exactness is None else str(self.exactness)

    @property
    def reason_id(self) -> str | None:
        """The id of the cause of an undecided region, see :mod:`qgraph.reasons`; else None."""
        return id_of(self.reason) if self.verdict is ProofVerdict.UNDECIDED else None

    def to_json(self) -> dict[str, Any]:
        """Return the region in the form of certificates."""
        document = fields_json(self, *_OF_REGIONS) | {"exactness": self.level}
        if self.witness is not None:
            document["witness"]["channel"] = self.witness_channel
        return document

    @classmethod
    def from_json(cls, region: Mapping[str, Any]) -> RegionVerdict:
        """Return what :meth:`to_json` gave."""
        witness = region["witness"]
        channel = None if witness is None else witness["channel"]
        none = dict.fromkeys(("differing_codes", "noise_ulps", "noise_steps"))
        read = none | dict(region) | {"witness_channel": channel}
        is_bounded = region["exactness"] == ProofVerdict.BOUNDED
        read_region = read_fields(cls, read | ({"exactness": None} if is_bounded else {}))
        if (read_region.verdict is ProofVerdict.BOUNDED) != is_bounded or (
            is_bounded and read_region.bound is None
        ):
            raise ValueError(
                f"exactness: {region['exactness']!r:.60} of a {read_region.verdict} region"
            )
        reason_id = read_json(str | None, region["reason_id"])
        if reason_id is not None and read_region.reason is not None:
            read_region = replace(
                read_region, reason=ExplainedReason(read_region.reason, reason_id)
            )
        if reason_id != read_region.reason_id:
            raise ValueError(
                f"reason_id: {reason_id!r:.60} of a region that is {read_region.verdict}"
            )
        return read_region


_OF_REGIONS = (
    "reference_nodes", "candidate_nodes", "reference_value", "candidate_value", "entries",
    "verdict", "exactness", "method", "counted", "differing_inputs", "differing_codes",
    "noise_ulps", "noise_steps", "zero_sign_inputs", "channels", "differing_channels",
    "largest_steps", "nan_differs", "infinity_differs", "witness", "bound", "conditions",
    "reason", "reason_id", "boxes", "cases",
)  # fmt: skip
"""The fields of a region in a certificate."""


@guarded(frozen=True, repr=False)
class Certificate(Displayed):
    """Certificate of a proof about two models.

    Attributes:
        verdict: proved if the outputs are equal for every input, under ``conditions``; different if
            a region differs and makes the models different; else undecided.
        exactness: the lowest level of all regions; None when undecided.
        reference, candidate: file and hash of the models; only the hash of models in memory.
        regions: every place where the models differ in form, in the order of the reference.
        conditions: assumptions of the verdict.
        notes: remarks.
        counterexample: arrays by names of model inputs, on which the outputs differ; empty if none
            was searched or found.
        kept_inputs: whether initializers that are also inputs were not treated as constants.
        facts: the types and shapes that the proof uses.
        shown_by: an input on which the outputs differ, if a run of the models showed it.
        bounding: the options of bounds.
    """

    verdict: ProofVerdict
    exactness: Exactness | None
    reference: Identity
    candidate: Identity
    regions: tuple[RegionVerdict, ...]
    conditions: tuple[Condition, ...] = ()
    notes: tuple[str, ...] = ()
    counterexample: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    kept_inputs: bool = False
    facts: tuple[ListedFact, ...] = ()
    shown_by: Demonstration | None = None
    bounding: Bounding = field(default_factory=Bounding)

    @property
    def summary(self) -> str:
        """The verdict, and the number of regions."""
        level = f" in {self.level}" if self.level not in (None, str(self.verdict)) else ""
        return f"{self.verdict}{level}, {counted(len(self.regions), 'region')}"

    @property
    def level(self) -> str | None:
        """The lowest level of all regions; ``bounded`` if there is a bound, None if undecided."""
        if self.verdict is ProofVerdict.BOUNDED:
            return str(self.verdict)
        return None if self.exactness is None else str(self.exactness)

    @property
    def beyond(self) -> list[RegionVerdict]:
        """The bounded regions that exceed the limits, or for which there is no limit."""
        return [
            region
            for region in self.regions
            if region.verdict is ProofVerdict.BOUNDED
            and region.bound is not None
            and not is_within(self.bounding.limits, region.bound, region.reference_value)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the certificate as ``qgraph prove`` writes it."""
        return {
            **head("prove"),
            "semantics": SEMANTICS,
            "verdict": str(self.verdict),
            "exactness": self.level,
            **fields_json(self, "reference", "candidate"),
            "keep_inputs": self.kept_inputs,
            **self.bounding.to_json(),
            **fields_json(self, "conditions", "notes"),
            "counterexample_found": bool(self.counterexample),
            **fields_json(self, "facts", "shown_by", "regions"),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Certificate:
        """Parse the content of a certificate file.

        Raises:
            ModelError: something is missing, or of another type or semantics.
        """
        if (stated := document.get("semantics")) != SEMANTICS:
            raise ModelError(
                f"The certificate was written by another version of qgraph: its semantics is "
                f"{stated!r:.20}, expected {SEMANTICS}. Run 'qgraph prove' again."
            )
        nothing = {"path": None, "sha256": None}
        models = {name: document.get(name, nothing) for name in ("reference", "candidate")}
        try:
            kept = {"kept_inputs": document["keep_inputs"], "counterexample": {}}
            kept["bounding"] = document
            if document["exactness"] == document["verdict"] == ProofVerdict.BOUNDED:
                kept["exactness"] = None
            return read_fields(cls, {**document, **models, **kept})
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise ModelError(
                f"The certificate cannot be read ({what}), expected what 'qgraph prove' writes. "
                "Write it again."
            ) from error

    def raise_if_not_proved(self) -> None:
        """Raise unless the models were proved equal, or bounded within the limits.

        Raises:
            EquivalenceError: they differ; the message names the first region, and the exception has
            the certificate. UndecidedError: it could not be decided; likewise.
        """
        if self.verdict is ProofVerdict.PROVED:
            return
        if self.verdict is ProofVerdict.BOUNDED:
            self._raise_if_beyond()
            return
        deciding = [region for region in self.regions if region.verdict is self.verdict]
        first, more = deciding[0], len(deciding) - 1
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

    def _raise_if_beyond(self) -> None:
        for region in self.beyond:
            bound = region.bound
            far = "" if bound is None else f" by up to {bound.max_steps} steps"
            limits = ", ".join(map(str, self.bounding.limits)) or "none given"
            raise EquivalenceError(
                f"{place_of(region.reference_nodes)} -> {place_of(region.candidate_nodes)}: "
                f"results may differ{far}, expected bounds within the limits ({limits}). Set a "
                "limit with within='1step'.",
                report=self,
            )


def conditions_of(regions: Sequence[RegionVerdict], frozen: int) -> list[Condition]:
    """Return the conditions implied by fields of regions.

    ``frozen`` is the number of initializers that are also graph inputs and count as constants.
    """
    counts = (
        (frozen, kinds.NOT_FED),
        (sum(region.nan_differs for region in regions), kinds.NO_NAN),
        (sum(region.zero_sign_inputs > 0 for region in regions), kinds.ZERO_SIGNS),
    )
    own = [kinds.AS_WRITTEN, kinds.EQUAL_OPERATORS, *(kind(n) for n, kind in counts if n)]
    differs = any(region.verdict is ProofVerdict.DIFFERENT for region in regions)
    assumed = any(kinds.SUMS_REACH in region.conditions for region in regions)
    if differs:
        own.append(kinds.AFTER_DIFFERENCE)
    return [*own, kinds.SUMS_REACH] if assumed else own


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of certificates, draft 2020-12."""
    text = resources.files("qgraph").joinpath("certificate.schema.json").read_text("utf-8")
    return dict(json.loads(text))


def place_of(nodes: Sequence[str]) -> str:
    """Return a short text of the nodes of a region: the last one, and the number of others."""
    if not nodes:
        return "nothing"
    return repr(nodes[-1]) + (f" (and {len(nodes) - 1} before it)" if len(nodes) > 1 else "")
