"""The examples run and end well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


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
