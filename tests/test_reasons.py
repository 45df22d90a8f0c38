"""Ids of refusals and of undecided reasons: stable, in reports, and explained."""

from __future__ import annotations

import ast
import copy
import csv
import io
import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir
import pytest

import qgraph
from qgraph import transforms
from qgraph.certificate import Certificate
from qgraph.cli.main import main
from qgraph.errors import ModelError, OptionError
from qgraph.exactness import UNCHECKED_ID, PartFinding, Status
from qgraph.lint.rule import RULES
from qgraph.reasons import (
    CAUSES,
    EFFORT,
    NOT_CHECKED,
    VERDICT_NOT_CHECKED,
    cause_of,
    id_of,
    restated,
)
from qgraph.targets.rules import UNMET
from qgraph.text import json_text

HEADER = '<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>'

FAULTS = f"""{HEADER} net (float[N,2] x, int8[N,2] c) => (float[N,2] y, float[N,2] d, float[N,2] p)
<float zero = {{0}}, float z = {{0}}, float one = {{1}}, float b = {{8}}, float s = {{0.1}}> {{
    [scale] y = qonnx.custom_op.general.Quant <signed = 0> (x, zero, z, b)
    [partner] d = DequantizeLinear (c, one)
    [mode] p = qonnx.custom_op.general.Quant <rounding_mode = "ASIDE"> (x, one, z, b)
}}"""

STABLE = {
    "other": "QG000",
    "no-equal-form": "QG001",
    "needs-opset": "QG002",
    "faulty-scale": "QG003",
    "unreadable": "QG004",
    "no-partner": "QG005",
    "no-operator": "QG006",
    "unknown-type": "QG007",
    "used-elsewhere": "QG008",
    "above-limit": "QG009",
    "unsuited-range": "QG010",
    "runtime-fails": "QG011",
    "not-absorbed": "QG012",
    "unsuited-weight": "QG013",
    "unsupported-type": "QG014",
    "effort": "QG051",
    "no-rule": "QG052",
    "type-not-proved": "QG053",
    "not-known": "QG054",
    "do-not-fit": "QG055",
    "at-run-time": "QG056",
    "left-open": "QG057",
    "two-inputs": "QG058",
    "not-matched": "QG059",
    "not-computed": "QG060",
    "not-forced": "QG061",
    "sign-of-zero": "QG062",
    "no-bound": "QG063",
    "out-of-range": "QG064",
    "int32-overflow": "QG065",
    "out-of-time": "QG066",
    "nan-of-constants": "QG067",
    "not-checked": "QG071",
    "verdict-not-checked": "QG072",
    "rewritten-nodes": "QG073",
}
"""Ids that users script against: a new cause is added here, no other line ever changes."""


def test_ids_are_stable() -> None:
    assert {cause.name: cause.id for cause in CAUSES.values()} == STABLE


def test_refused_sites_have_the_id_of_their_cause() -> None:
    report = qgraph.load(ir.from_onnx_text(FAULTS)).apply(transforms.ConvertDialect(to="openvino"))
    sites = {site["node"]: site for site in report.to_json()["sites"]}
    found = {name: (site["outcome"], site["reason_id"]) for name, site in sites.items()}
    assert found == {
        "scale": ("refused", "QG003"),
        "partner": ("refused", "QG005"),
        "mode": ("refused", "QG004"),
    }
    assert all(site["bound"] is None for site in sites.values())


def test_an_opset_that_is_too_low_has_its_own_id() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]> net (float[N,2] x) => (float[N,2] y)
    <float[2,2] w = {1, 2, 3, 4}> { [product] y = MatMul (x, w) }"""
    model = qgraph.load(ir.from_onnx_text(text))
    (site,) = model.apply(transforms.QuantizeWeights(format="int4", min_elements=1, opset=20)).sites
    assert (site.outcome, site.reason_id) == ("refused", "QG002")


def test_levels_that_no_form_has_have_their_own_id() -> None:
    text = f"""{HEADER} net (float[N,2] x) => (float[N,2] y)
    <float s = {{0.3}}, float e = {{4}}, float m = {{3}}, float b = {{7}}, float big = {{448}}> {{
        [act] y = qonnx.custom_op.general.FloatQuant <has_inf = 0, has_nan = 1> (x, s, e, m, b, big)
    }}"""
    model = qgraph.load(ir.from_onnx_text(text))
    (site,) = model.apply(transforms.ConvertDialect(to="openvino")).sites
    assert (site.outcome, site.reason_id) == ("refused", "QG001")


def test_a_changed_site_has_a_remark_and_no_id() -> None:
    text = FAULTS.replace("float zero = {0}", "float zero = {0.5}")
    report = qgraph.load(ir.from_onnx_text(text)).apply(transforms.ConvertDialect(to="qdq"))
    (site,) = (site for site in report.sites if site.outcome == "changed")
    assert site.to_json()["reason"] == "NaN is not kept"
    assert site.reason_id is None


SUMS = [
    f"""{HEADER} net (float[N,2] x, float[N,2] u) => (float[N,2] y)
    <float s = {{0.1}}> {{ [last] y = {body} }}"""
    for body in ("Pow (x, u)", "Mul (x, u)")
]


def certificate() -> dict:
    """Of two models, the one region of which is undecided."""
    found = qgraph.prove(*map(ir.from_onnx_text, SUMS))
    return json.loads(json_text(found.to_json()))


def test_undecided_regions_have_an_id_that_is_read_back() -> None:
    document = certificate()
    (region,) = document["regions"]
    assert (region["verdict"], region["reason_id"]) == ("undecided", "QG058")
    again = Certificate.from_json(document)
    assert again.regions[0].reason_id == "QG058"
    assert json.loads(json_text(again.to_json()))["regions"] == document["regions"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("limits", ["1ste"], "no limit"),
        ("limits", "1step", "list"),
        ("against", "nothing", "against"),
        ("order", "chunk:0", "order"),
        ("order", None, "None"),
        ("accumulate", "float64", "accumulate"),
        ("ranges", {"x": [1.0, -1.0]}, "smaller first"),
        ("ranges", [], "object"),
    ],
)
def test_claims_about_bounds_are_not_read_over(name: str, value: object, message: str) -> None:
    document = certificate()
    with pytest.raises(ModelError, match=message):
        Certificate.from_json(document | {name: value})


def test_a_bound_of_a_region_is_not_read_over() -> None:
    document = certificate()
    document["regions"][0]["bound"] = {"max_steps": 1}
    with pytest.raises(ModelError, match="is missing"):
        Certificate.from_json(document)


def test_a_bounded_region_has_a_bound() -> None:
    document = certificate()
    document["regions"][0] |= {"verdict": "bounded", "exactness": "bounded", "bound": None}
    with pytest.raises(ModelError, match="exactness"):
        Certificate.from_json(document)


def test_a_reason_is_a_text_that_keeps_its_id() -> None:
    reason = EFFORT("too many boxes")
    assert reason == "too many boxes"
    for copied in (pickle.loads(pickle.dumps(reason)), copy.deepcopy(reason)):
        assert (copied, id_of(copied)) == (reason, "QG051")
    assert id_of(restated(reason, f"{reason}; and more")) == "QG051"
    assert id_of(restated("a remark", "another")) is None


@pytest.mark.parametrize("name", ["QG012", "qg012"])
def test_explain_says_what_it_means_and_what_to_do(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", name]) == 0
    out = capsys.readouterr().out
    assert out.startswith("QG012 not-absorbed\n")
    assert CAUSES["QG012"].meaning in out
    assert f"What to do: {CAUSES['QG012'].remedy}" in out


def test_explain_lists_all_ids(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    rules = [rule.id for rule in RULES]
    listed = [line[:5] for line in capsys.readouterr().out.splitlines()[1:]]
    assert listed == sorted([*CAUSES, *UNMET, *rules]) == [c.id for c in qgraph.explain()]
    assert main(["explain", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ids"][1] == qgraph.explain("QG001").to_json()
    assert main(["explain", "bias-scale", "--format", "csv"]) == 0
    (_, row) = csv.reader(io.StringIO(capsys.readouterr().out))
    assert row == ["reasons", "QG112", "bias-scale", qgraph.explain("bias-scale").meaning]


def test_an_unknown_id_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionError, match="'QG05', expected"):
        cause_of("QG05", CAUSES)
    assert main(["explain", "QG05"]) == 2
    assert "or the name of a rule" in capsys.readouterr().err


def test_unchecked_parts_of_certificates_have_an_id() -> None:
    models = [qgraph.load(ir.from_onnx_text(text)) for text in SUMS]
    found = qgraph.verify(Certificate.from_json(certificate()), *models).to_json()
    assert [part["reason_id"] for part in found["regions"]] == ["QG072"]
    assert found["statements"]["reason_id"] is None
    assert {part["status"] for part in found["regions"]} == {"unchecked"}


def test_parts_without_a_reason_of_their_own_have_the_id_of_not_checked() -> None:
    assert NOT_CHECKED.id == UNCHECKED_ID
    assert PartFinding(Status.UNCHECKED, "no definition").reason_id == NOT_CHECKED.id
    assert PartFinding(Status.UNCHECKED, VERDICT_NOT_CHECKED("it differs")).reason_id == "QG072"
    assert PartFinding(Status.CHECKED).reason_id is None


def texts_of(tree: ast.AST) -> Iterator[str]:
    """Yield the strings of a module that are no docstrings."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            yield from texts_of(node)


@pytest.mark.slow
def test_messages_name_passes_as_the_command_line_takes_them():
    """``-p fold-weights``, not ``fold-weights``, so that a remedy can be pasted."""
    names = {transforms.describe(kind).name for kind in transforms.TRANSFORMS}
    hyphenated = "|".join(re.escape(name) for name in names if "-" in name)
    bare = re.compile(rf"(?<![-.'\w])(?<!-p )(({hyphenated})(?![-\w])|convert\{{|repack\{{)")
    root = Path(qgraph.__file__).parents[1]
    files = [file for name in ("qgraph", "transforms") for file in (root / name).rglob("*.py")]
    texts = [text for file in files for text in texts_of(ast.parse(file.read_text()))]
    messages = [text for text in texts if " " in text]
    assert len(messages) > 2000
    assert [text for text in messages if bare.search(text)] == []
