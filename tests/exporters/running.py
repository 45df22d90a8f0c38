"""Run the exports of one exporter, and note what was written and what failed, and why."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

Export = Callable[[str, Path], None]
"""Writes the named network to a file."""


def run(exports: dict[str, tuple[Export, tuple[str, ...]]], packages: tuple[str, ...]) -> None:
    """Run ``exports``, by the name of what is written, with the networks of each.

    Writes FOLDER/EXPORTER/NAME_NETWORK.onnx and FOLDER/EXPORTER.json; the folder and the name of
    the exporter are arguments of the command line.
    """
    folder, exporter = Path(sys.argv[1]), sys.argv[2]
    wanted = sys.argv[3:]
    place = (folder / exporter).resolve()
    place.mkdir(parents=True, exist_ok=True)
    notes = folder.resolve() / f"{exporter}.json"
    done: dict[str, object] = json.loads(notes.read_text()) if notes.exists() else {}
    failed = done.get("failed", {})
    os.chdir(place)
    for name, (export, networks) in exports.items():
        for network in networks:
            label = f"{name}_{network}"
            if wanted and not any(label.startswith(each) for each in wanted):
                continue
            path = place / f"{label}.onnx"
            try:
                export(network, path)
                failed.pop(label, None)  # type: ignore[attr-defined]
                sys.stdout.write(f"{exporter} {label} written\n")
            except BaseException as error:
                path.unlink(missing_ok=True)
                lines = [line for line in str(error).strip().splitlines() if line.strip()]
                failed[label] = f"{type(error).__name__}: {lines[0][:200] if lines else ''}"  # type: ignore[index]
                sys.stdout.write(f"{exporter} {label} FAILED {failed[label]}\n")  # type: ignore[index]
                if os.environ.get("TRACE"):
                    traceback.print_exc()
            sys.stdout.flush()
    versions = {package: importlib.metadata.version(package) for package in packages}
    notes.write_text(json.dumps({"versions": versions, "failed": failed}, indent=1))
