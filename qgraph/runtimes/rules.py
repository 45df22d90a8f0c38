"""The form of what is known of a runtime: rules about nodes, and limits of versions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from qgraph.runtimes.node_forms import Form, Granularity


class Loads(StrEnum):
    """Whether a runtime takes a model: ``yes`` if nothing is known against it."""

    YES = "yes"
    UNKNOWN = "unknown"
    NO = "no"


@dataclass(frozen=True)
class Rule:
    """What a runtime makes of some nodes; the conditions that are given have to hold together.

    Attributes:
        loads: the verdict.
        reason: why, or what to mind; empty where there is nothing to say.
        domains, names, codes, scales, granularities, blocks, bits: what the node has one of.
        readers: operators one of which reads the output.
        weight, offset, call: as in :class:`qgraph.runtimes.node_forms.Form`.
        known, declared: the same.
    """

    loads: Loads
    reason: str = ""
    domains: frozenset[str] | None = None
    names: frozenset[str] | None = None
    codes: frozenset[str] | None = None
    scales: frozenset[str] | None = None
    granularities: frozenset[Granularity] | None = None
    blocks: frozenset[int] | None = None
    bits: frozenset[int] | None = None
    readers: frozenset[str] | None = None
    weight: bool | None = None
    offset: bool | None = None
    call: bool | None = None
    known: bool | None = None
    declared: bool | None = None

    def fits(self, form: Form) -> bool:
        """Return whether the rule speaks of such a node."""
        several = (
            (self.domains, form.domain),
            (self.names, form.name),
            (self.codes, form.codes),
            (self.scales, form.scale),
            (self.granularities, form.granularity),
            (self.blocks, form.block),
            (self.bits, form.bits),
        )
        if self.readers is not None and self.readers.isdisjoint(form.readers):
            return False
        single = (
            (self.weight, form.weight),
            (self.offset, form.offset),
            (self.call, form.call),
            (self.known, form.known),
            (self.declared, form.declared),
        )
        return all(wanted is None or found in wanted for wanted, found in several) and all(
            wanted is None or found is wanted for wanted, found in single
        )


@dataclass(frozen=True)
class Target:
    """A runtime, and what is known of it.

    Attributes:
        name: to ask for it.
        knowledge: the version that the rules were found with, and how.
        opsets: lowest and highest version of the standard operators.
        ir_version: highest version of the file format; None if not known.
        rules: the first that fits a node counts; a node that none fits is taken.
        by_name: whether it goes by the names of operators, so that functions are not looked into.
        beyond: the verdict on other opsets and formats.
    """

    name: str
    knowledge: str
    opsets: tuple[int, int]
    ir_version: int | None
    rules: tuple[Rule, ...]
    by_name: bool = False
    beyond: Loads = Loads.NO
