"""Files that appear as a whole or not at all."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from qgraph.errors import QGraphError
from qgraph.storage.outputs import Outputs
from qgraph.storage.places import is_same
from qgraph.text import json_text


def write_text(path: Path, text: str) -> None:
    with Outputs() as outputs:
        outputs.write_text(path, text)


def test_a_file_appears_when_the_block_ends(tmp_path):
    path = tmp_path / "r.txt"
    with Outputs() as outputs, outputs.open(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "r.txt"
    path.write_text("old")

    def fail() -> None:
        with Outputs() as outputs, outputs.open(path) as file:
            file.write(b"new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_new_files_have_the_usual_permissions_and_old_ones_keep_theirs(tmp_path):
    usual, path = tmp_path / "usual", tmp_path / "r.txt"
    usual.touch()
    write_text(path, "ä")
    assert path.stat().st_mode == usual.stat().st_mode
    path.chmod(0o600)
    write_text(path, "ö")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text(encoding="utf-8") == "ö"


def test_a_link_goes_on_pointing_to_the_file(tmp_path):
    path, link = tmp_path / "r.txt", tmp_path / "link"
    path.write_text("old")
    link.symlink_to(path)
    write_text(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(QGraphError, match=r"missing' is not a folder\. Create it first\."):
        write_text(tmp_path / "missing" / "r.txt", "")
    with pytest.raises(QGraphError, match="exists and is not a regular file"):
        write_text(tmp_path, "")
    with pytest.raises(QGraphError, match="no file can have a name of this length"):
        write_text(tmp_path / ("x" * 300), "")


def test_json_has_no_nan_and_no_infinity():
    numbers = {"a": [math.nan, math.inf], "b": {"c": -math.inf}, "d": (1.5, None), "e": "ü"}
    expected = {"a": ["NaN", "Infinity"], "b": {"c": "-Infinity"}, "d": [1.5, None], "e": "ü"}
    assert json.loads(json_text(numbers)) == expected


def test_two_paths_are_one_file_by_links_and_spelling(tmp_path):
    path, other = tmp_path / "a", tmp_path / "b"
    assert is_same(path, tmp_path / "." / "a")
    assert not is_same(path, other)
    path.touch()
    assert not is_same(path, other)
    other.hardlink_to(path)
    assert is_same(path, other)
