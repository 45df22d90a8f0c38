"""No malformed model ends a command in another way than with a message and a known exit status."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from qgraph.cli.main import main
from qgraph.proof.matching.zero_signs import distinguishes_signed_zeros
from tests.fuzz import external
from tests.fuzz.malformed import COMMANDS, Run, command_line, mutant, originals

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.onnx"))


@pytest.mark.cases(fast=6)
@pytest.mark.parametrize("number", range(24))
def test_a_malformed_model(number, tmp_path, monkeypatch, capsys):
    chance = random.Random(f"0 {number}")
    original = chance.choice(originals())
    (tmp_path / "model.onnx").write_bytes(mutant(original, chance))
    (tmp_path / "original.onnx").write_bytes(original)
    monkeypatch.chdir(tmp_path)
    for command in chance.sample(COMMANDS, 2):
        words = command_line(command, chance)
        status = main(words)
        said = capsys.readouterr()
        found = Run(words, status, said.out + said.err, seconds=0, megabytes=0)
        assert found.fault is None, found


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(4))
def test_many_malformed_models(seed):
    """In processes of their own, whose time and memory are measured."""
    command = [sys.executable, "-m", "tests.fuzz.malformed", str(seed), "500", *map(str, EXAMPLES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ", 0 faults, " in done.stdout, done.stdout


def test_an_unexpected_error_is_a_fault(monkeypatch, capsys):
    def fail(*_):
        raise KeyError("nobody expects this")

    monkeypatch.setattr("qgraph.storage.files.read", fail)
    status = main(["info", "model.onnx"])
    assert "unexpected" in str(
        Run((), status, capsys.readouterr().err, seconds=0, megabytes=0).fault
    )


@pytest.mark.parametrize("number", range(4))
def test_wrong_data_files(number, tmp_path, monkeypatch, capsys):
    chance = random.Random(f"files {number}")
    external.lay_out(tmp_path, chance.choice(originals()), chance)
    monkeypatch.chdir(tmp_path / "inner")
    for command in chance.sample(external.COMMANDS, 2):
        before = external.kept(tmp_path)
        status = main(command)
        said = capsys.readouterr()
        found = Run(command, status, said.out + said.err, seconds=0, megabytes=0)
        assert external.fault(found, before, external.kept(tmp_path)) is None, found
        for path in tmp_path.rglob("out*"):
            if path.is_file() and path.name != "outside.bin":
                path.unlink()


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(2))
def test_many_wrong_data_files(seed):
    command = [sys.executable, "-m", "tests.fuzz.external", str(seed), "200", *map(str, EXAMPLES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ", 0 faults, " in done.stdout, done.stdout


@pytest.mark.parametrize("kind", ["int4", "uint4", "int8"])
def test_a_bound_for_codes_of_few_bits_as_input(kind, tmp_path, capsys):
    """NumPy does not know the limits of types below 8 bits."""
    for name, scale in (("a.onnx", 0.25), ("b.onnx", 0.3)):
        text = f"""<ir_version: 10, opset_import: ["": 21]>
        g ({kind}[2] x) => (float[2] y) <float s = {{{scale}}}> {{ y = DequantizeLinear (x, s) }}"""
        onnx.save(onnx.parser.parse_model(text), tmp_path / name)
    status = main(["prove", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx")])
    said = capsys.readouterr()
    assert Run((), status, said.out + said.err, seconds=0, megabytes=0).fault is None, said


@pytest.mark.parametrize("content", originals())
def test_the_original_models_run(content, tmp_path):
    (tmp_path / "model.onnx").write_bytes(content)
    assert main(["run", str(tmp_path / "model.onnx"), "--backend", "numpy"]) == 0


def test_names_in_unknown_domains_are_not_those_of_known_operators(tmp_path, capsys):
    """Neither their attributes nor their numbers of inputs were checked when they were read."""
    text = """<ir_version: 10, opset_import: ["": 21, "other": 1]>
        g (float[2] x) => (float[2] y) <float s = {0.1}, uint8 z = {0}> {
            q = other.QuantizeLinear <block_size = 1.5> (x, s, z)
            y = DequantizeLinear (q, s, z)
        }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "a.onnx")
    assert main(["lint", str(tmp_path / "a.onnx"), "--target", "finn"]) == 1
    assert "could not be handled" not in capsys.readouterr().err
    x = ir.val("x", ir.DataType.FLOAT, (2,))
    assert distinguishes_signed_zeros(ir.node("QLinearAdd", [x], domain="other"), [x])
