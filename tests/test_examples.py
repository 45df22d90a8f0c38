"""The examples run and end well."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import qgraph

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"


@pytest.mark.exhaustive
def test_convert_digits_finds_every_output_equal(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "convert_digits.py", tmp_path / "new" / "folder"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = " ".join(done.stdout.split())
    assert "Every output of the converted models is equal." in printed
    for name in ("digits_brevitas", "digits_nncf"):
        graph = onnx.load(tmp_path / "new" / "folder" / f"{name}_qdq.onnx").graph
        assert {node.domain for node in graph.node} == {""}


@pytest.mark.exhaustive
def test_weights_are_folded_on_a_cluster(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    weight = np.random.default_rng(0).normal(size=(512, 1024)).astype(np.float32)
    text = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
        g (float[n, 512] x) => (float[n, 1024] y)
        <float[1] w = {0}, float s = {0.5}, float z = {0}, float b = {4}> {
            q = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (w, s, z, b)
            y = MatMul (x, q)
        }"""
    model = ir.from_onnx_text(text)
    model.graph.initializers["w"].const_value = ir.tensor(weight, name="w")
    model.graph.initializers["w"].shape = ir.Shape(weight.shape)
    qgraph.load(model).save(tmp_path / "in.onnx", external_data=True)
    command = [sys.executable, EXAMPLES / "fold_on_a_cluster.py", "in.onnx", "out.onnx"]
    done = subprocess.run(
        [*command, "--workers", "1"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{weight.size} of {weight.size} values unchanged" in done.stdout
    assert (tmp_path / "out.onnx.data").stat().st_size == weight.size // 2


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("notebook", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_print_what_they_show(notebook: Path, tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("onnxruntime")
    for name in ("digits_brevitas.onnx", "digits_test.npz"):
        shutil.copy(EXAMPLES / name, tmp_path)
    book = nbformat.read(notebook, as_version=4)
    shown = printed(book)
    assert len(shown) > 3
    place = {"metadata": {"path": str(tmp_path)}}
    client.NotebookClient(book, timeout=300, kernel_name="python3", resources=place).execute()
    assert printed(book) == shown


def printed(book: Any) -> list[str]:
    """Return what each cell of a notebook prints; committed notebooks have no pages."""
    cells = [cell.outputs for cell in book.cells if cell.cell_type == "code"]
    assert not [output for cell in cells for output in cell if output.output_type == "error"]
    streams = ([o for o in cell if o.output_type == "stream"] for cell in cells)
    return ["".join(o.text for o in cell if o.name == "stdout") for cell in streams]


def test_python_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    shutil.copy(EXAMPLES / "digits_brevitas.onnx", tmp_path / "in.onnx")
    monkeypatch.chdir(tmp_path)
    exec(code, {"x": np.load(EXAMPLES / "digits_test.npz")["x"][:4]})
    assert (tmp_path / "out.onnx").is_file()
    assert capsys.readouterr().out.count("changed") == 10
