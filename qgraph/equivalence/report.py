"""What a comparison of two models found, for programs, CI and people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from xml.etree import ElementTree as ET

from qgraph.equivalence.metrics import OutputComparison
from qgraph.errors import EquivalenceError
from qgraph.report import SCHEMA


class CheckVerdict(StrEnum):
    """Whether two models gave the same outputs, within the tolerance asked for."""

    EQUAL = "equal"
    DIFFERENT = "different"


@dataclass(frozen=True)
class Divergence:
    """The first tensor, in the order of the reference, whose values differ.

    Attributes:
        reference, candidate: its name in both models.
        node: the node of the reference that produces it.
        op: that node's operator, ``domain::Name``.
        max_abs: largest absolute difference; None where shapes differ or it is not finite.
    """

    reference: str
    candidate: str
    node: str
    op: str
    max_abs: float | None


@dataclass(frozen=True)
class CheckReport:
    """The outcome of running two models on the same inputs.

    Attributes:
        verdict: equal or different.
        outputs: each output in the order of the reference.
        failed: names of the outputs beyond the tolerance, with the reason.
        first_divergence: None if all values are equal.
        notes: remarks, such as outputs that were matched by position.
    """

    verdict: CheckVerdict
    outputs: list[OutputComparison]
    failed: Mapping[str, str] = field(default_factory=dict)
    first_divergence: Divergence | None = None
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the report as ``qgraph check`` writes it."""
        from qgraph import __version__

        first = self.first_divergence
        return {
            "qgraph": __version__,
            "schema": SCHEMA,
            "command": "check",
            "verdict": str(self.verdict),
            "outputs": [output.to_json() for output in self.outputs],
            "first_divergence": None if first is None else dict(vars(first)),
        }

    def raise_if_different(self) -> None:
        """Raise unless the verdict is equal.

        Raises:
            EquivalenceError: names the worst output and the first divergence, carries the report.
        """
        if self.verdict is CheckVerdict.EQUAL:
            return
        failed = [output for output in self.outputs if output.name in self.failed]
        worst = max(failed, key=lambda output: (output.max_abs, output.mismatches))
        raise EquivalenceError(
            f"The models differ in {len(failed)} of {len(self.outputs)} outputs, most in "
            f"{worst.name!r}: {self.failed[worst.name]}. {self._origin()}Expected equal values "
            "within the tolerance; change the model there, or allow for it with atol, rtol, "
            "max_steps or min_sqnr.",
            report=self,
        )

    def to_markdown(self) -> str:
        """Return a heading, a table of the outputs and the first divergence."""
        lines = [
            f"## Check: {self.verdict}",
            "",
            "| output | values | differ | max abs | max ulp | max steps | SQNR dB | cosine | |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---|",
        ]
        for output in self.outputs:
            steps = "" if output.max_steps is None else f"{output.max_steps:g}"
            sqnr = "" if output.sqnr_db is None else f"{output.sqnr_db:.1f}"
            verdict = self.failed.get(output.name, "ok")
            lines.append(
                f"| `{output.name}` | {output.elements} | {output.mismatches} "
                f"| {output.max_abs:g} | {output.max_ulp} | {steps} | {sqnr} "
                f"| {output.cosine:.9g} | {verdict} |"
            )
        lines += ["", self._origin().strip()] if self.first_divergence else []
        lines += [f"- {note}" for note in self.notes]
        return "\n".join(lines) + "\n"

    def to_junit(self) -> str:
        """Return a JUnit test suite with one case for each output."""
        suite = ET.Element(
            "testsuite",
            name="qgraph check",
            tests=str(len(self.outputs)),
            failures=str(len(self.failed)),
        )
        for output in self.outputs:
            case = ET.SubElement(suite, "testcase", classname="qgraph.check", name=output.name)
            if output.name in self.failed:
                failure = ET.SubElement(case, "failure", message=self.failed[output.name])
                failure.text = self._origin()
        ET.indent(suite)
        return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"

    def _origin(self) -> str:
        first = self.first_divergence
        if first is None:
            return ""
        by = "" if first.max_abs is None else f" by up to {first.max_abs:g}"
        return (
            f"The first tensor that differs is {first.reference!r}{by}, which node {first.node!r} "
            f"({first.op}) produces in the reference. "
        )
