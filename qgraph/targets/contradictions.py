"""Find contradictions in a profile whose values have the right types."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from qgraph.targets.kernels import ANY, KernelRule, OperandRule
from qgraph.targets.layer import LAYERS, Granularity
from qgraph.targets.profile import Profile
from qgraph.targets.rules import Loads

_TYPES = frozenset(dtype.name for dtype in ir.DataType)
_WORDS = {
    "constant": ("yes", "no", ANY),
    "direct": ("both", "x", "y"),
    "quantizer": ("required", "none", ANY),
    "scale": ("as written", "product", "ignored"),
    "property": ("constant", "positive", "power-of-two"),
}

Found = tuple[tuple[str | int, ...], str]


def contradictions(profile: Profile) -> Iterator[Found]:
    """Yield place and text of each contradiction in a profile."""
    yield from _sources(profile)
    opsets = profile.versions.opsets
    if opsets is not None and opsets[0] > opsets[1]:
        yield ("versions", "opsets"), f"{list(opsets)}: the lowest comes first."
    if profile.processors and profile.processor not in (*profile.processors, ANY):
        yield ("processor",), f"{profile.processor!r} is not among the processors."
    ids: set[str] = set()
    for index, kernel in enumerate(profile.kernel):
        place = ("kernel", index)
        if kernel.id in ids:
            yield (*place, "id"), f"{kernel.id!r} is given twice. Name one of them otherwise."
        ids.add(kernel.id)
        for where, what in _kernel(kernel):
            yield (*place, *where), what
        for name in kernel.processors:
            if name not in profile.processors:
                yield (*place, "processors"), f"{name!r} is not among the processors."
    for index, saturation in enumerate(profile.saturation):
        for name in saturation.processors:
            if name not in profile.processors:
                place = ("saturation", index)
                yield (*place, "processors"), f"{name!r} is not among the processors."
    for index, sums in enumerate(profile.sums):
        number = sums.order.partition("chunk:")[2]
        if sums.order != ANY and not (number.isdigit() and int(number)):
            yield ("sums", index, "order"), f"{sums.order!r}, expected any, or chunk:N."


def _sources(profile: Profile) -> Iterator[Found]:
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


def _kernel(kernel: KernelRule) -> Iterator[Found]:
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
        yield from _word(rule.direct, "direct", ("types", index, "direct"))
    for name, operand in (("x", kernel.x), ("w", kernel.w), ("y", kernel.y)):
        for where, what in _operand(operand):
            yield (name, *where), what
    yield from _word(kernel.output.quantizer, "quantizer", ("output", "quantizer"))
    yield from _word(kernel.bias.scale, "scale", ("bias", "scale"))
    for name in ("within", "gap"):
        if getattr(kernel.bias, name) and kernel.bias.scale != "product":
            yield ("bias", name), "a deviation is allowed from the product only."
    for key in ("redundant", "never"):
        if both := set(kernel.behind.operators or ()) & set(getattr(kernel.behind, key)):
            yield ("behind", key), f"{', '.join(sorted(both))}: listed in 'operators', too."


def _operand(rule: OperandRule) -> Iterator[Found]:
    reach = rule.granularity
    if rule.axis and reach is not None and not {Granularity.AXIS, ANY} & set(reach):
        yield ("axis",), "'granularity' excludes scales per axis."
    if rule.blocks is not None and reach is not None and not {Granularity.BLOCK, ANY} & set(reach):
        yield ("blocks",), "'granularity' excludes blocks."
    yield from _word(rule.constant, "constant", ("constant",))
    for name in rule.scale:
        yield from _word(name, "property", ("scale",))


def _word(value: str | None, key: str, place: tuple[str | int, ...]) -> Iterator[Found]:
    if value is not None and value not in _WORDS[key]:
        yield place, f"{value!r}, expected one of {', '.join(_WORDS[key])}."
