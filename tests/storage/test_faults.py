"""Saving while each operation on files fails in turn: the old output or the new one, never less.

The operations of the operating system are replaced by ones of which the Nth fails. Afterwards the
folder holds the old files untouched, or the new output as a whole, and no scratch folder or lock.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.errors import QGraphError
from qgraph.model import load
from qgraph.storage import datafiles, files as storage
from qgraph.storage.outputs import Outputs
from qgraph.transforms import FoldWeights, Writing, rewrite

PACKAGE = os.path.dirname(qgraph.__file__) + os.sep

OPERATIONS = """
    chmod chown fstat fsync ftruncate getxattr link lstat mkdir open pread preadv pwrite remove
    rename replace rmdir scandir setxattr stat truncate unlink write
"""

TEXT = """
    <ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
    net (float[1,8] x) => (float[1,8] y)
    <float[8,8] w = {0}, float s = {0.5}, float z = {0}, float b = {4}> {
        q = qonnx.custom_op.general.Quant
            <signed = 1, narrow = 0, rounding_mode = "ROUND"> (w, s, z, b)
        y = MatMul (x, q)
    }"""


class Faults:
    """Lets one operation on files fail, by number; without a code, interrupts it."""

    def __init__(self, number: int, code: int | None) -> None:
        self._number, self._code = number, code
        self._lock = threading.Lock()
        self.sites: list[str] = []
        self.failed: str | None = None
        self.is_on = False

    def hit(self, name: str) -> None:
        with self._lock:
            if not self.is_on:
                return
            self.sites.append(f"{name} {_caller()}")
            if len(self.sites) != self._number:
                return
            self.failed = self.sites[-1]
        if self._code is None:
            raise KeyboardInterrupt
        raise OSError(self._code, os.strerror(self._code), name)

    def wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            self.hit(name)
            return call(*args, **options)

        return wrapped


def _caller() -> str:
    """Return the innermost line of qgraph that is running."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


@contextmanager
def faults(number: int, code: int | None) -> Iterator[Faults]:
    """Let the operation of this number fail in the block; count all of them."""
    injected = Faults(number, code)
    with pytest.MonkeyPatch.context() as patch:
        for name in OPERATIONS.split():
            patch.setattr(os, name, injected.wrap(name, getattr(os, name)))
        patch.setattr(fcntl, "flock", injected.wrap("flock", fcntl.flock))
        for module in (builtins, io):
            patch.setattr(module, "open", injected.wrap("open", io.open))
        injected.is_on = True
        try:
            yield injected
        finally:
            injected.is_on = False


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def weights(scale: float) -> np.ndarray:
    return (np.arange(64, dtype=np.float32).reshape(8, 8) % 7 - 3) * np.float32(scale)


def write_model(path: Path, scale: float, *, external: bool = True) -> None:
    model = ir.from_onnx_text(TEXT)
    model.graph.initializers["w"].const_value = ir.tensor(weights(scale), name="w")
    storage.save(model, path, external_data=external, size_threshold=64)


def product(path: Path) -> float:
    """What the model computes from ones."""
    return float(load(path).run({"x": np.ones((1, 8), np.float32)}, backend="numpy")["y"].sum())


def save_external(folder: Path) -> None:
    load(folder / "in.onnx").save(folder / "out.onnx", external_data=True, size_threshold=16)


def save_safetensors(folder: Path) -> None:
    load(folder / "in.onnx").save(folder / "out.onnx", safetensors=True, size_threshold=16)


def fold_with_report(folder: Path) -> None:
    with Outputs() as outputs:
        rewrite(
            folder / "in.onnx",
            folder / "out.onnx",
            FoldWeights(),
            report=folder / "r.json",
            writing=Writing(shard_bytes=40, size_threshold=16, outputs=outputs),
        )
        outputs.write_text(folder / "r.html", "new")


def fold_in_place(folder: Path) -> None:
    source = folder / "out.onnx"
    rewrite(
        source,
        source,
        FoldWeights(),
        writing=Writing(in_place=True, external_data=True, size_threshold=16),
    )


CASES = [save_external, save_safetensors, fold_with_report, fold_in_place]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What is in the folder before: an input, and an output of an earlier run."""
    folder = tmp_path_factory.mktemp("old")
    write_model(folder / "in.onnx", 0.5)
    write_model(folder / "out.onnx", 1.0)
    for name in ("r.json", "r.html"):
        (folder / name).write_text("old")
    return content(folder)


def reset(folder: Path, files: dict[str, bytes]) -> None:
    for path in folder.iterdir():
        path.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)


@pytest.mark.cases(fast=1, slow=3)
@pytest.mark.parametrize("action", CASES)
@pytest.mark.parametrize(
    ("code", "every"),
    [
        (errno.EIO, False),
        pytest.param(errno.EACCES, True, marks=pytest.mark.exhaustive),
        pytest.param(errno.ENOSPC, False, marks=pytest.mark.slow),
    ],
)
def test_whichever_operation_fails_the_old_output_or_the_new_one_is_whole(
    tmp_path: Path,
    old: dict[str, bytes],
    action: Callable[[Path], None],
    code: int,
    every: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(datafiles, "available_cores", lambda: 1)
    monkeypatch.setattr(os, "fsync", lambda _file: None)
    expected = product_of(1.0 if action is fold_in_place else 0.5)
    read = () if action is fold_in_place else ("in.onnx", "in.onnx.data")
    reset(tmp_path, old)
    with faults(0, code) as counted:
        action(tmp_path)
    # Each line of the program once, unless all operations are wanted.
    numbers = {site: place for place, site in reversed([*enumerate(counted.sites, 1)])}
    failures = 0
    for number in range(1, len(counted.sites) + 1) if every else sorted(numbers.values()):
        reset(tmp_path, old)
        failed = False
        with faults(number, code) as injected:
            try:
                action(tmp_path)
            except (QGraphError, OSError):
                failed = True
        where = f"{injected.failed}, operation {number}"
        after = content(tmp_path)
        assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == [], where
        assert {name: after[name] for name in read} == {name: old[name] for name in read}, where
        failures += failed
        if failed:
            assert after == old, where
        else:
            assert product(tmp_path / "out.onnx") == expected, where
            assert after["out.onnx"] != old["out.onnx"], where
            if action is fold_with_report:
                assert b"old" not in (after["r.json"], after["r.html"]), where
    assert len(numbers) > 40
    assert failures > 10


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("action", CASES)
def test_whichever_operation_is_interrupted_the_old_output_or_the_new_one_is_whole(
    tmp_path: Path,
    old: dict[str, bytes],
    action: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(datafiles, "available_cores", lambda: 1)
    monkeypatch.setattr(os, "fsync", lambda _file: None)
    expected = product_of(1.0 if action is fold_in_place else 0.5)
    reset(tmp_path, old)
    with faults(0, None) as counted:
        action(tmp_path)
    numbers = {site: place for place, site in reversed([*enumerate(counted.sites, 1)])}
    late = 0
    for number in sorted(numbers.values()):
        reset(tmp_path, old)
        with faults(number, None) as injected, suppress(KeyboardInterrupt):
            action(tmp_path)
        where = f"{injected.failed}, operation {number}"
        after = content(tmp_path)
        hidden = [name for name in os.listdir(tmp_path) if name.startswith(".")]
        assert hidden == [], where
        if after["out.onnx"] == old["out.onnx"]:
            assert after == old, where
        else:
            late += 1
            assert product(tmp_path / "out.onnx") == expected, where
    assert late > 5


def product_of(scale: float) -> float:
    codes = np.clip(np.rint(weights(scale).astype(np.float64) / 0.5), -8, 7)
    return float((codes * 0.5).sum())
