"""Reports in SARIF 2.1.0, which code scanners and editors show: one result for each finding.

Source: OASIS, Static Analysis Results Interchange Format (SARIF) Version 2.1.0.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote

from qgraph.errors import OptionError
from qgraph.files import json_text
from qgraph.reporting.prove_view import difference, place
from qgraph.reporting.view import amount, counted, example, operator, whole

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
        "No spelling was found that is as equal as was asked for, or the node cannot be read.",
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

_PLACES = {rule.id: place for place, rule in enumerate(RULES)}


@dataclass(frozen=True)
class _Result:
    rule: str
    text: str
    file: str | None
    node: str
    kind: str
    properties: Mapping[str, Any]


def sarif_log(document: Mapping[str, Any]) -> str:
    """Return the findings of a report as a SARIF log.

    Args:
        document: a JSON report of check, prove, convert, fold or transform; one of check with
            ``reference`` and ``candidate``, as a certificate has them.

    Raises:
        OptionError: it is no such report.
    """
    plain = json.loads(json_text(dict(document)))
    found = {
        "check": _of_check,
        "prove": _of_proof,
        "convert": _of_rewriting,
        "fold": _of_rewriting,
        "transform": _of_rewriting,
    }.get(plain.get("command"))
    if found is None:
        raise OptionError(
            f"The report is of {plain.get('command')!r}, expected one of check, prove, convert, "
            "fold and transform. Make it with one of these commands."
        )
    files = _files(plain)
    subject = [Path(file["path"]).as_posix().strip("/") for file in files[-1:]]
    run: dict[str, Any] = {
        "tool": {"driver": _driver(str(plain["qgraph"]))},
        # Code scanners take only one run of each such name: that of the last model.
        "automationDetails": {"id": "/".join(["qgraph", str(plain["command"]), *subject, ""])},
        "invocations": [{"executionSuccessful": True}],
        "artifacts": [_artifact(file) for file in files],
        "results": [_result(result, files) for result in found(plain)],
        "columnKind": "unicodeCodePoints",
        "properties": {"verdict": plain.get("verdict"), "summary": plain.get("summary")},
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


def _files(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    roles = ("reference", "candidate", "input", "output")
    found = [document[role] for role in roles if isinstance(document.get(role), Mapping)]
    return [file for file in found if file.get("path")]


def _artifact(file: Mapping[str, Any]) -> dict[str, Any]:
    artifact: dict[str, Any] = {"location": {"uri": uri(file["path"])}}
    if file.get("sha256"):
        artifact["hashes"] = {"sha-256": file["sha256"]}
    return artifact


def uri(path: str) -> str:
    """Return a path as a URI: relative ones stay relative, to where the command ran."""
    return Path(path).as_uri() if Path(path).is_absolute() else quote(Path(path).as_posix())


def _result(result: _Result, files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    location: dict[str, Any] = {"logicalLocations": [{"name": result.node, "kind": result.kind}]}
    if result.file is not None:
        place = [file["path"] for file in files].index(result.file)
        location["physicalLocation"] = {
            "artifactLocation": {"uri": uri(result.file), "index": place},
            # Models have no lines, but code scanners show no result without one.
            "region": {"startLine": 1},
        }
    identity = "\0".join((result.rule, result.kind, result.node))
    return {
        "ruleId": result.rule,
        "ruleIndex": _PLACES[result.rule],
        "level": str(RULES[_PLACES[result.rule]].level),
        "message": {"text": result.text},
        "locations": [location],
        "partialFingerprints": {"node/v1": hashlib.sha256(identity.encode()).hexdigest()},
        "properties": dict(result.properties),
    }


def _path(document: Mapping[str, Any], role: str) -> str | None:
    file = document.get(role)
    return file.get("path") if isinstance(file, Mapping) else None


def _of_proof(document: Mapping[str, Any]) -> Iterator[_Result]:
    for region in document["regions"]:
        if region["verdict"] == "proved":
            continue
        # An empty candidate region is a value that comes straight from an operand.
        nodes = region["candidate_nodes"]
        node = place(region, "candidate")
        ours, theirs = region["reference_nodes"], place(region, "reference")
        fields = ("exactness", "method", "counted", "differing_inputs", "largest_steps", "witness")
        properties = {name: region[name] for name in fields} | {
            "reference_nodes": ours,
            "candidate_nodes": nodes,
        }
        if region["verdict"] == "undecided":
            rule, text = "region-undecided", f"It is not decided whether this is {theirs!r}: "
            text += str(region["reason"])
        else:
            rule = "region-differs"
            text = difference(region)
        yield _Result(rule, text, _path(document, "candidate"), node, "node", properties)


def _of_check(document: Mapping[str, Any]) -> Iterator[_Result]:
    for output in document["outputs"]:
        failed = output.get("failed")
        if not output["mismatches"] and not failed:
            continue
        text = failed or (
            f"{whole(output['mismatches'])} of {whole(output['elements'])} values differ, by up "
            f"to {amount(output['max_abs'], 4)}, {whole(output['max_ulp'])} ulp"
        )
        rule = "output-differs" if failed else "within-tolerance"
        properties = {name: value for name, value in output.items() if name != "name"}
        yield _Result(
            rule, text, _path(document, "candidate"), str(output["name"]), "output", properties
        )
    first = document.get("first_divergence")
    if first is not None:
        by = "" if first["max_abs"] is None else f" by up to {amount(first['max_abs'], 4)}"
        text = (
            f"{first['reference']!r}, which {operator(first['op'])} {first['node']!r} produces, is "
            f"the first tensor that differs{by}."
        )
        yield _Result(
            "first-divergence",
            text,
            _path(document, "reference"),
            str(first["node"]),
            "node",
            {"candidate": first["candidate"], "op": first["op"]},
        )

    metric = document.get("metric")
    if metric and metric["failed"]:
        file = _path(document, "candidate")
        text = f"{metric['name']}: {metric['failed']}"
        yield _Result("metric-worse", text, file, str(metric["name"]), "metric", metric)
    for result in (document.get("runtimes") or {}).get("results", ()):
        for culprit in result["culprits"]:
            option = culprit["option"]
            stops = "no option is known to stop it" if option is None else f"stopped by {option}"
            yield _Result(
                "runtime-differs",
                f"{result['runtime']} at {result['level']}: {culprit['what']}; {stops}.",
                _path(document, "candidate"),
                str(result["runtime"] if option is None else option),
                "runtime" if option is None else "option",
                {"runtime": result["runtime"], "level": result["level"], "error": result["error"]},
            )


def _of_rewriting(document: Mapping[str, Any]) -> Iterator[_Result]:
    file = _path(document, "input")
    for site in document["sites"]:
        node, op = str(site["node"]), operator(site["op"])
        properties = {name: site[name] for name in ("op", "pass", "spelling", "exactness")}
        if site["outcome"] == "refused":
            text = f"{op} was left as it was: {site['reason'] or 'no reason is known'}"
            yield _Result("quantizer-refused", text, file, node, "node", properties)
            continue
        if site["differing_inputs"]:
            number = counted(int(site["differing_inputs"]), "input")
            text = f"{op} became {site['spelling']}, which differs for {number}{example(site)}."
            yield _Result("values-moved", text, file, node, "node", properties)
        stored = site.get("stored")
        if stored and stored["elements"] is not None:
            lost = stored["elements"] - stored["unchanged"]
            if lost:
                text = (
                    f"{whole(lost)} of {whole(stored['elements'])} values of {stored['tensor']!r} "
                    "changed."
                )
                yield _Result("weight-changed", text, file, node, "node", properties)
