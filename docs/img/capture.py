"""Writes ``deploy.svg`` and ``terminal.svg``: what qgraph prints in a terminal.

    python docs/img/capture.py

The commands run in a terminal of their own, in a folder with the models of the examples; what they
print becomes text in a picture, which loads no font and nothing else.
"""

from __future__ import annotations

import io
import os
import pty
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"
WIDTH = 100

COMMANDS = {
    "deploy": [
        """qgraph deploy brevitas.onnx -o deployed.onnx --target onnxruntime-cpu \\
    --inputs digits_test.npz --labels label""",
    ],
    "terminal": [
        "qgraph convert brevitas.onnx -o qdq.onnx --to qdq",
        "qgraph prove brevitas.onnx qdq.onnx",
        "qgraph diff -q brevitas.onnx qdq.onnx",
        "qgraph prove floor_qonnx.onnx floor_qcdq.onnx",
    ],
}
"""The commands of each picture."""

THEME = TerminalTheme(
    (24, 26, 31),
    (216, 219, 226),
    [
        (70, 76, 88), (240, 113, 120), (137, 202, 120), (229, 192, 123),
        (97, 175, 239), (198, 120, 221), (86, 182, 194), (216, 219, 226),
    ],
    [
        (124, 132, 148), (240, 113, 120), (137, 202, 120), (229, 192, 123),
        (97, 175, 239), (198, 120, 221), (86, 182, 194), (255, 255, 255),
    ],
)  # fmt: skip

STYLES = """
  .{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace;
    font-size: {char_height}px; line-height: {line_height}px; white-space: pre; }}
  {styles}
"""

FORM = f"""\
<svg class="rich-terminal" viewBox="0 0 {{width}} {{terminal_height}}" \
xmlns="http://www.w3.org/2000/svg" role="img" aria-label="qgraph in a terminal">
<style>{STYLES}</style>
<defs><clipPath id="{{unique_id}}-clip-terminal">
<rect x="0" y="0" width="{{terminal_width}}" height="{{terminal_height}}"/></clipPath>
{{lines}}</defs>
<rect fill="#181a1f" x="0" y="0" width="{{width}}" height="{{terminal_height}}" rx="8"/>
<g transform="translate(9, 12)" clip-path="url(#{{unique_id}}-clip-terminal)">
{{backgrounds}}
<g class="{{unique_id}}-matrix">{{matrix}}</g>
</g>
</svg>
"""


def run(command: str, folder: Path) -> str:
    """Return what a command prints on a terminal."""
    ours, theirs = pty.openpty()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    size = {"COLUMNS": str(WIDTH), "TERM": "xterm-256color", "PATH": path}
    environment = {key: os.environ[key] for key in ("HOME", "LANG") if key in os.environ} | size
    process = subprocess.Popen(
        ["bash", "-c", command],
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env=environment | {"LC_ALL": "C.UTF-8"},
    )
    os.close(theirs)
    with open(ours, "rb", closefd=True) as stream:
        pieces = []
        while True:
            try:
                piece = stream.read1(1 << 16)  # type: ignore[attr-defined]
            except OSError:  # the terminal ends with the process
                break
            if not piece:
                break
            pieces.append(piece)
    process.wait()
    return b"".join(pieces).decode().replace("\r\n", "\n")


def main() -> None:
    """Write all pictures."""
    for name, commands in COMMANDS.items():
        draw(name, commands)


def draw(name: str, commands: Sequence[str]) -> None:
    """Run commands and write the picture."""
    screen = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        shutil.copy(EXAMPLES / "digits_brevitas.onnx", folder / "brevitas.onnx")
        shutil.copy(EXAMPLES / "digits_test.npz", folder)
        for path in (EXAMPLES / "truncation").glob("floor_*.onnx"):
            shutil.copy(path, folder)
        for command in commands:
            screen.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
            printed = run(command, folder).rstrip("\n")
            if printed:
                screen.print(Text.from_ansi(printed), soft_wrap=True)
            screen.print()
    picture = screen.export_svg(code_format=FORM, theme=THEME, unique_id=name)
    (HERE / f"{name}.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
