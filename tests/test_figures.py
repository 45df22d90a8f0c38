"""The figures of a small tree that was counted by hand, and the picture of ours."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SVG = "{http://www.w3.org/2000/svg}"

TREE = {
    "qgraph/__init__.py": "import qgraph.model\n",
    "qgraph/errors.py": '"""Nothing but\n\ntext."""\n',
    "qgraph/graph/__init__.py": "",
    "qgraph/graph/edit.py": """
import qgraph.errors
from qgraph.graph.opset import change

class Edit:
    '''Described.'''

    def apply(self): return 1
    def _hidden(self): pass
""",
    "qgraph/graph/opset/__init__.py": "",
    "qgraph/graph/opset/change.py": "def f():\n    from qgraph.graph.edit import Edit\n",
    "qgraph/model.py": "from qgraph.graph import edit\nclass Edit: pass\n",
    "transforms/base.py": "from qgraph import graph\n" + "\n" * 400,
    "cli/main.py": "from qgraph import graph, model; from qgraph.transforms import base",
}


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    program = ROOT / ".ci" / "figures"
    return subprocess.run(
        [sys.executable, program, *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_figures_are_those_counted_by_hand(tree: Path) -> None:
    figures = json.loads(run("--json", "--root", tree).stdout)
    expected = {
        "sub-packages of qgraph": 1,
        "nesting depth": 2,
        "most sub-packages in another package": 1,
        "floors": 4,  # cli > model > graph > errors
        "upward imports": 0,
        "circles of files": 1,
        "circles of components": 0,
        "files": 6,
        "lines": 1 + 3 + 9 + 2 + 2 + 401 + 1,
        # edit: two imports, a class of a docstring and two methods of one statement each
        "statements": 1 + 1 + 8 + 2 + 3 + 1 + 2,
        "files above 400 lines": 1,
        "public names": 4,  # Edit, Edit.apply, f, Edit
        "public names with docstring in %": 25.0,
        "class names that occur more than once": 1,
    }
    assert {name: figures[name] for name in expected} == expected
    assert figures["folders"]["transforms"] == {"files": 1, "lines": 401, "statements": 1}


@pytest.mark.slow
def test_this_checkout_keeps_the_limits_and_its_picture_is_current(tmp_path: Path) -> None:
    """The picture is drawn by ``.ci/figures --picture docs/dev/architecture.svg``."""
    picture = tmp_path / "drawn.svg"
    figures = json.loads(run("--json", "--picture", picture).stdout)
    documented = ROOT / "docs" / "dev" / "architecture.svg"
    assert documented.read_text() == picture.read_text()
    most = {
        "sub-packages of qgraph": 13,
        "nesting depth": 2,
        "most sub-packages in another package": 6,
        "floors": 10,
        "upward imports": 0,
        "circles of files": 0,
        "circles of components": 0,
        "files above 400 lines": 0,
        "class names that occur more than once": 0,
    }
    assert {name: figures[name] for name in most if figures[name] > most[name]} == {}
    assert figures["public names with docstring in %"] == 100


def test_violations_name_file_and_line(tree: Path) -> None:
    (tree / "qgraph" / "errors.py").write_text("\nimport qgraph.model\nimport qgraph.elsewhere\n")
    (tree / "qgraph" / "elsewhere.py").write_text("")
    done = run("--violations", "--root", tree)
    assert done.returncode == 1
    assert "no layer: qgraph.elsewhere\n" in done.stdout
    assert "qgraph/errors.py:2: qgraph.errors imports qgraph.model\n" in done.stdout
    assert "  qgraph/graph/opset/change.py:2: qgraph.graph.opset.change imports" in done.stdout


def test_moved_files_are_read_at_their_new_place(tree: Path) -> None:
    moves = tree / "moves"
    moves.write_text("qgraph/graph/opset/change.py qgraph/graph/edit.py\n")
    done = run("--violations", "--root", tree, "--moves", moves)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.slow
def test_picture_leaves_out_what_follows(tree: Path) -> None:
    path = tree / "picture.svg"
    run("--picture", path, "--root", tree)
    picture = ET.parse(path).getroot()
    texts = [text.text for text in picture.iter(f"{SVG}text") if text.get("class") != "floor"]
    assert texts == ["cli/", "errors", "graph/", "opset", "model", "transforms/"]
    arrows = [path for path in picture.iter(f"{SVG}path") if path.get("class") == "arrow"]
    # graph > errors, model > graph, transforms > graph, cli > model, cli > transforms
    assert len(arrows) == 5
    first = path.read_bytes()
    run("--picture", path, "--root", tree)
    assert path.read_bytes() == first
