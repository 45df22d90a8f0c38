"""Causes of refusals and of undecided comparisons, each with a stable id such as ``QG001``.

A reason is a text about one place. It carries the id of its cause, by which scripts recognise it
and ``qgraph explain`` describes it:

    raise Undecidable(EFFORT("not settled after 100000 boxes"))

Ids are never given to another cause, and a cause that is no longer used keeps its id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self, TypeVar

from qgraph.errors import OptionError, closest, shown
from qgraph.records import dataclass
from qgraph.text import Fields


class ExplainedReason(str):
    """The text of a reason, with the ``id`` of its cause."""

    __slots__ = ("id",)
    id: str

    def __new__(cls, text: str, cause_id: str) -> Self:
        """Return the text with an id."""
        reason = super().__new__(cls, text)
        reason.id = cause_id
        return reason

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        return str(self), self.id


class Undecidable(Exception):  # noqa: N818 - a finding, not a fault
    """An expression or a bound cannot be built or decided, for a reason with an id.

    ``by_effort`` says whether the only reason is that it takes too long.
    """

    def __init__(self, reason: ExplainedReason, *, by_effort: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.by_effort = by_effort


@dataclass(frozen=True)
class Cause(Fields):
    """Why sites are refused, or comparisons undecided: stable id, name, meaning and remedy."""

    id: str
    name: str
    meaning: str
    remedy: str

    def to_json(self) -> dict[str, str]:
        """Return its attributes."""
        return dict(vars(self))

    def __call__(self, text: str) -> ExplainedReason:
        """Return the text of a reason that has this cause."""
        return ExplainedReason(text, self.id)


CAUSES: Final[dict[str, Cause]] = {}
"""All causes by id."""


def _cause(number: int, name: str, meaning: str, remedy: str) -> Cause:
    cause = Cause(f"QG{number:03}", name, meaning, remedy)
    if cause.id in CAUSES:
        raise ValueError(f"{cause.id} is given twice")
    CAUSES[cause.id] = cause
    return cause


OTHER = _cause(
    0,
    "other",
    "The pass states a reason without an id, as passes from outside of qgraph may do.",
    "Read the reason. A pass gives it an id with a cause of qgraph.reasons.",
)
NO_EQUAL_FORM = _cause(
    1,
    "no-equal-form",
    "No form that was tried is as equal to the site as --exact asks for. The site was left "
    "unchanged. The report has the level and the counterexample of the closest form.",
    "Allow a lower level with --exact, or choose a target that has an equal form: onnx has one for "
    "every quantizer that can be read.",
)
NEEDS_OPSET = _cause(
    2,
    "needs-opset",
    "The new form needs operators or types of a higher opset than the pass may use.",
    "Allow the opset that the reason names with --opset, or with the option opset of the pass.",
)
FAULTY_SCALE = _cause(
    3,
    "faulty-scale",
    "The scale of the quantizer is zero, NaN, infinite, or too small to compute with. Its results "
    "depend on what a runtime does with such numbers.",
    "Correct the scale in the model, or export the model again with calibrated ranges.",
)
UNREADABLE = _cause(
    4,
    "unreadable",
    "The node cannot be read: it violates the definition of its operator, or a parameter is only "
    "known when the model runs.",
    "Correct the node as the reason says. Make parameters constants, for example by folding.",
)
NO_PARTNER = _cause(
    5,
    "no-partner",
    "A QuantizeLinear is not followed by a DequantizeLinear, or the reverse. The codes are used as "
    "such, so there is no quantizer from real values to real values.",
    "Nothing, if integer operators are meant to read the codes. Otherwise add the other node.",
)
NO_OPERATOR = _cause(
    6,
    "no-operator",
    "The target has no operator, attribute or code type for what the node does, or only one that "
    "computes something else.",
    "Use the option that the reason names, or leave the node as it is: it still computes the same.",
)
UNKNOWN_TYPE = _cause(
    7,
    "unknown-type",
    "The type or the shape of a value is not known, and the new form depends on it.",
    "Run shape inference first, or state the type and shape in the model.",
)
USED_ELSEWHERE = _cause(
    8,
    "used-elsewhere",
    "Other nodes also use the constant or the value, and they would need the old one.",
    "Include these nodes in the pass, exclude this one, or give each node a copy.",
)
ABOVE_LIMIT = _cause(
    9,
    "above-limit",
    "The change would move outputs farther than the options of the pass accept.",
    "Raise the limit to the one that the reason names if the change is acceptable.",
)
UNSUITED_RANGE = _cause(
    10,
    "unsuited-range",
    "The pass cannot work on the ranges of this quantizer, for example because a range is a single "
    "point, is reversed, or has too few levels.",
    "Correct the ranges in the model, or exclude the node from the pass.",
)
RUNTIME_FAILS = _cause(
    11,
    "runtime-fails",
    "ONNX Runtime does not load or run the new form in this place.",
    "Leave the site as it is, or choose the option that the reason names.",
)
NOT_ABSORBED = _cause(
    12,
    "not-absorbed",
    "A scale, factor or offset cannot move into the operators next to it: none of them has a "
    "constant that takes it, or a value between is also used elsewhere.",
    "Exclude the node from the pass, or change the operators that the reason names.",
)
UNSUITED_WEIGHT = _cause(
    13,
    "unsuited-weight",
    "The constant cannot be stored as asked: its values, shape or uses do not fit the codes.",
    "Choose a wider type or another granularity, or exclude the node.",
)
UNSUPPORTED_TYPE = _cause(
    14,
    "unsupported-type",
    "The data has a type that the pass does not handle; most handle float32 only.",
    "Convert the model to float32 first (-p widen-floats, from 16 bits), or exclude the node.",
)

EFFORT = _cause(
    51,
    "effort",
    "The comparison was stopped before all inputs were settled: there are too many intervals, "
    "channels or cases.",
    "Compare the models on data with qgraph check --probes. Per-tensor parameters and fewer steps "
    "make a region easier to decide.",
)
NO_RULE = _cause(
    52,
    "no-rule",
    "The region contains an operator, or a form of one, that the prover cannot evaluate on "
    "intervals of inputs.",
    "Compare the models on data with qgraph check, or make both models use the same operators "
    "there.",
)
TYPE_NOT_PROVED = _cause(
    53,
    "type-not-proved",
    "The region computes in a type that is not proved. float32 is proved by intervals, and types "
    "of up to 16 bits are proved by trying all values.",
    "Compare the models on data with qgraph check.",
)
NOT_KNOWN = _cause(
    54,
    "not-known",
    "The type or shape of a value that enters the region is not known.",
    "Run shape inference first, or state types and shapes in the model.",
)
DO_NOT_FIT = _cause(
    55,
    "do-not-fit",
    "Types or shapes do not fit: of the two results, of parameters and data, or of interfaces.",
    "Correct the model that the reason names. Results of different type or shape are never equal.",
)
AT_RUN_TIME = _cause(
    56,
    "at-run-time",
    "A parameter of the region is only known when the model runs.",
    "Make the parameter a constant, for example by folding the model first.",
)
LEFT_OPEN = _cause(
    57,
    "left-open",
    "ONNX leaves the result open for some inputs of the region, so runtimes may differ.",
    "Avoid these inputs, for example with a Clip before the node.",
)
TWO_INPUTS = _cause(
    58,
    "two-inputs",
    "The region depends on two values, and not all of their combinations can be tried.",
    "Compare the models on data with qgraph check, or keep the structure there the same.",
)
NOT_MATCHED = _cause(
    59,
    "not-matched",
    "The models have different operators or structure there, and no small region of both computes "
    "the same value from equal values.",
    "Apply fewer rewrites at once and prove each step, or compare the models on data with qgraph "
    "check.",
)
NOT_COMPUTED = _cause(
    60,
    "not-computed",
    "A node of the region cannot be computed here.",
    "Correct the node as the reason says. Operators without a kernel run in ONNX Runtime only.",
)
NOT_FORCED = _cause(
    61,
    "not-forced",
    "The sides of the region differ, or begin with results of different operators, but this does "
    "not show that the models differ: other nodes may undo the difference.",
    "Look for a first undecided or different region nearer to the inputs, or compare the models on "
    "data with qgraph check --probes.",
)
SIGN_OF_ZERO = _cause(
    62,
    "sign-of-zero",
    "A zero may have another sign, and a later node gives another result for it.",
    "Prove with a candidate that keeps the sign of zero: convert with --exact bits.",
)
NO_BOUND = _cause(
    63,
    "no-bound",
    "No bound is known for an operator, or for this use of it.",
    "Prove the models equal there: keep this operator and what it is computed from as they are. Or "
    "compare the models on data with qgraph check.",
)
OUT_OF_RANGE = _cause(
    64,
    "out-of-range",
    "A result may exceed the range of its type, or the range of an input is not known.",
    "State the ranges of inputs that are not quantized: qgraph prove --range NAME=LOW:HIGH.",
)
OVERFLOW = _cause(
    65,
    "int32-overflow",
    "A sum of products of codes exceeds int32 for some codes and wraps around, in one of the "
    "models only.",
    "Divide the sum into parts, take fewer bits for weights, or keep float operators there.",
)
OUT_OF_TIME = _cause(
    66,
    "out-of-time",
    "The time limit was reached before all inputs of the region were settled.",
    "Run the command again with a longer --timeout, or none.",
)
CONSTANT_NAN = _cause(
    67,
    "nan-of-constants",
    "A constant of the model makes NaN of ordinary inputs: a NaN, an infinite scale, limit or "
    "factor, or a mask of all elements of a Softmax. It reaches nodes that treat NaN differently "
    "in the two models.",
    "Correct the constant, or export the model again: qgraph lint names such quantizers.",
)

NOT_CHECKED = _cause(
    71,
    "not-checked",
    "The checker of certificates has no definition, or no bound, for what is in this part. It uses "
    "the definitions of operators alone, and none of the prover's rules.",
    "Let the prover decide the part anew: prove --verify does, and says so. Or compare the models "
    "on data with qgraph check.",
)
VERDICT_NOT_CHECKED = _cause(
    72,
    "verdict-not-checked",
    "The certificate states that a part differs, or is undecided. The checker confirms equality "
    "and bounds only.",
    "Look at the witness of the part with qgraph check, which runs both models on it.",
)
REWRITTEN = _cause(
    73,
    "rewritten-nodes",
    "The prover may have rewritten the nodes of this part before it compared them, so that the "
    "checker does not find them in the models as they are written.",
    "Let the prover decide the part anew: prove --verify does, and says so.",
)

T = TypeVar("T")


def cause_of(name: str, known: Mapping[str, T]) -> T:
    """Return the entry with an id, in any case.

    Raises:
        OptionError: there is none; the message names the closest one.
    """
    if name.upper() in known:
        return known[name.upper()]
    near = closest(name, known) or NO_EQUAL_FORM.id
    raise OptionError(
        f"There is no id {shown(name)}, expected one such as {near}, or the name of a rule. "
        "'qgraph explain' lists all."
    )


def explained(reason: str, cause: Cause) -> ExplainedReason:
    """Return a reason; one without an id gets that of ``cause``."""
    return reason if isinstance(reason, ExplainedReason) else cause(reason)


def restated(reason: str | None, text: str) -> str:
    """Return a text with the id of the reason that it contains, if that has one."""
    return ExplainedReason(text, reason.id) if isinstance(reason, ExplainedReason) else text


def id_of(reason: str | None) -> str | None:
    """Return the id of a reason; None for a remark."""
    return reason.id if isinstance(reason, ExplainedReason) else None
