"""SARIF logs: the structure that version 2.1.0 asks for, and what is found where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import onnx_ir as ir
import pytest

from qgraph.errors import OptionError
from qgraph.lint.engine import lint, report_of
from qgraph.lint.rule import RULES as LINT_RULES, page_of_rule, whole_model
from qgraph.reporting.findings import RULES, sarif_log, uri

KEYS = {
    "log": {"$schema", "version", "runs"},
    "run": {
        "tool",
        "automationDetails",
        "invocations",
        "artifacts",
        "results",
        "columnKind",
        "properties",
    },
    "driver": {"name", "version", "semanticVersion", "rules"},
    "rule": {
        "id",
        "name",
        "shortDescription",
        "fullDescription",
        "help",
        "defaultConfiguration",
    },
    "artifact": {"location", "hashes"},
    "result": {
        "ruleId",
        "ruleIndex",
        "level",
        "message",
        "locations",
        "partialFingerprints",
        "properties",
    },
    "location": {"physicalLocation", "logicalLocations"},
}
"""The properties that are used, all of which the schema knows; others it forbids."""

HASH = "0" * 64


def validated(text: str) -> dict[str, Any]:
    """Return the run of a log after checking it against the essentials of the schema."""
    log = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert set(log) == KEYS["log"]
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    assert set(run) <= KEYS["run"]
    assert run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
    assert all(isinstance(i["executionSuccessful"], bool) for i in run["invocations"])
    driver = run["tool"]["driver"]
    assert set(driver) <= KEYS["driver"]
    assert driver["name"] == "qgraph"
    rules = driver["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    for rule in rules:
        assert set(rule) == KEYS["rule"]
        assert rule["defaultConfiguration"]["level"] in ("none", "note", "warning", "error")
        for field in ("shortDescription", "fullDescription", "help"):
            assert set(rule[field]) == {"text"}
            assert rule[field]["text"].endswith(".")
    for artifact in run["artifacts"]:
        assert set(artifact) <= KEYS["artifact"]
        assert all(isinstance(value, str) for value in artifact.get("hashes", {}).values())
        assert " " not in artifact["location"]["uri"]
    for result in run["results"]:
        assert set(result) - {"fixes"} == KEYS["result"]
        for fix in result.get("fixes", ()):
            assert set(fix) == {"description", "artifactChanges"}
            assert set(fix["description"]) == {"text"}
            for change in fix["artifactChanges"]:
                assert set(change) == {"artifactLocation", "replacements"}
                assert all(set(each) == {"deletedRegion"} for each in change["replacements"])
                region = change["replacements"][0]["deletedRegion"]
                assert region == {"byteOffset": 0, "byteLength": 0}
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert set(result["message"]) == {"text"}
        assert result["message"]["text"]
        assert all(isinstance(v, str) for v in result["partialFingerprints"].values())
        for location in result["locations"]:
            assert set(location) <= KEYS["location"]
            assert all(item["name"] for item in location["logicalLocations"])
            place = location["physicalLocation"]
            assert set(place) == {"artifactLocation", "region"}
            artifact = run["artifacts"][place["artifactLocation"]["index"]]
            assert artifact["location"]["uri"] == place["artifactLocation"]["uri"]
            assert place["region"]["startLine"] >= 1
    return run


def document(command: str, **fields: Any) -> dict[str, Any]:
    files = {
        role: {"path": f"models/{role} 1.onnx", "sha256": HASH}
        for role in ("reference", "candidate")
    }
    if command in ("convert", "fold", "transform"):
        output = files["candidate"] | {"opset": 21, "ir_version": 10}
        files = {"input": files["reference"], "output": output}
    rest = {
        "check": {"batches": 1, "notes": []},
        "prove": {"exactness": None, "conditions": [], "notes": []},
    }.get(command, {"notes": []})
    return {"qgraph": "0.1.0", "schema": 1, "command": command} | files | rest | fields


def summary(**fields: Any) -> dict[str, Any]:
    stored = {"bytes_before": 8, "bytes_after": 4, "elements": 10, "unchanged": 8, "clipped": 0}
    counts = dict.fromkeys(("changed", "kept", "refused"), 0)
    sizes = {"weight_bytes_before": 8, "weight_bytes_after": 4}
    return counts | sizes | {"stored": stored} | fields


def region(verdict: str, **fields: Any) -> dict[str, Any]:
    return {
        "reference_nodes": ["act"],
        "candidate_nodes": ["q", "dq"],
        "reference_value": "a",
        "candidate_value": "b",
        "verdict": verdict,
        "exactness": "near",
        "method": "intervals",
        "counted": True,
        "differing_inputs": 0,
        "zero_sign_inputs": 0,
        "channels": 1,
        "largest_steps": None,
        "witness": None,
        "reason": None,
    } | fields


def site(outcome: str, **fields: Any) -> dict[str, Any]:
    return {
        "node": "act",
        "op": "qonnx.custom_op.general::Quant",
        "pass": "convert",
        "outcome": outcome,
        "spelling": "QuantizeLinear+DequantizeLinear",
        "exactness": "values",
        "method": "intervals",
        "differing_inputs": 0,
        "witness": None,
        "reason": None,
        "stored": None,
    } | fields


WITNESS = {"input": 1.5, "reference": 2.0, "candidate": float("nan")}


def test_a_proof_reports_what_is_not_proved_at_the_candidate() -> None:
    regions = [
        region("proved"),
        region("different", differing_inputs=1, witness=WITNESS, largest_steps=1.0),
        region("undecided", reason="no rule for Exp"),
    ]
    run = validated(sarif_log(document("prove", verdict="different", regions=regions)))
    first, second = run["results"]
    assert (first["ruleId"], first["level"]) == ("region-differs", "error")
    text = "1 input gives another value than 'act', such as 1.5: reference 2, candidate NaN."
    assert first["message"]["text"] == text
    (location,) = first["locations"]
    assert location["logicalLocations"] == [{"name": "dq", "kind": "node"}]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "models/candidate%201.onnx"
    assert first["properties"]["candidate_nodes"] == ["q", "dq"]
    assert (second["ruleId"], second["level"]) == ("region-undecided", "warning")
    assert "no rule for Exp" in second["message"]["text"]
    assert run["artifacts"][0]["hashes"] == {"sha-256": HASH}
    assert run["properties"]["verdict"] == "different"


def test_constants_are_said_to_have_elements() -> None:
    found = region("different", differing_inputs=3, method="constant", candidate_nodes=[])
    run = validated(sarif_log(document("prove", verdict="different", regions=[found])))
    (result,) = run["results"]
    assert result["message"]["text"] == "3 elements have another value than 'act'."
    assert result["locations"][0]["logicalLocations"][0]["name"] == "b"


def test_a_check_reports_outputs_origin_metric_and_runtimes() -> None:
    output = {"name": "y", "elements": 10, "mismatches": 2, "max_abs": 0.5, "max_ulp": 7}
    output |= {"max_steps": None, "sqnr_db": 20.0, "cosine": 1.0}
    outputs = [
        output | {"failed": "2 of 10 values differ"},
        output | {"name": "z", "failed": None},
        output | {"name": "same", "mismatches": 0, "failed": None},
    ]
    first = {"reference": "t", "candidate": "u", "node": "conv", "op": "Conv", "max_abs": None}
    culprit = {"what": "codes of 8 bits", "option": "option=1", "error": 0.0}
    endless = {"what": "quantizers are left out", "option": None, "error": 0.0}
    result = {"error": 0.1, "failure": None}
    runtimes = {
        "sentence": "the rewrite is exact",
        "rewrite": {"error": 0.0},
        "missing": [],
        "results": [
            result | {"runtime": "R 1", "level": "default", "culprits": [culprit]},
            result | {"runtime": "R 2", "level": "plain", "culprits": [endless]},
        ],
    }
    metric = {"name": "top1", "failed": "0.5 is lower than 0.9", "samples": 9}
    metric |= {"reference": 0.9, "candidate": 0.5}
    found = document(
        "check",
        verdict="different",
        outputs=outputs,
        first_divergence=first,
        metric=metric,
        runtimes=runtimes,
    )
    run = validated(sarif_log(found))
    assert [(r["ruleId"], r["level"]) for r in run["results"]] == [
        ("output-differs", "error"),
        ("within-tolerance", "note"),
        ("first-divergence", "note"),
        ("metric-worse", "error"),
        ("runtime-differs", "warning"),
        ("runtime-differs", "warning"),
    ]
    places = [r["locations"][0]["logicalLocations"][0] for r in run["results"]]
    assert [place["name"] for place in places] == ["y", "z", "conv", "top1", "option=1", "R 2"]
    assert run["results"][-1]["message"]["text"] == (
        "R 2 at plain: quantizers are left out; no known option disables it."
    )
    origin = run["results"][2]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert origin["uri"] == "models/reference%201.onnx"
    assert "by up to 0.5, 7 ulp" in run["results"][1]["message"]["text"]


@pytest.mark.parametrize("command", ["convert", "fold", "transform"])
def test_a_rewriting_reports_refusals_and_losses(command: str) -> None:
    stored = {"tensor": "w", "elements": 10, "unchanged": 8, "type": "INT4", "clipped": 0}
    stored |= {"codes_used": 3, "codes_available": 16, "scale_type": "FLOAT", "scale_low": 1.0}
    stored |= {"scale_high": 1.0, "bytes_before": 8, "bytes_after": 4}
    sites = [
        site("kept"),
        site("changed", stored=stored | {"unchanged": 10}),
        site("refused", reason="the scale is odd"),
        site("changed", differing_inputs=1150, witness=WITNESS),
        site("changed", stored=stored),
    ]
    run = validated(sarif_log(document(command, sites=sites, summary=summary(changed=2))))
    assert [r["ruleId"] for r in run["results"]] == [
        "quantizer-refused",
        "values-moved",
        "weight-changed",
    ]
    texts = [r["message"]["text"] for r in run["results"]]
    assert texts[0] == "Quant was left unchanged: the scale is odd"
    assert "1,150 inputs, such as 1.5: reference 2, candidate NaN" in texts[1]
    assert texts[2] == "2 of 10 values of 'w' changed."


def test_fingerprints_tell_places_apart_and_stay() -> None:
    sites = [site("refused"), site("refused", node="other"), site("refused", reason="else")]
    run = validated(sarif_log(document("convert", sites=sites, summary=summary())))
    one, two, three = (r["partialFingerprints"]["node/v1"] for r in run["results"])
    assert one == three != two


def test_nothing_found_is_an_empty_list() -> None:
    run = validated(sarif_log(document("prove", verdict="proved", regions=[region("proved")])))
    assert run["results"] == []


def test_runs_for_several_models_have_names_of_their_own() -> None:
    found = document("prove", verdict="proved", regions=[])
    run = validated(sarif_log(found))
    assert run["automationDetails"]["id"] == "qgraph/prove/models/candidate 1.onnx/"
    other = found | {"candidate": {"path": "/a/b.onnx", "sha256": None}}
    assert validated(sarif_log(other))["automationDetails"]["id"] == "qgraph/prove/a/b.onnx/"


def test_models_in_memory_have_no_place() -> None:
    found = document("prove", verdict="different", regions=[region("different")])
    nowhere = {"path": None, "sha256": None}
    found |= {"reference": nowhere, "candidate": nowhere}
    (result,) = json.loads(sarif_log(found))["runs"][0]["results"]
    assert set(result["locations"][0]) == {"logicalLocations"}


def test_paths_are_uris(tmp_path: Path) -> None:
    odd = tmp_path / "a b#c.onnx"
    assert unquote(urlparse(uri(str(odd))).path) == str(odd)
    assert uri(str(odd)).startswith("file:///")
    assert uri("models/a b.onnx") == "models/a%20b.onnx"


def test_rules_have_the_names_that_tools_show() -> None:
    for rule in RULES:
        assert rule.name == "".join(part.capitalize() for part in rule.id.split("-"))


def test_other_documents_are_refused() -> None:
    with pytest.raises(OptionError, match="expected one of bench, check, convert"):
        sarif_log({"command": "lock"})


def test_a_log_of_lint_has_all_rules_and_names_their_fixes(tmp_path):
    """Of each rule, the model of its page."""
    results = []
    for rule in LINT_RULES:
        page = page_of_rule(rule)
        if not rule.needs_data:
            path = tmp_path / f"{rule.id}.onnx"
            ir.save(ir.from_onnx_text(whole_model(page.before)), path)
            results.append(lint(path, page.target, select=rule.id))
    run = validated(sarif_log(report_of(results)))
    found = {result["ruleId"] for result in run["results"]}
    assert found == {rule.id for rule in LINT_RULES if not rule.needs_data}
    fixed = {result["ruleId"] for result in run["results"] if "fixes" in result}
    assert fixed == {rule.id for rule in LINT_RULES if rule.fix is not None}
    assert all(Path(each["location"]["uri"][7:]).exists() for each in run["artifacts"])
