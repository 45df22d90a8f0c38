"""The pages in ``docs``: their commands run, their links lead somewhere, they leave nothing out."""

from __future__ import annotations

import doctest
import json
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import click
import numpy as np
import onnx_ir as ir
import pytest

from qgraph.cli.group import cli
from qgraph.cli.main import main
from qgraph.model import load
from qgraph.ops import operator
from qgraph.transforms.base import TRANSFORMS
from tests.layers import ORDER

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "CONTRIBUTING.md"])

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, kind: str) -> list[str]:
    text = (ROOT / "README.md" if page == "the first" else DOCS / f"{page}.md").read_text()
    return [body for found, body in BLOCK.findall(text) if found == kind]


def steps(page: str) -> Iterator[tuple[str, int, str]]:
    """Yield each command of a page, its exit status, and what it prints as far as that is told."""
    for block in blocks(page, "console"):
        for part in block.removeprefix("$ ").split("\n$ "):
            command, _, output = part.partition("\n")
            status = re.search(r"# exit status (\d+)$", command)
            yield command, int(status[1]) if status else 0, output


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the models of the examples, in which the test runs."""
    for name in ("digits_brevitas.onnx", "digits_nncf.onnx", "digits_test.npz"):
        shutil.copy(EXAMPLES / name, tmp_path)
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


NEEDS = {
    "plot": ("matplotlib", "jinja2"),
    "--html": ("matplotlib", "jinja2"),
    "--require-all": ("onnxruntime",),
    "--runtimes": ("onnxruntime",),
    "deploy.proof.json": ("onnxruntime",),
}
"""What commands need besides the base installation."""


def is_runnable(arguments: list[str]) -> bool:
    names = {name for key in set(arguments) & set(NEEDS) for name in NEEDS[key]}
    return all(_is_installed(name) for name in names)


def _is_installed(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


WITH_COMMANDS = [
    "the first",
    *(
        str(page.relative_to(DOCS).with_suffix(""))
        for page in PAGES
        if "```console" in page.read_text() and page.parent.name != "tasks"
    ),
]


@pytest.mark.cases(fast=0, slow=3)
@pytest.mark.parametrize(
    "page",
    [
        page if page == "the first" else pytest.param(page, marks=pytest.mark.slow)
        for page in WITH_COMMANDS
    ],
)
def test_commands_run_as_they_stand(page, folder, capsys):
    checker = doctest.OutputChecker()
    count = 0
    for command, status, output in steps(page):
        name, *arguments = shlex.split(command, comments=True)
        assert name == "qgraph"
        if not is_runnable(arguments):
            continue
        found = main(arguments)
        printed = capsys.readouterr()
        assert found == status, f"{command}\n{printed.out}{printed.err}"
        assert "Traceback" not in printed.err
        if output.strip():
            same = checker.check_output(f"{output.rstrip()}\n", printed.out, doctest.ELLIPSIS)
            assert same, f"{command}\n{printed.out}"
        count += 1
    assert count > 1


@pytest.mark.cases(fast=0, slow=2)
@pytest.mark.parametrize("page", sorted((DOCS / "tasks").glob("[!R]*.md")), ids=lambda p: p.stem)
def test_tasks_run_as_they_stand(page, folder, capsys):
    """Commands and code of a page run in their order; a block of text is what the code prints."""
    names: dict[str, Any] = {}
    printed = ""
    for kind, body in BLOCK.findall(page.read_text()):
        if kind == "console":
            for command in body.removeprefix("$ ").rstrip().split("\n$ "):
                _, *arguments = shlex.split(command, comments=True)
                if is_runnable(arguments):
                    status = main(arguments)
                    assert status == 0, f"{command}\n{capsys.readouterr()}"
        elif kind == "python":
            capsys.readouterr()
            exec(compile(body, page.name, "exec", dont_inherit=True), names)
            printed = capsys.readouterr().out
        elif kind == "text":
            assert printed == body


@pytest.mark.slow
def test_the_test_with_fixtures_passes(folder, capsys):
    (code,) = blocks("ci", "python")
    (folder / "test_models.py").write_text(code)
    assert main(["convert", "digits_brevitas.onnx", "-o", "digits_qdq.onnx", "--to", "qdq"]) == 0
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "qgraph.pytest_plugin"}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_models.py"],
        check=False,
        env=os.environ | plugins,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    TRANSFORMS.names(), operator.OPERATORS.names()
    for registry in (TRANSFORMS, operator.OPERATORS):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    monkeypatch.setattr(operator, "_BY_KEY", {})


@pytest.fixture
def extension(registries: None) -> Callable[[str], dict[str, Any]]:
    """Runs the code of the page on extending that defines something; returns its names."""

    def run(name: str) -> dict[str, Any]:
        (code,) = [code for code in blocks("dev/extending", "python") if name in code]
        names: dict[str, Any] = {"__name__": "example"}
        exec(compile(code, name, "exec", dont_inherit=True), names)
        return names

    return run


MODEL = """<ir_version: 10, opset_import: ["": 21, "com.example": 1]>
    net (float[5] x) => (float[5] y) <float s = {0.5}> {
        [first] a = Identity (x)
        [half] b = com.example.HalfSteps <limit = 2> (a, s)
        [last] y = Identity (b)
    }"""


def test_the_operator_of_the_example_runs_and_becomes_portable(extension):
    from qgraph.transforms import MakePortable

    extension("HalfSteps")
    model = load(ir.from_onnx_text(MODEL))
    x = np.array([-9, -0.1, 0, 0.7, 9], np.float32)
    expected = [-0.75, -0.25, 0.25, 0.75, 1.25]
    assert model.run({"x": x}, backend="numpy")["y"].tolist() == expected
    model.apply(MakePortable())
    assert len(model.ir.functions) == 1


def test_the_pass_of_the_example_reports_and_runs_once(extension):
    names = extension("DropIdentities")
    extension("HalfSteps")
    model = load(ir.from_onnx_text(MODEL))
    report = model.apply(names["DropIdentities"]())
    assert [(site.node, str(site.outcome)) for site in report] == [
        ("first", "changed"),
        ("last", "kept"),
    ]
    assert [node.name for node in model.nodes()] == ["half", "last"]
    assert "drop-identities" in TRANSFORMS.names()
    assert model.apply(names["DropIdentities"](keep="half")).exactness == "bits"


def test_the_format_of_the_example_holds(extension):
    assert extension("e3m4")["e3m4"].name == "minifloat"


def test_the_command_of_the_example_counts(extension, folder, capsys):
    from qgraph.cli.output import Talk

    command = extension("Count the nodes")["command"]
    status = command.main(["digits_brevitas.onnx"], standalone_mode=False, obj=Talk())
    nodes = len(ir.load(folder / "digits_brevitas.onnx").graph)
    assert (status, capsys.readouterr().out) == (0, f"{nodes}\n")


def anchors(path: Path) -> set[str]:
    """Return what links to the headings of a page may name, by GitHub's rule."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.cases(fast=16)
@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES])
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), link
        assert path.is_relative_to(ROOT), link
        if anchor:
            assert anchor in anchors(path), link


def test_every_page_is_listed():
    """Each page has a link from the index of its own folder, or of the folder above."""
    for page in DOCS.rglob("*.md"):
        folder = page.parent if page.name != "README.md" else page.parent.parent
        index = next(each for each in (folder, folder.parent) if (each / "README.md").exists())
        if page != DOCS / "README.md":
            link = page.relative_to(index)
            assert f"({link})" in (index / "README.md").read_text(), link


def test_worked_examples_print_what_the_page_shows(folder, capsys):
    """The code of the page is one program; a block of text after it is what it prints."""
    page = BLOCK.findall((DOCS / "dev" / "architecture.md").read_text())
    names: dict[str, Any] = {}
    count = 0
    for (kind, code), (after, expected) in zip(page, [*page[1:], ("", "")], strict=True):
        if kind == "python":
            exec(compile(code, "architecture.md", "exec", dont_inherit=True), names)
            printed = capsys.readouterr().out
            assert printed == (expected if after == "text" else "")
            count += after == "text"
    assert count == Counter(kind for kind, _ in page)["text"] > 5


def test_the_layers_are_those_of_the_code():
    text = (DOCS / "dev" / "architecture.md").read_text()
    shown: dict[int, set[str]] = {}
    for number, names in re.findall(r"^\| (\d+) \| (`[^|]+) \|", text, re.MULTILINE):
        shown.setdefault(int(number), set()).update(re.findall(r"`(\w+)`", names))
    assert shown == {number: set(names) for number, names in enumerate(ORDER, start=1)}


NAMED = re.compile(r"`((?:qgraph|transforms|cli|tests|docs|\.ci)/[\w./*-]+)`")
WITHIN = re.compile(r"`([a-z]\w*(?:/[a-z]\w*)+\.py)`")
MODULE = re.compile(r"`(qgraph(?:\.\w+)+)`")
FOR_CONTRIBUTORS = [page for page in PAGES if page.parent != DOCS]


@pytest.mark.parametrize("page", FOR_CONTRIBUTORS, ids=lambda page: page.stem)
def test_paths_and_modules_exist(page):
    """Those in capital letters, such as NAME.py, stand for a new file."""
    text = page.read_text()
    for path in NAMED.findall(text):
        if not re.search(r"/[A-Z]+_?[A-Z]*(_view)?\.py$", path):
            assert list(ROOT.glob(path.rstrip("/"))), path
    for path in WITHIN.findall(text):
        assert (ROOT / path).exists() or (ROOT / "qgraph" / path).exists(), path
    for name in MODULE.findall(text):
        assert pkgutil.resolve_name(name), name


def test_every_command_has_a_section_and_an_example():
    names = cli.list_commands(click.Context(cli))
    text = (DOCS / "commands.md").read_text()
    assert sorted(re.findall(r"^### qgraph (\w+)$", text, re.MULTILINE)) == names
    used = {shlex.split(command, comments=True)[1] for command, _, _ in steps("commands")}
    assert used == set(names)


def test_every_option_is_on_some_page():
    pages = (page.read_text() for page in (*DOCS.glob("*.md"), ROOT / "README.md"))
    told = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", "\n".join(pages)))
    context = click.Context(cli)
    for name in cli.list_commands(context):
        for option in cli.get_command(context, name).get_params(context):
            if isinstance(option, click.Option):
                assert told & set(option.opts), f"{name} {option.opts}"


def test_every_condition_is_told():
    from qgraph import conditions

    text = (DOCS / "proof.md").read_text()
    assert [kind for kind in conditions._KINDS if f"`{kind}`" not in text] == []


def test_every_exit_status_is_told():
    from qgraph.cli import output as entry
    from qgraph.cli.commands.prove import STATUS

    told = {
        int(n)
        for n in re.findall(r"^\| (\d+) \|", (DOCS / "exit-status.md").read_text(), re.MULTILINE)
    }
    known = {0, entry.DIFFERENT, entry.USAGE, entry.UNUSABLE, entry.UNDECIDED}
    assert told == known | {entry.INTERRUPTED, entry.BROKEN_PIPE} | set(STATUS.values())


def keys(document: object, skip: frozenset[str]) -> set[str]:
    """Return the names of all fields of a JSON document, but for those within ``skip``."""
    found: set[str] = set()
    if isinstance(document, list):
        found |= {key for entry in document for key in keys(entry, skip)}
    elif isinstance(document, dict):
        for key, value in document.items():
            found |= {key} | (keys(value, skip) if key not in skip else set())
    return found


@pytest.mark.slow
def test_every_field_of_every_report_is_told(folder, capsys):
    """What names things of a model or of a runtime rather than a measure is not looked into."""
    pair = ["digits_nncf.onnx", "near.onnx"]
    to = ["-o", "near.onnx", "--to", "qdq", "--exact", "near"]
    assert main(["convert", "digits_nncf.onnx", *to, "--report", "convert.json"]) == 0
    assert main(["check", *pair, "--probes", "1", "--report", "check.json"]) == 1
    assert main(["prove", *pair, "--certificate", "prove.json"]) == 1
    documents = []
    for arguments in (
        ["diff", *pair],
        ["info", "near.onnx"],
        ["run", "near.onnx", "--stats"],
        ["prove", *pair, "--verify", "prove.json"],
    ):
        capsys.readouterr()
        assert main([*arguments, "--json"]) in (0, 1)
        documents.append(json.loads(capsys.readouterr().out))
    documents += [json.loads(Path(f"{n}.json").read_text()) for n in ("convert", "check", "prove")]
    text = BLOCK.sub("", (DOCS / "reports.md").read_text())
    told = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", text))))
    skip = frozenset({"figures", "quantiles_abs", "results", "rewrite"})
    skip |= {"opsets", "operators", "dialects", "unsupported"}
    extra = {"count", "channel", "scale_low", "scale_high"}  # told in words
    for document in documents:
        missing = keys(document, skip) - told - extra
        assert not missing, document.get("command", "info")


def test_pictures_are_whole():
    pictures = sorted((DOCS / "img").glob("*.svg"))
    assert pictures
    for picture in pictures:
        text = picture.read_text()
        assert ET.fromstring(text).tag.endswith("svg")
        assert "http" not in text.replace("http://www.w3.org/", ""), "pictures load nothing"
