"""What is installed, how it starts, and that README, CI and metadata say the same."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import qgraph

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"qgraph": "qgraph", "transforms": "qgraph.transforms", "cli": "qgraph.cli"}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def run_python(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout


def readme_commands() -> list[str]:
    return re.findall(
        r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )


def test_version_is_that_of_the_installed_distribution() -> None:
    assert importlib.metadata.version("qgraph") == qgraph.__version__


def test_changelog_begins_with_this_version() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == qgraph.__version__


def test_every_folder_with_code_is_packaged(project: dict[str, Any]) -> None:
    found = {
        ".".join([package, *init.parent.relative_to(ROOT / folder).parts])
        for folder, package in FOLDERS.items()
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert sorted(found) == project["tool"]["setuptools"]["packages"]


def test_every_module_belongs_to_a_package() -> None:
    orphans = [
        path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if not (path.parent / "__init__.py").exists()
    ]
    assert not orphans


BUILT_IN = {"LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", *FOLDERS}
"""What a source distribution has without being asked."""


def test_source_distribution_has_all_that_tests_read() -> None:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=False)
    if listing.returncode:
        pytest.skip("this is no checkout")
    tracked = {name.split("/")[0] for name in listing.stdout.decode().splitlines()}
    lines = [line.split() for line in (ROOT / "MANIFEST.in").read_text().splitlines()]
    listed = {name for verb, *names in lines if verb in ("include", "graft") for name in names}
    assert tracked - BUILT_IN - {".gitignore"} == listed


def test_package_is_marked_as_typed() -> None:
    spec = importlib.util.find_spec("qgraph")
    assert spec is not None
    assert spec.origin is not None
    assert (Path(spec.origin).parent / "py.typed").is_file()


def test_installing_claims_no_name_but_qgraph(project: dict[str, Any]) -> None:
    packages = project["tool"]["setuptools"]["packages"]
    assert {name.split(".")[0] for name in packages} == {"qgraph"}


def test_console_script_is_the_program() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="qgraph")
    assert script.value == "qgraph.cli.main:program"
    assert callable(script.load())


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_start_up_imports_no_model_library(option: str) -> None:
    """Help and version appear at once: neither ONNX nor NumPy is loaded for them."""
    program = f"""
import sys
sys.argv = ["qgraph", {option!r}]
from qgraph.cli.main import main
try:
    main()
except SystemExit as ending:
    assert not ending.code, ending.code
heavy = {{"onnx", "onnx_ir", "onnxruntime", "onnxscript", "numpy", "networkx", "sympy"}}
print("loaded:", *sorted(heavy & set(sys.modules)))
"""
    assert run_python("-c", program).splitlines()[-1] == "loaded:"


@pytest.mark.slow
def test_a_command_does_not_load_sympy() -> None:
    """The command line alone defers it: the library leaves the imports of others as they are."""
    example = ROOT / "examples" / "digits_brevitas.onnx"
    program = f"""
import sys
sys.argv = ["qgraph", "info", {str(example)!r}]
from qgraph.cli.main import main, tune
tune()
assert main() == 0
print("sympy.core" in sys.modules)
import importlib.util, onnx_ir
print(importlib.util.find_spec("sympy").name, onnx_ir.SymbolicDim("n") + 1)
"""
    lines = run_python("-c", program).splitlines()
    assert lines[-2:] == ["False", "sympy n + 1"]


def test_readme_begins_with_the_commands_that_ci_runs() -> None:
    example, tests = readme_commands()[:2]
    for command, end in ((example, "examples/convert_digits.py"), (tests, "-m pytest -q -n auto")):
        assert command.startswith("python3 -m venv .venv")
        assert command.rstrip("\n").endswith(end)
        assert command.count("\n") == 1
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    numbers = set(re.findall(r"readme_command (\d)", script.read_text()))
    assert numbers == {"1", "2"}


def test_stated_extras_exist(project: dict[str, Any]) -> None:
    extras = set(project["project"]["optional-dependencies"])
    stated = re.findall(r"\[([a-z,]+)\]\"", "".join(readme_commands()))
    assert stated
    assert {name for group in stated for name in group.split(",")} <= extras


@pytest.mark.slow
def test_wheel_has_all_files_of_the_packages_and_is_built_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=False)
    if listing.returncode:
        pytest.skip("this is no checkout")
    for name in listing.stdout.decode().splitlines():
        copy = tmp_path / "source" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy)
    earlier = tmp_path / "source" / "build" / "lib" / "qgraph" / "removed_since.py"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("")
    program = f"""
import backend
backend.get_requires_for_build_wheel()
backend.prepare_metadata_for_build_wheel({str(tmp_path)!r})
print(backend.build_wheel({str(tmp_path)!r}))"""
    built = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", program],
        cwd=tmp_path / "source",
        env=os.environ | {"PYTHONPATH": ".ci"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr[-2000:]
    assert not [*tmp_path.glob("source/*.egg-info")], "a checkout may be read-only"
    with zipfile.ZipFile(tmp_path / built.stdout.split()[-1]) as wheel:
        found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    tracked = (Path(name) for name in listing.stdout.decode().splitlines())
    assert found == {
        "/".join([*FOLDERS[path.parts[0]].split("."), *path.parts[1:]])
        for path in tracked
        if path.parts[0] in FOLDERS
    }
