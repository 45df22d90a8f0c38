"""``qgraph lock``: what is written down of the quantizers, and compared."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from qgraph import load
from qgraph.inventory.lockfile import FORM, lock_text
from qgraph.transforms import ConvertDialect

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "digits_brevitas.onnx"


@pytest.fixture
def locked(qgraph, model, tmp_path):
    """A lock file of the small model."""
    lock = tmp_path / "model.onnx.lock"
    assert qgraph("lock", model, "-o", lock).status == 0
    return lock


def test_lock_is_toml_with_a_table_for_each_quantizer(locked):
    document = tomllib.loads(locked.read_text())
    assert document["form"] == FORM
    act, weight = document["quantizer"]
    assert act == {
        "name": "a",
        "of": "data",
        "format": "int4",
        "bits": 4,
        "granularity": "per tensor",
        "scale": act["scale"],
        "zero_point": "0",
        "rounding": "ROUND",
    }
    assert act["scale"].startswith("0.5 #")
    assert (weight["name"], weight["of"]) == ("q", "weight")


def test_without_an_option_the_text_is_printed(qgraph, model, locked):
    found = qgraph("lock", model)
    assert (found.status, found.out) == (0, locked.read_text())


def test_a_model_agrees_with_its_own_lock(qgraph, model, locked):
    found = qgraph("lock", model, "--check", locked)
    assert (found.status, found.out) == (0, "2 same\n")


@pytest.mark.parametrize("to", ["qdq", "openvino", "onnx"])
def test_a_lock_holds_in_every_dialect(qgraph, tmp_path, to):
    model = load(DIGITS)
    (tmp_path / "lock").write_text(lock_text(model.ir))
    model.apply(ConvertDialect(to=to))
    model.save(tmp_path / "out.onnx")
    found = qgraph("lock", tmp_path / "out.onnx", "--check", tmp_path / "lock")
    assert (found.status, found.out) == (0, "10 same\n")


def test_a_change_of_one_fact_is_one_line(qgraph, locked, model):
    locked.write_text(locked.read_text().replace('rounding = "ROUND"', 'rounding = "CEIL"'))
    found = qgraph("lock", model, "--check", locked)
    assert found.status == 1
    assert found.out.splitlines() == [
        "! a:",
        "!     rounding: CEIL -> ROUND",
        "1 same, 1 changed",
    ]


def test_a_quantizer_that_is_gone_or_new_is_told(qgraph, locked, model):
    head, first, second = locked.read_text().split("\n[[quantizer]]\n")
    locked.write_text(head + "\n[[quantizer]]\n" + first)
    found = qgraph("lock", model, "--check", locked)
    assert (found.status, found.out.splitlines()[0][:4]) == (1, "+ q:")
    more = second.replace('"q"', '"extra"').replace("0.5 #", "0.125 #")
    locked.write_text("\n[[quantizer]]\n".join([head, first, second, more]))
    found = qgraph("lock", model, "--check", locked)
    assert found.status == 1
    assert "- extra: weight int4" in found.out


def test_locks_beside_models_are_checked_once_each(qgraph, model, locked, tmp_path):
    shutil.copy(model, tmp_path / "other.onnx")
    shutil.copy(locked, tmp_path / "other.onnx.lock")
    paths = [model, locked, tmp_path / "other.onnx.lock"]
    found = qgraph("lock", "--check-beside", *paths)
    assert found.status == 0
    assert found.out.splitlines() == [str(model), "2 same", str(tmp_path / "other.onnx"), "2 same"]
    locked.write_text(locked.read_text().replace('"int4"', '"int5"', 1))
    assert qgraph("lock", "--check-beside", *paths).status == 1


def test_locks_beside_models_of_a_folder_are_written_and_checked(qgraph, model, tmp_path):
    folder = tmp_path / "models"
    (folder / "inner").mkdir(parents=True)
    paths = [folder / "a.onnx", folder / "inner" / "b.onnx"]
    for path in paths:
        shutil.copy(model, path)
    assert qgraph("lock", "--write-beside", folder).status == 0
    text = qgraph("lock", model).out
    assert [path.with_name(f"{path.name}.lock").read_text() for path in paths] == [text] * 2
    found = qgraph("lock", "--check-beside", folder)
    assert (found.status, found.out.count("2 same")) == (0, 2)


def test_a_model_without_a_lock_does_not_stop_the_others(qgraph, model, locked, tmp_path):
    bare = tmp_path / "bare.onnx"
    shutil.copy(model, bare)
    locked.write_text(locked.read_text().replace('"int4"', '"int5"', 1))
    found = qgraph("lock", "--check-beside", bare, model)
    assert found.status == 3
    assert "bare.onnx.lock" in found.error
    assert "1 same, 1 changed" in found.out
    assert qgraph("lock", "--write-beside", bare, tmp_path / "missing.onnx").status == 3
    assert qgraph("lock", "--check-beside", bare).status == 0


def test_names_with_any_character_survive(qgraph, write):
    model = write("""
        <ir_version: 10, opset_import: ["": 21]>
        net (float[N] x) => (float[N] y) <float s = {0.5}, int8 z = {0}> {
            c = QuantizeLinear (x, s, z)
            y = DequantizeLinear (c, s, z)
        }""")
    changed = load(model)
    name = 'a "b" \\ \t\x7f ü'
    changed.ir.graph.outputs[0].name = name
    changed.save(model)
    lock = model.with_name("lock")
    assert qgraph("lock", model, "-o", lock).status == 0
    assert tomllib.loads(lock.read_text())["quantizer"][0]["name"] == name
    assert qgraph("lock", model, "--check", lock).status == 0


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be read"),
        ("[[", "is not TOML"),
        ("form = 7", "has form 7, expected 1"),
        ("form = 1\n[[quantizer]]\nwidth = 3\nname = 'a'", "has width"),
        ("form = 1\n[[quantizer]]\nbits = 3", "has no name"),
        ("form = 1\n[[quantizer]]\nname = 'a'\nscale = 'wide'", "could not convert"),
        ("form = 1\n[[quantizer]]\nname = 'a'\nscale = '1 2'", "scale is '1 2'"),
        ("form = 1\nquantizer = [1]", "expected a lock file"),
    ],
)
def test_what_is_no_lock_file_is_unusable(qgraph, model, tmp_path, content, told):
    lock = tmp_path / "lock"
    if content is not None:
        lock.write_text(content)
    found = qgraph("lock", model, "--check", lock)
    assert found.status == 3
    assert told in found.error
    assert "qgraph lock MODEL -o FILE" in found.error


def test_options_that_exclude_each_other_are_usage(qgraph, model, locked):
    assert qgraph("lock", model, "-o", "a", "--check", locked).status == 2
    assert qgraph("lock", model, "--check-beside", "--write-beside").status == 2
    assert qgraph("lock", model, model).status == 2
    assert qgraph("lock").status == 2


def test_the_model_is_not_overwritten(qgraph, model):
    before = model.read_bytes()
    assert qgraph("lock", model, "-o", model).status == 2
    assert model.read_bytes() == before


def test_a_lock_that_is_missing_beside_a_model_is_unusable(qgraph, model):
    found = qgraph("lock", "--check-beside", model)
    assert found.status == 3
    assert "model.onnx.lock" in found.error


def test_a_file_that_is_no_lock_is_told(qgraph, model, tmp_path):
    for content, reason in ((b"", "has no 'form = 1'"), (b"\xff", "it is not text in UTF-8")):
        (tmp_path / "a.lock").write_bytes(content)
        found = qgraph("lock", model, "--check", tmp_path / "a.lock")
        assert found.status == 3
        assert reason in found.error
