"""The GitHub action and the pre-commit hooks: their commands, run as they stand."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import pytest

from qgraph import load
from qgraph.transforms import ConvertDialect

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


@pytest.fixture(scope="module")
def action() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    return found


class Done(NamedTuple):
    status: int
    talk: str
    summary: str
    outputs: dict[str, str]
    reports: set[str]


class Project:
    """A folder with models, in which the steps of the action run."""

    def __init__(self, action: dict[str, Any], folder: Path) -> None:
        self.action, self.folder = action, folder

    def step(self, name: str) -> dict[str, Any]:
        (found,) = [step for step in self.action["runs"]["steps"] if step["name"] == name]
        return found

    def run(self, name: str, *, path: Path | None = None, **inputs: str) -> Done:
        """Run a step as GitHub does, with inputs (dashes as underscores) and defaults."""
        given = {key.replace("_", "-"): value for key, value in inputs.items()}
        known = self.action["inputs"]
        assert given.keys() <= known.keys()
        values = {key: given.get(key, entry.get("default")) for key, entry in known.items()}
        step = self.step(name)
        assert step["shell"] == "bash"
        files = {key: self.folder / key for key in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
        for file in files.values():
            file.write_text("")
        environment = os.environ | {key: str(file) for key, file in files.items()}
        for key, text in step["env"].items():
            environment[key] = _evaluate(text, values)
        bin_folder = path or Path(sys.executable).parent
        environment["PATH"] = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
        script = self.folder / "step.sh"
        script.write_text(step["run"])
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", script],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env=environment,
        )
        lines = files["GITHUB_OUTPUT"].read_text().splitlines()
        reports = {file.name for file in (self.folder / values["reports"]).glob("*")}
        return Done(
            done.returncode,
            done.stdout + done.stderr,
            files["GITHUB_STEP_SUMMARY"].read_text(),
            dict(line.split("=", 1) for line in lines),
            reports,
        )


def _evaluate(text: str, inputs: dict[str, str]) -> str:
    """Return what GitHub makes of an expression that names one input or the action's folder."""
    (name,) = re.fullmatch(r"\$\{\{ ([\w.-]+) \}\}", text).groups()
    if name == "github.action_path":
        return str(ROOT)
    return inputs[name.removeprefix("inputs.")]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example models in ``models``, what they became in ``build``."""
    folder = tmp_path_factory.mktemp("built")
    for name in ("models", "build"):
        (folder / name).mkdir()
    for path in EXAMPLES.glob("*.onnx"):
        shutil.copy(path, folder / "models")
        model = load(path)
        model.apply(ConvertDialect(to="qdq"))
        model.save(folder / "build" / f"{path.stem}_qdq.onnx")
    return folder


@pytest.fixture
def project(action: dict[str, Any], built: Path, tmp_path: Path) -> Project:
    """A project of its own for each test."""
    shutil.copytree(built, tmp_path, dirs_exist_ok=True)
    return Project(action, tmp_path)


@pytest.fixture
def bare(action: dict[str, Any], tmp_path: Path) -> Project:
    """A project whose models are empty files."""
    for name in ("models/a.onnx", "build/a_qdq.onnx"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    return Project(action, tmp_path)


COMPARE = "Compare models"
PATTERNS = {"reference": "models/*.onnx", "candidate": "build/*_qdq.onnx"}


@pytest.mark.slow
def test_equal_pairs_are_checked_and_reported(project):
    done = project.run(COMPARE, **PATTERNS)
    assert done.status == 0, done.talk
    assert done.outputs == {"pairs": "2", "status": "0"}
    names = {"digits_brevitas", "digits_nncf"}
    assert done.reports == {
        f"{name}.check.{kind}" for name in names for kind in ("json", "xml", "md", "sarif", "txt")
    }
    for name in names:
        assert f"`models/{name}.onnx` and `build/{name}_qdq.onnx`: equal" in done.summary
        folder = project.folder / "qgraph-reports"
        assert ET.parse(folder / f"{name}.check.xml").getroot().attrib["failures"] == "0"
        assert json.loads((folder / f"{name}.check.sarif").read_text())["version"] == "2.1.0"


@pytest.mark.slow
def test_a_pair_that_differs_fails_the_step(project):
    shutil.copy(
        project.folder / "build" / "digits_nncf_qdq.onnx",
        project.folder / "build" / "digits_brevitas_qdq.onnx",
    )
    done = project.run(COMPARE, **PATTERNS, reports="found/here")
    assert done.status == 1
    assert done.outputs == {"pairs": "2", "status": "1"}
    assert "::error file=build/digits_brevitas_qdq.onnx::qgraph check: different" in done.talk
    assert done.talk.count("::error") == 1
    assert "build/digits_brevitas_qdq.onnx`: different" in done.summary
    assert "The first tensor that differs is" in done.summary
    assert len(re.findall(r"^## ", done.summary, re.MULTILINE)) == 2
    assert "digits_brevitas.check.json" in done.reports


@pytest.mark.slow
def test_arguments_reach_the_command(project):
    shutil.copy(
        project.folder / "build" / "digits_nncf_qdq.onnx",
        project.folder / "build" / "digits_brevitas_qdq.onnx",
    )
    done = project.run(COMPARE, **PATTERNS, check_arguments="--random 2 --atol 1e6")
    assert done.status == 0, done.talk
    report = json.loads((project.folder / "qgraph-reports/digits_brevitas.check.json").read_text())
    assert report["verdict"] == "equal"


@pytest.mark.slow
def test_pairs_can_be_proved(project):
    done = project.run(
        COMPARE,
        reference="models/digits_brevitas.onnx",
        candidate="build/digits_brevitas_qdq.onnx",
        method="both",
    )
    assert done.status == 0, done.talk
    assert done.outputs == {"pairs": "1", "status": "0"}
    assert "equal in value for every input: 10 regions compared" in done.summary
    suite = ET.parse(project.folder / "qgraph-reports/digits_brevitas.prove.xml").getroot()
    assert (suite.attrib["tests"], suite.attrib["failures"]) == ("10", "0")
    certificate = json.loads(
        (project.folder / "qgraph-reports/digits_brevitas.prove.json").read_text()
    )
    assert certificate["verdict"] == "proved"


UNDECIDABLE = """<ir_version: 10, opset_import: ["": 21]>
    net (float[2] x) => (float[2] y) {{ y = {} (x) }}"""


@pytest.mark.slow
def test_undecided_fails_unless_it_is_allowed(project):
    import onnx_ir as ir

    for name in ("Sin", "Cos"):
        ir.save(ir.from_onnx_text(UNDECIDABLE.format(name)), project.folder / f"{name}.onnx")
    pair = {"reference": "Sin.onnx", "candidate": "Cos.onnx", "method": "prove"}
    done = project.run(COMPARE, **pair)
    assert (done.status, done.outputs["status"]) == (4, "4")
    assert "undecided" in done.summary
    assert project.run(COMPARE, **pair, allow_undecided="true").status == 0


@pytest.mark.exhaustive
def test_the_gravest_status_decides_not_the_highest(project):
    import onnx_ir as ir

    for folder in ("before", "after"):
        (project.folder / folder).mkdir()
    texts = {"undecided": ("Sin", "Cos"), "different": ("Relu", "Neg")}
    for name, operators in texts.items():
        for folder, operator in zip(("before", "after"), operators, strict=True):
            model = ir.from_onnx_text(UNDECIDABLE.format(operator))
            ir.save(model, project.folder / folder / f"{name}.onnx")
    pairs = {"reference": "before/*.onnx", "candidate": "after/*.onnx", "method": "prove"}
    done = project.run(COMPARE, **pairs)
    assert (done.status, done.outputs) == (1, {"pairs": "2", "status": "1"})


@pytest.mark.slow
def test_stars_pair_files_in_nested_folders_and_names_with_blanks(project):
    nested = project.folder / "models" / "in ner"
    nested.mkdir()
    shutil.move(project.folder / "models" / "digits_nncf.onnx", nested / "a b.onnx")
    shutil.copytree(project.folder / "models", project.folder / "other")
    done = project.run(COMPARE, reference="models/**/*.onnx", candidate="other/**/*.onnx")
    assert done.status == 0, done.talk
    assert done.outputs["pairs"] == "2"
    assert "in ner_a b.check.json" in done.reports
    pair = {"reference": "models/in ner/a*.onnx", "candidate": "other/in ner/a*.onnx"}
    assert project.run(COMPARE, **pair).outputs == {"pairs": "1", "status": "0"}


@pytest.mark.exhaustive
def test_pages_are_written_on_demand(project):
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    done = project.run(
        COMPARE,
        reference="models/digits_brevitas.onnx",
        candidate="build/digits_brevitas_qdq.onnx",
        html="true",
    )
    assert done.status == 0, done.talk
    assert "digits_brevitas.check.html" in done.reports


@pytest.mark.slow
def test_a_missing_candidate_is_told(project):
    (project.folder / "build" / "digits_nncf_qdq.onnx").unlink()
    done = project.run(COMPARE, **PATTERNS)
    assert done.status == 3
    assert "digits_nncf_qdq.onnx`: failed, exit status 3" in done.summary


@pytest.mark.slow
def test_no_name_starts_another_command(project):
    name = "odd\n::warning::100%, by a name: "
    shutil.copy(project.folder / "models" / "digits_nncf.onnx", project.folder / f"{name}.onnx")
    done = project.run(COMPARE, reference=f"{name}.onnx", candidate=f"absent {name}.onnx")
    assert done.status == 3
    commands = [line for line in done.talk.splitlines() if line.lstrip().startswith("::")]
    escaped = "odd%0A::warning::100%25, by a name: .onnx"
    file = "absent " + escaped.replace(":", "%3A").replace(",", "%2C")
    told = "qgraph check: failed, exit status 3, compared with"
    assert commands == [f"::error file={file}::{told} {escaped}"]


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({"reference": "none/*.onnx"}, "no file matches 'none/*.onnx'"),
        ({"method": "guess"}, "method is 'guess', expected check, prove, both or lint"),
    ],
)
def test_wrong_inputs_are_usage(bare, inputs, told):
    done = bare.run(COMPARE, **(PATTERNS | inputs))
    assert done.status == 2
    assert told in done.talk


@pytest.mark.parametrize(("html", "extras"), [("false", "ort"), ("true", "ort,report")])
def test_installation_is_of_this_folder_with_extras_that_exist(bare, tmp_path, html, extras):
    recorder = tmp_path / "bin" / "python"
    recorder.parent.mkdir()
    recorder.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    recorder.chmod(recorder.stat().st_mode | stat.S_IXUSR)
    done = bare.run("Install qgraph", path=recorder.parent, html=html)
    assert done.status == 0
    arguments = done.talk.splitlines()
    assert arguments[:3] == ["-m", "pip", "install"]
    assert arguments[-1] == f"{ROOT}[{extras}]"
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) <= set(known["optional-dependencies"])


def test_every_input_is_documented_and_used(action):
    text = (ROOT / "action.yml").read_text()
    for name, entry in action["inputs"].items():
        assert entry["description"]
        assert entry.get("required") or "default" in entry
        assert f"inputs.{name} " in text
    page = (ROOT / "docs" / "ci.md").read_text()
    missing = [name for name in action["inputs"] if f"`{name}`" not in page]
    assert not missing


def test_inputs_reach_scripts_by_the_environment_only(action):
    """What is put into a script's text could run as a command."""
    scripts = [step["run"] for step in action["runs"]["steps"] if "run" in step]
    assert len(scripts) == 2
    assert not any("${{" in script for script in scripts)


@pytest.fixture(scope="module")
def hooks() -> dict[str, dict[str, Any]]:
    found = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    return {hook["id"]: hook for hook in found}


def run_hook(
    hook: dict[str, Any], folder: Path, names: list[str], arguments: list[str]
) -> subprocess.CompletedProcess[str]:
    """Run a hook as pre-commit does: its entry, its arguments, the files that it is for."""
    files = [name for name in names if re.search(hook["files"], name)]
    assert files
    passed = files if hook.get("pass_filenames", True) else []
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    }
    return subprocess.run(
        [*shlex.split(hook["entry"]), *arguments, *passed],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment,
    )


@pytest.mark.slow
def test_hook_compares_models_with_their_locks(hooks, project):
    folder = project.folder / "models"
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for name in ("digits_brevitas", "digits_nncf"):
        command = ["qgraph", "lock", f"{name}.onnx", "-o", f"{name}.onnx.lock"]
        subprocess.run(command, check=True, cwd=folder, capture_output=True, env=environment)
    names = sorted(path.name for path in folder.iterdir())
    hook = hooks["qgraph-lock"]
    done = run_hook(hook, folder, [*names, "readme.md"], [])
    assert done.returncode == 0, done.stdout + done.stderr
    lock = folder / "digits_nncf.onnx.lock"
    lock.write_text(lock.read_text().replace('"uint8"', '"uint4"', 1))
    done = run_hook(hook, folder, [lock.name], [])
    assert done.returncode == 1
    assert "format: uint4 -> uint8" in done.stdout


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("name", ["qgraph-check", "qgraph-prove"])
def test_hook_compares_the_models_that_its_arguments_name(hooks, project, name):
    pair = ["models/digits_brevitas.onnx", "build/digits_brevitas_qdq.onnx"]
    assert run_hook(hooks[name], project.folder, pair, pair).returncode == 0
    other = [pair[0], "build/digits_nncf_qdq.onnx"]
    assert run_hook(hooks[name], project.folder, other, other).returncode in (1, 4)


def test_hooks_are_documented(hooks):
    page = (ROOT / "docs" / "ci.md").read_text()
    assert {name for name in hooks if name in page} == set(hooks)


@pytest.mark.slow
def test_models_are_linted_and_reported(project):
    given = {"reference": "models/*.onnx", "method": "lint"}
    done = project.run(COMPARE, **given, lint_arguments="--select QG403")
    assert (done.status, done.outputs) == (1, {"status": "1"})
    assert done.reports == {f"lint.{kind}" for kind in ("json", "xml", "md", "sarif")}
    assert "::warning file=models/digits_brevitas.onnx,title=QG403 batch-norm" in done.talk
    assert "## Lint: warnings" in done.summary
    assert project.run(COMPARE, **given, lint_arguments="--fail-on error").status == 0


@pytest.mark.slow
def test_hook_lints_models(hooks, project):
    names = ["digits_brevitas.onnx", "digits_nncf.onnx"]
    folder = project.folder / "models"
    assert run_hook(hooks["qgraph-lint"], folder, names, ["--fail-on", "error"]).returncode == 0
    done = run_hook(hooks["qgraph-lint"], folder, names, ["--select", "QG403"])
    assert done.returncode == 1
    assert "QG403 batch-norm-behind-layer" in done.stdout
