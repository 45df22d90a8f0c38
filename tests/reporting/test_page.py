"""Pages: what they say, and that they need nothing but themselves."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph import transforms
from qgraph.errors import OptionError
from qgraph.inventory.pictures import histograms, illustrated
from qgraph.reporting.pages import html_page
from qgraph.text import json_text

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

NET = """
    <ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
    net (float[N,4] x) => (float[N,3] y)
    <float[3,4] w = {0.5, -1, 1.5, 2, 0, 1, 2.5, -2, -0.5, 3, 1, 0.5}, float s = {0.3},
     float z = {127}, float b = {8}, float sw = {0.5}, float zw = {0}, float bw = {4}> {
        ["act<b>"] a = qonnx.custom_op.general.Quant
            <signed = 0, narrow = 0, rounding_mode = "ROUND"> (x, s, z, b)
        [weight] q = qonnx.custom_op.general.Quant
            <signed = 1, narrow = 1, rounding_mode = "ROUND"> (w, sw, zw, bw)
        t = Transpose <perm = [1, 0]> (q)
        y = MatMul (a, t)
    }"""

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Reader(HTMLParser):
    """Collects what a page consists of, and sees that all elements are closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, name: str) -> list[str]:
        return [value for _, key, value in self.attributes if key == name]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A conversion that moves thresholds: both models, and the reports of all commands."""
    folder = tmp_path_factory.mktemp("page")
    model = ir.from_onnx_text(NET.replace('"act<b>"', "act"))
    next(iter(model.graph)).name = "act<b>&\"'$x$"
    before, after, report = (folder / name for name in ("a.onnx", "b.onnx", "r.json"))
    ir.save(model, before)
    step = transforms.ConvertDialect(to="qdq", exact=qgraph.Exactness("near"))
    transforms.rewrite(before, after, step, report=report, command="convert")
    proof = qgraph.prove(before, after).to_json()
    (witness,) = [r["witness"]["input"] for r in proof["regions"] if r["verdict"] == "different"]
    x = np.linspace(-38, 38, 4000, dtype=np.float32).reshape(-1, 4)
    x[0, 0] = witness
    return {
        "before": before,
        "after": after,
        "convert": json.loads(report.read_text()),
        "prove": proof,
        "same": qgraph.prove(before, before).to_json(),
        "check": qgraph.check(before, after, {"x": x}).to_json(),
        "equal": qgraph.check(before, before).to_json(),
        "x": x,
    }


def drawn(files: dict[str, Any], command: str) -> dict[str, Any]:
    models = qgraph.load(files["before"]).ir, qgraph.load(files["after"]).ir
    return illustrated(files[command], *models, [{"x": files["x"]}])


@pytest.fixture(scope="module")
def page(files: dict[str, Any]) -> Callable[[str], str]:
    """``page("prove")``: the page of a report with all pictures, drawn once."""
    return functools.cache(lambda command: html_page(drawn(files, command)))


@pytest.mark.slow
def test_a_proof_is_shown_with_counts_steps_and_codes(
    files: dict[str, Any], page: Callable[[str], str]
) -> None:
    shown = Reader(page("prove"))
    differing = sum(region["differing_inputs"] for region in files["prove"]["regions"])
    assert differing > 0
    assert shown.text.startswith("qgraph prove: different")
    assert "The models differ in 1 of 2 regions" in shown.text
    assert f"inputs that differ {differing:,}" in shown.text
    assert "The steps around a difference" in shown.text
    # two views of one quantizer, and the codes of weight and activation
    assert shown.tags["svg"] == 2 + 2
    assert shown.all("role").count("img") == shown.tags["svg"]
    assert "float32 numbers counted from" in shown.text
    assert "every operator computes as written" in shown.text
    assert files["prove"]["reference"]["sha256"] in shown.text


def test_an_equal_proof_has_no_pictures_of_differences(files: dict[str, Any]) -> None:
    page = Reader(html_page(files["same"]))
    assert "equal bit for bit for every input: they have the same form" in page.text
    assert page.tags["svg"] == 0


@pytest.mark.slow
def test_a_rewrite_is_shown_with_sizes_and_codes(
    files: dict[str, Any], page: Callable[[str], str]
) -> None:
    shown = Reader(page("convert"))
    assert shown.text.startswith("qgraph convert: near")
    for text in ("Size summary", "Bytes of each weight", "Codes", "Sites", "codes used"):
        assert text in shown.text
    # 10 different codes of a narrow range, -7 to 7, by hand; the stored type has 16.
    assert "10 of 15 codes used" in shown.text
    assert "10 of 15 codes used" in Reader(page("check")).text
    assert "Quant -> DequantizeLinear (1)" in shown.text
    assert "The steps around a difference" in shown.text


def test_a_check_is_shown_with_outputs_and_layers(
    files: dict[str, Any], page: Callable[[str], str]
) -> None:
    shown = Reader(page("check"))
    assert shown.text.startswith("qgraph check: different")
    assert "Of 1 output, 'y' differs by more than the tolerance allows" in shown.text
    assert "Error by layer" in shown.text
    assert "The first tensor that differs is 'a" in shown.text
    # codes of both quantizers: the activation was run
    assert sum("Quant" in d["op"] for d in drawn(files, "check")["quantizers"]) == 2
    equal = Reader(html_page(files["equal"]))
    assert "Every value of 1 output is the same in both models" in equal.text


def test_parts_of_a_check_that_were_asked_for_are_shown(files: dict[str, Any]) -> None:
    culprit = {"what": "codes of 8 bits", "option": "option=1", "error": 0.0}
    result = {"runtime": "Runtime 1", "level": "default", "error": 0.009, "outputs": []}
    other = {"runtime": "Runtime 2", "level": "plain", "error": 0.0, "outputs": [], "culprits": []}
    other |= {"form": "standard operators", "refused": "no kernel of Quant", "failure": None}
    runtimes = {
        "sentence": "the rewrite is exact",
        "rewrite": {"error": 0.0, "outputs": []},
        "results": [
            result | {"culprits": [culprit], "failure": None},
            result | {"level": "plain", "culprits": [], "failure": "no kernel", "error": None},
            other,
            other | {"level": "default"},
        ],
        "standard_form": {"respelled": 3, "left": [], "error": 0.0, "outputs": []},
        "missing": ["Other"],
    }
    metric = {"name": "top1", "samples": 10, "reference": 0.9, "candidate": 0.5, "failed": "worse"}
    probe = {"node": "act", "tensor": "x", "targets": 15, "crossed": 14, "reached": 13}
    probe |= {"largest_gap": 0.25, "reason": None}
    document = files["equal"] | {"runtimes": runtimes, "metric": metric, "probes": [probe]}
    text = Reader(html_page(document)).text
    for wanted in (
        "The rewrite is exact",
        "codes of 8 bits",
        "option=1",
        "0.9 %",
        "no kernel",
        "Other is not installed",
        "Runtime 2 does not run the candidate as written: no kernel of Quant",
        "top1 on 10 samples: 0.9 in the reference, 0.5 in the candidate. worse",
        "both floats reached",
    ):
        assert wanted in text
    assert text.count("no kernel of Quant") == 1
    assert text.count("standard operators") == 2  # a level each


def test_a_tensor_of_two_names_has_both(files: dict[str, Any]) -> None:
    first = {"reference": "t", "candidate": "u", "node": "n", "op": "Relu", "max_abs": 2.0}
    text = Reader(html_page(files["equal"] | {"first_divergence": first})).text
    assert (
        "is 't' by up to 2, which Relu 'n' produces in the reference; the candidate's is 'u'."
        in text
    )


def test_undecided_regions_and_refused_sites_have_their_reasons(files: dict[str, Any]) -> None:
    region = files["prove"]["regions"][0] | {
        "verdict": "undecided",
        "exactness": None,
        "reason": "no rule for Exp",
        "witness": None,
    }
    document = files["prove"] | {"verdict": "undecided", "exactness": None, "regions": [region]}
    text = Reader(html_page(document)).text
    assert text.startswith("qgraph prove: undecided")
    assert "no rule for Exp" in text
    site = files["convert"]["sites"][0] | {"outcome": "refused", "reason": "the scale is odd"}
    summary = files["convert"]["summary"] | {"changed": 0, "refused": 1}
    document = files["convert"] | {"sites": [site], "summary": summary}
    text = Reader(html_page(document)).text
    assert "No quantizer was changed; 1 refused" in text
    assert "the scale is odd" in text


@pytest.mark.cases(fast=0)
@pytest.mark.parametrize("command", ["prove", "convert", "check"])
def test_a_page_loads_nothing_and_runs_nothing(page: Callable[[str], str], command: str) -> None:
    html = page(command)
    shown = Reader(html)
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(shown.tags)
    assert shown.all("src") == []
    assert all(value.startswith("#c") for value in shown.all("href"))
    assert not re.search(r"@import|url\((?!#c)", html)
    names = re.findall(r"https?://[^\"' <)]+", html)
    assert set(names) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not [name for _, name, _ in shown.attributes if name.startswith("on")]


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("command", ["prove", "convert", "check"])
def test_names_of_parts_are_unique_and_all_there(page: Callable[[str], str], command: str) -> None:
    html = page(command)
    shown = Reader(html)
    named = shown.all("id")
    assert len(named) == len(set(named)) > 10
    used = {value[1:] for value in shown.all("href")} | set(re.findall(r"url\(#([^)]+)\)", html))
    assert used
    assert used <= set(named)


def test_names_of_nodes_are_text_and_nothing_else(page: Callable[[str], str]) -> None:
    html = page("prove")
    assert "act<b>" not in html
    assert "act&lt;b&gt;&amp;" in html
    assert "act<b>&\"'$x$" in Reader(html).text


@pytest.mark.slow
def test_pages_are_the_same_each_time(files: dict[str, Any]) -> None:
    document = drawn(files, "prove")
    assert html_page(document) == html_page(document)


@pytest.mark.slow
def test_colours_depend_on_the_screen(page: Callable[[str], str]) -> None:
    html = page("prove")
    assert "prefers-color-scheme: dark" in html
    style, _, body = html.partition("</style>")
    known = set(re.findall(r"(--[a-z]+): ", style))
    used = set(re.findall(r"var\((--[a-z]+)\)", html))
    assert used <= known | {"--tone"}
    # a colour of its own would not be seen on one of the two grounds
    assert not re.findall(r"(?:fill|stroke): ?#[0-9a-f]{6}", body)


@pytest.mark.slow
def test_a_document_read_from_json_gives_the_same_page(files: dict[str, Any]) -> None:
    document = drawn(files, "prove")
    assert html_page(json.loads(json_text(document))) == html_page(document)


def test_codes_are_counted(files: dict[str, Any]) -> None:
    (weight,) = histograms(qgraph.load(files["before"]).ir)
    codes = dict(map(tuple, weight["codes"]))
    w = np.array([0.5, -1, 1.5, 2, 0, 1, 2.5, -2, -0.5, 3, 1, 0.5])
    values, counts = np.unique(np.rint(w / 0.5), return_counts=True)
    assert codes == dict(zip(values.astype(int).tolist(), counts.tolist(), strict=True))


def test_other_documents_are_refused() -> None:
    with pytest.raises(OptionError, match="expected one of bench, check, convert"):
        html_page({"command": "diff"})


def test_missing_libraries_are_named(
    files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "jinja2" else found(name)
    )
    with pytest.raises(OptionError, match=r"needs jinja2, which is not .*pip install 'qgraph\[r"):
        html_page(files["same"])


def test_resources_are_packaged() -> None:
    root = Path(__file__).resolve().parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["qgraph.reporting"]
    folder = root / "qgraph" / "reporting"
    packed = {path for pattern in patterns for path in folder.glob(pattern)}
    others = {p for p in folder.iterdir() if p.is_file() and p.suffix != ".py"}
    assert packed == others != set()


@pytest.mark.slow
def test_a_report_does_not_fail_for_want_of_a_picture(
    files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from qgraph.inventory import pictures as illustrations

    def fail(*_: object) -> None:
        raise OptionError("nothing can be counted")

    monkeypatch.setattr(illustrations, "histograms", fail)
    found = drawn(files, "prove")
    assert found["quantizers"] == []
    assert len(found["staircases"]) == 1
    assert "Codes" not in Reader(html_page(found)).words


def test_codes_of_very_large_models_are_not_counted(
    files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qgraph.inventory.pictures._MOST_BYTES", 10)
    assert histograms(qgraph.load(files["before"]).ir) == []
