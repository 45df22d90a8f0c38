"""Reports as JUnit test suites: a case for each region of a proof, or each output of a check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any
from xml.etree import ElementTree as ET

from qgraph.errors import OptionError
from qgraph.reporting.pages import page_of
from qgraph.reporting.sarif import LEVELS, Level
from qgraph.text import one_line, printable

_COMMANDS = ("check", "prove")


def junit_report(document: Mapping[str, Any]) -> str:
    """Return a JUnit report; equal names of cases are numbered.

    Servers tell tests apart by their class, so the path of the candidate is part of that.

    Args:
        document: a JSON report of check or prove.

    Raises:
        OptionError: it is no such report.
    """
    if document.get("command") not in _COMMANDS:
        raise OptionError(
            f"The report is of {document.get('command')!r}, expected one of "
            f"{' and '.join(_COMMANDS)}: only these have cases that fail. Write another form."
        )
    page = page_of(document)
    suite = ET.Element("testsuite", name=f"qgraph {page.command}")
    path = next((file.path for file in page.files if file.role == "candidate"), None)
    # A dot would begin the name of another class.
    parts = [PurePath(path).with_suffix("").as_posix().strip("/").replace(".", "_")] if path else []
    class_name = printable(".".join(["qgraph", page.command, *parts]))
    count: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for finding in page.findings:
        if finding.test is None:
            continue
        count["tests"] += 1
        seen[finding.test] += 1
        number = f" ({seen[finding.test]})" if seen[finding.test] > 1 else ""
        name = one_line(finding.test) + number
        case = ET.SubElement(suite, "testcase", classname=class_name, name=name)
        level = Level.NOTE if finding.rule is None else LEVELS[finding.rule]
        if finding.rule is None or level is Level.NOTE:
            continue
        kind = "failure" if level is Level.ERROR else "error"
        count[f"{kind}s"] += 1
        attributes = {"message": printable(finding.text), "type": finding.rule}
        ET.SubElement(case, kind, attributes).text = printable(finding.more)
    for key in ("tests", "failures", "errors", "skipped"):
        suite.set(key, str(count[key]))
    sentences = [page.sentence, *(text for section in page.sections for text in section.text)]
    ET.SubElement(suite, "system-out").text = printable("\n".join(sentences))
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
