"""The examples run and end well."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"


def test_convert_digits_finds_every_output_equal(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "convert_digits.py", tmp_path / "new" / "folder"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every output is equal." in done.stdout
    for name in ("digits_brevitas", "digits_nncf"):
        graph = onnx.load(tmp_path / "new" / "folder" / f"{name}_qdq.onnx").graph
        assert {node.domain for node in graph.node} == {""}


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
