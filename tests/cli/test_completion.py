"""The shell is offered names of dialects, passes, targets, ids, nodes and tensors."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from click.shell_completion import ShellComplete

from qgraph.cli.group import cli

MODEL = str(Path(__file__).resolve().parents[2] / "examples" / "digits_brevitas.onnx")


@pytest.mark.parametrize(
    ("words", "start", "expected"),
    [
        (["convert", "in.onnx", "--to"], "q", ["qdq", "qonnx"]),
        (["transform", "in.onnx", "-p"], "fold-c", ["fold-constants"]),
        (["passes"], "widen-c", ["widen-codes"]),
        (["targets"], "open", ["openvino-cpu"]),
        (["deploy", "in.onnx", "--target"], "tens", ["tensorrt"]),
        (["lint", "in.onnx", "--target"], "qnn", ["qnn-htp"]),
        (["explain"], "QG001", ["QG001"]),
        (["plot", MODEL, "--node"], "/features/features.2", ["/features/features.2/MaxPool"]),
        (["deploy", MODEL, "--keep"], "/classifier/G", ["/classifier/Gemm"]),
        (["run", MODEL, "--tap"], "sc", ["scores"]),
        (["lint", MODEL, "--select"], "QG112", ["QG112"]),
        (["lint", MODEL, "--ignore"], "QG112", ["QG112"]),
        (["plot", "missing.onnx", "--node"], "", []),
        ([], "wh", ["why"]),
    ],
)
def test_names_are_offered(words: list[str], start: str, expected: list[str]) -> None:
    shell = ShellComplete(cli, {}, "qgraph", "_QGRAPH_COMPLETE")
    assert [item.value for item in shell.get_completions(words, start)] == expected


def test_a_name_with_a_line_break_is_not_offered(tmp_path: Path) -> None:
    model = onnx.load(MODEL)
    model.graph.node[0].name, model.graph.node[1].name = "my\nnode", "my node"
    onnx.save(model, tmp_path / "m.onnx")
    shell = ShellComplete(cli, {}, "qgraph", "_QGRAPH_COMPLETE")
    offered = shell.get_completions(["plot", str(tmp_path / "m.onnx"), "--node"], "my")
    assert [item.value for item in offered] == ["my node"]
