"""Python that starts in the root of a checkout imports all of the package, and scripts find it."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from qgraph import _checkout

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("qgraph", "transforms", "cli", "pyproject.toml")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that looks like a checkout."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for part in PARTS:
        (folder / part).symlink_to(ROOT / part)
    return folder


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH that looks like an installation which is not editable."""
    package = tmp_path / "site" / "qgraph"
    package.mkdir(parents=True)
    for part in (ROOT / "qgraph").iterdir():
        (package / part.name).symlink_to(part)
    for part in ("transforms", "cli"):
        (package / part).symlink_to(ROOT / part)
    return package.parent


def run(folder: Path, *arguments: str, path: Path | None = None) -> str:
    """Run Python in a folder; without ``site``, so that no editable installation is followed."""
    packages = [entry for entry in sys.path if entry and Path(entry) != ROOT]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*([] if path is None else [str(path)]), *packages])
    }
    environment.pop("PYTHONSAFEPATH", None)
    done = subprocess.run(
        [sys.executable, "-S", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


WHERE = "from qgraph import transforms, cli; print(transforms.__file__, cli.__file__)"


def test_subpackages_come_from_the_checkout(checkout: Path, installed: Path) -> None:
    files = run(checkout, "-c", WHERE, path=installed).split()
    assert files == [str(checkout / part / "__init__.py") for part in ("transforms", "cli")]


def test_checkout_works_without_an_installation(checkout: Path) -> None:
    assert "checkout" in run(checkout, "-c", WHERE)


def test_installation_is_used_elsewhere(tmp_path: Path, installed: Path) -> None:
    files = run(tmp_path, "-c", WHERE, path=installed).split()
    assert files == [
        str(installed / "qgraph" / part / "__init__.py") for part in ("transforms", "cli")
    ]


@pytest.mark.parametrize("module", ["qgraph.cli.main", "qgraph"])
def test_modules_run_as_programs(checkout: Path, installed: Path, module: str) -> None:
    version = run(checkout, "-m", module, "--version", path=installed)
    assert version.startswith("qgraph ")


def test_only_a_checkout_of_this_project_is_one(checkout: Path) -> None:
    init = str(checkout / "qgraph" / "__init__.py")
    assert _checkout(init) == [str(checkout)]
    (checkout / "pyproject.toml").unlink()
    assert _checkout(init) == []
    (checkout / "pyproject.toml").write_text('[project]\nname = "another"\n')
    assert _checkout(init) == []
    (checkout / "pyproject.toml").write_bytes(b'name = "qgraph" \xff')
    assert _checkout(init) == []


def test_folder_without_the_subpackages_is_no_checkout(checkout: Path) -> None:
    (checkout / "cli").unlink()
    assert _checkout(str(checkout / "qgraph" / "__init__.py")) == []


@pytest.mark.parametrize(
    "folder", ["tests/benchmarks", "tests/exporters", "tests/fuzz", "examples"]
)
def test_scripts_import_names_that_exist(folder: str) -> None:
    """No test runs most of these scripts."""
    imports = [
        (name, alias.name)
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (name := node.module or "").split(".")[0] == "qgraph"
        for alias in node.names
    ]
    assert imports
    missing = [
        f"{module}.{name}"
        for module, name in imports
        if not hasattr(importlib.import_module(module), name) and not find_spec(f"{module}.{name}")
    ]
    assert missing == []
