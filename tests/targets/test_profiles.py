"""Profiles: what is in them, and the errors of those that users write."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from qgraph.cli.main import main
from qgraph.errors import ModelError, OptionError
from qgraph.targets import reader
from qgraph.targets.layer import Loads
from qgraph.targets.profile import Evidence, Profile
from qgraph.targets.reader import add_target, profile_of, profiles, target_names
from tests.targets import schema

TABLES = (
    *("load", "kernel", "codes", "storage", "trap", "saturation", "sums", "slower", "option"),
)

CHIP = """\
name = "mychip"
knowledge = "MyChip SDK 2.1, run"

[sources.run]
kind = "run"
what = "MyChip SDK 2.1"
date = 2026-11-01

[versions]
source = ["run"]
opsets = [13, 21]

[[kernel]]
id = "conv"
operators = ["Conv"]
source = ["run"]
types = [
    { x = ["INT8"], w = ["INT8"], y = ["INT8"] },
]
[kernel.w]
granularity = ["tensor"]
zero = ["none", "zero"]
"""


@pytest.fixture
def chip(tmp_path: Path):
    def write(*changes: tuple[str, str]) -> Path:
        text = CHIP
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        path = tmp_path / "mychip.toml"
        path.write_text(text)
        return path

    return write


def test_the_targets_of_qgraph_are_these():
    assert target_names() == [
        *("finn", "hls4ml", "iree", "litert", "onnxruntime-cpu", "onnxruntime-cuda"),
        *("openvino-cpu", "qnn-htp", "stm32", "tensorrt", "tidl", "vitis-ai"),
    ]


@pytest.mark.parametrize("profile", profiles(), ids=lambda profile: profile.name)
def test_every_fact_has_sources_with_dates(profile: Profile):
    assert Path(profile.path).stem == profile.name
    assert profile.kernel
    assert profile.load
    cells = [cell for table in TABLES for cell in getattr(profile, table)]
    used = {name for cell in [profile.versions, *cells] for name in cell.source}
    assert used == set(profile.sources), "no source is left unused"
    for source in profile.sources.values():
        assert datetime.date(2020, 1, 1) < source.date
        assert source.kind in Evidence


def test_a_profile_of_a_user_is_read(chip):
    profile = profile_of(str(chip()))
    assert (profile.name, profile.versions.opsets) == ("mychip", (13, 21))
    assert profile.versions.ir_version is None
    (kernel,) = profile.kernel
    assert kernel.exists is Loads.YES
    assert kernel.w.zero == ("none", "zero")
    assert kernel.x.zero is None, "what is not stated is not known"
    assert len(profile.digest) == 64


def test_unknown_says_the_same_as_nothing(chip):
    stated = profile_of(str(chip(('zero = ["none", "zero"]', 'zero = "unknown"'))))
    assert stated.kernel[0].w.zero is None


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("zero =", "zeros =", 22, "kernel[1].w.zeros: unknown key"),
        ("zero =", "zeros =", 22, "Did you mean 'zero'?"),
        ("[[kernel]]", "[[kernle]]", 13, "kernle: unknown key"),
        ('["tensor"]', '["tensors"]', 21, "kernel[1].w.granularity[1]: 'tensors', expected one of"),
        ('["tensor"]', '"tensor"', 21, "expected a list"),
        ("[13, 21]", "[21, 13]", 11, "the lowest comes first"),
        ("[13, 21]", '[13, "21"]', 11, "'21', expected a whole number"),
        ("[13, 21]", "[13]", 11, "expected 2 values"),
        ('source = ["run"]\ntypes', 'source = ["ruhn"]\ntypes', 16, "not among the sources (run)"),
        ('source = ["run"]\ntypes', "source = []\ntypes", 13, "'source' is missing"),
        ('operators = ["Conv"]\n', "", 13, "'operators' is missing"),
        ('"Conv"', '"Relu"', 15, "'Relu', expected some of Conv, ConvTranspose, Gemm, MatMul"),
        ('x = ["INT8"]', 'x = ["S8"]', 17, "'S8' is not a type of ONNX"),
        ("date = 2026-11-01", 'date = "today"', 7, "sources.run.date: 'today', expected a date"),
        ("2026-11-01", "2026-13-01", 7, "2026-13-01 is no date, expected one such as"),
        ('kind = "run"', 'kind = "guess"', 5, "'guess', expected one of run, source"),
        ("[kernel.w]", '[kernel.w]\naxis = ["output"]', 21, "excludes scales per axis"),
        ('id = "conv"', 'id = "conv"\nexists = "no"', 15, "has a reason, and no types"),
        ("name =", "title =", 1, "title: unknown key"),
        ("name =", "name", 1, "this is not TOML"),
    ],
)
def test_errors_name_the_line(chip, old, new, line, what):
    path = chip((old, new))
    with pytest.raises(ModelError) as found:
        profile_of(str(path))
    text = str(found.value)
    assert what in text
    assert text.startswith(f"{path}:{line}: ") or "this is not TOML" in text


def test_names_that_are_none_list_the_known_ones(chip, tmp_path, capsys):
    with pytest.raises(OptionError, match=r"openvino-cpu.*Did you mean 'tensorrt'\?"):
        profile_of("tensort")
    assert main(["targets", "tensort"]) == 2
    assert main(["targets", str(tmp_path / "none.toml")]) == 3
    assert main(["targets", str(chip(("zero =", "zeros =")))]) == 3
    assert "mychip.toml:22: kernel[1].w.zeros" in capsys.readouterr().err


def test_the_command_shows_what_the_file_says(chip, capsys):
    assert main(["targets"]) == 0
    listed = capsys.readouterr().out
    assert [name for name in target_names() if name not in listed] == []
    path = chip()
    assert main(["targets", str(path)]) == 0
    printed = capsys.readouterr()
    assert f"--target {path}  #" in printed.err, "no target has the name that the file gives itself"
    shown = " ".join(printed.out.split())
    assert "mychip: MyChip SDK 2.1, run opsets 13 to 21; IR version up to unknown" in shown
    assert "conv: Conv run 2026-11-01 exists yes types x INT8, w INT8, y INT8" in shown
    assert "unknown x.granularity, x.axis, x.zero" in shown
    assert "gap 0.0" not in shown
    assert main(["targets", "onnxruntime-cpu", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["versions"]["opsets"] == [7, 28]
    assert document["sources"]["run"]["kind"] == "run"


def test_the_schema_is_that_of_the_reader():
    """``python -m tests.targets.schema`` writes it."""
    assert schema.PATH.read_text() == schema.text()


def test_the_worked_example_of_the_documentation_is_a_profile(tmp_path):
    page = (schema.PATH.parents[2] / "docs" / "targets.md").read_text()
    path = tmp_path / "mychip.toml"
    path.write_text(page.split("```toml\n")[1].split("```")[0])
    profile = profile_of(str(path))
    assert [kernel.id for kernel in profile.kernel] == ["conv", "conv-transpose"]


def test_conditions_are_explained(capsys):
    assert main(["explain", "qg217"]) == 0
    assert "QG217 behind-layer" in capsys.readouterr().out


def test_a_profile_without_end_is_not_read(tmp_path):
    (tmp_path / "chip.toml").symlink_to("/dev/zero")
    with pytest.raises(ModelError, match=r"the profile cannot be read \(it has more than"):
        profile_of(str(tmp_path / "chip.toml"))


def test_a_profile_of_a_plugin_that_is_wrong_is_named_and_left_out(tmp_path, monkeypatch, caplog):
    (tmp_path / "mychip.toml").write_text("x = 3\n")
    monkeypatch.setattr(reader, "_ADDED", {})
    add_target(tmp_path / "mychip.toml")
    names = [profile.name for profile in profiles()]
    assert "tensorrt" in names
    assert "mychip" not in names
    assert "mychip.toml:" in caplog.text
    with pytest.raises(ModelError, match=r"mychip\.toml:"):
        profile_of("mychip")
