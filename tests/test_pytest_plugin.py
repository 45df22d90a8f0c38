"""The fixtures that compare models, as tests of other projects use them."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph import pytest_plugin
from qgraph.cli.main import main

ROOT = Path(__file__).resolve().parents[1]

QUANT = """
    <ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
    net (float[8] x) => (float[8] y)
    <float s = {{{scale}}}, float z = {{0}}, float b = {{4}}> {{
        [round_to_grid] y = qonnx.custom_op.general.Quant
            <signed = 1, narrow = 0, rounding_mode = "ROUND"> (x, s, z, b)
    }}"""

SUITE = """
import sys

import pytest

def test_00_nothing_heavy_is_loaded_yet(assert_onnx_proved, assert_onnx_equivalent):
    heavy = {"onnx", "onnx_ir", "onnxruntime", "numpy", "networkx", "qgraph.model"}
    assert not heavy & set(sys.modules)

def test_equal(assert_onnx_equivalent, assert_onnx_proved):
    assert assert_onnx_equivalent("a.onnx", "b.onnx", random=2).outputs[0].elements == 16
    assert assert_onnx_proved("a.onnx", "b.onnx").verdict == "proved"

def test_checked_apart(assert_onnx_equivalent):
    assert_onnx_equivalent("a.onnx", "c.onnx", seed=3)

def test_proved_apart(assert_onnx_proved):
    assert_onnx_proved("a.onnx", "c.onnx")

def test_undecided(assert_onnx_proved):
    assert_onnx_proved("d.onnx", "e.onnx")

def test_in_memory(assert_onnx_equivalent, assert_onnx_proved):
    import onnx

    model = onnx.load("c.onnx")
    assert_onnx_proved(model, model)
    assert_onnx_equivalent("a.onnx", model)

@pytest.mark.parametrize(
    "tolerance",
    [{"atol": 4}, {"max_steps": 8}, {"min_sqnr": -20}, {"rtol": 9, "atol": 1}, {"max_ulp": 1e9}],
)
def test_tolerance(assert_onnx_equivalent, tolerance):
    import numpy as np

    x = np.linspace(-6, 6, 8, dtype=np.float32)
    assert_onnx_equivalent("a.onnx", "c.onnx", {"x": x}, **tolerance)

def test_bits(assert_onnx_proved):
    assert_onnx_proved("a.onnx", "zero.onnx")
    assert_onnx_proved("a.onnx", "zero.onnx", exact="bits")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models: ``a`` and ``b`` are equal, ``c`` has another scale."""
    path = tmp_path_factory.mktemp("project")
    for name, scale in (("a", "0.5"), ("b", "0.5"), ("c", "0.75")):
        ir.save(ir.from_onnx_text(QUANT.format(scale=scale)), path / f"{name}.onnx")
    for name, operator in (("d", "Sin"), ("e", "Cos")):
        text = f"""<ir_version: 10, opset_import: ["": 21]>
            net (float[8] x) => (float[8] y) {{ y = {operator} (x) }}"""
        ir.save(ir.from_onnx_text(text), path / f"{name}.onnx")
    text = QUANT.format(scale="0.5").replace("float z = {0}", "float z = {0}, float o = {0}")
    text = text.replace("] y = q", "] t = q").replace("(x, s, z, b)", "(x, s, z, b) y = Add (t, o)")
    ir.save(ir.from_onnx_text(text), path / "zero.onnx")
    (path / "test_models.py").write_text(SUITE)
    return path


@pytest.fixture(scope="module")
def failures(folder: Path) -> dict[str, str | None]:
    """What each test of the suite says where it fails; None where it passes."""
    # an installation that is older than the entry point does not name it
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "qgraph.pytest_plugin"}
    plugins["PYTEST_ADDOPTS"] = ""  # options of this run are not known there
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", "--junitxml=found.xml"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | plugins,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found: dict[str, str | None] = {}
    for case in ET.parse(folder / "found.xml").iter("testcase"):
        failure = case.find("failure")
        found[case.attrib["name"]] = None if failure is None else failure.text or ""
        assert case.find("error") is None
    return found


def errors(text: str | None) -> list[str]:
    """Return the lines of the message."""
    assert text is not None
    assert "pytest_plugin.py" not in text, "the fixture's own lines are no help"
    lines = [line[2:].strip() for line in text.splitlines() if line.startswith("E ")]
    lines[0] = lines[0].removeprefix("AssertionError: ")
    return lines


@pytest.mark.exhaustive
def test_equal_models_pass(failures):
    passed = {name for name, text in failures.items() if text is None}
    assert "test_equal" in passed
    assert "test_00_nothing_heavy_is_loaded_yet" in passed


@pytest.mark.slow
def test_tolerances_are_those_of_check(failures):
    found = {name: text for name, text in failures.items() if name.startswith("test_tolerance")}
    assert len(found) == 5
    assert set(found.values()) == {None}


@pytest.mark.slow
def test_failed_check_tells_verdict_output_and_divergence(failures):
    lines = errors(failures["test_checked_apart"])
    assert lines[0].startswith("the models are different: Of 1 output, 'y' differs by more")
    assert re.fullmatch(r"y: \d of 8 values differ, by up to .*", lines[1])
    assert re.fullmatch(
        r"round_to_grid: The first tensor that differs is 'y' by up to \S+, which Quant "
        r"'round_to_grid' produces in the reference\.",
        lines[2],
    )


@pytest.mark.slow
def test_failed_proof_tells_regions_counts_and_a_witness(failures):
    lines = errors(failures["test_proved_apart"])
    assert lines[0] == "the models are different: The models differ in 1 of 1 region."
    found = re.fullmatch(
        r"\S+: ([\d,]+) inputs give another value than '\S+', such as (\S+): reference (\S+), "
        r"candidate (\S+)\.",
        lines[1],
    )
    assert found
    assert int(found[1].replace(",", "")) > 1_000_000
    x, *values = (float(found[n]) for n in (2, 3, 4))
    expected = [np.clip(np.rint(x / s), -8, 7) * s for s in (0.5, 0.75)]  # the formula of Quant
    assert values == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_checked_apart", "test_proved_apart"])
def test_the_inputs_that_show_it_are_kept(failures, folder, name, monkeypatch, capsys):
    last = errors(failures[name])[-1]
    command = last.removeprefix("see it again: qgraph ").split()
    assert command[:3] == ["check", "a.onnx", "c.onnx"]
    monkeypatch.chdir(folder)
    assert main(command) == 1
    assert "DIFFERENT" in capsys.readouterr().out


@pytest.mark.slow
def test_a_model_in_memory_has_no_file(failures):
    assert "qgraph check a.onnx MODEL --inputs" in errors(failures["test_in_memory"])[-1]


@pytest.mark.slow
def test_undecided_proof_tells_its_reason(failures):
    lines = errors(failures["test_undecided"])
    assert lines[0] == "the models are undecided: 1 of 1 region could not be decided."
    assert re.match(r"y: Whether this is equal to 'y' is not decided: .*Sin.*Cos", lines[1])


@pytest.mark.slow
def test_bits_can_be_asked_for(failures):
    """Adding zero turns -0 into +0: equal in value, and not bit for bit."""
    lines = errors(failures["test_bits"])
    assert lines[0].startswith("the models are ")
    assert (
        '>       assert_onnx_proved("a.onnx", "zero.onnx", exact="bits")' in failures["test_bits"]
    )


@pytest.mark.parametrize(
    ("protocol", "function"),
    [
        (pytest_plugin.AssertEquivalent, qgraph.check),
        (pytest_plugin.AssertProved, qgraph.prove),
    ],
)
def test_arguments_are_those_of_the_functions_behind(protocol, function):
    ours = dict(inspect.signature(protocol.__call__).parameters)
    del ours["self"]
    ours.pop("old", None)  # keywords of earlier versions
    theirs = inspect.signature(function).parameters
    assert len(ours) >= 4
    for name, parameter in ours.items():
        assert theirs[name].default == parameter.default, name
        assert theirs[name].kind == parameter.kind, name


def test_entry_point_is_the_plugin():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"qgraph": pytest_plugin.__name__}
    installed = importlib.metadata.entry_points(group="pytest11", name="qgraph")
    assert all(entry.load() is pytest_plugin for entry in installed)
