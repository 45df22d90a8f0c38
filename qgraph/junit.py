"""JUnit reports: the form in which continuous integration takes the results of tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from xml.etree import ElementTree as ET

from qgraph.markup import one_line, printable


@dataclass(frozen=True)
class Case:
    """One thing that was looked at.

    Attributes:
        name: what it is.
        failure: what is wrong with it; None where nothing is.
        kind: of the failure, in a word.
        is_error: whether nothing is known to be wrong, but it could not be looked at either.
        text: more about the failure.
    """

    name: str
    failure: str | None = None
    kind: str = "different"
    is_error: bool = False
    text: str = ""


def junit(command: str, model: str | None, cases: Sequence[Case], told: str = "") -> str:
    """Return a test suite.

    Args:
        command: what looked, such as ``check``.
        model: path of the file that was looked at; None if there is none. Servers tell tests apart
            by their class, so it is part of that.
        cases: in this order; equal names are numbered.
        told: what else there is to say.
    """
    failed = [case for case in cases if case.failure is not None]
    errors = sum(case.is_error for case in failed)
    suite = ET.Element(
        "testsuite",
        name=f"qgraph {command}",
        tests=str(len(cases)),
        failures=str(len(failed) - errors),
        errors=str(errors),
        skipped="0",
    )
    parts = [f"qgraph.{command}"]
    if model is not None:
        # A dot would begin the name of another class.
        parts.append(PurePath(model).with_suffix("").as_posix().strip("/").replace(".", "_"))
    seen: dict[str, int] = {}
    for case in cases:
        seen[case.name] = seen.get(case.name, 0) + 1
        number = f" ({seen[case.name]})" if seen[case.name] > 1 else ""
        element = ET.SubElement(
            suite,
            "testcase",
            classname=printable(".".join(parts)),
            name=one_line(case.name) + number,
        )
        if case.failure is not None:
            failure = ET.SubElement(
                element,
                "error" if case.is_error else "failure",
                message=printable(case.failure),
                type=case.kind,
            )
            failure.text = printable(case.text)
    if told:
        ET.SubElement(suite, "system-out").text = printable(told)
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
