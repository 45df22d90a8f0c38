"""Plugins: packages and modules that add operators, dialects, passes, targets and rules."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import onnx
import onnx.parser
import pytest

from qgraph.registry import GROUPS

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "plugin"
MODEL = ROOT / "examples" / "digits_brevitas.onnx"


def run(folder: Path, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own: packages are found at its start."""
    search = os.pathsep.join(filter(None, [path, str(ROOT)]))
    return subprocess.run(
        [sys.executable, "-m", "qgraph.cli.main", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
        env=os.environ | {"PYTHONPATH": search},
    )


def installed(folder: Path) -> Path:
    """Return a folder with what pip installs of the example."""
    site = folder / "site"
    shutil.copytree(EXAMPLE / "qgraph_mychip", site / "qgraph_mychip")
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    made = site / "qgraph_mychip-0.1.0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: qgraph-mychip\nVersion: 0.1.0\n")
    groups = project["entry-points"].items()
    lines = [f"[{group}]\n{name} = {each}\n" for group, e in groups for name, each in e.items()]
    (made / "entry_points.txt").write_text("".join(lines))
    return site


def package(folder: Path, text: str, **entries: str) -> str:
    """Write what pip installs of a package: a module, and its entry points."""
    (folder / "broken_plugin.py").write_text(text)
    made = folder / "broken_plugin-1.0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1.0\n")
    lines = [f"[qgraph.{group}]\nx = {value}\n" for group, value in entries.items()]
    (made / "entry_points.txt").write_text("".join(lines))
    return str(folder)


def test_the_example_imports_public_names_only_and_stays_short() -> None:
    files = [file for folder in (EXAMPLE, EXAMPLE / "qgraph_mychip") for file in folder.glob("*.*")]
    files = [file for file in files if file.suffix in (".py", ".toml", ".md")]
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert 150 < len(lines) < 300
    for file in (EXAMPLE / "qgraph_mychip").glob("*.py"):
        tree = ast.parse(file.read_text())
        modules = [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
        ours = [name for name in modules if name and name.split(".")[0] == "qgraph"]
        assert set(ours) <= {"qgraph.plugin"}, file


@pytest.mark.exhaustive
def test_the_test_of_the_example_finds_a_kernel_that_is_not_its_definition(tmp_path: Path) -> None:
    folder = tmp_path / "plugin"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    kernel = folder / "qgraph_mychip" / "step_quant.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.run(command, cwd=folder, env=env, check=False).returncode == 0
    text = kernel.read_text()
    assert text.count("np.rint(x / step)") == 1
    kernel.write_text(text.replace("np.rint(x / step)", "np.rint(x * (np.float32(1) / step))"))
    assert subprocess.run(command, cwd=folder, env=env, check=False).returncode == 1


@pytest.mark.exhaustive
def test_an_installed_plugin_is_known_to_all_commands(tmp_path: Path) -> None:
    site = installed(tmp_path)
    assert "mychip" in run(tmp_path, "targets", path=str(site)).stdout
    assert "drop-identities" in run(tmp_path, "passes", path=str(site)).stdout
    arguments = ["convert", str(MODEL), "-o", "out.onnx", "--to", "mychip", "--report", "r.json"]
    done = run(tmp_path, *arguments, path=str(site))
    assert done.returncode == 0, done.stderr
    sites = json.loads((tmp_path / "r.json").read_text())["sites"]
    assert {site["outcome"] for site in sites} >= {"changed"}
    proved = run(tmp_path, "prove", str(MODEL), "out.onnx", path=str(site))
    assert proved.returncode == 0, proved.stdout + proved.stderr
    found = run(tmp_path, "info", "out.onnx", path=str(site))
    assert "StepQuant" in found.stdout
    back = ["convert", "out.onnx", "-o", "back.onnx", "--to", "qdq", "--prove"]
    assert run(tmp_path, *back, path=str(site)).returncode == 0
    checked = ["check", str(MODEL), "back.onnx", "--backend", "numpy", "--random", "1"]
    assert run(tmp_path, *checked, path=str(site)).returncode == 0


@pytest.mark.slow
def test_operators_of_one_name_of_two_plugins_are_told_apart(tmp_path: Path) -> None:
    """Each plugin has an operator of this name; a proof compares them."""
    site = installed(tmp_path)
    shutil.copytree(site / "qgraph_mychip", site / "qgraph_other")
    for file in (site / "qgraph_other").glob("*.*"):
        text = file.read_text().replace("qgraph_mychip", "qgraph_other")
        file.write_text(text.replace("com.example.mychip", "com.example.other"))
    package(site, "import qgraph_other.step_quant\n", dialects="broken_plugin")
    text = """<ir_version: 8, opset_import: ["": 13, "com.example.mychip": 1]>
        g (float[2] x) => (float[2] y) <float a = {0.5}, float b = {0.25}> {
        p = com.example.mychip.StepQuant (x, a)
        y = com.example.mychip.StepQuant (p, b)
    }"""
    for name in ("mychip", "other"):
        model = onnx.parser.parse_model(text.replace("mychip", name))
        onnx.save(model, tmp_path / f"{name}.onnx")
    done = run(tmp_path, "prove", "mychip.onnx", "other.onnx", path=str(site))
    assert "PROVED: The outputs are equal bit for bit" in done.stdout, done.stderr


@pytest.mark.slow
def test_a_rule_of_a_plugin_is_asked_explained_and_fixed(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 13]> g (float[2] x) => (float[2] y) {
        [copy] a = Identity (x)
        y = Relu (a)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "in.onnx")
    plugin = ["--plugin", "qgraph_mychip.rules", "--plugin", "qgraph_mychip.passes"]
    found = run(tmp_path, "lint", "in.onnx", "--format", "json", *plugin, path=str(EXAMPLE))
    findings = json.loads(found.stdout)["models"][0]["findings"]
    assert [("copy" in f["nodes"]) for f in findings if f["id"] == "MC001"] == [True]
    told = run(tmp_path, "explain", "MC001", *plugin, path=str(EXAMPLE))
    assert "An Identity node copies its data." in told.stdout


@pytest.mark.exhaustive
def test_a_model_in_the_dialect_of_a_plugin_is_deployed(tmp_path: Path) -> None:
    """BatchNormalization is folded, which takes the shapes behind its quantizers."""
    plugin = ["--plugin", "qgraph_mychip.dialect"]
    arguments = ["convert", str(MODEL), "-o", "mychip.onnx", "--to", "mychip", *plugin]
    assert run(tmp_path, *arguments, path=str(EXAMPLE)).returncode == 0
    arguments = ["deploy", "mychip.onnx", "-o", "out.onnx", "--target", "onnxruntime-cpu"]
    done = run(tmp_path, *arguments, "--require-all", *plugin, path=str(EXAMPLE))
    assert done.returncode == 0, done.stdout
    assert "4 OF 4 QUANTIZED LAYERS IN INTEGER KERNELS" in done.stdout


FAULTY = """
from qgraph.plugin import LintLevel, Model, Report, Transform, rule, transform

@rule("XX001", "faulty", LintLevel.INFO)
def faulty(facts):
    "A rule with a fault."
    yield facts.nothing

@transform("silent")
class Silent(Transform):
    "Promise nothing."

    def apply(self, model: Model, report: Report) -> None:
        "Do nothing."
"""


@pytest.mark.slow
def test_a_rule_that_fails_is_named_and_a_pass_promises_nothing_by_itself(tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    plugin = ["--plugin", "faulty"]
    done = run(tmp_path, "lint", str(MODEL), *plugin, path=str(tmp_path))
    assert done.returncode == 3
    assert "Rule XX001 of the plugin faulty failed (AttributeError: " in done.stderr
    assert "--ignore XX001" in done.stderr
    shown = run(tmp_path, "passes", "silent", *plugin, path=str(tmp_path)).stdout
    assert "Changes what a model computes" in shown


@pytest.mark.slow
def test_a_module_is_a_plugin_for_one_command(tmp_path: Path) -> None:
    arguments = ["passes", "drop-identities", "--plugin", "qgraph_mychip.passes"]
    assert "keep" in run(tmp_path, *arguments, path=str(EXAMPLE)).stdout
    missing = run(tmp_path, "passes", "--plugin", "no_such_module")
    assert missing.returncode == 2
    assert "The plugin 'no_such_module' cannot be imported" in missing.stderr
    assert "such as my_passes for ./my_passes.py" in missing.stderr


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(0)\n", "SystemExit: 0"),
    ],
)
def test_a_broken_plugin_is_named_and_left_out(tmp_path: Path, text: str, told: str) -> None:
    groups = dict.fromkeys(GROUPS, "broken_plugin")
    path = package(tmp_path, text, **groups)
    done = run(tmp_path, "convert", str(MODEL), "-o", "out.onnx", "--to", "qdq", "-q", path=path)
    assert done.returncode == 0, done.stderr
    assert "The plugin broken_plugin of broken-plugin 1.0 cannot be loaded" in done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_without_plugins_nothing_is_read_of_packages(tmp_path: Path) -> None:
    script = (
        "import sys; sys.path = [p for p in sys.path if 'lib/python' in p]\n"
        "from qgraph.transforms.base import TRANSFORMS; TRANSFORMS.names()\n"
        "from qgraph import registry; print(registry._has_plugins())"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=env,
        check=True,
    )
    assert done.stdout.strip() == "False"
