"""Facts about a target: the contents of its TOML file, and contradictions among them.

A key that is left out, or whose value is ``unknown``, says that nothing is known. ``any`` in a list
stands for everything. Every table that states a fact names its sources.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

import onnx_ir as ir

from qgraph.records import dataclass, field, replace
from qgraph.targets.layer import (
    ANY,
    LAYERS,
    Granularity,
    KernelRule,
    Loads,
    Names,
    OperandRule,
    ZeroPoint,
)
from qgraph.targets.rules import LoadRule
from qgraph.text import fields_json


class Evidence(StrEnum):
    """How a fact was determined."""

    RUN = "run"
    """Measured or executed with the version that is named."""

    SOURCE = "source"
    """Read in a file of the runtime."""

    PAGE = "documentation"
    """Read on a page of its documentation."""

    PULL = "pull request"


@dataclass(frozen=True)
class FactSource:
    """Where facts come from: ``[sources.NAME]``.

    Attributes:
        kind: how they were found out.
        what: version, file or page.
        date: when it was run or read.
    """

    kind: Evidence
    what: str
    date: datetime.date


@dataclass(frozen=True)
class Versions:
    """Which files a runtime reads: ``[versions]``.

    Attributes:
        seen: versions of the runtime that the profile speaks of.
        opsets: lowest and highest version of the standard operators.
        ir_version: highest version of the file format.
        beyond: verdict on other opsets and formats.
    """

    source: Names
    seen: Names = ()
    opsets: tuple[int, int] | None = None
    ir_version: int | None = None
    beyond: Loads = Loads.NO


@dataclass(frozen=True)
class OperatorsOnCodes:
    """Operators that a runtime computes on codes, or through which codes pass: ``[[codes]]``.

    Attributes:
        operators: their types.
        source: where it comes from.
        passes: whether codes pass through unchanged.
        quantizer: whether a following quantizer is ``required``, or not: ``any``.
        runs: what executed graphs name them.
        types: of the codes.
        equal_parameters: whether scale and zero point must be equal on both sides.
        computes: name of the definition.
        wrong: types of codes of which it computes other values than the model says.
        note: what to mind.
    """

    operators: Names
    source: Names
    passes: bool
    quantizer: str | None = None
    runs: Names = ()
    types: Names | None = None
    equal_parameters: bool | None = None
    computes: str | None = None
    wrong: Names = ()
    note: str = ""


@dataclass(frozen=True)
class Storage:
    """Whether kernels take weights that are stored in a type: ``[[storage]]``.

    Attributes:
        codes: types of the codes.
        operators: whose weights they are.
        taken: the verdict.
        source: where it comes from.
        ratio: time of a layer whose data are no codes with such weights, divided by its time with
            weights in float; None if it was not measured.
        note: what to mind.
    """

    codes: Names
    operators: Names
    taken: Loads
    source: Names
    ratio: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Trap:
    """Something that changes values or time silently: ``[[trap]]``.

    Attributes:
        id: name in the profile.
        text: what happens, and what to do.
        source: where it comes from.
        processors: on which; empty for all.
        option: the session option that prevents it, as ``key=value``.
    """

    id: str
    text: str
    source: Names
    processors: Names = ()
    option: str | None = None


@dataclass(frozen=True)
class SaturatingProducts:
    """Products whose sums of two are cut off to 16 bits: ``[[saturation]]``.

    Attributes:
        x, w: types of the codes of data and of weights.
        largest: weights of at most this absolute value are safe.
        processors: on which.
        source: where it comes from.
        instead: type of weights that the same kernels multiply exactly; None if there is none.
        operators: operators without kernels of their own that become such products.
        exact: groups of convolutions that add no pairs, if each channel has one filter.
        halved: operators that round half of each weight where data stay INT8, as they do with an
            operator between QuantizeLinear and DequantizeLinear.
        through: operators between DequantizeLinear and a product that is computed on codes
            nevertheless, since the runtime moves scales behind it.
    """

    x: Names
    w: Names
    largest: int
    processors: Names
    source: Names
    instead: str | None = None
    operators: Names = ()
    exact: Names = ()
    halved: Names = ()
    through: Names = ()


@dataclass(frozen=True)
class Sums:
    """Order in which kernels add float numbers: ``[[sums]]``.

    Attributes:
        operators: which.
        order: ``any``, or ``chunk:N``.
        source: where it comes from.
        when: under which circumstances.
        processors: on which; empty for all.
    """

    operators: Names
    order: str
    source: Names
    when: str = ""
    processors: Names = ()


@dataclass(frozen=True)
class SlowForm:
    """A form that was measured to be slower: ``[[slower]]``; conditions are joined.

    Attributes:
        text: the form.
        source: where it comes from.
        ratio: time divided by the time of ``than``.
        than: what it was compared with: ``float``, or a form in words.
        operators, groups: of the layer.
        x_types, w_types: types of the codes.
        x_zero, w_zero: zero points.
        y_written: forms of the quantizer of the result.
    """

    text: str
    source: Names
    ratio: float
    than: str = "float"
    operators: Names | None = None
    groups: Names | None = None
    x_types: Names | None = None
    w_types: Names | None = None
    x_zero: tuple[ZeroPoint, ...] | None = None
    w_zero: tuple[ZeroPoint, ...] | None = None
    y_written: Names | None = None


@dataclass(frozen=True)
class SessionOption:
    """An option of a session: ``[[option]]``.

    Attributes:
        key: its name.
        default: its default.
        effect: what other values do.
        source: where it comes from.
        needed: value that models need to be computed as they are written; None if none.
        kernels: executed kernels that need the value; empty for all models.
    """

    key: str
    effect: str
    source: Names
    default: str | None = None
    needed: str | None = None
    kernels: Names = ()


@dataclass(frozen=True, repr=False)
class Profile:
    """All that is known of a target.

    Attributes:
        name: to ask for it.
        knowledge: in a few words, what the profile speaks of and how that was found out.
        sources: by name.
        versions: which files it reads.
        processor: the one that is meant where none is named.
        processors: processors that differ.
        executed: Python module that shows the executed graph; None if there is none.
        by_name: whether it goes by the names of operators, so that functions are not looked into.
        load: which nodes it loads; the first rule that fits counts.
        kernel: its kernels; the first that takes a layer counts.
        codes, storage, trap, saturation, sums, slower, option: what else is known.
        note: remarks about the whole.
        path: file that it was read from.
        digest: SHA-256 of the file.
        is_named: whether the user named the processor.
    """

    name: str
    knowledge: str
    sources: Mapping[str, FactSource]
    versions: Versions
    processor: str = "any"
    processors: Mapping[str, str] = field(default_factory=dict)
    executed: str | None = None
    by_name: bool = False
    note: str = ""
    load: tuple[LoadRule, ...] = ()
    kernel: tuple[KernelRule, ...] = ()
    codes: tuple[OperatorsOnCodes, ...] = ()
    storage: tuple[Storage, ...] = ()
    trap: tuple[Trap, ...] = ()
    saturation: tuple[SaturatingProducts, ...] = ()
    sums: tuple[Sums, ...] = ()
    slower: tuple[SlowForm, ...] = ()
    option: tuple[SessionOption, ...] = ()
    path: str = ""
    digest: str = ""
    is_named: bool = False

    def __repr__(self) -> str:
        return f"<Profile: {self.name}, {self.knowledge}>"

    @property
    def passing(self) -> frozenset[str]:
        """Operators through which codes pass unchanged."""
        return frozenset(name for each in self.codes if each.passes for name in each.operators)

    def on(self, processor: str) -> Profile:
        """Return the profile for one of its processors."""
        return replace(self, processor=processor, is_named=True)

    @property
    def saturating(self) -> tuple[SaturatingProducts, ...]:
        """The products that saturate on the processor."""
        return tuple(each for each in self.saturation if self.processor in each.processors)

    def to_json(self) -> dict[str, Any]:
        """Return all that is known; null where nothing is, lists without order sorted."""
        return fields_json(self)


_TYPES = frozenset(dtype.name for dtype in ir.DataType)
Contradiction = tuple[tuple[str | int, ...], str]


def contradictions(profile: Profile) -> Iterator[Contradiction]:
    """Yield place and text of each contradiction in a profile."""
    yield from _sources(profile)
    opsets = profile.versions.opsets
    if opsets is not None and opsets[0] > opsets[1]:
        yield ("versions", "opsets"), f"{list(opsets)}: the lowest comes first."
    if profile.processors and profile.processor not in (*profile.processors, ANY):
        yield ("processor",), f"{profile.processor!r} is not among the processors."
    ids: set[str] = set()
    for table in ("kernel", "saturation"):
        for index, each in enumerate(getattr(profile, table)):
            for name in each.processors:
                if name not in profile.processors:
                    yield (table, index, "processors"), f"{name!r} is not among the processors."
    for index, kernel in enumerate(profile.kernel):
        place = ("kernel", index)
        if kernel.id in ids:
            yield (*place, "id"), f"{kernel.id!r} is given twice. Name one of them otherwise."
        ids.add(kernel.id)
        for where, what in _kernel(kernel):
            yield (*place, *where), what
    for index, sums in enumerate(profile.sums):
        number = sums.order.partition("chunk:")[2]
        if sums.order != ANY and not (number.isdigit() and int(number)):
            yield ("sums", index, "order"), f"{sums.order!r}, expected any, or chunk:N."


def _sources(profile: Profile) -> Iterator[Contradiction]:
    """Yield facts whose source is missing."""
    tables = [name for name, facts in vars(profile).items() if isinstance(facts, tuple)]
    cells = [
        ((table, i), cell) for table in tables for i, cell in enumerate(getattr(profile, table))
    ]
    for place, cell in [(("versions",), profile.versions), *cells]:
        if not cell.source:
            yield place, "'source' is missing: each fact states where it comes from."
        for name in cell.source:
            if name not in profile.sources:
                known = ", ".join(profile.sources) or "none"
                yield (*place, "source"), f"{name!r} is not among the sources ({known})."


def _kernel(kernel: KernelRule) -> Iterator[Contradiction]:
    for name in kernel.operators:
        if name not in LAYERS:
            yield ("operators",), f"{name!r}, expected some of {', '.join(sorted(LAYERS))}."
    if kernel.exists is Loads.NO and (kernel.types or not kernel.reason):
        yield ("exists",), "a kernel that does not exist has a reason, and no types."
    if kernel.exists is Loads.UNKNOWN and not kernel.reason:
        yield ("exists",), "'reason' is missing: what is not known."
    if kernel.exists is not Loads.NO and not kernel.types:
        yield (), "'types' is missing: which types of codes go together."
    for index, rule in enumerate(kernel.types):
        for name in (*rule.x, *rule.w, *rule.y):
            if name not in _TYPES and name != ANY:
                yield ("types", index), f"{name!r} is not a type of ONNX, such as INT8."
    for name, operand in (("x", kernel.x), ("w", kernel.w), ("y", kernel.y)):
        for where, what in _operand(operand):
            yield (name, *where), what
    for name in ("within", "gap"):
        if getattr(kernel.bias, name) and kernel.bias.scale != "product":
            yield ("bias", name), "a deviation is allowed from the product only."
    for key in ("redundant", "never"):
        if both := set(kernel.behind.operators or ()) & set(getattr(kernel.behind, key)):
            yield ("behind", key), f"{', '.join(sorted(both))}: listed in 'operators', too."


def _operand(rule: OperandRule) -> Iterator[Contradiction]:
    reach = rule.granularity
    if rule.axis and reach is not None and not {Granularity.AXIS, ANY} & set(reach):
        yield ("axis",), "'granularity' excludes scales per axis."
    if rule.blocks is not None and reach is not None and not {Granularity.BLOCK, ANY} & set(reach):
        yield ("blocks",), "'granularity' excludes blocks."
