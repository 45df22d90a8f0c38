"""Reports in Markdown and JUnit, of names that have every bad character."""

from __future__ import annotations

import copy
from typing import Any
from xml.etree import ElementTree as ET

import onnx_ir as ir
import pytest

import qgraph
from qgraph import transforms
from qgraph.errors import OptionError
from qgraph.reporting.findings import junit_report
from qgraph.reporting.pages import markdown_report

BAD = "a|b`<b>\n\x07&"

NET = """
    <ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
    net (float[4] x) => (float[4] y)
    <float s = {0.25}, float z = {127}, float b = {8}> {
        [act] y = qonnx.custom_op.general.Quant
            <signed = 0, narrow = 0, rounding_mode = "ROUND"> (x, s, z, b) }"""


def model() -> qgraph.Model:
    found = ir.from_onnx_text(NET)
    found.graph[0].name = BAD
    return qgraph.load(found)


@pytest.fixture(scope="module")
def documents() -> dict[str, dict[str, Any]]:
    near = model()
    near.apply(transforms.ConvertDialect(to="qdq", exact="near"))
    same = model()
    same.apply(transforms.ConvertDialect(to="onnx"))
    return {
        "different": qgraph.prove(model(), near).to_json(),
        "proved": qgraph.prove(model(), same).to_json(),
        "equal": qgraph.prove(model(), model()).to_json(),
        "check": qgraph.check(
            model(), near, qgraph.Inputs(random=8, probes=4), backend="numpy"
        ).to_json(),
    }


def test_a_difference_is_a_failure_and_has_its_count(documents):
    suite = ET.fromstring(junit_report(documents["different"]))
    assert [suite.get(key) for key in ("tests", "failures", "errors")] == ["1", "1", "0"]
    case = suite.find("testcase")
    assert case is not None
    assert case.get("name") == r"a|b`<b>\n\x07&"
    failure = case.find("failure")
    assert failure is not None
    assert str(failure.get("message")).startswith("1,150 inputs give another")


@pytest.mark.parametrize("name", ["proved", "equal"])
def test_what_is_proved_fails_nowhere_and_is_never_empty(documents, name):
    suite = ET.fromstring(junit_report(documents[name]))
    assert [suite.get(key) for key in ("tests", "failures", "errors")] == ["1", "0", "0"]
    assert suite.find("testcase/*") is None


def test_what_is_not_decided_is_an_error(documents):
    document = copy.deepcopy(documents["different"])
    document["verdict"] = document["regions"][0]["verdict"] = "undecided"
    document["regions"][0]["reason"] = "no rule"
    document["candidate"]["path"] = "build/net.v2.onnx"
    suite = ET.fromstring(junit_report(document))
    assert [suite.get(key) for key in ("tests", "failures", "errors")] == ["1", "0", "1"]
    error = suite.find("testcase/error")
    assert error is not None
    assert str(error.get("message")).endswith(" is not decided: no rule")
    assert error.get("type") == "region-undecided"
    case = suite.find("testcase")
    assert case is not None
    # Servers take what is before the last dot for a package.
    assert case.get("classname") == "qgraph.prove.build/net_v2"


def test_equal_names_are_numbered(documents):
    document = copy.deepcopy(documents["different"])
    document["regions"] *= 2
    names = [case.get("name") for case in ET.fromstring(junit_report(document))]
    assert names[1] == f"{names[0]} (2)"


def test_a_check_has_a_case_for_each_output(documents):
    suite = ET.fromstring(junit_report(documents["check"]))
    assert suite.get("name") == "qgraph check"
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert "first tensor that differs" in str(failure.text)


def test_markdown_has_the_verdict_and_a_whole_table(documents):
    text = markdown_report(documents["different"])
    assert text.startswith("## Prove: different\n")
    (row,) = [line for line in text.splitlines() if line.startswith("| a")]
    head = text[: text.index(row)].splitlines()[-2]
    assert row.replace("\\|", "").count("|") == head.count("|")
    assert row.startswith(r"| a\|b\`\<b>\\n\\x07& |")
    assert "1,150" in row


def test_markdown_of_equal_graphs_says_so(documents):
    text = markdown_report(documents["equal"])
    assert text.startswith("## Prove: proved\n")
    assert "they have the same form" in text


@pytest.mark.slow
def test_long_tables_end_somewhere(documents):
    document = copy.deepcopy(documents["proved"])
    document["regions"] *= 5000
    text = markdown_report(document)
    assert "<details>" in text
    assert "4900 more are in the JSON report." in text
    assert len(text) < 100_000


def test_other_reports_are_refused(documents):
    with pytest.raises(OptionError, match="expected one of check, lint, prove"):
        junit_report({"command": "convert"})
    with pytest.raises(OptionError, match="expected one of bench, check, convert"):
        markdown_report({"command": "lock"})
