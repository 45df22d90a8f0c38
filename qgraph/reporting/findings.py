"""The findings of a report for other programs: SARIF for code scanners, JUnit for test servers.

Source: OASIS, Static Analysis Results Interchange Format (SARIF) Version 2.1.0.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

from qgraph.errors import OptionError
from qgraph.reporting.pages import page_of
from qgraph.reporting.view import File, FindingKind, Issue, Page, Severity, pascal
from qgraph.text import json_text, one_line, printable

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def _kind(rule: str, short: str, full: str, help_text: str, level: Severity) -> FindingKind:
    return FindingKind(rule, pascal(rule), short, full, help_text, level)


RULES = (
    _kind(
        "region-differs",
        "A part of the two models differs for some input.",
        "The nodes compute another value than those of the reference for at least one float32 "
        "input; the message has the number of inputs and an example.",
        "Convert with --exact values, or change the model at this node. 'qgraph prove --witness' "
        "writes an input of the whole model that shows the difference.",
        Severity.ERROR,
    ),
    _kind(
        "region-undecided",
        "Whether a part of the two models is equal could not be decided.",
        "The prover has no rule for these nodes, or gave up; the message gives the reason.",
        "Compare the models on data with 'qgraph check'.",
        Severity.WARNING,
    ),
    _kind(
        "bound-exceeded",
        "A part of the two models may differ by more than the limit.",
        "Results of the nodes are bounded, or were measured on data, beyond the limit of --within.",
        "Change the model at this node, or set a larger limit with --within.",
        Severity.ERROR,
    ),
    _kind(
        "bound-unlimited",
        "A part of the two models may differ, and no limit was given.",
        "Results of the nodes are bounded, but not equal; the message has the bound.",
        "Accept the bound with a limit, such as --within 1step.",
        Severity.ERROR,
    ),
    _kind(
        "bound-violated",
        "Data contradicts a bound.",
        "The executed candidate lies farther from what the reference means than was computed to be "
        "possible, from equal codes.",
        "Report it with both models, the command and the inputs that 'qgraph check --witness' "
        "writes: qgraph or the runtime does not compute as the conditions of the bound say.",
        Severity.ERROR,
    ),
    _kind(
        "output-differs",
        "An output differs by more than the tolerance allows.",
        "On the tested inputs, the outputs of candidate and reference differ.",
        "Inspect the first tensor that differs, or accept the difference with --atol, --rtol, "
        "--max-steps or --min-sqnr.",
        Severity.ERROR,
    ),
    _kind(
        "first-divergence",
        "The first tensor whose values differ.",
        "Everything that the reference computes before this node is the same in the candidate.",
        "Compare the operands and parameters of this node in both models.",
        Severity.NOTE,
    ),
    _kind(
        "within-tolerance",
        "An output differs, within the tolerance.",
        "On the tested inputs, values differ by no more than the tolerance.",
        "No action is needed; 'qgraph prove' shows whether other inputs differ by more.",
        Severity.NOTE,
    ),
    _kind(
        "metric-worse",
        "The candidate scores worse than allowed.",
        "A metric on labelled data is lower for the candidate than for the reference.",
        "Inspect the first tensor that differs.",
        Severity.ERROR,
    ),
    _kind(
        "runtime-differs",
        "A runtime does not compute what the model says.",
        "The runtime executes the model differently from the definitions of its operators.",
        "Set the option given in the message, or accept the difference.",
        Severity.WARNING,
    ),
    _kind(
        "quantizer-refused",
        "A quantizer was left unchanged.",
        "No form reaches the requested level of equality, or the node cannot be read.",
        "Lower --exact, choose another dialect, or correct the node; the message gives the reason.",
        Severity.WARNING,
    ),
    _kind(
        "values-moved",
        "A quantizer was replaced by one that differs for some inputs.",
        "The replacement reaches the requested level of equality, but is not equal in value for "
        "every input.",
        "Use --exact values to leave such quantizers unchanged.",
        Severity.WARNING,
    ),
    _kind(
        "weight-changed",
        "Values of a weight changed when they were stored as codes.",
        "Some values of the stored codes differ from those of the quantizer.",
        "Use --exact values to leave such weights unchanged.",
        Severity.WARNING,
    ),
)
"""All kinds of findings, in the order in which results refer to them."""


def sarif_log(document: Mapping[str, Any]) -> str:
    """Return the findings of a report as a SARIF log.

    Raises:
        OptionError: it is no JSON report of check, lint, prove, convert, fold or transform.
    """
    page = page_of(document)
    kinds = _kinds(page)
    files = {file.role: file for file in page.files if file.path}
    subject = [Path(str(file.path)).as_posix().strip("/") for file in list(files.values())[-1:]]
    run: dict[str, Any] = {
        "tool": {"driver": _driver(page.version, kinds)},
        # Code scanners keep only the last run of each such name.
        "automationDetails": {"id": "/".join(["qgraph", page.command, *subject, ""])},
        "invocations": [_invocation(document)],
        "artifacts": [_artifact(file) for file in files.values()],
        "results": [_result(each, kinds, files) for each in page.findings if each.rule],
        "columnKind": "unicodeCodePoints",
        "properties": {
            "verdict": document.get("verdict", page.verdict),
            "summary": document.get("summary"),
        },
    }
    return json_text({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})


def _invocation(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether all models were read, and a notification for each other one."""
    notifications = [
        {
            "level": "error",
            "message": {"text": each["error"]},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": uri(each["path"])}}}],
        }
        for each in document.get("failed", ())
    ]
    ended = {"executionSuccessful": not notifications}
    return ended | ({"toolExecutionNotifications": notifications} if notifications else {})


def _kinds(page: Page) -> dict[str, FindingKind]:
    """Return the kinds of the findings of a page by id, in the order of their numbers."""
    return {rule.id: rule for rule in page.kinds or RULES}


def _driver(version: str, kinds: Mapping[str, FindingKind]) -> dict[str, Any]:
    return {
        "name": "qgraph",
        "version": version,
        "semanticVersion": version,
        "rules": [
            {
                "id": rule.id,
                "name": rule.name,
                "shortDescription": {"text": rule.short},
                "fullDescription": {"text": rule.full},
                "help": {"text": rule.help},
                "defaultConfiguration": {"level": str(rule.level)},
            }
            for rule in kinds.values()
        ],
    }


def _artifact(file: File) -> dict[str, Any]:
    artifact: dict[str, Any] = {"location": {"uri": uri(str(file.path))}}
    if file.sha256:
        artifact["hashes"] = {"sha-256": file.sha256}
    return artifact


def uri(path: str) -> str:
    """Return a path as a URI: relative ones stay relative, to where the command ran."""
    return Path(path).as_uri() if Path(path).is_absolute() else quote(Path(path).as_posix())


def _result(finding: Issue, kinds: Mapping[str, FindingKind], files: Mapping[str, File]) -> Any:
    rule = str(finding.rule)
    place = {"name": finding.place, "kind": finding.kind}
    location: dict[str, Any] = {"logicalLocations": [place]}
    if finding.role in files:
        artifact = {
            "uri": uri(str(files[finding.role].path)),
            "index": list(files).index(finding.role),
        }
        # Models have no lines, but code scanners show no result without one.
        location["physicalLocation"] = {"artifactLocation": artifact, "region": {"startLine": 1}}
    identity = "\0".join((rule, finding.kind, finding.place))
    result = {
        "ruleId": rule,
        "ruleIndex": list(kinds).index(rule),
        "level": str(finding.level or kinds[rule].level),
        "message": {"text": finding.text},
        "locations": [location],
        "partialFingerprints": {"node/v1": hashlib.sha256(identity.encode()).hexdigest()},
        "properties": dict(finding.properties or {}),
    }
    if finding.fix is not None and finding.role in files:
        # A model is no text: the change is what the words say, and no bytes are given for it.
        none = {"deletedRegion": {"byteOffset": 0, "byteLength": 0}}
        change = {"artifactLocation": artifact, "replacements": [none]}
        result["fixes"] = [{"description": {"text": finding.fix}, "artifactChanges": [change]}]
    return result


_WITH_TESTS = ("check", "lint", "prove")


def junit_report(document: Mapping[str, Any]) -> str:
    """Return a JUnit report; equal names of cases are numbered.

    Servers tell tests apart by their class, so the path of the candidate is part of that.

    Raises:
        OptionError: it is no JSON report of check, lint or prove.
    """
    if document.get("command") not in _WITH_TESTS:
        raise OptionError(
            f"The report is of {document.get('command')!r}, expected one of "
            f"{', '.join(_WITH_TESTS)}: only these have cases that fail. Write another form."
        )
    page = page_of(document)
    kinds = _kinds(page)
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
        level = Severity.NOTE
        if finding.rule is not None:
            level = finding.level or kinds[finding.rule].level
        if finding.rule is None or level is Severity.NOTE:
            continue
        # An undecided proof is an error of the test; a warning of lint is a failure like others.
        is_failure = level is Severity.ERROR or page.command == "lint"
        outcome = "failure" if is_failure else "error"
        count[f"{outcome}s"] += 1
        attributes = {"message": printable(finding.text), "type": finding.rule}
        ET.SubElement(case, outcome, attributes).text = printable(finding.more)
    for unread in document.get("failed", ()):
        count.update(("tests", "errors"))
        name = one_line(printable(unread["path"]))
        case = ET.SubElement(suite, "testcase", classname=class_name, name=name)
        ET.SubElement(case, "error", message=printable(unread["error"]), type="unreadable")
    for key in ("tests", "failures", "errors", "skipped"):
        suite.set(key, str(count[key]))
    sentences = [page.sentence, *(text for section in page.sections for text in section.text)]
    ET.SubElement(suite, "system-out").text = printable("\n".join(sentences))
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
