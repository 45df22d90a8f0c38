"""Folding a model in the place of itself: whatever happens, one whole model is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.model import Model

SETUP = """
import os, resource, shutil, signal, sys
from pathlib import Path
import numpy as np
import qgraph
from qgraph.quantizers.weights import job
from qgraph.quantizers.dialects import qdq_codes
from qgraph.errors import QGraphError
from qgraph.transforms import FoldWeights, Writing, rewrite

qdq_codes.LEAST_BYTES, job.PART_BYTES, job.PIECE = 64, 4096, 1024
original, folder = Path(sys.argv[1]), Path(sys.argv[2])
path = folder / "in.onnx"

def fresh():
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original, folder)

def state():
    model = qgraph.load(path)
    y = model.run({"x": np.ones((64, 64), np.float32)}, backend="numpy")["y"]
    assert y.tobytes() == expected.tobytes()
    return "old" if list(model.nodes("Quant")) else "new"

fresh()
expected = qgraph.load(path).run({"x": np.ones((64, 64), np.float32)}, backend="numpy")["y"] + 0.0
"""

KILLED = """
seen, deaths = [], 0
while True:
    fresh()
    child = os.fork()
    if child == 0:
        count = 0
        def hook(event, arguments):
            global count
            if event in {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod"}:
                count += 1
                if count == deaths + 1:
                    os.kill(os.getpid(), signal.SIGKILL)
        model = qgraph.load(path)
        model.apply(FoldWeights())
        sys.addaudithook(hook)
        model.save(path, size_threshold=64)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    seen.append(state())
    if not os.WIFSIGNALED(status):
        break
    deaths += 1
assert os.WEXITSTATUS(status) == 0
assert deaths >= 15, deaths
assert seen[0] == "old" and seen[-1] == "new" and seen == sorted(seen, reverse=True), seen
"""

NO_ROOM = """
before = {p.name: p.read_bytes() for p in folder.iterdir()}
for limit in (300, 1500, 2200):
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            rewrite(path, path, FoldWeights(), writing=Writing(in_place=True, size_threshold=64),
                    report=folder / "r.json" if limit == 300 else None)
        except QGraphError as error:
            assert "cannot be written" in str(error) and "is unchanged" in str(error), error
            os._exit(7)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WEXITSTATUS(status) == 7, (limit, status)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before, limit
rewrite(path, path, FoldWeights(), writing=Writing(in_place=True, size_threshold=64))
assert state() == "new"
assert sorted(p.name for p in folder.iterdir()) == ["in.onnx", "in.onnx-1.data"]
"""


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """A folder with a model whose weight and scales lie in a data file."""
    text = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
        g (float[64, 64] x) => (float[64, 64] y)
        <float[1] w = {0}, float[1] s = {0}, float z = {0}, float b = {4}> {
            q = qonnx.custom_op.general.Quant <signed = 1> (w, s, z, b)
            y = Mul (x, q)
        }"""
    model = ir.from_onnx_text(text)
    random = np.random.default_rng(0)
    for name, shape in (("w", (64, 64)), ("s", (64, 1))):
        value = model.graph.initializers[name]
        array = random.uniform(0.1, 1, shape).astype(np.float32)
        value.const_value, value.shape = ir.tensor(array, name=name), ir.Shape(shape)
    folder = tmp_path / "original"
    folder.mkdir()
    Model(model).save(folder / "in.onnx", external_data=True, size_threshold=64)
    return folder


@pytest.mark.exhaustive
@pytest.mark.parametrize("script", [KILLED, NO_ROOM], ids=["killed", "no room"])
def test_the_old_model_or_the_new_one(original: Path, tmp_path: Path, script: str) -> None:
    command = [sys.executable, "-B", "-c", SETUP + script, str(original), str(tmp_path / "work")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
