"""Reports in SARIF 2.1.0, which code scanners and editors show: one result for each finding.

Source: OASIS, Static Analysis Results Interchange Format (SARIF) Version 2.1.0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote

from qgraph.reporting.pages import page_of
from qgraph.reporting.view import File, Issue
from qgraph.text import json_text

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


class Level(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Rule:
    """A kind of finding."""

    id: str
    name: str
    short: str
    full: str
    help: str
    level: Level


RULES = (
    Rule(
        "region-differs",
        "RegionDiffers",
        "A part of the two models differs for some input.",
        "The nodes compute another value than those of the reference for at least one float32 "
        "input; how many inputs there are is counted, and one is given.",
        "Convert with --exact values, or change the model at this node. 'qgraph prove --witness' "
        "writes an input of the whole model that shows the difference.",
        Level.ERROR,
    ),
    Rule(
        "region-undecided",
        "RegionUndecided",
        "Whether a part of the two models is equal could not be decided.",
        "The proof has no rule for these nodes, or gave up; the message says why.",
        "Compare the models on data with 'qgraph check'.",
        Level.WARNING,
    ),
    Rule(
        "output-differs",
        "OutputDiffers",
        "An output differs by more than the tolerance allows.",
        "On the inputs that were tried, the candidate's output is not that of the reference.",
        "Look at the first tensor that differs, or allow for it with --atol, --rtol, --max-steps "
        "or --min-sqnr.",
        Level.ERROR,
    ),
    Rule(
        "first-divergence",
        "FirstDivergence",
        "The first tensor whose values differ.",
        "Everything that the reference computes before this node is the same in the candidate.",
        "Compare the operands and parameters of this node in both models.",
        Level.NOTE,
    ),
    Rule(
        "within-tolerance",
        "WithinTolerance",
        "An output differs, within the tolerance.",
        "On the inputs that were tried, values differ by no more than was allowed.",
        "Nothing has to be done; 'qgraph prove' tells whether other inputs differ by more.",
        Level.NOTE,
    ),
    Rule(
        "metric-worse",
        "MetricWorse",
        "The candidate scores worse than allowed.",
        "A metric on labelled data is lower for the candidate than for the reference.",
        "Look at the first tensor that differs.",
        Level.ERROR,
    ),
    Rule(
        "runtime-differs",
        "RuntimeDiffers",
        "A runtime does not compute what the model says.",
        "The model is run in another way than its operators are defined, by a choice of the "
        "runtime.",
        "Set the option that the message names, or allow for the difference.",
        Level.WARNING,
    ),
    Rule(
        "quantizer-refused",
        "QuantizerRefused",
        "A quantizer was left as it was.",
        "No form was found that is as equal as was asked for, or the node cannot be read.",
        "Lower --exact, choose another dialect, or mend the node; the message says what is wrong.",
        Level.WARNING,
    ),
    Rule(
        "values-moved",
        "ValuesMoved",
        "A quantizer was replaced by one that differs for some inputs.",
        "The replacement is as equal as was asked for, but not equal in value for every input.",
        "Ask for --exact values to leave such quantizers as they are.",
        Level.WARNING,
    ),
    Rule(
        "weight-changed",
        "WeightChanged",
        "Values of a weight changed when they were stored as codes.",
        "Some of the values that the stored codes stand for are not those of the quantizer.",
        "Ask for --exact values to leave such weights as they are.",
        Level.WARNING,
    ),
)
"""All kinds of findings, in the order in which results refer to them."""

LEVELS = {rule.id: rule.level for rule in RULES}
"""How bad a finding is, by the id of its rule."""

_INDEX = {rule.id: index for index, rule in enumerate(RULES)}


def sarif_log(document: Mapping[str, Any]) -> str:
    """Return the findings of a report as a SARIF log.

    Args:
        document: a JSON report of check, prove, convert, fold or transform.

    Raises:
        OptionError: it is no such report.
    """
    page = page_of(document)
    files = {file.role: file for file in page.files if file.path}
    subject = [Path(str(file.path)).as_posix().strip("/") for file in list(files.values())[-1:]]
    run: dict[str, Any] = {
        "tool": {"driver": _driver(page.version)},
        # Code scanners take only one run of each such name: that of the last model.
        "automationDetails": {"id": "/".join(["qgraph", page.command, *subject, ""])},
        "invocations": [{"executionSuccessful": True}],
        "artifacts": [_artifact(file) for file in files.values()],
        "results": [_result(each, each.rule, files) for each in page.findings if each.rule],
        "columnKind": "unicodeCodePoints",
        "properties": {"verdict": page.verdict, "summary": document.get("summary")},
    }
    return json_text({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})


def _driver(version: str) -> dict[str, Any]:
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
            for rule in RULES
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


def _result(finding: Issue, rule: str, files: Mapping[str, File]) -> dict[str, Any]:
    place = {"name": finding.place, "kind": finding.kind}
    location: dict[str, Any] = {"logicalLocations": [place]}
    if finding.role in files:
        location["physicalLocation"] = {
            "artifactLocation": {
                "uri": uri(str(files[finding.role].path)),
                "index": list(files).index(finding.role),
            },
            # Models have no lines, but code scanners show no result without one.
            "region": {"startLine": 1},
        }
    identity = "\0".join((rule, finding.kind, finding.place))
    return {
        "ruleId": rule,
        "ruleIndex": _INDEX[rule],
        "level": str(LEVELS[rule]),
        "message": {"text": finding.text},
        "locations": [location],
        "partialFingerprints": {"node/v1": hashlib.sha256(identity.encode()).hexdigest()},
        "properties": dict(finding.properties or {}),
    }
