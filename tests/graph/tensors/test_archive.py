"""Archives that grow array by array and batch by batch."""

from __future__ import annotations

import tracemalloc
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from qgraph.errors import QGraphError, UnsupportedError
from qgraph.storage.archive import archive


def test_results_of_every_kind_are_written(tmp_path):
    """Narrow types become wider ones with the same values, and any name is possible."""
    narrow = {
        "b": np.array([0.1, -3], ml_dtypes.bfloat16),
        "e": np.array([448, 0.5], ml_dtypes.float8_e4m3fn),
        "i": np.array([-8, 7], ml_dtypes.int4),
        "u": np.array([0, 15], ml_dtypes.uint4),
    }
    results = {
        **narrow,
        "file": np.array(True),
        "a/b:0": np.zeros((0, 3), np.int64),
        "s": np.array(["ü", "long text"], object),
        "q": [np.float32([1, 2]), np.float32([3])],
        "absent": None,
    }
    with archive(tmp_path / "r.npz") as growing:
        for name, value in results.items():
            growing.add(name, value)
    with np.load(tmp_path / "r.npz", allow_pickle=False) as written:
        assert set(written.files) == {*results, "q.0", "q.1"} - {"q", "absent"}
        for name, array in narrow.items():
            assert written[name].dtype in (np.float32, np.int8)
            np.testing.assert_array_equal(written[name], array.astype(np.float32))
        assert written["file"] == np.array(True)
        assert written["a/b:0"].shape == (0, 3)
        assert written["s"].tolist() == ["ü", "long text"]
        assert written["q.0"].tolist() == [1, 2]
    assert zipfile.is_zipfile(tmp_path / "r.npz")


def test_batches_are_joined_along_the_first_axis(tmp_path):
    generator = np.random.default_rng(0)
    whole = generator.standard_normal((7, 2, 3)).astype(np.float32)
    with archive(tmp_path / "r.npz", batched=True) as growing:
        for start in (0, 3, 6):
            part = whole[start : start + 3]
            growing.add("f", np.asfortranarray(part))
            growing.add("scalar", np.float32(start))
            growing.add("bf", part[:, 0, 0].astype(ml_dtypes.bfloat16))
            growing.add("text", np.array(["a" * (start + 1)], object))
            growing.add("empty", np.zeros((0, 2), np.int64))
            growing.add("flag", part[:, 0] > 0)
    assert [entry.name for entry in tmp_path.iterdir()] == ["r.npz"]
    with np.load(tmp_path / "r.npz", allow_pickle=False) as written:
        np.testing.assert_array_equal(written["f"], whole)
        assert written["scalar"].tolist() == [0, 3, 6]
        np.testing.assert_array_equal(
            written["bf"], whole[:, 0, 0].astype(ml_dtypes.bfloat16).astype(np.float32)
        )
        assert written["text"].tolist() == ["a", "aaaa", "aaaaaaa"]
        assert written["empty"].shape == (0, 2)
        np.testing.assert_array_equal(written["flag"], whole[:, 0] > 0)


@pytest.mark.parametrize(
    "second", [np.zeros((1, 4), np.float32), np.zeros((1, 3), np.int32), np.zeros(3, np.float32)]
)
def test_batches_that_do_not_fit_are_refused_and_nothing_stays(tmp_path: Path, second):
    (tmp_path / "r.npz").write_bytes(b"old")

    def write() -> None:
        with archive(tmp_path / "r.npz", batched=True) as growing:
            growing.add("y", np.zeros((1, 3), np.float32))
            growing.add("y", second)

    with pytest.raises(UnsupportedError, match=r"Output 'y' cannot be joined over the batches"):
        write()
    assert (tmp_path / "r.npz").read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["r.npz"]


def test_a_missing_folder_is_told_before_any_work(tmp_path):
    with pytest.raises(QGraphError, match="not a folder"), archive(tmp_path / "no" / "r.npz"):
        pytest.fail("the block must not begin")


def test_one_batch_at_a_time_is_in_memory(tmp_path):
    part = np.zeros((1 << 18,), np.float32)
    tracemalloc.start()
    with archive(tmp_path / "r.npz", batched=True) as growing:
        for _ in range(24):
            growing.add("y", part)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 * part.nbytes < 24 * part.nbytes
