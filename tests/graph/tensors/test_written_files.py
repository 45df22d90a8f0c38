"""Data files are compared with what was written into them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qgraph.errors import ModelError
from qgraph.graph.deferred import ReadBack, Recorder, WrittenRun, checksum
from qgraph.graph.streaming import FileRange
from qgraph.storage import datafiles, files as storage

CONTENT = np.random.default_rng(0).integers(0, 256, 5000, np.uint8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").write_bytes(bytes(CONTENT.size))
    return tmp_path / "data"


def write(path: Path, *cuts: tuple[int, int]) -> list[WrittenRun]:
    recorder = Recorder(FileRange(str(path), 0, CONTENT.size))
    for first, last in cuts:
        recorder.write(first, CONTENT[first:last])
    return recorder.runs


def digest_of(path: Path, size: int, runs: list[WrittenRun]) -> str:
    with ReadBack({str(path): size}) as back:
        for run in runs:
            back.take([run])
        return back.digests()[str(path)]


def test_neighbours_are_one_run_and_the_order_does_not_matter(path: Path) -> None:
    runs = write(path, (3000, 4000), (4000, 5000), (0, 1000), (1000, 1000), (1000, 3000))
    assert [(run.offset, run.length) for run in runs] == [(3000, 2000), (0, 3000)]
    assert runs[1].checksum == checksum(CONTENT[:3000].tobytes(), 0)
    digest = hashlib.sha256(CONTENT.tobytes()).hexdigest()
    assert digest_of(path, CONTENT.size, runs) == digest


@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        ([(0, 4000)], "up to byte 4000 of 5000"),
        ([(0, 1000), (1001, 5000)], "up to byte 1000 and from 1001 on"),
        ([(0, 1000), (999, 5000)], "up to byte 1000 and from 999 on"),
        ([], "up to byte 0 of 5000"),
    ],
)
def test_gaps_and_overlaps_are_errors(
    path: Path, cuts: list[tuple[int, int]], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        digest_of(path, CONTENT.size, write(path, *cuts))


def test_files_are_read_back_while_others_are_written(tmp_path: Path) -> None:
    """Runs of two files come in turn and backwards; one has pieces of more than a megabyte."""
    content = np.random.default_rng(2).integers(0, 256, 5 << 20, np.uint8)
    files = {name: tmp_path / name for name in ("a", "b")}
    runs = []
    for path in files.values():
        path.write_bytes(bytes(content.size))
        recorder = Recorder(FileRange(str(path), 0, content.size))
        for first in (3 << 20, 1 << 20, 0):
            recorder.write(first, content[first : {0: 1 << 20, 1 << 20: 3 << 20}.get(first)])
        runs.append(recorder.runs)
    with ReadBack({str(path): content.size for path in files.values()}) as back:
        for pair in zip(*runs, strict=True):
            back.take(pair)
        digest = hashlib.sha256(content.tobytes()).hexdigest()
        assert back.digests() == {str(path): digest for path in files.values()}


def test_checksums_of_parts_add_up_and_depend_on_each_word_and_place() -> None:
    content = np.random.default_rng(1).integers(0, 256, 3 << 20, np.uint8)
    whole = checksum(content.tobytes(), 13)
    for cut in (0, 1, 3, 8, 1 << 20, (1 << 20) - 13, len(content)):
        parts = checksum(content[:cut].tobytes(), 13), checksum(content[cut:].tobytes(), 13 + cut)
        assert sum(parts) % 2**64 == whole
    blocks = content.reshape(3, -1)
    assert checksum(blocks[[1, 0, 2]].tobytes(), 13) != whole != checksum(content.tobytes(), 14)
    words = np.zeros(1 << 18, np.uint64)
    for place in (0, 1, 131071, 131072, 200000):
        for bit in (0, 63):
            words[place] = 1 << bit
            assert checksum(words.tobytes(), 0)
            words[place] = 0


@pytest.mark.parametrize("place", [0, 2500, 4999])
def test_other_bytes_and_sizes_are_errors(path: Path, place: int) -> None:
    runs = write(path, (0, 2500), (2500, 5000))
    whole = path.read_bytes()
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.raises(ModelError, match="has other bytes"):
        digest_of(path, CONTENT.size, runs)
    path.write_bytes(whole[:-1])
    with pytest.raises(ModelError, match="has 4999 bytes, expected 5000"):
        digest_of(path, CONTENT.size, runs)


@pytest.mark.parametrize("safetensors", [True, False])
def test_a_disk_that_keeps_other_bytes_is_noticed_before_anything_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, safetensors: bool
) -> None:
    import onnx_ir as ir

    def saved(factor: float) -> None:
        model = ir.from_onnx_text(
            '<ir_version: 10, opset_import: ["": 21]> g (float[64] x) => (float[64] y)'
            "<float[64] w = {0}> { y = Add (x, w) }"
        )
        array = np.full(64, factor, np.float32)
        model.graph.initializers["w"].const_value = ir.tensor(array, name="w")
        storage.save(
            model,
            tmp_path / "m.onnx",
            external_data=True,
            safetensors=safetensors,
            size_threshold=1,
        )

    saved(1)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    carry_out = datafiles.carry_out

    def damaged(work: Any, executor: Any, tell: Any) -> None:
        def tell_damaged(count: int, runs: list[WrittenRun]) -> None:
            with open(runs[0].path, "r+b") as file:
                file.seek(runs[0].offset + 7)
                file.write(b"?")
            tell(count, runs)

        carry_out(work, executor, tell_damaged)

    monkeypatch.setattr(datafiles, "carry_out", damaged)
    with pytest.raises(ModelError, match=r"has other bytes from .* on than were written"):
        saved(2)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_model_file_with_other_bytes_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx_ir as ir

    text = '<ir_version: 10, opset_import: ["": 21]> g (float x) => (float y) { y = Neg (x) }'
    model = ir.from_onnx_text(text)
    write_bytes = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", lambda path, data: write_bytes(path, data[:-1] + b"?"))
    with pytest.raises(ModelError, match="other bytes than were written"):
        storage.save(model, tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []
